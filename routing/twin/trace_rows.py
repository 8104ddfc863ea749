"""One row of a trace file, what is wrong with one, and the ids of its blocks."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from routing.core.scenario.tables import is_number
from routing.twin.requests import Blocks

MOST_TOKENS = 100_000_000
"""Far beyond any model's context; a larger number is a mistake in the file."""


class TraceError(ValueError):
    """A file that cannot be meant. `line` counts from 1; None where it is the file as a whole."""

    def __init__(
        self,
        message: str,
        *,
        source: str,
        line: int | None = None,
        field: str | None = None,
        value: Any = None,
    ) -> None:
        where = source if line is None else f"{source}:{line}"
        said = "" if field is None else f"{field} = {_short(value)}: "
        super().__init__(f"{where}: {said}{message}")
        self.source, self.line, self.field, self.value = source, line, field, value
        self.message = message


class Row(NamedTuple):
    """One request. `at_s` on the file's own clock; `session` what it shares with its turns."""

    line: int
    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: Blocks | None = None
    session: int | None = None
    cluster: str | None = None


class Chains:
    """Ids for blocks that each name what stands before them too.

    A child is numbered after its parent, so the last id of a prompt is its largest.
    """

    def __init__(self) -> None:
        self._ids: dict[tuple[object, ...], int] = {}

    def next(self, before: int | None, *block: object) -> int:
        """The id of `block` right behind the block `before`, None at the beginning."""
        return self._ids.setdefault((before, *block), len(self._ids))


class Fields:
    """One line's values, read strictly by name."""

    def __init__(self, values: dict[str, Any], *, source: str, line: int) -> None:
        self.values, self.source, self.line = values, source, line

    def error(self, field: str, message: str, *, value: Any = None) -> TraceError:
        found = self.values.get(field) if value is None else value
        return TraceError(message, source=self.source, line=self.line, field=field, value=found)

    def take(self, field: str) -> Any:
        if field not in self.values:
            raise self.error(field, "is missing")
        return self.values[field]

    def tokens(self, field: str, *, low: int) -> int:
        value = self.take(field)
        if isinstance(value, str) and value.isascii() and value.isdigit():
            # Digits beyond the most are not worth a number of thousands of them.
            value = int(value[:20])
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= MOST_TOKENS:
            raise self.error(field, f"must be a whole number from {low} to {MOST_TOKENS}")
        return value

    def number(self, field: str, *, low: float) -> float:
        value = self.take(field)
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                raise self.error(field, "must be a finite number") from None
        if not is_number(value):
            raise self.error(field, "must be a finite number")
        if value < low:
            raise self.error(field, f"must be at least {low:g}")
        return float(value)

    def text(self, field: str) -> str:
        value = self.take(field)
        if not isinstance(value, str) or not value:
            raise self.error(field, "must be a text that is not empty")
        return value

    def rows(self, field: str) -> list[Any]:
        value = self.take(field)
        if not isinstance(value, list):
            raise self.error(field, "must be a list")
        return value

    def numbers(self, field: str) -> tuple[float, ...]:
        values = self.rows(field)
        if not all(map(is_number, values)):
            raise self.error(field, "must be a list of finite numbers")
        return tuple(map(float, values))

    def only(self, known: Sequence[str]) -> None:
        for field in self.values:
            if field not in known:
                raise self.error(field, f"is not known (known: {', '.join(known)})")


def read_object(line: str, *, source: str, number: int) -> Fields:
    """A line of jsonl."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise TraceError(f"is not JSON: {exc}", source=source, line=number) from None
    if not isinstance(values, dict):
        raise TraceError("must be a JSON object", source=source, line=number)
    return Fields(values, source=source, line=number)


def read_csv(
    lines: Iterable[str], *, source: str, start: int = 1
) -> tuple[list[str], Iterator[Fields]]:
    """The names of the columns, and the rows. The header is line `start` of the file."""
    reader = csv.reader(lines)

    def values() -> Iterator[list[str]]:
        try:
            yield from reader
        except csv.Error as exc:
            line = start - 1 + reader.line_num
            raise TraceError(f"is not csv: {exc}", source=source, line=line) from None

    rows = values()
    header = [name.strip() for name in next(rows, [])]

    def fields() -> Iterator[Fields]:
        for row in filter(None, rows):
            # A quoted value may hold ends of lines, which the reader counts.
            line = start - 1 + reader.line_num
            if len(row) != len(header):
                raise TraceError(
                    f"has {len(row)} values for {len(header)} columns",
                    source=source,
                    line=line,
                    field="row",
                    value=",".join(row),
                )
            yield Fields(dict(zip(header, row, strict=True)), source=source, line=line)

    return header, fields()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
