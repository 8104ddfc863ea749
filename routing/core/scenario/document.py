"""A fleet's description (docs/contracts.md, Scenario): parsed TOML or JSON in, values out.

Every key is checked and every unknown key is an error that names it, so a misspelt limit is never
a limit that silently does not hold. The tables `arrivals`, `cache`, `engine`, `faults` and `delays`
belong to the simulation and are not looked into here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, TypeVar

from routing.core import unseen
from routing.core.model.decode_table import DecodeTable
from routing.core.model.kvcache import KvModel, KvWindow
from routing.core.model.lengths import Lengths
from routing.core.model.profiles import Profile, ProfileError
from routing.core.scenario.lengths import read_lengths
from routing.core.scenario.profiles import PROFILE_KEYS, Described, read_profile
from routing.core.scenario.routers import (
    RoleSwitch,
    Router,
    read_engines,
    read_groups,
    read_role_switch,
    read_routers,
    read_token_file,
)
from routing.core.scenario.tables import ScenarioError, Table, refuse, settled, tried

T = TypeVar("T")
_ROOT = (
    *("fleet", "model", "profiles", "clusters", "links", "workload", "workloads", "baselines"),
    *("arrivals", "cache", "engine", "faults", "delays"),
)
_CLUSTER = (
    *("name", "kind", "profile", "instances", "start"),
    *("min_prefill", "min_decode", "pinned", "drained"),
    *("control_urls", "routers", "engines", "role_switch", "groups"),
    *("engine_token_file", "decode_cuda_graph_memory_gb"),
)
_LINK = (
    *("from", "to", "gbps", "rtt_ms", "cap_gbps", "p95_cap_gbps", "connections"),
    *("per_connection_gbps", "loss", "background_gbps", "schedule"),
    *("utilisation_limit_ratio", "retransmit_limit_ratio", "rtt_limit_ms", "failure_limit_ratio"),
    *("window_bytes", "p95_counts", "cost_per_gbps_month"),
)
_MODEL = ("bytes_per_token", "state_bytes", "windows", "config")
_WORKLOAD = ("cluster", "rate_rps", "output_tokens", "lengths", "context_tokens")
_SLO_SLACK = 1.02
"""The slack goodput is counted with (docs/contracts.md): 25.5 ms a token still is 40 tokens/s."""


@dataclass(frozen=True)
class Slo:
    tokens_per_s: float
    ttft_s: float


@dataclass(frozen=True)
class Start:
    """What the cluster runs before the loop ever spoke; no threshold = everything local."""

    n_prefill: int
    threshold_tokens: int | None


@dataclass(frozen=True)
class Cluster:
    """Machines of one site. `kind` `prefill` is a PrfaaS cluster: its instances only prefill.

    `routers` list the instances, stacks of `control_urls` first; without one roles cannot be moved.
    `engines` is the base URL of each instance by its name, for routers that know no names of ours.
    `role_switch`: what gives an instance its role, its `engine` or the `label` routers keep of it.
    `groups` are names of instances that change their role together or not at all.
    `engine_token_file` names the key that engines want to be switched with, and
    `decode_cuda_graph_memory_gb` is what SGLang wants told before a prefill decodes.
    """

    name: str
    kind: Literal["pd", "prefill"]
    profile: str
    instances: int
    start: Start | None = None
    min_prefill: int = 1
    min_decode: int = 1
    pinned: bool = False
    drained: bool = False
    routers: tuple[Router, ...] = ()
    engines: dict[str, str] = field(default_factory=dict)
    role_switch: RoleSwitch = "engine"
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    engine_token_file: str = ""
    decode_cuda_graph_memory_gb: float | None = None

    @property
    def follows_planner(self) -> bool:
        """Whether the planner of one of its routers decides roles: they are not the loop's then."""
        return any(router.settings.get("act_for_planner") is True for router in self.routers)


@dataclass(frozen=True)
class Link:
    """A directed path; `facts` are its optional keys: limits of its own, billing, simulation."""

    source: str
    target: str
    gbps: float
    rtt_s: float | None
    facts: dict[str, Any]

    @property
    def id(self) -> str:
        return f"{self.source}->{self.target}"

    @property
    def usable_gbps(self) -> float:
        """What plans may use: `gbps`, capped by `cap_gbps`, less `background_gbps`."""
        capped = min(self.gbps, float(self.facts.get("cap_gbps", self.gbps)))
        return max(0.0, capped - float(self.facts.get("background_gbps", 0.0)))


@dataclass(frozen=True)
class Workload:
    """The traffic a plan is made for, per PD cluster."""

    cluster: str
    rate_rps: float
    output_tokens: float
    lengths: Lengths
    context_tokens: float
    """KV that a request holds while it decodes, on the average: the prompt and half the answer."""


