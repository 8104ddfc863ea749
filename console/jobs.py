"""Pages of jobs: what is due when, in its zone and in UTC; what became of what was due."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from console import approval_words, documents, figures
from console.changes import VIA
from console.context import BAD, GOOD, OFF, WARN, Mark
from console.roles import operators_only, readable
from routing.approvals import gate
from routing.commands import Refused
from routing.core.scenario.tables import ScenarioError
from routing.jobs import doing, jobs, runs
from routing.jobs.document import Do, JobDocument, read_job
from routing.jobs.models import Job, JobRun
from routing.jobs.when import DAYS, due, upcoming
from routing.models import Fleet

PER_PAGE = 50
BEHIND, AHEAD = timedelta(days=1), timedelta(days=7)
"""What the calendar shows."""
MOST_BEHIND = 30
_MARKS = {
    "due": ("info", "wait"),
    "asking": WARN,
    "moving": ("info", "wait"),
    "done": GOOD,
    "failed": BAD,
    "skipped": WARN,
}


@readable
def page(request: HttpRequest, fleet: str) -> HttpResponse:
    """Jobs of a fleet, what was due since yesterday and is in the next week, and all runs."""
    found = get_object_or_404(Fleet, pk=fleet)
    now = timezone.now()
    rows = [(row, _parsed(row)) for row in Job.objects.filter(fleet=fleet).order_by("name")]
    known = JobRun.objects.filter(fleet=fleet).order_by("-due_at", "-pk")
    history = Paginator(known, PER_PAGE)
    ran = known.filter(due_at__gt=now - BEHIND)[:MOST_BEHIND]
    context = {
        "fleet": found,
        "jobs": [_row(row, document, now) for row, document in rows],
        "days": calendar(rows, list(ran), now),
        "page": (shown := history.get_page(request.GET.get("page"))),
        "runs": [{"run": run, "mark": run_mark(run)} for run in shown],
    }
    return render(request, "jobs.html", context)


@operators_only
@never_cache
def job(request: HttpRequest, fleet: str, name: str = "") -> HttpResponse:
    """A job to read, change and try: what it would do now, before it is kept."""
    found = get_object_or_404(Fleet, pk=fleet)
    row = get_object_or_404(Job, pk=name, fleet=fleet) if name else None
    form = documents.form_of(request, row, _starting_point(fleet))
    would, status = documents.answer(
        request,
        form,
        keep=lambda asked: _kept(request, asked, row, fleet),
        trial=lambda document: _trial(_asked(document, row, fleet), document),
    )
    if isinstance(would, HttpResponse):
        return would
    context = {"fleet": found, "job": row, "form": form, "would": would or ""}
    return render(request, "job.html", context, status=status)


@operators_only
@never_cache
def run(request: HttpRequest, fleet: str, name: str) -> HttpResponse:
    """Do it now as well."""
    get_object_or_404(Job, pk=name, fleet=fleet)
    if request.method == "POST":
        try:
            runs.run_now(
                name=name,
                actor=request.user.get_username(),
                via=VIA,
                reason=request.POST.get("reason", ""),
                now=timezone.now(),
            )
        except Refused as refused:
            messages.warning(request, refused.message)
        else:
            messages.success(request, _("%(name)s is due now: see its run below.") % {"name": name})
    return redirect("jobs", fleet)


def calendar(
    rows: list[tuple[Job, JobDocument | None]], ran: list[JobRun], now: datetime
) -> list[tuple[Any, list[dict[str, Any]]]]:
    """By UTC day, ascending: what ran, with what became of it, and what is due in the next week."""
    documents_of = {row.pk: document for row, document in rows}
    moments: list[tuple[datetime, str, JobDocument | None, JobRun | None]] = [
        *((run.due_at, run.job, documents_of.get(run.job), run) for run in ran),
        *(
            (moment, row.pk, document, None)
            for row, document in rows
            if row.enabled and document is not None
            for moment in due(document.when, now, now + AHEAD)
        ),
    ]
    days: dict[Any, list[dict[str, Any]]] = {}
    for moment, name, document, run in sorted(moments, key=lambda each: each[:2]):
        shown: dict[str, Any] = {"at": moment, "job": name}
        if document is not None:
            shown |= {"says": words(document.do), **_both(moment, document)}
        if run is not None:
            shown |= {"mark": run_mark(run), "says": run.text}
        days.setdefault(moment.date(), []).append(shown)
    return list(days.items())


def words(do: Do) -> str:
    """What a job does, in a line."""
    values = {
        "cluster": do.cluster or _("every PD cluster"),
        "n_prefill": do.n_prefill,
        "n_decode": do.n_decode,
        "span": figures.duration(do.for_s),
        "mode": do.mode,
        "t": do.threshold_tokens,
    }
    if do.kind == "mode":
        return _("set the fleet %(mode)s") % values
    if do.kind == "refit_profiles":
        values["span"] = figures.duration(do.span_s)
        return _("fit profiles to the last %(span)s, as a proposal") % values
    if do.kind == "roles":
        said = _("move %(cluster)s to %(n_prefill)s prefill and %(n_decode)s decode for %(span)s")
    elif do.kind == "forecast":
        said = _("move %(cluster)s to what the forecast advises for %(span)s")
    elif do.kind == "at_least_prefill":
        said = _("at least %(n_prefill)s prefill in %(cluster)s for %(span)s")
    elif do.mode == "threshold":
        said = _("hold t = %(t)s tok in %(cluster)s for %(span)s")
    else:
        said = _("hold %(mode)s in %(cluster)s for %(span)s")
    return said % values


def run_mark(row: JobRun) -> Mark:
    """The state of a run, in words."""
    states = {
        "due": _("due"),
        "asking": _("waits for approval"),
        "moving": _("moving"),
        "done": _("done"),
        "failed": _("failed"),
        "skipped": _("skipped"),
    }
    return Mark(*_MARKS[row.state], states[row.state])


def _row(row: Job, document: JobDocument | None, now: datetime) -> dict[str, Any]:
    shown: dict[str, Any] = {"job": row, "says": "", "when": "", "next": None}
    shown["mark"] = Mark(*GOOD, _("on")) if row.enabled else Mark(*OFF, _("switched off"))
    if document is None:
        return shown | {"mark": Mark(*BAD, _("cannot be read"))}
    following = upcoming(document.when, now, 1) if row.enabled else []
    return shown | {
        "says": words(document.do),
        "when": _when_words(document),
        "next": _both(following[0], document) if following else None,
        "dry_run": document.dry_run,
    }


def _both(moment: datetime, document: JobDocument) -> dict[str, Any]:
    """A moment by the job's own clock, and as itself."""
    zone = document.when.zone
    return {"at": moment, "local": f"{moment.astimezone(zone):%a %F %H:%M}", "zone": zone.key}


