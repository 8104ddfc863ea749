"""Hour partitions of the sample tables: made ahead, dropped when retention has passed.

Any process may call at any time; an advisory lock lets one work and the others find it done.
Rows of an hour without a partition wait in the DEFAULT one and are moved when it is made.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from django.conf import settings
from django.db import connection, transaction

TABLES: Final = (
    # Always in this order, in ingest as well: two transactions then never wait for each other.
    "telemetry_instance_sample",
    "telemetry_link_sample",
    "telemetry_router_sample",
)
AHEAD_HOURS: Final = 6
HOUR: Final = timedelta(hours=1)


def hour_of(at: datetime) -> datetime:
    """The start of the UTC hour that holds `at`."""
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def hours_ahead(now: datetime) -> list[datetime]:
    """The hours that should have partitions at `now`: one back, this one, some ahead."""
    return [hour_of(now) + i * HOUR for i in range(-1, AHEAD_HOURS + 1)]


def ensure(now: datetime) -> list[str]:
    """Make the partitions due at `now` that are missing; the names of those made."""
    with transaction.atomic(), connection.cursor() as cursor:
        for statement in LOCK_STATEMENTS:
            cursor.execute(statement)
        cursor.execute(EXISTING)
        existing = {name for (name,) in cursor.fetchall()}
        made = []
        for name, statements in missing(hours_ahead(now), existing):
            for statement in statements:
                cursor.execute(statement)
            made.append(name)
    return made


def drop_expired(now: datetime, *, retention: timedelta) -> list[str]:
    """Drop partitions that ended before `now - retention`; forget batches and sources of before."""
    limit = now - retention
    dropped = []
    with connection.cursor() as cursor:
        cursor.execute(EXISTING)
        for name in sorted(name for (name,) in cursor.fetchall()):
            hour = _hour_in(name)
            if hour is None or hour + HOUR > limit:
                continue
            # One short transaction each: dropping locks the parent, and writers wait meanwhile.
            with transaction.atomic():
                for statement in LOCK_STATEMENTS:
                    cursor.execute(statement)
                cursor.execute(f"DROP TABLE IF EXISTS {name}")
            dropped.append(name)
        for table in (*(f"{table}_default" for table in TABLES), "telemetry_batch"):
            cursor.execute(f"DELETE FROM {table} WHERE received_at < %s", [limit])
        # Silent for the whole retention, so none of its samples is left either.
        cursor.execute("DELETE FROM telemetry_source WHERE last_seen_at < %s", [limit])
    return dropped


def retention() -> timedelta:
    """How long raw samples are kept."""
    return timedelta(hours=settings.ENV["CONSOLE_RETENTION_HOURS"])


EXISTING: Final = """
    SELECT child.relname FROM pg_inherits
    JOIN pg_class child ON child.oid = inhrelid JOIN pg_class parent ON parent.oid = inhparent
    WHERE parent.relname IN ('telemetry_instance_sample', 'telemetry_link_sample',
                             'telemetry_router_sample')
"""
LOCK_STATEMENTS: Final = (
    # Giving up is fine, the next call tries again; stopping every writer is not.
    "SET LOCAL lock_timeout = '3s'",
    "SELECT pg_advisory_xact_lock(1885757185)",
)
"""What a transaction that makes or drops partitions runs first."""


def missing(hours: Iterable[datetime], existing: set[str]) -> list[tuple[str, tuple[str, ...]]]:
    """(name, statements that make it) of each partition of `hours` that is not in `existing`."""
    return [
        (name, _statements(table, name, hour))
        for table in TABLES
        for hour in sorted(set(hours))
        if (name := f"{table}_{hour:%Y%m%d%H}") not in existing
    ]


def _statements(table: str, name: str, hour: datetime) -> tuple[str, ...]:
    since, until = hour.isoformat(), (hour + HOUR).isoformat()
    return (
        f"CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS)",
        # Attaching fails if the default partition holds rows of this hour, and none may arrive
        # between the move and the attachment.
        f"LOCK TABLE {table}_default IN SHARE ROW EXCLUSIVE MODE",
        f"""
        WITH late AS (
            DELETE FROM {table}_default WHERE at >= '{since}' AND at < '{until}' RETURNING *
        )
        INSERT INTO {name} SELECT * FROM late
        """,
        f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ('{since}') TO ('{until}')",
    )


def _hour_in(name: str) -> datetime | None:
    stamp = name.rpartition("_")[2]
    return datetime.strptime(stamp, "%Y%m%d%H").replace(tzinfo=UTC) if stamp.isdigit() else None
