"""One day (UTC) of a fleet in slots of half an hour: who worked in which role, and on what traffic.

A minute counts where a tick was written in it, with the roles of its last tick; a minute without
one is a gap, never a zero. A cluster of which no instance was read in a minute has a gap in that
minute, whatever the others have. Of each cluster and slot

    prefill, decode   instance-minutes in that role of instances that were read
    silent            instance-minutes of instances that are counted in a pool and were not read
    minutes           minutes of the slot in which it was read

so instance-hours = instance-minutes / 60, exactly. Demand is the mean over the minutes in which it
was known, the mix of prompt lengths the mean of the shares by bucket of `MIX_EDGES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from routing.core.model import histograms
from routing.core.model.lengths import usable
from routing.core.types import LengthHistogram

SLOT_S: Final = 1800.0
"""Zones differ by whole hours and by halves, so a month of nearly any zone begins with a slot."""
N_SLOTS: Final = 48
MINUTE_S: Final = 60.0
MIX_EDGES: Final = tuple(float(round(128 * 2 ** (k / 2))) for k in range(21))
"""128 to 131,072 tokens, ratio 1.41: finer than a week tells mixes apart."""
_DIGITS = 5


@dataclass(frozen=True)
class Roles:
    """Instances of one cluster that were read, by role, and those that were not."""

    prefill: int
    decode: int
    silent: int = 0

    @property
    def is_read(self) -> bool:
        return self.prefill + self.decode > 0


@dataclass(frozen=True)
class Minute:
    """The last tick of one minute. `lengths` only of minutes in which they were looked at."""

    at_s: float
    roles: Mapping[str, Roles]
    demand_rps: Mapping[str, float | None] = field(default_factory=dict)
    lengths: Mapping[str, LengthHistogram | None] = field(default_factory=dict)


@dataclass
class _Cluster:
    minutes: list[int] = field(default_factory=lambda: [0] * N_SLOTS)
    prefill: list[int] = field(default_factory=lambda: [0] * N_SLOTS)
    decode: list[int] = field(default_factory=lambda: [0] * N_SLOTS)
    silent: list[int] = field(default_factory=lambda: [0] * N_SLOTS)


@dataclass
class _Traffic:
    demand: list[list[float]] = field(default_factory=lambda: [[] for _ in range(N_SLOTS)])
    mixes: list[list[Sequence[float]]] = field(default_factory=lambda: [[] for _ in range(N_SLOTS)])

    def plain(self) -> dict[str, Any]:
        return {
            "rps": [_mean(values) for values in self.demand],
            "n": [len(values) for values in self.demand],
            "mix": [_mean_of_rows(rows) for rows in self.mixes],
        }


def fold(minutes: Iterable[Minute], day_s: float) -> dict[str, Any]:
    """The day that begins at `day_s` as plain values; minutes outside of it are left out.

    {minutes: [48], clusters: {NAME: {minutes, prefill, decode, silent}}, traffic: {NAME: {rps, n,
    mix}}}
    """
    seen = [0] * N_SLOTS
    clusters: dict[str, _Cluster] = {}
    traffic: dict[str, _Traffic] = {}
    for minute in minutes:
        slot = int((minute.at_s - day_s) // SLOT_S)
        if not 0 <= slot < N_SLOTS:
            continue
        seen[slot] += 1
        for name, roles in minute.roles.items():
            _count(clusters.setdefault(name, _Cluster()), roles, slot)
        for name, rps in minute.demand_rps.items():
            if rps is not None:
                traffic.setdefault(name, _Traffic()).demand[slot].append(rps)
        for name, lengths in minute.lengths.items():
            if lengths is not None and usable(lengths):
                traffic.setdefault(name, _Traffic()).mixes[slot].append(mix_of(lengths))
    return {
        "minutes": seen,
        "clusters": {name: vars(found) for name, found in clusters.items()},
        "traffic": {name: found.plain() for name, found in traffic.items()},
    }


def mix_of(lengths: LengthHistogram) -> list[float]:
    """Shares of requests by bucket of `MIX_EDGES`, sum 1."""
    counts = histograms.spread(lengths.edges, lengths.counts, MIX_EDGES)
    return [float(share) for share in counts / counts.sum()]


def lengths_of(mix: Sequence[float], n: float = 1_000.0) -> LengthHistogram:
    """A mix as lengths that the model takes; `n` requests are said to stand behind it."""
    return LengthHistogram(MIX_EDGES, tuple(n * share for share in mix), n, n)


def _count(found: _Cluster, roles: Roles, slot: int) -> None:
    found.silent[slot] += roles.silent
    if roles.is_read:
        found.minutes[slot] += 1
        found.prefill[slot] += roles.prefill
        found.decode[slot] += roles.decode


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), _DIGITS) if values else None


def _mean_of_rows(rows: Sequence[Sequence[float]]) -> list[float] | None:
    if not rows:
        return None
    return [round(sum(column) / len(rows), _DIGITS) for column in zip(*rows, strict=True)]
