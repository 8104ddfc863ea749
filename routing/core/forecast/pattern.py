"""The week's pattern of one cluster's demand and prompt lengths, half hour by half hour.

The pattern's value of a half hour of the week is the median of what was measured in it: in the same
half hour of other weeks where there are `ENOUGH` of them, else at the same time on days of the same
kind (Monday to Friday, or the weekend), else at that time on any day. A median does not follow one
odd day. The band is what lay between the 10th and the 90th percentile of (measured + e) / (pattern
+ e), over all half hours, each against the pattern without itself; e, a hundredth of the median
demand, keeps quiet nights from widening it. Fewer than seven days, or less than `LEAST_MEASURED` of
them: not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Slots = NDArray[np.int64]

PER_DAY: Final = 48
PER_WEEK: Final = 7 * PER_DAY
ENOUGH: Final = 3
LEAST_DAYS: Final = 7.0
LEAST_MEASURED: Final = 0.6
BAND: Final = (0.1, 0.9)
_FRIDAY: Final = 4
_FLOOR: Final = 0.01


@dataclass(frozen=True)
class Seen:
    """What was measured, half hour after half hour without holes: `slot` (n,) in 0..335, from
    Monday 00:00 by the fleet's clock; `rps` (n,) and `mix` (n, buckets) are NaN in gaps."""

    slot: Slots
    rps: Array
    mix: Array

    def before(self, n: int) -> Seen:
        """Its first `n` half hours."""
        return Seen(self.slot[:n], self.rps[:n], self.mix[:n])


@dataclass(frozen=True)
class Unknown:
    """There is no pattern, and why."""

    reason: str
    n_days: float
    measured_ratio: float


@dataclass(frozen=True)
class Pattern:
    """By half hour of the week: `rps` (336,), `mix` (336, buckets), NaN where nothing tells;
    `basis` (336,) says of what: 0 weeks, 1 days of the kind, 2 any days. `band` are factors."""

    rps: Array
    mix: Array
    basis: Slots
    band: tuple[float, float]
    floor_rps: float
    n_days: float
    measured_ratio: float

    def around(self, slot: int) -> tuple[float, float]:
        """The band of a half hour, in requests a second."""
        low, high = ((self.rps[slot] + self.floor_rps) * b - self.floor_rps for b in self.band)
        return max(float(low), 0.0), float(high)


def learn(seen: Seen) -> Pattern | Unknown:
    known = ~np.isnan(seen.rps)
    n_days = len(seen.rps) / PER_DAY
    ratio = float(known.mean()) if len(known) else 0.0
    if n_days < LEAST_DAYS:
        return Unknown("TooShort", n_days, ratio)
    if ratio < LEAST_MEASURED:
        return Unknown("TooManyGaps", n_days, ratio)
    rps = np.full(PER_WEEK, np.nan)
    mix = np.full((PER_WEEK, seen.mix.shape[1]), np.nan)
    basis = np.zeros(PER_WEEK, dtype=np.int64)
    floor = _FLOOR * float(np.median(seen.rps[known]))
    factors = [1.0]
    for slot in range(PER_WEEK):
        for level, rows in enumerate(_groups(seen.slot, slot)):
            found = np.flatnonzero(rows & known)
            if len(found) >= (ENOUGH if level == 0 else 1):
                rps[slot], basis[slot] = np.median(seen.rps[found]), level
                mix[slot] = _mean_mix(seen.mix[found], seen.rps[found])
                factors += _apart(seen, found, slot, floor)
                break
    low, high = np.quantile(factors, BAND)
    return Pattern(rps, mix, basis, (float(low), float(high)), floor, n_days, ratio)


def _apart(seen: Seen, group: Slots, slot: int, floor: float) -> list[float]:
    """Each value of the half hour itself against the median of the others of its group."""
    if len(group) < 2 or not floor:
        return []
    own = group[seen.slot[group] == slot]
    return [
        float(seen.rps[i] + floor) / float(np.median(seen.rps[group[group != i]]) + floor)
        for i in own
    ]


def _groups(slots: Slots, wanted: int) -> tuple[NDArray[np.bool_], ...]:
    """Which half hours are the wanted one of other weeks, of days of its kind, of any day."""
    day, same_time = slots // PER_DAY, slots % PER_DAY == wanted % PER_DAY
    weekend = wanted // PER_DAY > _FRIDAY
    return slots == wanted, same_time & ((day > _FRIDAY) == weekend), same_time


def _mean_mix(mix: Array, rps: Array) -> Array:
    """Shares by bucket over all requests of these half hours."""
    told = ~np.isnan(mix).any(axis=1) & (rps > 0)
    if not told.any():
        return np.full(mix.shape[1], np.nan)
    total = (mix[told] * rps[told, None]).sum(axis=0)
    found: Array = total / total.sum()
    return found
