"""Turns what landed into columns, once, and forgets what it no longer needs to remember.

`run` takes everything that landed up to a cut, layout by layout, in one transaction with the mark
that says so: a reader finds each batch either in the landing zone or in a chunk, never in both. The
memory is that of a hundred layouts' minutes.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, Final

from django.db import connection, transaction

from telemetry import bins, bodies, chunks, layouts, rollups, tables
from telemetry.landing import LANDING_LOCK
from telemetry.partitions import LANDING

log = logging.getLogger(__name__)

WINDOW: Final = timedelta(minutes=2)
"""What one chunk holds of what landed; also how long readings wait for their compaction."""
_COMPACTION_LOCK: Final = 1885757187
_LAYOUTS_AT_ONCE: Final = 100
_SEQS_SETTLED: Final = timedelta(minutes=1)


def run(*, at_once: bool = False) -> int:
    """Compact every window that is over; how many batches were taken. One process at a time works.

    `at_once`: also what landed just now.
    """
    n_batches = 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [_COMPACTION_LOCK])
        if not cursor.fetchall()[0][0]:
            return 0
        try:
            cut = _take_cut()
            while (since := _landed_since()) is not None:
                # No chunk reaches over the end of a landing partition: dropping one then leaves
                # every batch in exactly one place.
                until = min(since + WINDOW, LANDING.end(LANDING.start(since)))
                if until > cut:
                    if not at_once or since >= cut:
                        break
                    until = cut
                n_batches += _compact(until)
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [_COMPACTION_LOCK])
    return n_batches


def _take_cut() -> datetime:
    """A moment before which nothing will land any more."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LANDING_LOCK])
        cursor.execute(
            "UPDATE telemetry_compaction SET cut = greatest(clock_timestamp(), cut) RETURNING cut"
        )
        [(cut,)] = cursor.fetchall()
        assert isinstance(cut, datetime)
        return cut


def _landed_since() -> datetime | None:
    """When the oldest batch landed that is in no chunk yet."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT min(landed_at) FROM telemetry_landing"
            " WHERE landed_at >= (SELECT landed_until FROM telemetry_compaction)"
        )
        [(since,)] = cursor.fetchall()
        assert since is None or isinstance(since, datetime)
        return since


def _compact(until: datetime) -> int:
    """Make chunks of what landed before `until` and move the mark there."""
    n_batches = 0
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(
                "SELECT DISTINCT layout_id FROM telemetry_landing"
                " WHERE landed_at >= (SELECT landed_until FROM telemetry_compaction)"
                " AND landed_at < %s ORDER BY layout_id",
                [until],
            )
            layout_ids = [layout_id for (layout_id,) in cursor.fetchall()]
            for i in range(0, len(layout_ids), _LAYOUTS_AT_ONCE):
                made: list[tables.Stored] = []
                for layout_id, rows in _landed(layout_ids[i : i + _LAYOUTS_AT_ONCE], until):
                    n_batches += len(rows)
                    made += _stored(layout_id, rows, until)
                if made:
                    tables.copy_in("telemetry_chunk", made)
                    rollups.mark(bins.LEVELS[0], made)
            cursor.execute("UPDATE telemetry_compaction SET landed_until = %s", [until])
    except BaseException:
        tables.NAMES.forget()
        raise
    return n_batches


def _landed(layout_ids: list[int], until: datetime) -> Iterator[tuple[int, list[chunks.Row]]]:
    """(layout, its batches ascending by time) of what landed before `until`."""
    # Binary COPY: bodies as text would be twice as long and cost more than what is done with them.
    statement = """
        COPY (
            SELECT layout_id, extract(epoch FROM received_at)::float8, body FROM telemetry_landing
            WHERE landed_at >= (SELECT landed_until FROM telemetry_compaction)
              AND landed_at < %s AND layout_id = ANY(%s)
            ORDER BY layout_id, at
        ) TO STDOUT (FORMAT BINARY)
    """
    with connection.cursor() as cursor, cursor.cursor.copy(statement, [until, layout_ids]) as copy:
        copy.set_types(("int8", "float8", "bytea"))
        for layout_id, rows in itertools.groupby(copy.rows(), key=itemgetter(0)):
            yield (
                layout_id,
                [chunks.Row.of(bodies.unpack(body), received_s) for _, received_s, body in rows],
            )


def _stored(layout_id: int, rows: list[chunks.Row], until: datetime) -> list[tables.Stored]:
    """The rows' chunks. One batch that nobody foresaw costs itself, and stops no other."""
    try:
        return _chunks(layout_id, rows, until)
    except Exception:
        if len(rows) == 1:
            [row] = rows
            name = "/".join(map(str, row.key))
            log.exception("batch %s of layout %d cannot be kept as a chunk", name, layout_id)
            return []
        middle = len(rows) // 2
        halves = (rows[:middle], rows[middle:])
        return [made for half in halves for made in _stored(layout_id, half, until)]


