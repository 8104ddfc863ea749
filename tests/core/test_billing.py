"""The 95th percentile of a month: what is billed, what is left, what that lets a plan use."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.links import billing
from routing.core.links import state as link_state
from routing.core.links.billing import bill
from routing.core.types import BillingMemory, Params
from tests.core.cases import demo_scenario, link

MONTH = 8640
NOVEMBER_S = 1_793_491_200.0
"""2026-11-01 00:00 UTC; November has 30 days."""
HOUR_S = 3600.0


def month(n_high: int, high: float = 90.0, low: float = 10.0, n: int = MONTH) -> list[float | None]:
    samples: list[float | None] = [*[high] * n_high, *[low] * (n - n_high)]
    random.Random(5).shuffle(samples)
    return samples


@pytest.mark.parametrize(
    ("n_high", "billed"),
    [
        pytest.param(0, 10.0, id="S-45 a quiet month"),
        pytest.param(432, 10.0, id="S-45 all that is dropped"),
        pytest.param(433, 90.0, id="S-45 one more"),
        pytest.param(8640, 90.0, id="S-45 a busy month"),
    ],
)
def test_s45_of_8640_samples_432_are_dropped_and_the_433rd_is_billed(
    n_high: int, billed: float
) -> None:
    found = bill(month(n_high))
    assert (found.dropped, found.billed_gbps) == (432, billed)
    assert found.cost(250.0) == 250.0 * billed


def test_s45_ranks_are_exact() -> None:
    """S-45: of 8,640 rates that all differ, the 433rd from above."""
    samples: list[float | None] = [float(i) for i in range(1, MONTH + 1)]
    random.Random(7).shuffle(samples)
    assert bill(samples).billed_gbps == MONTH - 432


def test_s45_missing_samples_are_no_zeros() -> None:
    """S-45: half a month measured, busy throughout: a bill of half the month, not of nothing."""
    gaps = month(0, low=40.0, n=4320) + [None] * 4320
    found = bill(gaps)
    assert (found.n_measured, found.n_missing, found.dropped) == (4320, 4320, 216)
    assert found.billed_gbps == 40.0
    assert bill([None] * 20).billed_gbps is None
    assert bill([None] * 20).cost(1.0) is None


def test_the_greater_direction_counts_sample_by_sample() -> None:
    out, back = [10.0, 50.0, 20.0, None], [30.0, 5.0, None, 70.0]
    found = bill(out, back)
    assert (found.billed_gbps, found.n_measured, found.n_missing) == (50.0, 2, 2)
    assert bill(out).billed_gbps == 50.0


@pytest.mark.parametrize(
    ("so_far", "burst_left"),
    [
        (month(0, n=2000), 432),
        (month(100, n=2000), 332),
        (month(432, n=2000), 0),
        (month(500, n=2000), 0),
        (month(0, n=2000) + [None] * 2000, 332),
    ],
    ids=["untouched", "used", "used up", "overdrawn", "gaps shrink it"],
)
def test_what_is_left_of_the_running_month(so_far: list[float | None], burst_left: int) -> None:
    found = bill(so_far, cap_gbps=20.0, n_cycle=MONTH)
    assert found.burst_left == burst_left
    assert found.burst_left_s == burst_left * 300.0


def test_432_samples_are_36_hours() -> None:
    assert bill([], cap_gbps=20.0, n_cycle=MONTH).burst_left_s == 36 * HOUR_S


@pytest.mark.parametrize(
    ("samples", "options", "names"),
    [
        ([1.0], {"in_gbps": [1.0, 2.0]}, "in_gbps"),
        ([1.0, 2.0], {"n_cycle": 1}, "n_cycle = 1"),
        ([1.0, -2.0], {}, "sample 1 = -2.0"),
        ([float("nan")], {}, "sample 0 = nan"),
    ],
)
def test_what_is_no_month_is_refused(samples: Any, options: Any, names: str) -> None:
    with pytest.raises(ValueError, match=names):
        bill(samples, **options)


rates = st.lists(st.none() | st.floats(0.0, 400.0), min_size=1, max_size=300)


@given(rates, st.floats(1.0, 400.0))
def test_a_bill_within_its_budget_is_within_its_cap(
    samples: list[float | None], cap: float
) -> None:
    found = bill(samples, cap_gbps=cap)
    if found.billed_gbps is not None:
        assert (found.billed_gbps <= cap) == ((found.over_cap or 0) <= found.dropped)
        assert found.billed_gbps in samples


@given(rates)
def test_more_traffic_never_costs_less(samples: list[float | None]) -> None:
    more = [None if rate is None else rate + 1.0 for rate in samples]
    before, after = bill(samples).billed_gbps, bill(more).billed_gbps
    assert (before is None) == (after is None)
    assert before is None or after is None or after >= before


def observed(
    rates: Sequence[float | None], from_s: float = NOVEMBER_S, step_s: float = 60.0
) -> BillingMemory:
    memory = BillingMemory()
    for i, rate in enumerate(rates):
        memory = billing.observed(memory, rate, 20.0, from_s + i * step_s)
    return memory


def test_the_loop_counts_what_a_bill_of_the_same_samples_counts() -> None:
    rates = [30.0 if i % 7 == 0 else 10.0 for i in range(200)]
    means: list[float | None] = [sum(rates[i : i + 5]) / 5 for i in range(0, 195, 5)]
    memory = observed(rates)
    full = bill(means, cap_gbps=20.0, n_cycle=MONTH)
    assert (memory.n_measured, memory.n_missing, memory.n_over) == (39, 0, full.over_cap)


def test_a_gap_is_missing_and_a_new_month_begins_anew() -> None:
    memory = observed([10.0] * 10 + [None] * 20 + [10.0] * 10)
    assert (memory.n_measured, memory.n_missing) == (3, 4)
    assert billing.observed(memory, 10.0, 20.0, NOVEMBER_S + 30 * 24 * HOUR_S) == BillingMemory(
        cycle="2026-12", slot=0, sum_gbps=10.0, n_readings=1
    )


def test_a_loop_that_was_away_finds_the_time_missing() -> None:
    memory = observed([10.0] * 6)
    later = billing.observed(memory, 10.0, 20.0, NOVEMBER_S + HOUR_S)
    assert (later.n_measured, later.n_missing) == (2, 10)
    assert billing.observed(later, 10.0, 20.0, NOVEMBER_S).n_measured == 2, "clock set back"


def test_a_month_that_was_hardly_seen_is_not_known() -> None:
    late_s = NOVEMBER_S + 20 * 24 * HOUR_S
    memory = observed([10.0] * 20, from_s=late_s)
    assert billing.burst_left_s(memory, late_s + 20 * 60.0) is None


@pytest.mark.parametrize(
    ("what", "facts", "left_s", "gbps"),
    [
        ("no cap", {}, None, 100.0),
        ("time above it is left", {"p95_cap_gbps": 20.0}, 600.0, 100.0),
        ("none is left", {"p95_cap_gbps": 20.0}, 0.0, 18.0),
        ("nobody knows", {"p95_cap_gbps": 20.0}, None, 18.0),
        ("a cap above the link", {"p95_cap_gbps": 400.0}, 0.0, 100.0),
    ],
)
def test_what_a_plan_may_use(
    what: str, facts: dict[str, Any], left_s: float | None, gbps: float
) -> None:
    on = demo_scenario(**facts).links[0]
    assert billing.planned_gbps(on, on.usable_gbps, left_s) == gbps


def test_bursts_use_the_budget_up_and_then_the_cap_holds_for_the_rest_of_the_month() -> None:
    """30 Gbps on a link billed above 20: full capacity for 32 hours, then 18 Gbps."""
    on, memory = demo_scenario(p95_cap_gbps=20.0).links[0], link_state.NEW_LINK
    planned = []
    for i in range(40 * 12):
        view = link_state.view(
            on,
            link(tx_gbps=30.0 if i < 36 * 12 else 5.0),
            memory,
            0.005,
            now_s=NOVEMBER_S + 300.0 * i,
            params=Params(),
        )
        memory = view.memory
        planned.append(view.planned_gbps)
        assert view.capacity_gbps == 100.0, "a bill is no congestion"
        assert not view.congested
    first_capped = planned.index(18.0)
    assert first_capped == 389, "432 samples less the reserve of a tenth"
    assert set(planned[first_capped:]) == {18.0}
