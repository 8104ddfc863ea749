"""The stages of a scenario, as they stand at the start of a run."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping

from routing.core.model.decode_table import DecodeTable
from routing.core.scenario.document import Cluster, Scenario
from routing.core.types import ClusterPlan
from routing.twin.cache import PrefixCache
from routing.twin.decode import DecodePool
from routing.twin.decode_batch import DecodeBatch, StepTime
from routing.twin.decode_slots import DecodeSlots
from routing.twin.faults import ClusterDown, InstancesDown
from routing.twin.pd import PdCluster, Remote
from routing.twin.prefill import PrefillPool
from routing.twin.requests import Requests
from routing.twin.service import Service
from routing.twin.settings import CacheSettings, Settings
from routing.twin.stages import Arrivals, Stages
from routing.twin.transfer import LinkFlows, Path

_NOTCH = math.log(1.01)


def build(
    scenario: Scenario,
    settings: Settings,
    plans: Mapping[str, ClusterPlan],
    pieces: Iterator[Requests],
) -> Stages:
    """Empty stages; `plans` gives the roles of PD clusters and what their gates run."""
    failing = {f.cluster for f in settings.faults if isinstance(f, InstancesDown | ClusterDown)}

    def pool(cluster: Cluster, n: int) -> PrefillPool:
        cache = settings.cache
        return PrefillPool(
            Service(scenario.profiles[cluster.profile].prefill, settings.engine),
            n,
            new_cache=None if cache is None else _caches(cache, cluster.name),
            shared_cache=cache is None or cache.scope == "cluster",
            block_tokens=1 if cache is None else cache.block_tokens,
            keeps_rows=cluster.name in failing,
        )

    flows = {
        link.id: LinkFlows(Path.of(link), layers=settings.engine.layers) for link in scenario.links
    }
    numbers = {link.id: number for number, link in enumerate(scenario.links)}
    pools = {c.name: pool(c, c.instances) for c in scenario.clusters if c.kind == "prefill"}
    clusters: list[PdCluster] = []
    for cluster in scenario.clusters:
        if cluster.kind != "pd":
            continue
        plan = plans[cluster.name]
        remotes = {}
        for link in scenario.links_to[cluster.name]:
            if link.source in pools:
                back_id = f"{cluster.name}->{link.source}"
                remotes[link.source] = Remote(
                    name=link.source,
                    pool=pools[link.source],
                    link=numbers[link.id],
                    link_id=link.id,
                    flows=flows[link.id],
                    back_id=back_id,
                    back=flows.get(back_id),
                )
        clusters.append(
            PdCluster(
                len(clusters),
                cluster.name,
                pool=pool(cluster, plan.n_prefill),
                decode=_decode_pool(scenario, cluster, plan.n_decode),
                remotes=remotes,
                kv=scenario.model,
                holds_prefix=settings.cache is not None
                and settings.cache.decode_holds == "local_prefix",
                n_gates=settings.delays.n_gates,
                plan=plan,
            )
        )
    return Stages(
        clusters=clusters,
        pools=pools,
        links=flows,
        kv=scenario.model,
        arrivals=Arrivals(pieces),
    )


def _decode_pool(scenario: Scenario, cluster: Cluster, n: int) -> DecodePool:
    """Instances with a table of steps, or a limit to their KV, have to be followed closer."""
    profile = scenario.profiles[cluster.profile]
    batch = int(profile.decode.batch)
    table = scenario.decode_tables.get(profile.name)
    capacity_tokens = profile.facts.get("kv_capacity_tokens")
    if table is None and capacity_tokens is None:
        return DecodeSlots(n, batch=batch, step_s=profile.decode.step_s)
    constant_s = profile.decode.step_s
    return DecodeBatch(
        n,
        batch=batch,
        step_s=(lambda *_: constant_s) if table is None else _steps(table),
        kv_capacity_tokens=math.inf if capacity_tokens is None else float(capacity_tokens),
        prefill_s=profile.prefill.curve.at,
    )


def _steps(table: DecodeTable) -> StepTime:
    """The table, looked up on contexts rounded to 1 %: a fleet asks for the same ones again."""

    @functools.lru_cache(maxsize=65_536)
    def step_s(batch: int, notch: int) -> float:
        return float(table.step_s(batch, 1.01**notch))

    return lambda batch, context: step_s(batch, round(math.log(context) / _NOTCH))


def _caches(cache: CacheSettings, cluster: str) -> Callable[[], PrefixCache]:
    tokens = cache.capacity_tokens.get(cluster)
    blocks = None if tokens is None else int(tokens) // cache.block_tokens
    exact = cache.linear_state == "exact"
    return lambda: PrefixCache(capacity_blocks=blocks, exact_state=exact)
