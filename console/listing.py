"""Lists of thousands: sorted, narrowed and paged by the server, as the address asks.

What a list can show is a tuple of `Column`s. `?sort=queue` puts the largest number first (texts
from A to Z), `?sort=-queue` turns that round; what was not measured stands last either way.
`?col=` names the columns to show, once each; without any the usual ones are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.http import QueryDict

_ARRANGING: Final = ("sort", "col", "page", "format")


@dataclass(frozen=True)
class Column:
    """`value` is what a row is sorted by, None where nothing was measured. `is_name`: always shown;
    `is_usual`: shown without being asked for."""

    key: str
    label: str
    value: Callable[[Any], Any]
    is_number: bool = False
    is_usual: bool = True
    is_name: bool = False


@dataclass(frozen=True)
class Head:
    """A column's header. `sorted` is the value of `aria-sort`, `next` what a click sorts by."""

    key: str
    label: str
    is_number: bool
    sorted: str
    next: str


@dataclass(frozen=True)
class Listing:
    """One page of a list. `total` rows are left by the filter of `all_total`; `shown` are the keys
    of its columns, `choices` (column, is it shown) those that can be chosen. `narrowed_by` are the
    fields of the address that narrow it, `arranged_by` those that say how it is shown: forms keep
    them."""

    rows: list[Any]
    number: int
    per_page: int
    total: int
    all_total: int
    sort: str
    heads: tuple[Head, ...]
    shown: frozenset[str]
    choices: tuple[tuple[Column, bool], ...]
    narrowed_by: tuple[tuple[str, str], ...]
    arranged_by: tuple[tuple[str, str], ...]

    @property
    def pages(self) -> int:
        return max(1, -(-self.total // self.per_page))

    @property
    def first(self) -> int:
        """The place of its first row in the whole list, from 1; 0 of an empty one."""
        return min((self.number - 1) * self.per_page + 1, self.total)

    @property
    def last(self) -> int:
        return min(self.number * self.per_page, self.total)


def shown_of(columns: Sequence[Column], query: QueryDict) -> frozenset[str]:
    """Keys of the columns to show: those chosen, else the usual ones, and always the name."""
    known = {column.key for column in columns}
    chosen = known.intersection(query.getlist("col"))
    if not chosen:
        chosen = {column.key for column in columns if column.is_usual}
    return frozenset(chosen | {column.key for column in columns if column.is_name})


def listing(
    rows: list[Any],
    columns: Sequence[Column],
    query: QueryDict,
    *,
    all_total: int,
    per_page: int,
    sort: str = "name",
) -> Listing:
    """The page of `rows` (filtered already) that the address asks for; `sort` if it names none."""
    asked = query.get("sort", "")
    by_key = {column.key: column for column in columns}
    if asked.removeprefix("-") not in by_key:
        asked = sort
    shown = shown_of(columns, query)
    rows = ordered(rows, by_key[asked.removeprefix("-")], is_turned=asked.startswith("-"))
    fields = [(key, value) for key in query for value in query.getlist(key)]
    number = min(max(whole(query.get("page")), 1), max(1, -(-len(rows) // per_page)))
    return Listing(
        rows=rows[(number - 1) * per_page : number * per_page],
        number=number,
        per_page=per_page,
        total=len(rows),
        all_total=all_total,
        sort=asked,
        heads=tuple(_head(column, asked) for column in columns if column.key in shown),
        shown=shown,
        choices=tuple((c, c.key in shown) for c in columns if not c.is_name),
        narrowed_by=tuple((k, v) for k, v in fields if k not in _ARRANGING and v),
        arranged_by=tuple((k, v) for k, v in fields if k in ("sort", "col")),
    )


def ordered(rows: list[Any], column: Column, *, is_turned: bool) -> list[Any]:
    """All rows by one column, the largest number or the first text on top; unknown ones last."""
    known = [row for row in rows if column.value(row) is not None]
    unknown = [row for row in rows if column.value(row) is None]
    known.sort(key=column.value, reverse=column.is_number != is_turned)
    return known + unknown


def _head(column: Column, sort: str) -> Head:
    key, is_turned = sort.removeprefix("-"), sort.startswith("-")
    is_chosen = column.key == key
    is_rising = is_turned if column.is_number else not is_turned
    return Head(
        key=column.key,
        label=column.label,
        is_number=column.is_number,
        sorted=("ascending" if is_rising else "descending") if is_chosen else "",
        next=f"-{column.key}" if is_chosen and not is_turned else column.key,
    )


def whole(text: str | None) -> int:
    """A number of the address; 1 where it is none."""
    return int(text) if text and text.isdecimal() and len(text) < 10 else 1
