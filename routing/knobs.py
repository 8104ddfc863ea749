"""The loop's adjustable numbers: which exist, and what values can be meant."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from routing.core.types import Params


class KnobError(ValueError):
    """A knob that does not exist or a value that cannot be meant."""

    def __init__(self, name: str, value: Any, message: str) -> None:
        super().__init__(f"{name}={value!r}: {message}")
        self.name, self.value, self.message = name, value, message


@dataclass(frozen=True)
class Whole:
    low: int
    high: int

    def check(self, name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise KnobError(name, value, "must be a whole number")
        if not self.low <= value <= self.high:
            raise KnobError(name, value, f"must be in {self.low}..{self.high}")
        return value


@dataclass(frozen=True)
class Number:
    low: float
    high: float

    def check(self, name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise KnobError(name, value, "must be a number")
        if not self.low <= value <= self.high:
            raise KnobError(name, value, f"must be in {self.low:g}..{self.high:g}")
        return float(value)


@dataclass(frozen=True)
class OneOf:
    words: tuple[str, ...]

    def check(self, name: str, value: Any) -> str:
        if value not in self.words:
            raise KnobError(name, value, f"must be one of {', '.join(self.words)}")
        return str(value)


_HOUR_S = 3600.0
_ORDERED = (("t_min_tokens", "t_max_tokens"), ("abundant_below_ratio", "scarce_above_ratio"))
RANGES: dict[str, Whole | Number | OneOf] = {
    "objective": OneOf(("max_headroom", "min_remote")),
    "headroom_target": Number(1.0, 10.0),
    "t_min_tokens": Whole(0, 1_048_576),
    "t_max_tokens": Whole(1, 1_048_576),
    "min_requests": Whole(1, 100_000),
    "t_min_gain_ratio": Number(0.0, 0.5),
    "t_gain_hold_s": Number(0.0, _HOUR_S),
    "t_dwell_s": Number(0.0, _HOUR_S),
    "t_max_step_factor": Number(1.01, 100.0),
    "congestion_utilisation_ratio": Number(0.1, 1.0),
    "congestion_retransmit_ratio": Number(1e-5, 1.0),
    "congestion_clear_s": Number(0.0, _HOUR_S),
    "stale_after_s": Number(2.0, 600.0),
    "quorum_ratio": Number(0.0, 1.0),
    "max_changes_per_hour": Whole(1, 1_800),
    "push_min_interval_s": Number(0.5, 600.0),
    "roles_mode": OneOf(("auto", "fixed")),
    "roles_min_gain_ratio": Number(0.0, 1.0),
    "roles_gain_hold_s": Number(0.0, _HOUR_S),
    "roles_dwell_s": Number(0.0, 24 * _HOUR_S),
    "roles_max_step_ratio": Number(0.01, 1.0),
    "rebalance_deadline_s": Number(10.0, 24 * _HOUR_S),
    "drain_timeout_s": Number(1.0, 24 * _HOUR_S),
    "cache_mode": OneOf(("auto", "scarce", "abundant")),
    "abundant_below_ratio": Number(0.0, 1.0),
    "scarce_above_ratio": Number(0.0, 1.0),
    "cache_dwell_s": Number(0.0, 24 * _HOUR_S),
    "band_ratio": Number(0.0, 1.0),
    "max_remote_in_flight": Whole(0, 1_000_000),
}


def checked(knobs: dict[str, Any]) -> dict[str, Any]:
    """`knobs` when every one exists and can be meant. Raises KnobError naming the first other."""
    found = {}
    for name, value in knobs.items():
        if name not in RANGES:
            raise KnobError(name, value, f"no such knob; there are {', '.join(sorted(RANGES))}")
        found[name] = RANGES[name].check(name, value)
    merged = effective(found)
    for low, high in _ORDERED:
        if merged[low] > merged[high]:
            raise KnobError(low, merged[low], f"must not exceed {high}")
    return found


def effective(knobs: dict[str, Any]) -> dict[str, Any]:
    """Every knob's value: what was set, else the default."""
    defaults = {f.name: f.default for f in dataclasses.fields(Params) if f.name in RANGES}
    return defaults | knobs
