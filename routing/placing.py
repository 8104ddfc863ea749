"""Where a request would run in a fleet now: by the plan in force, over the links as read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from routing import commands, fleets, knobs, readings
from routing.core.jsonable import to_jsonable
from routing.core.placement.costs import costs_of
from routing.core.placement.explain import Request, RequestError, explain
from routing.core.placement.rule import Side
from routing.models import Fleet


def placed(
    fleet: Fleet,
    *,
    cluster: str,
    total_tokens: int,
    cached_tokens: Mapping[Side, int],
    now_s: float,
) -> dict[str, Any]:
    """The placement with its cluster and plan (`epoch.version`, None before the first one).

    Raises commands.Refused where the request cannot be meant.
    """
    scenario = fleets.scenario_of(fleet)
    known = [c.name for c in scenario.clusters if c.kind == "pd"]
    if cluster not in known:
        message = f"no PD cluster {cluster!r} is in this fleet, which has {', '.join(known)}"
        raise commands.Refused("cluster", cluster, message)
    try:
        asked = Request(total_tokens, cached_tokens)
    except RequestError as exc:
        raise commands.Refused(exc.field, exc.value, exc.message) from None
    decision = fleets.newest_adopted(fleet)
    plan = fleets.plan_of(decision).clusters.get(cluster) if decision else None
    costs = costs_of(
        scenario,
        capacity_gbps=_capacity_gbps(fleet, now_s),
        # What is certainly free while prefixes move: above it caches are judged separately again.
        free_ratio=1.0 - knobs.effective(fleet.policy.knobs)["scarce_above_ratio"],
    )
    found = explain(asked, plan, cluster=cluster, costs=costs)
    version = f"{decision.epoch}.{decision.version}" if decision else None
    return {"cluster": cluster, "plan": version, **to_jsonable(found)}


def _capacity_gbps(fleet: Fleet, now_s: float) -> dict[str, float]:
    """By link, as last read; one that was not is left out."""
    read = {
        row["id"]: row["signals"].get("capacity_gbps", {}).get("value")
        for row in readings.links(fleet, now_s=now_s)
        if row["state"] == "ok"
    }
    return {link: value for link, value in read.items() if value is not None}
