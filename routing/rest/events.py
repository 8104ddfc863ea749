"""Reading what happened, in an order that never changes behind a reader's back.

Numbers of rows are given out before their transactions end, so a row of a lower number can appear
after one of a higher. Transactions have numbers too, and the database knows the lowest one that is
still under way: what is below it is settled, and is read in order of (transaction, row).
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
from django.db import connection

from routing.rest.models import Event

KINDS: Final = ("decision", "delivery", "hold", "incident", "rebalance")
KEPT: Final = datetime.timedelta(days=7)
_LAST_ROW: Final = 2**63 - 1
_PLACE: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,19})", re.ASCII)
_SETTLED: Final = "pg_snapshot_xmin(pg_current_snapshot())::text::bigint"


class Place(NamedTuple):
    """Where a reader is: everything up to here was seen. Written as `transaction-row`."""

    transaction: int
    row: int

    def __str__(self) -> str:
        return f"{self.transaction}-{self.row}"


def parse_place(text: str) -> Place:
    """The place of an event's id. Raises ValueError."""
    found = _PLACE.fullmatch(text)
    if found is None or int(found[2]) > _LAST_ROW:
        raise ValueError(f"{text!r:.80} is no id of an event")
    return Place(int(found[1]), int(found[2]))


@dataclass(frozen=True)
class Happened:
    """One event as it is told."""

    place: Place
    at: datetime.datetime
    fleet: str
    kind: str
    change: str
    subject: int
    data: dict[str, Any]

    def message(self) -> str:
        """The event as a block of an event stream."""
        said = {
            "kind": self.kind,
            "change": self.change,
            "id": self.subject,
            "fleet": self.fleet,
            "at": self.at,
            **self.data,
        }
        body = msgspec.json.encode(said).decode()
        return f"id: {self.place}\nevent: {self.kind}\ndata: {body}\n\n"


@dataclass(frozen=True)
class Chosen:
    """Which events somebody hears: of these fleets (None: of all), of these kinds."""

    fleets: frozenset[str] | None
    kinds: frozenset[str] = frozenset(KINDS)

    def __contains__(self, event: Happened) -> bool:
        return event.kind in self.kinds and (self.fleets is None or event.fleet in self.fleets)


EVERYTHING: Final = Chosen(None)


def after(place: Place, chosen: Chosen, limit: int) -> tuple[list[Happened], Place]:
    """The next events, and the place of whoever has seen them."""
    wanted = "" if chosen.fleets is None else "AND fleet = ANY(%(fleets)s)"
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            WITH settled AS MATERIALIZED (SELECT {_SETTLED} AS below)
            SELECT below, found.* FROM settled LEFT JOIN LATERAL (
                SELECT transaction, id, at, fleet, kind, change, subject, data::text
                FROM rest_event
                WHERE (transaction, id) > (%(transaction)s, %(row)s) AND transaction < below
                  AND kind = ANY(%(kinds)s) {wanted}
                ORDER BY transaction, id LIMIT %(limit)s
            ) found ON true ORDER BY found.transaction, found.id
            """,
            {
                "transaction": place.transaction,
                "row": place.row,
                "kinds": sorted(chosen.kinds),
                "fleets": None if chosen.fleets is None else sorted(chosen.fleets),
                "limit": limit,
            },
        )
        rows = cursor.fetchall()
    found = [
        Happened(Place(row[1], row[2]), *row[3:8], data=msgspec.json.decode(row[8]))
        for row in rows
        if row[1] is not None
    ]
    if len(found) == limit:
        return found, found[-1].place
    return found, max(place, Place(rows[0][0] - 1, _LAST_ROW))


def now() -> Place:
    """The place of whoever wants to hear what is still to come."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {_SETTLED}")
        return Place(cursor.fetchone()[0] - 1, _LAST_ROW)


def is_lost(place: Place, at: datetime.datetime) -> bool:
    """Whether events after this place were forgotten, or it is of another database."""
    if place > now():
        return True
    oldest = Event.objects.order_by("transaction", "id").first()
    return (
        oldest is not None
        and place < Place(oldest.transaction, oldest.pk)
        and oldest.at < at - KEPT
    )


def forget(at: datetime.datetime) -> int:
    """Remove what is past its time, but for the newest of that: `is_lost` knows by it."""
    last = Event.objects.filter(at__lt=at - KEPT).order_by("-transaction", "-id").first()
    if last is None:
        return 0
    old = Event.objects.filter(at__lt=at - KEPT).exclude(pk=last.pk)
    return old.filter(transaction__lte=last.transaction).delete()[0]
