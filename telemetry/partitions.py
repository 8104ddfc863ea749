"""Partitions of the telemetry tables: made ahead, dropped when nothing needs them any more.

Any process may call at any time; an advisory lock lets one work and the others find it done.
Rows without a partition wait in the DEFAULT one and are moved when theirs is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from django.conf import settings
from django.db import connection, transaction

LANDING_KEPT: Final = timedelta(minutes=15)
"""The loop and live pages read the last minutes from the landing zone, compacted or not."""


@dataclass(frozen=True)
class Table:
    """One partitioned table: `key` is its time column, `ahead` how many are made in advance."""

    name: str
    key: str
    width: Literal["10min", "day", "month"]
    ahead: int

    def start(self, at: datetime) -> datetime:
        """The start of the partition that holds `at`."""
        at = at.astimezone(UTC).replace(second=0, microsecond=0)
        if self.width == "10min":
            return at.replace(minute=at.minute // 10 * 10)
        at = at.replace(hour=0, minute=0)
        return at if self.width == "day" else at.replace(day=1)

    def end(self, start: datetime) -> datetime:
        """The end of the partition that starts at `start`."""
        if self.width == "month":
            return (start + timedelta(days=32)).replace(day=1)
        return start + (timedelta(minutes=10) if self.width == "10min" else timedelta(days=1))

    def child(self, start: datetime) -> str:
        """The partition's name."""
        return f"{self.name}_{start:{_STAMPS[self.width]}}"


_STAMPS: Final = {"10min": "%Y%m%d%H%M", "day": "%Y%m%d", "month": "%Y%m"}

LANDING: Final = Table("telemetry_landing", "landed_at", "10min", 6)
CHUNK: Final = Table("telemetry_chunk", "start", "day", 1)
ROLLUP_10S: Final = Table("telemetry_rollup_10s", "start", "day", 1)
ROLLUP_1M: Final = Table("telemetry_rollup_1m", "start", "month", 1)
TABLES: Final = (LANDING, CHUNK, ROLLUP_10S, ROLLUP_1M)
"""Always in this order, in ingest as well: two transactions then never wait for each other."""


@dataclass(frozen=True)
class Retention:
    """How long what is kept."""

    raw: timedelta
    rollup_10s: timedelta
    rollup_1m: timedelta

    def of(self, table: Table) -> timedelta:
        return {
            CHUNK: self.raw,
            ROLLUP_10S: self.rollup_10s,
            ROLLUP_1M: self.rollup_1m,
        }[table]


def retention() -> Retention:
    """What the settings say."""
    return Retention(
        raw=timedelta(hours=settings.ENV["CONSOLE_RETENTION_HOURS"]),
        rollup_10s=timedelta(days=settings.ENV["CONSOLE_ROLLUP_10S_DAYS"]),
        rollup_1m=timedelta(days=settings.ENV["CONSOLE_ROLLUP_1M_DAYS"]),
    )


def ensure(now: datetime) -> list[str]:
    """Make the partitions due at `now` that are missing; the names of those made."""
    with transaction.atomic(), connection.cursor() as cursor:
        for statement in LOCK_STATEMENTS:
            cursor.execute(statement)
        cursor.execute(EXISTING)
        existing = {name for (name,) in cursor.fetchall()}
        made = []
        for name, statements in missing(now, existing):
            for statement in statements:
                cursor.execute(statement)
            made.append(name)
    return made


def drop_expired(now: datetime, kept: Retention) -> list[str]:
    """Drop partitions past retention, and what was compacted of the landing zone.

    Layouts and sources silent for longer than anything is kept go too.
    """
    dropped = drop_landed(now)
    with connection.cursor() as cursor:
        cursor.execute(EXISTING)
        for name in sorted(name for (name,) in cursor.fetchall()):
            table, start = _parsed(name)
            if table is None or start is None or table is LANDING:
                continue
            if table.end(start) <= now - kept.of(table):
                _drop(name)
                dropped.append(name)
        for table in (CHUNK, ROLLUP_10S, ROLLUP_1M):
            cursor.execute(
                f"DELETE FROM {table.name}_default WHERE at_max < %s", [now - kept.of(table)]
            )
        cursor.execute("DELETE FROM telemetry_batch WHERE received_at < %s", [now - kept.raw])
        longest = now - max(kept.raw, kept.rollup_10s, kept.rollup_1m)
        cursor.execute("DELETE FROM telemetry_layout WHERE last_seen_at < %s", [longest])
        cursor.execute("DELETE FROM telemetry_source WHERE last_seen_at < %s", [longest])
    return dropped


