"""Readings folded into bins of ten seconds and of a minute: what a roll-up row holds.

Counters keep their last value and what they gained in the bin, over resets; other plain signals
their minimum, mean, maximum and count; histograms what they gained by bucket, which can be summed
over bins and sources. Pure: rows in, columns out; `rollups` moves them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from telemetry import chunks, columns
from telemetry.chunks import Chunk
from telemetry.columns import Matrix


@dataclass(frozen=True)
class Level:
    """One roll-up table, made from the rows of `source`."""

    table: str
    source: str
    bin_s: float
    span_s: float

    def start(self, at_s: float) -> float:
        """The start of the span that holds `at_s`."""
        return at_s // self.span_s * self.span_s

    @property
    def n_bins(self) -> int:
        return round(self.span_s / self.bin_s)


LEVELS: Final = (
    Level("telemetry_rollup_10s", "telemetry_chunk", 10.0, 600.0),
    Level("telemetry_rollup_1m", "telemetry_rollup_10s", 60.0, 7200.0),
)
GAUGE_BITS: Final = 9
"""Of the mantissa of a gauge with many decimals: to a thousandth, less than a chart's line is wide.
What decides reads raw."""


@dataclass(frozen=True)
class Bins:
    """One plain signal by bin: each of shape (n_bins, n_sources), NaN where there was nothing.

    For a counter `mean` is its last value and `gain` what it gained; others have no gain.
    """

    low: Matrix
    mean: Matrix
    high: Matrix
    count: Matrix
    gain: Matrix | None = None


@dataclass(frozen=True)
class Finer:
    """A finer row: `start_s` is that of its first bin or reading."""

    start_s: float
    n_ticks: int
    n_sources: int
    columns: Mapping[str, bytes]


BEFORE_S: Final = 150.0
"""How far before a span the reading may be that its first gain counts from."""


def from_chunks(
    level: Level, kind: str, finer: Sequence[Finer], start_s: float
) -> dict[str, bytes]:
    """The columns of one span of 10 s bins, from raw chunks."""
    n_sources = finer[0].n_sources
    parts = [Chunk(kind, f.n_ticks, f.n_sources, 0.0, 0.0, f.columns) for f in finer]
    at_s = np.concatenate([chunks.times(part) for part in parts])
    order = np.argsort(at_s, axis=0, kind="stable")
    at_s = np.take_along_axis(at_s, order, axis=0)
    index = np.floor((at_s - start_s) / level.bin_s).astype(np.int64)
    inside = (index >= 0) & (index < level.n_bins)
    if not inside.any():
        return {}
    groups = _Groups.of(index, inside, n_sources)
    lives = _lives(kind, parts, order)
    found: dict[str, bytes] = {}
    for name, shape in chunks.SHAPES[kind].items():
        if not any(name in part.columns for part in parts):
            continue
        if shape == "number":
            values = np.concatenate([chunks.numbers(part, name) for part in parts])
            values = np.take_along_axis(values, order, axis=0)
            gains = _gains(values, lives) if chunks.is_counter(name) else None
            found[name] = pack(groups.bins(values, gains, level.n_bins))
        elif shape in ("histogram", "labelled_histogram"):
            gained = _histogram_gains(level, name, parts, order, lives, start_s)
            if gained:  # maps may be told and hold nothing
                found[name] = _pack_gains(gained)
    return found


@dataclass(frozen=True)
class _Groups:
    """Readings in order of (source, bin): where each such group begins."""

    order: npt.NDArray[np.intp]
    firsts: npt.NDArray[np.intp]
    bins_of: npt.NDArray[np.int64]
    sources_of: npt.NDArray[np.int64]
    n_sources: int

    @classmethod
    def of(
        cls, index: npt.NDArray[np.int64], inside: npt.NDArray[np.bool_], n_sources: int
    ) -> _Groups:
        sources = np.broadcast_to(np.arange(n_sources), index.shape)
        # Columns are ascending in time, so by source first the groups already lie together.
        flat = np.flatnonzero(inside.T)
        bins, of = index.T.reshape(-1)[flat], sources.T.reshape(-1)[flat]
        changed = np.flatnonzero((np.diff(bins) != 0) | (np.diff(of) != 0)) + 1
        firsts = np.concatenate([[0], changed]).astype(np.intp)
        return cls(flat, firsts, bins[firsts], of[firsts], n_sources)

    def bins(self, values: Matrix, gains: Matrix | None, n_bins: int) -> Bins:
        """`values`, shape (n_ticks, n_sources), folded into bins."""
        flat = values.T.reshape(-1)[self.order]
        known = ~np.isnan(flat)
        count = np.add.reduceat(known.astype(np.float64), self.firsts)
        low = np.fmin.reduceat(flat, self.firsts)
        high = np.fmax.reduceat(flat, self.firsts)
        if gains is None:
            total = np.add.reduceat(np.where(known, flat, 0.0), self.firsts)
            with np.errstate(invalid="ignore"):
                mean = np.where(count > 0, np.clip(total / np.maximum(count, 1), low, high), np.nan)
            return Bins(*(self._placed(x, n_bins) for x in (low, mean, high, count)))
        last = self._last(flat, known)
        gained = gains.T.reshape(-1)[self.order]
        told = ~np.isnan(gained)
        gain = np.add.reduceat(np.where(told, gained, 0.0), self.firsts)
        gain = np.where(np.add.reduceat(told.astype(np.int64), self.firsts) > 0, gain, np.nan)
        return Bins(
            *(self._placed(x, n_bins) for x in (low, last, high, count)),
            gain=self._placed(gain, n_bins),
        )

    def _last(
        self, flat: npt.NDArray[np.float64], known: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.float64]:
        place = np.where(known, np.arange(flat.size), -1)
        last = np.maximum.reduceat(place, self.firsts)
        return np.where(last >= 0, flat[last], np.nan)

    def _placed(self, values: npt.NDArray[np.float64], n_bins: int) -> Matrix:
        out = np.full((n_bins, self.n_sources), np.nan)
        out[self.bins_of, self.sources_of] = values
        return out


def _lives(
    kind: str, parts: Sequence[Chunk], order: npt.NDArray[np.intp]
) -> npt.NDArray[np.int64] | None:
    """How often another process had answered by each reading; None where nobody tells."""
    if kind == "link":
        return None
    epochs = np.concatenate([chunks.numbers(part, chunks.EPOCH) for part in parts])
    epochs = np.take_along_axis(epochs, order, axis=0)
    # A reading that failed may not tell: it is of the process that was last heard of.
    place = np.where(epochs > 0, np.arange(len(epochs))[:, None], 0)
    told = np.take_along_axis(epochs, np.maximum.accumulate(place, axis=0), axis=0)
    began = np.zeros(epochs.shape, dtype=np.int64)
    began[1:] = (told[:-1] > 0) & (np.abs(told[1:] - told[:-1]) > 1.0)
    lives: npt.NDArray[np.int64] = np.cumsum(began, axis=0)
    return lives


def _gains(values: Matrix, lives: npt.NDArray[np.int64] | None) -> Matrix:
    """What a counter gained at each reading over the last known one before (see `counters`)."""
    known = ~np.isnan(values)
    place = np.where(known, np.arange(len(values))[:, None], -1)
    before = np.maximum.accumulate(place, axis=0)
    before = np.concatenate([np.full((1, values.shape[1]), -1), before[:-1]])
    earlier = np.take_along_axis(values, np.maximum(before, 0), axis=0)
    fell = values < earlier
    if lives is not None:
        fell |= lives != np.take_along_axis(lives, np.maximum(before, 0), axis=0)
    out = np.where(fell, values, values - earlier)
    out[(before < 0) | ~known] = np.nan
    return out


def from_rollups(
    level: Level, kind: str, finer: Sequence[Finer], start_s: float
) -> dict[str, bytes]:
    """The columns of one span of coarser bins, from roll-ups whose bins fit into them."""
    n_sources = finer[0].n_sources
    found: dict[str, bytes] = {}
    for name, shape in chunks.SHAPES[kind].items():
        rows = [row for row in finer if name in row.columns]
        if not rows:
            continue
        if shape == "number":
            parts = [(row, unpack(row.columns[name], row.n_ticks, n_sources)) for row in rows]
            found[name] = pack(_coarser(level, parts, start_s, n_sources))
        elif shape in ("histogram", "labelled_histogram"):
            found[name] = _coarser_histograms(level, name, rows, start_s)
    return found


def _coarser(
    level: Level, parts: Sequence[tuple[Finer, Bins]], start_s: float, n_sources: int
) -> Bins:
    fine_s = LEVELS[0].bin_s
    of = np.concatenate(
        [
            (row.start_s - start_s + np.arange(row.n_ticks) * fine_s) // level.bin_s
            for row, _ in parts
        ]
    ).astype(np.int64)
    # Rows are ascending in time, so the finer bins of one coarser bin lie together.
    inside = np.flatnonzero((of >= 0) & (of < level.n_bins))
    of = of[inside]
    firsts = np.flatnonzero(np.diff(of, prepend=-1))

    def folded(fold: np.ufunc, values: Matrix) -> Matrix:
        out = np.full((level.n_bins, n_sources), np.nan)
        out[of[firsts]] = fold.reduceat(values, firsts, axis=0)
        return out

    def of_all(name: str) -> Matrix:
        return np.concatenate([getattr(bins, name) for _, bins in parts])[inside]

    if not of.size:
        return Bins(*(np.full((level.n_bins, n_sources), np.nan) for _ in range(4)))
    low, mean, high, count = (of_all(name) for name in ("low", "mean", "high", "count"))
    known = count > 0
    n = np.where(known, count, 0.0)
    counted = folded(np.add, n)
    counted[~(counted > 0)] = np.nan
    low, high = folded(np.fmin, low), folded(np.fmax, high)
    if not any(bins.gain is not None for _, bins in parts):
        total = folded(np.add, np.where(known, mean * n, 0.0))
        return Bins(low, total / counted, high, counted)
    place = folded(np.maximum, np.where(known, np.arange(len(known))[:, None], -1.0))
    last = np.take_along_axis(mean, np.nan_to_num(place, nan=0.0).clip(0).astype(np.intp), axis=0)
    # A signal has gains in each of its rows or in none: what counts is in its name.
    gain = of_all("gain")
    told = ~np.isnan(gain)
    gained = folded(np.add, np.where(told, gain, 0.0))
    gained[~(folded(np.add, told.astype(np.float64)) > 0)] = np.nan
    return Bins(low, np.where(place >= 0, last, np.nan), high, counted, gain=gained)


def pack(bins: Bins) -> bytes:
    """Bins as one column."""
    if bins.gain is not None:
        # A counter's least and greatest value say nothing that its last and its gain do not.
        # Nor does its gain mostly, which is what its last value rose by.
        parts = [bins.mean, bins.count, bins.gain - _risen(bins.mean)]
        return msgspec.msgpack.encode([columns.encode(part, exact=True) for part in parts])
    return msgspec.msgpack.encode(
        [
            columns.encode(part, exact=False, n_bits=GAUGE_BITS)
            for part in (bins.mean, bins.count, bins.low, bins.high)
        ]
    )


def unpack(column: bytes, n_bins: int, n_sources: int) -> Bins:
    """The bins of a column; a counter's `low` and `high` are its last value."""
    parts = [columns.decode(part, n_bins, n_sources) for part in msgspec.msgpack.decode(column)]
    if len(parts) == 3:
        last, count, beyond = parts
        return Bins(last, last, last, count, gain=beyond + _risen(last))
    mean, count, low, high = parts
    return Bins(low, mean, high, count)


