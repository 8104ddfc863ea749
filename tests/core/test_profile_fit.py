"""A profile from live telemetry: right within a stated error, with wild rows, or refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.core.model.profile_fit import Fit, PrefillRows, Refusal, fit_prefill

TRUE = (0.3, 4e-5, 2e-10)
LENGTHS = np.geomspace(300, 80_000, 40)


def true_s(tokens: Any, coefficients: tuple[float, float, float] = TRUE) -> Any:
    a, b, c = coefficients
    return a + b * tokens + c * tokens**2


def requests(
    seed: int,
    *,
    n: int = 600,
    noise: float = 0.08,
    wild: float = 0.0,
    by: Any = 5.0,
    coefficients: tuple[float, float, float] = TRUE,
) -> PrefillRows:
    """Log-normal prompts with relative noise; a share `wild` takes `by` times as long."""
    rng = np.random.default_rng(seed)
    tokens = np.clip(np.exp(rng.normal(9.0, 1.3, n)), 128, 131_072).round()
    seconds = true_s(tokens, coefficients) * np.exp(rng.normal(0.0, noise, n))
    factor = by(rng, n) if callable(by) else np.full(n, by)
    seconds = np.where(rng.random(n) < wild, seconds * factor, seconds)
    at_s = 10_000.0 + np.arange(n)
    return of_requests(tokens, seconds, at_s=at_s, started_at_s=np.zeros(n))


def of_requests(tokens, seconds, *, at_s, started_at_s) -> PrefillRows:
    """One row a request."""
    return PrefillRows(np.ones_like(tokens), tokens, tokens**2, seconds, at_s, started_at_s)


def fitted(rows: PrefillRows, warmup_s: float = 120.0) -> Fit:
    fit = fit_prefill(rows, warmup_s=warmup_s)
    assert isinstance(fit, Fit), fit
    return fit


def worst_error(fit: Fit, coefficients: tuple[float, float, float] = TRUE) -> float:
    return float(
        np.max(np.abs(fit.profile().prefill_s(LENGTHS) / true_s(LENGTHS, coefficients) - 1))
    )


def test_exact_times_give_the_coefficients_back() -> None:
    fit = fitted(requests(1, noise=0.0))
    assert (fit.constant_s, fit.linear_s, fit.square_s) == pytest.approx(TRUE, rel=1e-6)
    assert fit.n_wild == 0
    assert fit.measured_from_s == 10_000.0
    assert fit.measured_until_s == 10_599.0


def _heavy(rng: np.random.Generator, n: int) -> Any:
    return 1.0 + rng.exponential(3.0, n)


def _both_ways(rng: np.random.Generator, n: int) -> Any:
    return np.exp(rng.normal(0.0, 2.0, n))


# what wild rows do, which share of them, the error that holds over LENGTHS
WILD = [
    ("none", 0.0, 1.0, 0.06),
    ("preempted", 0.2, 5.0, 0.06),
    ("preempted", 0.3, 5.0, 0.06),
    ("queued", 0.2, _heavy, 0.06),
    ("queued", 0.3, _heavy, 0.08),
    ("anything", 0.3, _both_ways, 0.06),
    ("clock too fast", 0.2, 0.05, 0.06),
]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("case", "wild", "by", "error"), WILD, ids=lambda v: str(v)[:14])
def test_up_to_three_in_ten_wild_rows_do_not_move_the_fit(case, wild, by, error, seed) -> None:
    fit = fitted(requests(seed, wild=wild, by=by))
    assert worst_error(fit) < error
    assert fit.spread_ratio == pytest.approx(0.08, abs=0.04)


def test_least_squares_alone_would_not_hold() -> None:
    rows = requests(1, wild=0.2, by=5.0)
    design = np.stack([rows.requests, rows.tokens, rows.tokens_squared], axis=1)
    a, b, c = np.linalg.lstsq(design, rows.seconds, rcond=None)[0]
    assert np.max(np.abs(true_s(LENGTHS, (a, b, c)) / true_s(LENGTHS) - 1)) > 0.3


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10_000),
    st.floats(0.01, 1.0),
    st.floats(1e-5, 3e-4),
    st.floats(0.0, 1e-9),
    st.floats(0.0, 0.25),
    st.floats(3.0, 50.0),
)
def test_any_hardware_is_found_among_wild_rows(seed, a, b, c, wild, by) -> None:
    rows = requests(seed, coefficients=(a, b, c), wild=wild, by=by)
    assert worst_error(fitted(rows), (a, b, c)) < 0.12


def test_windows_of_many_requests_fit_as_well() -> None:
    rng = np.random.default_rng(4)
    sums = []
    for _ in range(400):
        tokens = np.clip(np.exp(rng.normal(9.0, 1.3, rng.integers(1, 30))), 128, 131_072)
        seconds = true_s(tokens) * np.exp(rng.normal(0.0, 0.08, len(tokens)))
        slow = 4.0 if rng.random() < 0.25 else 1.0
        sums.append((len(tokens), tokens.sum(), (tokens**2).sum(), slow * seconds.sum()))
    n, total, squares, seconds = np.array(sums, dtype=np.float64).T
    fit = fitted(PrefillRows(n, total, squares, seconds, np.full(400, 1e4), np.zeros(400)))
    assert worst_error(fit) < 0.08
    assert fit.range_tokens[1] < 131_073


def test_b2_cold_rows_are_not_evidence() -> None:
    """B2: what an instance does in its first minutes is slow, here for every second request."""
    rows = requests(5)
    cold = np.arange(600) % 2 == 0
    rows = dataclasses.replace(
        rows,
        seconds=np.where(cold, 3.0 * rows.seconds, rows.seconds),
        started_at_s=np.where(cold, rows.at_s - 60.0, 0.0),
    )
    fit = fitted(rows, warmup_s=120.0)
    assert (fit.n_warm_up, fit.n_rows) == (300, 300)
    assert worst_error(fit) < 0.06
    # With no warm-up left out half the rows are wild, and that is no fit of anything.
    poisoned = fit_prefill(rows, warmup_s=0.0)
    assert isinstance(poisoned, Refusal) or worst_error(poisoned) > 0.06


def test_an_unknown_start_may_be_a_warm_up() -> None:
    rows = requests(6)
    refused = fit_prefill(
        dataclasses.replace(rows, started_at_s=np.full(600, np.nan)), warmup_s=120.0
    )
    assert isinstance(refused, Refusal)
    assert refused.reason == "TooFewRows"
    assert "600 fall in a warm-up" in refused.message


def test_a_square_that_is_not_seen_is_none_and_never_negative() -> None:
    # Batching makes long prompts a little cheaper than a line: c alone would come out negative.
    rows = requests(7, noise=0.02)
    bent = dataclasses.replace(rows, seconds=0.2 + 1e-3 * rows.tokens**0.8)
    fit = fitted(bent)
    assert fit.square_s == 0.0
    assert fit.linear_s > 0
    assert fit.profile().least_s_per_token > 0


def test_a_start_below_zero_is_none() -> None:
    rows = requests(8)
    fit = fitted(dataclasses.replace(rows, seconds=1e-8 * rows.tokens**1.7))
    assert fit.constant_s == 0.0
    assert float(fit.profile().prefill_s(1.0)) > 0


def refusals() -> list[tuple[str, PrefillRows, str, str]]:
    rows, rng = requests(9), np.random.default_rng(9)
    flat = np.full(600, 5000.0) * rng.uniform(0.8, 1.2, 600)
    return [
        ("few", rows.only(np.arange(600) < 59), "TooFewRows", "60 are needed"),
        (
            "one length",
            of_requests(flat, true_s(flat), at_s=rows.at_s, started_at_s=rows.started_at_s),
            "TooLittleSpread",
            "4 times",
        ),
        (
            "noise",
            dataclasses.replace(rows, seconds=np.exp(rng.normal(0, 2, 600))),
            "NoRelation",
            "",
        ),
        (
            "the longer the faster",
            dataclasses.replace(rows, seconds=1e4 / rows.tokens),
            "NoRelation",
            "",
        ),
        ("two machines", requests(9, wild=0.45, by=5.0), "TooManyWild", "any one curve"),
    ]


@pytest.mark.parametrize(("case", "rows", "reason", "says"), refusals(), ids=lambda v: str(v)[:12])
def test_what_no_curve_explains_is_refused(case, rows, reason, says) -> None:
    refused = fit_prefill(rows, warmup_s=120.0)
    assert isinstance(refused, Refusal), refused
    assert refused.reason == reason
    assert says in refused.message


BROKEN = [
    ("requests", 0.5),
    ("requests", -1.0),
    ("tokens", 0.0),
    ("tokens", 1e12),
    ("tokens_squared", 1.0),
    ("tokens_squared", 1e30),
    ("seconds", 0.0),
    ("seconds", -3.0),
    ("seconds", 1e9),
    ("seconds", np.nan),
    ("tokens", np.inf),
    ("at_s", np.nan),
]


@pytest.mark.parametrize(("name", "value"), BROKEN)
def test_rows_no_prefill_can_leave_are_left_out(name, value) -> None:
    rows = requests(10)
    column = getattr(rows, name).copy()
    column[::3] = value
    fit = fitted(dataclasses.replace(rows, **{name: column}))
    assert fit.n_unusable == 200
    assert worst_error(fit) < 0.08


absurd = st.floats() | st.floats(0.0, 1e6) | st.sampled_from([0.0, 1.0, 1e300, -1.0])


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 100), st.lists(st.tuples(*[absurd] * 6), max_size=20), st.integers(1, 6))
def test_whatever_is_read_is_fitted_or_refused(seed, some, copies) -> None:
    rows = requests(seed, n=80, noise=0.3, wild=0.3)
    columns = [getattr(rows, field.name) for field in dataclasses.fields(rows)]
    read = PrefillRows(
        *(
            np.concatenate([column, [row[i] for row in some] * copies])
            for i, column in enumerate(columns)
        )
    )
    outcome = fit_prefill(read, warmup_s=120.0)
    if isinstance(outcome, Fit):
        assert float(outcome.profile().prefill_s(1.0)) > 0
        assert 0 < outcome.range_tokens[0] < outcome.range_tokens[1]
        assert outcome.n_wild + outcome.n_unusable + outcome.n_warm_up < len(read.requests)


def test_arrays_of_different_lengths_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="one length"):
        dataclasses.replace(requests(11), seconds=np.ones(3))
