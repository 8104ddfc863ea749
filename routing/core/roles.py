"""The long timescale: how many instances of a PD cluster prefill and how many decode.

Same model and same rules as for t, with other numbers. A move has to be worth more than the best t
at the present roles:

    gain = h(best roles, best t) / h(present roles, best t) - 1

reach `roles_min_gain_ratio`, be clear of sampling noise, last `roles_gain_hold_s`, come
`roles_dwell_s` after the last one ended (doubled for each in a row that did not succeed), and moves
max(1, `roles_max_step_ratio` of the instances) at most. What a step is judged by is the state after
it. An instance that is silent counts as full: it gives its role no capacity that could be taken.

Roles are asked for by the plan and moved by a rebalance; while one runs no other is asked for. Its
outcome comes back in the observation, and the plan then follows what the engines say.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from routing.core import fleetmodel, hysteresis, words
from routing.core.optimize import Freedom, Optimum, optimise
from routing.core.role_memory import ASTRAY_S, moving, observed
from routing.core.scenario import Cluster
from routing.core.situation import Situation
from routing.core.steps import changed_to, into_bounds, t_of
from routing.core.threshold import headroom_draws
from routing.core.throughput import FleetModel, Setting, predict
from routing.core.types import Clamp, ClusterPlan, PdObservation, Verdict
from routing.core.uncertainty import LEAST_LOG_GAIN, RISE_SD

MOST_PATIENCE = 8
BEARABLE_HEADROOM = 1.05
"""What present roles have to keep for a t that is meant for the next ones."""
_TIE = 1e-6

Roles = tuple[int, int]
"""(n_prefill, n_decode)."""


@dataclass(frozen=True)
class RoleStep:
    """What the long timescale says in one pass: a verdict, or what it waits for, or nothing."""

    verdict: Verdict | None = None
    since_s: float | None = None
    waiting: tuple[str, str, float] | None = None

    def joined(self, verdict: Verdict) -> Verdict:
        """The short timescale's verdict, knowing of this one.

        A t that merely stays says less than roles that are about to move.
        """
        memory = dataclasses.replace(verdict.memory, roles_gain_since_s=self.since_s)
        verdict = dataclasses.replace(verdict, memory=memory)
        if self.waiting is None or verdict.action == "adopt" or verdict.reason not in _QUIET:
            return verdict
        reason, message, at_s = self.waiting
        return dataclasses.replace(verdict, reason=reason, message=message, next_action_at_s=at_s)


_QUIET = ("Optimal", "WithinNoise", "NoRemote")


def settled(s: Situation) -> Verdict | None:
    """Changes of roles that need no gain: floors, a rebalance nobody needs any more, facts."""
    changed: dict[str, ClusterPlan] = {}
    said: list[tuple[str, str]] = []
    for name, running in s.clusters.items():
        for rule in (_floor, _unneeded, _astray):
            found = rule(s, name, running)
            if found is not None:
                roles, reason, text = found
                changed[name] = _with(running, roles)
                said.append((reason, text))
                break
    if not changed:
        return None
    message = " ".join(text for _, text in said)
    if (wait := s.too_soon()) is not None:
        return s.hold("RateLimited", f"{message} Waiting: {wait[0]}.", next_at_s=wait[1])
    verdict = s.adopt(changed, said[0][0], message)
    if all(reason != "FloorRestored" for reason, _ in said):
        return verdict
    memory = dataclasses.replace(verdict.memory, roles_changed_at_s=s.now_s)
    return dataclasses.replace(verdict, memory=memory)


Found = tuple[Roles, str, str]


def _floor(s: Situation, name: str, running: ClusterPlan) -> Found | None:
    """Below its least number a role is refilled, whatever else is known or unknown."""
    if name not in s.movable or moving(s.observation.pd[name]):
        return None
    if s.now_s < _free_at_s(s, name):
        return None  # the last attempt failed or was cancelled: not again at once
    cluster, present = s.cluster(name), _present(s.observation.pd[name], s.cluster(name), running)
    total = sum(present)
    if total < cluster.min_prefill + cluster.min_decode:
        return None
    n_decode = min(max(present[1], cluster.min_decode), total - cluster.min_prefill)
    roles = (total - n_decode, n_decode)
    if roles in (present, (running.n_prefill, running.n_decode)):
        return None
    return roles, "FloorRestored", words.floor(name, present, roles, cluster)


def _unneeded(s: Situation, name: str, running: ClusterPlan) -> Found | None:
    """A rebalance under way that would no longer be begun: demand is gone, or the mix moved."""
    seen = s.observation.pd[name]
    change = seen.role_change
    if change is None or change.state != "running" or not observed(seen):
        return None
    if (change.n_prefill, change.n_decode) != (running.n_prefill, running.n_decode):
        return None  # already told to stop
    present = (seen.n_prefill, seen.n_decode)
    if s.demand_rps(name) == 0.0:
        return present, "RolesCancelled", words.roles_unneeded(name, running, "no request arrives")
    if s.model is None or name not in s.busy or _stale(s, name):
        return None
    before = _best_t(s, s.model, {name: present})
    after = _best_t(s, s.model, {name: (running.n_prefill, running.n_decode)})
    gain = _gain(s, before, after)
    unwanted_below = _TIE if _target(s) is not None else -s.params.roles_min_gain_ratio / 2
    if present == (running.n_prefill, running.n_decode) or gain >= unwanted_below:
        return None
    why = f"the new roles would carry {after.prediction.lambda_max_rps:.2f} requests/s, the "
    why += f"present ones carry {before.prediction.lambda_max_rps:.2f}"
    return present, "RolesCancelled", words.roles_unneeded(name, running, why)


def _astray(s: Situation, name: str, running: ClusterPlan) -> Found | None:
    """Engines that run other roles than the plan, with nobody moving them: the plan follows.

    Advice follows nobody: the model takes what engines run in any case.
    """
    if s.params.mode == "advisory":
        return None
    since_s = s.memory.roles_astray_since_s.get(name)
    if since_s is None or s.now_s - min(since_s, s.now_s) < ASTRAY_S:
        return None
    seen = s.observation.pd[name]
    present = (seen.n_prefill, seen.n_decode)
    return present, "RolesFollowed", words.roles_followed(name, running, present, seen.role_change)


def step(s: Situation) -> RoleStep:
    """Towards the best roles, as far and as soon as the dampers allow."""
    model = s.model
    if model is None or s.current is None or not s.movable:
        return RoleStep()
    present = {n: _roles(s, n) for n in s.busy}
    free = [n for n in s.movable if n in s.busy and _free(s, n)]
    if not free or any(moving(s.observation.pd[n]) for n in s.clusters):
        return RoleStep()
    base = _best_t(s, model, present)
    best = _best_roles(s, model, present, free)
    gain = _gain(s, base, best)
    if gain < s.params.roles_min_gain_ratio:
        return RoleStep()
    wanted = {n: _of(best.settings[n]) for n in free if _of(best.settings[n]) != present[n]}
    stepped, clamps = _stepped(s, present, wanted)
    after = _best_t(s, model, {**present, **_without_silent(s, present, stepped)})
    if not _sure(s, model, base, after):
        return RoleStep()
    since_s = s.memory.roles_gain_since_s
    since_s = s.now_s if since_s is None else since_s
    waits = _waits(s, since_s, stepped)
    if waits:
        reason, why, at_s = max(waits, key=lambda wait: wait[2])
        text = words.roles_pending(present, stepped, gain, why)
        return RoleStep(since_s=since_s, waiting=(reason, text, at_s))
    return RoleStep(verdict=_adopted(s, base, best, present, stepped, clamps))


def _adopted(
    s: Situation,
    base: Optimum,
    best: Optimum,
    present: Mapping[str, Roles],
    stepped: Mapping[str, Roles],
    clamps: tuple[Clamp, ...],
) -> Verdict:
    assert s.model is not None, "asked for only with a model"
    after = _best_t(s, s.model, {**present, **stepped})
    limits = list(clamps)
    changed = {
        name: _t_along(
            s, s.model, _with(s.clusters[name], roles), name, after.settings[name].threshold, limits
        )
        for name, roles in stepped.items()
    }
    plans = {**s.clusters, **changed}
    running = {
        name: Setting(fleetmodel.threshold_of(plans[name]), *stepped.get(name, present[name]))
        for name in s.busy
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
    t = into_bounds(
        s.params, hysteresis.step_limited(current, wanted, s.params.t_max_step_factor), allowed
    )
    settings = s.settings(s.clusters)
    trial = {**settings, name: dataclasses.replace(settings[name], threshold=float(t))}
    now_h = predict(model, settings).headroom or 0.0
    if (predict(model, trial).headroom or 0.0) < min(now_h, BEARABLE_HEADROOM):
        return plan
    clamps += allowed
    return changed_to(plan, "threshold", t)


def _best_plan(s: Situation, name: str, setting: Setting) -> ClusterPlan:
    plan = _with(s.clusters[name], _of(setting))
    if name not in s.tunable:
        return plan
    threshold = round(setting.threshold)
    return dataclasses.replace(plan, mode="threshold", threshold_tokens=threshold, band=None)


def patience(failed: int) -> int:
    """How many times the dwell a further attempt waits after `failed` in a row."""
    return int(min(2**failed, MOST_PATIENCE))


def _waits(
    s: Situation, since_s: float, stepped: Mapping[str, Roles]
) -> list[tuple[str, str, float]]:
    params, now_s = s.params, s.now_s
    held_s = hysteresis.wait_until(since_s, params.roles_gain_hold_s, now_s)
    waits = [
        ("RolesGainPending", f"a gain has to last {params.roles_gain_hold_s:g} s", held_s),
    ]
    for name in stepped:
        why = f"roles of {name} move at most every {_dwell_s(s, name):g} s"
        waits.append(("RolesDwell", why, _free_at_s(s, name)))
    if (soon := s.too_soon()) is not None:
        waits.append(("RateLimited", soon[0], soon[1]))
    return [wait for wait in waits if wait[2] > now_s]


def _dwell_s(s: Situation, name: str) -> float:
    return s.params.roles_dwell_s * patience(s.memory.roles_failed.get(name, 0))


def _free_at_s(s: Situation, name: str) -> float:
    """When the cluster's roles may be asked for again."""
    change = s.observation.pd[name].role_change
    times = (s.memory.roles_changed_at_s, change.ended_at_s if change else None)
    last_s = max((at for at in times if at is not None), default=None)
    return hysteresis.wait_until(last_s, _dwell_s(s, name), s.now_s)


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
        stepped[name] = (total - allowed, allowed)
    return stepped, tuple(clamps)


