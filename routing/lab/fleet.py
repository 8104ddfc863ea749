"""The emulated fleet of one process, assembled from its configuration: engines, links, stacks."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from routing.lab.cache import PrefixCache
from routing.lab.config import StackConfig
from routing.lab.engine import ROLES, Engine
from routing.lab.errors import LabError
from routing.lab.link import Link
from routing.lab.moves import Route
from routing.lab.pd import PdStack, Remote
from routing.lab.profile import Cluster, LinkSpec
from routing.lab.truth import Truth


@dataclass(frozen=True)
class LabFleet:
    """Everything that computes or carries. Keys: engine ids, link ids `A->B`, PD clusters."""

    engines: dict[str, Engine]
    links: dict[str, Link]
    stacks: dict[str, PdStack]
    truth: Truth


def build(config: StackConfig) -> LabFleet:
    """On the running loop: its clock is theirs. Raises LabError."""
    scenario = config.scenario
    served = {name: scenario.clusters[name] for name in config.clusters}
    forward = [spec for spec in scenario.links if spec.target in served]
    for i, spec in enumerate(scenario.links):
        source = scenario.clusters[spec.source]
        if spec.target in served and source.kind != "prefill":
            raise LabError(
                "a link into a pd cluster starts in a prefill cluster",
                source=scenario.source,
                field=f"links[{i}].from",
                value=spec.source,
            )
    prefills = {spec.source: scenario.clusters[spec.source] for spec in forward}
    # Back to a PrfaaS cluster go only prefixes, before a prefill there.
    back = [spec for spec in scenario.links if spec.source in served and spec.target in prefills]
    clusters = served | prefills
    engines = {name: _engines(config, cluster) for name, cluster in clusters.items()}
    links = {spec.id: _link(spec) for spec in (*forward, *back)}
    truth = Truth(config.truth_records, served)
    stacks = {
        name: PdStack(
            cluster=name,
            engines=engines[name],
            remotes={
                spec.source: Remote(spec.id, links[spec.id], engines[spec.source])
                for spec in forward
                if spec.target == name
            },
            routes={
                spec.id: Route(spec.id, links[spec.id], engines[spec.source])
                for spec in (*forward, *back)
                if name in (spec.source, spec.target)
            },
            kv=scenario.kv,
            n_layers=config.layers,
            decode_holds=config.decode_holds,
            truth=truth,
        )
        for name in served
    }
    return LabFleet(
        engines={engine.id: engine for group in engines.values() for engine in group},
        links=links,
        stacks=stacks,
        truth=truth,
    )


def _engines(config: StackConfig, cluster: Cluster) -> list[Engine]:
    """The first `n_prefill` instances prefill, the others decode. Names: PROFILE-1, -2, ..."""
    caches = [
        PrefixCache(
            capacity_tokens=config.cache_capacity_tokens,
            block_tokens=config.block_tokens,
            linear_state=config.linear_state,
        )
        for _ in range(cluster.instances if config.cache_scope == "instance" else 1)
    ]
    return [
        Engine(
            id=f"{config.scenario.fleet}/{cluster.name}/{cluster.profile}-{i + 1}",
            role="prefill" if i < cluster.n_prefill else "decode",
            roles=ROLES if cluster.kind == "pd" else ("prefill",),
            profile=config.scenario.profiles[cluster.profile],
            cache=caches[i % len(caches)],
            owns_cache=config.cache_scope == "instance",
            model_name=config.model_name,
            block_tokens=config.block_tokens,
            interval=config.stream_interval_tokens,
            started_s=time.time(),
            does_both=config.pd_api == "nixl",
        )
        for i in range(cluster.instances)
    ]


def _link(spec: LinkSpec) -> Link:
    loop = asyncio.get_running_loop()
    link = Link(
        loop,
        gbps=spec.gbps,
        rtt_s=spec.rtt_s,
        connections=spec.connections,
        per_connection_gbps=spec.per_connection_gbps,
        loss_ratio=spec.loss_ratio,
        background_gbps=spec.background_gbps,
    )
    for at_s, gbps in spec.schedule:
        loop.call_later(at_s, link.set_capacity, gbps)
    return link