@dataclass(frozen=True)
class Baseline:
    """Identical instances of one profile that serve all the traffic without a PrfaaS cluster."""

    profile: str
    instances: int


@dataclass(frozen=True)
class Scenario:
    """One fleet: its name, what its hardware does, what links it, what it is meant to carry.

    `decode_tables` holds, by name of profile, what `Profile.decode` was read from at the mean
    context of the workload.
    """

    fleet: str
    slo: Slo
    model: KvModel
    profiles: dict[str, Profile]
    clusters: tuple[Cluster, ...]
    links: tuple[Link, ...]
    workloads: tuple[Workload, ...]
    homogeneous: Baseline | None
    decode_tables: dict[str, DecodeTable] = field(default_factory=dict)

    def cluster(self, name: str) -> Cluster | None:
        return self._clusters.get(name)

    def workload(self, cluster: str) -> Workload | None:
        return self._workloads.get(cluster)

    @cached_property
    def links_to(self) -> dict[str, list[Link]]:
        """The links that end in each cluster."""
        found: dict[str, list[Link]] = {cluster.name: [] for cluster in self.clusters}
        for link in self.links:
            found[link.target].append(link)
        return found

    @cached_property
    def _clusters(self) -> dict[str, Cluster]:
        return {cluster.name: cluster for cluster in self.clusters}

    @cached_property
    def _workloads(self) -> dict[str, Workload]:
        return {workload.cluster: workload for workload in self.workloads}


def parse_scenario(document: dict[str, Any]) -> Scenario:
    """The scenario a document describes. Raises ScenarioError naming the field and the value."""
    root = Table(document, "", known=_ROOT)
    fleet = root.table("fleet", ("name", "slo"))
    slo = fleet.table("slo", ("tokens_per_s", "ttft_s"))
    profiles = root.table("profiles", None)
    baselines = root.table("baselines", ("homogeneous",), optional=True)
    homogeneous = None
    if "homogeneous" in baselines.data:
        homogeneous = baselines.table("homogeneous", ("profile", "instances"))
    described = {
        name: profile
        for name in list(profiles.data)
        if (profile := tried(partial(_profile, profiles, name))) is not None
    }
    scenario = Scenario(
        fleet=fleet.text("name"),
        slo=Slo(slo.number("tokens_per_s", low=0), slo.number("ttft_s", low=0)),
        model=tried(partial(_model, root.table("model", _MODEL))) or KvModel(1.0, 0.0),
        profiles={name: each.profile for name, each in described.items()},
        clusters=_each(_cluster, root.tables("clusters", _CLUSTER)),
        links=_each(_link, root.tables("links", _LINK, optional=True)),
        workloads=tried(partial(_workloads, root)) or (),
        homogeneous=None
        if homogeneous is None
        else Baseline(homogeneous.text("profile"), homogeneous.count("instances", low=2)),
    )
    settled()
    _check(scenario)
    settled()
    scenario = _with_decode_tables(scenario, described)
    for cluster in scenario.clusters:
        if cluster.kind == "pd":
            _check_slo(scenario, cluster)
    return scenario


def _each(read: Callable[[Table], T], tables: list[Table]) -> tuple[T, ...]:
    found = [tried(partial(read, table)) for table in tables]
    return tuple(each for each in found if each is not None)


def _profile(profiles: Table, name: str) -> Described:
    return read_profile(name, profiles.table(name, PROFILE_KEYS))


def _model(table: Table) -> KvModel:
    if "config" in table.data:
        raise table.error(
            "config",
            "is read where the scenario file is read; here it must be bytes_per_token, state_bytes",
        )
    windows = table.rows("windows", 2) if "windows" in table.data else []
    for i, (tokens, size) in enumerate(windows):
        if tokens < 1 or tokens != int(tokens) or size <= 0:
            field = f"{table.at('windows')}[{i}]"
            message = "must be [whole tokens, bytes per token], both above 0"
            raise ScenarioError(field, [tokens, size], message)
    return KvModel(
        # A model whose every layer has a window or a fixed state grows with no token.
        bytes_per_token=table.number("bytes_per_token", low=0, inclusive=bool(windows)),
        state_bytes=table.number("state_bytes", low=0, inclusive=True),
        windows=tuple(KvWindow(int(tokens), size) for tokens, size in windows),
    )


