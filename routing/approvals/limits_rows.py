"""Limits of approvals as people change them, one audit row a change. The one writer of
ApprovalLimits."""

from __future__ import annotations

import datetime
from operator import attrgetter
from typing import Any, Final

from routing import versioned
from routing.approvals import asking
from routing.approvals.limits import read_limits
from routing.approvals.models import ApprovalLimits
from routing.core.scenario.tables import ScenarioError
from routing.models import Fleet
from routing.refusals import Refused

KIND: Final = versioned.Kind(ApprovalLimits, "approval limits", ("limits",), attrgetter("pk"))


@asking.proposable
def put(
    *,
    fleet: str,
    limits: Any,
    if_version: int | None,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> ApprovalLimits:
    """Set from which reach on a change of the fleet needs a second person. To loosen limits that
    stand needs one as well. Raises Refused, Stale."""
    try:
        read_limits(limits)
    except ScenarioError as exc:
        raise Refused(exc.field, exc.value, exc.message) from None
    if not Fleet.objects.filter(pk=fleet).exists():
        raise Refused("fleet", fleet, "no such fleet")
    row, _ = versioned.put(
        KIND,
        fleet,
        {"limits": limits},
        if_version=if_version,
        actor=actor,
        via=via,
        reason=reason,
        now=now,
    )
    return row


def delete(*, fleet: str, if_version: int | None, actor: str, via: str, reason: str) -> None:
    """Forget a fleet's limits, which loosens those that stand: a part of a command that may be
    proposed. Raises Stale, ApprovalLimits.DoesNotExist."""
    versioned.delete(KIND, fleet, if_version=if_version, actor=actor, via=via, reason=reason)


def of(fleet: str) -> ApprovalLimits:
    """The fleet's limits; where none were ever set, empty ones of version 0 that are not stored."""
    row = ApprovalLimits.objects.filter(pk=fleet).first()
    return row or ApprovalLimits(name=fleet, limits={}, version=0)
