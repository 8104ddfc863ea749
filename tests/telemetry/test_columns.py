"""Columns: exact where they promise it, seven digits elsewhere, gaps as gaps, damage as errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry import columns

MATRICES = {
    "counter": np.cumsum(np.arange(24.0).reshape(6, 4) * 1e6, axis=0) + 9e12,
    "ratio of four digits": np.round(np.linspace(0, 1, 24).reshape(6, 4), 4),
    "quotients": np.sqrt(np.arange(1.0, 25.0)).reshape(6, 4),
    "constant": np.full((6, 4), 3.25),
    "a counter that began anew": np.array([[1e15], [1e15 + 1], [0.0], [7.0]]),
    "beyond exact integers": np.array([[2.0**60], [2.0**60 + 4096]]),
    "one value": np.array([[0.5]]),
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("holes", ["none", "some", "one source", "all"])
def test_exact_columns_come_back_to_the_last_bit(name: str, holes: str) -> None:
    matrix = MATRICES[name].copy()
    if holes == "some":
        matrix[::2, ::3] = np.nan
    elif holes == "one source":
        matrix[:, 0] = np.nan
    elif holes == "all":
        matrix[:] = np.nan
    packed = columns.encode(matrix, exact=True)
    np.testing.assert_array_equal(columns.decode(packed, *matrix.shape), matrix)
    assert (packed == b"") == np.isnan(matrix).all()


def test_only_numbers_with_many_decimals_lose_digits_and_at_most_the_eighth() -> None:
    for name, matrix in MATRICES.items():
        back = columns.decode(columns.encode(matrix, exact=False), *matrix.shape)
        if name in ("quotients", "beyond exact integers"):
            np.testing.assert_allclose(back, matrix, rtol=6e-8)
        else:
            np.testing.assert_array_equal(back, matrix)


def test_fewer_bits_keep_four_digits_and_cost_less() -> None:
    matrix = np.random.default_rng(3).random((60, 8)) * 1e5
    full = columns.encode(matrix, exact=False)
    short = columns.encode(matrix, exact=False, n_bits=13)
    np.testing.assert_allclose(columns.decode(short, 60, 8), matrix, rtol=6.2e-5)
    assert len(short) < 0.8 * len(full)


@given(
    st.integers(1, 8).flatmap(
        lambda n: st.lists(
            st.lists(
                st.one_of(
                    st.just(float("nan")),
                    st.floats(0, 1e300),
                    st.integers(0, 2**60).map(float),
                    st.decimals(0, 10**6, places=3).map(float),
                ),
                min_size=n,
                max_size=n,
            ),
            min_size=1,
            max_size=12,
        )
    )
)
def test_any_numbers_come_back(rows: list[list[float]]) -> None:
    matrix = np.array(rows)
    back = columns.decode(columns.encode(matrix, exact=True), *matrix.shape)
    np.testing.assert_array_equal(back, matrix)


def test_a_slow_counter_of_many_sources_costs_less_than_two_bytes_a_value() -> None:
    rng = np.random.default_rng(5)
    matrix = np.cumsum(rng.integers(0, 200, (120, 64)).astype(np.float64), axis=0) + 1e9
    assert len(columns.encode(matrix, exact=True)) < 2 * matrix.size


@pytest.mark.parametrize("cut", [1, 2, 4, 12])
def test_damage_is_an_error_not_a_wrong_number(cut: int) -> None:
    matrix = MATRICES["quotients"]
    packed = columns.encode(matrix, exact=False)
    with pytest.raises(columns.ColumnError):
        columns.decode(packed[:cut], *matrix.shape)
    with pytest.raises(columns.ColumnError):
        columns.decode(packed, 7, 4)


def test_columns_kept_in_every_way_are_read_together_as_alone() -> None:
    rng = np.random.default_rng(7)
    holed = rng.random((60, 8))
    holed[rng.random(holed.shape) < 0.3] = np.nan
    whole = np.cumsum(rng.integers(0, 9, (60, 8)), axis=0).astype(float)
    matrices = [
        holed,
        whole,
        np.full((60, 8), 0.25),
        whole * 1000.0,
        np.round(rng.random((60, 8)), 2),
        np.where(np.isnan(holed), np.nan, 7.0),
        rng.random((60, 8)),
    ]
    packed = [columns.encode(m, exact=bool(i % 2)) for i, m in enumerate(matrices)] + [b""]
    packed += packed[::-1]
    together = columns.decode_many(packed, 60, 8)
    assert together.shape == (16, 60, 8)
    for matrix, column in zip(together, packed, strict=True):
        np.testing.assert_array_equal(matrix, columns.decode(column, 60, 8))
    with pytest.raises(columns.ColumnError):
        columns.decode_many([*packed, packed[0][:-9]], 60, 8)


def test_objects_come_back() -> None:
    said = {"3": "connection refused", "9": None}
    assert columns.decode_objects(columns.encode_objects(said)) == said
    assert columns.decode_objects(b"") is None
