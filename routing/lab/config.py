"""`stack.toml`: which scenario a lab process emulates, with which caches, and on which ports."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from routing.lab.cache import LinearState
from routing.lab.errors import LabError, read_toml
from routing.lab.pd import DecodeHolds
from routing.lab.profile import Scenario, check_n_prefill, load_scenario

Positive = Annotated[int, msgspec.Meta(ge=1)]
PdApi = Literal["none", "sglang", "nixl"]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class Ports(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """0, and whatever is not named, is given by the operating system. Keys of `local` are PD
    clusters, of `remote` PD clusters and in them PrfaaS clusters, of `engines` and `kv_events`
    instance ids."""

    admin: Port = 0
    local: dict[str, Port] = {}
    remote: dict[str, dict[str, Port]] = {}
    engines: dict[str, Port] = {}
    kv_events: dict[str, Port] = {}


class LinkOverride(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    gbps: Annotated[float, msgspec.Meta(ge=0.0)] | None = None
    rtt_ms: Annotated[float, msgspec.Meta(ge=0.0)] | None = None
    connections: Positive | None = None
    per_connection_gbps: Annotated[float, msgspec.Meta(gt=0.0)] | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    scenario: str
    host: str = "127.0.0.1"
    clusters: list[str] = []
    model_name: str = ""
    stream_interval_tokens: Positive = 10
    block_tokens: Positive = 512
    cache_scope: Literal["instance", "cluster"] = "instance"
    cache_capacity_tokens: Annotated[int, msgspec.Meta(ge=0)] | Literal["infinite"] = 2_097_152
    linear_state: LinearState = "none"
    kv_events: bool = False
    pd_api: PdApi = "none"
    decode_holds: DecodeHolds = "local_prefix"
    layers: Positive = 60
    truth_records: Annotated[int, msgspec.Meta(ge=0)] = 10_000
    n_prefill: dict[str, int] = {}
    links: dict[str, LinkOverride] = {}
    ports: Ports = msgspec.field(default_factory=Ports)


@dataclass(frozen=True)
class StackConfig:
    """`clusters` are the PD clusters served here. `cache_capacity_tokens` (per cache) None:
    unbounded. `cache_scope` `cluster`: one cache for all instances of a cluster. `linear_state`
    `exact`: a prefix is reused only up to where a state was kept (`routing.lab.cache`).
    `kv_events`: engines publish what their caches hold (`routing.lab.kv_events`). `pd_api`: how
    engines take halves of requests from P/D routers (`routing.lab.halves`). `layers`: the
    chunks a request's KV leaves in. The scenario has the file's overrides already in it."""

    scenario: Scenario
    host: str
    clusters: tuple[str, ...]
    model_name: str
    stream_interval_tokens: int
    block_tokens: int
    cache_scope: Literal["instance", "cluster"]
    cache_capacity_tokens: int | None
    linear_state: LinearState
    kv_events: bool
    pd_api: PdApi
    decode_holds: DecodeHolds
    layers: int
    truth_records: int
    ports: Ports


def load_config(path: Path) -> StackConfig:
    """A checked `stack.toml`; `scenario` is relative to it. Raises LabError."""
    file, source = read_toml(path, _File), str(path)
    scenario = load_scenario(path.parent / file.scenario)
    scenario = _with_roles(scenario, file.n_prefill, source)
    scenario = _with_links(scenario, file.links, source)
    pd_clusters = [c.name for c in scenario.clusters.values() if c.kind == "pd"]
    for i, name in enumerate(file.clusters):
        if name not in pd_clusters:
            raise LabError("no such pd cluster", source=source, field=f"clusters[{i}]", value=name)
    if not pd_clusters:
        raise LabError("has no pd cluster", source=scenario.source, field="clusters")
    capacity = file.cache_capacity_tokens
    return StackConfig(
        scenario=scenario,
        host=file.host,
        clusters=tuple(file.clusters or pd_clusters),
        model_name=file.model_name or scenario.fleet,
        stream_interval_tokens=file.stream_interval_tokens,
        block_tokens=file.block_tokens,
        cache_scope=file.cache_scope,
        cache_capacity_tokens=None if isinstance(capacity, str) else capacity,
        linear_state=file.linear_state,
        kv_events=file.kv_events,
        pd_api=file.pd_api,
        decode_holds=file.decode_holds,
        layers=file.layers,
        truth_records=file.truth_records,
        ports=file.ports,
    )


def _with_roles(scenario: Scenario, n_prefill: dict[str, int], source: str) -> Scenario:
    clusters = dict(scenario.clusters)
    for name, n in n_prefill.items():
        if name not in clusters or clusters[name].kind != "pd":
            raise LabError("no such pd cluster", source=source, field="n_prefill", value=name)
        check_n_prefill(n, clusters[name].instances, field=f"n_prefill.{name}", source=source)
        clusters[name] = replace(clusters[name], n_prefill=n)
    return replace(scenario, clusters=clusters)


def _with_links(scenario: Scenario, overrides: dict[str, LinkOverride], source: str) -> Scenario:
    links = {link.id: link for link in scenario.links}
    for id, override in overrides.items():
        if id not in links:
            raise LabError("no such link", source=source, field="links", value=id)
        changes: dict[str, float | int] = {}
        if override.gbps is not None:
            changes["gbps"] = override.gbps
        if override.rtt_ms is not None:
            changes["rtt_s"] = override.rtt_ms / 1000.0
        if override.connections is not None:
            changes["connections"] = override.connections
        if override.per_connection_gbps is not None:
            changes["per_connection_gbps"] = override.per_connection_gbps
        links[id] = replace(links[id], **changes)  # type: ignore[arg-type]
    return replace(scenario, links=tuple(links.values()))
