"""Jobs as people change them, one audit row a change. The one writer of Job."""

from __future__ import annotations

import datetime
from operator import attrgetter
from typing import Any, Final

from routing import fleets, versioned
from routing.approvals.asking import proposable
from routing.commands import Refused
from routing.core.scenario.tables import ScenarioError
from routing.jobs.document import JobDocument, read_job
from routing.jobs.models import Job
from routing.models import Fleet

KIND: Final = versioned.Kind(Job, "job", ("document", "enabled"), attrgetter("fleet"))


def parsed(document: Any) -> JobDocument:
    """A job that may be kept. Raises Refused, which names field and value."""
    try:
        job = read_job(document)
    except ScenarioError as exc:
        raise Refused(exc.field, exc.value, exc.message) from None
    fleet = Fleet.objects.filter(pk=job.fleet).first()
    if fleet is None:
        raise Refused("fleet", job.fleet, "is no fleet of this console")
    cluster = fleets.scenario_of(fleet).cluster(job.do.cluster) if job.do.cluster else None
    if job.do.cluster and (cluster is None or cluster.kind != "pd"):
        raise Refused("do.cluster", job.do.cluster, "is no PD cluster of the fleet")
    return job


@proposable
def put(
    *,
    document: Any,
    enabled: bool = True,
    if_version: int | None,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> Job:
    """Make or change a job; what was due before is not made up for. Raises Refused, Stale."""
    job = parsed(document)
    row, _ = versioned.put(
        KIND,
        job.name,
        {"document": document, "enabled": enabled},
        also={"fleet": job.fleet, "since": now},
        if_version=if_version,
        actor=actor,
        via=via,
        reason=reason,
        now=now,
    )
    return row


def delete(*, name: str, if_version: int | None, actor: str, via: str, reason: str) -> None:
    """Forget a job; its runs stay. Raises Stale, Job.DoesNotExist."""
    versioned.delete(KIND, name, if_version=if_version, actor=actor, via=via, reason=reason)
