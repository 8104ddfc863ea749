"""One cluster: its instances by role and state, what limits it, its threshold and how that came to
be, its links both ways, its routers, and what was decided about it lately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from django.db.models import Q, Subquery
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _

from console import (
    instances,
    link_page,
    link_states,
    plans,
    rebalances,
    sources,
    timeline,
    verdicts,
)
from console.opened import opened_at_tick
from console.roles import readable
from routing import delivery, fleets
from routing.core.scenario.document import Cluster, Scenario
from routing.models import Decision, Fleet, ManagedRouter, Tick
from telemetry import store

MOST_BUSY: Final = 12
MOST_LINKS: Final = 12
MOST_DECISIONS: Final = 8


@readable
def page(request: HttpRequest, fleet: str) -> HttpResponse:
    """All that is known of it; live figures come over the socket."""
    found, scenario, tick = opened_at_tick(request, fleet)
    now = timezone.now()
    cluster = scenario.cluster(request.GET.get("id", ""))
    if cluster is None:
        raise Http404(_("The scenario of this fleet has no such cluster."))
    read = sources.newest_of_fleet(found, now, cluster.name)
    rows = instances.rows_from(read["instance"], scenario, now)
    running, touched = plans_of(found, cluster)
    links = links_of(scenario, tick, cluster, now, read["link"])
    moving, moved = rebalances.lately(found, cluster.name)
    gates = gates_of(found, cluster, running, now, read["router"])
    context = {
        "fleet": found,
        "cluster": cluster,
        "is_pd": cluster.kind == "pd",
        "pools": pools_of(rows, cluster),
        "states": instances.STATES,
        "n": len(rows),
        "busiest": sorted(rows, key=_load, reverse=True)[:MOST_BUSY],
        "limits": limits_of(tick.verdict if tick else {}, cluster, links),
        "tick": tick,
        "is_old": link_states.is_old(tick, now),
        "plan": running.plan["clusters"].get(cluster.name) if running else None,
        "running": running,
        "story": story_of(touched, cluster.name),
        "roles": roles_of(cluster, rows, running, moving),
        "links": links[:MOST_LINKS],
        "n_links": len(links),
        "gates": sources.worst_first(gates),
        "n_all_gates": len(gates),
        "routers": ManagedRouter.objects.filter(fleet=found, cluster=cluster.name)
        if cluster.routers
        else (),
        "moving": moving,
        "moved": moved,
        "page_data": {"fleet": fleet, "charts": charts_of(cluster)},
    }
    return render(request, "cluster.html", context)


def gates_of(
    fleet: Fleet,
    cluster: Cluster,
    running: Decision | None,
    now: datetime,
    readings: Sequence[store.Reading],
) -> list[dict[str, Any]]:
    """The gates in front of it; a PrfaaS cluster has none."""
    if cluster.kind != "pd":
        return []
    return sources.gates_under(fleet, running, now, cluster=cluster.name, readings=readings)


def _load(row: instances.InstanceRow) -> float:
    return (row.waiting or 0.0) * 1e6 + (row.running or 0.0)


def pools_of(rows: list[instances.InstanceRow], cluster: Cluster) -> list[dict[str, Any]]:
    """Per role, how many instances are in which state; the usual roles are there even empty."""
    usual = ("prefill", "decode") if cluster.kind == "pd" else ("prefill",)
    seen = Counter((row.role, row.state) for row in rows)
    roles = dict.fromkeys([*usual, *sorted({row.role for row in rows})])
    return [
        {
            "role": role,
            "hue": plans.hue(cluster.kind, role),
            "n": sum(n for (of, _state), n in seen.items() if of == role),
            "states": [(key, label, seen[role, key]) for key, label in instances.STATES],
        }
        for role in roles
    ]


def links_of(
    scenario: Scenario,
    tick: Tick | None,
    cluster: Cluster,
    now: datetime,
    readings: Sequence[store.Reading],
) -> list[link_page.LinkRow]:
    """Those from and to it, the fullest first; what is not read comes last."""
    told = link_states.judged(scenario, tick, link_states.NOTHING, now, readings)
    rows = [
        link_page.row_of(link, row, now)
        for link, row in zip(scenario.links, told, strict=True)
        if cluster.name in (link.source, link.target)
    ]
    return sorted(rows, key=lambda row: (row.use is None, -(row.use or 0.0), row.id))


def limits_of(
    verdict: dict[str, Any], cluster: Cluster, links: list[link_page.LinkRow]
) -> dict[str, Any]:
    """How full the model says each stage of it is under the running plan, and what was measured."""
    stages = verdicts.stages(verdict.get("current"))
    found = (verdict.get("bottlenecks") or {}).get(cluster.name)
    named = {f"link:{row.id}" for row in links} | ({found["stage"]} if found else set())
    mine = {
        name: stage
        for name, stage in stages.items()
        if name in named
        or (not name.startswith("link:") and name.partition(":")[2] == cluster.name)
    }
    shown = list(mine.items())[:MOST_LINKS]
    return {
        "stages": [
            {"name": verdicts.stage_name(name), "hue": verdicts.stage_hue(name), **stage}
            for name, stage in shown
        ],
        "found": found,
        "stage": verdicts.stage_name(found["stage"]) if found else "",
        "headroom": (verdict.get("current") or {}).get("headroom"),
    }


def plans_of(fleet: Fleet, cluster: Cluster) -> tuple[Decision | None, list[Decision]]:
    """The plan in force, and the newest decisions that changed anything of this cluster's plan;
    PrfaaS clusters have no plan of their own."""
    if cluster.kind != "pd":
        return fleets.newest_adopted(fleet), []
    differs = timeline.differs(cluster.name)
    in_force = fleets.adopted(fleet).values("pk")[:1]
    touched = timeline.listed(fleet).filter(differs).values("pk")[:MOST_DECISIONS]
    rows = list(
        timeline.listed(fleet)
        .filter(Q(pk__in=in_force) | Q(pk__in=touched))
        .annotate(in_force=Subquery(in_force), is_touched=differs)
    )
    running = next((row for row in rows if row.pk == row.in_force), None)
    return running, [row for row in rows if row.is_touched][:MOST_DECISIONS]


def story_of(decisions: list[Decision], cluster: str) -> list[dict[str, Any]]:
    """Each with what it changed of this cluster, in few words."""
    counts = delivery.counts(decisions) if decisions else {}
    rows = []
    for decision in decisions:
        only = {"clusters": {cluster: decision.plan["clusters"].get(cluster)}}
        before = (decision.previous or {}).get("clusters", {}).get(cluster)
        previous = None if before is None else {"clusters": {cluster: before}}
        row = verdicts.decision_row(decision, counts[decision.pk])
        if only["clusters"][cluster] is not None:
            row["parts"] = plans.headline(previous, only)
        rows.append(row)
    return rows


def roles_of(
    cluster: Cluster,
    rows: list[instances.InstanceRow],
    running: Decision | None,
    moving: list[dict[str, Any]],
) -> dict[str, Any] | None:
    """The roles the plan asks for, those that engines report, and whether they agree."""
    if cluster.kind != "pd":
        return None
    fresh = [row for row in rows if row.state == "ok"]
    seen = Counter(row.role for row in fresh)
    reported = f"{seen['prefill']}/{seen['decode']}" if fresh else ""
    plan = running.plan["clusters"].get(cluster.name) if running else None
    planned = plans.roles(plan) if plan else ""
    mark = rebalances.roles_mark(planned, reported, len(rows) - len(fresh))
    return {
        "planned": planned,
        "reported": reported,
        "n_unread": len(rows) - len(fresh),
        "mark": moving[0]["mark"] if moving else mark,
    }


def charts_of(cluster: Cluster) -> list[dict[str, Any]]:
    """What the page's script draws (`static/console/detail.js`)."""
    pd = cluster.kind == "pd"
    roles = ("prefill", "decode") if pd else ("prefill",)

    def pools(field: str) -> list[dict[str, str]]:
        return [
            {
                "name": f"pool:{cluster.name}/{role}:{field}",
                "label": role,
                "look": plans.hue(cluster.kind, role),
            }
            for role in roles
        ]

    charts: list[dict[str, Any]] = [
        {"id": "queue", "unit": "req", "lines": pools("waiting")},
        {"id": "kv", "unit": "ratio", "lines": pools("kv_ratio")},
    ]
    if not pd:
        return charts
    loop = (
        ("threshold", "tok", "threshold_tokens", "t", "text"),
        ("share", "ratio", "remote_share", _("remote share"), "remote"),
        ("demand", "req/s", "demand_rps", _("demand"), ""),
    )
    return charts + [
        {
            "id": chart,
            "unit": unit,
            "lines": [
                {"name": f"loop:{field}:{cluster.name}", "label": label, "look": look},
            ],
        }
        for chart, unit, field, label, look in loop
    ]
