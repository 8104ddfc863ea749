"""Who has to be told of what, and how far that got. The one writer of Notification.

What is told is queued in the transaction of what happened, and sent afterwards: a message is a row
until it was taken. It is tried again with growing pauses, then given up and shown as that.
"""

from __future__ import annotations

import datetime
import logging
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from django.conf import settings
from django.db import transaction
from django.db.models import Max

from routing.alerts import sending, silences
from routing.alerts.messages import KEPT, Told
from routing.alerts.models import Incident, Notification, Receiver
from routing.core.alerts.rule import Rule

FIRST_PAUSE_S: Final = 10.0
LONGEST_PAUSE_S: Final = 600.0
MOST_ATTEMPTS: Final = 10
_LEASE: Final = datetime.timedelta(seconds=4 * sending.TIMEOUT_S)
"""A worker that died while it sent leaves the message to another one after this."""

log = logging.getLogger(__name__)


def queue(
    opened: Iterable[Incident],
    closed: Iterable[Incident],
    rules: Iterable[Rule],
    *,
    now: datetime.datetime,
) -> None:
    """Tell of these. Of what was silent when it began, its end is not told either."""
    by_name = {rule.name: rule for rule in rules}
    silent = silences.in_force(now)
    rows = [
        _row(incident, receiver, "firing", now)
        for incident in opened
        if incident.rule in by_name and silences.silenced(incident, silent) is None
        for receiver in by_name[incident.rule].receivers
    ]
    rows += _ends(closed, "resolved", now)
    Notification.objects.bulk_create(rows)


def queue_repeats(rules: Iterable[Rule], *, now: datetime.datetime) -> None:
    """Tell again of what nobody acknowledged, and keep Alertmanagers from forgetting the rest."""
    by_name = {rule.name: rule for rule in rules if rule.receivers}
    kinds = dict(Receiver.objects.values_list("name", "kind"))
    silent = silences.in_force(now)
    still_open = list(Incident.objects.filter(resolved_at=None, rule__in=by_name))
    told = Notification.objects.filter(incident__in=still_open).values_list("incident", "receiver")
    last = {(pk, receiver): at for pk, receiver, at in told.annotate(Max("created_at"))}
    rows = []
    for incident in still_open:
        rule = by_name[incident.rule]
        if silences.silenced(incident, silent) is not None:
            continue
        for receiver in rule.receivers:
            every = _repeated(rule, incident, kinds.get(receiver))
            before = last.get((incident.pk, receiver))
            if before is None:  # it was silent until now
                rows.append(_row(incident, receiver, "firing", now))
            elif every is not None and now - before >= every:
                rows.append(_row(incident, receiver, "repeat", now))
    Notification.objects.bulk_create(rows)


def queue_acknowledged(incident: Incident, *, now: datetime.datetime) -> None:
    """Tell who was told that somebody is at it."""
    Notification.objects.bulk_create(_ends([incident], "acknowledged", now))


def deliver(clock: Callable[[], datetime.datetime], rng: random.Random, *, most: int = 50) -> int:
    """Send what is due, one after the other; how many were tried. A receiver that did not take a
    message is left alone until the next pass: it would have the others wait."""
    failed: set[str] = set()
    for n in range(most):
        row = _claimed(clock(), failed)
        if row is None:
            return n
        if not _tried(row, clock, rng):
            failed.add(row.receiver)
    return most


def _claimed(now: datetime.datetime, without: Collection[str]) -> Notification | None:
    with transaction.atomic():
        due = Notification.objects.select_for_update(skip_locked=True, of=("self",))
        row = (
            due.filter(state="waiting", due_at__lte=now)
            .exclude(receiver__in=without)
            .select_related("incident")
            .order_by("due_at", "pk")
            .first()
        )
        if row is not None:
            row.attempts += 1
            row.due_at = now + _LEASE
            row.save(update_fields=["attempts", "due_at"])
    return row  # type: ignore[no-any-return]


