"""Connections and pacing of a path, and when they are worth a plan of their own."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from routing.core.decide import decide
from routing.core.links import flows
from routing.core.links.transport import MOST_CONNECTIONS, WINDOW_BYTES, transport
from routing.core.types import LinkMemory, Memory, Params, Transport, Verdict
from tests.core.cases import demo_scenario, link, plan, seen

PARAMS = Params(mode="active", band_ratio=0.0)


def hint(capacity_gbps: float, rtt_s: float | None, **facts: Any) -> Transport | None:
    on = demo_scenario(**facts).links[0]
    return transport(on, LinkMemory(), capacity_gbps=capacity_gbps, rtt_s=rtt_s, now_s=1000.0)


@pytest.mark.parametrize(
    ("what", "capacity_gbps", "rtt_s", "facts", "connections"),
    [
        ("one fills a narrow short path", 5.0, 0.001, {}, 1),
        ("a socket carries 10 Gbps", 100.0, 0.001, {}, 10),
        ("3 MiB each 5 ms are 5 Gbps", 100.0, 0.005, {}, 19),
        ("3 MiB each 30 ms are 0.84 Gbps", 15.0, 0.03, {}, 17),
        ("a larger window", 15.0, 0.03, {"window_bytes": 64 * 2**20}, 2),
        ("the path's own limit", 30.0, 0.001, {"per_connection_gbps": 2.0}, 15),
        ("a limit above that, and the window", 100.0, 1e-3, {"per_connection_gbps": 50.0}, 4),
        ("never as many as collapse", 100.0, 0.1, {}, MOST_CONNECTIONS),
        ("the scenario's RTT where none was measured", 100.0, None, {}, 19),
        ("an RTT of nothing", 100.0, 0.0, {}, 10),
    ],
)
def test_connections_follow_from_the_bandwidth_delay_product(
    what: str, capacity_gbps: float, rtt_s: float | None, facts: dict[str, Any], connections: int
) -> None:
    found = hint(capacity_gbps, rtt_s, **facts)
    assert found == Transport(connections, float(f"{0.95 * capacity_gbps:.3g}"))


def test_what_was_measured_of_one_connection_counts_for_a_day() -> None:
    on = demo_scenario().links[0]
    learnt = LinkMemory(per_connection_gbps=6.0, per_connection_at_s=1000.0)
    kept_s = flows.PER_CONNECTION_KEPT_S
    found = [
        transport(on, learnt, capacity_gbps=60.0, rtt_s=1e-4, now_s=at_s)
        for at_s in (1000.0, 1000.0 + kept_s, 1001.0 + kept_s)
    ]
    assert [each.connections for each in found if each] == [10, 10, 6]


def test_a_window_on_its_way_is_what_the_formula_says() -> None:
    """19 connections of 3 MiB fill 95 Gbps at 5 ms, 18 do not."""
    found = hint(100.0, 0.005)
    assert found is not None
    bits = 8 * WINDOW_BYTES / 0.005
    assert (found.connections - 1) * bits < 95e9 <= found.connections * bits


@pytest.mark.parametrize("capacity_gbps", [0.0, math.inf, math.nan])
def test_a_link_that_carries_nothing_has_no_hint(capacity_gbps: float) -> None:
    assert hint(capacity_gbps, 0.005) is None


RUNS = {"prfaas": Transport(19, 95.0)}


def says(running: dict[str, Transport], **reading: Any) -> Verdict:
    observation = seen(link=link(**reading))
    at = plan(19_500, transport=running)
    return decide(observation, at, Memory(), PARAMS, demo_scenario())


@pytest.mark.parametrize(
    ("what", "running", "reading", "reason"),
    [
        ("no hint runs, nothing asks for one", {}, {}, "Optimal"),
        ("it is right", RUNS, {}, "Optimal"),
        ("about right", {"prfaas": Transport(17, 90.0)}, {}, "Optimal"),
        ("too few connections", {"prfaas": Transport(8, 95.0)}, {}, "TransportChanged"),
        ("paced at the old capacity", RUNS, {"capacity_gbps": 40.0}, "TransportChanged"),
    ],
)
def test_only_a_material_difference_is_a_plan_of_its_own(
    what: str, running: dict[str, Transport], reading: dict[str, Any], reason: str
) -> None:
    verdict = says(running, **reading)
    assert verdict.reason == reason
    assert verdict.plan.clusters["pd"].threshold_tokens == 19_500


def test_hints_join_a_plan_that_is_made_anyway() -> None:
    verdict = decide(seen(), plan(4000), Memory(gain_since_s=900.0), PARAMS, demo_scenario())
    assert verdict.reason == "PrefillImbalance"
    assert verdict.plan.clusters["pd"].transport == RUNS


def test_the_new_hints_run_and_nothing_changes_again() -> None:
    first = says({"prfaas": Transport(4, 20.0)})
    assert "19 connections paced at 95 Gbps" in first.message
    observation = dataclasses.replace(seen(), now_s=1100.0)
    again = decide(observation, first.plan, first.memory, PARAMS, demo_scenario())
    assert again.action == "hold"
    assert again.plan.clusters["pd"].transport == RUNS
