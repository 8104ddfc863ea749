"""When what is known of a cluster's prefix cache became void: its cache epoch.

An epoch is a number that only rises: epoch milliseconds of the newest restart or role change among
the cluster's instances, 0 while none is known. It is worked out from telemetry alone, so processes
that share no memory agree:

* an instance whose reported start (`epoch_s`) moved has restarted, and one that started after it
  was first heard of has restarted before this process looked: its start counts;
* an instance that reads back another role than before has given up its cache: that reading counts;
* an instance that is silent, failed, or heard of for the first time takes nothing from anybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from telemetry.models import Source
from telemetry.store import Reading, latest

SAME_PROCESS_S = 1.0
"""Two reported starts no further apart are one process."""
_WITHIN_S = 60.0


@dataclass(frozen=True)
class Seen:
    """The fleet's instances as last heard of; `first_seen_s` by path, epoch seconds."""

    readings: tuple[Reading, ...]
    first_seen_s: Mapping[str, float]


def look(fleet: str, *, now_s: float) -> Seen:
    """What telemetry says now. Two queries."""
    prefix = f"{fleet}/"
    sources = Source.objects.filter(kind="instance", path__startswith=prefix)
    return Seen(
        tuple(latest("instance", prefix=prefix, now_s=now_s, within_s=_WITHIN_S)),
        {path: at.timestamp() for path, at in sources.values_list("path", "first_seen_at")},
    )


class Epochs:
    """The cache epochs of one fleet, by cluster; a cluster without one is at 0. Pure."""

    def __init__(self) -> None:
        self.by_place: dict[str, int] = {}
        self._known: dict[str, tuple[float, str]] = {}

    def update(self, seen: Seen) -> set[str]:
        """Takes in what was seen; the clusters whose epoch rose."""
        before = dict(self.by_place)
        for reading in seen.readings:
            if reading.state == "ok":
                self._take(reading, seen.first_seen_s.get(reading.path))
        return {place for place, epoch in self.by_place.items() if epoch != before.get(place)}

    def _take(self, reading: Reading, first_seen_s: float | None) -> None:
        place = reading.path.split("/")[1]
        known = self._known.get(reading.path)
        if known is None:
            self._known[reading.path] = (reading.epoch_s, reading.role)
            if first_seen_s is not None and reading.epoch_s > first_seen_s + SAME_PROCESS_S:
                self._raise(place, reading.epoch_s, at_least=0)
            return
        epoch_s, role = known
        # 0 is an engine that does not tell when it started.
        restarted = epoch_s > 0.0 and abs(reading.epoch_s - epoch_s) > SAME_PROCESS_S
        if restarted and reading.epoch_s > 0.0:
            # A new process may believe in an earlier time than the old one did: still a change.
            self._raise(place, reading.epoch_s, at_least=self.by_place.get(place, 0) + 1)
        if reading.role != role:
            self._raise(place, reading.at_s, at_least=self.by_place.get(place, 0) + 1)
        self._known[reading.path] = (reading.epoch_s or epoch_s, reading.role)

    def _raise(self, place: str, at_s: float, *, at_least: int) -> None:
        self.by_place[place] = max(self.by_place.get(place, 0), at_least, round(at_s * 1000.0))
