"""Alert rules as people change them, one audit row a change. The one writer of AlertRule."""

from __future__ import annotations

import datetime
from typing import Any, Final

from django.db import transaction
from django.db.models import Q, QuerySet

from routing import versioned
from routing.alerts import incidents
from routing.alerts.models import AlertRule
from routing.alerts.signals import UNITS
from routing.commands import Refused
from routing.core.alerts.rule import Rule, read_rule, written
from routing.core.scenario.tables import ScenarioError
from routing.models import Fleet
from routing.rights import Rights

KIND: Final = versioned.Kind(
    AlertRule, "alert rule", ("document", "enabled"), lambda row: row.document.get("fleet", "")
)


def parsed(document: Any) -> Rule:
    """A rule that may be kept. Raises Refused, which names field and value."""
    try:
        rule = read_rule(document, units=UNITS)
    except ScenarioError as exc:
        raise Refused(exc.field, exc.value, exc.message) from None
    if rule.fleet and not Fleet.objects.filter(pk=rule.fleet).exists():
        raise Refused("fleet", rule.fleet, "is no fleet of this console")
    return rule


def readable(may: Rights) -> QuerySet[AlertRule]:
    """The rules that one may read, by name: those of fleets that one may read, and those of all."""
    rows, names = AlertRule.objects.order_by("name"), may.fleets("read")
    if names is None:
        return rows
    of_all = Q(document__fleet__isnull=True)
    return rows.filter(of_all | Q(document__fleet__in=sorted(names)))


def put(
    *,
    document: Any,
    enabled: bool = True,
    if_version: int | None,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> AlertRule:
    """Make the rule that the document names, or change it: then `if_version` is what was read.

    Nothing new: nothing is written. Raises Refused, Stale.
    """
    rule = parsed(document)
    values = {"document": written(rule), "enabled": enabled}
    with transaction.atomic():
        row, is_new = versioned.put(
            KIND,
            rule.name,
            values,
            if_version=if_version,
            actor=actor,
            via=via,
            reason=reason,
            now=now,
        )
        if is_new and not enabled:
            incidents.close_of(rule.name, now=now, why=f"{actor} switched the rule off")
    return row


def delete(
    *, name: str, if_version: int | None, actor: str, via: str, reason: str, now: datetime.datetime
) -> None:
    """Forget a rule; its incidents stay, closed. Raises Stale, AlertRule.DoesNotExist."""
    with transaction.atomic():
        versioned.delete(KIND, name, if_version=if_version, actor=actor, via=via, reason=reason)
        incidents.close_of(name, now=now, why=f"{actor} deleted the rule")
