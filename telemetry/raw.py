"""The newest readings of one source as they landed: by whom, in which batch, with every signal.

What was compacted has no batch number any more: of those an agent's ranges are kept
(`compaction`), not which reading came in which.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from telemetry import bodies, chunks, layouts, store, tables

REACH_S: Final = 86_400.0
"""So far before `until_s` is looked at most."""
_CHUNKS_AT_ONCE: Final = 20


@dataclass(frozen=True)
class Raw:
    """One reading, and who brought it; `boot` and `seq` of its batch are None once compacted."""

    reading: store.Reading
    agent: str
    boot: int | None
    seq: int | None


def newest(kind: str, path: str, *, until_s: float, n: int) -> list[Raw]:
    """At most `n` readings taken at or before `until_s`, the newest first. Raises QueryError for
    an unknown kind."""
    known = store.Places.of(kind, path, since_s=until_s - REACH_S)
    places = {
        layout_id: layout.paths(kind).index(path)
        for layout_id, layout in known.layouts.items()
        if path in layout.paths(kind)
    }
    if not places:
        return []
    with tables.one_moment():
        found = list(_landed(kind, places, until_s, n))
        if len(found) < n:
            found += _compacted(kind, known, places, until_s, n - len(found))
    found.sort(key=lambda raw: -raw.reading.at_s)
    return found[:n]


def _landed(kind: str, places: dict[int, int], until_s: float, n: int) -> Iterator[Raw]:
    for layout_id, received_s, body in tables.rows(
        """
        SELECT layout_id, extract(epoch FROM received_at)::float8, body FROM telemetry_landing
        WHERE layout_id = ANY(%(ids)s) AND at > %(since)s AND at <= %(until)s
          AND landed_at >= (SELECT floor FROM telemetry_compaction)
        ORDER BY at DESC LIMIT %(n)s
        """,
        ids=sorted(places),
        since=tables.utc(until_s - REACH_S),
        until=tables.utc(until_s + layouts.MOMENT_S),
        n=n,
    ):
        batch = bodies.unpack(body)
        sample = layouts.samples(batch, kind)[places[layout_id]]
        if sample.at_s <= until_s:
            reading = store.from_sample(sample, received_s=received_s)
            yield Raw(reading, batch.agent, batch.boot, batch.seq)


def _compacted(
    kind: str, known: store.Places, places: dict[int, int], until_s: float, n: int
) -> list[Raw]:
    """Chunks from the newest back, some at a time, until there are enough."""
    found: list[Raw] = []
    n_read = 0
    while len(found) < n:
        rows = tables.rows(
            """
            SELECT layout_id, n_ticks, extract(epoch FROM start)::float8,
                extract(epoch FROM at_max)::float8, signals, ends, data
            FROM telemetry_chunk
            WHERE layout_id = ANY(%(ids)s) AND kind = %(kind)s
              AND start <= %(until)s AND start > %(since)s
              AND landed_at <= (SELECT floor FROM telemetry_compaction)
            ORDER BY start DESC, layout_id OFFSET %(skip)s LIMIT %(most)s
            """,
            ids=sorted(places),
            kind=layouts.KINDS.index(kind),
            until=tables.utc(until_s),
            since=tables.utc(until_s - REACH_S),
            skip=n_read,
            most=_CHUNKS_AT_ONCE,
        )
        for layout_id, n_ticks, at_min_s, at_max_s, numbers, ends, data in rows:
            layout = known.layouts[layout_id]
            chunk = chunks.Chunk(
                kind=kind,
                n_ticks=n_ticks,
                n_sources=len(layout.facts(kind)),
                at_min_s=at_min_s,
                at_max_s=at_max_s,
                columns=tables.split(numbers, ends, data),
            )
            found += _of_chunk(chunk, layout, places[layout_id], until_s, n)
        if len(rows) < _CHUNKS_AT_ONCE:
            break
        n_read += len(rows)
    return found


def _of_chunk(
    chunk: chunks.Chunk, layout: layouts.Layout, place: int, until_s: float, n: int
) -> list[Raw]:
    at_s = chunks.times(chunk)[:, place]
    ticks = [int(tick) for tick in np.argsort(-at_s) if at_s[tick] <= until_s][:n]
    read = chunks.samples(chunk, layout.facts(chunk.kind), [(tick, place) for tick in ticks])
    return [
        Raw(store.from_sample(sample, received_s=received_s), layout.agent, None, None)
        for received_s, sample in read
    ]
