"""Freezes and change windows as people keep them, and who may override them: one audit row a
change. The one writer of Window and Override."""

from __future__ import annotations

import datetime
from operator import attrgetter
from typing import Any, Final

from django.db import transaction

from routing import audit, versioned
from routing.commands import Refused, text
from routing.core.scenario.tables import ScenarioError
from routing.models import Fleet
from routing.windows import in_force
from routing.windows.document import WindowDocument, read_window
from routing.windows.models import Override, Window
from routing.windows.spans import ends_at

KIND: Final = versioned.Kind(Window, "window", ("document", "enabled"), attrgetter("fleet"))
LONGEST_OVERRIDE: Final = datetime.timedelta(hours=1)


def parsed(document: Any) -> WindowDocument:
    """A window that may be kept. Raises Refused, which names field and value."""
    try:
        window = read_window(document)
    except ScenarioError as exc:
        raise Refused(exc.field, exc.value, exc.message) from None
    if window.fleet and not Fleet.objects.filter(pk=window.fleet).exists():
        raise Refused("fleet", window.fleet, "is no fleet of this console; empty is every fleet")
    return window


def put(
    *,
    document: Any,
    enabled: bool = True,
    if_version: int | None,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> Window:
    """Make or change a window. Raises Refused, Stale."""
    window = parsed(document)
    row, _ = versioned.put(
        KIND,
        window.name,
        {"document": document, "enabled": enabled},
        also={"fleet": window.fleet, "ends_at": ends_at(window.when)},
        if_version=if_version,
        actor=actor,
        via=via,
        reason=reason,
        now=now,
    )
    return row


def delete(*, name: str, if_version: int | None, actor: str, via: str, reason: str) -> None:
    """Forget a window: it forbids nothing any more. Raises Stale, Window.DoesNotExist."""
    versioned.delete(KIND, name, if_version=if_version, actor=actor, via=via, reason=reason)


def override(
    *, fleet: str, for_s: float, actor: str, via: str, reason: str, now: datetime.datetime
) -> Override:
    """Let the actor change what is frozen in the fleet, for a while. Raises Refused."""
    text("reason", reason, 500)
    span = datetime.timedelta(seconds=for_s)
    if not datetime.timedelta() < span <= LONGEST_OVERRIDE:
        raise Refused("for_s", for_s, "must be above 0, and an hour at most")
    if not Fleet.objects.filter(pk=fleet).exists():
        raise Refused("fleet", fleet, "no such fleet")
    found = in_force.everything(fleet, now)
    if not found:
        raise Refused("fleet", fleet, "nothing is frozen: there is nothing to override")
    with transaction.atomic():
        row = Override.objects.create(
            fleet=fleet, actor=actor, reason=reason, created_at=now, ends_at=now + span
        )
        audit.record(
            actor=actor,
            via=via,
            verb="freeze.override",
            fleet=fleet,
            target=", ".join(sorted({each.name for each in found.values()}))[:300],
            after={"override": row.pk, "ends_at": row.ends_at.isoformat()},
            reason=reason,
        )
    return row