def _best_roles(
    s: Situation, model: FleetModel, present: Mapping[str, Roles], free: list[str]
) -> Optimum:
    """The best roles; among equals the fewest moves."""
    freedom = {n: _fixed(s, n, roles) for n, roles in present.items()}
    for name in free:
        fixed, cluster = freedom[name], s.cluster(name)
        total = sum(present[name])
        freedom[name] = Freedom(
            fixed.t_low, fixed.t_high, total, cluster.min_decode, total - cluster.min_prefill
        )
    best = optimise(model, freedom, headroom_target=_target(s))
    for name in free:
        if _of(best.settings[name]) == present[name]:
            continue
        stays = {**freedom, name: _fixed(s, name, present[name])}
        other = optimise(model, stays, headroom_target=_target(s))
        if (other.prediction.headroom or 0.0) >= (best.prediction.headroom or 0.0) * (1 - _TIE):
            freedom, best = stays, other
    return best


def _best_t(s: Situation, model: FleetModel, roles: Mapping[str, Roles]) -> Optimum:
    """The best thresholds at these roles, at the observed ones where none are given."""
    freedom = {n: _fixed(s, n, roles.get(n, _roles(s, n))) for n in s.busy}
    return optimise(model, freedom, headroom_target=_target(s))


def _fixed(s: Situation, name: str, roles: Roles) -> Freedom:
    if name in s.tunable:
        low, high = float(s.params.t_min_tokens), float(s.params.t_max_tokens)
    else:
        low = high = s.settings(s.clusters)[name].threshold
    return Freedom.of_threshold(low, high, n_prefill=roles[0], n_decode=roles[1])


