"""Which roles expected traffic asks for, by the same optimiser as plans, and what others cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from routing.core.costs.usage import lengths_of
from routing.core.model import fleetmodel
from routing.core.model.lengths import from_histogram
from routing.core.model.optimize import Freedom, optimise
from routing.core.model.planner import freedom_of
from routing.core.model.site_work import Site
from routing.core.scenario.document import Scenario
from routing.core.scenario.tables import ScenarioError

LEAST_RPS = 0.01
"""A quiet cluster is planned for so much: a plan for nothing has no roles to prefer."""

Split = tuple[int, int]


@dataclass(frozen=True)
class Traffic:
    """What a PD cluster is expected to get; `mix` are shares by bucket of `usage.MIX_EDGES`, None
    where nothing comes: then lengths are the scenario's."""

    rps: float
    mix: Sequence[float] | None


@dataclass(frozen=True)
class Wanted:
    """The best roles (prefill, decode) and t by PD cluster, and the headroom they leave."""

    roles: dict[str, Split]
    threshold_tokens: dict[str, int | None]
    headroom: float


def with_traffic(scenario: Scenario, traffic: Mapping[str, Traffic]) -> Scenario:
    """The fleet as it would be loaded. Clusters without an entry keep what the scenario says."""
    workloads = []
    for workload in scenario.workloads:
        found = traffic.get(workload.cluster)
        if found is not None:
            workload = dataclasses.replace(
                workload,
                rate_rps=max(found.rps, LEAST_RPS),
                lengths=workload.lengths
                if found.mix is None
                else from_histogram(lengths_of(found.mix)),
            )
        workloads.append(workload)
    return dataclasses.replace(scenario, workloads=tuple(workloads))


def wanted(scenario: Scenario) -> Wanted:
    """Raises ScenarioError where a pinned cluster does not say at what."""
    model = fleetmodel.of_scenario(scenario, "exact")
    best = optimise(model, {site.name: freedom_of(scenario, site) for site in model.sites})
    return Wanted(
        roles={
            name: (round(setting.n_prefill), round(setting.n_decode))
            for name, setting in best.settings.items()
        },
        threshold_tokens={
            site.name: round(best.settings[site.name].threshold) if site.remotes else None
            for site in model.sites
        },
        headroom=best.prediction.headroom or 0.0,
    )


def headroom_of(scenario: Scenario, roles: Mapping[str, Split]) -> float | None:
    """The headroom with these roles and the best t for them; None where they do not fit."""
    model = fleetmodel.of_scenario(scenario, "exact")
    freedom = {}
    for site in model.sites:
        split = roles.get(site.name)
        free = freedom_of(scenario, site)
        if split is None or sum(split) != free.instances or not _serves(split, site):
            return None
        freedom[site.name] = Freedom.of_threshold(
            free.t_low, free.t_high, n_prefill=split[0], n_decode=split[1]
        )
    try:
        return optimise(model, freedom).prediction.headroom
    except ScenarioError:
        return None


def _serves(split: Split, site: Site) -> bool:
    return split[1] > 0 and (split[0] > 0 or bool(site.remotes))
