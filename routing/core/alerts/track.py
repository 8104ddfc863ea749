"""What becomes of one rule at all of its sources: waiting, firing, over. Vectors, no clock.

Two tracks a rule, which never mix: one of figures that are too much, one of figures that are not
there. A figure that is missing ends nothing: no news is not good news.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from routing.core.alerts.rule import Rule

OK: Final = 0
PENDING: Final = 1
FIRING: Final = 2

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Phases = npt.NDArray[np.int8]


@dataclass(frozen=True)
class Track:
    """Of each source, shape (n,): its phase, since when (epoch seconds), and since when what fires
    is well again (0: it is not). Where the phase is OK the times are 0.

    Nothing of it changes while nothing happens, so what is stored need not be written at each look.
    """

    phase: Phases
    since_s: Floats
    well_s: Floats

    @classmethod
    def quiet(cls, n: int) -> Track:
        return cls(np.zeros(n, np.int8), np.zeros(n), np.zeros(n))

    @property
    def is_quiet(self) -> bool:
        return not self.phase.any()


def too_much(rule: Rule, values: Floats, firing: Bools) -> Bools:
    """Shape (n,). What fires is too much until it is back beyond `back_at`. NaN is not."""
    limit = np.where(firing, rule.back_at, rule.threshold)
    with np.errstate(invalid="ignore"):
        return values > limit if rule.above else values < limit


def step_figures(rule: Rule, track: Track, values: Floats, *, now_s: float) -> Track:
    """The track after a look; NaN in `values` was not measured."""
    breach = too_much(rule, values, track.phase == FIRING)
    # What is not known keeps what was: neither begins, nor fires, nor ends.
    return _step(
        track, breach, np.isnan(values), now_s, for_s=rule.for_s, keep_s=rule.keep_firing_s
    )


def step_absence(rule: Rule, track: Track, values: Floats, *, now_s: float) -> Track:
    """The track of figures that are not there. Without `no_data_for_s` nothing is ever asked."""
    if rule.no_data_for_s is None:
        return track if track.is_quiet else Track.quiet(len(values))
    absent = np.isnan(values)
    known = np.zeros(len(values), np.bool_)
    return _step(track, absent, known, now_s, for_s=rule.no_data_for_s, keep_s=rule.keep_firing_s)


def _step(
    track: Track, breach: Bools, unknown: Bools, now_s: float, *, for_s: float, keep_s: float
) -> Track:
    if track.is_quiet and not breach.any():
        return track
    phase, since_s, well_s = track.phase.copy(), track.since_s.copy(), track.well_s.copy()
    begins = breach & (phase == OK)
    phase[begins], since_s[begins] = PENDING, now_s
    fires = breach & (phase == PENDING) & (now_s - since_s >= for_s)
    phase[fires], since_s[fires] = FIRING, now_s
    well = ~breach & ~unknown
    well_s[breach] = 0.0
    well_s[well & (phase == FIRING) & (well_s == 0.0)] = now_s
    # A clock that was set back must not keep an alert for ever.
    over = (phase == FIRING) & (abs(now_s - well_s) >= keep_s)
    ends = well & ((phase == PENDING) | over)
    phase[ends], since_s[ends], well_s[ends] = OK, 0.0, 0.0
    return Track(phase, since_s, well_s)
