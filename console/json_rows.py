"""Lists as JSON downloads: one array, sent while its rows are read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from django.core.serializers.json import DjangoJSONEncoder
from django.http import StreamingHttpResponse

from console import csv_cells

_ROWS_AT_ONCE: Final = 500


def stream(rows: Iterable[dict[str, Any]], name: str) -> StreamingHttpResponse:
    """The rows as a download called `name`.json."""
    return csv_cells.download(_parts(rows), "application/json", csv_cells.file_name(name, "json"))


def text(value: Any) -> str:
    """A value as JSON, moments as texts."""
    return json.dumps(value, cls=DjangoJSONEncoder, ensure_ascii=False)


def _parts(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    yield "["
    left, before = iter(rows), ""
    while some := list(islice(left, _ROWS_AT_ONCE)):
        yield before + ",\n".join(text(row) for row in some)
        before = ",\n"
    yield "]\n"
