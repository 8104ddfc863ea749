"""The long timescale: how many instances of a PD cluster prefill and how many decode.

Same model and same rules as for t, with other numbers. A move has to be worth more than the best t
at the present roles:

    gain = h(best roles, best t) / h(present roles, best t) - 1

reach `roles_min_gain_ratio`, be clear of sampling noise, last `roles_gain_hold_s`, come
`roles_dwell_s` after the last one ended (doubled for each in a row that did not succeed), and moves
max(1, `roles_max_step_ratio` of the instances) at most. What a step is judged by is the state after
it. An instance that is silent, or too young to be evidence, counts as full: it gives its role no
capacity that could be taken. Where fewer than `quorum_ratio` of the instances are read nothing
moves, nor where the bottleneck forbids it (`bottleneck.forbids`); the verdict says what was barred.

Roles are asked for by the plan and moved by a rebalance; while one runs no other is asked for. Its
outcome comes back in the observation, and the plan then follows what the engines say.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from routing.core import hysteresis, words
from routing.core.bottleneck import Roles
from routing.core.frozen import in_force
from routing.core.model import fleetmodel
from routing.core.model.optimize import Optimum
from routing.core.model.throughput import FleetModel, Setting, predict
from routing.core.roles.limits import Barred, after_step, least_decode
from routing.core.roles.memory import moving, observed
from routing.core.roles.model import (
    as_roles,
    best_roles,
    best_t,
    dwell_s,
    free_at_s,
    gain_of,
    own_gains,
    roles_of,
    sure,
    with_roles,
)
from routing.core.situation import Situation
from routing.core.steps import changed_to, into_bounds, t_of
from routing.core.types import Alternative, Clamp, ClusterPlan, Verdict

BEARABLE_HEADROOM = 1.05
"""What present roles have to keep for a t that is meant for the next ones."""


@dataclass(frozen=True)
class RoleStep:
    """What the long timescale says in one pass: a verdict, or what it waits for, or nothing.

    `barred` are limits on moves that were not made, `weighed` the roles that were looked at.
    """

    verdict: Verdict | None = None
    since_s: float | None = None
    waiting: tuple[str, str, float] | None = None
    barred: tuple[Clamp, ...] = ()
    weighed: tuple[Alternative, ...] = ()

    def joined(self, verdict: Verdict) -> Verdict:
        """The short timescale's verdict, knowing of this one.

        A t that merely stays says less than roles that are about to move.
        """
        memory = dataclasses.replace(verdict.memory, roles_gain_since_s=self.since_s)
        verdict = dataclasses.replace(
            verdict,
            memory=memory,
            clamps=(*verdict.clamps, *self.barred),
            alternatives=(*verdict.alternatives, *self.weighed),
        )
        if self.waiting is None or verdict.action == "adopt" or verdict.reason not in _QUIET:
            return verdict
        reason, message, at_s = self.waiting
        return dataclasses.replace(verdict, reason=reason, message=message, next_action_at_s=at_s)


_QUIET = ("Optimal", "WithinNoise", "NoRemote")


def step(s: Situation) -> RoleStep:
    """Towards the best roles, as far and as soon as the dampers allow."""
    model = s.model
    if model is None or s.current is None or not s.movable:
        return RoleStep()
    present = {n: roles_of(s, n) for n in s.outlooks}
    free = [n for n in s.movable if n in s.outlooks and _free(s, n)]
    if not free or any(moving(s.observation.pd[n]) for n in s.clusters):
        return RoleStep()
    base = best_t(s, model, present)
    best = best_roles(s, model, present, free)
    gain, own, whose = gain_of(s, base, best), own_gains(s, model, base, best), None
    most = max(free, key=lambda n: own[n])
    if own[most] > gain:
        gain, whose = own[most], most
    if gain < s.params.roles_min_gain_ratio:
        return RoleStep()
    wanted = {
        n: as_roles(best.settings[n])
        for n in free
        if as_roles(best.settings[n]) != present[n]
        and (whose is None or own[n] >= s.params.roles_min_gain_ratio)
    }
    stepped, clamps = _stepped(s, present, wanted)
    since_s = s.memory.roles_gain_since_s
    # Whether it is more than noise is asked when a gain is first seen, and before anything moves.
    asked = since_s is not None and 0.0 <= s.now_s - since_s < s.params.roles_gain_hold_s
    if not asked and not sure(s, after_step(s, model, present, stepped), whose):
        return RoleStep()
    since_s = s.now_s if since_s is None else since_s
    barred = Barred.among(s, model, base, present, stepped)
    allowed = {n: roles for n, roles in stepped.items() if n not in barred.bars}
    # Without the barred moves the others have to be worth it by themselves.
    if allowed != stepped and not sure(s, after_step(s, model, present, allowed), whose):
        reason, why = next(iter(barred.bars.values()))
        text = words.roles_pending(present, stepped, gain, why)
        waiting = (reason, text, s.now_s + s.params.roles_gain_hold_s)
        return RoleStep(None, since_s, waiting, barred.clamps, barred.weighed)
    waits = _waits(s, since_s, allowed)
    if waits:
        reason, why, at_s = max(waits, key=lambda wait: wait[2])
        text = words.roles_pending(present, allowed, gain, why)
        return RoleStep(None, since_s, (reason, text, at_s), barred.clamps, barred.weighed)
    verdict = _adopted(s, base, best, present, allowed, (*clamps, *barred.clamps))
    return RoleStep(verdict=dataclasses.replace(verdict, alternatives=barred.weighed))


def _adopted(
    s: Situation,
    base: Optimum,
    best: Optimum,
    present: Mapping[str, Roles],
    stepped: Mapping[str, Roles],
    clamps: tuple[Clamp, ...],
) -> Verdict:
    assert s.model is not None, "asked for only with a model"
    after = best_t(s, s.model, {**present, **stepped})
    limits = list(clamps)
    changed = {
        name: _t_along(
            s,
            s.model,
            with_roles(s.clusters[name], roles),
            name,
            after.settings[name].threshold,
            limits,
        )
        for name, roles in stepped.items()
    }
    plans = {**s.clusters, **changed}
    running = {
        name: dataclasses.replace(
            s.running[name],
            threshold=fleetmodel.threshold_of(plans[name]),
            n_prefill=stepped.get(name, present[name])[0],
            n_decode=stepped.get(name, present[name])[1],
        )
        for name in s.outlooks
    }
    text = words.roles_adopted(present, stepped, base.prediction, after.prediction)
    with_t = {n: p for n, p in changed.items() if words.running(p) != words.running(s.clusters[n])}
    if with_t:
        text += f" With it {words.moves(s.clusters, with_t)}."
    verdict = s.adopt(changed, "RoleImbalance", text, clamps=tuple(limits))
    return dataclasses.replace(
        verdict,
        memory=dataclasses.replace(verdict.memory, roles_changed_at_s=s.now_s),
        best=best.prediction,
        best_plan={n: _best_plan(s, n, best.settings[n]) for n in present},
        adopted=predict(s.model, running),
    )


def _t_along(
    s: Situation,
    model: FleetModel,
    plan: ClusterPlan,
    name: str,
    wanted: float,
    clamps: list[Clamp],
) -> ClusterPlan:
    """The plan with a step of t towards what suits the new roles, if the present ones bear it.

    Else the old t meets the new roles for as long as t's own dampers take.
    """
    if name not in s.tunable or plan.mode != "threshold":
        return plan
    current = t_of(plan, s.params)
    if wanted < current and any(s.links[link.id].congested for link in s.links_up(name)):
        return plan
    allowed: list[Clamp] = []
    stepped = hysteresis.step_limited(current, wanted, s.params.t_max_step_factor)
    if stepped != round(wanted):
        allowed.append(Clamp("t_max_step_factor", wanted, float(stepped)))
    t = into_bounds(s.params, stepped, allowed)
    settings = s.settings(s.clusters)
    trial = {**settings, name: dataclasses.replace(settings[name], threshold=float(t))}
    now_h = predict(model, settings).headroom or 0.0
    if (predict(model, trial).headroom or 0.0) < min(now_h, BEARABLE_HEADROOM):
        clamps.append(Clamp("present_roles", wanted, current))
        return plan
    clamps += allowed
    return changed_to(plan, "threshold", t)


def _best_plan(s: Situation, name: str, setting: Setting) -> ClusterPlan:
    plan = with_roles(s.clusters[name], as_roles(setting))
    if name not in s.tunable:
        return plan
    threshold = round(setting.threshold)
    return dataclasses.replace(plan, mode="threshold", threshold_tokens=threshold, band=None)


def _waits(
    s: Situation, since_s: float, stepped: Mapping[str, Roles]
) -> list[tuple[str, str, float]]:
    params, now_s = s.params, s.now_s
    held_s = hysteresis.wait_until(since_s, params.roles_gain_hold_s, now_s)
    waits = [
        ("RolesGainPending", f"a gain has to last {params.roles_gain_hold_s:g} s", held_s),
    ]
    for name in stepped:
        why = f"roles of {name} move at most every {dwell_s(s, name):g} s"
        waits.append(("RolesDwell", why, free_at_s(s, name)))
    if (soon := s.too_soon()) is not None:
        waits.append(("RateLimited", soon[0], soon[1]))
    if (freeze := in_force(s, "roles")) is not None:
        waits.append(("Frozen", words.frozen(freeze), freeze.until_s))
    return [wait for wait in waits if wait[2] > now_s]


def _stepped(
    s: Situation, present: Mapping[str, Roles], wanted: Mapping[str, Roles]
) -> tuple[dict[str, Roles], tuple[Clamp, ...]]:
    stepped, clamps = {}, []
    for name, (_, n_decode) in wanted.items():
        total = sum(present[name])
        # The small excess: 0.25 x 8 must be 2 although 0.25 may be stored as a little less.
        most = max(1, math.floor(s.params.roles_max_step_ratio * total + 1e-9))
        low, high = present[name][1] - most, present[name][1] + most
        allowed = min(max(n_decode, low), high)
        if allowed != n_decode:
            clamps.append(Clamp("roles_max_step_ratio", float(n_decode), float(allowed)))
        # A smaller step where what decode holds does not fit into fewer; no room at all is barred.
        least = least_decode(s, name, present[name])
        if allowed < least < present[name][1]:
            clamps.append(Clamp("decode_kv_usage_ratio", float(allowed), float(least)))
            allowed = least
        stepped[name] = (total - allowed, allowed)
    return stepped, tuple(clamps)


def _free(s: Situation, name: str) -> bool:
    """Whether the cluster's roles are known, within its budget, and can be set in several ways."""
    seen, cluster = s.observation.pd[name], s.cluster(name)
    total = seen.n_prefill + seen.n_decode
    least = cluster.min_prefill + cluster.min_decode
    return observed(seen) and least <= total <= cluster.instances
