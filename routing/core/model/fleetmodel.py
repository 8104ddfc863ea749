"""Which fleet the model computes: from a scenario alone (planning) or from what was observed.

Live, the scenario only says what the hardware is. Demand, lengths and roles are the observation's;
a link carries what `congestion` believes it does; what is not measured falls back to the scenario
with a warning, because not seen is not gone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from routing.core.links import billing
from routing.core.model.kvcache import bytes_per_s
from routing.core.model.lengths import Lengths
from routing.core.model.site_work import Method, Remote, Site
from routing.core.model.throughput import ALWAYS_LOCAL_T, ALWAYS_REMOTE_T, FleetModel, Setting
from routing.core.scenario.document import Cluster, Link, Scenario
from routing.core.types import ClusterPlan, Observation, PdObservation

_SHARE_DIGITS = 3
_SHARING_LENGTH_TOKENS = 32_768.0
"""The prompt by which remote traffic is shared between PrfaaS clusters: a long one."""


def links_into(scenario: Scenario, cluster: str, usable: Collection[str]) -> list[Link]:
    """The links of `usable` ids that bring KV to a PD cluster from a PrfaaS cluster in service."""
    return [
        link
        for link in scenario.links_to[cluster]
        if link.id in usable and not _cluster(scenario, link).drained
    ]


def _cluster(scenario: Scenario, link: Link) -> Cluster:
    source = scenario.cluster(link.source)
    assert source is not None, "a parsed scenario has no link without a source"
    return source


def weights(scenario: Scenario, links: list[Link]) -> dict[str, float]:
    """Shares by what each PrfaaS cluster and its link can take, sum 1: where a plan starts, and
    what its shares stay near to (`sharing.nearest_shares`)."""
    size = float(scenario.model.kv_bytes(_SHARING_LENGTH_TOKENS))
    rates = {}
    for link in links:
        source = _cluster(scenario, link)
        seconds = float(scenario.profiles[source.profile].prefill.prefill_s(_SHARING_LENGTH_TOKENS))
        usable = bytes_per_s(billing.planned_gbps(link, link.usable_gbps, None))
        rates[link.source] = min(source.instances / seconds, usable / size)
    total = sum(rates.values())
    if total <= 0:
        return {name: 1.0 / len(rates) for name in rates}
    return {name: rate / total for name, rate in rates.items()}


def site(
    scenario: Scenario,
    cluster: Cluster,
    links: list[Link],
    *,
    demand_rps: float,
    lengths: Lengths,
    output_tokens: float,
) -> Site:
    """One PD cluster with traffic, sending to the PrfaaS clusters at the far end of `links`."""
    shares = weights(scenario, links)
    return Site(
        name=cluster.name,
        demand_rps=demand_rps,
        lengths=lengths,
        output_tokens=output_tokens,
        profile=scenario.profiles[cluster.profile],
        remotes=tuple(
            Remote(
                name=link.source,
                link=link.id,
                profile=scenario.profiles[_cluster(scenario, link).profile].prefill,
                weight=shares[link.source],
            )
            for link in links
        ),
    )


def of_scenario(scenario: Scenario, method: Method) -> FleetModel:
    """The fleet at the traffic its scenario is meant to carry."""
    usable = {link.id for link in scenario.links if link.usable_gbps > 0}
    sites = []
    for workload in scenario.workloads:
        cluster = scenario.cluster(workload.cluster)
        if cluster is not None and not cluster.drained:
            into = links_into(scenario, cluster.name, usable)
            sites.append(
                site(
                    scenario,
                    cluster,
                    into,
                    demand_rps=workload.rate_rps,
                    lengths=workload.lengths,
                    output_tokens=workload.output_tokens,
                )
            )
    used = {remote.link for s in sites for remote in s.remotes}
    senders_to = {remote.name for s in sites for remote in s.remotes}
    return FleetModel(
        kv=scenario.model,
        sites=tuple(sites),
        prefill={c.name: float(c.instances) for c in scenario.clusters if c.name in senders_to},
        link_gbps={
            link.id: billing.planned_gbps(link, link.usable_gbps, None)
            for link in scenario.links
            if link.id in used
        },
        method=method,
    )


def of_observation(
    scenario: Scenario,
    observation: Observation,
    *,
    lengths: Mapping[str, Lengths],
    capacity_gbps: Mapping[str, float],
) -> FleetModel:
    """The fleet as observed: one site per key of `lengths`, links by their believed capacity."""
    sites = []
    for cluster in scenario.clusters:
        if cluster.name in lengths:
            seen = observation.pd[cluster.name]
            assert seen.demand_rps is not None, "a site without demand is not in the model"
            into = links_into(scenario, cluster.name, capacity_gbps.keys())
            sites.append(
                site(
                    scenario,
                    cluster,
                    into,
                    demand_rps=seen.demand_rps,
                    lengths=lengths[cluster.name],
                    output_tokens=_output_tokens(scenario, cluster.name),
                )
            )
    remotes = [remote for s in sites for remote in s.remotes]
    return FleetModel(
        kv=scenario.model,
        sites=tuple(sites),
        prefill={r.name: _prefill_instances(scenario, observation, r.name) for r in remotes},
        link_gbps={remote.link: capacity_gbps[remote.link] for remote in remotes},
    )


def _output_tokens(scenario: Scenario, cluster: str) -> float:
    workload = scenario.workload(cluster)
    assert workload is not None, "a parsed scenario has one workload per PD cluster"
    return workload.output_tokens


def _prefill_instances(scenario: Scenario, observation: Observation, name: str) -> float:
    seen = observation.prefill.get(name)
    if seen is not None and seen.n_prefill > 0:
        return float(seen.n_prefill)
    return float(next(c.instances for c in scenario.clusters if c.name == name))


def assumptions(scenario: Scenario, observation: Observation) -> tuple[str, ...]:
    """What the model takes from the scenario or the plan because nobody measured it."""
    said = []
    for cluster in scenario.clusters:
        if cluster.kind == "pd":
            seen = observation.pd.get(cluster.name)
            if seen is not None and (seen.n_prefill <= 0 or seen.n_decode <= 0):
                said.append(f"{cluster.name}: roles are the plan's, those of one role are silent")
            silent = () if seen is None else (*seen.prefill_silent, *seen.decode_silent)
            if silent:
                names = ", ".join(silent)
                said.append(f"{cluster.name}: silent instances {names} are taken as full")
            if seen is not None and seen.gates_silent:
                names = ", ".join(seen.gates_silent)
                said.append(f"{cluster.name}: demand holds the last value of silent gates {names}")
        else:
            remote = observation.prefill.get(cluster.name)
            if remote is None or remote.n_prefill <= 0:
                said.append(
                    f"{cluster.name}: counting the scenario's {cluster.instances} instances, "
                    "none reports"
                )
    return tuple(said)


def threshold_of(plan: ClusterPlan) -> float:
    """t as the model takes it: infinite where everything is local, 0 where nothing is."""
    modes = {"always_local": ALWAYS_LOCAL_T, "always_remote": ALWAYS_REMOTE_T}
    return modes.get(plan.mode, float(plan.threshold_tokens or 0))


def shares(plan: ClusterPlan, site: Site) -> dict[str, float]:
    """How a plan shares remote requests out between the remotes the site has now, sum 1.

    A gate gives the share of a remote that is gone to those that are left.
    """
    planned = {r.name: max(plan.remote.get(r.name, 0.0), 0.0) for r in site.remotes}
    total = sum(planned.values())
    if total <= 0.0:
        return dict(site.shares)
    return {name: share / total for name, share in planned.items()}


def planned(shares: Mapping[str, float]) -> dict[str, float]:
    """Shares as a plan says them: of a thousand, sum 1."""
    parts = {name: round(share, _SHARE_DIGITS) for name, share in shares.items()}
    if parts:
        largest = max(parts, key=lambda name: parts[name])
        rest = sum(part for name, part in parts.items() if name != largest)
        parts[largest] = round(1.0 - rest, _SHARE_DIGITS)
    return parts


def setting(plan: ClusterPlan, seen: PdObservation, site: Site | None) -> Setting:
    """What a cluster runs, with the roles that were observed where both are.

    While instances move, those on the way count in neither role: t then suits what will be there.
    """
    observed = seen.n_prefill > 0 and seen.n_decode > 0
    n_prefill = seen.n_prefill if observed else plan.n_prefill
    n_decode = seen.n_decode if observed else plan.n_decode
    change = seen.role_change
    if change is not None and change.state == "running":
        n_prefill, n_decode = min(n_prefill, change.n_prefill), min(n_decode, change.n_decode)
    return Setting(
        threshold=threshold_of(plan),
        n_prefill=n_prefill,
        n_decode=n_decode,
        shares=None if site is None else shares(plan, site),
    )
