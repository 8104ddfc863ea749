"""The week's pattern, the advice it gives, and how advice is judged."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from routing.core.costs.usage import MIX_EDGES
from routing.core.forecast import advice, judge
from routing.core.forecast.advice import Traffic
from routing.core.forecast.pattern import PER_DAY, PER_WEEK, Pattern, Seen, Unknown, learn
from tests.core.cases import demo_scenario

SCENE = demo_scenario()
SHORT = tuple(1.0 if i == 9 else 0.0 for i in range(len(MIX_EDGES) + 1))
LONG = tuple(1.0 if i == 17 else 0.0 for i in range(len(MIX_EDGES) + 1))
"""All prompts of one bucket: about 2.5K tokens, about 40K."""


def weeks(
    n_days: float,
    rps: Callable[[int], float],
    mix: Callable[[int], tuple[float, ...]] = lambda slot: SHORT,
) -> Seen:
    """`rps` and `mix` by half hour of the week, for so many days from a Monday on."""
    slot = np.arange(round(n_days * PER_DAY)) % PER_WEEK
    return Seen(
        slot,
        np.array([rps(int(s)) for s in slot], dtype=np.float64),
        np.array([mix(int(s)) for s in slot], dtype=np.float64).reshape(len(slot), len(SHORT)),
    )


def known(seen: Seen) -> Pattern:
    found = learn(seen)
    assert isinstance(found, Pattern)
    return found


def by_hour(slot: int) -> float:
    return 1.0 + (slot % PER_DAY) / 2


def test_less_than_seven_days_are_no_pattern() -> None:
    found = learn(weeks(6.9, by_hour))
    assert isinstance(found, Unknown)
    assert (found.reason, round(found.n_days, 1)) == ("TooShort", 6.9)
    assert isinstance(learn(weeks(7, by_hour)), Pattern)
    nothing = learn(weeks(0, by_hour))
    assert isinstance(nothing, Unknown)
    assert nothing.measured_ratio == 0.0


def test_too_many_gaps_are_no_pattern() -> None:
    seen = weeks(10, by_hour)
    seen.rps[: 5 * PER_DAY] = math.nan
    found = learn(seen)
    assert isinstance(found, Unknown)
    assert (found.reason, found.measured_ratio) == ("TooManyGaps", 0.5)


def test_one_odd_day_does_not_move_the_pattern() -> None:
    seen = weeks(28, by_hour)
    seen.rps[7 * PER_DAY : 8 * PER_DAY] = 500.0
    found = known(seen)
    assert found.rps[10] == by_hour(10)
    assert found.basis[10] == 0


def test_with_one_week_days_of_a_kind_tell_of_each_other() -> None:
    def quiet_weekend(slot: int) -> float:
        return 1.0 if slot // PER_DAY > 4 else 5.0

    found = known(weeks(7, quiet_weekend))
    assert (found.rps[3], found.rps[5 * PER_DAY + 3]) == (5.0, 1.0)
    assert found.basis[3] == 1


def test_the_band_holds_four_in_five_of_what_comes() -> None:
    """Learnt from five weeks of noise of 20 %, tried on a sixth."""
    rng = np.random.default_rng(7)
    noise = np.exp(rng.normal(0.0, 0.2, 42 * PER_DAY))
    steady = weeks(42, by_hour)
    seen = Seen(steady.slot, steady.rps * noise, steady.mix)
    n = 35 * PER_DAY
    found = known(seen.before(n))
    low, high = found.around(20)
    assert low < found.rps[20] < high
    inside = [
        found.around(int(slot))[0] <= rps <= found.around(int(slot))[1]
        for slot, rps in zip(seen.slot[n:], seen.rps[n:], strict=True)
    ]
    assert np.mean(inside) == pytest.approx(0.8, abs=0.05)


def test_a_mix_is_of_all_requests_of_the_half_hour() -> None:
    """Three requests a second of short prompts in one week, one of long ones in the other three."""
    seen = weeks(28, lambda slot: 1.0, lambda slot: LONG)
    seen.rps[:PER_WEEK], seen.mix[:PER_WEEK] = 3.0, np.array(SHORT)
    assert known(seen).mix[0][[9, 17]].tolist() == [0.5, 0.5]


def test_long_prompts_want_more_prefill_than_short_ones() -> None:
    short = advice.wanted(advice.with_traffic(SCENE, {"pd": Traffic(2.0, SHORT)}))
    long = advice.wanted(advice.with_traffic(SCENE, {"pd": Traffic(2.0, LONG)}))
    assert long.roles["pd"][0] > short.roles["pd"][0]
    assert sum(long.roles["pd"]) == 8


def test_the_best_roles_leave_the_best_headroom() -> None:
    loaded = advice.with_traffic(SCENE, {"pd": Traffic(2.0, LONG)})
    best = advice.wanted(loaded)
    assert advice.headroom_of(loaded, best.roles) == pytest.approx(best.headroom, rel=1e-6)
    n_prefill, n_decode = best.roles["pd"]
    worse = advice.headroom_of(loaded, {"pd": (n_prefill - 1, n_decode + 1)})
    assert worse is not None
    assert worse < best.headroom
    assert advice.headroom_of(loaded, {"pd": (3, 4)}) is None
    assert advice.headroom_of(loaded, {}) is None


def test_a_steady_pattern_is_always_right_and_reacting_late_is_not() -> None:
    """Every other hour prompts are long: who goes by the half hour before is wrong at each turn."""
    seen = weeks(10, lambda slot: 2.0, lambda slot: LONG if slot % PER_DAY // 2 % 2 else SHORT)
    found = judge.walk_forward(SCENE, {"pd": seen})
    assert found["n_days"] == 3
    assert found["n_roles"] == 3 * 24
    assert found["demand"]["pd"]["error_median"] == 0.0
    assert found["demand"]["pd"]["inside_ratio"] == 1.0
    assert (found["forecast"]["right_ratio"], found["forecast"]["regret_mean"]) == (1.0, 0.0)
    assert found["reactive"]["right_ratio"] == 0.0
    assert found["difference"]["says"] == "better"
    assert found["difference"]["mean"] == pytest.approx(-found["reactive"]["regret_mean"])


def test_a_forecast_never_sees_the_day_it_is_judged_by() -> None:
    seen = weeks(8, lambda slot: 2.0)
    seen.rps[7 * PER_DAY :] = 4.0
    found = judge.walk_forward(SCENE, {"pd": seen})
    assert found["demand"]["pd"]["error_median"] == 0.5
    assert found["demand"]["pd"]["inside_ratio"] == 0.0
    assert found["difference"]["says"] is None, "one day has no interval"


def test_nothing_is_judged_where_nothing_can_be_known() -> None:
    found = judge.walk_forward(SCENE, {"pd": weeks(5, by_hour)})
    assert (found["n"], found["forecast"]["right_ratio"]) == (0, None)
    assert judge.walk_forward(SCENE, {})["n"] == 0


def test_a_cluster_without_traffic_does_not_stand_in_the_way() -> None:
    seen = weeks(8, lambda slot: 0.0)
    seen.mix[:] = math.nan
    expected = judge.expected_of(known(seen), 3)
    assert expected == Traffic(0.0, None)
    found = advice.wanted(advice.with_traffic(SCENE, {"pd": expected}))
    assert sum(found.roles["pd"]) == 8
    seen.rps[:] = 1.0
    assert judge.expected_of(known(seen), 3) is None, "traffic of unknown lengths is not known"
