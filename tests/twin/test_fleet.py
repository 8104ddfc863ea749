"""Whole runs: sides, stages, faults that lose nothing, roles that move, and determinism."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from routing.core.placement import sides
from routing.core.types import ClusterPlan
from routing.twin.policies import Scripted
from routing.twin.workload import scenario_workload
from tests.twin.cases import at, document, parsed, run, told


def drawn(rate_rps: float, duration_s: float, **changes: Any) -> Any:
    scenario, settings = parsed(**changes)
    return scenario_workload(scenario, settings, rate_rps=rate_rps, duration_s=duration_s)


def test_one_request_through_every_stage_of_the_remote_side() -> None:
    # 5,000 tokens: 5 s of prefill; 5 MB at 10 MB/s while it is computed, the last of 60 layers
    # after it; then two tokens of 0.1 s.
    report = run(told([1.0], 5000, 3), at(4000), duration_s=50.0)
    assert report.remote_fraction == 1.0
    assert report.stages_s["prefill"]["mean"] == pytest.approx(5.0)
    assert report.stages_s["transfer"]["mean"] == pytest.approx(5e6 / 60 / 10e6, rel=1e-3)
    assert report.ttft_s["mean"] == pytest.approx(5.0 + 5e6 / 60 / 10e6, rel=1e-3)
    assert report.inter_token_s["mean"] == pytest.approx(0.1)
    assert report.links["far->near"]["bytes"] == 5_000_000


@pytest.mark.parametrize(
    ("tokens", "remote"), [(3999, False), (4000, False), (4001, True)], ids=["below", "at", "above"]
)
def test_s36_remote_is_above_t(tokens: int, remote: bool) -> None:
    report = run(told([0.0], tokens), at(4000), duration_s=50.0)
    assert report.remote_fraction == float(remote)
    assert list(report.reasons) == [sides.LONG if remote else sides.SHORT]


def test_t_zero_sends_everything_remote() -> None:
    assert run(told([0.0, 1.0], [1, 9]), at(0), duration_s=50.0).remote_fraction == 1.0


def test_decode_slots_are_waited_for() -> None:
    # One decode instance of two slots; three answers of 10 s at once.
    report = run(told([0.0] * 3, 1, 101), at(None, n_prefill=3, n_decode=1), duration_s=99.0)
    assert report.stages_s["decode_wait"]["p99"] == pytest.approx(10.0, rel=1e-3)


def test_same_seed_same_bytes() -> None:
    workload = drawn(0.6, 800.0)
    first, second = (run(workload, at(1500), duration_s=800.0) for _ in range(2))
    assert json.dumps(first.to_json()) == json.dumps(second.to_json())
    other = run(workload, at(1500), duration_s=800.0, seed=2)
    assert json.dumps(other.to_json()) != json.dumps(first.to_json())


FAULTS: dict[str, dict[str, Any]] = {
    "prefill": {"kind": "prefill_down", "cluster": "near", "instances": 1},
    "remote": {"kind": "prefill_down", "cluster": "far", "instances": 2},
    "decode": {"kind": "decode_down", "cluster": "near", "instances": 1},
    "all": {"kind": "cluster_down", "cluster": "near"},
    "link": {"kind": "link_down", "link": "far->near"},
    "narrow": {"kind": "link_gbps", "link": "far->near", "gbps": 0.01},
    "loss": {"kind": "link_loss", "link": "far->near", "loss_ratio": 0.5},
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_delays_and_loses_nothing(fault: dict[str, Any]) -> None:
    links = [{"from": "far", "to": "near", "gbps": 0.08, "rtt_ms": 50.0}]
    lengths = {"kind": "lognormal", "mu": 7.0, "sigma": 0.5, "min": 100, "max": 10_000}
    traffic = {"rate_rps": 2.2, "output_tokens": 16, "lengths": lengths}
    workload = drawn(2.2, 600.0, workload=traffic)
    calm = run(workload, at(1200), duration_s=9000.0, links=links)
    faults = [fault | {"at_s": 200.0, "for_s": 100.0}]
    hit = run(workload, at(1200), duration_s=9000.0, faults=faults, links=links)
    assert hit.completed == hit.requests == calm.requests == calm.completed
    assert hit.tokens["prompt"] == calm.tokens["prompt"]
    assert hit.ttft_s["mean"] > calm.ttft_s["mean"] * 1.05


def test_while_its_link_is_down_nothing_new_goes_remote() -> None:
    fault = {"kind": "link_down", "link": "far->near", "at_s": 0.0, "for_s": 100.0}
    report = run(told([10.0, 200.0], 5000), at(1000), duration_s=300.0, faults=[fault])
    assert {name: each["requests"] for name, each in report.reasons.items()} == {
        sides.REMOTE_DOWN: 1,
        sides.LONG: 1,
    }


def test_with_nobody_left_requests_wait_for_an_instance() -> None:
    faults = [
        {"kind": "cluster_down", "cluster": "near", "at_s": 5.0, "for_s": 95.0},
        {"kind": "cluster_down", "cluster": "far", "at_s": 5.0, "for_s": 95.0},
    ]
    report = run(told([10.0], 1000), at(4000), duration_s=300.0, faults=faults)
    assert report.completed == 1
    assert report.ttft_s["mean"] == pytest.approx(90.0 + 1.0, rel=1e-3)


def test_a_lost_request_begins_anew_and_says_so() -> None:
    fault = {"kind": "prefill_down", "cluster": "near", "at_s": 3.0, "for_s": 500.0}
    # Both instances work; the one that is lost had 5 s to do, the other one 4 s.
    report = run(told([0.0, 0.0], [4000, 5000]), at(None), duration_s=90.0, faults=[fault])
    assert report.retries == 1
    assert report.ttft_s["p99"] == pytest.approx(4.0 + 5.0, rel=1e-3)


def test_roles_move_one_by_one_after_a_drain() -> None:
    script = Scripted([(0.0, at(None, 1, 3)), (50.0, at(None, 3, 1))])
    busy = told(np.arange(0.0, 400.0, 2.0), 1000, 101)
    report = run(busy, script, duration_s=1000.0, delays={"drain_s": 20.0})
    assert report.completed == 200
    hours = report.pools["prefill:near"]["instance_hours"]
    assert hours is not None
    # Three at the end; the first cannot serve before 20 s of drain, the second not before 40.
    assert 3 * 1000.0 - 2 * 400.0 < 3600.0 * hours < 3 * 1000.0 - 2 * 50.0 - 20.0 - 40.0


def test_gates_apply_a_plan_late() -> None:
    script = Scripted([(0.0, at(None)), (100.0, at(0))])
    busy = told(np.arange(0.5, 200.0, 1.0), 100)
    report = run(busy, script, duration_s=400.0, delays={"gate_s": 30.5, "tick_s": 2.0})
    assert report.reasons[sides.ALWAYS_LOCAL]["requests"] == 131 - 1


def test_two_pd_clusters_share_one_prefill_pool_and_decode_at_home() -> None:
    clusters = [
        {"name": "far", "kind": "prefill", "profile": "gpu", "instances": 1},
        {"name": "near", "kind": "pd", "profile": "gpu", "instances": 4},
        {"name": "next", "kind": "pd", "profile": "gpu", "instances": 4},
    ]
    links = [{"from": "far", "to": name, "gbps": 0.08, "rtt_ms": 0.0} for name in ("near", "next")]
    lengths = {"kind": "lognormal", "mu": 7.0, "sigma": 0.5, "min": 100, "max": 10_000}
    both = [
        {"cluster": name, "rate_rps": 0.1, "output_tokens": 1, "lengths": lengths}
        for name in ("near", "next")
    ]
    plans = at(0) | {"next": at(0)["near"]}
    report = run(
        told([0.0, 0.0], 2000, site=[0, 1]),
        plans,
        duration_s=100.0,
        clusters=clusters,
        links=links,
        traffic=both,
    )
    # One instance: one of them waits for the other. Each crosses a link of its own.
    assert report.stages_s["queue"]["p99"] == pytest.approx(2.0, rel=1e-3)
    assert [each["bytes"] for each in report.links.values()] == [2_000_000, 2_000_000]
    assert [each["completed"] for each in report.sites.values()] == [1, 1]


def test_chunks_after_the_first_cost_what_the_engine_says() -> None:
    engine = {"chunk_tokens": 2000, "chunk_s": 0.25}
    chunked = run(told([0.0], 5000), at(None), duration_s=99.0, engine=engine)
    assert chunked.stages_s["prefill"]["mean"] == pytest.approx(5.0 + 2 * 0.25)
    whole = run(told([0.0], 5000), at(None), duration_s=99.0)
    assert whole.stages_s["prefill"]["mean"] == pytest.approx(5.0)


def test_fewer_layers_leave_more_for_the_end() -> None:
    report = run(told([0.0], 5000), at(0), duration_s=99.0, engine={"layers": 5})
    assert report.stages_s["transfer"]["mean"] == pytest.approx(5e6 / 5 / 10e6, rel=1e-3)


def test_of_faults_at_the_same_time_the_worst_holds_and_a_schedule_goes_on() -> None:
    # 10 MB/s; the schedule halves that at 20 s. Two faults: 0.008 Gbps from 10 to 60 s, down from
    # 30 to 40 s. What is sent by when shows what held.
    links = [
        {"from": "far", "to": "near", "gbps": 0.08, "rtt_ms": 0.0, "schedule": [[20.0, 0.04]]},
    ]
    faults = [
        {"kind": "link_gbps", "link": "far->near", "gbps": 0.008, "at_s": 10.0, "for_s": 50.0},
        {"kind": "link_down", "link": "far->near", "at_s": 30.0, "for_s": 10.0},
    ]
    # 90 MB that are computed in 1 ms: 100 from 0 to 10 s would be 100, so 9 s of it are left.
    gpu = document()["profiles"]["gpu"] | {"prefill": [[1, 0.001], [200_000, 0.002]]}
    report = run(
        told([1.0], 130_000),
        at(0),
        duration_s=200.0,
        links=links,
        faults=faults,
        profiles={"gpu": gpu},
    )
    # 90 MB by 10 s, 1 MB/s to 30 s and from 40 to 60 s, which is 130 MB at 60 s.
    assert report.ttft_s["mean"] == pytest.approx(59.0, rel=2e-3)


def test_after_a_fault_a_link_carries_what_its_schedule_says() -> None:
    links = [
        {"from": "far", "to": "near", "gbps": 0.08, "rtt_ms": 0.0, "schedule": [[20.0, 0.04]]},
    ]
    fault = {"kind": "link_down", "link": "far->near", "at_s": 10.0, "for_s": 30.0}
    gpu = document()["profiles"]["gpu"] | {"prefill": [[1, 0.001], [200_000, 0.002]]}
    report = run(
        told([1.0], 140_000),
        at(0),
        duration_s=200.0,
        links=links,
        faults=[fault],
        profiles={"gpu": gpu},
    )
    assert report.ttft_s["mean"] == pytest.approx(9.0 + 30.0 + 10.0, rel=2e-3)


def counted(threshold: int, limit: int | None, **more: Any) -> dict[str, Any]:
    return at(threshold, max_remote_in_flight=limit, **more)


def test_a_limit_of_requests_in_flight_counts_each_once() -> None:
    # Two decode slots an instance, answers of 10 s: with a limit of 2 the third waits at home.
    busy = told([0.0, 0.1, 0.2, 30.0], 5000, 101)
    report = run(busy, counted(1000, 2), duration_s=200.0)
    assert report.reasons[sides.REMOTE_LIMIT]["requests"] == 1
    assert report.reasons[sides.LONG]["requests"] == 3


def test_requests_that_begin_anew_are_in_flight_once() -> None:
    faults = [
        {"kind": "prefill_down", "cluster": "far", "at_s": 1.0, "for_s": 1.0},
        {"kind": "prefill_down", "cluster": "far", "at_s": 3.0, "for_s": 1.0},
    ]
    busy = told([0.0, 100.0, 100.1], 5000, 1)
    report = run(busy, counted(1000, 2), duration_s=300.0, faults=faults)
    assert sides.REMOTE_LIMIT not in report.reasons


def test_a_turn_is_taken_by_what_goes_remote_only() -> None:
    clusters = document()["clusters"]
    clusters.append(clusters[0] | {"name": "other"})
    links = [{"from": name, "to": "near", "gbps": 0.8, "rtt_ms": 0.0} for name in ("far", "other")]
    plans = at(4000, band=(3500, 4500))
    plans = {"near": dataclasses.replace(plans["near"], remote={"far": 0.5, "other": 0.5})}
    # Long and short in turn: the long ones are shared out evenly all the same.
    prompts = [300, 20_000] * 20
    busy = told(np.arange(40) * 30.0, prompts)
    report = run(busy, plans, duration_s=5000.0, clusters=clusters, links=links)
    assert {each["bytes"] for each in report.links.values()} == {200_000_000}


def test_a_remote_without_weight_gets_nothing() -> None:
    clusters = document()["clusters"]
    clusters.append(clusters[0] | {"name": "other"})
    links = [{"from": name, "to": "near", "gbps": 0.8, "rtt_ms": 0.0} for name in ("far", "other")]
    fault = {"kind": "link_down", "link": "far->near", "at_s": 0.0, "for_s": 100.0}
    plans = {"near": dataclasses.replace(at(0)["near"], remote={"far": 1.0, "other": 0.0})}
    report = run(
        told([1.0], 5000), plans, duration_s=99.0, clusters=clusters, links=links, faults=[fault]
    )
    assert list(report.reasons) == [sides.REMOTE_DOWN]


def test_who_was_stranded_goes_on_when_the_link_is_back() -> None:
    fault = {"kind": "link_down", "link": "far->near", "at_s": 0.0, "for_s": 20.0}
    plan = {"near": ClusterPlan("always_remote", None, 0, 4, remote={"far": 1.0})}
    report = run(told([1.0], 5000), plan, duration_s=200.0, faults=[fault])
    assert report.completed == 1
    assert report.ttft_s["mean"] == pytest.approx(19.0 + 5.0, abs=0.1)