def _risen(last: Matrix) -> Matrix:
    """By how much each is above the last known one before, zero where there is none."""
    place = np.where(np.isnan(last), -1, np.arange(len(last))[:, None])
    before = np.maximum.accumulate(place, axis=0)
    before = np.concatenate([np.full((1, last.shape[1]), -1), before[:-1]])
    risen = last - np.take_along_axis(last, np.maximum(before, 0), axis=0)
    # Gain and rise are near each other or whole: to take one off and add it again loses nothing.
    return np.where((before >= 0) & ~np.isnan(risen), risen, 0.0)


def means_and_counts(
    packed: Sequence[bytes], n_bins: int, n_sources: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Only the mean, of a counter the last value, and the count of each bin of columns of one
    shape: each (n_columns, n_bins, n_sources)."""
    parts = [msgspec.msgpack.decode(column)[:2] for column in packed]
    means = columns.decode_many([mean for mean, _ in parts], n_bins, n_sources)
    return means, columns.decode_many([count for _, count in parts], n_bins, n_sources)


# Histograms: what each slot gained in each bin, and the sum's gain.


def _histogram_gains(
    level: Level,
    name: str,
    parts: Sequence[Chunk],
    ordered: npt.NDArray[np.intp],
    lives: npt.NDArray[np.int64] | None,
    start_s: float,
) -> dict[chunks.Slot, tuple[Matrix, Matrix]]:
    unordered = np.zeros(ordered.shape, np.int64)
    if lives is not None:  # by the rows of `parts`, as the histograms are
        np.put_along_axis(unordered, ordered, lives, axis=0)
    seen: dict[chunks.Slot, list[tuple[Matrix, Matrix, Matrix, npt.NDArray[np.int64]]]] = {}
    first = 0
    for part in parts:
        rows = slice(first, first + part.n_ticks)
        first += part.n_ticks
        if name not in part.columns:
            continue
        at_s = chunks.times(part)
        found = chunks.histograms(part.columns[name], part.n_ticks)
        for j, slot in enumerate(found.slots):
            own = unordered[rows, slot[0]]
            seen.setdefault(slot, []).append(
                (at_s[:, slot[0]], found.counts[j], found.sums[:, j], own)
            )
    gained: dict[chunks.Slot, tuple[Matrix, Matrix]] = {}
    for slot, pieces in seen.items():
        at_s = np.concatenate([piece[0] for piece in pieces])
        known = ~np.isnan(np.concatenate([piece[2] for piece in pieces]))
        order = np.argsort(at_s, kind="stable")
        order = order[known[order]]
        counts = np.concatenate([piece[1] for piece in pieces])[order]
        sums = np.concatenate([piece[2] for piece in pieces])[order]
        of = np.concatenate([piece[3] for piece in pieces])[order]
        index = np.floor((at_s[order] - start_s) / level.bin_s).astype(np.int64)
        fell = (np.diff(counts, axis=0) < 0).any(axis=1) | (np.diff(of) != 0)
        steps = np.where(fell[:, None], counts[1:], np.diff(counts, axis=0))
        sum_steps = np.where(fell, sums[1:], np.maximum(np.diff(sums), 0.0))
        inside = (index[1:] >= 0) & (index[1:] < level.n_bins)
        by_bin = np.zeros((level.n_bins, counts.shape[1]))
        by_sum = np.zeros(level.n_bins)
        np.add.at(by_bin, index[1:][inside], steps[inside])
        np.add.at(by_sum, index[1:][inside], sum_steps[inside])
        gained[slot] = (by_bin, by_sum)
    return gained


def _coarser_histograms(level: Level, name: str, rows: Sequence[Finer], start_s: float) -> bytes:
    gained: dict[chunks.Slot, tuple[Matrix, Matrix]] = {}
    for row in rows:
        index = np.floor(
            (row.start_s - start_s + np.arange(row.n_ticks) * LEVELS[0].bin_s) / level.bin_s
        ).astype(np.int64)
        inside = (index >= 0) & (index < level.n_bins)
        found = chunks.histograms(row.columns[name], row.n_ticks)
        for j, slot in enumerate(found.slots):
            width = found.counts[j].shape[1]
            empty = (np.zeros((level.n_bins, width)), np.zeros(level.n_bins))
            by_bin, by_sum = gained.setdefault(slot, empty)
            np.add.at(by_bin, index[inside], np.nan_to_num(found.counts[j][inside]))
            np.add.at(by_sum, index[inside], np.nan_to_num(found.sums[inside, j]))
    return _pack_gains(gained)


def _pack_gains(gained: Mapping[chunks.Slot, tuple[Matrix, Matrix]]) -> bytes:
    slots = sorted(gained)
    return chunks.pack_histograms(
        slots,
        np.concatenate([gained[slot][0] for slot in slots], axis=1),
        np.stack([gained[slot][1] for slot in slots], axis=1),
    )
