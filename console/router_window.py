"""A router's counters over the last minute as shares and quantiles. Pure."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import Final

from telemetry import store, wire
from telemetry.quantiles import Quantile, quantile
from telemetry.store import Reading

SHARE_WINDOW_S: Final = 60.0
RATE_WINDOW_S: Final = 30.0
"""Arrivals a second are counted over so long: from one reading to the next they jump about."""


@dataclass(frozen=True)
class _Mark:
    """A router's counters at one reading. `ttft` maps side -> (edges, counts)."""

    at_s: float
    epoch_s: float
    local: float
    remote: float
    ttft: dict[str, tuple[tuple[float, ...], tuple[float, ...]]]


@dataclass
class RouterWindow:
    """Marks of the last minute, since the router's last restart."""

    marks: collections.deque[_Mark] = field(default_factory=collections.deque)
    rates: collections.deque[tuple[float, float]] = field(default_factory=collections.deque)

    def add(self, reading: Reading, signals: wire.RouterSignals) -> None:
        self._add_rate(reading.at_s, signals.requests_per_s)
        local, remote = store.requests_of(signals, "local"), store.requests_of(signals, "remote")
        if local is None or remote is None:
            return
        mark = _Mark(
            at_s=reading.at_s,
            epoch_s=reading.epoch_s,
            local=local,
            remote=remote,
            ttft={
                side: (tuple(histogram.edges), tuple(histogram.counts))
                for side, histogram in (signals.ttft_seconds or {}).items()
            },
        )
        if self.marks and _restarted(self.marks[-1], mark):
            self.marks.clear()
        self.marks.append(mark)
        # The last mark before the window is its base, so one of those is kept.
        while len(self.marks) > 1 and self.marks[1].at_s <= mark.at_s - SHARE_WINDOW_S:
            self.marks.popleft()

    def _add_rate(self, at_s: float, rate: float | None) -> None:
        if rate is not None:
            self.rates.append((at_s, rate))
        while self.rates and self.rates[0][0] <= at_s - RATE_WINDOW_S:
            self.rates.popleft()

    def requests_per_s(self) -> float | None:
        """Arrivals a second over the last `RATE_WINDOW_S`, or as much of it as was read: counted,
        or the mean of the rates that a router says which does not count by side."""
        if not self.marks:
            said = [rate for _at_s, rate in self.rates]
            return sum(said) / len(said) if said else None
        last = self.marks[-1]
        before = [mark for mark in self.marks if mark.at_s <= last.at_s - RATE_WINDOW_S]
        first = before[-1] if before else self.marks[0]
        if first is last:
            return None
        gained = last.local - first.local + last.remote - first.remote
        return gained / (last.at_s - first.at_s)

    def remote_share(self) -> float | None:
        """Share of the window's arrivals that went remote; None without arrivals."""
        if len(self.marks) < 2:
            return None
        first, last = self.marks[0], self.marks[-1]
        remote, local = last.remote - first.remote, last.local - first.local
        return remote / (remote + local) if remote + local > 0 else None

    def ttft_quantiles(self, *shares: float) -> list[Quantile]:
        """Quantiles in seconds of the window's TTFT over both sides; None without observations."""
        if len(self.marks) < 2:
            return [Quantile(None)] * len(shares)
        first, last = self.marks[0].ttft, self.marks[-1].ttft
        edges: tuple[float, ...] | None = None
        total: list[float] = []
        for side, (side_edges, counts) in last.items():
            base_edges, base = first.get(side, (side_edges, (0.0,) * len(counts)))
            if base_edges != side_edges or edges not in (None, side_edges):
                return [Quantile(None)] * len(shares)  # sums of unlike buckets would be a guess
            edges = side_edges
            seen = [now - before for now, before in zip(counts, base, strict=True)]
            total = [a + b for a, b in zip(total, seen, strict=True)] if total else seen
        return [quantile(edges or (), total, share) for share in shares]


def _restarted(before: _Mark, now: _Mark) -> bool:
    return now.epoch_s != before.epoch_s or now.local < before.local or now.remote < before.remote
