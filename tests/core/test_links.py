"""The label of a link: what each reading is called, what that moves, and what only happened."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.core.decide import decide
from routing.core.jsonable import from_jsonable, to_jsonable
from routing.core.links import flows
from routing.core.links import state as link_state
from routing.core.links.state import LinkView
from routing.core.scenario.document import Link, parse_scenario
from routing.core.types import LinkMemory, LinkObservation, Memory, Params
from tests.core.cases import demo_document, demo_scenario, link, plan, seen

PARAMS = Params(mode="active", band_ratio=0.0)
MB = 1e6


def path(**facts: Any) -> Link:
    return demo_scenario(**facts).links[0]


def watch(
    readings: Iterable[LinkObservation | None],
    on: Link | None = None,
    *,
    memory: LinkMemory = link_state.NEW_LINK,
    from_s: float = 1000.0,
) -> list[LinkView]:
    """Views of one reading after another, 2 s apart, each heard of half a second ago."""
    base_rtt_s: float | None = 0.005
    views = []
    for i, reading in enumerate(readings):
        view = link_state.view(
            on or path(), reading, memory, base_rtt_s, now_s=from_s + 2.0 * i, params=PARAMS
        )
        memory, base_rtt_s = view.memory, view.base_rtt_s
        views.append(view)
    return views


def moving(*tx_gbps: float, **changes: Any) -> list[LinkObservation]:
    return [link(tx_gbps=tx, **changes) for tx in tx_gbps]


SLOW = {"transfer_bytes": 700 * MB, "transfer_s": 0.58, "transfers": 9.0}
"""9.7 Gbps a transfer: ten times less than the 92 that are free at 8 % of 100 Gbps."""
QUICK = SLOW | {"transfer_s": 0.061}
MANY = {"connections": 64.0}
LOSS = {"retransmit_ratio": 0.02}

# id, the readings, the link, the label after the last of them
LABELS = [
    ("quiet", moving(8, 9, 8, 9, 8), path(), "clear"),
    ("S-41 slow on an empty link", moving(8, 9, 8, 9, 8, **SLOW), path(), "flow_limited"),
    ("as quick as the link", moving(8, 9, 8, 9, 8, **QUICK), path(), "clear"),
    ("slow on a busy link", moving(60, 70, 55, 66, 60, **SLOW), path(), "clear"),
    ("slow, and loses", moving(8, 9, 5, 9, 7, **SLOW, **LOSS), path(), "near_limit"),
    (
        "slow, loss not measured",
        moving(8, 9, 8, 9, 8, **(SLOW | {"retransmit_ratio": None})),
        path(),
        "clear",
    ),
    (
        "connections at their cap",
        moving(7, 7.5, 7, 7.2, 7, connections=8.0, retransmit_ratio=None),
        path(per_connection_gbps=1.0),
        "flow_limited",
    ),
    (
        "connections below it",
        moving(4, 5, 4, 5, 4, connections=8.0),
        path(per_connection_gbps=1.0),
        "clear",
    ),
    ("many senders, loss, moderate", moving(30, 45, 22, 50, 35, **MANY, **LOSS), path(), "burst"),
    ("few senders, loss, moderate", moving(30, 45, 22, 50, 35, **LOSS), path(), "near_limit"),
    ("many senders, no loss", moving(30, 45, 22, 50, 35, **MANY), path(), "clear"),
    (
        "many senders, slow round trips, no loss",
        moving(30, 45, 22, 50, 35, **MANY, rtt_s=0.02),
        path(),
        "near_limit",
    ),
    (
        "many senders, slow round trips, loss not measured",
        moving(30, 45, 22, 50, 35, **MANY, rtt_s=0.02, retransmit_ratio=None),
        path(),
        "near_limit",
    ),
    ("a ceiling, not a burst", moving(*[40.0] * 5, **MANY, **LOSS), path(), "congested"),
    ("nearly full", moving(85, 80, 83, 84, 82), path(), "near_limit"),
    ("full", moving(95, 91, 93, 94, 92), path(), "congested"),
    ("down", moving(0, 0, capacity_gbps=0.0), path(), "down"),
    ("unread", [None, None], path(), "unknown"),
    ("no path limit of RTT", moving(8, 12, 9, 14, 11, rtt_s=0.009), path(), "clear"),
    ("own limit of RTT", moving(8, 12, 9, 14, 11, rtt_s=0.009), path(rtt_limit_ms=8), "near_limit"),
    (
        "own limit of use",
        moving(55, 52, 56, 51, 54),
        path(utilisation_limit_ratio=0.5),
        "congested",
    ),
]


@pytest.mark.parametrize(
    ("readings", "on", "label"), [case[1:] for case in LABELS], ids=[case[0] for case in LABELS]
)
def test_each_reading_has_its_label(readings: Any, on: Link, label: str) -> None:
    last = watch(readings, on)[-1]
    assert last.label == label
    assert bool(last.signs) is (label != "clear"), "only what is clear needs no words"
    assert (last.congested, last.down) == (label == "congested", label == "down")


def test_every_label_says_what_it_forbids_and_asks() -> None:
    assert link_state.FORBIDS.keys() == link_state.ASKS.keys()
    assert watch(moving(8, 9, 8, 9, 8, **SLOW))[-1].asks == "more connections a transfer"
    assert watch(moving(8, 9, 8, 9, 8, **SLOW))[-1].forbids == "moving t as for congestion"


@pytest.mark.parametrize(
    ("what", "reading", "t_may_rise"),
    [
        ("S-41 flow-limited", link(tx_gbps=8.0, **SLOW), False),
        ("burst", link(tx_gbps=30.0, **MANY, **LOSS), False),
        ("near the limit", link(tx_gbps=84.0), False),
        ("congested", link(capacity_gbps=5.8, tx_gbps=5.6), True),
    ],
)
def test_only_congestion_moves_t(what: str, reading: LinkObservation, t_may_rise: bool) -> None:
    """At its optimum t has no other reason to move; a narrow link that is full is one."""
    running, memory = plan(19_500), Memory()
    thresholds = []
    for i in range(12):
        at = 30.0 if i % 2 and what == "burst" else reading.tx_gbps
        observation = seen(1000.0 + 2 * i, link=dataclasses.replace(reading, tx_gbps=at))
        verdict = decide(observation, running, memory, PARAMS, demo_scenario())
        running, memory = verdict.plan, verdict.memory
        thresholds.append(running.clusters["pd"].threshold_tokens or 0)
        assert verdict.reason != "Congestion" or t_may_rise
    assert (max(thresholds) > 19_500) is t_may_rise


def test_s44_the_same_loss_is_judged_by_each_paths_own_limit() -> None:
    """S-44: 0.5 % retransmitted, on a clean path too much, on a public one its usual state."""
    readings = moving(*[40.0] * 5, retransmit_ratio=0.005)
    clean, public = path(retransmit_limit_ratio=0.003), path(retransmit_limit_ratio=0.02)
    assert [watch(readings, on)[-1].label for on in (clean, public)] == ["congested", "clear"]
    assert "0.30% is its limit" in watch(readings, clean)[3].signs


def test_s46_directions_are_judged_apart() -> None:
    """S-46: A to B full, B to A idle."""
    document = demo_document()
    document["links"].append({"from": "pd", "to": "prfaas", "gbps": 100.0, "rtt_ms": 5.0})
    there, back = parse_scenario(document).links
    full = watch([link(tx_gbps=96.0)] * 5, there)[-1]
    idle = watch([link(tx_gbps=0.0, state="idle")] * 5, back)[-1]
    assert (full.label, idle.label) == ("congested", "clear")


def test_more_connections_are_asked_for_and_stay_once_they_have_helped() -> None:
    """A transfer over 2 connections runs at 10 Gbps: each carries 5, so 100 Gbps want 19."""
    on = path(connections=2, per_connection_gbps=8.0)
    views = watch(moving(*[8.0, 9.0] * 20, **SLOW), on)
    assert views[0].label == "flow_limited"
    assert views[-1].transport is not None
    assert views[-1].transport.connections == 20
    helped = watch(moving(*[8.0, 9.0] * 20, **QUICK), on, memory=views[-1].memory, from_s=1080.0)
    assert helped[-1].label == "clear"
    assert helped[-1].transport == views[-1].transport


def test_a_burst_asks_for_pacing_for_a_while() -> None:
    readings = moving(30, 45, 22, 50, 35, **MANY, **LOSS)
    views = watch(readings)
    assert views[-1].transport is not None
    assert views[-1].transport.pacing_gbps == 70.0
    later = watch([link()], memory=views[-1].memory, from_s=1610.0)[-1]
    assert later.transport is not None
    assert later.transport.pacing_gbps == 95.0


def test_many_senders_with_slow_round_trips_alone_are_not_paced() -> None:
    views = watch(moving(30, 45, 22, 50, 35, **MANY, rtt_s=0.02))
    assert views[-1].transport is not None
    assert views[-1].transport.pacing_gbps == 95.0
    assert views[-1].memory.burst_at_s is None


def test_a_step_of_speed_at_the_same_size_is_an_event_told_once() -> None:
    """D5: 700 MB in 0.06 s, then TCP in place of RDMA: in 0.6 s."""
    quick, slow = moving(*[8.0, 9.0] * 5, **QUICK), moving(*[8.0, 9.0] * 10, **SLOW)
    views = watch([*quick, *slow])
    told = [i for i, view in enumerate(views) for event in view.events if "transport" in event]
    assert told == [len(quick) + flows.N_ODD - 1]
    assert not any(view.congested for view in views)


def test_other_sizes_or_a_busy_link_are_no_other_transport() -> None:
    quick = moving(*[8.0, 9.0] * 5, **QUICK)
    short = moving(*[8.0, 9.0] * 5, transfer_bytes=70 * MB, transfer_s=0.06, transfers=9.0)
    busy = moving(*[70.0, 60.0] * 5, **SLOW)
    for other in (short, busy):
        assert not any(view.events for view in watch([*quick, *other]))


def test_s15_a_claimed_speed_above_the_link_is_told_and_not_used() -> None:
    """S-15: engines claim three times the link."""
    claim = {"transfer_bytes": 700 * MB, "transfer_s": 0.0187, "transfers": 9.0}
    last = watch(moving(8, 9, 8, 9, 8, **claim))[-1]
    assert last.events == ("engines claim 299 Gbps a transfer over 100 Gbps: not used",)
    assert (last.label, last.memory.transfer_gbps) == ("clear", None)


def test_a_rate_the_link_cannot_carry_is_a_wrong_counter() -> None:
    """A10: 471 Tbps of a bonded interface are not congestion."""
    last = watch([link(tx_gbps=471e3)] * 5)[-1]
    assert (last.label, last.known, last.congested) == ("unknown", False, False)
    assert "not used" in last.events[0]


def test_with_no_transfer_counted_nothing_is_said_of_transfers() -> None:
    assert watch([link()] * 5)[-1].events == ()


number = st.none() | st.floats(allow_nan=True, allow_infinity=True)
any_reading = st.none() | st.builds(
    LinkObservation,
    capacity_gbps=number,
    tx_gbps=number,
    state=st.sampled_from(["value", "idle", "missing", "failed"]),
    retransmit_ratio=number,
    rtt_s=number,
    age_s=number,
    connections=number,
    transfers=number,
    transfers_failed_ratio=number,
    transfer_s=number,
    transfer_bytes=number,
    breaker_reset_at_s=number,
)
FACTS = [{}, {"per_connection_gbps": 1.0, "connections": 4, "p95_cap_gbps": 20.0}, {"rtt_ms": 0.0}]


@settings(max_examples=150, deadline=None)
@given(
    readings=st.lists(any_reading, min_size=1, max_size=12),
    steps_s=st.lists(st.floats(-1e6, 1e6), min_size=12, max_size=12),
    on=st.sampled_from([path(**facts) for facts in FACTS]),
)
def test_whatever_is_read_nothing_raises_and_capacity_is_never_above_what_was_configured(
    readings: list[LinkObservation | None], steps_s: list[float], on: Link
) -> None:
    memory, base_rtt_s, now_s = link_state.NEW_LINK, None, 1.7e9
    for reading, step_s in zip(readings, steps_s, strict=False):
        now_s += step_s
        view = link_state.view(on, reading, memory, base_rtt_s, now_s=now_s, params=PARAMS)
        memory, base_rtt_s = view.memory, view.base_rtt_s
        assert 0.0 <= view.planned_gbps <= view.capacity_gbps <= on.usable_gbps
        assert view.label in link_state.FORBIDS
        assert math.isfinite(view.clear_at_s(PARAMS, now_s))
        if view.transport is not None:
            assert 1 <= view.transport.connections <= 24
            assert 0.0 < view.transport.pacing_gbps <= on.usable_gbps
        plain = json.dumps(to_jsonable(memory), allow_nan=False)
        assert from_jsonable(LinkMemory, json.loads(plain)) == memory


def test_a_flow_limited_link_gets_a_plan_with_more_connections_and_the_same_t() -> None:
    observation = seen(link=link(tx_gbps=8.0, **SLOW))
    verdict = decide(observation, plan(19_500), Memory(), PARAMS, demo_scenario())
    assert verdict.reason == "TransportChanged"
    after = verdict.plan.clusters["pd"]
    assert after.threshold_tokens == 19_500
    assert after.transport["prfaas"].connections > 1


transfers = st.builds(
    LinkObservation,
    capacity_gbps=st.sampled_from([None, 0.0, 8.0, 100.0]),
    tx_gbps=st.sampled_from([None, 0.0, 5.0, 50.0, 95.0]),
    state=st.sampled_from(["value", "failed"]),
    retransmit_ratio=st.sampled_from([None, 0.0, 0.05]),
    connections=st.sampled_from([None, 4.0, 80.0]),
    transfers=st.sampled_from([None, 0.0, 30.0]),
    transfers_failed_ratio=st.sampled_from([None, 0.0, 0.9]),
    transfer_s=st.sampled_from([None, 0.06, 6.0]),
    transfer_bytes=st.sampled_from([None, 7e8]),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(transfers, st.sampled_from([2.0, 31.0, 70.0])), max_size=12))
def test_whatever_links_do_plans_stay_whole(steps: list[tuple[LinkObservation, float]]) -> None:
    running, memory, now_s = plan(19_500), Memory(), 1000.0
    for reading, step_s in steps:
        now_s += step_s
        verdict = decide(seen(now_s, link=reading), running, memory, PARAMS, demo_scenario())
        running, memory = verdict.plan, verdict.memory
        after = running.clusters["pd"]
        view = memory.links["prfaas->pd"]
        if view.breaker == "open" and verdict.reason != "RateLimited":
            assert after.mode == "always_local"
        if view.breaker == "half_open" and after.mode == "threshold":
            assert after.max_remote_in_flight == 1 or verdict.reason == "RateLimited"
        for hint in after.transport.values():
            assert 1 <= hint.connections <= 24
        plain = json.dumps(to_jsonable(running), allow_nan=False)
        assert from_jsonable(type(running), json.loads(plain)) == running
