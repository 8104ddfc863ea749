"""What people say hours and links cost. The one writer of PriceTable."""

from __future__ import annotations

import datetime
import zoneinfo
from operator import attrgetter
from typing import Any, Final

from routing import versioned
from routing.commands import Refused
from routing.core.scenario.tables import ScenarioError
from routing.costs.document import UTC_ZONE, Read, read_table
from routing.costs.models import PriceTable
from routing.models import Fleet

KIND: Final = versioned.Kind(PriceTable, "price table", ("document",), attrgetter("pk"))


def of(fleet: str) -> tuple[PriceTable | None, Read | None]:
    """The fleet's table, and how it reads; no table, or one of another release: no prices."""
    row = PriceTable.objects.filter(pk=fleet).first()
    if row is None:
        return None, None
    try:
        return row, read_table(row.document)
    except ScenarioError:
        return row, None


def zone_of(read: Read | None) -> zoneinfo.ZoneInfo:
    """The zone whose months are reported: UTC where nothing says otherwise."""
    return UTC_ZONE if read is None else read.zone


def checked(document: Any) -> Read:
    """A table that may be kept. Raises Refused."""
    try:
        return read_table(document)
    except ScenarioError as exc:
        raise Refused(exc.field, exc.value, exc.message) from None


def put(
    *,
    fleet: str,
    document: Any,
    if_version: int | None,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> PriceTable:
    """Make or change a fleet's table. Raises Refused, Stale."""
    checked(document)
    if not Fleet.objects.filter(pk=fleet).exists():
        raise Refused("fleet", fleet, "is no fleet of this console")
    row, _ = versioned.put(
        KIND,
        fleet,
        {"document": document},
        if_version=if_version,
        actor=actor,
        via=via,
        reason=reason,
        now=now,
    )
    return row


def delete(*, fleet: str, if_version: int | None, actor: str, via: str, reason: str) -> None:
    """Forget a table: reports show quantities only. Raises Stale, PriceTable.DoesNotExist."""
    versioned.delete(KIND, fleet, if_version=if_version, actor=actor, via=via, reason=reason)
