"""Pages that only look. Each gathers rows, one template prints them."""

from __future__ import annotations

from typing import Any

from django.db.models import Subquery
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from console import (
    agents_seen,
    decisions,
    findings,
    instances,
    kept,
    link_states,
    plans,
    policies,
    rebalances,
    sources,
    timeline,
)
from console.opened import opened_at_tick
from console.roles import readable
from routing import commands, fleets, knobs, rights
from routing.core.scenario.document import Scenario
from routing.models import Decision, Fleet
from telemetry.models import Agent

RECENT_DECISIONS = 5
INSTANCES_PER_PAGE = 30


@readable
def overview(request: HttpRequest, fleet: str) -> HttpResponse:
    """Is it healthy, what limits it, what did the loop just do. Figures live over the socket."""
    found, scenario, last_tick = opened_at_tick(request, fleet)
    now = timezone.now()
    in_force = Subquery(fleets.adopted(found).values("pk")[:1])
    recent = list(timeline.listed(found).annotate(in_force=in_force)[:RECENT_DECISIONS])
    rows = decisions.rows(recent)
    running = next((row for row in recent if row.pk == row.in_force), None)
    running = running or fleets.newest_adopted(found)
    scraped = sources.newest("router", f"{found.pk}/", now)
    gates = sources.gates_under(found, running, now, readings=scraped)
    context = {
        "fleet": found,
        "scenario": scenario,
        "recent": rows,
        "missing": kept.missing(found, now_s=now.timestamp()),
        "holds": commands.open_holds(found, now),
        "moving": rebalances.under_way(found),
        "gates": sources.worst_first(gates),
        "n_all_gates": len(gates),
        "findings": findings.summary(found, last_tick),
        "has_agents": bool(scraped) or Agent.objects.exists(),
        "last_tick": last_tick,
        "page_data": page_data(found, scenario, recent, running),
    }
    return render(request, "overview.html", context)


@readable
def fleet_page(request: HttpRequest, fleet: str) -> HttpResponse:
    """Policy, holds and everything that reports: instances, links, gates, agents."""
    found, scenario, tick = opened_at_tick(request, fleet)
    now = timezone.now()
    policy = found.policy
    asked = request.GET
    recent = instances.recent_of(f"{fleet}/", now) if instances.sorts_by_ttft(asked) else {}
    read = sources.newest_of_fleet(found, now)
    engines = instances.rows_from(read["instance"], scenario, now, recent)
    listed = instances.listed(
        engines, asked, per_page=INSTANCES_PER_PAGE, columns=instances.NEWEST_COLUMNS
    )
    running = fleets.newest_adopted(found)
    moving, moved = rebalances.lately(found)
    gates = sources.gates_under(found, running, now, readings=read["router"])
    agents, n_agents = sources.agents(now, agents_seen.by(rights.of(request.user)))
    context = {
        "fleet": found,
        "scenario": scenario,
        "missing": kept.missing(found, now_s=now.timestamp()),
        "roles": rebalances.roles(scenario, running, moving, now, read["instance"]),
        "moving": moving,
        "moved": moved,
        "policy": policy,
        "knobs": policies.knob_rows(knobs.effective(policy.knobs), policy.knobs),
        "holds": commands.open_holds(found, now),
        "instances": instances.with_ttft(listed, now) if "ttft" in listed.shown else listed,
        "search": asked.get("q", ""),
        "links": link_states.panel(
            found,
            scenario,
            tick,
            now,
            readings=read["link"],
            looks_back=asked.get("happened") == "1",
        ),
        "gates": sources.worst_first(gates),
        "n_all_gates": len(gates),
        "agents": agents,
        "n_agents": n_agents,
        "running": running,
    }
    return render(request, "fleet.html", context)


def page_data(
    fleet: Fleet, scenario: Scenario, recent: list[Decision], running: Decision | None
) -> dict[str, Any]:
    """What the page's scripts need to know that no frame carries. `running`: the plan in force."""
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
        "running": running
        and {"epoch": running.epoch, "version": running.version, "decision": running.pk},
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
