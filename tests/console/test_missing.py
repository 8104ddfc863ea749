"""What is missing, in sentences: one for each cause, none for what follows from it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from console import missing
from console.live_state import Ack, FleetState
from tests.telemetry.batches import batch, instance, link, router

NOW_S = 1_800_000_000.0  # 2027-01-15 08:00:00 UTC
WELL = missing.View(
    fleet="f",
    agents={"agent-pd": NOW_S - 1},
    reads={
        "agent-pd": [
            ("instance", "f/pd/h20-1"),
            ("link", "prfaas->pd"),
            ("router", "f/pd/gw-1"),
        ]
    },
    sources=[
        missing.Source("instance", "f/pd/h20-1", "agent-pd", NOW_S - 1),
        missing.Source("link", "prfaas->pd", "agent-pd", NOW_S - 1),
        missing.Source("router", "f/pd/gw-1", "agent-pd", NOW_S - 1, plan=(1, 7)),
    ],
    links=["prfaas->pd"],
    loop=missing.Loop(NOW_S - 2, "active", "hold", "WithinNoise", (1, 7), NOW_S - 600),
    stale_s=15.0,
    loop_stale_s=6.0,
)


def said(now_s: float = NOW_S, **changes: Any) -> list[str]:
    view = dataclasses.replace(WELL, **changes)
    return [finding.sentence(now_s) for finding in missing.findings(view, now_s)]


def changed(kind: str, **changes: Any) -> list[missing.Source]:
    return [
        dataclasses.replace(source, **changes) if source.kind == kind else source
        for source in WELL.sources
    ]


def test_nothing_is_said_of_a_fleet_in_health() -> None:
    assert said() == []


def test_a_silent_agent_stands_for_everything_it_reads() -> None:
    long_ago = [dataclasses.replace(s, received_s=NOW_S - 42) for s in WELL.sources]
    assert said(agents={"agent-pd": NOW_S - 42}, sources=long_ago) == [
        "Agent agent-pd has been silent for 42 s (since 07:59:18): no new figures of the queues of "
        "pd, link prfaas → pd, gate pd/gw-1; gates keep routing by plan 1.7; the loop keeps t "
        "(Within noise)."
    ]


def test_many_silent_agents_are_one_finding() -> None:
    names = [f"agent-{i:02}" for i in range(20)]
    [sentence] = said(
        agents={name: NOW_S - 42 - i for i, name in enumerate(names)},
        reads={name: [("instance", f"f/pd/h20-{name}")] for name in names[:15]},
        sources=[],
        links=[],
    )
    assert sentence == (
        "15 agents (agent-00, agent-01, agent-02 and 12 more) have been silent for 56 s (since "
        "07:59:04): no new figures of the queues of pd; gates keep routing by plan 1.7; the loop "
        "keeps t (Within noise)."
    )


def test_an_agent_whose_sources_another_one_reads_is_not_missed() -> None:
    assert said(agents={**WELL.agents, "old": NOW_S - 500}) == []


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        ({"at_s": NOW_S - 7}, "the loop stands still"),
        ({"mode": "paused"}, "the loop is paused"),
        ({"action": "adopt"}, "the loop goes on"),
    ],
)
def test_what_the_loop_does_meanwhile_is_what_its_tick_says(
    loop: dict[str, Any], words: str
) -> None:
    found = said(agents={"agent-pd": NOW_S - 42}, loop=dataclasses.replace(WELL.loop, **loop))  # type: ignore[type-var]
    assert words in found[-1]


def test_an_instance_that_falls_silent_alone_is_named() -> None:
    [sentence] = said(sources=changed("instance", received_s=NOW_S - 75))
    assert sentence == (
        "Instance pd/h20-1 has been silent for 1 min 15 s (since 07:58:45): pd is shown without "
        "it; the loop keeps t (Within noise)."
    )


def test_many_are_counted_and_the_longest_silence_is_told() -> None:
    many = [
        missing.Source("instance", f"f/pd/h20-{i}", "agent-pd", NOW_S - 20 - i) for i in range(5)
    ]
    [sentence] = said(sources=[*WELL.sources[1:], *many])  # type: ignore[index]
    assert sentence.startswith(
        "5 instances of pd (h20-0, h20-1, h20-2 and 2 more) have been silent for 24 s"
    )


def test_an_instance_that_cannot_be_read_says_since_when_and_why() -> None:
    failing = changed("instance", failing_since_s=NOW_S - 30, error="timed out")
    [sentence] = said(sources=failing)
    assert sentence == (
        "Instance pd/h20-1 could not be read for 30 s (since 07:59:30): timed out; pd is shown "
        "without it; the loop keeps t (Within noise)."
    )


def test_a_silent_gate_is_named_and_others_route_on() -> None:
    [sentence] = said(sources=changed("router", received_s=NOW_S - 60))
    assert sentence.startswith("Gate pd/gw-1 has been silent for 1 min (since 07:59:00)")
    assert "other gates route on" in sentence


@pytest.mark.parametrize(
    ("sources", "starts"),
    [
        (changed("link", received_s=NOW_S - 20), "Link prfaas → pd has been unread for 20 s"),
        (
            changed("link", failing_since_s=NOW_S - 5, error="no such device"),
            "Link prfaas → pd could not be read for 5 s",
        ),
        (
            [s for s in WELL.sources if s.kind != "link"],
            "Link prfaas → pd is read by no agent: its use and loss are unknown",
        ),
    ],
)
def test_a_link_nobody_reads_is_told(sources: list[missing.Source], starts: str) -> None:
    [sentence] = said(sources=sources)
    assert sentence.startswith(starts)


DOWN = changed("link", down_since_s=NOW_S - 42)


@pytest.mark.parametrize(
    ("changes", "effect"),
    [
        ({"pds": ["pd"]}, "pd prefills locally"),
        (
            {"pds": ["pd"], "links": ["prfaas->pd", "east->pd", "pd->prfaas"], "agents": {}},
            "pd prefills locally or over east → pd",
        ),
        ({"pds": ["prfaas"]}, "no prefix moves to pd, it computes them"),
    ],
    ids=["the only way", "one of two ways", "the way of prefixes"],
)
def test_a_link_that_is_down_is_told_with_what_its_clusters_do(
    changes: dict[str, Any], effect: str
) -> None:
    [sentence] = said(sources=DOWN, **changes)
    assert sentence == (
        f"Link prfaas → pd has been down for 42 s (since 07:59:18): {effect}; the loop keeps t "
        "(Within noise)."
    )


def test_a_clock_that_was_set_back_is_told_and_not_taken_for_freshness() -> None:
    def found(at_s: float) -> list[str]:
        return said(loop=dataclasses.replace(WELL.loop, at_s=at_s))  # type: ignore[type-var]

    assert found(NOW_S + 4) == []
    assert found(NOW_S + 3600) == [
        "The clock was set back: the newest tick is of 2027-01-15 09:00:00 UTC, 1 h from now: "
        "figures may stand still and silence shows late until then, gates keep routing by plan 1.7."
    ]


@pytest.mark.parametrize(
    ("plan", "effect"),
    [((1, 6), "it routes by plan 1.6."), (None, "it has no plan and sends everything local.")],
)
def test_a_plan_nobody_acknowledges_is_told_after_a_while(
    plan: tuple[int, int] | None, effect: str
) -> None:
    behind = changed("router", plan=plan)
    just = dataclasses.replace(WELL.loop, plan_since_s=NOW_S - 9)  # type: ignore[type-var]
    assert said(sources=behind, loop=just) == []
    late = dataclasses.replace(WELL.loop, plan_since_s=NOW_S - 42)  # type: ignore[type-var]
    [sentence] = said(sources=behind, loop=late)
    assert sentence == (
        f"Gate pd/gw-1 has not acknowledged plan 1.7 for 42 s (since 07:59:18): {effect}"
    )


def test_a_loop_that_stands_still_blames_beat_or_worker() -> None:
    [sentence] = said(loop=dataclasses.replace(WELL.loop, at_s=NOW_S - 42))  # type: ignore[type-var]
    assert sentence == (
        "The loop has not ticked for 42 s (since 07:59:18): beat or worker is down; t stays as it "
        "is, samples are stored, gates keep routing by plan 1.7."
    )


def test_without_the_broker_the_silent_loop_is_not_told_twice() -> None:
    stopped = dataclasses.replace(WELL.loop, at_s=NOW_S - 42)  # type: ignore[type-var]
    [sentence] = said(loop=stopped, broker_away_s=NOW_S - 40)
    assert sentence.startswith("Valkey has not answered for 40 s (since 07:59:20): ")
    assert "this page re-reads every 5 s" in sentence
    assert "gates keep routing by plan 1.7" in sentence


def test_without_the_database_nothing_else_is_blamed() -> None:
    everything = [dataclasses.replace(s, received_s=NOW_S - 60) for s in WELL.sources]
    [sentence] = said(
        database_away_s=NOW_S - 60, agents={"agent-pd": NOW_S - 60}, sources=everything, loop=None
    )
    assert sentence.startswith("The database has not answered for 1 min (since 07:59:00)")
    assert "agents keep their samples" in sentence
    assert "gates have no plan yet and send everything local" in sentence


def live() -> FleetState:
    state = FleetState("f", link_gbps={"prfaas->pd": 100.0})
    for at_s in (NOW_S - 40, NOW_S - 30):
        samples = [
            instance("f/pd/h20-1", at_s, state="failed", error="timed out"),
            link("prfaas->pd", at_s),
            router("f/pd/gw-1", at_s, plan_epoch=1, plan_version=7),
        ]
        state.apply_batch(batch("agent-pd", *samples, sent_at_s=at_s), received_s=at_s)
    return state


def test_a_failure_is_as_old_as_its_first_failed_reading_until_one_goes_well() -> None:
    state = live()
    [failing, *_] = state.missing(NOW_S - 29)
    assert (failing.key, failing.since_s) == ("failing:instance:pd", NOW_S - 40)
    well = instance("f/pd/h20-1", NOW_S - 28)
    state.apply_batch(batch("agent-pd", well, sent_at_s=NOW_S - 28), received_s=NOW_S - 28)
    assert state.missing(NOW_S - 27) == []


def test_a_gate_that_acknowledges_is_heard_though_no_agent_reads_it() -> None:
    state = live()
    state.acks = [
        Ack("f/pd/gw-1", NOW_S - 1, (1, 7)),
        Ack("f/pd/gw-2", NOW_S - 60, (1, 6)),
    ]
    keys = [finding.key for finding in state.missing(NOW_S)]
    assert keys == ["agent:agent-pd", "silent:router:pd"]
    assert "Gate pd/gw-2 has" in state.missing(NOW_S)[1].what


def test_a_silent_agent_is_missed_for_longer_than_what_it_read() -> None:
    state = live()
    state.forget(NOW_S + 3600)
    body = state.body(NOW_S + 3600)
    assert (body["instances"], body["links"]) == ({}, {})
    [finding] = state.missing(NOW_S + 3600)
    assert (finding.key, finding.since_s) == ("agent:agent-pd", NOW_S - 30)
    state.forget(NOW_S + 90_000)
    assert state.missing(NOW_S + 90_000) == []
