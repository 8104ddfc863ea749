"""Pages of the API's lists: what happened newest first, what there is now in its order.

`next` and `previous` are whole addresses. A page begins after a row, not at a number of rows, so
that rows which come or go meanwhile are neither repeated nor passed over.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from rest_framework.exceptions import NotFound
from rest_framework.pagination import BasePagination, CursorPagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import remove_query_param, replace_query_param

ROWS = 50
MOST_ROWS = 200
_INVALID = "Invalid cursor"


class Newest(CursorPagination):
    """Newest first, `?limit=` up to 200, `next` is null at the end."""

    page_size = ROWS
    page_size_query_param = "limit"
    max_page_size = MOST_ROWS
    ordering = ("-id",)

    def decode_cursor(self, request: Request) -> Any:
        # The base class hands whatever position was sent to the database.
        cursor = super().decode_cursor(request)
        if cursor is not None and cursor.position is not None:
            try:
                self.check_position(cursor.position)
            except ValueError:
                raise NotFound(self.invalid_cursor_message) from None
        return cursor

    def check_position(self, position: str) -> None:
        """Raises ValueError for what cannot be a value of the ordering column."""
        int(position)


class NewestTick(Newest):
    ordering = ("-at",)

    def check_position(self, position: str) -> None:
        if datetime.fromisoformat(position).tzinfo is None:
            raise ValueError(position)


class _After(NamedTuple):
    """Where a page begins: after (or, backwards, before) the row of this key. `index` is where
    that row was, for lists in which it is no longer."""

    key: tuple[Any, ...]
    index: int
    backwards: bool


class Page(BasePagination):
    """Of what there is now, with `count`. A view whose rows are no QuerySet says as `page_key`
    which fields tell them apart; those of a QuerySet are in its order, then by their id."""

    def paginate_queryset(
        self, rows: QuerySet[Any] | Sequence[Any], request: Request, view: Any = None
    ) -> list[Any]:
        asked = getattr(view, "asked", {})
        self._request = request
        self._limit = min(asked.get("limit", ROWS), MOST_ROWS)
        offset, after = asked.get("offset", 0), _parsed(asked.get("cursor"))
        if isinstance(rows, QuerySet):
            return self._of_rows(rows, after, offset)
        return self._of_list(rows, after, offset, getattr(view, "page_key", ("id",)))

    def get_paginated_response(self, data: Any) -> Response:
        return Response(
            {
                "count": self._count,
                "next": self._address(self._next) if self._next else None,
                "previous": self._address(self._previous) if self._previous else None,
                "results": data,
            }
        )

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        address = {"type": ["string", "null"], "format": "uri"}
        return {
            "type": "object",
            "required": ["count", "next", "previous", "results"],
            "properties": {
                "count": {"type": "integer"},
                "next": address,
                "previous": address,
                "results": schema,
            },
        }

    def _of_list(
        self,
        rows: Sequence[Any],
        after: _After | None,
        offset: int,
        fields: tuple[str, ...],
    ) -> list[Any]:
        def key(row: Any) -> tuple[Any, ...]:
            return tuple(row[f] if isinstance(row, dict) else getattr(row, f) for f in fields)

        self._count = len(rows)
        begin, end = offset, offset + self._limit
        if after is not None:
            found = (i for i, row in enumerate(rows) if key(row) == after.key)
            index = next(found, after.index)
            begin, end = index + 1, index + 1 + self._limit
            if after.backwards:
                begin, end = max(index - self._limit, 0), index
        page = list(rows[begin:end])
        self._turn(page, key, begin, before=begin > 0, behind=end < len(rows))
        return page

    def _of_rows(self, rows: QuerySet[Any], after: _After | None, offset: int) -> list[Any]:
        fields = tuple(rows.query.order_by) or tuple(rows.model._meta.ordering)
        fields = fields if "pk" in fields else (*fields, "pk")
        rows = rows.order_by(*fields)
        self._count = rows.count()
        backwards = after is not None and after.backwards
        if after is not None:
            rows = _beyond(rows, fields, after)
        found = list((rows.reverse() if backwards else rows)[offset : offset + self._limit + 1])
        more, page = len(found) > self._limit, found[: self._limit]
        if backwards:
            page.reverse()
        self._turn(
            page,
            lambda row: tuple(_plain(getattr(row, field.lstrip("-"))) for field in fields),
            0,
            before=more if backwards else after is not None or offset > 0,
            behind=backwards or more,
        )
        return page

    def _turn(
        self,
        page: list[Any],
        key: Callable[[Any], tuple[Any, ...]],
        index: int,
        *,
        before: bool,
        behind: bool,
    ) -> None:
        self._next = self._previous = ""
        if page and behind:
            self._next = _written(_After(key(page[-1]), index + len(page) - 1, False))
        if page and before:
            self._previous = _written(_After(key(page[0]), index, True))

    def _address(self, cursor: str) -> str:
        address = remove_query_param(self._request.build_absolute_uri(), "offset")
        return replace_query_param(address, "cursor", cursor)


def _beyond(rows: QuerySet[Any], fields: tuple[str, ...], after: _After) -> QuerySet[Any]:
    """Rows behind a key in the order of `fields`, or before it. Raises NotFound."""
    if len(after.key) != len(fields):
        raise NotFound(_INVALID)
    found, same = Q(), Q()
    for field, value in zip(fields, after.key, strict=True):
        name, falls = field.lstrip("-"), field.startswith("-")
        step = "lt" if falls != after.backwards else "gt"
        found |= same & Q(**{f"{name}__{step}": value})
        same &= Q(**{name: value})
    try:
        return rows.filter(found)
    except (ValueError, ValidationError):
        raise NotFound(_INVALID) from None


def _plain(value: Any) -> str | int:
    return value if isinstance(value, str | int) else str(value)


def _written(after: _After) -> str:
    return base64.urlsafe_b64encode(json.dumps(after).encode()).decode().rstrip("=")


def _parsed(cursor: str | None) -> _After | None:
    """Raises NotFound for what is no cursor of ours."""
    if cursor is None:
        return None
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        key, index, backwards = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        plain = isinstance(key, list) and all(map(_may_be_key, key))
        if not (plain and type(index) is int and 0 <= index < 2**31 and type(backwards) is bool):
            raise ValueError(cursor)
        return _After(tuple(key), index, backwards)
    except (ValueError, TypeError, binascii.Error, RecursionError):
        raise NotFound(_INVALID) from None


def _may_be_key(part: Any) -> bool:
    return (type(part) is str and "\0" not in part) or (type(part) is int and abs(part) < 2**63)
