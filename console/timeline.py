"""One list of what the loop did and did not do, newest first: decisions, and the runs of ticks
between them in which it held.

Pages follow each other by a cursor, the moment and identity of the last entry shown, so that what
happens meanwhile moves nothing. A cursor also carries where the last run shown began: ticks need
not be read from the newest on again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db.models import (
    BooleanField,
    ExpressionWrapper,
    F,
    Func,
    IntegerField,
    JSONField,
    Q,
    QuerySet,
    Value,
)
from django.db.models.fields.json import KeyTransform

from console import plans, spells
from console.context import Span
from console.spells import Spell
from routing.models import Decision, Fleet

PAGE: Final = 50
KINDS: Final = ("pushed", "advised", "refused", "reverted", "held")
LOOP: Final = "loop"
"""The actor of what nobody asked for."""
_HELD: Final = "Held"
_PERSONS: Final = (_HELD, "EpochRaised")
"""Reasons of plans that a person asked for."""
_OWNER: Final = re.compile(r"held by (.+?) until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", re.DOTALL)
_BACK_TO: Final = re.compile(r"(?:Roll back|Back) to plan (\d+)\.(\d+):")
_CURSOR: Final = re.compile(r"(\d{1,17})\.([01])\.(\d{1,18})\.(\d{1,17})")
_DECISION, _SPELL = 1, 0


@dataclass(frozen=True)
class Filters:
    """What is asked for; empty is everything."""

    kind: str = ""
    reason: str = ""
    cluster: str = ""
    actor: str = ""
    text: str = ""

    def __bool__(self) -> bool:
        return any((self.kind, self.reason, self.cluster, self.actor, self.text))


@dataclass(frozen=True)
class Cursor:
    """What stands before the next page: an entry, and where the last run shown began."""

    at: datetime
    rank: int
    pk: int
    bound: datetime

    def __str__(self) -> str:
        return f"{_micros(self.at)}.{self.rank}.{self.pk}.{_micros(self.bound)}"

    @classmethod
    def parse(cls, text: str) -> Cursor | None:
        """The cursor that was written so; None where the text is none."""
        found = _CURSOR.fullmatch(text)
        if found is None:
            return None
        at, rank, pk, bound = (int(part) for part in found.groups())
        return cls(_moment(at), rank, pk, _moment(bound))


def _micros(at: datetime) -> int:
    return round((at - _EPOCH) / timedelta(microseconds=1))


def _moment(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Page:
    """Some entries, newest first, and the cursor of those after them, if there are any."""

    entries: list[Decision | Spell] = field(default_factory=list)
    older: Cursor | None = None


def listed(fleet: Fleet) -> QuerySet[Decision]:
    """Decisions as lists show them, newest first: of their ticks only the two headrooms, and what
    of each cluster `changed`, before and after. Plans of many clusters are long, and most of a plan
    is as it was: `brief` leaves them where they are."""
    verdict = "tick__verdict"
    return (
        Decision.objects.filter(fleet=fleet)
        .annotate(
            headroom_before=KeyTransform("headroom", KeyTransform("current", verdict)),
            headroom_after=KeyTransform("headroom", KeyTransform("adopted", verdict)),
            changed=Func(
                *(F("plan"), F("previous")),
                template=_CHANGED,
                arg_joiner="->'clusters') is_now LEFT JOIN jsonb_each(",
                output_field=JSONField(),
            ),
            n_clusters=Func(F("plan"), template=_N_CLUSTERS, output_field=IntegerField()),
            is_first=ExpressionWrapper(Q(previous__isnull=True), BooleanField()),
        )
        .order_by("-created_at", "-id")
    )


_CHANGED: Final = """(
    SELECT jsonb_object_agg(key, jsonb_build_array(was.value, is_now.value))
    FROM jsonb_each(%(expressions)s->'clusters') was USING (key)
    WHERE is_now.value IS DISTINCT FROM was.value
)"""
_N_CLUSTERS: Final = "(SELECT count(*) FROM jsonb_object_keys(%(expressions)s->'clusters'))"


def brief(rows: QuerySet[Decision]) -> QuerySet[Decision]:
    """Decisions of `listed` without the plans themselves."""
    return rows.defer("plan", "previous")


def parts(row: Any) -> list[dict[str, str]]:
    """What a decision of `listed` changed, cluster by cluster, in few words."""
    several = row.n_clusters > 1
    return plans.parts(row.changed or {}, several=several, is_first=row.is_first)


def page(
    fleet: Fleet, span: Span, filters: Filters, cursor: Cursor | None, size: int = PAGE
) -> Page:
    """The entries after `cursor`, or the newest."""
    made = _decisions(fleet, span, filters, cursor, size + 1)
    held = _spells(fleet, span, filters, cursor, size + 1)
    every = sorted([*made, *held], key=_order, reverse=True)
    shown = every[:size]
    if len(every) <= size:
        return Page(shown)
    bound = next((e.since for e in reversed(shown) if isinstance(e, Spell)), None)
    at, rank, pk = _order(shown[-1])
    bound = bound or (cursor.bound if cursor else span.until)
    return Page(shown, Cursor(at, rank, pk, bound))


def every(
    fleet: Fleet, span: Span, filters: Filters, size: int = 500
) -> Iterator[Decision | Spell]:
    """All entries, newest first, read a page at a time: nothing that is shown is held for long."""
    cursor = None
    while True:
        found = page(fleet, span, filters, cursor, size)
        yield from found.entries
        cursor = found.older
        if cursor is None:
            return


def _order(entry: Decision | Spell) -> tuple[datetime, int, int]:
    if isinstance(entry, Spell):
        return entry.since, _SPELL, entry.seq
    return entry.created_at, _DECISION, entry.pk


def _decisions(
    fleet: Fleet, span: Span, filters: Filters, cursor: Cursor | None, limit: int
) -> list[Decision]:
    if filters.kind == "held":
        return []
    rows = brief(matching(fleet, filters))
    rows = rows.filter(created_at__gte=span.since, created_at__lt=span.until)
    if cursor is not None:
        earlier = Q(created_at__lt=cursor.at)
        if cursor.rank == _DECISION:
            earlier |= Q(created_at=cursor.at, pk__lt=cursor.pk)
        rows = rows.filter(earlier)
    return list(rows[:limit])


def matching(fleet: Fleet, filters: Filters) -> QuerySet[Decision]:
    """Decisions that pass the filters, of any time."""
    rows = listed(fleet)
    match filters.kind:
        case "pushed":
            rows = rows.filter(version__isnull=False)
        case "advised" | "refused":
            rows = rows.filter(kind=filters.kind)
        case "reverted":
            rows = rows.filter(version__isnull=False, reason=_HELD, message__regex=_BACK_TO.pattern)
    if filters.reason:
        rows = rows.filter(reason=filters.reason)
    if filters.cluster:
        rows = rows.filter(differs(filters.cluster))
    if filters.actor == LOOP:
        rows = rows.exclude(reason__in=_PERSONS)
    elif filters.actor:
        rows = rows.filter(reason=_HELD, message__contains=_held_by(filters.actor))
    if filters.text:
        rows = rows.filter(Q(message__icontains=filters.text) | Q(reason__icontains=filters.text))
    return rows


def cluster_of(plan: str, cluster: str) -> Func:
    """What a stored plan asks of a cluster, whatever its name is."""
    path = (F(plan), Value("clusters"), Value(cluster))
    return Func(*path, function="jsonb_extract_path", output_field=JSONField())


def differs(cluster: str) -> Func:
    """Whether a plan asks something else of a cluster than the one before it."""
    return Func(
        cluster_of("plan", cluster),
        cluster_of("previous", cluster),
        template="(%(expressions)s)",
        arg_joiner=" IS DISTINCT FROM ",
        output_field=BooleanField(),
    )


def _held_by(name: str) -> str:
    return f"held by {name} until "


def _spells(
    fleet: Fleet, span: Span, filters: Filters, cursor: Cursor | None, limit: int
) -> list[Spell]:
    if filters.kind not in ("", "held"):
        return []
    texts = [part for part in (filters.text, filters.cluster) if part]
    if filters.actor and filters.actor != LOOP:
        texts.append(_held_by(filters.actor))
    return spells.held(
        fleet.pk,
        since=span.since,
        until=span.until if cursor is None else cursor.bound,
        before=span.until if cursor is None else cursor.at,
        including=cursor is not None and cursor.rank == _DECISION,
        reason=filters.reason,
        not_reasons=(_HELD,) if filters.actor == LOOP else (),
        texts=texts,
        limit=limit,
    )


def who(reason: str, message: str) -> str:
    """Who wanted this: the owner of the hold that it is for, else the loop."""
    found = _OWNER.search(message) if reason == _HELD else None
    return found[1] if found else LOOP


def back_to(reason: str, message: str) -> tuple[int, int] | None:
    """Epoch and version of the plan that this one puts back; None where it is another's."""
    found = _BACK_TO.search(message) if reason == _HELD else None
    return (int(found[1]), int(found[2])) if found else None
