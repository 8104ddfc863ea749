"""What the landing tables hold, read by plain SQL."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from django.db import connection

from telemetry import wire
from telemetry.ingest import database_connect
from telemetry.landing import Arrival, Landing, Outcome

TABLES = {
    "instance": "telemetry_instance_sample",
    "link": "telemetry_link_sample",
    "router": "telemetry_router_sample",
}


def sql(statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Every row a statement answers."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


def n_samples(kind: str, path: str) -> int:
    """Stored samples of one source."""
    [(n,)] = sql(
        f"SELECT count(*) FROM {TABLES[kind]} sample JOIN telemetry_source source"
        " ON source.id = sample.source_id WHERE source.kind = %s AND source.path = %s",
        kind,
        path,
    )
    return n


def partitions_of(kind: str, path: str) -> set[str]:
    """The partitions that hold samples of one source."""
    return {
        name
        for (name,) in sql(
            f"SELECT DISTINCT sample.tableoid::regclass::text FROM {TABLES[kind]} sample"
            " JOIN telemetry_source source ON source.id = sample.source_id"
            " WHERE source.kind = %s AND source.path = %s",
            kind,
            path,
        )
    }


def clear_landing() -> None:
    """Empty what Django's flush does not know: batches and samples."""
    sql("TRUNCATE telemetry_batch, " + ", ".join(TABLES.values()))


def commit(*batches: wire.Batch, received_s: float) -> list[Outcome]:
    """Store batches as the ingest does, without its HTTP part."""

    async def run() -> list[Outcome]:
        async with await database_connect() as connection:
            landing = Landing(connection, retention=timedelta(hours=72))
            arrivals = [Arrival(b, received_s) for b in batches]
            return await landing.commit(arrivals, now_s=received_s)

    return asyncio.run(run())
