"""Maintenance of a cluster or a link: planned, extended, ended, and what has to stand for it.

That traffic stays away is no effect to be set: each tick reads the rows (`in_force`). Silences are
rows of another room, so a pass makes them fit (`reconcile`): each in one transaction with the row
that says so. Whoever dies in between leaves what the next pass mends. The one writer of
Maintenance.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable
from typing import Any, Final

from django.db import transaction

from routing import audit, fleets
from routing.alerts import silences
from routing.alerts.models import Silence
from routing.approvals.asking import proposable
from routing.commands import Refused, Stale, text
from routing.models import Fleet
from routing.windows.models import Maintenance

LONGEST: Final = silences.LONGEST
AHEAD: Final = datetime.timedelta(days=366)
STATES: Final = ("planned", "now", "over")
_VIA: Final = "scheduler"

log = logging.getLogger(__name__)


@proposable
def plan(
    *,
    fleet: str,
    cluster: str = "",
    link: str = "",
    starts_at: datetime.datetime | None = None,
    ends_at: datetime.datetime,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> Maintenance:
    """Work on a cluster or a link from `starts_at`, or now, until `ends_at`. Raises Refused.

    It takes traffic away and moves nothing else, so no freeze forbids it.
    """
    text("reason", reason, 500)
    begins = now if starts_at is None else max(starts_at, now)
    with transaction.atomic():
        row = Fleet.objects.select_for_update(no_key=True).filter(pk=fleet).first()
        if row is None:
            raise Refused("fleet", fleet, "no such fleet")
        _known(row, cluster, link)
        _span(begins, ends_at, now)
        other = Maintenance.objects.filter(
            fleet=fleet, cluster=cluster, link=link, ends_at__gt=begins, starts_at__lt=ends_at
        ).first()
        if other is not None:
            raise Refused(
                "link" if link else "cluster",
                link or cluster,
                f"{other.owner} works on it until {other.ends_at:%F %H:%M} UTC; extend that",
            )
        made = Maintenance.objects.create(
            fleet=fleet,
            cluster=cluster,
            link=link,
            reason=reason,
            owner=actor,
            created_at=now,
            starts_at=begins,
            ends_at=ends_at,
        )
        _record(made, "maintenance.plan", actor, via, reason)
    return made


@proposable
def extend(
    *,
    maintenance_id: int,
    ends_at: datetime.datetime,
    if_version: int | None,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> Maintenance:
    """Let it end at another moment. Raises Refused, Stale, Maintenance.DoesNotExist."""
    text("reason", reason, 500)
    with transaction.atomic():
        row = _open(maintenance_id, if_version, now)
        _span(row.starts_at, ends_at, now)
        before = _values(row)
        row.ends_at = ends_at
        _save(row, "maintenance.extend", actor, via, reason, before=before)
    return row


def end(
    *,
    maintenance_id: int,
    if_version: int | None,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> Maintenance:
    """End it now, or call it off. Raises Refused, Stale, Maintenance.DoesNotExist."""
    with transaction.atomic():
        row = _open(maintenance_id, if_version, now)
        before = _values(row)
        row.starts_at, row.ends_at, row.ended_by = min(row.starts_at, now), now, actor
        _save(row, "maintenance.end", actor, via, reason, before=before)
    return row


def state_of(row: Maintenance, now: datetime.datetime) -> str:
    """One of `STATES`."""
    if row.ends_at <= now:
        return "over"
    return "now" if row.starts_at <= now else "planned"


def reconcile(clock: Callable[[], datetime.datetime]) -> int:
    """One pass: what is not over has the silences it should have. How many rows were changed."""
    n = 0
    due = Maintenance.objects.filter(over_at=None, starts_at__lte=clock()).order_by("pk")
    for pk in list(due.values_list("pk", flat=True)):
        try:
            n += _reconciled(pk, clock())
        except Exception:
            log.exception("maintenance %s failed in this pass and is tried again", pk)
    return n


def _reconciled(pk: int, now: datetime.datetime) -> int:
    with transaction.atomic():
        rows = Maintenance.objects.select_for_update(skip_locked=True)
        row = rows.filter(pk=pk, over_at=None, starts_at__lte=now).first()
        if row is None:
            return 0
        made = list(Silence.objects.filter(pk__in=row.silences))
        standing = [silence for silence in made if silence.ends_at > now]
        is_over = row.ends_at <= now
        fits = bool(standing) and all(silence.ends_at == row.ends_at for silence in standing)
        by_hand = any(silence.ended_by not in ("", str(row)) for silence in made)
        if not is_over and (fits or by_hand):
            return 0  # what a person ended stays ended
        for silence in standing:
            silences.end(
                silence_id=silence.pk,
                actor=str(row),
                via=_VIA,
                reason="it is over" if is_over else "it ends at another moment",
                now=now,
            )
        if is_over:
            row.over_at = now
            _record(row, "maintenance.over", audit.SYSTEM, _VIA, "")
        else:
            row.silences = [*row.silences, *_silences(row, now)]
            if row.began_at is None:
                row.began_at = now
                _record(row, "maintenance.begin", audit.SYSTEM, _VIA, row.reason)
        row.save(update_fields=["silences", "began_at", "over_at"])
    return 1


def _silences(row: Maintenance, now: datetime.datetime) -> list[int]:
    """What is told of the cluster, and of each link to or from it, or of the link alone."""
    patterns = [("*", row.link)] if row.link else [(row.cluster, "*"), ("*", f"*->{row.cluster}")]
    return [
        silences.begin(
            fleet=row.fleet,
            rule="*",
            cluster=cluster,
            source=source,
            severity="*",
            reason=f"{row}: {row.reason}"[:500],
            ends_at=row.ends_at,
            actor=str(row),
            via=_VIA,
            now=now,
        ).pk
        for cluster, source in patterns
    ]


def _open(maintenance_id: int, if_version: int | None, now: datetime.datetime) -> Maintenance:
    row = Maintenance.objects.select_for_update().get(pk=maintenance_id)
    if if_version is not None and if_version != row.version:
        raise Stale(if_version, row.version, of="maintenance")
    if row.ends_at <= now:
        raise Refused("maintenance", maintenance_id, "has ended")
    return row  # type: ignore[no-any-return]


def _known(fleet: Fleet, cluster: str, link: str) -> None:
    if bool(cluster) == bool(link):
        raise Refused("cluster", cluster, "give a cluster or a link, not both")
    scenario = fleets.scenario_of(fleet)
    if cluster and scenario.cluster(cluster) is None:
        raise Refused("cluster", cluster, "is no cluster of the fleet")
    if link and link not in [known.id for known in scenario.links]:
        raise Refused("link", link, "is no link of the fleet")


def _span(starts_at: datetime.datetime, ends_at: datetime.datetime, now: datetime.datetime) -> None:
    if starts_at > now + AHEAD:
        raise Refused("starts_at", starts_at.isoformat(), "must be in the next year")
    if not max(starts_at, now) < ends_at <= starts_at + LONGEST:
        message = "must lie ahead and come after the start, 30 days at most"
        raise Refused("ends_at", ends_at.isoformat(), message)


def _target(cluster: str, link: str) -> str:
    return f"link {link}" if link else f"cluster {cluster}"


def _values(row: Maintenance) -> dict[str, Any]:
    return {
        "maintenance": row.pk,
        "starts_at": row.starts_at.isoformat(),
        "ends_at": row.ends_at.isoformat(),
    }


def _save(
    row: Maintenance, verb: str, actor: str, via: str, reason: str, *, before: dict[str, Any]
) -> None:
    row.version += 1
    row.save(update_fields=["starts_at", "ends_at", "ended_by", "version"])
    _record(row, verb, actor, via, reason, before=before)


def _record(
    row: Maintenance,
    verb: str,
    actor: str,
    via: str,
    reason: str,
    *,
    before: dict[str, Any] | None = None,
    **more: Any,
) -> None:
    audit.record(
        actor=actor,
        via=via,
        verb=verb,
        fleet=row.fleet,
        target=_target(row.cluster, row.link)[:300],
        before=before,
        after={**_values(row), **more},
        reason=reason[:500],
    )
