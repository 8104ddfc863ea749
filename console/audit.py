"""The audit page: every change, who made it and why. It only grows, so it is read by its newest
first, page by page from a row on, and never counted or searched for its values whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _

from console import csv_cells, json_rows, policies
from console.roles import readable_across
from routing import rights
from routing.models import Action
from routing.rights import Rights

PAGE: Final = 100
UNFOLDED: Final = 2
MOST_LEAVES: Final = 40
LONGEST_LEAF: Final = 200
_NONE: Final = object()
SEARCHED: Final = 2000
"""So many of the newest changes offer their values as choices; any other can be typed."""
CHOOSABLE: Final = ("actor", "fleet", "verb")
_EXPORTED: Final = (
    *("at", "actor", "via", "verb", "fleet", "target", "reason", "before", "after"),
    "request_id",
)
_READ_AT_ONCE: Final = 2000
_LONGEST_ID: Final = 18


@readable_across
def audit(request: HttpRequest) -> HttpResponse:
    """Who changed what, when, from where and why; newest first."""
    chosen = {name: request.GET.get(name, "") for name in CHOOSABLE}
    search = request.GET.get("q", "").strip()
    may = rights.of(request.user)
    rows = matching(chosen, search, may)
    match request.GET.get("format"):
        case "csv":
            cells = ([_cell(row[name]) for name in _EXPORTED] for row in exported(rows))
            return csv_cells.stream(cells, _EXPORTED, "audit")
        case "json":
            return json_rows.stream(exported(rows), "audit")
    before = _row_id(request.GET.get("before", ""))
    found = list((rows if before is None else rows.filter(pk__lt=before))[: PAGE + 1])
    page = found[:PAGE]
    context = {
        "rows": [_row(row) for row in page],
        "older": page[-1].pk if len(found) > PAGE else None,
        "is_older": before is not None,
        "search": search,
        "is_filtered": bool(search or any(chosen.values())),
        "fields": _fields(chosen, may),
    }
    return render(request, "audit.html", context)


def _row(action: Action) -> dict[str, Any]:
    """An audited change; what it changed beside the first fields is folded."""
    changes = policies.action_changes(action.before, action.after)
    folded = [*changes[UNFOLDED:], *inside(action.before, action.after)]
    return {"action": action, "changes": changes, "rest": folded}


def inside(before: Any, after: Any) -> list[dict[str, str]]:
    """What changed inside documents that both sides have, leaf by leaf, by its path."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return []
    found = [
        change
        for name in before
        if isinstance(before[name], dict | list) and isinstance(after.get(name), dict | list)
        for change in _leaves(name, before[name], after[name])
    ]
    return found[:MOST_LEAVES]


def _leaves(path: str, before: Any, after: Any) -> Iterator[dict[str, str]]:
    if before == after:
        return
    was, now = _parts(before), _parts(after)
    if was is None or now is None:
        yield {"name": path, "before": _words(before), "after": _words(after)}
        return
    for key in [*was, *(key for key in now if key not in was)]:
        yield from _leaves(f"{path}.{key}", was.get(key, _NONE), now.get(key, _NONE))


def _parts(value: Any) -> dict[str, Any] | None:
    """A document's parts by name, a list's by place; None of what has none."""
    if isinstance(value, dict):
        return value
    return dict(enumerate(value)) if isinstance(value, list) else None  # type: ignore[arg-type]


def _words(value: Any) -> str:
    return _("nothing") if value is _NONE else json_rows.text(value)[:LONGEST_LEAF]


def _fields(chosen: dict[str, str], may: Rights) -> list[dict[str, Any]]:
    labels = {
        "actor": (_("Who"), _("anybody")),
        "fleet": (_("Fleet"), _("any fleet")),
        "verb": (_("What"), _("any change")),
    }
    known = choices(may)
    return [
        {
            "name": name,
            "label": labels[name][0],
            "any": labels[name][1],
            "chosen": chosen[name],
            "options": known[name],
        }
        for name in CHOOSABLE
    ]


def matching(chosen: dict[str, str], search: str, may: Rights) -> QuerySet[Action]:
    """The rows that pass the filters, of what one may read, newest first."""
    wanted = {name: value for name, value in chosen.items() if value}
    rows = may.within("read", Action.objects.all()).filter(**wanted)
    if search:
        rows = rows.filter(Q(target__icontains=search) | Q(reason__icontains=search))
    return rows.order_by("-id")


def exported(rows: QuerySet[Action]) -> Iterator[dict[str, Any]]:
    """All of them, however many, a portion in memory at a time."""
    return rows.values("id", *_EXPORTED).iterator(chunk_size=_READ_AT_ONCE)


def choices(may: Rights) -> dict[str, list[str]]:
    """Values of `CHOOSABLE` among the newest changes, for people who do not want to type."""
    rows = may.within("read", Action.objects.order_by("-id"))
    newest = rows.values_list(*CHOOSABLE)[:SEARCHED]
    found = [{value for value in column if value} for column in zip(*newest, strict=True)]
    known = found or [set() for _name in CHOOSABLE]
    return {name: sorted(each) for name, each in zip(CHOOSABLE, known, strict=True)}


def _row_id(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= _LONGEST_ID else None


def _cell(value: Any) -> Any:
    return json_rows.text(value) if isinstance(value, dict | list) else value
