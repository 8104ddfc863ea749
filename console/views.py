"""Pages that only look. Each gathers rows, one template prints them."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from django.conf import settings
from django.core.paginator import Page, Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone

from console import link_states, live_source, plans, policies, rebalances, sources, verdicts
from console.context import range_of
from console.missing import Finding
from console.roles import readable
from routing import commands, delivery, fleets, knobs
from routing.core.reasons import REASONS
from routing.core.scenario.document import Scenario
from routing.models import Action, Decision, Fleet, Tick
from telemetry.models import Agent

DECISIONS_PER_PAGE = 50
ACTIONS_PER_PAGE = 100
RECENT_DECISIONS = 5
OUTCOMES = (("after 1 min", 60.0), ("after 5 min", 300.0), ("after 15 min", 900.0))
OUTCOME_TOLERANCE_S = 30.0
"""A tick this much later than asked for still counts as "after 5 min"."""


@readable
def home(request: HttpRequest) -> HttpResponse:
    """The only fleet's overview, a choice between several, or how to make the first."""
    found = list(Fleet.objects.order_by("name"))
    if len(found) == 1:
        query = request.GET.urlencode()
        address = reverse("fleet-overview", args=[found[0].name])
        return redirect(f"{address}?{query}" if query else address)
    rows = [{"fleet": fleet, "tick": fleets.newest_tick(fleet)} for fleet in found]
    return render(request, "home.html", {"rows": rows})


@readable
def overview(request: HttpRequest, fleet: str) -> HttpResponse:
    """Is it healthy, what limits it, what did the loop just do. Figures live over the socket."""
    found, scenario = _fleet(request, fleet)
    now = timezone.now()
    recent = list(_decisions(found)[:RECENT_DECISIONS])
    rows = _rows(recent)
    context = {
        "fleet": found,
        "scenario": scenario,
        "recent": rows,
        "missing": _missing(found, now),
        "holds": commands.open_holds(found, now),
        "moving": rebalances.under_way(found),
        "gates": sources.gates(found, now),
        "has_agents": Agent.objects.exists(),
        "last_tick": fleets.newest_tick(found),
        "page_data": page_data(found, scenario, recent),
    }
    return render(request, "overview.html", context)


@readable
def fleet_page(request: HttpRequest, fleet: str) -> HttpResponse:
    """Policy, holds and everything that reports: instances, links, gates, agents."""
    found, scenario = _fleet(request, fleet)
    now = timezone.now()
    policy = found.policy
    search, sort = request.GET.get("q", ""), request.GET.get("sort", "name")
    page = sources.instances(
        fleet, scenario, search=search, sort=sort, page=_whole(request.GET.get("page")), now=now
    )
    running = fleets.newest_adopted(found)
    moving = rebalances.under_way(found)
    context = {
        "fleet": found,
        "scenario": scenario,
        "missing": _missing(found, now),
        "roles": rebalances.roles(found, scenario, running, moving, now),
        "moving": moving,
        "moved": rebalances.ended(found),
        "policy": policy,
        "knobs": policies.knob_rows(knobs.effective(policy.knobs), policy.knobs),
        "holds": commands.open_holds(found, now),
        "instances": page,
        "search": search,
        "sort": sort,
        "columns": sources.columns(sort),
        "links": link_states.panel(found, scenario, now),
        "gates": sources.gates(found, now),
        "agents": sources.agents(now),
        "running": running,
    }
    return render(request, "fleet.html", context)


@readable
def decisions(request: HttpRequest, fleet: str) -> HttpResponse:
    """Every decision, newest first, and what the loop said between them."""
    found, _ = _fleet(request, fleet)
    reason, kind = request.GET.get("reason", ""), request.GET.get("kind", "")
    rows = _decisions(found)
    if reason:
        rows = rows.filter(reason=reason)
    if kind:
        rows = rows.filter(version__isnull=kind == "advised")
    page = Paginator(rows, DECISIONS_PER_PAGE).get_page(request.GET.get("page"))
    reasons = Decision.objects.filter(fleet=found).order_by("reason").distinct()
    range_name, range_s = range_of(request)
    context = {
        "fleet": found,
        "page": page,
        "days": _days(page),
        "reasons": list(reasons.values_list("reason", flat=True)),
        "reason": reason,
        "kind": kind,
        "spells": _spells(found, timezone.now() - timedelta(seconds=range_s)),
        "range": range_name,
        "help": REASONS,
        "last_tick": fleets.newest_tick(found),
    }
    return render(request, "decisions.html", context)