def _with_decode_tables(scenario: Scenario, described: dict[str, Described]) -> Scenario:
    """Decode tables put at the context that each PD cluster's workload brings.

    The cluster then has a profile of its own, `PROFILE@CLUSTER`: two clusters of the same hardware
    may bring different contexts, hence different batch caps.
    """
    profiles, clusters, tables = dict(scenario.profiles), [], {}
    for cluster in scenario.clusters:
        workload = scenario.workload(cluster.name)
        if workload is not None and described[cluster.profile].table is not None:
            profile = _at_context(
                described[cluster.profile], cluster.name, workload.context_tokens, scenario.slo
            )
            profiles[profile.name] = profile
            tables[profile.name] = _table_of(described[cluster.profile])
            cluster = replace(cluster, profile=profile.name)
        clusters.append(cluster)
    baseline = scenario.homogeneous
    if baseline is not None and described[baseline.profile].table is not None:
        rate_rps = sum(workload.rate_rps for workload in scenario.workloads)
        context = sum(w.rate_rps * w.context_tokens for w in scenario.workloads) / rate_rps
        profile = _at_context(described[baseline.profile], "homogeneous", context, scenario.slo)
        profiles[profile.name] = profile
        baseline = replace(baseline, profile=profile.name)
    return replace(
        scenario,
        profiles=profiles,
        clusters=tuple(clusters),
        homogeneous=baseline,
        decode_tables=tables,
    )


def _at_context(described: Described, where: str, context_tokens: float, slo: Slo) -> Profile:
    profile = described.profile
    try:
        decode = _table_of(described).at(
            context_tokens,
            longest_step_s=_SLO_SLACK / slo.tokens_per_s,
            kv_capacity_tokens=described.kv_capacity_tokens,
        )
    except ProfileError as exc:
        raise ScenarioError(
            "fleet.slo.tokens_per_s",
            slo.tokens_per_s,
            f"cannot be kept by profile {profile.name} of {where}: {exc}",
        ) from None
    return replace(profile, name=f"{profile.name}@{where}", decode=decode)


def _table_of(described: Described) -> DecodeTable:
    assert described.table is not None, "asked for only where there is a table"
    return described.table


def _cluster(table: Table) -> Cluster:
    kind: Literal["pd", "prefill"] = (
        "prefill" if table.one_of("kind", ("pd", "prefill")) == "prefill" else "pd"
    )
    instances = table.count("instances", low=2 if kind == "pd" else 1)
    start = None
    if "start" in table.data:
        if kind != "pd":
            message = "only a cluster of kind pd has roles and a threshold"
            refuse(table.error("start", message), depends=True)
        first = table.table("start", ("n_prefill", "threshold_tokens"))
        start = Start(
            n_prefill=first.count("n_prefill", low=1),
            threshold_tokens=None
            if first.take("threshold_tokens", None) is None
            else first.count("threshold_tokens", low=0),
        )
        if start.n_prefill >= instances:
            message = f"leaves no decode instance of {instances}"
            refuse(first.error("n_prefill", message), depends=True)
    engines = read_engines(table, instances)
    cluster = Cluster(
        name=table.text("name"),
        kind=kind,
        profile=table.text("profile"),
        instances=instances,
        start=start,
        min_prefill=table.count("min_prefill", 1, low=1),
        min_decode=table.count("min_decode", 1, low=1),
        pinned=table.flag("pinned"),
        drained=table.flag("drained"),
        routers=read_routers(table),
        engines=engines,
        role_switch=read_role_switch(table),
        groups=read_groups(table, engines, instances),
        engine_token_file=read_token_file(table),
        decode_cuda_graph_memory_gb=table.number("decode_cuda_graph_memory_gb", low=0)
        if "decode_cuda_graph_memory_gb" in table.data
        else None,
    )
    if kind == "pd" and cluster.min_prefill + cluster.min_decode > instances:
        refuse(table.error("instances", "is less than min_prefill + min_decode"), depends=True)
    return cluster


_LINK_FACTS: dict[str, Callable[[Table, str], Any]] = {
    "cap_gbps": lambda t, key: t.number(key, low=0),
    "p95_cap_gbps": lambda t, key: t.number(key, low=0),
    "connections": lambda t, key: t.count(key, low=1),
    "per_connection_gbps": lambda t, key: t.number(key, low=0),
    "loss": lambda t, key: t.number(key, low=0, inclusive=True),
    "background_gbps": lambda t, key: t.number(key, low=0, inclusive=True),
    "schedule": lambda t, key: t.pairs(key),
    "utilisation_limit_ratio": lambda t, key: t.ratio(key),
    "retransmit_limit_ratio": lambda t, key: t.ratio(key),
    "rtt_limit_ms": lambda t, key: t.number(key, low=0),
    "failure_limit_ratio": lambda t, key: t.ratio(key),
    "window_bytes": lambda t, key: t.number(key, low=0),
    "p95_counts": lambda t, key: t.one_of(key, ("out", "max")),
    "cost_per_gbps_month": lambda t, key: t.number(key, low=0, inclusive=True),
}


def _link(table: Table) -> Link:
    link = Link(
        source=table.text("from"),
        target=table.text("to"),
        gbps=table.number("gbps", low=0),
        rtt_s=table.number("rtt_ms", low=0, inclusive=True) / 1e3
        if "rtt_ms" in table.data
        else None,
        facts={key: read(table, key) for key, read in _LINK_FACTS.items() if key in table.data},
    )
    return link


