"""Quantiles and means from buckets, against numpy on the values themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.twin.sketch import LONGEST_S, Sketch

DURATIONS = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-5, 1e6), st.floats(0.01, 20.0)), min_size=1, max_size=300
)
QUANTILES = st.one_of(st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]), st.floats(0.001, 1.0))


def sketch_of(values: list[float]) -> Sketch:
    sketch = Sketch()
    sketch.add(np.array(values, dtype=np.float64))
    return sketch


@given(DURATIONS, QUANTILES)
def test_a_quantile_is_within_a_thousandth_of_numpys(values: list[float], q: float) -> None:
    want = float(np.quantile(values, q, method="inverted_cdf"))
    found = sketch_of(values).quantile_s(q)
    assert found is not None
    if want == 0.0:
        assert found == 0.0
    else:
        assert abs(found - want) <= 1e-3 * want


@given(DURATIONS)
def test_the_mean_is_that_of_the_values(values: list[float]) -> None:
    mean_s = sketch_of(values).mean_s
    assert mean_s is not None
    assert abs(mean_s - math.fsum(values) / len(values)) <= 2.0**-41 + 1e-15 * mean_s


@given(DURATIONS, st.integers(0, 300), st.randoms(use_true_random=False))
def test_pieces_order_and_merging_change_no_bit(
    values: list[float], cut: int, random: object
) -> None:
    whole = sketch_of(values)
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    merged = sketch_of(shuffled[:cut])
    merged.merge(sketch_of(shuffled[cut:]))
    assert (merged.n, merged.summary()) == (whole.n, whole.summary())


@pytest.mark.parametrize(
    ("values", "want"),
    [
        pytest.param([0.0, 0.0], (0.0, 0.0, 0.0, 0.0), id="zeros are zero"),
        pytest.param([-0.0], (0.0, 0.0, 0.0, 0.0), id="so is a negative zero"),
        pytest.param([1e-9], (1e-9,) * 4, id="less than a bucket, but not zero"),
        pytest.param([3.0], (3.0, 3.0, 3.0, 3.0), id="one value is exact"),
        pytest.param([LONGEST_S], (LONGEST_S,) * 4, id="the longest"),
    ],
)
def test_the_ends(values: list[float], want: tuple[float, ...]) -> None:
    assert tuple(sketch_of(values).summary().values()) == pytest.approx(want, rel=0.1)


def test_nothing_is_not_zero() -> None:
    assert sketch_of([]).summary() == {"mean": None, "p50": None, "p90": None, "p99": None}


def test_zeros_are_kept_apart() -> None:
    """Of 100 requests half did not wait: their median is 0, not the least of the others."""
    sketch = sketch_of([0.0] * 50 + [2.0] * 50)
    assert (sketch.quantile_s(0.5), sketch.mean_s) == (0.0, 1.0)
    assert sketch.quantile_s(0.51) == pytest.approx(2.0, rel=1e-3)


def test_a_sum_beyond_64_bits() -> None:
    """2^13 times half of the longest is 2^34 s, in units of 2^-40 s: 2^74 of them."""
    sketch = sketch_of([LONGEST_S / 2.0] * 2**13)
    assert sketch.mean_s == LONGEST_S / 2.0


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf, 2.0 * LONGEST_S])
def test_what_is_no_duration(value: float) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        sketch_of([1.0, value, 2.0])


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan])
def test_what_is_no_quantile(q: float) -> None:
    with pytest.raises(ValueError, match="must be from 0 to 1"):
        sketch_of([1.0]).quantile_s(q)