def _when_words(document: JobDocument) -> str:
    when = document.when
    days = ", ".join(DAYS[day] for day in sorted(when.days)) if when.on is None else f"{when.on:%F}"
    return f"{when.at:%H:%M} {when.zone.key}, {days}"


def _parsed(row: Job) -> JobDocument | None:
    try:
        return read_job(row.document)
    except ScenarioError:
        return None


def _asked(document: Any, row: Job | None, fleet: str) -> JobDocument:
    parsed = jobs.parsed(document)
    if parsed.fleet != fleet:
        raise Refused("fleet", parsed.fleet, f"this page is of {fleet}")
    if row is not None and parsed.name != row.pk:
        raise Refused("name", parsed.name, f"stays {row.pk}")
    return parsed


def _trial(document: JobDocument, asked: Any) -> str:
    """What it would do now, and what keeping it needs."""
    try:
        would = doing.preview(document, now=timezone.now()).text
    except Refused as refused:
        would = _("now it could not: %(why)s") % {"why": refused}
    kept = gate.Would("job.create", None, {"enabled": True, "document": asked})
    why = approval_words.why(gate.needed(document.fleet, kept))
    if not why:
        return would
    needs = _("Keeping it needs approval: %(why)s.") % {"why": "; ".join(why)}
    return f"{would}. {needs}"


def _kept(request: HttpRequest, asked: dict[str, Any], row: Job | None, fleet: str) -> HttpResponse:
    _asked(asked["document"], row, fleet)
    kept = jobs.put(
        document=asked["document"],
        enabled=asked["enabled"],
        if_version=asked["version"],
        actor=request.user.get_username(),
        via=VIA,
        reason=asked["reason"],
        now=timezone.now(),
    )
    said = _("Job %(name)s is kept, version %(version)s.")
    messages.success(request, said % {"name": kept.pk, "version": kept.version})
    return redirect("jobs", fleet)


def _starting_point(fleet: str) -> dict[str, Any]:
    return {
        "name": "big-morning",
        "fleet": fleet,
        "do": {"kind": "at_least_prefill", "cluster": "pd", "n_prefill": 5, "for_s": 36_000},
        "when": {"zone": "Europe/Paris", "at": "08:00", "days": list(DAYS[:5])},
        "grace_s": 600,
        "dry_run": True,
        "reason": "long prompts of the morning",
    }
