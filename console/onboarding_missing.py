"""What is missing of fleets' telemetry as the strip of every page says it, for onboarding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db.models import OuterRef, QuerySet, Subquery
from django.db.models.functions import Extract, JSONObject

from console import missing
from console.context import STALE_AFTER_S, loop_stale_s
from console.missing import Finding
from console.onboarding_agents import AgentRow
from console.onboarding_rows import Inventory, SourceRow
from routing.models import Decision, Fleet, Tick


def findings(
    mine: Mapping[str, Inventory],
    rows: Sequence[SourceRow],
    agents: Sequence[AgentRow],
    now: datetime,
) -> list[Finding]:
    """What the strip of every page says is missing, as far as it is telemetry."""
    links: dict[str, SourceRow] = {}
    by_fleet: dict[str, list[SourceRow]] = {}
    for row in rows:
        if row.last_s is None or row.state == "gone":
            continue
        if row.kind == "link":
            links[row.path] = row
        else:
            by_fleet.setdefault(row.fleet, []).append(row)
    found = []
    for name, inventory in mine.items():
        # A link is of every fleet that it serves, whichever its row names.
        of_links = (links[path] for path in inventory.links if path in links)
        found += _findings_of(inventory, [*by_fleet.get(name, ()), *of_links], agents, now)
    return found


def _findings_of(
    inventory: Inventory,
    mine: Sequence[SourceRow],
    agents: Sequence[AgentRow],
    now: datetime,
) -> list[Finding]:
    reads: dict[str, list[tuple[str, str]]] = {}
    for row in mine:
        reads.setdefault(row.agent, []).append((row.kind, row.path))
    # Who is refused is there, and is told of by that.
    present = {row.name: row for row in agents if row.name in reads}
    view = missing.View(
        fleet=inventory.fleet,
        agents={
            name: now.timestamp() if row.state in ("refused", "clock") else row.last_s or 0.0
            for name, row in present.items()
        },
        reads=reads,
        sources=[_source(row) for row in mine],
        links=inventory.links,
        pds=[name for name, site in inventory.sites.items() if site.kind == "pd"],
        loop=inventory.loop,
        stale_s=STALE_AFTER_S,
        loop_stale_s=loop_stale_s(settings.ENV["CONSOLE_TICK_S"]),
    )
    found = missing.findings(view, now.timestamp())
    return [finding for finding in found if not finding.key.startswith("ack:")]


def _source(row: SourceRow) -> missing.Source:
    failing = row.state in ("failed", "down", "slow") and row.read is not None
    return missing.Source(
        kind=row.kind,  # type: ignore[arg-type]
        path=row.path,
        agent=row.agent,
        received_s=row.last_s or 0.0,
        failing_since_s=row.read.at_s if failing and row.read else None,
        error=row.read.error if row.read else "",
    )


def with_loops(fleets: QuerySet[Fleet]) -> QuerySet[Any]:
    """Fleets with what `loop_of` reads of them."""
    ticks = Tick.objects.filter(fleet=OuterRef("pk")).order_by("-seq")
    adopted = Decision.objects.filter(
        fleet=OuterRef("pk"), epoch=OuterRef("epoch"), version__isnull=False
    ).order_by("-version")
    tick = JSONObject(at_s=Extract("at", "epoch"), mode="mode", action="action", reason="reason")
    plan = JSONObject(at_s=Extract("created_at", "epoch"), epoch="epoch", version="version")
    return fleets.annotate(
        told_tick=Subquery(ticks.values(told=tick)[:1]),
        told_plan=Subquery(adopted.values(told=plan)[:1]),
    )


def loop_of(fleet: Any) -> missing.Loop | None:
    """The newest tick of a fleet of `with_loops`, with the plan in force; None before the first."""
    tick, plan = fleet.told_tick, fleet.told_plan
    if tick is None:
        return None
    return missing.Loop(
        **tick,
        plan=(plan["epoch"], plan["version"]) if plan else None,
        plan_since_s=plan["at_s"] if plan else None,
    )