@readable
def decision(request: HttpRequest, fleet: str, decision_id: int) -> HttpResponse:
    """One decision: what, why, on which inputs, how far it got, what came of it."""
    found, scenario = _fleet(request, fleet)
    row = get_object_or_404(_decisions(found), pk=decision_id)
    verdict = row.tick.verdict if row.tick else {}
    later = _later(row)
    summary = delivery.summaries([row])[row.pk]
    superseded = _next_decision(row)
    context = {
        "fleet": found,
        "decision": row,
        "row": verdicts.decision_row(row, summary),
        "changes": plans.plan_changes(row.previous, row.plan),
        "deliveries": verdicts.delivery_rows(
            row, summary, newest=superseded is None and row.version is not None, now=timezone.now()
        ),
        "outcome_labels": [label for label, _, _ in later],
        "outcome": verdicts.outcome(
            verdict.get("adopted") or verdict.get("current"), [x.id for x in scenario.links], later
        ),
        "superseded": superseded,
        "previous": _previous_decision(row) if row.version else None,
        "moved": rebalances.of_decision(row),
        **_verdict_context(row.tick),
    }
    return render(request, "decision.html", context)


@readable
def tick(request: HttpRequest, fleet: str, seq: int) -> HttpResponse:
    """One pass of the loop that may have changed nothing: the same page as a decision."""
    found, _ = _fleet(request, fleet)
    row = get_object_or_404(Tick, fleet=found, seq=seq)
    made = Decision.objects.filter(tick=row).first()
    if made is not None:
        return redirect("decision", fleet, made.pk)
    around = Tick.objects.filter(fleet=found)
    context = {
        "fleet": found,
        "earlier": around.filter(seq__lt=seq).order_by("-seq").first(),
        "later": around.filter(seq__gt=seq).order_by("seq").first(),
        **_verdict_context(row),
    }
    return render(request, "tick.html", context)


@readable
def audit(request: HttpRequest) -> HttpResponse:
    """Who changed what, when, from where and why; newest first."""
    rows = Action.objects.order_by("-id")
    chosen = {name: request.GET.get(name, "") for name in ("actor", "fleet", "verb")}
    for name, value in chosen.items():
        if value:
            rows = rows.filter(**{name: value})
    search = request.GET.get("q", "")
    if search:
        rows = rows.filter(target__icontains=search) | rows.filter(reason__icontains=search)
    page = Paginator(rows, ACTIONS_PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "page": page,
        "rows": [
            {"action": row, "changes": policies.action_changes(row.before, row.after)}
            for row in page
        ],
        "chosen": chosen,
        "search": search,
        "choices": {
            name: list(
                Action.objects.exclude(**{name: ""})
                .order_by(name)
                .values_list(name, flat=True)
                .distinct()
            )
            for name in chosen
        },
    }
    return render(request, "audit.html", context)


def page_data(fleet: Fleet, scenario: Scenario, recent: list[Decision]) -> dict[str, Any]:
    """What the page's scripts need to know that no frame carries."""
    return {
        "fleet": fleet.name,
        "clusters": [
            {"name": c.name, "kind": c.kind, "profile": c.profile, "instances": c.instances}
            for c in scenario.clusters
        ],
        "links": [
            {"id": link.id, "source": link.source, "target": link.target, "gbps": link.gbps}
            for link in scenario.links
        ],
        "slo_ttft_s": scenario.slo.ttft_s,
        "changes": _threshold_changes(recent),
    }


def _threshold_changes(recent: list[Decision]) -> dict[str, dict[str, Any]]:
    """Per PD cluster the newest pushed change of t or mode: what it was and when that ended."""
    changes: dict[str, dict[str, Any]] = {}
    for row in recent:
        if row.version is None or row.previous is None:
            continue
        for cluster, plan in row.plan["clusters"].items():
            was = row.previous["clusters"].get(cluster)
            keys = ("mode", "threshold_tokens")
            if cluster in changes or was is None or all(was[k] == plan[k] for k in keys):
                continue
            changes[cluster] = {
                "was": plans.cluster_words(was),
                "at_s": row.created_at.timestamp(),
                "decision": row.pk,
            }
    return changes


