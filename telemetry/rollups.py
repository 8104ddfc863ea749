"""Compact history, moved: chunks into roll-ups over 10 s, and those into roll-ups over a minute.

Which spans have news is kept in `telemetry_pending`, marked in the transaction that writes the
finer rows, so a late reading mends the roll-up it belongs to. What a row holds is in `bins`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from django.db import connection, transaction

from telemetry import bins, chunks, layouts, partitions, tables

log = logging.getLogger(__name__)


GRACE_S: Final = 60.0
"""A span is rolled up this long after its end, and again for what comes later."""
_SPANS_PER_TRANSACTION: Final = 200


def mark(level: bins.Level, rows: Sequence[tables.Stored]) -> None:
    """Note the spans of `level` that these finer rows touch, in the caller's transaction."""
    spans = sorted(
        {
            (start_s, row.layout_id, layouts.KINDS.index(row.kind))
            for row in rows
            for start_s in _spans(level, row.start.timestamp(), row.at_max.timestamp())
        }
    )
    starts, layout_ids, kinds = zip(*spans, strict=True)
    with connection.cursor() as cursor:
        # A mark that is there is locked until we commit: whoever rolled the span up meanwhile
        # would not see these rows, and would take their mark with it.
        cursor.execute(
            """
            INSERT INTO telemetry_pending (table_name, start, layout_id, kind)
            SELECT %s, * FROM unnest(%s::timestamptz[], %s::bigint[], %s::smallint[])
            ON CONFLICT (table_name, start, layout_id, kind) DO UPDATE SET kind = excluded.kind
            """,
            [level.table, [tables.utc(s) for s in starts], list(layout_ids), list(kinds)],
        )


def _spans(level: bins.Level, since_s: float, until_s: float) -> list[float]:
    first, last = level.start(since_s), level.start(until_s)
    return [first + i * level.span_s for i in range(round((last - first) / level.span_s) + 1)]


def run(now: datetime) -> int:
    """Roll up every span that has news and is over; how many were."""
    return sum(_run(level, now) for level in bins.LEVELS)


def _run(level: bins.Level, now: datetime) -> int:
    n_spans = 0
    over = now - timedelta(seconds=level.span_s + GRACE_S)
    old = _old(level, now)
    while True:
        with transaction.atomic(), connection.cursor() as cursor:
            # SKIP LOCKED: two workers share the work. Spans come by layout, for their rows lie
            # together.
            cursor.execute(
                """
                DELETE FROM telemetry_pending WHERE ctid IN (
                    SELECT ctid FROM telemetry_pending WHERE table_name = %s AND start <= %s
                    ORDER BY start, layout_id, kind LIMIT %s FOR UPDATE SKIP LOCKED
                ) RETURNING layout_id, kind, start
                """,
                [level.table, over, _SPANS_PER_TRANSACTION],
            )
            due = cursor.fetchall()
            if not due:
                return n_spans
            _roll_up(level, _without_row(level, due, old))
        n_spans += len(due)


def _old(level: bins.Level, now: datetime) -> datetime:
    """Before it some of what a span of `level` was made of may have been dropped."""
    [source] = [table for table in partitions.TABLES if table.name == level.source]
    oldest = source.start(now - partitions.retention().of(source))
    return oldest + timedelta(seconds=chunks.SPAN_S if source is partitions.CHUNK else 0.0)


def _without_row(
    level: bins.Level, due: Sequence[tuple[int, int, datetime]], old: datetime
) -> list[tuple[int, int, datetime]]:
    """Spans to roll up: of those before `old` only such as have no row, which would be lost."""
    if not (late := [span for span in due if span[2] < old]):
        return list(due)
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            SELECT layout_id, kind, start FROM {level.table}
            JOIN unnest(%s::bigint[], %s::smallint[], %s::timestamptz[])
                AS late (layout_id, kind, start) USING (layout_id, kind, start)
            """,
            [[d[0] for d in late], [d[1] for d in late], [d[2] for d in late]],
        )
        kept = set(cursor.fetchall())
    return [span for span in due if span not in kept]


def _roll_up(level: bins.Level, due: Sequence[tuple[int, int, datetime]]) -> None:
    rows = []
    for layout_id, kind_number, start in due:
        kind = layouts.KINDS[kind_number]
        found = _finer(level, layout_id, kind_number, start)
        if not found:
            continue
        fold = bins.from_chunks if level is bins.LEVELS[0] else bins.from_rollups
        try:
            made = fold(level, kind, found, start.timestamp())
        except Exception:  # one span that nobody foresaw must not end the roll-ups of all
            log.exception("no roll-up of %s %s at %s", layout_id, kind, start)
            continue
        if made:
            end_s = start.timestamp() + level.span_s
            rows.append(
                tables.Stored(layout_id, kind, start, tables.utc(end_s), start, level.n_bins, made)
            )
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            DELETE FROM {level.table} old USING
                unnest(%s::bigint[], %s::smallint[], %s::timestamptz[]) AS new (layout, kind, start)
            WHERE old.layout_id = new.layout AND old.kind = new.kind AND old.start = new.start
            """,
            [[d[0] for d in due], [d[1] for d in due], [d[2] for d in due]],
        )
    if rows:
        tables.copy_in(level.table, rows)
        if level is bins.LEVELS[0]:
            mark(bins.LEVELS[1], rows)


def _finer(
    level: bins.Level, layout_id: int, kind_number: int, start: datetime
) -> list[bins.Finer]:
    """The finer rows that a span is made of, and of chunks the one before, for what was gained."""
    reach = timedelta(hours=1) if level is bins.LEVELS[0] else timedelta()
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            SELECT extract(epoch FROM start)::float8, n_ticks, signals, ends, data, facts
            FROM {level.source} JOIN telemetry_layout layout ON layout.id = layout_id
            WHERE layout_id = %s AND kind = %s AND start >= %s AND start < %s AND at_max >= %s
            ORDER BY start
            """,
            [
                layout_id,
                kind_number,
                start - reach,
                start + timedelta(seconds=level.span_s),
                start - timedelta(seconds=bins.BEFORE_S) if reach else start,
            ],
        )
        return [
            bins.Finer(
                start_s,
                n_ticks,
                len(layouts.decode(facts).facts(layouts.KINDS[kind_number])),
                tables.split(numbers, ends, data),
            )
            for start_s, n_ticks, numbers, ends, data, facts in cursor.fetchall()
        ]
