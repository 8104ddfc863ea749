"""What a person's change of roles would do, by the model at the traffic of the last look.

before      what runs, as it runs
after       the new roles at the t that is in force: the one that runs, or that a person holds
settled     the new roles at the t that suits them, once t is the loop's to choose; None where it
            stays as it is for a reason that no clock ends
loop_wants  the roles the loop would go on to, were they its own again; None: those asked for
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from routing.core import forced, frozen, words
from routing.core.bottleneck import Roles
from routing.core.model.throughput import predict
from routing.core.roles.limits import least_decode
from routing.core.roles.model import (
    LARGE_FLEET,
    as_roles,
    best_roles,
    best_t,
    best_t_of,
    gain_of,
    roles_of,
)
from routing.core.scenario.document import Scenario
from routing.core.situation import Situation, survey
from routing.core.types import (
    ClusterPlan,
    HeldPlan,
    Memory,
    Observation,
    Params,
    Plan,
    Prediction,
)


@dataclass(frozen=True)
class Held:
    """The cluster runs `plan` until `until_s`, as `pin` says, whatever would suit it."""

    plan: ClusterPlan
    pin: HeldPlan
    until_s: float


@dataclass(frozen=True)
class Outlook:
    """What is expected of a move of roles; `warnings` say what speaks against it.

    `held` are the holds of mode and t that rule the cluster one after the other, the one in force
    first. `stays` says why t stays as it runs although nobody holds it; empty where it may move.
    `thresholds` are the cluster's t in the three predictions: 0 sends everything, inf nothing.
    """

    before: Prediction
    after: Prediction
    settled: Prediction | None
    loop_wants: Roles | None = None
    warnings: tuple[str, ...] = ()
    held: tuple[Held, ...] = ()
    stays: str = ""
    thresholds: tuple[float, ...] = ()


def outlook(
    observation: Observation,
    plan: Plan,
    memory: Memory,
    params: Params,
    scenario: Scenario,
    *,
    cluster: str,
    to: Roles,
) -> Outlook | None:
    """None where nothing is known of the cluster's traffic."""
    with np.errstate(all="ignore"):
        s = survey(observation, plan, memory, params, scenario)
        if s.model is None or s.current is None or cluster not in s.outlooks:
            return None
        held, free = _held(s, cluster), _without_holds(s, cluster)
        runs = {**s.clusters, cluster: held[0].plan} if held else s.clusters
        settings = s.settings(runs)
        moved = dataclasses.replace(settings[cluster], n_prefill=to[0], n_decode=to[1])
        stays, settled = _stays(free, cluster), None
        if not stays:
            assert free.model is not None, "holds are no part of the model"
            settled = best_t_of(free, free.model, cluster, to, free.clusters)
        at = [s.running[cluster], moved, *([settled.settings[cluster]] if settled else [])]
        return Outlook(
            before=s.current,
            after=predict(s.model, {**settings, cluster: moved}),
            settled=None if settled is None else settled.prediction,
            loop_wants=_loop_wants(free, cluster, to),
            warnings=_warnings(s, cluster, to),
            held=held,
            stays=stays,
            thresholds=tuple(setting.threshold for setting in at),
        )


def _held(s: Situation, cluster: str) -> tuple[Held, ...]:
    """What holds make of the cluster's mode and t, one after the other until the last one ends."""
    found: list[Held] = []
    while (pin := s.pins.get(cluster)) is not None:
        plan = forced.pinned(s, cluster)
        assert plan is not None, "a pin makes a plan"
        found.append(Held(plan, pin, pin.expires_at_s))
        left = tuple(h for h in s.params.holds if h.expires_at_s > pin.expires_at_s)
        s = dataclasses.replace(
            s,
            plan=dataclasses.replace(s.plan, clusters={**s.plan.clusters, cluster: plan}),
            params=dataclasses.replace(s.params, holds=left),
        )
    return tuple(found)


def _without_holds(s: Situation, cluster: str) -> Situation:
    """As it is once no hold rules the cluster's mode and t any more."""
    left = tuple(h for h in s.params.holds if h.mode is None or h.cluster not in (cluster, None))
    return dataclasses.replace(s, params=dataclasses.replace(s.params, holds=left))


def _stays(free: Situation, cluster: str) -> str:
    """Why the loop would leave the cluster's t alone though nobody holds it."""
    if not free.links_up(cluster):
        return "no link to a PrfaaS cluster is up"
    if (freeze := frozen.in_force(free, "plans")) is not None:
        return words.frozen(freeze)
    gap = free.gaps.get(cluster)
    return "" if gap is None else gap.text


def _loop_wants(s: Situation, cluster: str, to: Roles) -> Roles | None:
    """In a fleet of many clusters nobody searches for what is only shown."""
    if s.model is None or len(s.outlooks) > LARGE_FLEET or s.params.roles_mode == "fixed":
        return None
    present = {name: roles_of(s, name) for name in s.outlooks} | {cluster: to}
    after = best_t(s, s.model, present)
    best = best_roles(s, s.model, present, [cluster])
    wants = as_roles(best.settings[cluster])
    worth = gain_of(s, after, best) >= s.params.roles_min_gain_ratio
    return wants if worth and wants != to else None


def _warnings(s: Situation, cluster: str, to: Roles) -> tuple[str, ...]:
    present, said = roles_of(s, cluster), []
    assert s.current is not None, "asked for only with a model of what runs"
    why = s.forbids_roles(cluster, present, to, s.current)
    if why:
        said.append(words.forbidden(cluster, present, to, why))
    least = least_decode(s, cluster, present)
    if to[1] < least:
        held = s.observation.pd[cluster].decode_kv_usage_ratio or 0.0
        said.append(words.after_state_full(cluster, held, held * present[1] / max(to[1], 1)))
    return tuple(said)