def _workloads(root: Table) -> tuple[Workload, ...]:
    """`[workload]`, or `[[workload]]` / `[[workloads]]` with one entry per PD cluster."""
    key = "workloads" if "workloads" in root.data else "workload"
    if isinstance(root.take(key), list):
        return _each(_workload_of, root.tables(key, _WORKLOAD))
    table = root.table(key, _WORKLOAD)
    pd = [c.get("name") for c in root.data.get("clusters", []) if c.get("kind") == "pd"]
    if "cluster" not in table.data and len(pd) != 1:
        raise table.error("cluster", "is needed where there is not exactly one PD cluster")
    return (_workload(table, table.text("cluster") if "cluster" in table.data else str(pd[0])),)


def _workload_of(table: Table) -> Workload:
    return _workload(table, table.text("cluster"))


def _workload(table: Table, cluster: str) -> Workload:
    if isinstance(table.take("output_tokens"), dict):
        output = float(read_lengths(table.table("output_tokens", None)).tokens_below([math.inf])[0])
    else:
        output = table.number("output_tokens", low=0)
    lengths = read_lengths(table.table("lengths", None))
    prompt = float(lengths.tokens_below([math.inf])[0])
    return Workload(
        cluster=cluster,
        rate_rps=table.number("rate_rps", low=0),
        output_tokens=output,
        lengths=lengths,
        context_tokens=table.number("context_tokens", prompt + output / 2.0, low=0),
    )


def _check(scenario: Scenario) -> None:
    """Everything that one table alone cannot say."""
    kinds = _check_clusters(scenario)
    _check_links(scenario, kinds)
    _check_workloads(scenario, kinds)
    baseline = scenario.homogeneous
    if baseline is not None and baseline.profile not in scenario.profiles:
        field = "baselines.homogeneous.profile"
        refuse(ScenarioError(field, baseline.profile, "is not in profiles"))


def _odd_name(name: str) -> str:
    """Why a cluster cannot be called so: ids are paths, and links are named after both ends."""
    if "/" in name or "->" in name:
        return "must hold neither / nor ->: ids of instances and links are made of it"
    if found := unseen.in_name(name):
        return f"holds {found}, which nobody sees or which turns text round"
    return "" if name == name.strip() else "must not begin or end with a space"


def _check_clusters(scenario: Scenario) -> dict[str, str]:
    kinds: dict[str, str] = {}
    for i, cluster in enumerate(scenario.clusters):
        field = f"clusters[{i}]"
        if cluster.name in kinds:
            message = "is the name of another cluster"
            refuse(ScenarioError(f"{field}.name", cluster.name, message))
        if problem := _odd_name(cluster.name):
            refuse(ScenarioError(f"{field}.name", cluster.name, problem))
        if cluster.profile not in scenario.profiles:
            refuse(ScenarioError(f"{field}.profile", cluster.profile, "is not in profiles"))
        kinds[cluster.name] = cluster.kind
    if "pd" not in kinds.values():
        refuse(ScenarioError("clusters", sorted(kinds), "needs at least one of kind pd"))
    return kinds


def _check_slo(scenario: Scenario, cluster: Cluster) -> None:
    speed = 1.0 / scenario.profiles[cluster.profile].decode.step_s
    if _SLO_SLACK * speed < scenario.slo.tokens_per_s:
        raise ScenarioError(
            "fleet.slo.tokens_per_s",
            scenario.slo.tokens_per_s,
            f"profile {cluster.profile} of {cluster.name} decodes {speed:g} tokens/s at its cap",
        )


def _check_links(scenario: Scenario, kinds: dict[str, str]) -> None:
    seen: set[str] = set()
    for i, link in enumerate(scenario.links):
        for key, name in (("from", link.source), ("to", link.target)):
            if name not in kinds:
                refuse(ScenarioError(f"links[{i}].{key}", name, "is not a cluster"))
        if kinds.get(link.source, "") == kinds.get(link.target):
            message = "must join a cluster of kind prefill with one of kind pd"
            refuse(ScenarioError(f"links[{i}].to", link.target, message))
        if link.id in seen:
            refuse(ScenarioError(f"links[{i}]", link.id, "is described twice"))
        seen.add(link.id)


def _check_workloads(scenario: Scenario, kinds: dict[str, str]) -> None:
    served = [workload.cluster for workload in scenario.workloads]
    for name in served:
        if kinds.get(name) != "pd":
            refuse(ScenarioError("workload.cluster", name, "is not a cluster of kind pd"))
    for name, kind in kinds.items():
        if kind == "pd" and served.count(name) != 1:
            refuse(ScenarioError("workload", name, "every PD cluster needs exactly one workload"))
