"""Instances by place and role, and what those say that can be believed: read lately, and warm."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from telemetry import counters, wire
from telemetry.store import Reading

SILENT_AFTER_S = 15.0
"""A source not heard of for this long is silent."""
SILENT_KEPT_S = 60.0
"""A silent gate's last rate, a silent instance's place in its pool, count for this long."""
WARM_UP_S = 60.0
"""An instance that started, or took another role, this lately is no evidence: its first passes
are slow, and its queue is what others left it. As long as the readings at hand go back."""
_ON_ITS_WAY = ("deferred", "transfer", "in_progress")
"""Stages of a queue in which requests wait for KV that is being sent, by part of their name."""


class Pools:
    """Instances from readings of the last `SILENT_KEPT_S`.

    A scrape that fails for a moment says "busy" more often than "gone" (R-01), so an instance
    keeps its place until it was not read for a minute, unless its agent says that it is gone. One
    that did not answer in time is maybe busy: what it said before is no evidence of idleness.
    """

    def __init__(self, readings: Mapping[str, list[Reading]], at_s: float) -> None:
        self.at_s = at_s
        self.good = {
            path: ok
            for path, found in readings.items()
            if found[-1].state != "gone" and (ok := [r for r in found if r.state == "ok"])
        }
        self._evidence_of: dict[tuple[str, str], list[Reading]] = {}
        self._by_place: dict[str, list[str]] = {}
        for path in self.good:
            self._by_place.setdefault("/".join(path.split("/", 2)[:2]) + "/", []).append(path)
        self._slow = {path for path, found in readings.items() if found[-1].state == "slow"}

    def _of(self, place: str, role: str | None = None) -> list[Reading]:
        newest = [self.good[path][-1] for path in self._by_place.get(place, ())]
        return [r for r in newest if role is None or r.role in (role, "both")]

    def _is_silent(self, reading: Reading) -> bool:
        return reading.path in self._slow or self.at_s - reading.received_s > SILENT_AFTER_S

    def _is_warming(self, reading: Reading) -> bool:
        if 0.0 < self.at_s - reading.epoch_s < WARM_UP_S:
            return True
        return any(earlier.role != reading.role for earlier in self.good[reading.path])

    def _evidence(self, place: str, role: str) -> list[Reading]:
        found = self._evidence_of.get((place, role))
        if found is None:
            pool = self._of(place, role)
            found = [r for r in pool if not self._is_silent(r) and not self._is_warming(r)]
            self._evidence_of[place, role] = found
        return found

    def count(self, place: str, role: str) -> int:
        return len(self._of(place, role))

    def silent(self, place: str, role: str) -> tuple[str, ...]:
        """Those of the pool that were not read lately or in time: busy or gone, nobody knows."""
        return tuple(sorted(r.path for r in self._of(place, role) if self._is_silent(r)))

    def warming(self, place: str, role: str) -> tuple[str, ...]:
        """Those of the pool that started or changed role too lately to be evidence."""
        return tuple(sorted(r.path for r in self._of(place, role) if self._is_warming(r)))

    def queue(self, place: str, role: str) -> float | None:
        """Waiting requests of the pool; None when no instance of it measured them lately."""
        waiting = [_signals(r).requests_waiting for r in self._evidence(place, role)]
        known = [n for n in waiting if n is not None]
        return sum(known) if known else None

    def in_transfer(self, place: str, role: str) -> float | None:
        """Those of `queue` whose KV is on its way; None when no instance tells its stages."""
        found = [
            sum(n for stage, n in stages.items() if any(part in stage for part in _ON_ITS_WAY))
            for r in self._evidence(place, role)
            if (stages := _signals(r).requests_waiting_by_stage) is not None
        ]
        return sum(found) if found else None

    def kv_usage_ratio(self, place: str, role: str) -> float | None:
        """The mean used share of KV memory; instances of a pool are of one profile.

        It guards the step that takes an instance away, so one that does not tell its share is
        taken as full (R-01). None where none tells.
        """
        used = [_kv_load(_signals(r)) for r in self._evidence(place, role)]
        if all(ratio is None for ratio in used):
            return None
        return sum(1.0 if ratio is None else ratio for ratio in used) / len(used)

    def preemptions_per_s(self, place: str, role: str) -> float | None:
        """How often a second the pool put a request back, over the readings at hand."""
        rates = [self._rate(self.good[r.path]) for r in self._evidence(place, role)]
        known = [rate for rate in rates if rate is not None]
        return sum(known) if known else None

    @staticmethod
    def _rate(readings: list[Reading]) -> float | None:
        gained = elapsed_s = 0.0
        for before, after in itertools.pairwise(readings):
            more = counters.increase(
                _signals(before).preemptions_total,
                _signals(after).preemptions_total,
                restarted=before.epoch_s != after.epoch_s,
            )
            if more is not None and after.at_s > before.at_s:
                gained += more
                elapsed_s += after.at_s - before.at_s
        return gained / elapsed_s if elapsed_s > 0.0 else None

    def age_s(self, place: str) -> float | None:
        ages = [max(self.at_s - reading.received_s, 0.0) for reading in self._of(place)]
        return min(ages, default=None)


def _kv_load(signals: wire.InstanceSignals) -> float | None:
    """The used share of KV memory; none of it is load where nothing runs or waits (`leaks`)."""
    if signals.requests_running == 0.0 and signals.requests_waiting == 0.0:
        return 0.0
    return signals.kv_cache_usage_ratio


def _signals(reading: Reading) -> wire.InstanceSignals:
    assert isinstance(reading.signals, wire.InstanceSignals), "a pool is made of instances"
    return reading.signals
