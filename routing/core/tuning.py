"""Towards the best thresholds, as far and as soon as the dampers allow.

A gain has to reach `t_min_gain_ratio`, be clear of sampling noise, last `t_gain_hold_s`, come
`t_dwell_s` after the last change, and moves t by `t_max_step_factor` at most. A congested link that
the model finds overloaded waives hold and dwell for a rise, and forbids every fall until clear.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from routing.core import hysteresis, probe, words
from routing.core.bottleneck import link_label
from routing.core.model.throughput import headroom_of
from routing.core.situation import Situation
from routing.core.steps import changed_to, into_bounds, t_of
from routing.core.threshold import Proposal, propose
from routing.core.types import Clamp, ClusterPlan, Prediction, Verdict

_LEAST_RELIEF = 0.01
_NO_WORSE = 1.0 - 1e-3
"""Relative: so much a step of several clusters may cost on the way to a gain."""
RELIEVED_UTILISATION_RATIO = 0.95
"""A congested link that the model finds no busier than this drains by itself: no more haste."""


def tuned(s: Situation) -> Verdict:
    """Towards the best thresholds, as far and as soon as the dampers allow."""
    model = s.model
    if model is None or s.current is None:
        return s.hold("StaleTelemetry", "Lengths and demand do not fit together: the plan stays.")
    aim = propose(s, model, s.current)
    verdict = _damped(s, aim, s.current)
    return dataclasses.replace(verdict, best=aim.prediction, best_plan=aim.plans)


def _damped(s: Situation, aim: Proposal, current: Prediction) -> Verdict:
    if aim.gain_ratio < s.params.t_min_gain_ratio:
        return s.hold("Optimal", words.optimal(s.clusters, s.params))
    if not aim.significant:
        return s.hold("WithinNoise", words.within_noise(s.clusters))
    since_s = s.now_s if s.memory.gain_since_s is None else s.memory.gain_since_s
    step = _step(s, aim, current)
    changed, clamps, waiting = step.changed, step.clamps, step.waiting
    if not changed and step.forbidden:
        text = words.not_as_congestion(step.forbidden)
        return s.hold("BottleneckForbids", text, gain_since_s=since_s, clamps=clamps)
    if not changed and step.unsure and not waiting:
        text = words.unsure(step.unsure)
        return s.hold("StaleTelemetry", text, gain_since_s=since_s, clamps=clamps)
    if not changed and not waiting:
        return s.hold("Optimal", words.optimal(s.clusters, s.params))
    if not changed:
        at_s = max(s.links[link].clear_at_s(s.params, s.now_s) for link in waiting)
        text = words.not_lowered(waiting, s.links, s.params)
        return s.hold("Congestion", text, next_at_s=at_s, gain_since_s=since_s)
    changed = _no_worse(s, changed, current)
    if not changed:
        text = words.no_step(s.clusters, aim.plans)
        return s.hold("Optimal", text, gain_since_s=since_s, clamps=clamps)
    urgent = _urgent(s, changed, current)
    waits = [] if urgent else _waits(s, since_s)
    if (soon := s.too_soon("urgent" if urgent else "loop")) is not None:
        waits.append(("RateLimited", soon[0], soon[1]))
    if waits:
        reason, why, at_s = max(waits, key=lambda wait: wait[2])
        text = words.pending(s.clusters, aim.plans, aim.promised_ratio, why)
        return s.hold(reason, text, next_at_s=at_s, gain_since_s=since_s, clamps=clamps)
    reason = _reason(s, changed, aim, current, urgent=urgent)
    text = words.adopted(s.clusters, changed, aim, current, s.predict({**s.clusters, **changed}))
    return s.adopt(changed, reason, text, clamps=clamps)


def _no_worse(
    s: Situation, changed: dict[str, ClusterPlan], current: Prediction
) -> dict[str, ClusterPlan]:
    """The changes, or as many of them as leave no cluster of several worse than it is.

    Steps of several clusters end at different times: the first to arrive may need the others there.
    """
    model = s.model
    if model is None or len(model.sites) < 2:
        return changed
    before = {site.name: headroom_of(site, current, s.running[site.name]) for site in model.sites}
    enough, least = s.params.headroom_target, min(before.values())

    def bearable(plans: Mapping[str, ClusterPlan]) -> bool:
        """The worst is better off, or nobody is worse off that has not more than enough."""
        clusters = {**s.clusters, **plans}
        after, settings = s.predict(clusters), s.settings(clusters)
        if after is None:
            return False
        then = {site.name: headroom_of(site, after, settings[site.name]) for site in model.sites}
        return min(then.values()) * _NO_WORSE >= least or all(
            then[name] >= min(before[name], enough) * _NO_WORSE for name in then
        )

    if bearable(changed):
        return changed
    kept: dict[str, ClusterPlan] = {}
    for name, plan in changed.items():
        if bearable({**kept, name: plan}):
            kept[name] = plan
    return kept


@dataclass(frozen=True)
class _Step:
    """What may change now and the clamps on it; the congested links that hold others back; the
    PrfaaS clusters of which it is not known what they are asked; and the links that limit, yet not
    as congestion: t does not rise for them."""

    changed: dict[str, ClusterPlan]
    clamps: tuple[Clamp, ...]
    waiting: list[str]
    unsure: list[str]
    forbidden: list[str]


def _step(s: Situation, aim: Proposal, limit: Prediction) -> _Step:
    """One step per cluster, and no step down while a link is congested."""
    changed: dict[str, ClusterPlan] = {}
    clamps: list[Clamp] = []
    waiting: list[str] = []
    unsure: list[str] = []
    forbidden: list[str] = []
    for name, plan in aim.plans.items():
        running = s.clusters[name]
        current, wanted = t_of(running, s.params), t_of(plan, s.params)
        # Somebody else's gain is no reason to follow one's own noise.
        if not aim.saves_remote and aim.gains.get(name, 0.0) < s.params.t_min_gain_ratio:
            continue
        congested = [link.id for link in s.links_up(name) if s.links[link.id].congested]
        if wanted < current and congested:
            waiting += congested
            # No lower t, but what relieves the link may go elsewhere at the one that runs.
            remote = probe.shares(s, name, plan.remote)
            if relieved(s, name, remote):
                changed[name] = dataclasses.replace(running, remote=remote)
            continue
        shared = sorted(r for r in s.unsure_remotes if plan.remote.get(r, 0.0) > 0.0)
        more = any(plan.remote[r] > running.remote.get(r, 0.0) for r in shared)
        if shared and (wanted < current or more):
            unsure += shared
            clamps.append(Clamp("unknown_demand", wanted, current))
            continue
        held_up = not_congested(s, name)
        if wanted > current and limit.bottleneck in held_up:
            forbidden.append(limit.bottleneck.partition(":")[2])
            clamps.append(Clamp(f"bottleneck_{held_up[limit.bottleneck]}", wanted, current))
            continue
        stepped = hysteresis.step_limited(current, wanted, s.params.t_max_step_factor)
        if stepped != round(wanted):
            clamps.append(Clamp("t_max_step_factor", wanted, float(stepped)))
        allowed = into_bounds(s.params, stepped, clamps)
        remote = probe.shares(s, name, plan.remote)
        after = changed_to(running, "threshold", allowed, remote=remote)
        if after != running:
            changed[name] = after
    return _Step(changed, tuple(clamps), waiting, unsure, forbidden)


def relieved(s: Situation, name: str, remote: Mapping[str, float]) -> bool:
    """Whether shares send less over the congested links into a cluster than the running ones."""
    full = [link.source for link in s.links_up(name) if s.links[link.id].congested]
    running = s.clusters[name].remote
    now, then = (sum(shares.get(source, 0.0) for source in full) for shares in (running, remote))
    return then < now - _LEAST_RELIEF


def not_congested(s: Situation, name: str) -> dict[str, str]:
    """Link stages of a cluster that flows or bursts hold up, with their label."""
    views = [s.links[link.id] for link in s.links_up(name)]
    labels = {f"link:{view.id}": link_label(view) for view in views}
    return {stage: label for stage, label in labels.items() if label in ("flow", "burst")}


def _urgent(s: Situation, changed: dict[str, ClusterPlan], current: Prediction) -> bool:
    """A rise, or other shares, that relieve a congested link which the model finds overloaded."""
    for name, plan in changed.items():
        rises = t_of(plan, s.params) > t_of(s.clusters[name], s.params)
        for link in s.links_up(name) if rises or relieved(s, name, plan.remote) else ():
            used = current.link_utilisation_ratio.get(link.id)
            tight = current.bottleneck == f"link:{link.id}"
            if tight and s.links[link.id].congested and used is not None:
                return used > RELIEVED_UTILISATION_RATIO
    return False


def _waits(s: Situation, since_s: float) -> list[tuple[str, str, float]]:
    """Dampers that are not over yet: reason, why, until when."""
    params, now_s = s.params, s.now_s
    held_s = hysteresis.wait_until(since_s, params.t_gain_hold_s, now_s)
    dwell_s = hysteresis.wait_until(s.memory.last_change_s, params.t_dwell_s, now_s)
    waits = [
        ("GainPending", f"a gain has to last {params.t_gain_hold_s:g} s", held_s),
        ("Dwell", f"changes are at least {params.t_dwell_s:g} s apart", dwell_s),
    ]
    return [wait for wait in waits if wait[2] > now_s]


def _reason(
    s: Situation,
    changed: dict[str, ClusterPlan],
    aim: Proposal,
    current: Prediction,
    *,
    urgent: bool,
) -> str:
    if urgent:
        return "Congestion"
    if aim.saves_remote:
        return "LeastRemote"
    if all(words.running(p) == words.running(s.clusters[n]) for n, p in changed.items()):
        return "ShareImbalance"
    lowered = [
        n for n, p in changed.items() if (p.threshold_tokens or 0) < t_of(s.clusters[n], s.params)
    ]
    cleared = [s.links[link.id].memory.cleared_at_s for n in lowered for link in s.links_up(n)]
    last = s.memory.last_change_s
    if any(at is not None and (last is None or at > last) for at in cleared):
        return "CongestionCleared"
    return "LinkLimit" if current.bottleneck.startswith("link:") else "PrefillImbalance"
