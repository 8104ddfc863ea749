"""What is due becomes a row, and each row is done once. The one writer of JobRun. Read first.

A due time is a row, unique by job and moment: two schedulers, a broker that sends a message twice
and a worker that died all meet the same row (S-51). What a job does is written in the transaction
that says so, so it is done or it is not. What is found too late is skipped, and says so (S-53).
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable
from typing import Final

from django.db import IntegrityError, transaction

from routing import audit, rebalance
from routing.approvals import gate, rows
from routing.approvals.models import Proposal
from routing.commands import Refused
from routing.core.scenario.tables import ScenarioError
from routing.jobs import doing
from routing.jobs.document import JobDocument, read_job
from routing.jobs.models import Job, JobRun
from routing.jobs.when import due
from routing.models import Rebalance
from routing.windows.refusing import FrozenNow

OPEN: Final = ("due", "asking", "moving")
ENDED: Final = ("done", "failed", "skipped")
VIA: Final = "job"
_OPENS_WITHIN: Final = datetime.timedelta(minutes=2)
"""For the tick that opens the move of instances after roles were asked for."""

log = logging.getLogger(__name__)


def work(clock: Callable[[], datetime.datetime]) -> int:
    """One pass: rows for what is due, then each in turn; how many were begun or followed."""
    _make_due(clock())
    n = 0
    for pk in (
        JobRun.objects.filter(state__in=OPEN).order_by("due_at", "pk").values_list("pk", flat=True)
    ):
        try:
            n += _turn(pk, clock())
        except Exception:
            log.exception("run %s of a job failed and is tried again", pk)
    return n


def run_now(*, name: str, actor: str, via: str, reason: str, now: datetime.datetime) -> JobRun:
    """Do it now as well. Raises Refused while a run of it is open, Job.DoesNotExist."""
    with transaction.atomic():
        job = Job.objects.select_for_update().get(pk=name)
        open_run = JobRun.objects.filter(job=name, state__in=OPEN).first()
        if open_run is not None:
            raise Refused(
                "job", name, f"a run of it is {open_run.state} since {open_run.due_at:%T}"
            )
        row = JobRun.objects.create(job=name, fleet=job.fleet, due_at=now, asked_by=actor)
        audit.record(
            actor=actor,
            via=via,
            verb="job.run",
            fleet=job.fleet,
            target=name,
            after={"run": row.pk},
            reason=reason,
        )
    return row


def _make_due(now: datetime.datetime) -> None:
    """Of several that are due, the newest is done and the others are skipped."""
    for job in Job.objects.filter(enabled=True).order_by("name"):
        try:
            document = read_job(job.document)
        except ScenarioError:
            log.exception("job %s is not looked at", job.name)
            continue
        newest = JobRun.objects.filter(job=job.name, asked_by="").order_by("-due_at").first()
        since = max(job.since, newest.due_at) if newest else job.since
        moments = due(document.when, since, now)
        for i, moment in enumerate(moments):
            late_s = (now - moment).total_seconds()
            if i < len(moments) - 1:
                _add(job, moment, now, "skipped", "a later one was due by then")
            elif late_s > document.grace_s:
                _add(job, moment, now, "skipped", f"found {late_s:.0f} s late, over its grace")
            elif 0.0 < document.do.for_s <= late_s:
                text = f"found {late_s:.0f} s late, when it would be over"
                _add(job, moment, now, "skipped", text)
            else:
                _add(job, moment, now, "due", "")


def _add(
    job: Job, due_at: datetime.datetime, now: datetime.datetime, state: str, text: str
) -> None:
    try:
        with transaction.atomic():
            JobRun.objects.create(
                job=job.name,
                fleet=job.fleet,
                due_at=due_at,
                state=state,
                text=text,
                ended_at=now if state in ENDED else None,
            )
            if state == "skipped":
                _record(job.fleet, job.name, "job.skip", due_at, text)
    except IntegrityError:
        pass  # another process has made it


def _turn(pk: int, now: datetime.datetime) -> int:
    with transaction.atomic():
        row = (
            JobRun.objects.select_for_update(skip_locked=True).filter(pk=pk, state__in=OPEN).first()
        )
        if row is None:
            return 0
        if row.state == "moving":
            _follow(row, now)
        elif row.state == "asking":
            _decided(row, now)
        else:
            _begin(row, now)
    return 1


def _begin(row: JobRun, now: datetime.datetime) -> None:
    job = Job.objects.filter(pk=row.job).first()
    if job is None or (not job.enabled and not row.asked_by):
        _end(row, "skipped", "the job was deleted or switched off", now)
        return
    if JobRun.objects.filter(job=row.job, state="moving").exists():
        _end(row, "skipped", "the run before it still moves instances", now)
        return
    if JobRun.objects.filter(job=row.job, state="asking").exists():
        _end(row, "skipped", "the run before it still waits for a second person", now)
        return
    row.began_at = now
    try:
        document = read_job(job.document)
        with transaction.atomic():
            done = _done(document, job.version, row, now)
    except FrozenNow as exc:
        _end(row, "skipped", exc.message, now)
        return
    except (Refused, ScenarioError) as exc:
        _end(row, "failed", str(exc), now)
        return
    row.hold, row.proposal = done.hold, done.proposal
    if done.proposal is not None:
        row.state, row.text = "asking", done.text
        row.save()
        return
    if done.moves:
        row.state, row.text = "moving", done.text
        row.save()
        return
    _end(row, "done", done.text, now)


def _done(document: JobDocument, version: int, row: JobRun, now: datetime.datetime) -> doing.Done:
    actor = row.asked_by or doing.actor_of(document)
    if document.dry_run:
        return doing.preview(document, now=now)
    approval = None if row.asked_by else rows.of_job(document.name, version)
    with gate.approved(approval):
        return doing.act(
            document, actor=actor, via=VIA, key=f"job-run-{row.pk}", due_at=row.due_at, now=now
        )


def _decided(row: JobRun, now: datetime.datetime) -> None:
    """What became of the proposal is what becomes of the run."""
    asked = Proposal.objects.filter(pk=row.proposal).first()
    if asked is not None and asked.state == "open":
        return
    if asked is None or asked.state != "done":
        why = "is gone" if asked is None else f"is {asked.state}"
        said = "" if asked is None else asked.text or asked.ended_reason
        _end(row, "failed", f"proposal {row.proposal} {why}{said and f': {said}'}", now)
        return
    row.hold = asked.result.get("hold")
    row.text = f"approved by {asked.ended_by}: proposal {asked.pk}"
    if asked.command == "role_commands.move_roles":
        row.state, row.began_at = "moving", asked.ended_at
        row.save()
        return
    _end(row, "done", row.text, now)


def _follow(row: JobRun, now: datetime.datetime) -> None:
    """A move of instances is over when its rebalance is."""
    moved = Rebalance.objects.filter(hold=row.hold).order_by("-pk").first()
    if moved is None:
        if row.began_at is not None and now - row.began_at > _OPENS_WITHIN:
            _end(row, "failed", "no tick took up the roles that were asked for", now)
        return
    if moved.state in rebalance.ACTIVE:
        return
    state = "done" if moved.state == "done" else "failed"
    why = f": {moved.reason}" if state == "failed" and moved.reason else ""
    _end(row, state, f"{row.text}: rebalance {moved.pk} is {moved.state}{why}", now)


def _end(row: JobRun, state: str, text: str, now: datetime.datetime) -> None:
    row.state, row.text, row.ended_at = state, text[:500], now
    row.save()
    verb = "job.skip" if state == "skipped" else f"job.{state}"
    _record(row.fleet, row.job, verb, row.due_at, row.text)


def _record(fleet: str, job: str, verb: str, due_at: datetime.datetime, text: str) -> None:
    audit.record(
        actor=f"job {job}",
        via=VIA,
        verb=verb,
        fleet=fleet,
        target=job,
        after={"due_at": due_at.isoformat()},
        reason=text,
    )
