"""Which thresholds would be best now, what they would gain, and whether that is more than noise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from routing.core.kvcache import bytes_per_s
from routing.core.lengths import Array
from routing.core.optimize import Freedom, optimise
from routing.core.situation import Situation
from routing.core.throughput import FleetModel, Setting, predict, work
from routing.core.types import ClusterPlan, Prediction
from routing.core.uncertainty import FALL_SD, LEAST_LOG_GAIN, RISE_SD, Outlook

_SEARCH_BELOW, _SEARCH_ABOVE, _N_SEARCH = 0.6, 1.3, 129
"""The noise-aware t is sought within these factors of the best t of the mean, 0.6 % apart."""
_TIE = 1e-6
_LEAST_HEADROOM = 1e-9


@dataclass(frozen=True)
class Proposal:
    """Best thresholds per tunable cluster, what they carry, and the gain over the running plan.

    `gain_ratio` 0.05: the model's best t carries 5 % more than the running plan (or sends 5 % less
    remote where that is the objective). `significant`: the aim gains in spite of sampling noise.
    """

    plans: dict[str, ClusterPlan]
    prediction: Prediction
    gain_ratio: float
    significant: bool
    saves_remote: bool


def propose(situation: Situation, model: FleetModel) -> Proposal:
    """The thresholds to aim at; everything not tunable stays as it runs."""
    running = situation.settings(situation.clusters)
    tunable = [name for name in situation.tunable if name in running]
    params = situation.params
    target = params.headroom_target if params.objective == "min_remote" else None
    freedom = {
        name: Freedom.of_threshold(
            *(
                (float(params.t_min_tokens), float(params.t_max_tokens))
                if name in tunable
                else (setting.threshold, setting.threshold)
            ),
            n_prefill=int(setting.n_prefill),
            n_decode=int(setting.n_decode),
        )
        for name, setting in running.items()
    }
    best = optimise(model, freedom, headroom_target=target)
    aimed = best.settings
    for name in tunable:
        aimed = _under_noise(model, situation.outlooks, aimed, name, freedom[name], target)
    before, after = predict(model, running), predict(model, aimed)
    now_h = headroom_draws(model, situation.outlooks, running)
    aimed_h = headroom_draws(model, situation.outlooks, aimed)
    logs = np.log(aimed_h) - np.log(now_h)  # (n_draws,)
    gain = _ratio(best.prediction.headroom, before.headroom)
    surely = float(logs.mean()) >= max(LEAST_LOG_GAIN, _sure(running, aimed) * float(logs.std()))
    saves = target is not None and float(np.log(now_h).mean()) >= math.log(target) - _TIE
    if saves:
        gain, surely = _ratio(before.remote_fraction, after.remote_fraction), True
    return Proposal(
        plans={
            name: dataclasses.replace(
                situation.clusters[name],
                mode="threshold",
                threshold_tokens=round(aimed[name].threshold),
                band=None,
            )
            for name in tunable
        },
        prediction=after,
        gain_ratio=gain,
        significant=surely,
        saves_remote=saves,
    )


def _under_noise(
    model: FleetModel,
    outlooks: Mapping[str, Outlook],
    settings: dict[str, Setting],
    name: str,
    freedom: Freedom,
    target: float | None,
) -> dict[str, Setting]:
    """`settings` with the threshold of `name` moved to where E[ln h] is greatest."""
    best = settings[name].threshold
    low, high = max(best * _SEARCH_BELOW, freedom.t_low), min(best * _SEARCH_ABOVE, freedom.t_high)
    grid = np.unique(np.round(np.geomspace(max(low, 1.0), max(high, 1.0), _N_SEARCH)))
    grid = np.clip(grid, freedom.t_low, freedom.t_high)
    headroom = _headrooms(model, outlooks, settings, name, grid)  # (n_draws, g)
    expected = np.log(headroom).mean(axis=0)
    floor = expected.max()
    if target is not None:
        floor = min(floor, math.log(target))
    # Ties, and all that reaches a target, fall to the highest t: the least traffic on links.
    chosen = float(grid[np.nonzero(expected >= floor - _TIE)[0][-1]])
    return {**settings, name: dataclasses.replace(settings[name], threshold=chosen)}


def headroom_draws(
    model: FleetModel, outlooks: Mapping[str, Outlook], settings: dict[str, Setting]
) -> Array:
    """Headroom of the fleet in every draw, shape (n_draws,)."""
    name = model.sites[0].name
    at = np.array([settings[name].threshold])
    return _headrooms(model, outlooks, settings, name, at)[:, 0]


def _headrooms(
    model: FleetModel,
    outlooks: Mapping[str, Outlook],
    settings: dict[str, Setting],
    varied: str,
    grid: Array,
) -> Array:
    """Headroom in every draw while cluster `varied` runs each t of `grid`: (n_draws, g)."""
    tightest = np.zeros(1)
    remote = dict.fromkeys(model.prefill, np.zeros(1))
    shipped = dict.fromkeys(model.link_gbps, np.zeros(1))
    for site in model.sites:
        known, setting = outlooks[site.name], settings[site.name]
        t = grid if site.name == varied else np.array([setting.threshold])
        each = work(model.kv, dataclasses.replace(site, lengths=known.buckets), t)  # (n, g)
        demand, draws = site.demand_rps, known.draws
        local = demand * (draws @ each.local_s) / max(setting.n_prefill, _LEAST_HEADROOM)
        decode = demand * site.decode_s / max(setting.n_decode, _LEAST_HEADROOM)
        tightest = np.maximum(tightest, np.maximum(local, decode))
        for name, seconds in each.remote_s.items():
            remote[name] = remote[name] + demand * (draws @ seconds)
        for link, size in each.link_bytes.items():
            shipped[link] = shipped[link] + demand * (draws @ size)
    for name, load in remote.items():
        tightest = np.maximum(tightest, load / max(model.prefill[name], _LEAST_HEADROOM))
    for link, rate in shipped.items():
        capacity = max(bytes_per_s(model.link_gbps[link]), _LEAST_HEADROOM)
        tightest = np.maximum(tightest, rate / capacity)
    headroom: Array = 1.0 / np.clip(tightest, _LEAST_HEADROOM, 1.0 / _LEAST_HEADROOM)
    return headroom


def _sure(running: Mapping[str, Setting], aimed: Mapping[str, Setting]) -> float:
    """How many standard deviations a change's gain has to be worth."""
    rises = any(aimed[name].threshold > running[name].threshold for name in running)
    return RISE_SD if rises else FALL_SD


def _ratio(new: float | None, old: float | None) -> float:
    """new / old - 1, kept finite."""
    return min((new or 0.0) / max(old or 0.0, _TIE), 1.0 / _TIE) - 1.0