def _target(s: Situation) -> float | None:
    return s.params.headroom_target if s.params.objective == "min_remote" else None


def _gain(s: Situation, before: Optimum, after: Optimum) -> float:
    """after / before - 1 in headroom; beyond a target there is nothing to gain."""
    now, then = before.prediction.headroom or 0.0, after.prediction.headroom or 0.0
    target = _target(s)
    if target is not None:
        now, then = min(now, target), min(then, target)
    return min(then / max(now, _TIE), 1.0 / _TIE) - 1.0


def _sure(s: Situation, model: FleetModel, base: Optimum, after: Optimum) -> bool:
    logs = np.log(headroom_draws(model, s.outlooks, after.settings)) - np.log(
        headroom_draws(model, s.outlooks, base.settings)
    )  # (n_draws,)
    return float(logs.mean()) >= max(LEAST_LOG_GAIN, RISE_SD * float(logs.std()))


def _without_silent(
    s: Situation, present: Mapping[str, Roles], stepped: Mapping[str, Roles]
) -> dict[str, Roles]:
    """`stepped` as it would be if the silent instances of a shrinking role carry nothing more."""
    found = {}
    for name, (n_prefill, n_decode) in stepped.items():
        seen = s.observation.pd[name]
        if n_decode < present[name][1]:
            n_decode = max(n_decode - len(seen.decode_silent), 1)
        else:
            n_prefill = max(n_prefill - len(seen.prefill_silent), 1)
        found[name] = (n_prefill, n_decode)
    return found


def _free(s: Situation, name: str) -> bool:
    """Whether the cluster's roles are known and there is more than one way to set them."""
    seen, cluster = s.observation.pd[name], s.cluster(name)
    total = seen.n_prefill + seen.n_decode
    return observed(seen) and total >= cluster.min_prefill + cluster.min_decode


def _roles(s: Situation, name: str) -> Roles:
    setting = s.settings(s.clusters)[name]
    return _of(setting)


def _of(setting: Setting) -> Roles:
    return round(setting.n_prefill), round(setting.n_decode)


def _present(seen: PdObservation, cluster: Cluster, running: ClusterPlan) -> Roles:
    """What the engines say where all of them do, else what the plan says."""
    if seen.n_prefill + seen.n_decode == cluster.instances:
        return seen.n_prefill, seen.n_decode
    return running.n_prefill, running.n_decode


def _stale(s: Situation, name: str) -> bool:
    age_s = s.observation.pd[name].age_s
    return age_s is not None and age_s > s.params.stale_after_s


def _with(plan: ClusterPlan, roles: Roles) -> ClusterPlan:
    return dataclasses.replace(plan, n_prefill=roles[0], n_decode=roles[1])
