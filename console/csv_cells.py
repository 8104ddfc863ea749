"""Tables as CSV that a spreadsheet shows and never runs.

Names and notes are written by strangers; a spreadsheet takes a cell that begins with `=` for a
formula. Every text that could be taken so gets an apostrophe in front, which spreadsheets know as
"this is text". True numbers stay numbers, also negative ones.
"""

from __future__ import annotations

import csv
import io
import math
import re
import unicodedata
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import islice
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse
from django.utils.http import content_disposition_header

_ROWS_AT_ONCE: Final = 500
_LONGEST_NAME: Final = 100
_STARTS: Final = frozenset("=+-@\N{MINUS SIGN}")
_BREAKS: Final = ("\t", "\r", "\n")
_UNSEEN: Final = frozenset(("Cc", "Cf", "Zs", "Zl", "Zp", "Pi", "Pf"))
"""Controls, formats, spaces and curly quotes: a spreadsheet may look behind them."""
_QUOTES: Final = frozenset("'\"`")
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


def neutral(value: Any) -> str | int | float | Decimal:
    """A cell: numbers as they are, nothing for what was not measured, any text inert."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return value if math.isfinite(value) else ""
    if isinstance(value, int | Decimal):
        return value
    text = value.isoformat() if isinstance(value, datetime) else str(value)
    return f"'{text}" if _may_run(text) else text


def _may_run(text: str) -> bool:
    if text.startswith(_BREAKS):
        return True
    seen = next(
        (c for c in text if c not in _QUOTES and unicodedata.category(c) not in _UNSEEN), ""
    )
    return unicodedata.normalize("NFKC", seen) in _STARTS and not _NUMBER.fullmatch(text)


class _Streamed(StreamingHttpResponse):
    """Made part by part, in the thread of the request: never the whole table in memory."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts = iter(self)
        while (part := await sync_to_async(next)(parts, None)) is not None:
            yield part


def stream(
    rows: Iterable[Sequence[Any]], header: Sequence[str], name: str
) -> StreamingHttpResponse:
    """The table as a download called `name`.csv, sent while `rows` are read."""
    return download(_parts(rows, header), "text/csv; charset=utf-8", file_name(name))


def download(parts: Iterable[str], content_type: str, name: str) -> StreamingHttpResponse:
    """A file called `name`, sent while its `parts` are made."""
    return _Streamed(
        parts,
        content_type=content_type,
        headers={
            "Content-Disposition": content_disposition_header(True, name) or "attachment",
            "Cache-Control": "private, no-store",
        },
    )


def file_name(name: str, ending: str = "csv") -> str:
    """`name` with the characters any file system takes, and its ending."""
    plain = _UNSAFE.sub("-", name.removesuffix(f".{ending}")).strip("-.")[:_LONGEST_NAME]
    return f"{plain or 'export'}.{ending}"


def _parts(rows: Iterable[Sequence[Any]], header: Sequence[str]) -> Iterator[str]:
    yield _written([header])
    left = iter(rows)
    while some := list(islice(left, _ROWS_AT_ONCE)):
        yield _written(some)


def _written(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows([neutral(cell) for cell in row] for row in rows)
    return text.getvalue()
