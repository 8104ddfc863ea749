"""Changes of roles that need no gain: floors, a rebalance nobody needs any more, facts."""

from __future__ import annotations

import dataclasses

from routing.core import words
from routing.core.bottleneck import Roles
from routing.core.roles.memory import ASTRAY_S, moving, observed
from routing.core.roles.model import best_t, free_at_s, gain_of, with_roles
from routing.core.scenario.document import Cluster
from routing.core.situation import Situation
from routing.core.types import ClusterPlan, PdObservation, Verdict

_TIE = 1e-6


def settled(s: Situation) -> Verdict | None:
    """Changes of roles that need no gain: floors, a rebalance nobody needs any more, facts."""
    changed: dict[str, ClusterPlan] = {}
    said: list[tuple[str, str]] = []
    for name, running in s.clusters.items():
        for rule in (_floor, _unneeded, _astray):
            found = rule(s, name, running)
            if found is not None:
                roles, reason, text = found
                changed[name] = with_roles(running, roles)
                said.append((reason, text))
                break
    if not changed:
        return None
    message = " ".join(text for _, text in said)
    floors = any(reason == "FloorRestored" for reason, _ in said)
    if (wait := s.too_soon("urgent" if floors else "loop")) is not None:
        return s.hold("RateLimited", f"{message} Waiting: {wait[0]}.", next_at_s=wait[1])
    verdict = s.adopt(changed, said[0][0], message)
    if not floors:
        return verdict
    memory = dataclasses.replace(verdict.memory, roles_changed_at_s=s.now_s)
    return dataclasses.replace(verdict, memory=memory)


Found = tuple[Roles, str, str]


def _floor(s: Situation, name: str, running: ClusterPlan) -> Found | None:
    """Below its least number a role is refilled, whatever else is known or unknown."""
    if name not in s.staffed or moving(s.observation.pd[name]):
        return None
    if s.now_s < free_at_s(s, name):
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
    if name in s.role_pins:
        return None  # a person asked for it
    if (change.n_prefill, change.n_decode) != (running.n_prefill, running.n_decode):
        return None  # already told to stop
    present = (seen.n_prefill, seen.n_decode)
    if sum(present) > s.cluster(name).instances:
        return None  # more than there are: nothing to go back to
    if s.demand_rps(name) == 0.0:
        return present, "RolesCancelled", words.roles_unneeded(name, running, "no request arrives")
    if s.model is None or name not in s.outlooks or _stale(s, name):
        return None
    before = best_t(s, s.model, {name: present})
    after = best_t(s, s.model, {name: (running.n_prefill, running.n_decode)})
    gain = gain_of(s, before, after)
    unwanted_below = _TIE if s.headroom_target is not None else -s.params.roles_min_gain_ratio / 2
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


def _present(seen: PdObservation, cluster: Cluster, running: ClusterPlan) -> Roles:
    """What the engines say where all of them do, else what the plan says."""
    if seen.n_prefill + seen.n_decode == cluster.instances:
        return seen.n_prefill, seen.n_decode
    return running.n_prefill, running.n_decode


def _stale(s: Situation, name: str) -> bool:
    age_s = s.observation.pd[name].age_s
    return age_s is not None and age_s > s.params.stale_after_s
