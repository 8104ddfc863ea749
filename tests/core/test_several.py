"""What several clusters owe each other: none pays for another's trouble."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest

from routing.core.decide import decide
from routing.core.scenario.document import Scenario, parse_scenario
from routing.core.types import (
    ClusterPlan,
    HeldPlan,
    Memory,
    Observation,
    Params,
    PdObservation,
    Plan,
    PrefillObservation,
    Verdict,
)
from tests.core.cases import demo_document, link, pd

ACTIVE = Params(mode="active", band_ratio=0.0, roles_mode="fixed")
ROLES = Params(mode="active", band_ratio=0.0)


def apart(**far: Any) -> Scenario:
    """Two pairs that share nothing: f -> pd and g -> other."""
    document = demo_document()
    source, near = document["clusters"]
    line, traffic = document["links"][0], document.pop("workload")
    urls = {"control_urls": ["http://stack"]}
    document["clusters"] = [
        {**source, "name": "f", **far},
        {**source, "name": "g"},
        *({**near, "name": name, **urls} for name in ("pd", "other")),
    ]
    document["links"] = [{**line, "from": a, "to": b} for a, b in (("f", "pd"), ("g", "other"))]
    document["workloads"] = [{**traffic, "cluster": name} for name in ("pd", "other")]
    return parse_scenario(document)


def look(now_s: float, **seen: PdObservation) -> Observation:
    prefill = {name: PrefillObservation(4, age_s=1.0) for name in ("f", "g")}
    links = {"f->pd": link(), "g->other": link()}
    return Observation(now_s, "prfaas-1t", seen, prefill, links)


def plan(pd_t: int, other_t: int, other_roles: tuple[int, int] = (3, 5)) -> Plan:
    clusters = {
        "pd": ClusterPlan("threshold", pd_t, 3, 5, {"f": 1.0}),
        "other": ClusterPlan("threshold", other_t, *other_roles, {"g": 1.0}),
    }
    return Plan("prfaas-1t", 1, 1, clusters)


def passes(running: Plan, params: Params, n: int, **seen: PdObservation) -> list[Verdict]:
    memory, found, scenario = Memory(), [], apart()
    for i in range(n):
        verdict = decide(look(1000.0 + 2 * i, **seen), running, memory, params, scenario)
        running, memory = verdict.plan, verdict.memory
        found.append(verdict)
    return found


def test_an_overloaded_cluster_pushes_no_healthy_one() -> None:
    """pd gets more than twice what it carries; other's t suits it and stays."""
    verdicts = passes(plan(10_000, 19_800), ACTIVE, 90, pd=pd(demand_rps=6.0), other=pd())
    assert verdicts[-1].plan.clusters["pd"].threshold_tokens == pytest.approx(19_800, rel=0.05)
    assert {v.plan.clusters["other"].threshold_tokens for v in verdicts} == {19_800}


def test_a_healthy_cluster_is_tuned_although_another_limits_the_fleet() -> None:
    verdicts = passes(plan(19_800, 4000), ACTIVE, 90, pd=pd(demand_rps=6.0), other=pd())
    assert verdicts[-1].plan.clusters["other"].threshold_tokens == pytest.approx(19_800, rel=0.1)


def test_its_roles_move_as_well() -> None:
    short = pd(n_prefill=6, n_decode=2)
    verdicts = passes(plan(19_800, 19_800, (6, 2)), ROLES, 40, pd=pd(demand_rps=8.0), other=short)
    moved = next(v for v in verdicts if v.reason == "RoleImbalance")
    after = moved.plan.clusters["other"]
    assert (after.n_prefill, after.n_decode) == (4, 4)
    assert moved.plan.clusters["pd"].n_decode == 5


def test_decode_that_holds_much_gives_up_as_little_as_fits() -> None:
    """2/6 with KV at 55 %: the step to 4/4 would be 82 %, one instance is 66 %."""
    rich = pd(n_prefill=2, n_decode=6, decode_kv_usage_ratio=0.55, demand_rps=2.0)
    document = demo_document()
    document["clusters"][0]["instances"] = 1
    document["clusters"][1]["control_urls"] = ["http://stack"]
    document["workload"]["output_tokens"] = 300
    seen = Observation(
        1000.0,
        "prfaas-1t",
        {"pd": rich},
        {"prfaas": PrefillObservation(1, age_s=1.0)},
        {"prfaas->pd": link()},
    )
    running = Plan(
        "prfaas-1t", 1, 1, {"pd": ClusterPlan("threshold", 19_800, 2, 6, {"prfaas": 1.0})}
    )
    verdict = decide(
        seen, running, Memory(roles_gain_since_s=900.0), ROLES, parse_scenario(document)
    )
    assert verdict.reason == "RoleImbalance"
    assert verdict.plan.clusters["pd"].n_decode == 5
    assert "decode_kv_usage_ratio" in {clamp.name for clamp in verdict.clamps}


