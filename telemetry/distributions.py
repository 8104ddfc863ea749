"""Histograms of many sources over time: what was observed in each bin, by bucket.

Counts come from what the histograms gained, so they add up over sources and over restarts. Spans
that are rolled up are read from the roll-ups, the rest is rolled up here, in passing, from raw
chunks and from the landing zone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from telemetry import bins, bodies, chunks, history, layouts, tables
from telemetry.columns import Matrix
from telemetry.store import QueryError

_LEVEL: Final = bins.LEVELS[0]
_RAW: Final = (chunks.AT, chunks.EPOCH)


@dataclass(frozen=True)
class Distribution:
    """`counts` has shape (n_bins, n_edges + 1), the last above the largest of `edges`.

    `n_left_out` observations were counted in other buckets than most and cannot be added.
    """

    start_s: float
    bin_s: float
    edges: tuple[float, ...]
    counts: Matrix
    n_left_out: float


def read(
    kind: str,
    signal: str,
    *,
    paths: Sequence[str],
    since_s: float,
    until_s: float,
    max_points: int,
    bin_s: float | None = None,
    key: str = "",
) -> Distribution:
    """A histogram signal of `paths`; of a labelled one the keys that begin with `key`.

    Bins are multiples of ten seconds: a `bin_s` that is none is rounded up. Raises QueryError.
    """
    shapes = chunks.SHAPES.get(kind, {})
    if not shapes.get(signal, "").endswith("histogram"):
        names = sorted(name for name, shape in shapes.items() if shape.endswith("histogram"))
        raise QueryError(f"must be one of {', '.join(names)}", field="field", value=signal)
    if bin_s is not None:
        bin_s = math.ceil(bin_s / _LEVEL.bin_s) * _LEVEL.bin_s
    start_s, bin_s, n_bins = history.axis_of(
        since_s, until_s, max_points=max_points, bin_s=bin_s, least_s=_LEVEL.bin_s
    )
    folded = _Folded(start_s, bin_s, n_bins, key)
    with tables.one_moment():
        targets = history.targets_of(kind, paths, since_s=start_s)
        if targets:
            _fill(folded, kind, signal, targets)
    return folded.largest()


class _Folded:
    """Counts by bucket layout; most histograms of one signal share one."""

    def __init__(self, start_s: float, bin_s: float, n_bins: int, key: str) -> None:
        self.start_s, self.bin_s, self.n_bins, self._key = start_s, bin_s, n_bins, key
        self._counts: dict[tuple[float, ...], Matrix] = {}

    @property
    def end_s(self) -> float:
        return self.start_s + self.n_bins * self.bin_s

    def add(self, start_s: float, column: bytes, n_ticks: int, sources: set[int]) -> None:
        """The bins of one roll-up column, those of the wanted sources."""
        found = chunks.histograms(column, n_ticks)
        at_s = start_s + _LEVEL.bin_s * np.arange(n_ticks)
        index = np.floor((at_s - self.start_s) / self.bin_s).astype(np.int64)
        inside = (index >= 0) & (index < self.n_bins)
        for (source, key, edges), counts in zip(found.slots, found.counts, strict=True):
            if source in sources and key.startswith(self._key):
                empty = np.zeros((self.n_bins, len(edges) + 1))
                total = self._counts.setdefault(edges, empty)
                np.add.at(total, index[inside], np.nan_to_num(counts[inside]))

    def largest(self) -> Distribution:
        """The bucket layout that counted most."""
        by_size = sorted(self._counts, key=lambda edges: float(self._counts[edges].sum()))
        if not by_size:
            return Distribution(self.start_s, self.bin_s, (), np.zeros((self.n_bins, 1)), 0.0)
        *others, most = by_size
        left_out = float(sum(self._counts[edges].sum() for edges in others))
        return Distribution(self.start_s, self.bin_s, most, self._counts[most], left_out)


def _fill(folded: _Folded, kind: str, signal: str, targets: dict[int, history.Target]) -> None:
    wanted = {layout_id: set(t.sources.tolist()) for layout_id, t in targets.items()}
    [(landed_until,)] = tables.rows("SELECT landed_until FROM telemetry_compaction")
    shared = {
        "ids": sorted(targets),
        "kind": layouts.KINDS.index(kind),
        "since": tables.utc(folded.start_s),
        "until": tables.utc(folded.end_s),
        "landed_until": landed_until,
        "number": tables.NAMES.known(signal),
    }
    rolled = set[tuple[int, float]]()
    if shared["number"] is not None:
        for layout_id, n_ticks, start_s, column in history.rollup_rows(_LEVEL, shared):
            folded.add(start_s, column, n_ticks, wanted[layout_id])
            rolled.add((layout_id, start_s))
    raw: dict[int, list[bins.Finer]] = {}
    landed = dict(_landed(kind, signal, targets, shared))
    # What landed late for a span that is rolled up counts once it is compacted.
    spans = ({*_pending(shared)} | _spans(kind, landed)) - rolled
    if not spans:
        return
    for layout_id, finer in (*_chunks(signal, targets, spans, shared), *landed.items()):
        raw.setdefault(layout_id, []).append(finer)
    for layout_id, start_s in sorted(spans):
        made = bins.from_chunks(_LEVEL, kind, raw.get(layout_id, []), start_s)
        if signal in made:
            folded.add(start_s, made[signal], _LEVEL.n_bins, wanted[layout_id])


def _spans(kind: str, landed: dict[int, bins.Finer]) -> set[tuple[int, float]]:
    found = set()
    for layout_id, finer in landed.items():
        chunk = chunks.Chunk(kind, finer.n_ticks, finer.n_sources, 0.0, 0.0, finer.columns)
        starts = np.unique(np.floor(chunks.times(chunk) / _LEVEL.span_s) * _LEVEL.span_s)
        found |= {(layout_id, start_s) for start_s in starts.tolist()}
    return found


def _pending(shared: dict[str, Any]) -> list[tuple[int, float]]:
    """(layout, start) of spans whose raw chunks wait for their roll-up."""
    return tables.rows(
        """
        SELECT layout_id, extract(epoch FROM start)::float8 FROM telemetry_pending
        WHERE table_name = %(table)s AND layout_id = ANY(%(ids)s) AND kind = %(kind)s
          AND start > %(reach)s AND start < %(until)s
        """,
        **shared,
        table=_LEVEL.table,
        reach=tables.utc(shared["since"].timestamp() - _LEVEL.span_s),
    )


def _chunks(
    signal: str,
    targets: dict[int, history.Target],
    spans: set[tuple[int, float]],
    shared: dict[str, Any],
) -> Iterator[tuple[int, bins.Finer]]:
    """The raw chunks of spans that are not rolled up, and what came shortly before them."""
    since_s = min(start_s for _, start_s in spans) - bins.BEFORE_S
    ids = sorted({layout_id for layout_id, _ in spans})
    for layout_id, start_s, n_ticks, numbers, ends, data in tables.rows(
        """
        SELECT layout_id, extract(epoch FROM start)::float8, n_ticks, signals, ends, data
        FROM telemetry_chunk
        WHERE layout_id = ANY(%(ids)s) AND kind = %(kind)s
          AND start > %(reach)s AND start < %(until)s AND at_max >= %(from)s
          AND landed_at <= %(landed_until)s
        ORDER BY layout_id, start
        """,
        **{**shared, "ids": ids, "from": tables.utc(since_s)},
        reach=tables.utc(since_s - chunks.SPAN_S),
    ):
        found = tables.split(numbers, ends, data)
        kept = {name: found[name] for name in (*_RAW, signal) if name in found}
        yield layout_id, bins.Finer(start_s, n_ticks, targets[layout_id].n_sources, kept)


def _landed(
    kind: str, signal: str, targets: dict[int, history.Target], shared: dict[str, Any]
) -> Iterator[tuple[int, bins.Finer]]:
    """What landed since the last compaction, as one chunk a layout."""
    earlier = tables.utc(shared["since"].timestamp() - bins.BEFORE_S)
    for layout_id, packed in history.landed({**shared, "since": earlier}):
        rows = [chunks.Row.of(bodies.unpack(body), 0.0) for body in packed]
        rows.sort(key=lambda row: row.told[kind].at_s[0])
        chunk = chunks.build(kind, rows)
        if chunk is not None:
            kept = {n: chunk.columns[n] for n in (*_RAW, signal) if n in chunk.columns}
            yield layout_id, bins.Finer(chunk.at_min_s, chunk.n_ticks, chunk.n_sources, kept)
