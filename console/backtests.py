"""Backtests: start one, see how far it is, read what came of it, share it, take it away."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from console import backtest_words as words
from console import figures
from console.backtest_form import NUMBER, BacktestForm, again
from console.roles import operators_only, readable, role_of
from routing import backtest_asked as asking
from routing import backtest_recordings, backtest_results, backtests, fleets, planning
from routing.backtest_asked import Asked
from routing.commands import Refused
from routing.core.scenario.document import Scenario
from routing.models import Backtest, Fleet, TraceFile
from routing.tasks import TWIN_PROCESSES, wake_twin

VIA = "ui"
PER_PAGE = 25
UNPROCESSABLE = 422
_TRACES = 20
_UNTAKEN_S = 15.0
"""Queued for longer with nothing running: no worker of the twin seems to be there."""


@readable
@never_cache
def page(request: HttpRequest, fleet: str) -> HttpResponse:
    """What was asked before, newest first, and the form for the next one."""
    found, scenario = _fleet(request, fleet)
    span = backtest_recordings.span_of(found)
    form = _form(found, scenario, span is not None, initial=_initial(request, found, span))
    return _page(request, found, form, span)


@operators_only
@never_cache
def start(request: HttpRequest, fleet: str) -> HttpResponse:
    """Start what the form asks for; back to the form with what cannot be meant, or if nothing is
    asked: the address stays in the browser where a form was refused."""
    if request.method != "POST":
        return redirect("backtests", fleet)
    found, scenario = _fleet(request, fleet)
    span = backtest_recordings.span_of(found)
    form = _form(found, scenario, span is not None, request.POST, request.FILES)
    if form.is_valid():
        try:
            made = _create(request, found, form)
        except Refused as exc:
            form.refuse(exc.field, exc.message)
        else:
            wake_twin(TWIN_PROCESSES)
            return redirect("backtest", fleet, made.pk)
    return _page(request, found, form, span, status=UNPROCESSABLE)


@readable
@never_cache
def one(request: HttpRequest, fleet: str, backtest_id: int) -> HttpResponse:
    """One backtest: how far, policies side by side, minute by minute, and what was simulated."""
    found, _ = _fleet(request, fleet)
    rows = backtests.counted(Backtest.objects.filter(fleet=found))
    backtest = get_object_or_404(rows.select_related("trace").defer("trace__data"), pk=backtest_id)
    runs = list(backtest.runs.order_by("place", "seed"))
    policies = backtest.asked["policies"]
    baseline = request.GET.get("baseline", "")
    baseline = baseline if baseline in policies else backtest.asked["baseline"]
    results = backtest_results.results(backtest, runs, baseline=baseline)
    progress = backtest_results.progress_of(runs)
    links = [f"{link['from']}->{link['to']}" for link in backtest.scenario["links"]]
    now = timezone.now()
    api = reverse("api-backtest", args=[fleet, backtest.pk])
    modes = (backtest.recording or {}).get("modes", [])
    context = {
        "fleet": found,
        "backtest": backtest,
        "title": words.title(backtest),
        "state": words.state(results["state"]),
        "is_over": progress.is_over,
        "progress": progress,
        "percent": math.floor(100 * progress.ratio),
        "sentence": words.runs_sentence(progress, results["state"]),
        "untaken": _untaken(progress, backtest, now),
        "errors": sorted({e for row in results["policies"] for e in row["errors"]}),
        "table": words.table(results, links),
        "policies": [(name, words.policy(name)) for name in policies],
        "baseline": baseline,
        "n_seeds": backtest.asked["seeds"],
        "facts": words.facts(backtest, is_over=progress.is_over),
        "drift": words.drift(results, modes),
        "runs": words.run_rows(runs, policies, now),
        "can_cancel": not progress.is_over
        and not backtest.cancel_requested
        and role_of(request.user, found.pk).can_operate,
        "address": request.build_absolute_uri(),
        "curl": f"curl -H 'Authorization: Bearer $TOKEN' {request.build_absolute_uri(api)}",
        "page_data": {
            "api": api,
            "is_over": progress.is_over,
            "policies": [{"policy": name, "name": words.policy(name)} for name in policies],
            "links": links,
            "clusters": [c["name"] for c in backtest.scenario["clusters"] if c["kind"] == "pd"],
            "slo_ttft_s": backtest.scenario["fleet"]["slo"].get("ttft_s"),
            "results": {key: results[key] for key in ("series", "live", "state")},
        },
    }
    return render(request, "backtest.html", context)


@operators_only
@never_cache
@require_POST
def cancel(request: HttpRequest, fleet: str, backtest_id: int) -> HttpResponse:
    """Give it up: nothing of the fleet changes, what is done stays."""
    found = get_object_or_404(Backtest, fleet_id=fleet, pk=backtest_id)
    try:
        backtests.cancel(backtest=found, reason="", **_by(request))
    except Refused as exc:
        messages.warning(
            request, _("Nothing was cancelled: it %(message)s.") % {"message": exc.message}
        )
    else:
        messages.success(
            request, _("Cancelled. Runs that are done stay; those under way stop within seconds.")
        )
    return redirect("backtest", fleet, backtest_id)


def _create(request: HttpRequest, fleet: Fleet, form: BacktestForm) -> Backtest:
    asked, sent = form.asked(), form.cleaned_data
    trace = None
    if asked.workload == "trace":
        upload = sent["upload"]
        if upload is not None:
            if upload.size > backtests.MOST_TRACE_BYTES:
                most, size = (n / 2**20 for n in (backtests.MOST_TRACE_BYTES, upload.size))
                message = _("has %(size)s MiB; at most %(most)s MiB are taken") % {
                    "size": f"{size:,.0f}",
                    "most": f"{most:,.0f}",
                }
                raise Refused("upload", upload.name, message)
            data = upload.read()
            trace = backtests.store_trace(fleet=fleet, name=upload.name, data=data, **_by(request))
        else:
            trace = TraceFile.objects.filter(fleet=fleet).defer("data").get(pk=sent["trace"])
    return backtests.create(
        fleet=fleet,
        asked=asked,
        trace=trace,
        since=sent["since"],
        until=sent["until"],
        lengths={name: pd.lengths for name, pd in planning.recorded(fleet).pd.items()},
        note=sent["note"],
        **_by(request),
    )


def _by(request: HttpRequest) -> dict[str, Any]:
    return {"actor": request.user.get_username(), "via": VIA, "now": timezone.now()}


def _fleet(request: HttpRequest, name: str) -> tuple[Fleet, Scenario]:
    found = get_object_or_404(Fleet.objects.select_related("policy"), pk=name)
    if request.session.get("fleet") != name:  # pages without a fleet keep the last one's frame
        request.session["fleet"] = name
    return found, fleets.scenario_of(found)


def _form(
    fleet: Fleet, scenario: Scenario, has_ticks: bool, *sent: Any, initial: Any = None
) -> BacktestForm:
    stored = TraceFile.objects.filter(fleet=fleet).order_by("-id").defer("data")[:_TRACES]
    traces = [
        (trace.pk, f"{trace.name}, {figures.size(trace.n_bytes)}, {trace.created_at:%Y-%m-%d}")
        for trace in stored
    ]
    return BacktestForm(
        *sent, scenario=scenario, traces=traces, has_ticks=has_ticks, initial=initial
    )


def _initial(
    request: HttpRequest, fleet: Fleet, span: tuple[datetime, datetime] | None
) -> dict[str, Any]:
    """A recorded hour if there is one, else a trace; what the address says goes before."""
    policies = [*asking.DEFAULT_POLICIES, *([asking.LIVED] if span else [])]
    values: dict[str, Any] = {"workload": "recorded" if span else "trace", "policies": policies}
    if span is not None:
        first, last = (at.astimezone(UTC) for at in span)
        # To the whole minute before the last tick; the form has no seconds.
        until = last.replace(second=0, microsecond=0)
        values |= {"since": max(first, until - timedelta(hours=1)), "until": until}
    earlier = request.GET.get("again", "")
    if earlier.isdecimal() and len(earlier) < 19:
        found = Backtest.objects.filter(fleet=fleet, pk=int(earlier)).defer("scenario").first()
        if found is not None:
            values |= again(Asked.from_json(found.asked), note=found.note, trace=found.trace_id)
            if found.recording is not None:
                values |= {
                    name: datetime.fromtimestamp(found.recording[key], UTC)
                    for name, key in (("since", "from_s"), ("until", "until_s"))
                }
    numbers = {NUMBER + name: value for name, value in request.GET.items() if "." in name}
    if numbers:
        values |= {"workload": "scenario", "policies": list(asking.DEFAULT_POLICIES)} | numbers
    return values


def _page(
    request: HttpRequest,
    fleet: Fleet,
    form: BacktestForm,
    span: tuple[datetime, datetime] | None,
    *,
    status: int = 200,
) -> HttpResponse:
    kept = Backtest.objects.filter(fleet=fleet).order_by("-id")
    rows = backtests.counted(kept.defer("scenario", "recording", "trace__data"))
    shown = Paginator(rows.select_related("trace"), PER_PAGE).get_page(request.GET.get("page"))
    listed = [_row(row) for row in shown]
    context = {
        "fleet": fleet,
        "form": form,
        "span": span,
        "page": shown,
        "rows": listed,
        "most_bytes": backtests.MOST_TRACE_BYTES,
        "most_text": _(
            "Mooncake jsonl, agentic sessions jsonl, csv of Azure, "
            "BurstGPT or ServeGen, or an export of this console"
        ),
        "page_data": {"is_over": not any(row["is_open"] for row in listed)},
    }
    return render(request, "backtests.html", context, status=status)


def _row(row: Any) -> dict[str, Any]:
    states = {state: getattr(row, f"n_{state}") for state in backtest_results.STATES}
    word = backtest_results.state_of(states, cancel_requested=row.cancel_requested)
    progress = backtest_results.Progress(row.n_runs, 0.0, states)
    return {
        "backtest": row,
        "title": words.title(row),
        "state": words.state(word),
        "sentence": words.runs_sentence(progress, word),
        "policies": ", ".join(words.policy(name) for name in row.asked["policies"]),
        "is_open": not progress.is_over,
    }


def _untaken(progress: backtest_results.Progress, backtest: Backtest, now: datetime) -> str:
    """How long nobody has taken the runs that wait, where that is worth a word."""
    waited_s = (now - backtest.created_at).total_seconds()
    if progress.states["queued"] < progress.n or waited_s < _UNTAKEN_S:
        return ""
    return figures.duration(round(waited_s))