def test_s24_measured_kv_keeps_the_last_instances() -> None:
    """Two decode instances at 0.70: one would be at 1.40, whatever the model expects."""
    full = pd(n_prefill=2, n_decode=2, decode_kv_usage_ratio=0.70, demand_rps=0.9)
    document = demo_document()
    document["clusters"][1].update(instances=4, control_urls=["http://stack"])
    document["clusters"][0]["instances"] = 1
    document["workload"]["output_tokens"] = 150
    scenario, memory = parse_scenario(document), Memory(roles_gain_since_s=900.0)
    running = Plan(
        "prfaas-1t", 1, 1, {"pd": ClusterPlan("threshold", 19_800, 2, 2, {"prfaas": 1.0})}
    )
    seen = Observation(
        1000.0,
        "prfaas-1t",
        {"pd": full},
        {"prfaas": PrefillObservation(1, age_s=1.0)},
        {"prfaas->pd": link()},
    )
    free = dataclasses.replace(
        seen, pd={"pd": dataclasses.replace(full, decode_kv_usage_ratio=0.3)}
    )
    assert decide(free, running, memory, ROLES, scenario).reason == "RoleImbalance"
    verdict = decide(seen, running, memory, ROLES, scenario)
    assert verdict.plan.clusters["pd"].n_decode == 2
    assert "decode_kv_usage_ratio" in {clamp.name for clamp in verdict.clamps}


def two_remotes(*, drained: tuple[str, ...] = ()) -> Scenario:
    document = demo_document()
    far = document["clusters"][0]
    document["clusters"][0] = {**far, "name": "east", "drained": "east" in drained}
    document["clusters"].append({**far, "name": "west", "drained": "west" in drained})
    line = document["links"][0]
    document["links"] = [
        {**line, "from": "east", "gbps": 3.0},
        {**line, "from": "west", "gbps": 60.0},
    ]
    return parse_scenario(copy.deepcopy(document))


def sees_two(now_s: float = 1000.0, **east: Any) -> Observation:
    prefill = {name: PrefillObservation(4, age_s=1.0) for name in ("east", "west")}
    links = {
        "east->pd": link(**{"capacity_gbps": 3.0, "tx_gbps": 1.0, **east}),
        "west->pd": link(capacity_gbps=60.0, tx_gbps=2.0),
    }
    return Observation(now_s, "prfaas-1t", {"pd": pd()}, prefill, links)


def sends(t: int, **remote: float) -> Plan:
    return Plan("prfaas-1t", 1, 1, {"pd": ClusterPlan("threshold", t, 3, 5, remote)})


def test_shares_leave_a_congested_link_although_t_may_not_fall() -> None:
    verdict = decide(
        sees_two(tx_gbps=3.0), sends(28_000, east=0.9, west=0.1), Memory(), ACTIVE, two_remotes()
    )
    after = verdict.plan.clusters["pd"]
    assert (verdict.action, verdict.reason) == ("adopt", "Congestion")
    assert after.threshold_tokens == 28_000
    assert after.remote["east"] < 0.5


GONE = [("east", {"west": 1.0}, "threshold"), ("both", {}, "always_local")]


@pytest.mark.parametrize(("which", "remote", "mode"), GONE, ids=[case[0] for case in GONE])
def test_nothing_is_sent_to_a_prfaas_cluster_that_is_drained(which, remote, mode) -> None:
    drained = ("east", "west") if which == "both" else (which,)
    running = sends(20_000, east=0.5, west=0.5)
    verdict = decide(sees_two(), running, Memory(), ACTIVE, two_remotes(drained=drained))
    assert (verdict.action, verdict.reason) == ("adopt", "RemoteGone")
    assert "east" in verdict.message
    after = verdict.plan.clusters["pd"]
    assert (after.mode, after.remote) == (mode, remote)


def test_a_hold_pins_t_and_no_dead_link() -> None:
    hold = HeldPlan("pd", "threshold", 9000, "ops", "incident", 5000.0)
    verdict = decide(
        sees_two(capacity_gbps=0.0),
        sends(9000, east=0.5, west=0.5),
        Memory(),
        dataclasses.replace(ACTIVE, holds=(hold,)),
        two_remotes(),
    )
    after = verdict.plan.clusters["pd"]
    assert (after.threshold_tokens, after.remote) == (9000, {"west": 1.0})
