"""Reading samples back as they were shipped: the newest of each source, and windows of time.

What landed in the last minutes is read from the landing zone, one row a batch; what is older from
chunks. `telemetry_compaction.floor` is the border: each batch is on one side of it. `history` reads
single signals as series.
"""

from __future__ import annotations

import collections
import contextlib
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from telemetry import bodies, chunks, layouts, tables, wire
from telemetry.looks import layouts_and_floor

Signals = wire.InstanceSignals | wire.LinkSignals | wire.RouterSignals
Sample = wire.InstanceSample | wire.LinkSample | wire.RouterSample

FUTURE_S: Final = 300.0
"""How far ahead of our clock a reading may be stamped; ingest refuses what is beyond."""


class QueryError(ValueError):
    """A question the store cannot answer; names the field and the value."""

    def __init__(self, error: str, *, field: str, value: object) -> None:
        super().__init__(f"{field}={value!r}: {error}")
        self.error, self.field, self.value = error, field, value


class Reading(msgspec.Struct, frozen=True, gc=False):
    """One stored sample. `kind` is instance, link or router; a router's own kind is `engine`."""

    kind: str
    path: str
    at_s: float
    received_s: float
    state: str
    error: str | None
    role: str
    engine: str
    engine_version: str
    epoch_s: float
    plan_epoch: int | None
    plan_version: int | None
    group: str | None
    measured_layer: str
    signals: Signals


def from_sample(sample: Sample, *, received_s: float) -> Reading:
    """The reading that a sample becomes once it is stored."""
    instance = sample if isinstance(sample, wire.InstanceSample) else None
    router = sample if isinstance(sample, wire.RouterSample) else None
    return Reading(
        kind="instance" if instance else "router" if router else "link",
        path=sample.id,
        at_s=sample.at_s,
        received_s=received_s,
        state=sample.state,
        error=sample.error,
        role=instance.role if instance else "",
        engine=instance.engine if instance else router.kind if router else "",
        engine_version=instance.engine_version if instance else "",
        epoch_s=0.0 if isinstance(sample, wire.LinkSample) else sample.epoch_s,
        plan_epoch=router.plan_epoch if router else None,
        plan_version=router.plan_version if router else None,
        group=instance.group if instance else None,
        measured_layer=sample.measured_layer if isinstance(sample, wire.LinkSample) else "",
        signals=sample.signals,
    )


def latest(kind: str, *, prefix: str = "", now_s: float, within_s: float = 3600.0) -> list[Reading]:
    """The newest reading of each source read in the last `within_s`, ascending by path.

    An instance whose newest sample says that it is gone is not among them.
    """
    return latest_of({kind: prefix}, now_s=now_s, within_s=within_s)[kind]


def latest_of(
    prefixes: Mapping[str, str], *, now_s: float, within_s: float = 3600.0
) -> dict[str, list[Reading]]:
    """By kind the same of several kinds, each with the prefix of its paths, in one go."""
    since_s, until_s = now_s - within_s, now_s + FUTURE_S
    found, floor_s = layouts_and_floor(since_s)
    known = {kind: Places.among(found, floor_s, kind, of) for kind, of in prefixes.items()}
    newest: dict[str, dict[str, tuple[float, int, Reading]]] = {kind: {} for kind in known}
    silent = {kind: places.ids for kind, places in known.items()}
    for layout_id, at_s, row in _newest_landed(set().union(*silent.values()), since_s, until_s):
        for kind, places in known.items():
            if layout_id not in places.sources:
                continue
            readings = places.readings(layout_id, row, since_s, until_s)
            _keep_newest(newest[kind], layout_id, readings)
            # What landed late is not what is newest: chunks may hold newer.
            if at_s > floor_s + FUTURE_S:
                silent[kind].discard(layout_id)
    for kind, places in known.items():
        for layout_id, chunk in _newest_chunks(places, silent[kind], since_s, until_s):
            rows = _last_of_bins(chunk, since_s, until_s, until_s - since_s)
            readings = places.of_chunk(layout_id, chunk, rows, since_s, until_s)
            _keep_newest(newest[kind], layout_id, readings)
    return {
        kind: [found[path][2] for path in sorted(found) if found[path][2].state != "gone"]
        for kind, found in newest.items()
    }


