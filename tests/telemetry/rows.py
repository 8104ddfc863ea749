"""What the landing tables hold, read by plain SQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from django.db import connection

from telemetry import bodies, layouts, wire
from telemetry.arrivals import Arrival
from telemetry.ingest import database_connect
from telemetry.landing import Landing, Outcome

TABLES = (
    "telemetry_batch",
    "telemetry_landing",
    "telemetry_chunk",
    "telemetry_rollup_10s",
    "telemetry_rollup_1m",
    "telemetry_pending",
    "telemetry_layout",
)


def sql(statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Every row a statement answers."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


def bodies_of(kind: str, path: str) -> list[Any]:
    """The samples of one source in the landing zone, in order of time."""
    found = [
        sample
        for (body,) in sql("SELECT body FROM telemetry_landing ORDER BY at")
        for sample in layouts.samples(bodies.unpack(body), kind)
    ]
    return [sample for sample in found if sample.id == path]


def n_samples(kind: str, path: str) -> int:
    """Stored samples of one source, in the landing zone and in chunks."""
    n = len(bodies_of(kind, path))
    [(floor,)] = sql("SELECT landed_until FROM telemetry_compaction")
    in_chunks = sql(
        "SELECT n_ticks, facts FROM telemetry_chunk JOIN telemetry_layout ON id = layout_id"
        " WHERE kind = %s AND landed_at <= %s",
        layouts.KINDS.index(kind),
        floor,
    )
    landed_again = sum(
        path in layouts.decode(facts).paths(kind) and n_ticks for n_ticks, facts in in_chunks
    )
    return n + landed_again


def partitions_of(path: str) -> set[str]:
    """The landing partitions that hold samples of one instance."""
    return {
        name
        for name, body in sql("SELECT tableoid::regclass::text, body FROM telemetry_landing")
        if any(sample.id == path for sample in bodies.unpack(body).instances)
    }


def clear_landing() -> None:
    """Empty what Django's flush does not know: batches and readings."""
    sql("TRUNCATE " + ", ".join(TABLES))
    sql("UPDATE telemetry_compaction SET landed_until = 'epoch', floor = 'epoch', cut = 'epoch'")


def commit(*batches: wire.Batch, received_s: float) -> list[Outcome]:
    """Store batches as the ingest does, without its HTTP part."""

    async def run() -> list[Outcome]:
        async with await database_connect() as connection:
            return await Landing(connection).commit(arrivals(batches, received_s))

    return asyncio.run(run())


def arrivals(batches: Iterable[wire.Batch], received_s: float) -> list[Arrival]:
    """Batches as the ingest hands them on."""
    return [Arrival.of(b, received_s=received_s) for b in batches]
