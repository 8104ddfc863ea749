"""One plain signal of many sources as arrays: the coarsest table that has points enough.

`read` answers on bins of a round width that lie on multiples of it. Bins of a minute and more come
from the roll-ups over a minute, of ten seconds and more from those over 10 s, finer ones from raw
chunks. What a table does not hold yet is added from the finer ones and from the landing zone: a
chart never ends minutes ago.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from telemetry import bins, bodies, chunks, columns, layouts, tables
from telemetry.bin_means import READINGS_AT_ONCE, BinMeans
from telemetry.columns import Matrix
from telemetry.looks import layouts_since
from telemetry.store import QueryError

BINS_S: Final = (2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0)
"""Widths of bins, each finer table's own among them, then hours and days. Raw readings come once a
second: finer bins would show holes that are not."""
_LONGER_S: Final = (7200.0, 21600.0)
MAX_CELLS: Final = 4_000_000
"""Bins times sources of one answer."""


@dataclass(frozen=True)
class History:
    """`values` has shape (n_bins, n_paths): means, or of a counter the last value; NaN is a gap."""

    start_s: float
    bin_s: float
    paths: tuple[str, ...]
    values: Matrix

    @property
    def times_s(self) -> npt.NDArray[np.float64]:
        """The start of each bin, epoch seconds."""
        times: npt.NDArray[np.float64] = self.start_s + self.bin_s * np.arange(len(self.values))
        return times


def series(
    kind: str,
    signal: str,
    *,
    paths: Sequence[str],
    since_s: float,
    until_s: float,
    max_points: int,
) -> dict[str, Any]:
    """`read` as plain values: `{"t": [...], "bin_s", "series": {path: [value | None]}}`."""
    found = read(kind, signal, paths=paths, since_s=since_s, until_s=until_s, max_points=max_points)
    rows = [[None if v != v else v for v in row] for row in found.values.T.tolist()]
    return {
        "t": found.times_s.tolist(),
        "bin_s": found.bin_s,
        "series": dict(zip(found.paths, rows, strict=True)),
    }


def read(
    kind: str,
    signal: str,
    *,
    paths: Sequence[str],
    since_s: float,
    until_s: float,
    max_points: int,
    bin_s: float | None = None,
) -> History:
    """One plain signal of `paths`, in at most `max_points` round bins, or in bins of `bin_s`.

    Raises QueryError.
    """
    names = sorted(n for n, shape in chunks.SHAPES.get(kind, {}).items() if shape == "number")
    if signal not in names:
        raise QueryError(f"must be one of {', '.join(names)}", field="field", value=signal)
    start_s, bin_s, n_bins = axis_of(since_s, until_s, max_points=max_points, bin_s=bin_s)
    if n_bins * len(paths) > MAX_CELLS:
        raise QueryError(
            f"{len(paths)} sources times {n_bins} points is more than {MAX_CELLS}",
            field="points",
            value=max_points,
        )
    folded = BinMeans.empty(signal, start_s, bin_s, n_bins, len(paths))
    with tables.one_moment():
        targets = targets_of(kind, paths, since_s=start_s)
        if targets:
            _fill(folded, kind, targets)
    return History(start_s, bin_s, tuple(paths), folded.values())


def axis_of(
    since_s: float,
    until_s: float,
    *,
    max_points: int,
    bin_s: float | None = None,
    least_s: float = BINS_S[0],
) -> tuple[float, float, int]:
    """(start, width, number) of the bins over a span: at most `max_points` round ones, or `bin_s`.

    Bins lie on multiples of their width, so the next page of a live chart has the same ones. None
    is narrower than `least_s`. Raises QueryError.
    """
    if not until_s > since_s:
        raise QueryError("must be after since", field="until", value=until_s)
    if max_points < 1:
        raise QueryError("must be at least 1", field="points", value=max_points)
    if bin_s is None:
        bin_s = nice_bin_s(max((until_s - since_s) / max_points, least_s))
    elif not bin_s >= least_s:
        raise QueryError(f"must be at least {least_s:g} s", field="bin_s", value=bin_s)
    start_s = math.floor(since_s / bin_s) * bin_s
    return start_s, bin_s, max(1, math.ceil((until_s - start_s) / bin_s))


def nice_bin_s(least_s: float) -> float:
    """The narrowest round bin of at least `least_s` seconds."""
    for bin_s in (*BINS_S, *_LONGER_S):
        if bin_s >= least_s:
            return bin_s
    return math.ceil(least_s / 86400) * 86400.0


@dataclass(frozen=True)
class Target:
    """Which sources of a layout are wanted, and their places in the answer."""

    n_sources: int
    sources: npt.NDArray[np.intp]
    places: npt.NDArray[np.intp]

    @property
    def is_whole(self) -> bool:
        """Whether every source of the layout is wanted, in its order."""
        return len(self.sources) == self.n_sources


def targets_of(kind: str, paths: Sequence[str], *, since_s: float) -> dict[int, Target]:
    """By layout that reported since then, where the sources of `paths` stand."""
    wanted = {path: i for i, path in enumerate(paths)}
    out = {}
    for layout_id, layout in layouts_since(since_s).items():
        all_paths = layout.paths(kind)
        pairs = [(i, wanted[path]) for i, path in enumerate(all_paths) if path in wanted]
        if pairs:
            sources, places = zip(*pairs, strict=True)
            out[layout_id] = Target(len(all_paths), np.array(sources), np.array(places))
    return out


def _fill(folded: BinMeans, kind: str, targets: dict[int, Target]) -> None:
    """Add every reading of the span once, from the table that suits the bins and what is newer."""
    [(landed_until,)] = tables.rows("SELECT landed_until FROM telemetry_compaction")
    shared = {
        "ids": sorted(targets),
        "kind": layouts.KINDS.index(kind),
        "since": tables.utc(folded.start_s),
        "until": tables.utc(folded.end_s),
        "landed_until": landed_until,
        "number": tables.NAMES.known(folded.signal),
        "at_number": tables.NAMES.known(chunks.AT),
    }
    if shared["number"] is not None and shared["at_number"] is not None:
        level = next(
            (level for level in reversed(bins.LEVELS) if folded.bin_s % level.bin_s == 0), None
        )
        _add_columns(folded, targets, level, shared)
    _add_landed(folded, kind, targets, shared)


def _add_columns(
    folded: BinMeans,
    targets: dict[int, Target],
    level: bins.Level | None,
    shared: dict[str, Any],
) -> None:
    if level is None:
        _add_chunks(folded, targets, shared, pending=False)
        return
    _add_rollups(folded, targets, level, rollup_rows(level, shared))
    if level is bins.LEVELS[1]:
        finer = bins.LEVELS[0]
        rows = rollup_rows(finer, shared, waiting_for=level)
        _add_rollups(folded, targets, finer, rows)
    _add_chunks(folded, targets, shared, pending=True)


def _add_rollups(
    folded: BinMeans,
    targets: dict[int, Target],
    level: bins.Level,
    rows: Sequence[tuple[int, int, float, bytes]],
) -> None:
    # Rows of one span are added together: each alone is too small for arrays.
    for (start_s, n_bins), together in groupby(sorted(rows, key=_span), key=_span):
        parts = []
        for n_sources, alike in _by_width(together, targets).items():
            packed = [column for _, column in alike]
            decoded = bins.means_and_counts(packed, n_bins, n_sources)
            for (target, _), mean, count in zip(alike, *decoded, strict=True):
                if not target.is_whole:
                    mean, count = mean[:, target.sources], count[:, target.sources]
                parts.append((mean, count, target.places))
        means, counts, places = zip(*parts, strict=True)
        if np.unique(everywhere := np.concatenate(places)).size == everywhere.size:
            parts = [(np.concatenate(means, axis=1), np.concatenate(counts, axis=1), everywhere)]
        for mean, count, where in parts:  # one by one where a source is in two layouts
            folded.add_bins(start_s, level.bin_s, mean, count, where)


def _by_width(
    rows: Iterable[tuple[int, int, float, bytes]], targets: dict[int, Target]
) -> dict[int, list[tuple[Target, bytes]]]:
    """The columns of roll-up rows by how many sources they have."""
    alike: dict[int, list[tuple[Target, bytes]]] = {}
    for layout_id, _, _, column in rows:
        target = targets[layout_id]
        alike.setdefault(target.n_sources, []).append((target, column))
    return alike


def _span(row: tuple[int, int, float, bytes]) -> tuple[float, int]:
    _, n_bins, start_s, _ = row
    return start_s, n_bins


_WAITS: Final = """
    EXISTS (
        SELECT FROM telemetry_pending p
        WHERE p.layout_id = row.layout_id AND p.kind = row.kind
          AND ((p.table_name = %(table)s AND p.start = row.start)
            OR (p.table_name = %(finer)s AND p.start >= {start} AND p.start < {end})
            OR (p.table_name = %(coarser)s AND p.start = {start}))
    )