def window(
    kind: str,
    *,
    prefix: str = "",
    paths: Collection[str] | None = None,
    since_s: float,
    until_s: float,
    bin_s: float,
) -> dict[str, list[Reading]]:
    """By path, the last reading of each bin of `bin_s` in (since_s, until_s], ascending in time;
    of sources whose path begins with `prefix`, of `paths` only if given."""
    if bin_s <= 0:
        raise QueryError("must be positive", field="bin_s", value=bin_s)
    known = Places.of(kind, prefix, since_s=since_s, paths=paths)
    last: dict[str, dict[int, tuple[float, int, Reading]]] = {}

    def keep(layout_id: int, readings: Iterable[Reading]) -> None:
        for reading in readings:
            bins = last.setdefault(reading.path, {})
            place = math.ceil((reading.at_s - since_s) / bin_s)
            before = bins.get(place)
            # The layout breaks ties: the answer must not depend on where a batch lies by now.
            if before is None or before[:2] <= (reading.at_s, layout_id):
                bins[place] = (reading.at_s, layout_id, reading)

    for layout_id, chunk in _chunks_of(known, since_s, until_s):
        rows = _last_of_bins(chunk, since_s, until_s, bin_s)
        keep(layout_id, known.of_chunk(layout_id, chunk, rows, since_s, until_s))
    for layout_id, row in _landed_by_bin(known, since_s, until_s, bin_s):
        keep(layout_id, known.readings(layout_id, row, since_s, until_s))
    return {path: [bins[place][2] for place in sorted(bins)] for path, bins in sorted(last.items())}


@dataclass(frozen=True)
class Places:
    """Where the sources of one kind and prefix stand in the layouts that reported lately."""

    kind: str
    layouts: dict[int, layouts.Layout]
    sources: dict[int, list[int]]
    floor_s: float

    @classmethod
    def of(
        cls, kind: str, prefix: str, *, since_s: float, paths: Collection[str] | None = None
    ) -> Places:
        """Raises QueryError for an unknown kind."""
        return cls.among(*layouts_and_floor(since_s), kind, prefix, paths)

    @classmethod
    def among(
        cls,
        found: dict[int, layouts.Layout],
        floor_s: float,
        kind: str,
        prefix: str,
        paths: Collection[str] | None = None,
    ) -> Places:
        """In these layouts. Raises QueryError for an unknown kind."""
        if kind not in layouts.KINDS:
            raise QueryError(f"must be one of {', '.join(layouts.KINDS)}", field="kind", value=kind)
        sources = {
            layout_id: places
            for layout_id, layout in found.items()
            if (
                places := [
                    i
                    for i, facts in enumerate(layout.facts(kind))
                    if facts[0].startswith(prefix) and (paths is None or facts[0] in paths)
                ]
            )
        }
        return cls(kind, found, sources, floor_s)

    @property
    def ids(self) -> set[int]:
        return set(self.sources)

    def readings(
        self, layout_id: int, row: _Landed, since_s: float, until_s: float
    ) -> Iterator[Reading]:
        """Those of one landed batch that were read in (since_s, until_s]."""
        entries = _landed_readings(self.kind, row)
        for i in self.sources[layout_id]:
            if since_s < entries[i].at_s <= until_s:
                yield entries[i]

    def of_chunk(
        self,
        layout_id: int,
        chunk: chunks.Chunk,
        ticks: Sequence[int],
        since_s: float,
        until_s: float,
    ) -> Iterator[Reading]:
        """Those of some ticks of a chunk likewise."""
        facts = self.layouts[layout_id].facts(self.kind)
        wanted = [(tick, i) for tick in ticks for i in self.sources[layout_id]]
        for received_s, sample in chunks.samples(chunk, facts, wanted):
            if since_s < sample.at_s <= until_s:
                yield from_sample(sample, received_s=received_s)


class _Landed(NamedTuple):
    received_s: float
    body: bytes


# Of this kind, as the first entry of a plain dict is found only past all that was deleted.
_read_lately: collections.OrderedDict[tuple[str, _Landed], tuple[float, list[Reading]]] = (
    collections.OrderedDict()
)
_READ_LATELY: Final = 20_000
_READ_LATELY_S: Final = 10.0
"""Batches whose readings are kept, and for how long unasked: the loop asks for the same bins of the
last minute at every tick. A batch of eight engines takes some 8 KB."""


def _landed_readings(kind: str, row: _Landed) -> list[Reading]:
    """Every entry of `kind` of a landed batch, in its order."""
    _, found = _read_lately.pop((kind, row), (0.0, None))
    if found is None:
        found = [
            from_sample(sample, received_s=row.received_s)
            for sample in layouts.samples(bodies.unpack(row.body), kind)
        ]
    # Put last again: first is what was not asked for the longest. Two threads may both do so.
    now_s = time.monotonic()
    _read_lately[kind, row] = (now_s, found)
    with contextlib.suppress(StopIteration, RuntimeError, KeyError):
        while True:
            first = next(iter(_read_lately))
            if (
                len(_read_lately) <= _READ_LATELY
                and _read_lately[first][0] > now_s - _READ_LATELY_S
            ):
                break
            del _read_lately[first]
    return found


