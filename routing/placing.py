"""Where a request would run in a fleet: by the plan in force or another, over the links as read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from routing import commands, fleets, knobs, readings
from routing.core.jsonable import to_jsonable
from routing.core.placement.costs import costs_of
from routing.core.placement.estimate import Estimate, estimate
from routing.core.placement.explain import (
    NOW,
    Costs,
    Moment,
    Placement,
    Request,
    RequestError,
    explain,
)
from routing.core.placement.rule import Side
from routing.core.types import ClusterPlan
from routing.models import Decision, Fleet


@dataclass(frozen=True)
class Placer:
    """What a gate of `cluster` goes by. `plan` is of `decision`; both None before the first one.

    `capacity_gbps` holds what links were last read to carry, `free_ratio` the share of it that one
    transfer is given.
    """

    cluster: str
    decision: Decision | None
    plan: ClusterPlan | None
    costs: Costs
    capacity_gbps: Mapping[str, float]
    free_ratio: float

    def place(self, request: Request, moment: Moment = NOW) -> Placement:
        return explain(request, self.plan, cluster=self.cluster, moment=moment, costs=self.costs)

    def estimates(
        self, found: Placement, request: Request, moment: Moment = NOW
    ) -> dict[Side, Estimate | None]:
        """What the request, placed as `found`, takes on each side."""
        sides: tuple[Side, ...] = ("local", "remote")
        return {
            side: estimate(
                found,
                request,
                self.plan,
                side,
                cluster=self.cluster,
                moment=moment,
                costs=self.costs,
            )
            for side in sides
        }

    @property
    def version(self) -> str | None:
        """`epoch.version`; None before the first plan and for one that was only advised."""
        made = self.decision
        return None if made is None or made.version is None else f"{made.epoch}.{made.version}"


def placer(
    fleet: Fleet,
    *,
    cluster: str,
    now_s: float,
    decision: int | None = None,
    free_ratio: float | None = None,
) -> Placer:
    """By the plan in force, or that of another `decision`; `free_ratio_of` the fleet unless said.

    Raises commands.Refused.
    """
    scenario = fleets.scenario_of(fleet)
    known = [c.name for c in scenario.clusters if c.kind == "pd"]
    if cluster not in known:
        message = f"no PD cluster {cluster!r} is in this fleet, which has {', '.join(known)}"
        raise commands.Refused("cluster", cluster, message)
    if free_ratio is None:
        free_ratio = free_ratio_of(fleet)
    made = fleets.newest_adopted(fleet) if decision is None else _decision(fleet, decision)
    capacity_gbps = _capacity_gbps(fleet, now_s)
    return Placer(
        cluster=cluster,
        decision=made,
        plan=fleets.plan_of(made).clusters.get(cluster) if made else None,
        costs=costs_of(scenario, capacity_gbps=capacity_gbps, free_ratio=free_ratio),
        capacity_gbps=capacity_gbps,
        free_ratio=free_ratio,
    )


def free_ratio_of(fleet: Fleet) -> float:
    """What is certainly free of a link while prefixes move: above it caches are judged separately
    again."""
    busy: float = knobs.effective(fleet.policy.knobs)["scarce_above_ratio"]
    return round(1.0 - busy, 12)


def request_of(total_tokens: int, cached_tokens: Mapping[Side, int]) -> Request:
    """Raises commands.Refused where the request cannot be meant."""
    try:
        return Request(total_tokens, cached_tokens)
    except RequestError as exc:
        raise commands.Refused(exc.field, exc.value, exc.message) from None


def placed(
    fleet: Fleet,
    *,
    cluster: str,
    total_tokens: int,
    cached_tokens: Mapping[Side, int],
    now_s: float,
    decision: int | None = None,
    free_ratio: float | None = None,
    moment: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The placement as plain values, with its cluster, plan and what each side would take.

    `moment`: fields of `explain.Moment`. Raises commands.Refused.
    """
    by = placer(fleet, cluster=cluster, now_s=now_s, decision=decision, free_ratio=free_ratio)
    request, then = request_of(total_tokens, cached_tokens), Moment(**(moment or {}))
    found = by.place(request, then)
    sides = by.estimates(found, request, then)
    return {
        "cluster": cluster,
        "plan": by.version,
        "decision": by.decision and by.decision.pk,
        **to_jsonable(found),
        "ttft_s": {side: one and one.ttft_s for side, one in sides.items()},
    }


def _decision(fleet: Fleet, decision: int) -> Decision:
    made = Decision.objects.filter(fleet=fleet, pk=decision).first()
    if made is None:
        raise commands.Refused("decision", decision, f"is no decision of {fleet.pk}")
    return made


def _capacity_gbps(fleet: Fleet, now_s: float) -> dict[str, float]:
    """By link, as last read; one that was not is left out."""
    read = {
        row["id"]: row["signals"].get("capacity_gbps", {}).get("value")
        for row in readings.links(fleet, now_s=now_s)
        if row["state"] == "ok"
    }
    return {link: value for link, value in read.items() if value is not None}
