"""Which thresholds would be best now, what they would gain, and whether that is more than noise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from routing.core.model import fleetmodel
from routing.core.model.draws import Loads
from routing.core.model.optimize import Optimum
from routing.core.model.throughput import FleetModel, Setting, headroom_of, predict
from routing.core.model.uncertainty import FALL_SD, LEAST_LOG_GAIN, RISE_SD
from routing.core.situation import Situation
from routing.core.types import ClusterPlan, Prediction

_SEARCH_BELOW, _SEARCH_ABOVE, _N_SEARCH = 0.6, 1.3, 65
"""The noise-aware t is sought within these factors of the best t of the mean, 1.2 % apart."""
_TIE = 1e-6


@dataclass(frozen=True)
class Proposal:
    """Best thresholds per tunable cluster, what they carry, and the gain over the running plan.

    `gain_ratio` 0.05: the model's best t carries 5 % more than the running plan (or sends 5 % less
    remote where that is the objective). `significant`: the aim gains in spite of sampling noise.
    `gains`: what each cluster's own headroom gains. `promised_ratio`: the gain of the aim itself,
    which keeps clear of noise and may be a little less; it is what people are told.
    """

    plans: dict[str, ClusterPlan]
    prediction: Prediction
    gain_ratio: float
    promised_ratio: float
    significant: bool
    saves_remote: bool
    gains: Mapping[str, float]


def propose(situation: Situation, model: FleetModel, current: Prediction) -> Proposal:
    """The thresholds to aim at; everything not tunable stays as it runs. `current` is what runs."""
    running = situation.running
    tunable = [name for name in situation.tunable if name in running]
    target, best = situation.headroom_target, situation.best_now
    aimed, loads = _under_noise(situation, tunable)
    before, after = current, predict(model, aimed)
    now = situation.draws.at(running)
    now_h, aimed_h = now.headroom, loads.headroom  # (n_draws,)
    gain = _ratio(best.prediction.headroom, before.headroom)
    promised = _ratio(after.headroom, before.headroom)
    # One cluster may gain although another one limits the fleet as before.
    gains = _gains(situation, model, before, best)
    its_gain, name = max(((capped, name) for name, (capped, _) in gains.items()), default=(0.0, ""))
    if name and its_gain > gain:
        gain, most = its_gain, situation.params.headroom_target
        promised = _gains(situation, model, before, Optimum(aimed, after))[name][0]
        now_h = np.minimum(now.headroom_of(name), most)
        aimed_h = np.minimum(loads.headroom_of(name), most)
    logs = np.log(aimed_h) - np.log(now_h)
    surely = float(logs.mean()) >= max(LEAST_LOG_GAIN, _sure(running, aimed) * float(logs.std()))
    saves = target is not None and float(np.log(now_h).mean()) >= math.log(target) - _TIE
    if saves:
        gain, surely = _ratio(before.remote_fraction, after.remote_fraction), True
        promised = gain
    return Proposal(
        plans={
            name: dataclasses.replace(
                situation.clusters[name],
                mode="threshold",
                threshold_tokens=round(aimed[name].threshold),
                remote=fleetmodel.planned(aimed[name].shares or {}),
                band=None,
            )
            for name in tunable
        },
        prediction=after,
        gain_ratio=gain,
        promised_ratio=promised,
        significant=surely,
        saves_remote=saves,
        gains={name: whole for name, (_, whole) in gains.items()},
    )


def _gains(
    situation: Situation, model: FleetModel, before: Prediction, best: Optimum
) -> dict[str, tuple[float, float]]:
    """What each tunable cluster gains of its own headroom: up to what is enough, and in all."""
    enough, found = situation.params.headroom_target, {}
    for site in model.sites:
        if site.name in situation.tunable:
            now = headroom_of(site, before, situation.running[site.name])
            then = headroom_of(site, best.prediction, best.settings[site.name])
            found[site.name] = (_ratio(min(then, enough), min(now, enough)), _ratio(then, now))
    return found


def _under_noise(situation: Situation, names: Iterable[str]) -> tuple[dict[str, Setting], Loads]:
    """The best settings of the mean with the thresholds of `names`, in turn, moved to where
    E[ln h] is greatest, and the loads there."""
    chosen = dict(situation.best_now.settings)
    loads = situation.loads_best_now.copy()
    target, params = situation.headroom_target, situation.params
    for name in names:
        setting = chosen[name]
        low = max(setting.threshold * _SEARCH_BELOW, params.t_min_tokens)
        high = min(setting.threshold * _SEARCH_ABOVE, params.t_max_tokens)
        grid = np.unique(np.round(np.geomspace(max(low, 1.0), max(high, 1.0), _N_SEARCH)))
        grid = np.clip(grid, params.t_min_tokens, params.t_max_tokens)
        along = loads.along(name, setting, grid)
        fleets, its = (np.log(h).mean(axis=0) for h in (along.headroom, along.its_headroom))
        floor = fleets.max()
        if target is not None:
            floor = min(floor, math.log(target))
        # Ties, and all that reaches a target, fall to the highest t: the least traffic on links.
        # But that another cluster limits is no reason to leave this one less than is enough.
        as_good = fleets >= floor - _TIE
        its_floor = min(its[as_good].max(), math.log(params.headroom_target))
        best = int(np.nonzero(as_good & (its >= its_floor - _TIE))[0][-1])
        chosen[name] = dataclasses.replace(setting, threshold=float(grid[best]))
        loads.take(name, along, best)
    return chosen, loads


def _sure(running: Mapping[str, Setting], aimed: Mapping[str, Setting]) -> float:
    """How many standard deviations a change's gain has to be worth."""
    rises = any(aimed[name].threshold > running[name].threshold for name in running)
    return RISE_SD if rises else FALL_SD


def _ratio(new: float | None, old: float | None) -> float:
    """new / old - 1, kept finite."""
    return min((new or 0.0) / max(old or 0.0, _TIE), 1.0 / _TIE) - 1.0
