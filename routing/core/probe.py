"""Little traffic over a link whose breaker is half open: enough to see whether transfers succeed.

A cluster that has other remotes gives the probed one `PROBE_WEIGHT` of its remote requests;
one that has none keeps at most `PROBE_IN_FLIGHT` remote request a gate in flight.
"""

from __future__ import annotations

from collections.abc import Mapping

from routing.core.model import fleetmodel
from routing.core.situation import Situation
from routing.core.types import ClusterPlan

PROBE_WEIGHT = 0.05
PROBE_IN_FLIGHT = 1


def probed(s: Situation, name: str) -> list[str]:
    """The links into the cluster whose breaker is half open."""
    return [link.id for link in s.links_up(name) if s.links[link.id].probing]


def passed(s: Situation, name: str) -> list[str]:
    """The links into the cluster whose breaker closed after the last plan was made."""
    last_s = s.memory.last_change_s
    closed = []
    for link in s.links_up(name):
        memory = s.links[link.id].memory
        at_s = memory.breaker_at_s
        if memory.breaker == "closed" and at_s is not None and (last_s is None or at_s > last_s):
            closed.append(link.id)
    return closed


def in_flight(s: Situation, name: str, plan: ClusterPlan) -> int | None:
    """Remote requests a gate may have in flight: the policy's limit, less for a probe alone."""
    limit = s.params.max_remote_in_flight
    if not probed(s, name) or _others(s, name, plan.remote):
        return limit
    return PROBE_IN_FLIGHT if limit is None else min(limit, PROBE_IN_FLIGHT)


def shares(s: Situation, name: str, wanted: Mapping[str, float]) -> dict[str, float]:
    """`wanted` shares with a little for remotes that are probed, whatever they had."""
    others = _others(s, name, wanted)
    few = [link.source for link in s.links_up(name) if s.links[link.id].probing]
    if not few or not others:
        return dict(wanted)
    each = min(PROBE_WEIGHT, 0.5 / len(few))
    total, rest = sum(others.values()), 1.0 - each * len(few)
    found = dict.fromkeys(few, each) | {n: rest * (w / total) for n, w in others.items()}
    return fleetmodel.planned({n: found.get(n, 0.0) for n in {**wanted, **found}})


def remote(s: Situation, name: str, plan: ClusterPlan) -> dict[str, float]:
    """The plan's shares while a link is probed, and what it had in it once the breaker closed."""
    if plan.mode == "always_local":
        return plan.remote
    if passed(s, name) and not probed(s, name) and len(plan.remote) > 1:
        return fleetmodel.weights(s.scenario, s.links_up(name))
    return shares(s, name, plan.remote)


def _others(s: Situation, name: str, remotes: Mapping[str, float]) -> dict[str, float]:
    """The remotes with a share whose links are not probed."""
    under_probe = {link.source for link in s.links_up(name) if s.links[link.id].probing}
    return {n: w for n, w in remotes.items() if n not in under_probe and w > 0.0}
