"""Roles as the model sees them: the best t at given roles, the best roles, what they gain, and when
they may be asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from routing.core import hysteresis
from routing.core.bottleneck import Roles
from routing.core.model.optimize import Freedom, Optimum
from routing.core.model.throughput import FleetModel, Setting, headroom_of, predict
from routing.core.model.uncertainty import LEAST_LOG_GAIN, RISE_SD
from routing.core.situation import Situation
from routing.core.types import ClusterPlan, Prediction

MOST_PATIENCE = 8
CLOCK_AHEAD_S = 60.0
"""An end further ahead than this was not written by the clock that runs now."""
LARGE_FLEET = 16
"""PD clusters; beyond, what is only shown must not cost two more searches a tick."""
_TIE = 1e-6


def best_roles(
    s: Situation, model: FleetModel, present: Mapping[str, Roles], free: list[str]
) -> Optimum:
    """The best roles; among equals the fewest moves."""
    freedom = {n: s.freedom(n, roles) for n, roles in present.items()}
    for name in free:
        cluster, total = s.cluster(name), sum(present[name])
        freedom[name] = dataclasses.replace(
            freedom[name],
            decode_low=cluster.min_decode,
            decode_high=total - cluster.min_prefill,
            decode_now=present[name][1],
        )
    return s.optimum(freedom)


def best_t(s: Situation, model: FleetModel, roles: Mapping[str, Roles]) -> Optimum:
    """The best thresholds at these roles, at the observed ones where none are given."""
    wanted = {n: roles.get(n, roles_of(s, n)) for n in s.outlooks}
    if all(wanted[n] == roles_of(s, n) for n in s.outlooks):
        return s.best_now
    freedom = {n: s.freedom(n, wanted[n]) for n in s.outlooks}
    return s.optimum(freedom)


def best_t_of(
    s: Situation,
    model: FleetModel,
    name: str,
    roles: Roles,
    plans: Mapping[str, ClusterPlan],
) -> Optimum:
    """What the fleet carries with cluster `name` at these roles and its best t, the others as
    planned; in a large fleet at the planned t."""
    settings = s.settings(plans)
    if len(settings) > LARGE_FLEET:
        planned = dataclasses.replace(settings[name], n_prefill=roles[0], n_decode=roles[1])
        settings = {**settings, name: planned}
        return Optimum(settings, predict(model, settings))
    freedom = {}
    for other, setting in settings.items():
        n_prefill, n_decode = as_roles(setting)
        freedom[other] = Freedom.of_threshold(
            setting.threshold, setting.threshold, n_prefill=n_prefill, n_decode=n_decode
        )
    freedom[name] = s.freedom(name, roles)
    return s.optimum(freedom)


def gain_of(s: Situation, before: Optimum, after: Optimum) -> float:
    """after / before - 1 in headroom; beyond a target there is nothing to gain."""
    now, then = before.prediction.headroom or 0.0, after.prediction.headroom or 0.0
    enough = s.headroom_target
    if enough is not None:
        now, then = min(now, enough), min(then, enough)
    return min(then / max(now, _TIE), 1.0 / _TIE) - 1.0


def own_gains(s: Situation, model: FleetModel, before: Optimum, after: Optimum) -> dict[str, float]:
    """What each cluster gains of its own headroom, up to what is enough: one may gain although
    another limits the fleet as before."""
    enough, found = s.params.headroom_target, {}
    for site in model.sites:
        now = headroom_of(site, before.prediction, before.settings[site.name])
        then = headroom_of(site, after.prediction, after.settings[site.name])
        found[site.name] = min(min(then, enough) / max(min(now, enough), _TIE), 1.0 / _TIE) - 1.0
    return found


def more(after: Prediction, before: Prediction) -> float:
    return min((after.headroom or 0.0) / max(before.headroom or 0.0, _TIE), 1.0 / _TIE) - 1.0


def sure(s: Situation, after: Optimum, whose: str | None) -> bool:
    """Whether `after` gains on the best t at the roles there are in spite of sampling noise: the
    fleet, or the cluster `whose` up to what is enough."""
    now, then = s.loads_best_now, s.draws.at(after.settings)
    now_h, after_h = now.headroom, then.headroom
    if whose is not None:
        enough = s.params.headroom_target
        now_h = np.minimum(now.headroom_of(whose), enough)
        after_h = np.minimum(then.headroom_of(whose), enough)
    logs = np.log(after_h) - np.log(now_h)  # (n_draws,)
    return float(logs.mean()) >= max(LEAST_LOG_GAIN, RISE_SD * float(logs.std()))


def roles_of(s: Situation, name: str) -> Roles:
    return as_roles(s.running[name])


def as_roles(setting: Setting) -> Roles:
    return round(setting.n_prefill), round(setting.n_decode)


def with_roles(plan: ClusterPlan, roles: Roles) -> ClusterPlan:
    return dataclasses.replace(plan, n_prefill=roles[0], n_decode=roles[1])


def dwell_s(s: Situation, name: str) -> float:
    return s.params.roles_dwell_s * patience(s.memory.roles_failed.get(name, 0))


def free_at_s(s: Situation, name: str) -> float:
    """When the cluster's roles may be asked for again."""
    change = s.observation.pd[name].role_change
    ended_s = change.ended_at_s if change else None
    if ended_s is not None and ended_s > s.now_s + CLOCK_AHEAD_S:
        ended_s = None  # the clock was set back: it would block roles until it is there again
    times = (s.memory.roles_changed_at_s, ended_s)
    last_s = max((at for at in times if at is not None), default=None)
    return hysteresis.wait_until(last_s, dwell_s(s, name), s.now_s)


def patience(failed: int) -> int:
    """How many times the dwell a further attempt waits after `failed` in a row."""
    return int(min(2**failed, MOST_PATIENCE))
