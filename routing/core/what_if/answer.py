"""Everything the planner says of one scenario, as plain values (docs/api.md, What if)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from routing.core.jsonable import to_jsonable
from routing.core.model import fleetmodel
from routing.core.model.optimize import Freedom, optimise
from routing.core.model.planner import freedom_of, plan_scenario
from routing.core.model.site_work import Site
from routing.core.model.throughput import ALWAYS_LOCAL_T, FleetModel, Setting, predict
from routing.core.scenario.document import Baseline, Scenario
from routing.core.scenario.tables import ScenarioError
from routing.core.types import ClusterPlan
from routing.core.what_if.cheapest import cheapest
from routing.core.what_if.sensitivity import CHANGES, sensitivity
from routing.core.what_if.surface import distribution, surface
from routing.core.what_if.sweep import sweep


def what_if(
    scenario: Scenario,
    *,
    cluster: str | None,
    running: Mapping[str, ClusterPlan],
    least_headroom: float,
    most: Mapping[str, int],
) -> dict[str, Any]:
    """The best plan and what surrounds it, seen from one PD `cluster` (the first, if None).

    `running` is the plan in force, empty if none is. Raises ScenarioError where there is nothing
    to plan or `cluster` is none of those that are.
    """
    optimum = plan_scenario(scenario)
    model = fleetmodel.of_scenario(scenario, "exact")
    site = _site(model, cluster)
    freedom = {s.name: freedom_of(scenario, s) for s in model.sites}
    settings = {name: _setting(plan) for name, plan in optimum["clusters"].items()}
    now = _running(model, freedom, running)
    heat = None
    if site.remotes:
        here = now["clusters"].get(site.name)
        marks = [settings[site.name].threshold]
        marks += [here["threshold_tokens"]] if here and here["threshold_tokens"] else []
        heat = surface(model, settings, site, freedom[site.name], tuple(marks))
    return {
        "cluster": site.name,
        "clusters": [s.name for s in model.sites],
        "demand_rps": {s.name: s.demand_rps for s in model.sites},
        "slo": {"tokens_per_s": scenario.slo.tokens_per_s, "ttft_s": scenario.slo.ttft_s},
        "optimum": optimum,
        "stages": to_jsonable(predict(model, settings).stages),
        "running": now,
        "lengths": distribution(site),
        "heat": heat,
        "sensitivity": {
            "changes": list(CHANGES),
            "rows": sensitivity(model, settings, site, freedom),
        },
        "same_cost": _same_cost(scenario),
        "cheapest": cheapest(scenario, headroom=least_headroom, most=most),
        "sweep": sweep(model, settings, site, slo_ttft_s=scenario.slo.ttft_s),
    }


def _site(model: FleetModel, cluster: str | None) -> Site:
    for site in model.sites:
        if cluster in (None, site.name):
            return site
    names = ", ".join(site.name for site in model.sites)
    raise ScenarioError("cluster", cluster, f"must be a PD cluster in service: {names}")


def _setting(plan: Mapping[str, Any]) -> Setting:
    """What `plan_scenario` says of one cluster, as the model takes it."""
    t = plan["threshold_tokens"]
    return Setting(
        ALWAYS_LOCAL_T if t is None else float(t),
        plan["n_prefill"],
        plan["n_decode"],
        plan["remote"],
    )


def _running(
    model: FleetModel, freedom: Mapping[str, Freedom], plans: Mapping[str, ClusterPlan]
) -> dict[str, Any]:
    """What the plan in force would do here, and the best t of its roles, which a hold can pin."""
    found: dict[str, Any] = {"clusters": {}, "why_not": "", "headroom": None, "stages": []}
    settings: dict[str, Setting] = {}
    for site in model.sites:
        plan, free = plans.get(site.name), freedom[site.name]
        if plan is None:
            found["why_not"] = f"no plan runs in {site.name} yet"
            return found | {"clusters": {}}
        found["clusters"][site.name] = {
            "mode": plan.mode,
            "threshold_tokens": plan.threshold_tokens,
            "n_prefill": plan.n_prefill,
            "n_decode": plan.n_decode,
        }
        if plan.n_prefill + plan.n_decode != free.instances:
            found["why_not"] = (
                f"the plan in force has {plan.n_prefill + plan.n_decode} instances in {site.name}, "
                f"here are {free.instances}"
            )
            continue
        settings[site.name] = Setting(
            fleetmodel.threshold_of(plan),
            plan.n_prefill,
            plan.n_decode,
            fleetmodel.shares(plan, site),
        )
    if found["why_not"]:
        return found
    prediction = predict(model, settings)
    found |= {"headroom": prediction.headroom, "stages": to_jsonable(prediction.stages)}
    return found | _best_for_roles(model, freedom, settings)


def _best_for_roles(
    model: FleetModel, freedom: Mapping[str, Freedom], settings: Mapping[str, Setting]
) -> dict[str, Any]:
    kept = {
        name: Freedom.of_threshold(
            free.t_low,
            free.t_high,
            n_prefill=round(settings[name].n_prefill),
            n_decode=round(settings[name].n_decode),
        )
        for name, free in freedom.items()
    }
    best = optimise(model, kept)
    return {
        "best_headroom": best.prediction.headroom,
        "best_t_tokens": {
            name: round(s.threshold) if math.isfinite(s.threshold) else None
            for name, s in best.settings.items()
        },
    }


def _same_cost(scenario: Scenario) -> dict[str, Any]:
    """A fleet of one PD profile only, for the same money; for as many instances where not every
    profile says what it costs."""
    used = [c for c in scenario.clusters if not c.drained]
    baseline = scenario.homogeneous
    profile = baseline.profile if baseline else next(c.profile for c in used if c.kind == "pd")
    costs = [scenario.profiles[c.profile].facts.get("cost_per_hour") for c in used]
    each = scenario.profiles[profile].facts.get("cost_per_hour")
    n, basis = sum(c.instances for c in used), "instances"
    if each and all(cost is not None for cost in costs):
        total = sum(float(cost or 0.0) * c.instances for cost, c in zip(costs, used, strict=True))
        n, basis = int(total / float(each) + 1e-9), "cost_per_hour"
    alike = replace(scenario, homogeneous=Baseline(profile, max(n, 2)))
    return {
        "basis": basis,
        "profile": profile.partition("@")[0],
        "instances": max(n, 2),
        **plan_scenario(alike)["baselines"]["homogeneous"],
    }
