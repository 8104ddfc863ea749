"""What commands print: tables and lines for people, JSON for programs."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

_WIDEST = 60


class Out:
    """Where a command prints. With `as_json` exactly one JSON value, else what people read."""

    def __init__(self, stream: TextIO, *, as_json: bool) -> None:
        self.stream, self.as_json = stream, as_json

    def table(self, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
        """A row for each, with these columns of it: `a.b` is b of a."""
        found = list(rows)
        if self.as_json:
            self.value(found)
            return
        if not found:
            self.line("none")
            return
        cells = [[cell(_at(row, column)) for column in columns] for row in found]
        widths = [
            min(_WIDEST, max([_width(column), *(_width(row[i]) for row in cells)]))
            for i, column in enumerate(columns)
        ]
        for row in ([column.upper() for column in columns], *cells):
            self.line("  ".join(_padded(text, w) for text, w in zip(row, widths, strict=True)))

    def facts(self, data: Any, names: Sequence[str] = ()) -> None:
        """The values of one thing, a line each; all of them if not `names`."""
        if self.as_json or not isinstance(data, dict):
            self.value(data)
            return
        shown = names or tuple(data)
        width = max([0, *(_width(name) for name in shown)])
        for name in shown:
            self.line(f"{_padded(name, width)}  {cell(_at(data, name))}")

    def said(self, data: Any, *lines: str) -> None:
        """An answer: these lines for people, all of it for programs."""
        if self.as_json:
            self.value(data)
            return
        for line in lines:
            self.line(line)

    def value(self, data: Any) -> None:
        json.dump(data, self.stream, ensure_ascii=False, indent=None if self.as_json else 2)
        self.stream.write("\n")

    def line(self, text: str) -> None:
        self.stream.write(clean(text).rstrip() + "\n")


def clean(text: str) -> str:
    """Text of others without what would steer a terminal, or turn the reading direction."""
    return "".join(c if c.isprintable() and unicodedata.category(c) != "Cf" else " " for c in text)


def cell(value: Any) -> str:
    """A value in one line."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict | list):
        return clean(json.dumps(value, ensure_ascii=False)) if value else "-"
    return clean(str(value))


def _at(row: Any, column: str) -> Any:
    for part in column.split("."):
        row = row.get(part) if isinstance(row, Mapping) else None
    return row


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _padded(text: str, width: int) -> str:
    while _width(text) > width:
        text = text[:-2] + "…" if len(text) > 1 else ""
    return text + " " * (width - _width(text))