def _fleet(request: HttpRequest, name: str) -> tuple[Fleet, Scenario]:
    fleet = get_object_or_404(Fleet, pk=name)
    if request.session.get("fleet") != name:  # pages without a fleet keep the last one's frame
        request.session["fleet"] = name
    return fleet, fleets.scenario_of(fleet)


def _missing(fleet: Fleet, now: datetime) -> list[Finding]:
    """What is missing as the first frame will tell it, for the page before its socket is open."""
    return live_source.load(fleet.pk, now_s=now.timestamp()).missing(now.timestamp())


def _decisions(fleet: Fleet) -> Any:
    rows = Decision.objects.filter(fleet=fleet).select_related("tick")
    return rows.order_by("-created_at", "-id")


def _rows(found: list[Decision]) -> list[dict[str, Any]]:
    summaries = delivery.summaries(found)
    return [verdicts.decision_row(decision, summaries[decision.pk]) for decision in found]


def _days(page: Page) -> list[tuple[Any, list[dict[str, Any]]]]:
    return [
        (day, list(group))
        for day, group in groupby(_rows(list(page)), lambda row: row["decision"].created_at.date())
    ]


def _spells(fleet: Fleet, since: datetime) -> list[dict[str, Any]]:
    """Runs of ticks with one reason, newest first: what the loop said and for how long."""
    ticks = Tick.objects.filter(fleet=fleet, at__gte=since).order_by("seq")
    tick_s = settings.ENV["CONSOLE_TICK_S"]
    spells = []
    rows = ticks.values_list("reason", "action", "seq", "at").iterator()
    for (reason, action), group in groupby(rows, key=lambda row: row[:2]):
        run = list(group)
        spells.append(
            {
                "reason": reason,
                "action": action,
                "n": len(run),
                "since": run[0][3],
                "span_s": round((run[-1][3] - run[0][3]).total_seconds() + tick_s),
                "seq": run[-1][2],
            }
        )
    return spells[::-1]


def _later(row: Decision) -> list[tuple[str, Tick | None, str]]:
    """The first tick at or after each span; the note says when another plan ran by then."""
    following = _next_decision(row)
    found = []
    for label, span_s in OUTCOMES:
        at = row.created_at + timedelta(seconds=span_s)
        tick = (
            Tick.objects.filter(
                fleet=row.fleet,
                at__gte=at,
                at__lte=at + timedelta(seconds=OUTCOME_TOLERANCE_S),
            )
            .order_by("seq")
            .first()
        )
        note = ""
        if tick is None:
            note = "not yet" if at > timezone.now() else "no tick then"
        elif following is not None and following.created_at <= tick.at:
            note = f"under v{following.version}"
        found.append((label, tick, note))
    return found


def _next_decision(row: Decision) -> Decision | None:
    """The next pushed plan after this decision."""
    pushed = Decision.objects.filter(fleet=row.fleet, version__isnull=False)
    return pushed.filter(created_at__gt=row.created_at).order_by("created_at").first()


def _previous_decision(row: Decision) -> Decision | None:
    """The pushed plan before this decision."""
    pushed = Decision.objects.filter(fleet=row.fleet, version__isnull=False)
    return pushed.filter(created_at__lt=row.created_at).order_by("-created_at").first()


def _verdict_context(row: Tick | None) -> dict[str, Any]:
    if row is None:
        return {"tick": None}
    verdict = row.verdict
    return {
        "tick": row,
        "verdict": verdict,
        "inputs": verdicts.inputs(row.observed, fleets.memory_after(row).links),
        "binds": verdicts.binds(verdict),
        "alternatives": verdicts.alternatives(verdict),
        "bottlenecks": verdicts.bottlenecks(verdict),
        "clamps": verdict.get("clamps", []),
        "reason_help": REASONS.get(row.reason, ""),
    }


def _whole(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 10 else 1
