"""Rows of the chunk and roll-up tables: columns by name as one byte string, and back.

Names of columns are numbered once for all (`telemetry_signal`), so that a row carries small
numbers and a query can cut one column out of it in the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import psycopg
from django.db import connection, transaction
from psycopg.pq import Format

from telemetry import layouts

_TYPES: Final = (
    "int8",
    "int2",
    "timestamptz",
    "timestamptz",
    "timestamptz",
    "int4",
    "int2[]",
    "int4[]",
    "bytea",
)


@dataclass(frozen=True)
class Stored:
    """One row: the columns of one layout and kind over some time."""

    layout_id: int
    kind: str
    start: datetime
    at_max: datetime
    landed_at: datetime
    n_ticks: int
    columns: Mapping[str, bytes]


class Names:
    """The numbers of column names, shared by all processes through the database."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def ids(self, names: Iterable[str]) -> list[int]:
        """The number of each name, given one where it has none yet."""
        wanted = list(names)
        unknown = sorted({name for name in wanted if name not in self._ids})
        if unknown:
            self._read()
            unknown = [name for name in unknown if name not in self._ids]
        if unknown:
            with connection.cursor() as cursor:
                cursor.execute(
                    "INSERT INTO telemetry_signal (name) SELECT unnest(%s::text[])"
                    " ON CONFLICT DO NOTHING",
                    [unknown],
                )
            self._read()
        return [self._ids[name] for name in wanted]

    def known(self, name: str) -> int | None:
        """The number of a name, or None where nothing was ever stored under it."""
        if name not in self._ids:
            self._read()
        return self._ids.get(name)

    def name(self, number: int) -> str:
        """The name of a number that a row carries."""
        if number not in self._names:
            self._read()
        return self._names[number]

    def forget(self) -> None:
        """Read anew when next asked: the numbers were given in a transaction that failed."""
        self._ids.clear()
        self._names.clear()

    def _read(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT id, name FROM telemetry_signal")
            self._names = dict(cursor.fetchall())
        self._ids = {name: number for number, name in self._names.items()}


NAMES: Final = Names()
"""Of this process."""


def copy_in(table: str, rows: Sequence[Stored]) -> None:
    """Add rows, in the caller's transaction."""
    assert transaction.get_connection().in_atomic_block
    values = [_values(row) for row in rows]  # may ask for names, which a COPY would not let pass
    with connection.cursor() as cursor:
        statement = (
            f"COPY {table} (layout_id, kind, start, at_max, landed_at, n_ticks, signals, ends,"
            " data) FROM STDIN (FORMAT BINARY)"
        )
        with cursor.cursor.copy(statement) as copy:
            copy.set_types(_TYPES)
            for row in values:
                copy.write_row(row)


def _values(row: Stored) -> tuple[Any, ...]:
    numbers, ends, parts, end = [], [], [], 0
    for number, column in sorted(
        zip(NAMES.ids(row.columns), row.columns.values(), strict=True), key=lambda pair: pair[0]
    ):
        end += len(column)
        numbers.append(number)
        ends.append(end)
        parts.append(column)
    return (
        row.layout_id,
        layouts.KINDS.index(row.kind),
        row.start,
        row.at_max,
        row.landed_at,
        row.n_ticks,
        numbers,
        ends,
        b"".join(parts),
    )


def split(numbers: Sequence[int], ends: Sequence[int], data: bytes) -> dict[str, bytes]:
    """The columns of a row by name."""
    starts = (0, *ends[:-1])
    return {
        NAMES.name(number): bytes(data[a:b])
        for number, a, b in zip(numbers, starts, ends, strict=True)
    }


def cut(number: str) -> str:
    """SQL: the bytes of the column with this number (an expression), NULL where there is none."""
    place = f"array_position(signals, ({number})::smallint)"
    start = f"coalesce(ends[{place} - 1], 0)"
    return (
        f"CASE WHEN {place} IS NOT NULL THEN"
        f" substring(data FROM {start} + 1 FOR ends[{place}] - {start}) END"
    )


def rows(sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
    """Every row that a query answers, sent as binary: as text, bytes are twice as many.

    Django's own cursors put parameters into the statement and can only be answered in text.
    """
    connection.ensure_connection()
    raw = psycopg.Cursor(connection.connection)
    raw.format = Format.BINARY
    wrap = connection.make_debug_cursor if connection.queries_logged else connection.make_cursor
    with wrap(raw) as cursor:
        cursor.execute(sql, parameters)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found


@contextmanager
def one_moment() -> Iterator[None]:
    """All queries inside see the tables as they were at one moment, whatever is moved meanwhile."""
    if connection.in_atomic_block:
        yield
        return
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


def utc(at_s: float) -> datetime:
    """Epoch seconds as the database wants them."""
    return datetime.fromtimestamp(at_s, UTC)
