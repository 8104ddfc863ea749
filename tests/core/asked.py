"""A fleet whose roles may move, asked for a verdict at now = 1000."""

from __future__ import annotations

import dataclasses
from typing import Any

from routing.core.decide import decide
from routing.core.scenario.document import Scenario, parse_scenario
from routing.core.types import Memory, Observation, Params, Plan, Verdict
from tests.core.cases import demo_document, plan

ACTIVE = Params(mode="active", band_ratio=0.0)
LASTED = Memory(roles_gain_since_s=900.0)
GAINED = Memory(gain_since_s=900.0)


def scenario(*, gbps: float = 100.0, **cluster: Any) -> Scenario:
    document = demo_document()
    document["clusters"][1].update({"control_urls": ["http://stack:9000"], **cluster})
    document["links"][0]["gbps"] = gbps
    return parse_scenario(document)


def says(
    observation: Observation,
    *,
    running: Plan | None = None,
    memory: Memory = LASTED,
    described: Scenario | None = None,
    **params: Any,
) -> Verdict:
    found = observation.pd["pd"]
    roles = {"n_prefill": found.n_prefill, "n_decode": found.n_decode}
    return decide(
        observation,
        running or plan(19_800, **roles),
        memory,
        dataclasses.replace(ACTIVE, **params),
        described or scenario(),
    )


def roles(verdict: Verdict) -> tuple[int, int]:
    cluster = verdict.plan.clusters["pd"]
    return cluster.n_prefill, cluster.n_decode
