"""Changes that need no gain: a person's hold, a link that is down or back, bounds of the policy."""

from __future__ import annotations

import dataclasses

from routing.core import words
from routing.core.model import fleetmodel
from routing.core.situation import Situation, Urgency
from routing.core.steps import changed_to, into_bounds, t_of
from routing.core.types import Clamp, ClusterPlan, HeldPlan, Verdict

URGENT = {"LinkDown", "LinkBack", "RemoteGone", "OutOfBounds"}
"""May use the changes of the hour that are kept back."""


def forced(s: Situation) -> Verdict | None:
    """Holds, links that are down or back, and bounds: adopted at once, without gain or dwell."""
    changed: dict[str, ClusterPlan] = {}
    said: list[tuple[str, str]] = []
    clamps: list[Clamp] = []
    before_down = dict(s.memory.before_down)
    for name, running in s.clusters.items():
        for rule in (_pinned, _links_changed, _bounded):
            found = rule(s, name, running, clamps)
            if found is not None and found[0] != running:
                changed[name] = found[0]
                said.append((found[1], found[2]))
                if found[1] == "LinkDown" and found[0].mode == "always_local":
                    before_down[name] = round(t_of(running, s.params))
                elif found[1] in ("LinkBack", "Held"):
                    before_down.pop(name, None)
            if found is not None:
                break
        pin, now = s.role_pins.get(name), changed.get(name, running)
        if pin is not None and with_pinned_roles(now, pin) != now:
            changed[name] = with_pinned_roles(now, pin)
            said.append(("Held", words.roles_held(name, now, changed[name], pin)))
    if not changed:
        return None
    reason = said[0][0]
    message = " ".join(sentence for _, sentence in said)
    reasons = {found for found, _ in said}
    by: Urgency = "person" if "Held" in reasons else "urgent" if reasons & URGENT else "loop"
    # Who leaves a link has to be able to return: gates refuse what it does not take anyway.
    n = 2 if "LinkDown" in reasons else 1
    if (wait := s.too_soon(by, n)) is not None:
        return s.hold("RateLimited", f"{message} Waiting: {wait[0]}.", next_at_s=wait[1])
    return s.adopt(changed, reason, message, clamps=tuple(clamps), before_down=before_down)


def with_pinned_roles(plan: ClusterPlan, pin: HeldPlan) -> ClusterPlan:
    """The plan with the roles that a person wants."""
    n_prefill, n_decode = pin.n_prefill, pin.n_decode
    if n_prefill is None or n_decode is None:
        return plan
    return dataclasses.replace(plan, n_prefill=n_prefill, n_decode=n_decode)


Forced = tuple[ClusterPlan, str, str]


def pinned(s: Situation, name: str) -> ClusterPlan | None:
    """What a hold of mode and t makes of the cluster's plan; None where none is in force."""
    found = _pinned(s, name, s.clusters[name], [])
    return None if found is None else found[0]


def _pinned(s: Situation, name: str, running: ClusterPlan, clamps: list[Clamp]) -> Forced | None:
    pin = s.pins.get(name)
    if pin is None:
        return None
    threshold = pin.threshold_tokens
    if pin.mode == "threshold":
        # A hold without a threshold pins the one that runs.
        wanted = t_of(running, s.params) if threshold is None else threshold
        threshold = into_bounds(s.params, wanted, clamps)
    assert pin.mode is not None, "a pin of roles is none of t"
    wanted_plan = changed_to(running, pin.mode, threshold if pin.mode == "threshold" else None)
    # A person pins an exact t, not a remote that nothing reaches any more.
    wanted_plan = dataclasses.replace(wanted_plan, band=None, remote=_reached(s, name, wanted_plan))
    return wanted_plan, "Held", words.held(name, wanted_plan, pin)


def _reached(s: Situation, name: str, plan: ClusterPlan) -> dict[str, float]:
    """The plan's shares among the remotes whose links are up; as they are while none is."""
    up = {link.source for link in s.links_up(name)}
    left = {remote: share for remote, share in plan.remote.items() if remote in up}
    total = sum(left.values())
    if total <= 0.0 or len(left) == len(plan.remote):
        return plan.remote
    return fleetmodel.planned({remote: share / total for remote, share in left.items()})


def _links_changed(
    s: Situation, name: str, running: ClusterPlan, clamps: list[Clamp]
) -> Forced | None:
    every, up = s.links_into(name), s.links_up(name)
    down = [link for link in every if link not in up]
    if not up and running.mode == "always_local":
        return None
    used = {source for source, weight in running.remote.items() if weight > 0}
    gone = sorted(used - {link.source for link in every})
    if not every:
        plan = changed_to(running, "always_local", None, remote={})
        return plan, "RemoteGone", words.remote_gone(name, gone, plan)
    if not up:
        plan = changed_to(running, "always_local", None)
        return plan, "LinkDown", words.link_down(name, [s.links[link.id] for link in down], plan)
    names = {link.source for link in up}
    weights = fleetmodel.weights(s.scenario, up)
    if running.mode == "always_local":
        if name not in s.memory.before_down:
            return None
        threshold = into_bounds(s.params, s.memory.before_down[name], clamps)
        plan = changed_to(running, "threshold", threshold, remote=weights)
        return plan, "LinkBack", words.link_back(name, [link.id for link in up], plan)
    if used - names:
        plan = dataclasses.replace(running, remote=weights)
        if gone:
            return plan, "RemoteGone", words.remote_gone(name, gone, plan)
        return plan, "LinkDown", words.link_down(name, [s.links[link.id] for link in down], plan)
    # A remote with a share of 0 is one that is not needed; one that is back has none yet.
    if used and names - running.remote.keys():
        plan = dataclasses.replace(running, remote=weights)
        back = [link.id for link in up if link.source not in running.remote]
        return plan, "LinkBack", words.link_back(name, back, plan)
    return None


def _bounded(s: Situation, name: str, running: ClusterPlan, clamps: list[Clamp]) -> Forced | None:
    if running.mode != "threshold" or running.threshold_tokens is None:
        return None
    threshold = into_bounds(s.params, running.threshold_tokens, clamps)
    plan = running
    if threshold != running.threshold_tokens:
        plan = changed_to(running, "threshold", threshold)
    return plan, "OutOfBounds", words.bounded(name, running, plan, s.params)
