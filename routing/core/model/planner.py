"""What `manage.py plan` answers: the best plan of a scenario, its links, and two baselines.

`homogeneous`: the scenario's baseline instances, all of one profile, serve everything between
themselves. `naive`: every request is prefilled remotely and every PD instance decodes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from routing.core.model import fleetmodel
from routing.core.model.optimize import Freedom, optimise
from routing.core.model.profiles import PrefillProfile
from routing.core.model.site_work import Method, Site, SiteWork
from routing.core.model.throughput import (
    ALWAYS_LOCAL_T,
    ALWAYS_REMOTE_T,
    FleetModel,
    Setting,
    predict,
    shares_of,
)
from routing.core.scenario.document import Cluster, Scenario
from routing.core.scenario.tables import ScenarioError
from routing.core.types import Params, Prediction

_BINDING = 0.999
"""How full a stage has to be at lambda_max to be named beside the tightest."""


def plan_scenario(
    scenario: Scenario, method: Method = "exact", *, headroom_target: float | None = None
) -> dict[str, Any]:
    """The best plan as plain values (docs/operations.md): of greatest headroom, or the one that
    sends least remote among those that reach `headroom_target`, if any does.

    Raises ScenarioError where there is nothing to plan, or a pinned cluster does not say at what.
    """
    drained = [c.name for c in scenario.clusters if c.kind == "pd" and c.drained]
    if all(workload.cluster in drained for workload in scenario.workloads):
        raise ScenarioError("clusters", drained, "every PD cluster is drained: nothing to plan")
    model = fleetmodel.of_scenario(scenario, method)
    freedom = {site.name: freedom_of(scenario, site) for site in model.sites}
    best = optimise(model, freedom, headroom_target=headroom_target)
    prediction = best.prediction
    headroom = prediction.headroom or 0.0
    capacity_rps = {stage.name: stage.capacity_rps for stage in prediction.stages}
    answer: dict[str, Any] = {
        "fleet": scenario.fleet,
        "method": method,
        "headroom": headroom,
        "lambda_max_rps": prediction.lambda_max_rps,
        "bottleneck": prediction.bottleneck,
        "binding": [
            stage.name
            for stage in prediction.stages
            if headroom * (stage.utilisation_ratio or 0.0) >= _BINDING
        ],
        "clusters": {
            site.name: _cluster(model, site, best.settings[site.name], prediction)
            for site in model.sites
        },
        "links": {
            link: {
                "egress_gbps": headroom * rate,
                "utilisation": headroom * (prediction.link_utilisation_ratio[link] or 0.0),
                "planned_gbps": model.link_gbps[link],
            }
            for link, rate in prediction.link_gbps.items()
        },
        "stages_rps": capacity_rps,
        "left_out": {w.cluster: w.rate_rps for w in scenario.workloads if w.cluster in drained},
        "baselines": {},
    }
    if scenario.homogeneous is not None:
        answer["baselines"]["homogeneous"] = _homogeneous(scenario, model)
    if all(site.remotes for site in model.sites):
        answer["baselines"]["naive"] = _naive(scenario, model)
    return answer


def freedom_of(scenario: Scenario, site: Site) -> Freedom:
    """What a plan may choose for one PD cluster: t, and roles where they are not pinned.

    Raises ScenarioError where a pinned cluster does not say at what."""
    cluster = _described(scenario, site.name)
    bounds = Params()
    low, high = float(bounds.t_min_tokens), float(bounds.t_max_tokens)
    if not site.remotes:
        low = high = ALWAYS_LOCAL_T
    if cluster.pinned and cluster.start is None:
        message = "needs start = { n_prefill = ... }: a plan has to know which roles are pinned"
        raise ScenarioError(f"clusters.{cluster.name}.pinned", True, message)
    if cluster.pinned and cluster.start is not None:
        n_decode = cluster.instances - cluster.start.n_prefill
        return Freedom.of_threshold(low, high, n_prefill=cluster.start.n_prefill, n_decode=n_decode)
    most = cluster.instances - cluster.min_prefill
    return Freedom(low, high, cluster.instances, cluster.min_decode, most)


def _described(scenario: Scenario, name: str) -> Cluster:
    return next(cluster for cluster in scenario.clusters if cluster.name == name)


def _cluster(
    model: FleetModel, site: Site, setting: Setting, prediction: Prediction
) -> dict[str, Any]:
    """One PD cluster's plan. Thetas count requests of each class, as the paper's: a stage's
    capacity in whole requests times the share of them that reach it."""
    local = not site.remotes
    share = model.works[site.name].at(setting.threshold).remote_fraction
    whole = {stage.name: stage.capacity_rps for stage in prediction.stages}
    remote_rps = [
        whole[name] * share
        for remote in site.remotes
        for name in (f"remote_prefill:{remote.name}", f"link:{remote.link}")
        if name in whole
    ]
    return {
        "mode": "always_local" if local else "threshold",
        "threshold_tokens": None if local else round(setting.threshold),
        "n_prefill": round(setting.n_prefill),
        "n_decode": round(setting.n_decode),
        "remote_fraction": share,
        "remote": dict(shares_of(site, setting)),
        "theta_remote_rps": min(remote_rps, default=0.0),
        "theta_prefill_rps": whole.get(f"local_prefill:{site.name}", 0.0) * (1.0 - share),
        "theta_decode_rps": whole.get(f"decode:{site.name}", 0.0),
        "extrapolated": _extrapolated(site, setting.threshold),
    }


def _extrapolated(site: Site, t: float) -> dict[str, float]:
    """Per side the share of all requests whose prefill lies outside what its profile measured."""

    def outside(profile: PrefillProfile, low: float, high: float) -> float:
        measured = profile.range_tokens
        first, last = (high, high) if measured is None else measured
        inside = (min(max(low, first), high), max(min(high, last), low))
        at_low, at_high = site.lengths.at(low)[0], site.lengths.at(high)[0]
        known = max(0.0, site.lengths.at(inside[1])[0] - site.lengths.at(inside[0])[0])
        return max(0.0, at_high - at_low - known)

    found = {"local": outside(site.profile.prefill, 0.0, t)}
    for remote in site.remotes:
        found[remote.name] = outside(remote.profile, t, ALWAYS_LOCAL_T)
    return found


def _homogeneous(scenario: Scenario, model: FleetModel) -> dict[str, Any]:
    """All traffic of the fleet on identical instances: PD clusters share them by need."""
    baseline = scenario.homogeneous
    assert baseline is not None, "asked for only where the scenario has one"
    profile = scenario.profiles[baseline.profile]
    sites = [dataclasses.replace(s, profile=profile, remotes=()) for s in model.sites]
    # Instances are interchangeable, so only summed work counts.
    prefill_s = sum(
        s.demand_rps * SiteWork(model.kv, s, model.method).local_s(ALWAYS_LOCAL_T) for s in sites
    )
    decode_s = sum(s.demand_rps * s.decode_s for s in sites)
    # The balance of roles, n_p / prefill_s = n_d / decode_s, lies beside the best whole number.
    balance = int(baseline.instances * prefill_s / (prefill_s + decode_s))
    n_prefill = max(
        (min(max(n, 1), baseline.instances - 1) for n in (balance, balance + 1)),
        key=lambda n: min(n / prefill_s, (baseline.instances - n) / decode_s),
    )
    n_decode = baseline.instances - n_prefill
    headroom = min(n_prefill / prefill_s, n_decode / decode_s)
    return {
        "lambda_max_rps": headroom * model.demand_rps,
        "n_prefill": n_prefill,
        "n_decode": n_decode,
    }


def _naive(scenario: Scenario, model: FleetModel) -> dict[str, Any]:
    settings = {
        site.name: Setting(ALWAYS_REMOTE_T, 0, float(_described(scenario, site.name).instances))
        for site in model.sites
    }
    prediction = predict(model, settings)
    return {
        "lambda_max_rps": prediction.lambda_max_rps,
        "n_prefill": 0,
        "n_decode": round(sum(setting.n_decode for setting in settings.values())),
    }
