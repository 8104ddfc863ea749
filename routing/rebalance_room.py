"""What the next move would do to its cluster, before anything is done. Pure: no clock, no I/O.

The pool that gives an instance away must hold what is on it now with what is left of it:

    decode    requests on the pool <= instances left * decode slots of the profile     else it waits
    prefill   requests on the pool * mean prefill_s / instances left <= SLO of TTFT    else it warns

A prefill that is late is a slow one; a decode without a slot is a request that stands still.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from routing.core.scenario.document import Scenario
from routing.rebalance import PlannedMove
from routing.rebalance_looks import Look, Routers
from routing.rebalance_plan import Planned


@dataclass(frozen=True)
class Room:
    """`facts` are for people (`Rebalance.preflight`); `wait` says why it must not begin now."""

    facts: dict[str, Any]
    wait: str | None = None


def room(planned: Planned, routers: Routers, scenario: Scenario) -> Room:
    """What moving the first unit means now."""
    unit = planned.units[0]
    pools = {
        role: _pool(role, [look for look in planned.looks.values() if look.role == role], unit)
        for role in ("prefill", "decode")
    }
    wait, warnings = None, _doubts(routers)
    from_role = unit[0].from_role
    # An instance that is only listed wrongly leaves no pool.
    if planned.looks[unit[0].instance].role == from_role:
        pool = pools[from_role]
        slots = scenario.profiles[routers.cluster.profile].decode.batch
        if from_role == "decode":
            pool["holds"] = math.floor(pool["n_left"] * slots)
            if pool["requests"] > pool["holds"]:
                wait = (
                    f"{pool['requests']} requests decode in {routers.cluster.name}, and the "
                    f"{pool['n_left']} instances left of {pool['n']} hold {pool['holds']}."
                )
        else:
            pool["wait_s"] = _prefill_wait_s(pool, routers, scenario)
            if pool["wait_s"] > scenario.slo.ttft_s:
                warnings.append(
                    f"{pool['requests']} prompts on {pool['n']} prefill instances take the "
                    f"{pool['n_left']} left about {pool['wait_s']:.3g} s, over the "
                    f"{scenario.slo.ttft_s:g} s of the SLO"
                )
    facts = {
        "blast_radius": _blast_radius(unit, planned.looks, pools),
        "warnings": warnings,
        "pools": pools,
        "routers": [_router(routers, read.site.url) for read in routers.reads],
    }
    return Room(facts, wait)


def _pool(role: str, looks: Sequence[Look], unit: Sequence[PlannedMove]) -> dict[str, Any]:
    """What is seen of a pool; `n_left` are there while the unit moves."""
    going = {move.instance for move in unit}
    return {
        "n": len(looks),
        "n_left": sum(look.id not in going for look in looks),
        "requests": sum(look.requests for look in looks),
    }


def _prefill_wait_s(pool: Mapping[str, Any], routers: Routers, scenario: Scenario) -> float:
    """How long what is on the pool takes what is left of it, at the workload's mean prompt."""
    workload = scenario.workload(routers.cluster.name)
    if workload is None or not pool["n_left"]:
        return 0.0
    tokens = float(workload.lengths.tokens_below([math.inf])[0])
    each_s = float(scenario.profiles[routers.cluster.profile].prefill.prefill_s(tokens))
    return float(pool["requests"] * each_s / pool["n_left"])


def _blast_radius(
    unit: Sequence[PlannedMove], looks: Mapping[str, Look], pools: Mapping[str, Mapping[str, Any]]
) -> str:
    role, to_role = unit[0].from_role, unit[0].to_role
    ids = ", ".join(move.instance for move in unit)
    on_it = sum(looks[move.instance].requests for move in unit)
    n_routers = len({url for move in unit for url in move.routers})
    verb = "prefill" if role == "prefill" else "decode"
    return (
        f"{ids} will {to_role} and not {verb}: {pools[role]['n_left']} of {pools[role]['n']} "
        f"{role} instances are left, the {on_it} request{'' if on_it == 1 else 's'} on it finish "
        f"first, prefixes cached on it are lost, {n_routers} router"
        f"{' is' if n_routers == 1 else 's are'} told."
    )


def _doubts(routers: Routers) -> list[str]:
    """What the routers' own limits mean for the move."""
    found = []
    for read in routers.reads:
        if read.can is None:
            continue
        who = routers.named(read.site.url)
        if read.can.drain == "fixed":
            found.append(f"{who} cuts what still runs on an instance a while after it let it go")
        if not read.can.is_readable:
            found.append(f"{who} does not show what it lists: a canary is all the proof there is")
    return found


def _router(routers: Routers, url: str) -> dict[str, Any]:
    read = routers.read_of(url)
    return {
        "name": read.site.name,
        "kind": read.site.kind,
        "url": url,
        "version": read.actual and read.actual.version,
        "roles": read.can and read.can.roles,
        "drain": read.can and read.can.drain,
    }