def _tried(row: Notification, clock: Callable[[], datetime.datetime], rng: random.Random) -> bool:
    """Whether the receiver took it, or nothing was sent."""
    now = clock()
    receiver = Receiver.objects.filter(pk=row.receiver).first()
    if receiver is None:
        _end(row, "given_up", now, "no receiver of this name")
        return True
    if _is_past(row):
        _end(row, "dropped", now, "it was over before it could be told")
        return True
    try:
        sending.send(receiver, told(row.incident, row.event, at=now))
    except sending.NotSent as exc:
        row.error = str(exc)[:300]
    except Exception as exc:
        log.exception("receiver %s", receiver.pk)
        row.error = type(exc).__name__
    else:
        _end(row, "sent", clock(), "")
        return True
    if row.attempts >= MOST_ATTEMPTS:
        log.error("%s was not told of %s: %s", receiver.pk, row.incident, row.error)
        _end(row, "given_up", clock(), row.error)
        return False
    pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (row.attempts - 1))
    row.due_at = clock() + datetime.timedelta(seconds=pause_s * rng.uniform(0.8, 1.2))
    row.save(update_fields=["error", "due_at"])
    return False


def _is_past(row: Notification) -> bool:
    """Whoever never heard that it fires need not hear of it once it is over, nor how it ended."""
    if row.event in ("firing", "repeat"):
        return row.incident.resolved_at is not None
    heard = Notification.objects.filter(incident=row.incident_id, receiver=row.receiver)
    return not heard.filter(event="firing", state="sent").exists()


def told(incident: Incident, event: str, *, at: datetime.datetime) -> Told:
    """The incident as receivers hear of it."""
    return Told(
        event=event,
        incident=incident.pk,
        rule=incident.rule,
        kind=incident.kind,
        group=incident.group,
        fleet=incident.fleet,
        cluster=incident.cluster,
        severity=incident.severity,
        sentence=incident.sentence,
        summary=incident.summary,
        signal=incident.signal,
        n=incident.n,
        sources=tuple(member["source"] for member in incident.members),
        at=at,
        opened_at=incident.opened_at,
        resolved_at=incident.resolved_at,
        by=incident.acknowledged_by if event == "acknowledged" else "",
        note=incident.note if event == "acknowledged" else "",
        runbook_url=incident.runbook_url,
        url=f"{settings.ENV['CONSOLE_URL'].rstrip('/')}/alerts/{incident.pk}/",
    )


def test_message(*, at: datetime.datetime) -> Told:
    """What a receiver is sent to see whether it hears."""
    return Told(
        event="firing",
        incident=0,
        rule="test",
        kind="figure",
        group="test",
        fleet="",
        cluster="",
        severity="info",
        sentence="this is a test: nothing is wrong",
        summary="Test of this receiver",
        signal="",
        n=0,
        sources=(),
        at=at,
        opened_at=at,
        resolved_at=None,
        by="",
        note="",
        runbook_url="",
        url=settings.ENV["CONSOLE_URL"],
    )


def _repeated(rule: Rule, incident: Incident, kind: str | None) -> datetime.timedelta | None:
    if kind == "alertmanager":
        return KEPT / 2
    if rule.repeat_s is None or incident.acknowledged_at is not None:
        return None
    return datetime.timedelta(seconds=rule.repeat_s)


def _ends(
    incidents: Iterable[Incident], event: str, now: datetime.datetime
) -> Sequence[Notification]:
    """To each receiver that was, or is about to be, told that it fires."""
    rows = {incident.pk: incident for incident in incidents}
    heard = Notification.objects.filter(incident__in=rows, event="firing")
    pairs = heard.exclude(state__in=("given_up", "dropped")).values_list("incident", "receiver")
    return [_row(rows[pk], receiver, event, now) for pk, receiver in sorted(set(pairs))]


def _row(incident: Incident, receiver: str, event: str, now: datetime.datetime) -> Notification:
    return Notification(
        incident=incident, receiver=receiver, event=event, created_at=now, due_at=now
    )


def _end(row: Notification, state: str, now: datetime.datetime, error: str) -> None:
    row.state, row.error, row.ended_at = state, error, now
    row.save(update_fields=["state", "error", "ended_at"])