def _keep_newest(
    newest: dict[str, tuple[float, int, Reading]], layout_id: int, readings: Iterable[Reading]
) -> None:
    for reading in readings:
        known = newest.get(reading.path)
        if known is None or known[:2] <= (reading.at_s, layout_id):
            newest[reading.path] = (reading.at_s, layout_id, reading)


def _newest_landed(
    ids: Collection[int], since_s: float, until_s: float
) -> Iterator[tuple[int, float, _Landed]]:
    """(layout, when it was read, batch) of each layout's last landed batch."""
    for layout_id, at_s, received_s, body in tables.rows(
        """
        SELECT wanted.id, extract(epoch FROM newest.at)::float8,
            extract(epoch FROM newest.received_at)::float8, newest.body
        FROM unnest(%(ids)s::bigint[]) AS wanted (id)
        CROSS JOIN LATERAL (
            SELECT at, received_at, body FROM telemetry_landing
            WHERE layout_id = wanted.id AND at > %(since)s AND at <= %(until)s
              AND landed_at >= (SELECT floor FROM telemetry_compaction)
            ORDER BY at DESC LIMIT 1
        ) newest
        """,
        ids=sorted(ids),
        since=tables.utc(since_s),
        until=tables.utc(until_s + layouts.MOMENT_S),
    ):
        yield layout_id, at_s, _Landed(received_s, body)


_LONG_BINS: Final = 60
"""With more bins than that, those before the oldest row of a layout are worth finding out."""


def _landed_by_bin(
    known: Places, since_s: float, until_s: float, bin_s: float
) -> Iterator[tuple[int, _Landed]]:
    """The last landed batch of each layout and bin."""
    # One index probe per layout and bin reads only what is returned; DISTINCT ON would read and
    # sort every row of the window. Bins after the newest row, as those of the future that
    # `until_s` allows for, are not looked for at all.
    for layout_id, received_s, body in tables.rows(
        """
        SELECT wanted.id, extract(epoch FROM newest.received_at)::float8, newest.body
        FROM unnest(%(ids)s::bigint[]) AS wanted (id)
        CROSS JOIN LATERAL (
            SELECT at FROM telemetry_landing
            WHERE layout_id = wanted.id AND at > %(since)s AND at <= %(until)s
              AND landed_at >= (SELECT floor FROM telemetry_compaction)
            ORDER BY at DESC LIMIT 1
        ) ends
        CROSS JOIN LATERAL generate_series(
            CASE WHEN %(is_long)s THEN (
                SELECT ceil(extract(epoch FROM at - %(since)s) / %(width_s)s)::int - 1
                FROM telemetry_landing
                WHERE layout_id = wanted.id AND at > %(since)s AND at <= ends.at
                  AND landed_at >= (SELECT floor FROM telemetry_compaction)
                ORDER BY at LIMIT 1
            ) ELSE 0 END,
            ceil(extract(epoch FROM ends.at - %(since)s) / %(width_s)s)::int - 1
        ) AS bin
        CROSS JOIN LATERAL (
            SELECT received_at, body FROM telemetry_landing
            WHERE layout_id = wanted.id
              AND at > %(since)s + bin * %(width)s AND at <= %(since)s + (bin + 1) * %(width)s
              AND landed_at >= (SELECT floor FROM telemetry_compaction)
            ORDER BY at DESC LIMIT 1
        ) newest
        """,
        ids=sorted(known.ids),
        since=tables.utc(since_s),
        until=tables.utc(until_s + layouts.MOMENT_S),
        width=timedelta(seconds=bin_s),
        width_s=bin_s,
        is_long=until_s - since_s > _LONG_BINS * bin_s,
    ):
        yield layout_id, _Landed(received_s, body)


_CHUNK: Final = """
    layout_id, n_ticks, extract(epoch FROM start)::float8, extract(epoch FROM at_max)::float8,
    signals, ends, data
"""


