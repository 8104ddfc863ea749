"""A cluster that cannot be judged keeps nobody else from acting."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from routing.core.decide import decide
from routing.core.scenario.document import Scenario, parse_scenario
from routing.core.types import (
    ClusterPlan,
    Memory,
    Observation,
    Params,
    PdObservation,
    Plan,
    PrefillObservation,
    Verdict,
)
from tests.core.cases import demo_document, exact_histogram, link, pd

ACTIVE = Params(mode="active", band_ratio=0.0, roles_mode="fixed")
NEVER = PdObservation(None, "missing", None, n_prefill=0, n_decode=0)


def two_pd(*, shared: bool) -> Scenario:
    """Two PD clusters, on one PrfaaS cluster or each on one of its own."""
    document = demo_document()
    far, near = document["clusters"]
    line, traffic = document["links"][0], document.pop("workload")
    document["clusters"] = [
        {**far, "name": "f"},
        {**far, "name": "g"},
        *({**near, "name": name} for name in ("pd", "other")),
    ]
    document["links"] = [
        {**line, "from": "f", "to": "pd"},
        {**line, "from": "f" if shared else "g", "to": "other"},
    ]
    document["workloads"] = [{**traffic, "cluster": name} for name in ("pd", "other")]
    return parse_scenario(document)


def passes(other: PdObservation, *, shared: bool, t: int = 4000, **near: Any) -> list[Verdict]:
    scenario = two_pd(shared=shared)
    source = "f" if shared else "g"
    running = Plan(
        "prfaas-1t",
        1,
        1,
        {
            "pd": ClusterPlan("threshold", t, 3, 5, {"f": 1.0}),
            "other": ClusterPlan("threshold", 19_800, 3, 5, {source: 1.0}),
        },
    )
    memory, found = Memory(), []
    for i in range(30):
        seen = Observation(
            1000.0 + 2 * i,
            "prfaas-1t",
            {"pd": pd(), "other": other},
            {name: PrefillObservation(4, age_s=1.0) for name in ("f", "g")},
            {"f->pd": link(**near), f"{source}->other": link()},
        )
        verdict = decide(seen, running, memory, ACTIVE, scenario)
        running, memory = verdict.plan, verdict.memory
        found.append(verdict)
    return found


GAPS = [
    ("never measured", NEVER),
    ("ten requests", pd(lengths=exact_histogram(10))),
    ("stale gates", pd(age_s=60.0)),
    ("one gate of three", pd(gates_silent=("a", "b"), n_gates=3)),
    ("lost", dataclasses.replace(pd(), demand_rps=None, demand_state="missing", age_s=60.0)),
]


@pytest.mark.parametrize(("case", "other"), GAPS, ids=[case[0] for case in GAPS])
@pytest.mark.parametrize("shared", [False, True], ids=["apart", "shared"])
def test_the_others_go_on(case, other, shared) -> None:
    verdicts = passes(other, shared=shared)
    assert verdicts[-1].plan.clusters["pd"].threshold_tokens >= 9_000
    assert verdicts[-1].plan.clusters["other"].threshold_tokens == 19_800, "left as it runs"
    assert any("other is left as it runs" in text for text in verdicts[-1].warnings)


@pytest.mark.parametrize(("case", "other"), GAPS, ids=[case[0] for case in GAPS])
def test_congestion_is_relieved_in_the_same_tick(case, other) -> None:
    congested = passes(other, shared=False, t=15_000, capacity_gbps=3.0, tx_gbps=3.0)
    first = congested[0]
    assert (first.action, first.reason) == ("adopt", "Congestion")
    assert first.plan.clusters["pd"].threshold_tokens > 15_000


def test_nothing_more_is_sent_where_it_is_not_known_what_is_asked() -> None:
    """The lost cluster sends to the same PrfaaS cluster, nobody knows how much: t may only rise."""
    lost = GAPS[-1][1]
    down = passes(lost, shared=True, t=60_000)
    assert {v.reason for v in down} == {"StaleTelemetry"}
    assert "what others send to f is not known" in down[-1].message
    assert down[-1].plan.clusters["pd"].threshold_tokens == 60_000
    apart = passes(lost, shared=False, t=60_000)
    assert apart[-1].plan.clusters["pd"].threshold_tokens < 60_000
    never = passes(NEVER, shared=True, t=60_000)
    assert never[-1].plan.clusters["pd"].threshold_tokens < 60_000, "it sends nothing"
