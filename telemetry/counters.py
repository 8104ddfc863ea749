"""What rising counters gained between two readings, resets and wraps told apart.

Pure arithmetic on plain numbers, the same for the agent (rates) and the console (windows). One
convention everywhere: None is *unknown*, which is neither zero nor an error. A counter that fell
was reset, and what it shows now is what it gained since; a first reading gained an unknown amount.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


class BucketCounts(Protocol):
    """Any histogram of per-bucket counts: `counts` is one longer than `edges`."""

    @property
    def edges(self) -> Sequence[float]: ...
    @property
    def counts(self) -> Sequence[float]: ...
    @property
    def sum(self) -> float: ...


@dataclass(frozen=True)
class HistogramIncrease:
    """Observations of one interval. `edges` shape (n,), `counts` shape (n + 1,)."""

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float

    @property
    def count(self) -> float:
        return sum(self.counts)


def increase(
    previous: float | None,
    current: float | None,
    *,
    restarted: bool = False,
    width_bits: int | None = None,
) -> float | None:
    """What a counter gained from one reading to the next; None while either is unknown.

    `restarted`: the process is known to be another one (its start time changed), so the counter
    began at zero even where it has already overtaken its old value. `width_bits`: the declared
    width of a hardware counter. A fall from the upper half of that range to the lower half is a
    wrap; any other fall is a reset.
    """
    if previous is None or current is None:
        return None
    return _gain(previous, current, restarted, width_bits)


def _gain(previous: float, current: float, restarted: bool, width_bits: int | None = None) -> float:
    if restarted:
        return current
    if current >= previous:
        return current - previous
    if width_bits is not None:
        span = 2.0**width_bits
        if previous >= span / 2 > current:
            return current + span - previous
    return current


def increases(
    readings: Iterable[float | None], *, width_bits: int | None = None
) -> list[float | None]:
    """The gain of each reading over the last known one; the first known reading's is unknown."""
    gains: list[float | None] = []
    last: float | None = None
    for reading in readings:
        gains.append(increase(last, reading, width_bits=width_bits))
        last = reading if reading is not None else last
    return gains


def rate(
    previous: float | None,
    current: float | None,
    *,
    elapsed_s: float,
    restarted: bool = False,
    width_bits: int | None = None,
) -> float | None:
    """Gain per second over `elapsed_s`.

    Unknown when the step in time is not positive (a clock was set back, or one reading was taken
    twice): dividing by such a step would invent a number.
    """
    gain = increase(previous, current, restarted=restarted, width_bits=width_bits)
    if gain is None or not elapsed_s > 0.0:
        return None
    return gain / elapsed_s


def keyed_increases(
    previous: Mapping[str, float] | None,
    current: Mapping[str, float] | None,
    *,
    restarted: bool = False,
) -> dict[str, float] | None:
    """Gains of a labelled counter, key by key; None while either reading is unknown.

    A key that is new in a process that was already being read started from zero: exporters create
    a label set at its first increment.
    """
    if previous is None or current is None:
        return None
    return {key: _gain(previous.get(key, 0.0), now, restarted) for key, now in current.items()}


def histogram_increase(
    previous: BucketCounts | None,
    current: BucketCounts | None,
    *,
    restarted: bool = False,
) -> HistogramIncrease | None:
    """Observations between two readings of a cumulative histogram.

    Any bucket that fell means the whole histogram was reset: its buckets share one lifetime. A
    changed bucket layout is unknown, because counts of different buckets do not subtract.
    """
    if previous is None or current is None:
        return None
    edges = tuple(current.edges)
    if not restarted and edges != tuple(previous.edges):
        return None
    fell = any(now < was for was, now in zip(previous.counts, current.counts, strict=False))
    if restarted or fell:
        return HistogramIncrease(edges, tuple(current.counts), current.sum)
    gained = tuple(now - was for was, now in zip(previous.counts, current.counts, strict=True))
    # A sum may fall without a reset where an engine observes negative values; never below zero.
    return HistogramIncrease(edges, gained, max(current.sum - previous.sum, 0.0))