def _chunks_of(known: Places, since_s: float, until_s: float) -> Iterator[tuple[int, chunks.Chunk]]:
    """The chunks that reach into a window and that hold what is not in the landing zone."""
    if since_s - FUTURE_S >= known.floor_s:
        return  # a reading cannot have landed before it was taken, but for a clock that is ahead
    for row in tables.rows(
        f"""
        SELECT {_CHUNK} FROM telemetry_chunk
        WHERE layout_id = ANY(%(ids)s) AND kind = %(kind)s AND start > %(reach)s
          AND start <= %(until)s AND at_max > %(since)s
          AND landed_at <= (SELECT floor FROM telemetry_compaction)
        """,
        ids=sorted(known.ids),
        kind=layouts.KINDS.index(known.kind),
        reach=tables.utc(since_s - chunks.SPAN_S),
        since=tables.utc(since_s),
        until=tables.utc(until_s),
    ):
        yield _chunk(known, row)


def _newest_chunks(
    known: Places, ids: set[int], since_s: float, until_s: float
) -> Iterator[tuple[int, chunks.Chunk]]:
    """The chunk of each of these layouts that ends last."""
    if not ids:
        return
    for row in tables.rows(
        f"""
        SELECT newest.* FROM unnest(%(ids)s::bigint[]) AS wanted (id)
        CROSS JOIN LATERAL (
            SELECT {_CHUNK} FROM telemetry_chunk
            WHERE layout_id = wanted.id AND kind = %(kind)s AND start > %(reach)s
              AND start <= %(until)s AND at_max > %(since)s
              AND landed_at <= (SELECT floor FROM telemetry_compaction)
            ORDER BY at_max DESC LIMIT 1
        ) newest
        """,
        ids=sorted(ids),
        kind=layouts.KINDS.index(known.kind),
        reach=tables.utc(since_s - chunks.SPAN_S),
        since=tables.utc(since_s),
        until=tables.utc(until_s),
    ):
        yield _chunk(known, row)


def _chunk(known: Places, row: tuple[Any, ...]) -> tuple[int, chunks.Chunk]:
    layout_id, n_ticks, at_min_s, at_max_s, numbers, ends, data = row
    return layout_id, chunks.Chunk(
        kind=known.kind,
        n_ticks=n_ticks,
        n_sources=len(known.layouts[layout_id].facts(known.kind)),
        at_min_s=at_min_s,
        at_max_s=at_max_s,
        columns=tables.split(numbers, ends, data),
    )


def _last_of_bins(chunk: chunks.Chunk, since_s: float, until_s: float, bin_s: float) -> list[int]:
    """The last batch of each bin in (since_s, until_s], by the same rule as in the landing zone."""
    at_s = chunks.times(chunk).max(axis=1)
    inside = np.flatnonzero((at_s > since_s) & (at_s <= until_s + layouts.MOMENT_S))
    bins = np.ceil((at_s[inside] - since_s) / bin_s)
    last: dict[float, int] = {}
    for tick, place in zip(inside.tolist(), bins.tolist(), strict=True):
        if place not in last or at_s[last[place]] <= at_s[tick]:
            last[place] = tick
    return sorted(last.values())


def signal_states(reading: Reading, previous: Reading | None) -> dict[str, str]:
    """What each signal of a reading is: `value`, `idle`, `missing` or `failed`.

    Failed: the read itself failed or was not answered. Missing: not measured. Idle: a histogram
    that saw nothing since `previous` (or ever), so its quantiles say nothing, and that is known. A
    zero gauge is a value.
    """
    names = reading.signals.__struct_fields__
    if reading.state != "ok":
        return dict.fromkeys(names, "failed")
    # After a restart the counters began again: what came before is no base for a difference.
    base = previous.signals if previous and previous.epoch_s == reading.epoch_s else None
    return {
        name: _signal_state(getattr(reading.signals, name), getattr(base, name, None))
        for name in names
    }


def _signal_state(value: Any, before: Any) -> str:
    if value is None or value == {}:
        return "missing"
    now = _observations(value)
    if now is None:
        return "value"
    earlier = _observations(before) or 0.0
    return "idle" if now in (earlier, 0.0) else "value"


def _observations(value: Any) -> float | None:
    """How often a histogram, or a map of them, was observed; None for anything else."""
    if isinstance(value, wire.Histogram):
        return value.count
    if isinstance(value, dict):
        counts = [inner.count for inner in value.values() if isinstance(inner, wire.Histogram)]
        return sum(counts) if counts else None
    return None


def requests_of(signals: wire.RouterSignals, side: str) -> float | None:
    """Requests a router sent to `side`, over all reasons; None if it did not report the counter."""
    if signals.requests_total is None:
        return None
    return math.fsum(n for key, n in signals.requests_total.items() if key.split("|")[0] == side)
