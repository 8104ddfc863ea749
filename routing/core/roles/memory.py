"""What is remembered of roles between ticks: failed attempts, engines gone astray since when."""

from __future__ import annotations

import dataclasses

from routing.core.scenario.document import Cluster, Scenario
from routing.core.types import ClusterPlan, Memory, Observation, PdObservation, Plan

ASTRAY_S = 15.0
"""Engines and plan may disagree this long: a role is reported a scrape after it changed."""

MOST_FAILED = 100
"""Counted no further: the next attempt waits no longer for it."""


def remembered(memory: Memory, seen: Observation, plan: Plan, scenario: Scenario) -> Memory:
    """`memory` with what this tick tells of roles."""
    ended = {n: i for n, i in memory.roles_ended.items() if n in plan.clusters}
    failed = {n: i for n, i in memory.roles_failed.items() if n in plan.clusters}
    since_s = {}
    for name, running in plan.clusters.items():
        cluster, found = scenario.cluster(name), seen.pd.get(name)
        if cluster is None or found is None:
            continue
        change = found.role_change
        if change is not None and change.state != "running" and ended.get(name) != change.id:
            ended[name] = change.id
            n_failed = min(failed.get(name, 0) + 1, MOST_FAILED)
            failed[name] = 0 if change.state == "done" else n_failed
        if astray(found, cluster, running):
            since_s[name] = memory.roles_astray_since_s.get(name, seen.now_s)
    return dataclasses.replace(
        memory, roles_ended=ended, roles_failed=failed, roles_astray_since_s=since_s
    )


def astray(seen: PdObservation, cluster: Cluster, running: ClusterPlan) -> bool:
    """Whether every instance is known, and known to have other roles than the plan says."""
    if moving(seen) or seen.prefill_silent or seen.decode_silent:
        return False
    if not observed(seen) or seen.n_prefill + seen.n_decode != cluster.instances:
        return False
    return (seen.n_prefill, seen.n_decode) != (running.n_prefill, running.n_decode)


def astray_words(name: str, seen: PdObservation, running: ClusterPlan) -> str:
    """What a verdict warns of from the first tick on."""
    runs = f"{seen.n_prefill}/{seen.n_decode}"
    return f"{name}: engines run {runs}, the plan says {running.n_prefill}/{running.n_decode}"


def observed(seen: PdObservation) -> bool:
    """Whether instances of both roles report."""
    return seen.n_prefill > 0 and seen.n_decode > 0


def moving(seen: PdObservation) -> bool:
    """Whether a rebalance of the cluster is under way."""
    return seen.role_change is not None and seen.role_change.state == "running"
