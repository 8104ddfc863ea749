"""Incidents: opened when a rule fires, followed, closed, acknowledged. Their one writer."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable
from dataclasses import asdict

from django.db import transaction
from django.db.models import F

from routing import announce, audit
from routing.alerts import telling
from routing.alerts.models import Incident
from routing.alerts.signals import UNITS
from routing.commands import Refused, Stale
from routing.core.alerts.incident import Group, sentence
from routing.core.alerts.rule import Rule

FOLLOWED = datetime.timedelta(seconds=30)
"""Figures of what goes on firing are written down so often."""
_NOTE = 500


def settle(
    rules: Collection[Rule], firing: Iterable[tuple[Rule, Group]], *, now: datetime.datetime
) -> tuple[list[Incident], list[Incident]]:
    """What was opened and what was closed, once `firing` is all that these rules fire now.

    Call it in the transaction that stores their tracks.
    """
    asked = {rule.name for rule in rules}
    open_now = {
        (row.rule, row.kind, row.group): row
        for row in Incident.objects.select_for_update().filter(resolved_at=None, rule__in=asked)
    }
    opened, followed = [], []
    for rule, group in firing:
        row = open_now.pop((group.rule, group.kind, group.group), None)
        if row is None:
            opened.append(_opened(rule, group, now))
        elif row.n != group.n or now - row.seen_at >= FOLLOWED:
            row.n, row.most = group.n, max(row.most, group.n)
            row.members, row.seen_at = [asdict(member) for member in group.members], now
            row.sentence = sentence(rule, group, UNITS[rule.signal])
            followed.append(row)
    Incident.objects.bulk_create(opened)
    Incident.objects.bulk_update(followed, ["n", "most", "members", "seen_at", "sentence"])
    closed = list(open_now.values())
    _close(closed, now, "")
    _announce([*opened, *closed])
    return opened, closed


def close_of(rule: str, *, now: datetime.datetime, why: str) -> None:
    """Close what is open of a rule that no longer asks."""
    rows = list(Incident.objects.select_for_update().filter(rule=rule, resolved_at=None))
    _close(rows, now, why)
    telling.queue([], rows, [], now=now)
    _announce(rows)


def acknowledge(
    *,
    incident_id: int,
    note: str,
    if_version: int | None,
    actor: str,
    via: str,
    now: datetime.datetime,
) -> Incident:
    """Somebody is at it: nobody is told again. Raises Refused, Stale, Incident.DoesNotExist."""
    if len(note) > _NOTE:
        raise Refused("note", note, f"must have at most {_NOTE} characters")
    with transaction.atomic():
        row = Incident.objects.select_for_update().get(pk=incident_id)
        if if_version is not None and if_version != row.version:
            raise Stale(if_version, row.version, of="incident")
        if row.resolved_at is not None:
            raise Refused("incident", incident_id, "is over: there is nothing to acknowledge")
        if row.acknowledged_at is not None:
            raise Refused("incident", incident_id, f"{row.acknowledged_by} has acknowledged it")
        row.acknowledged_at, row.acknowledged_by, row.note = now, actor, note
        row.version += 1
        row.save(update_fields=["acknowledged_at", "acknowledged_by", "note", "version"])
        audit.record(
            actor=actor,
            via=via,
            verb="incident.acknowledge",
            fleet=row.fleet,
            target=str(row),
            after={"incident": row.pk, "sentence": row.sentence},
            reason=note,
        )
        telling.queue_acknowledged(row, now=now)
        _announce([row])
    return row


def _opened(rule: Rule, group: Group, now: datetime.datetime) -> Incident:
    return Incident(
        rule=rule.name,
        kind=group.kind,
        group=group.group,
        fleet=group.fleet,
        cluster=group.cluster,
        severity=rule.severity,
        sentence=sentence(rule, group, UNITS[rule.signal]),
        summary=rule.summary,
        runbook_url=rule.runbook_url,
        signal=rule.signal,
        n=group.n,
        most=group.n,
        members=[asdict(member) for member in group.members],
        opened_at=now,
        seen_at=now,
    )


def _close(rows: list[Incident], now: datetime.datetime, why: str) -> None:
    Incident.objects.filter(pk__in=[row.pk for row in rows]).update(
        resolved_at=now, ended_by=why, version=F("version") + 1
    )
    for row in rows:
        row.resolved_at, row.ended_by = now, why


def _announce(rows: list[Incident]) -> None:
    messages = [{"type": "alert", "fleet": fleet} for fleet in sorted({row.fleet for row in rows})]
    if messages:
        transaction.on_commit(lambda: announce.publish_all(messages))