def _chunks(layout_id: int, rows: list[chunks.Row], until: datetime) -> list[tables.Stored]:
    out = []
    for part in _spans(rows):
        for kind in layouts.KINDS:
            chunk = chunks.build(kind, part)
            if chunk is not None:
                out.append(
                    tables.Stored(
                        layout_id=layout_id,
                        kind=kind,
                        start=tables.utc(chunk.at_min_s),
                        at_max=tables.utc(chunk.at_max_s),
                        landed_at=until,
                        n_ticks=chunk.n_ticks,
                        columns=chunk.columns,
                    )
                )
    return out


def _spans(rows: list[chunks.Row]) -> Iterator[list[chunks.Row]]:
    """Rows ascending by time, cut where a chunk would reach over more than chunks.SPAN_S."""
    part: list[chunks.Row] = []
    low_s = high_s = 0.0
    for row in rows:
        times = row.times
        if not times:
            continue
        first_s, last_s = min(times), max(times)
        if part and max(last_s, high_s) - min(first_s, low_s) > chunks.SPAN_S:
            yield part
            part = []
        low_s = min(first_s, low_s) if part else first_s
        high_s = max(last_s, high_s) if part else last_s
        part.append(row)
    if part:
        yield part


def settle_sequences(now: datetime) -> None:
    """Remember stored batches as ranges of their agent instead of one row each.

    Numbers are first added to the agent and their rows deleted a minute later: a batch sent twice
    meets one or the other, whatever its statement has seen.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            """
            DELETE FROM telemetry_batch b USING telemetry_agent a
            WHERE a.name = b.agent AND (b.boot < a.boot OR (b.boot = a.boot AND a.stored @> b.seq))
            """
        )
        cursor.execute(
            """
            WITH runs AS MATERIALIZED (
                SELECT b.agent, b.boot, range_agg(int8range(b.seq, b.seq, '[]')) AS seqs
                FROM telemetry_batch b JOIN telemetry_agent a ON a.name = b.agent
                -- A range ends behind its last number, and behind the greatest there is none.
                WHERE b.boot = a.boot AND b.received_at < %s AND b.seq < 9223372036854775807
                GROUP BY 1, 2
            ),
            -- In the order in which `landing` locks them, or the two could wait for each other.
            held AS MATERIALIZED (
                SELECT name FROM telemetry_agent WHERE name IN (SELECT agent FROM runs)
                ORDER BY name FOR NO KEY UPDATE
            )
            UPDATE telemetry_agent a SET stored = a.stored + runs.seqs
            FROM held JOIN runs ON runs.agent = held.name
            WHERE a.name = runs.agent AND a.boot = runs.boot
            """,
            [now - _SEQS_SETTLED],
        )


def status() -> dict[str, Any]:
    """Up to when what landed is compacted, and how many roll-ups wait."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT landed_until, floor FROM telemetry_compaction")
        [(landed_until, floor)] = cursor.fetchall()
        cursor.execute("SELECT count(*) FROM telemetry_pending")
        [(n_pending,)] = cursor.fetchall()
    return {"landed_until": landed_until, "floor": floor, "n_pending_rollups": n_pending}
