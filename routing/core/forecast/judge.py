"""How often advice would have been right: the recorded past gone through as if it were to come.

Each day is forecast from the days before it alone. Of every `STEP`-th half hour of it

    error    |expected - measured| / measured demand, and whether it was inside the band
    right    whether the roles that the forecast wants are those the measured traffic wants
    regret   1 - headroom with those roles / best headroom, both under the measured traffic

and the same for *reactive* roles, those that the measured traffic of the half hour before wanted:
what a loop that follows perfectly and moves at once would have. Regrets of the two are compared day
by day, with Student's 95 % interval over days, for half hours of one day are alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from scipy.special import stdtrit

from routing.core.forecast import advice
from routing.core.forecast.advice import Split, Traffic
from routing.core.forecast.pattern import PER_DAY, Array, Pattern, Seen, Unknown, learn
from routing.core.scenario.document import Scenario

STEP: Final = 2
MOST_DAYS: Final = 7
LEAST_DAYS: Final = 3
"""Days judged before an interval is told."""
_BETTER: Final = 1e-9


@dataclass
class _Demand:
    errors: list[float] = field(default_factory=list)
    inside: list[bool] = field(default_factory=list)


@dataclass
class _Roles:
    right: list[bool] = field(default_factory=list)
    regret: list[float] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        return {
            "right_ratio": _mean(self.right),
            "regret_mean": _mean(self.regret),
            "regret_p90": float(np.quantile(self.regret, 0.9)) if self.regret else None,
        }


def walk_forward(scenario: Scenario, seen: Mapping[str, Seen]) -> dict[str, Any]:
    """{n, n_days, demand: {CLUSTER: ...}, forecast, reactive, difference} as plain values.

    `seen` of every PD cluster with traffic begins with the same half hour, which begins a day.
    """
    n = min((len(each.rps) for each in seen.values()), default=0)
    demand: dict[str, _Demand] = {name: _Demand() for name in seen}
    forecast, reactive = _Roles(), _Roles()
    by_day: list[float] = []
    n_judged = 0
    for first in _days(n):
        patterns = {name: learn(each.before(first)) for name, each in seen.items()}
        known = {name: p for name, p in patterns.items() if not isinstance(p, Unknown)}
        if not known:
            continue
        apart: list[float] = []
        for at in range(first, min(first + PER_DAY, n), STEP):
            n_judged += _demand(demand, known, seen, at)
            pair = _roles(scenario, known, seen, at) if len(known) == len(seen) else None
            if pair is not None:
                for kept, (right, regret) in zip((forecast, reactive), pair, strict=True):
                    kept.right.append(right)
                    kept.regret.append(regret)
                apart.append(pair[0][1] - pair[1][1])
        if apart:
            by_day.append(float(np.mean(apart)))
    return {
        "n": n_judged,
        "n_roles": len(forecast.right),
        "n_days": len(by_day),
        "demand": {name: _told(found) for name, found in demand.items()},
        "forecast": forecast.plain(),
        "reactive": reactive.plain(),
        "difference": _interval(by_day),
    }


def _days(n: int) -> list[int]:
    """Where the newest days begin that can be judged, ascending."""
    whole = n // PER_DAY
    return [day * PER_DAY for day in range(max(whole - MOST_DAYS, 1), whole)]


def _demand(
    found: dict[str, _Demand], known: Mapping[str, Pattern], seen: Mapping[str, Seen], at: int
) -> int:
    n = 0
    for name, pattern in known.items():
        slot, measured = int(seen[name].slot[at]), float(seen[name].rps[at])
        expected = float(pattern.rps[slot])
        if math.isnan(measured) or math.isnan(expected) or measured <= 0.0:
            continue
        low, high = pattern.around(slot)
        found[name].errors.append(abs(expected - measured) / measured)
        found[name].inside.append(low <= measured <= high)
        n += 1
    return n


def _roles(
    scenario: Scenario, known: Mapping[str, Pattern], seen: Mapping[str, Seen], at: int
) -> tuple[tuple[bool, float], tuple[bool, float]] | None:
    """(right, regret) of the forecast's roles and of the reactive ones; None where not known."""
    measured = {name: _measured(each, at) for name, each in seen.items()}
    before = {name: _measured(each, at - 1) for name, each in seen.items()}
    expected = {name: expected_of(known[name], int(seen[name].slot[at])) for name in seen}
    loads = [_loaded(scenario, traffic) for traffic in (measured, expected, before)]
    if None in loads:
        return None
    truth, *told = [load for load in loads if load is not None]
    best = advice.wanted(truth)
    return tuple(_against(truth, best, advice.wanted(load).roles) for load in told)  # type: ignore[return-value]


def _against(truth: Scenario, best: advice.Wanted, roles: dict[str, Split]) -> tuple[bool, float]:
    if roles == best.roles:
        return True, 0.0
    headroom = advice.headroom_of(truth, roles) or 0.0
    return False, max(1.0 - headroom / best.headroom, 0.0) if best.headroom else 0.0


def expected_of(pattern: Pattern, slot: int) -> Traffic | None:
    """What a half hour of the week is expected to bring."""
    return _traffic(float(pattern.rps[slot]), pattern.mix[slot])


def _measured(seen: Seen, at: int) -> Traffic | None:
    return None if at < 0 else _traffic(float(seen.rps[at]), seen.mix[at])


def _traffic(rps: float, mix: Array) -> Traffic | None:
    if math.isnan(rps):
        return None
    if np.isnan(mix).any():
        return None if rps > 0.0 else Traffic(rps, None)
    return Traffic(rps, tuple(mix.tolist()))


def _loaded(scenario: Scenario, traffic: Mapping[str, Traffic | None]) -> Scenario | None:
    known = {name: each for name, each in traffic.items() if each is not None}
    return advice.with_traffic(scenario, known) if len(known) == len(traffic) else None


def _told(found: _Demand) -> dict[str, Any]:
    return {
        "n": len(found.errors),
        "error_median": float(np.median(found.errors)) if found.errors else None,
        "error_p90": float(np.quantile(found.errors, 0.9)) if found.errors else None,
        "inside_ratio": _mean(found.inside),
    }


def _interval(by_day: Sequence[float]) -> dict[str, Any]:
    """The forecast's regret less the reactive one's: below 0 it would have done better."""
    n = len(by_day)
    mean = _mean(by_day)
    if mean is None or n < LEAST_DAYS:
        return {"n": n, "mean": mean, "low": None, "high": None, "says": None}
    half = float(stdtrit(n - 1, 0.975) * np.std(by_day, ddof=1) / math.sqrt(n))
    low, high = mean - half, mean + half
    says = "better" if high < -_BETTER else "worse" if low > _BETTER else "unclear"
    return {"n": n, "mean": mean, "low": low, "high": high, "says": says}


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None