"""


def rollup_rows(
    level: bins.Level, shared: dict[str, Any], *, waiting_for: bins.Level | None = None
) -> list[tuple[int, int, float, bytes]]:
    """(layout, bins, start, column) of spans that have no news waiting, nor any finer span in them.

    `waiting_for`: those of settled spans whose coarser one is not, so that it is read here instead.
    """
    finer = bins.LEVELS[0] if level is bins.LEVELS[1] else None
    own = _WAITS.format(
        start="row.start", end=f"row.start + interval '{level.span_s} s'" if finer else "row.start"
    )
    settled = f"NOT {own}"
    if waiting_for is not None:
        start = f"to_timestamp(floor(extract(epoch FROM row.start) / {waiting_for.span_s})"
        start += f" * {waiting_for.span_s})"
        end = f"{start} + interval '{waiting_for.span_s} s'"
        coarse = _WAITS.format(start=start, end=end)
        settled = (
            "NOT EXISTS (SELECT FROM telemetry_pending p WHERE p.layout_id = row.layout_id"
            " AND p.kind = row.kind AND p.table_name = %(table)s AND p.start = row.start)"
            f" AND {coarse}"
        )
    return tables.rows(
        f"""
        SELECT layout_id, n_ticks, extract(epoch FROM start)::float8, part FROM (
            SELECT row.layout_id, row.n_ticks, row.start, {tables.cut("%(number)s")} AS part
            FROM {level.table} row
            WHERE layout_id = ANY(%(ids)s) AND kind = %(kind)s
              AND start > %(reach)s AND start < %(until)s AND {settled}
        ) AS found WHERE part IS NOT NULL
        """,
        **shared,
        reach=tables.utc(shared["since"].timestamp() - level.span_s),
        table=level.table,
        finer=(finer or level).table if waiting_for is None else level.table,
        coarser=waiting_for.table if waiting_for else "",
    )


def _add_chunks(
    folded: BinMeans, targets: dict[int, Target], shared: dict[str, Any], *, pending: bool
) -> None:
    """Raw chunks; `pending`: only readings whose roll-up waits."""
    spans: dict[int, set[float]] = {}
    level = bins.LEVELS[0]
    if pending:
        for layout_id, start_s in tables.rows(
            """
            SELECT layout_id, extract(epoch FROM start)::float8 FROM telemetry_pending
            WHERE table_name = %(table)s AND layout_id = ANY(%(ids)s) AND kind = %(kind)s
              AND start > %(reach)s AND start < %(until)s
            """,
            **shared,
            table=level.table,
            reach=tables.utc(shared["since"].timestamp() - level.span_s),
        ):
            spans.setdefault(layout_id, set()).add(start_s)
        if not spans:
            return
        since_s = max(min(min(starts) for starts in spans.values()), folded.start_s)
        shared = {**shared, "ids": sorted(spans), "since": tables.utc(since_s)}
    found = tables.rows(
        f"""
        SELECT layout_id, n_ticks, at_part, part FROM (
            SELECT layout_id, n_ticks, {tables.cut("%(number)s")} AS part,
                {tables.cut("%(at_number)s")} AS at_part
            FROM telemetry_chunk
            WHERE layout_id = ANY(%(ids)s) AND kind = %(kind)s
              AND start > %(reach)s AND start < %(until)s AND at_max >= %(since)s
              AND landed_at <= %(landed_until)s
        ) AS found WHERE part IS NOT NULL
        """,
        **shared,
        reach=tables.utc(shared["since"].timestamp() - chunks.SPAN_S),
    )
    # Chunks of one shape are read together, up to a bound: each alone is too small for arrays.
    alike: dict[tuple[int, int, int], list[_Packed]] = {}
    for layout_id, n_ticks, at_column, column in found:
        target = targets[layout_id]
        apart = layout_id if pending or not target.is_whole else 0
        key = n_ticks, target.n_sources, apart
        alike.setdefault(key, []).append((target, at_column, column))
    for (n_ticks, n_sources, layout_id), together in alike.items():
        own_s = spans[layout_id] if pending else None
        n_at_once = max(1, READINGS_AT_ONCE // (n_ticks * n_sources))
        for i in range(0, len(together), n_at_once):
            _add_packed(folded, together[i : i + n_at_once], n_ticks, n_sources, own_s)


_Packed = tuple[Target, bytes, bytes]
"""The times and the values of a chunk, as columns, and whose they are."""


def _add_packed(
    folded: BinMeans,
    packed: Sequence[_Packed],
    n_ticks: int,
    n_sources: int,
    own_s: set[float] | None,
) -> None:
    """Chunks of one shape, of layouts wanted whole or of one layout; `own_s`: of these spans."""
    whose, at_columns, value_columns = zip(*packed, strict=True)
    at_s = columns.decode_many(at_columns, n_ticks, n_sources) / chunks.MICRO
    values = columns.decode_many(value_columns, n_ticks, n_sources)
    if not whose[0].is_whole:
        at_s, values = at_s[..., whose[0].sources], values[..., whose[0].sources]
    if own_s is not None:
        span_s = bins.LEVELS[0].span_s
        own = np.floor(at_s / span_s) * span_s
        values = np.where(np.isin(own, list(own_s)), values, np.nan)
    folded.add(at_s, values, np.array([target.places for target in whose]))


def _add_landed(
    folded: BinMeans, kind: str, targets: dict[int, Target], shared: dict[str, Any]
) -> None:
    """What landed since the last compaction."""
    signal = folded.signal
    for layout_id, rows in landed(shared):
        target = targets[layout_id]
        table = [layouts.samples(bodies.unpack(body), kind) for body in rows]
        at_s = np.array([[row[i].at_s for i in target.sources] for row in table])
        values = np.array(
            [[getattr(row[i].signals, signal) for i in target.sources] for row in table],
            dtype=np.float64,
        )
        folded.add(at_s, values, target.places)


def landed(shared: dict[str, Any]) -> Iterator[tuple[int, list[bytes]]]:
    """(layout, its bodies) of what landed since the last compaction and was read in a span."""
    by_layout: dict[int, list[bytes]] = {}
    for layout_id, body in tables.rows(
        """
        SELECT layout_id, body FROM telemetry_landing
        WHERE layout_id = ANY(%(ids)s) AND at >= %(since)s AND at < %(reach)s
          AND landed_at >= %(landed_until)s
        """,
        **shared,
        reach=tables.utc(shared["until"].timestamp() + layouts.MOMENT_S),
    ):
        by_layout.setdefault(layout_id, []).append(body)
    yield from by_layout.items()
