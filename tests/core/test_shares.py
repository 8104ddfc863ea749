"""How the loop shares remote requests out between several PrfaaS clusters."""

from __future__ import annotations

import pytest

from routing.core.decide import decide
from routing.core.scenario.document import Scenario, parse_scenario
from routing.core.types import (
    ClusterPlan,
    Memory,
    Observation,
    Params,
    Plan,
    PrefillObservation,
    Verdict,
)
from tests.core.big import big_fleet
from tests.core.cases import demo_document, link, pd

ACTIVE = Params(mode="active", band_ratio=0.0, roles_mode="fixed")
LINKS = ("east->pd", "west->pd")


def two_prfaas(east: int = 3, west: int = 1) -> Scenario:
    document = demo_document()
    first = document["clusters"][0]
    document["clusters"][0] = {**first, "name": "east", "instances": east}
    document["clusters"].append({**first, "name": "west", "instances": west})
    line = document["links"][0]
    document["links"] = [{**line, "from": name} for name in ("east", "west")]
    return parse_scenario(document)


def looks(now_s: float, *, down: str | None = None) -> Observation:
    states = {
        name: link(capacity_gbps=0.0) if name == down else link(tx_gbps=5.0) for name in LINKS
    }
    prefill = {"east": PrefillObservation(3, age_s=1.0), "west": PrefillObservation(1, age_s=1.0)}
    return Observation(now_s, "prfaas-1t", {"pd": pd()}, prefill, states)


def plan(t: int, **remote: float) -> Plan:
    return Plan("prfaas-1t", 1, 1, {"pd": ClusterPlan("threshold", t, 3, 5, remote)})


def passes(running: Plan, memory: Memory, *, until_s: float, **seen: str) -> list[Verdict]:
    """Ticks 2 s apart, the plan followed at once, until something other than a hold comes."""
    verdicts, scenario = [], two_prfaas()
    now_s = 1000.0
    while now_s <= until_s:
        verdict = decide(looks(now_s, **seen), running, memory, ACTIVE, scenario)
        running, memory = verdict.plan, verdict.memory
        verdicts.append(verdict)
        now_s += 2.0
    return verdicts


def test_shares_that_overload_one_are_set_right_with_the_dampers_of_t() -> None:
    first = passes(plan(19_813, east=0.5, west=0.5), Memory(), until_s=1000.0)[0]
    best_t = first.best_plan["pd"].threshold_tokens
    assert best_t is not None
    verdicts = passes(plan(best_t, east=0.5, west=0.5), Memory(), until_s=1030.0)
    assert verdicts[0].reason == "GainPending"
    assert "pd east 50%, west 50% -> east 75%, west 25%" in verdicts[0].message
    changed = next(v for v in verdicts if v.action == "adopt")
    assert changed.reason == "ShareImbalance"
    after = changed.plan.clusters["pd"]
    assert after.remote == pytest.approx({"east": 0.75, "west": 0.25}, abs=0.01)
    assert sum(after.remote.values()) == pytest.approx(1.0)
    assert "from east 50%, west 50% to east 75%, west 25%" in changed.message
    rest = verdicts[verdicts.index(changed) + 1 :]
    assert all(v.action == "hold" for v in rest)


def test_a_share_of_nothing_is_no_link_that_came_back() -> None:
    """What the optimum leaves out stays in the plan with a share of 0, and waits for a gain."""
    verdicts = passes(plan(19_813, east=1.0, west=0.0), Memory(), until_s=1010.0)
    assert {v.reason for v in verdicts} == {"GainPending"}


def test_a_link_down_leaves_the_other_and_its_return_shares_again() -> None:
    running = plan(19_813, east=0.75, west=0.25)
    down = passes(running, Memory(), until_s=1000.0, down="west->pd")[0]
    assert down.reason == "LinkDown"
    assert down.plan.clusters["pd"].remote == {"east": 1.0}
    back = passes(down.plan, down.memory, until_s=1090.0)
    again = next(v for v in back if v.reason == "LinkBack")
    assert again.plan.clusters["pd"].remote.keys() == {"east", "west"}
    assert sum(again.plan.clusters["pd"].remote.values()) == pytest.approx(1.0)


def test_thresholds_and_shares_move_together() -> None:
    verdicts = passes(plan(12_000, east=0.5, west=0.5), Memory(), until_s=1030.0)
    changed = next(v for v in verdicts if v.action == "adopt")
    assert changed.reason == "PrefillImbalance"
    after = changed.plan.clusters["pd"]
    assert after.threshold_tokens is not None
    assert after.threshold_tokens > 12_000
    assert after.remote["east"] > 0.7


def test_a_hundred_pd_clusters_share_four_prfaas_clusters() -> None:
    scenario, observation, running = big_fleet(100, 4)
    verdict = decide(observation, running, Memory(), ACTIVE, scenario)
    assert verdict.current is not None
    assert verdict.best is not None
    assert (verdict.best.headroom or 0.0) > (verdict.current.headroom or 0.0)
    for name, best in verdict.best_plan.items():
        assert best.threshold_tokens is not None
        assert ACTIVE.t_min_tokens <= best.threshold_tokens <= ACTIVE.t_max_tokens
        assert best.remote.keys() == running.clusters[name].remote.keys()
        assert sum(best.remote.values()) == pytest.approx(1.0)
    assert len(verdict.best_plan) == 100