def drop_landed(now: datetime) -> list[str]:
    """Drop landing partitions that were compacted and that nobody reads any more.

    Readers go by `floor`, which is raised in the transaction that drops.
    """
    dropped = []
    with connection.cursor() as cursor:
        cursor.execute("SELECT landed_until FROM telemetry_compaction")
        [(landed_until,)] = cursor.fetchall()
        limit = LANDING.start(min(landed_until, now - LANDING_KEPT))
        cursor.execute(EXISTING)
        for name in sorted(name for (name,) in cursor.fetchall()):
            table, start = _parsed(name)
            if table is LANDING and start is not None and table.end(start) <= limit:
                dropped.append(name)
        with transaction.atomic():
            for statement in LOCK_STATEMENTS:
                cursor.execute(statement)
            cursor.execute("UPDATE telemetry_compaction SET floor = greatest(floor, %s)", [limit])
            cursor.execute("DELETE FROM telemetry_landing_default WHERE landed_at < %s", [limit])
            for name in dropped:
                cursor.execute(f"DROP TABLE IF EXISTS {name}")
    return dropped


def _drop(name: str) -> None:
    # One short transaction each: dropping locks the parent, and writers wait meanwhile.
    with transaction.atomic(), connection.cursor() as cursor:
        for statement in LOCK_STATEMENTS:
            cursor.execute(statement)
        cursor.execute(f"DROP TABLE IF EXISTS {name}")


EXISTING: Final = f"""
    SELECT child.relname FROM pg_inherits
    JOIN pg_class child ON child.oid = inhrelid JOIN pg_class parent ON parent.oid = inhparent
    WHERE parent.relname IN ({", ".join(repr(table.name) for table in TABLES)})
"""
LOCK_STATEMENTS: Final = (
    # Giving up is fine, the next call tries again; stopping every writer is not.
    "SET LOCAL lock_timeout = '3s'",
    "SELECT pg_advisory_xact_lock(1885757185)",
)
"""What a transaction that makes or drops partitions runs first."""


def missing(now: datetime, existing: set[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(name, statements that make it) of each partition due at `now` that is not in `existing`.

    Due are the present one, the one before it and `ahead` more.
    """
    for table in TABLES:
        present = table.start(now)
        starts = [table.start(present - timedelta(seconds=1)), present]
        for _ in range(table.ahead):
            starts.append(table.end(starts[-1]))
        for start in starts:
            if table.child(start) not in existing:
                yield table.child(start), _statements(table, start)


def _statements(table: Table, start: datetime) -> tuple[str, ...]:
    since, until = start.isoformat(), table.end(start).isoformat()
    name = table.child(start)
    # Rows of the landing zone are written once and dropped whole: there is nothing to vacuum, and
    # bodies up to a page stay in the row.
    options = (
        " WITH (autovacuum_enabled = off, toast_tuple_target = 8160)" if table is LANDING else ""
    )
    return (
        f"CREATE TABLE {name} (LIKE {table.name} INCLUDING DEFAULTS INCLUDING STORAGE){options}",
        # Attaching fails if the default partition holds rows of this time, and none may arrive
        # between the move and the attachment.
        f"LOCK TABLE {table.name}_default IN SHARE ROW EXCLUSIVE MODE",
        f"""
        WITH late AS (
            DELETE FROM {table.name}_default
            WHERE {table.key} >= '{since}' AND {table.key} < '{until}' RETURNING *
        )
        INSERT INTO {name} SELECT * FROM late
        """,
        f"ALTER TABLE {table.name} ATTACH PARTITION {name}"
        f" FOR VALUES FROM ('{since}') TO ('{until}')",
    )


_CHILD: Final = re.compile(r"(telemetry_\w+)_(\d+)$")


def _parsed(name: str) -> tuple[Table | None, datetime | None]:
    """(table, start) of a partition's name; None, None of another one, the default among them."""
    match = _CHILD.match(name)
    for table in TABLES:
        if match and match[1] == table.name:
            return table, datetime.strptime(match[2], _STAMPS[table.width]).replace(tzinfo=UTC)
    return None, None
