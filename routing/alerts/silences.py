"""Silences: of what nobody is told for a while, by whom and why. Their one writer."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from fnmatch import fnmatchcase

from django.db import transaction

from routing import audit
from routing.alerts.models import Incident, Silence
from routing.commands import Refused
from routing.core.alerts.rule import SEVERITIES

LONGEST = datetime.timedelta(days=30)
_PATTERN, _REASON = 200, 500


def begin(
    *,
    fleet: str,
    rule: str,
    cluster: str,
    severity: str,
    reason: str,
    ends_at: datetime.datetime,
    actor: str,
    via: str,
    now: datetime.datetime,
    source: str = "*",
) -> Silence:
    """Be silent of what all patterns match, from now on. Raises Refused."""
    for field, text, most in (
        *(("fleet", fleet, 100), ("rule", rule, _PATTERN), ("cluster", cluster, _PATTERN)),
        ("source", source, _PATTERN),
        ("reason", reason, _REASON),
    ):
        if not text.isprintable() or len(text) > most:
            raise Refused(field, text, f"must be a line of at most {most} characters")
    if not reason.strip():
        raise Refused("reason", reason, "must say why")
    if severity not in ("*", *SEVERITIES):
        raise Refused("severity", severity, f"must be * or {' or '.join(SEVERITIES)}")
    if not now < ends_at <= now + LONGEST:
        raise Refused("ends_at", ends_at.isoformat(), "must lie ahead, at most 30 days")
    with transaction.atomic():
        row = Silence.objects.create(
            fleet=fleet,
            rule=rule or "*",
            cluster=cluster or "*",
            source=source or "*",
            severity=severity,
            reason=reason,
            created_by=actor,
            created_at=now,
            ends_at=ends_at,
        )
        _record(row, "silence.begin", actor, via, reason)
    return row


def end(*, silence_id: int, actor: str, via: str, reason: str, now: datetime.datetime) -> Silence:
    """End it now. Raises Refused if it has ended, Silence.DoesNotExist."""
    with transaction.atomic():
        row = Silence.objects.select_for_update().get(pk=silence_id)
        if row.ends_at <= now:
            raise Refused("silence", silence_id, "has ended")
        row.ends_at, row.ended_by = now, actor
        row.save(update_fields=["ends_at", "ended_by"])
        _record(row, "silence.end", actor, via, reason)
    return row


def in_force(now: datetime.datetime) -> list[Silence]:
    """Those of now, the one that ends last first."""
    return list(Silence.objects.filter(ends_at__gt=now).order_by("-ends_at", "pk"))


def silenced(row: Incident, by: Iterable[Silence]) -> Silence | None:
    """What keeps an incident from being told."""
    for silence in by:
        if (
            silence.fleet in ("", row.fleet)
            and fnmatchcase(row.rule, silence.rule)
            and fnmatchcase(row.cluster, silence.cluster)
            and _all_match(row, silence.source)
            and silence.severity in ("*", row.severity)
        ):
            return silence
    return None


def _all_match(row: Incident, pattern: str) -> bool:
    """Whether every source of the incident is meant; of those beyond the told ones nobody knows."""
    names = [member["source"] for member in row.members]
    return pattern == "*" or (
        row.n <= len(names) and all(fnmatchcase(name, pattern) for name in names)
    )


def _record(row: Silence, verb: str, actor: str, via: str, reason: str) -> None:
    audit.record(
        actor=actor,
        via=via,
        verb=verb,
        fleet=row.fleet,
        target=f"silence {row.pk}",
        after={
            "rule": row.rule,
            "cluster": row.cluster,
            "source": row.source,
            "severity": row.severity,
            "ends_at": row.ends_at.isoformat(),
        },
        reason=reason,
    )
