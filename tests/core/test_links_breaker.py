"""Transfers that fail close the path, a probe opens it again, and a flapping link has to wait."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable
from typing import Any

import pytest

from routing.core.decide import decide
from routing.core.links import breaker
from routing.core.links import state as link_state
from routing.core.links.state import LinkView
from routing.core.scenario.document import Scenario, parse_scenario
from routing.core.types import (
    LinkMemory,
    LinkObservation,
    Memory,
    Observation,
    Params,
    Plan,
    PrefillObservation,
    Verdict,
)
from tests.core.cases import LINK, demo_document, demo_scenario, link, pd, plan, seen

PARAMS = Params(mode="active", band_ratio=0.0)
BUSY = {"tx_gbps": 8.0, "transfers": 12.0, "transfers_failed_ratio": 0.0}
FAILING = BUSY | {"transfers_failed_ratio": 0.5}
SILENT = {"tx_gbps": 0.0, "transfers": 0.0, "transfers_failed_ratio": None}


def watch(
    readings: Iterable[LinkObservation],
    *,
    memory: LinkMemory = link_state.NEW_LINK,
    from_s: float = 1000.0,
    step_s: float = 2.0,
    needed: bool = False,
    **facts: Any,
) -> list[LinkView]:
    on, views = demo_scenario(**facts).links[0], []
    for i, reading in enumerate(readings):
        now_s = from_s + step_s * i
        view = link_state.view(
            on, reading, memory, 0.005, now_s=now_s, params=PARAMS, needed=needed
        )
        memory = view.memory
        views.append(view)
    return views


def states(views: list[LinkView]) -> list[str]:
    """The breaker's states in the order in which it went through them."""
    return [state for state, _ in itertools.groupby(view.memory.breaker for view in views)]


def times(views: list[LinkView], step_s: float = 2.0) -> list[float]:
    """After how many seconds the breaker's state changed."""
    found = [view.memory.breaker for view in views]
    return [step_s * i for i in range(1, len(found)) if found[i] != found[i - 1]]


@pytest.mark.parametrize(
    ("what", "changes", "facts", "opens"),
    [
        ("half of twelve", FAILING, {}, True),
        ("all of three", BUSY | {"transfers": 3.0, "transfers_failed_ratio": 1.0}, {}, True),
        ("too few to tell", BUSY | {"transfers": 2.0, "transfers_failed_ratio": 1.0}, {}, False),
        ("below the limit", BUSY | {"transfers": 40.0, "transfers_failed_ratio": 0.1}, {}, False),
        (
            "above the path's own limit",
            BUSY | {"transfers": 40.0, "transfers_failed_ratio": 0.1},
            {"failure_limit_ratio": 0.05},
            True,
        ),
        ("nobody counts", {"tx_gbps": 8.0}, {}, False),
        ("counts that cannot be", BUSY | {"transfers_failed_ratio": float("nan")}, {}, False),
    ],
)
def test_s43_the_breaker_opens_in_the_tick_that_sees_it(
    what: str, changes: dict[str, Any], facts: dict[str, Any], opens: bool
) -> None:
    before, after = watch([link(**BUSY), link(**changes)], **facts)
    assert not before.down
    assert after.down is opens
    assert (after.label == "down") is opens
    assert bool(after.events) is opens


def test_s43_the_probe_closes_it_after_success() -> None:
    """S-43: open for a minute, half open for half a minute of transfers, then closed."""
    views = watch([link(**BUSY), link(**FAILING)] + [link(**SILENT)] * 30 + [link(**BUSY)] * 30)
    assert states(views) == ["closed", "open", "half_open", "closed"]
    opened, probed, closed = times(views)
    assert (probed - opened, closed - probed) == (breaker.HOLD_S, breaker.PROBE_S)
    assert [view.probing for view in views].count(True) == breaker.PROBE_S / 2.0


def test_a_probe_that_fails_waits_twice_as_long_up_to_a_limit() -> None:
    views = watch([link(**FAILING)] * 2000)
    open_for = [
        2.0 * len(list(run))
        for state, run in itertools.groupby(views, key=lambda view: view.memory.breaker)
        if state == "open"
    ]
    assert open_for[:5] == [60.0, 120.0, 240.0, 480.0, 900.0]
    assert max(open_for) == breaker.LONGEST_HOLD_S


def test_one_failure_of_a_probe_is_no_verdict_and_no_transfer_is_no_success() -> None:
    opened = watch([link(**FAILING)] + [link(**SILENT)] * 31)[-1]
    assert opened.probing
    one = BUSY | {"transfers": 1.0, "transfers_failed_ratio": 1.0}
    assert watch([link(**one)] * 60, memory=opened.memory, from_s=1062.0)[-1].probing
    assert watch([link(**SILENT)] * 60, memory=opened.memory, from_s=1062.0)[-1].probing


def test_after_a_quiet_half_hour_the_wait_is_short_again() -> None:
    failed = LinkMemory(breaker="closed", breaker_at_s=1000.0, n_openings=4)
    soon = watch([link(**FAILING)], memory=failed, from_s=1600.0)[-1]
    late = watch([link(**FAILING)], memory=failed, from_s=1000.0 + breaker.FORGIVEN_S)[-1]
    assert (soon.memory.n_openings, late.memory.n_openings) == (5, 1)
    assert soon.clear_at_s(PARAMS, 1600.0) == 1600.0 + breaker.LONGEST_HOLD_S


def test_a_person_closes_it() -> None:
    opened = watch([link(**FAILING)])[-1].memory
    early = watch([link(**SILENT, breaker_reset_at_s=990.0)], memory=opened, from_s=1010.0)[-1]
    reset = watch([link(**SILENT, breaker_reset_at_s=1008.0)], memory=opened, from_s=1010.0)[-1]
    assert early.down, "that was before it opened"
    assert (reset.memory.breaker, reset.memory.n_openings) == ("closed", 0)


def test_first_transfers_after_a_pause_are_an_event_and_not_a_failed_path() -> None:
    """D2: five seconds idle, then rejections; if they go on, the path has failed."""
    quiet = [link(**BUSY)] + [link(**SILENT)] * 5
    views = watch(quiet + [link(**FAILING)] * 30)
    first = views[len(quiet)]
    assert not first.down
    assert first.events == ("first transfers after a pause failed: 6",)
    opened = next(i for i, view in enumerate(views) if view.down)
    assert 2.0 * (opened - len(quiet)) == breaker.IDLE_GRACE_S


def remote_of(verdict: Verdict) -> tuple[str, int | None]:
    cluster = verdict.plan.clusters["pd"]
    return cluster.mode, cluster.max_remote_in_flight


def passes(
    readings: list[LinkObservation], running: Plan, scenario: Scenario, others: Any = None
) -> list[Verdict]:
    """The loop over one reading of the first link after another, 2 s apart."""
    memory, verdicts = Memory(), []
    for i, reading in enumerate(readings):
        observation = Observation(
            now_s=1000.0 + 2.0 * i,
            fleet="prfaas-1t",
            pd={"pd": pd()},
            prefill={
                c.name: PrefillObservation(n_prefill=4, age_s=1.0)
                for c in scenario.clusters
                if c.kind == "prefill"
            },
            links={link.id: others for link in scenario.links} | {LINK: reading},
        )
        verdict = decide(observation, running, memory, PARAMS, scenario)
        running, memory = verdict.plan, verdict.memory
        verdicts.append(verdict)
    return verdicts


RECOVERING = [link(**BUSY), link(**FAILING), *[link(**SILENT)] * 30, *[link(**BUSY)] * 30]


def test_s43_remote_is_off_within_one_tick_and_comes_back_by_a_probe() -> None:
    verdicts = passes(RECOVERING, plan(19_500), demo_scenario())
    changes = [v for v in verdicts if v.action == "adopt"]
    assert [v.reason for v in changes][:3] == ["LinkDown", "LinkBack", "LinkBack"]
    assert [remote_of(v) for v in changes][:3] == [
        ("always_local", None),
        ("threshold", 1),
        ("threshold", None),
    ]
    assert verdicts[1].reason == "LinkDown", "the very tick that read the failures"
    assert verdicts[1].message.startswith("Transfers over link prfaas->pd fail: pd prefills")
    assert verdicts[5].message.startswith("Transfers over link prfaas->pd failed: everything")
    assert changes[2].plan.clusters["pd"].threshold_tokens == 19_500
    assert "probe link prfaas->pd" in changes[1].message
    assert "succeed again" in changes[2].message


def two_remotes() -> Scenario:
    document = demo_document()
    document["clusters"].append({**document["clusters"][0], "name": "north"})
    document["links"].append({**document["links"][0], "from": "north"})
    return parse_scenario(document)


def test_a_remote_among_others_is_probed_with_little_weight_and_gets_its_share_back() -> None:
    shared = plan(19_500, remote={"prfaas": 0.5, "north": 0.5})
    verdicts = passes(RECOVERING, shared, two_remotes(), others=link(tx_gbps=4.0))
    weights = [v.plan.clusters["pd"].remote for v in verdicts if v.action == "adopt"]
    assert weights[0] == {"north": 1.0}
    assert weights[1] == pytest.approx({"prfaas": 0.05, "north": 0.95})
    assert weights[-1] == pytest.approx({"prfaas": 0.5, "north": 0.5})
    assert {remote_of(v) for v in verdicts} == {("threshold", None)}, "the others carry on"


def test_the_plan_is_steady_while_a_breaker_stays_as_it_is() -> None:
    verdicts = passes(RECOVERING[:40], plan(19_500), demo_scenario())
    versions = [v.plan.version for v in verdicts]
    assert len(set(versions[33:])) == 1, "probing"
    assert len(set(versions[2:31])) == 1, "open"


def test_the_optimum_does_not_argue_with_a_probe() -> None:
    """The best shares of two equals are equal; a probe that lasts gets its 5 % all along."""
    readings = [link(**BUSY), link(**FAILING), *[link(**SILENT)] * 150]
    shared = plan(16_600, remote={"prfaas": 0.5, "north": 0.5})
    verdicts = passes(readings, shared, two_remotes(), others=link(tx_gbps=4.0))
    late = verdicts[90:]
    assert {v.memory.links[LINK].breaker for v in late} == {"half_open"}
    assert {v.action for v in late} == {"hold"}
    assert late[-1].plan.clusters["pd"].remote == {"prfaas": 0.05, "north": 0.95}


def test_d10_a_link_that_flaps_has_to_be_up_longer_each_time() -> None:
    down, up = link(capacity_gbps=0.0, tx_gbps=0.0), link()
    waits = []
    memory, now_s = link_state.NEW_LINK, 1000.0
    for _ in range(4):
        memory = watch([down], memory=memory, from_s=now_s)[-1].memory
        views = watch([up] * 400, memory=memory, from_s=now_s + 2.0)
        back = next(i for i, view in enumerate(views) if not view.down)
        waits.append(2.0 * back)
        memory, now_s = views[back].memory, now_s + 2.0 + 2.0 * back + 10.0
    assert waits == [60.0, 120.0, 240.0, 480.0]
    memory = watch([down], memory=memory, from_s=now_s + breaker.FORGIVEN_S)[-1].memory
    assert memory.n_downs == 1, "forgiven"


def test_a_link_that_lasted_is_tried_soon_while_requests_queue_for_want_of_it() -> None:
    down, up = link(capacity_gbps=0.0, tx_gbps=0.0), link()
    waits = []
    memory, now_s = link_state.NEW_LINK, 1000.0
    for lasts_s, down_s in ((240.0, 100.0), (120.0, 100.0), (61.0, 6.0), (60.0, 100.0), (1.0, 6.0)):
        n_down = round(down_s / 2.0)
        memory = watch([down] * n_down, memory=memory, from_s=now_s, needed=True)[-1].memory
        views = watch([up] * 500, memory=memory, from_s=now_s + down_s, needed=True)
        back = next(i for i, view in enumerate(views) if not view.down)
        waits.append(2.0 * back)
        memory, now_s = views[back].memory, now_s + down_s + 2.0 * back + lasts_s
    # Never seen to fail; it lasted 240 s; 120 s, but was down for 6 s; 61 s; 60 s, down for 6 s.
    assert waits == [2.0, 4.0, 6.0, 60.0, 6.0]


@pytest.mark.parametrize(
    ("queue", "needed"), [(None, False), (0.0, False), (2.0, False), (3.0, True)]
)
def test_a_link_is_needed_where_more_wait_than_are_served(
    queue: float | None, needed: bool
) -> None:
    observation = seen(link=link(capacity_gbps=0.0, tx_gbps=0.0))
    cluster = dataclasses.replace(observation.pd["pd"], n_prefill=3, queue_prefill=queue)
    observation = dataclasses.replace(observation, pd={"pd": cluster})
    verdict = decide(observation, plan(19_500), Memory(), PARAMS, demo_scenario())
    assert verdict.memory.links[LINK].needed is needed


def test_a_long_outage_is_one_failure() -> None:
    down = link(capacity_gbps=0.0, tx_gbps=0.0)
    assert watch([down] * 100)[-1].memory.n_downs == 1


def test_seen_without_transfers_is_the_healthy_fleet_of_before() -> None:
    verdict = decide(seen(), plan(19_500), Memory(), PARAMS, demo_scenario())
    assert verdict.memory.links[LINK].breaker == "closed"
    assert verdict.action == "hold"


def test_a_habit_of_one_in_a_hundred_seldom_opens_it() -> None:
    """Docs: 4 of 20 once in 23,000 counts, 3 of 15 once in 2,400, and no count is easier."""

    def once_in(n: int) -> float:
        least = max(breaker.LEAST_FAILED, math.ceil(breaker.FAILURE_LIMIT_RATIO * n - 1e-9))
        fail = [math.comb(n, k) * 0.01**k * 0.99 ** (n - k) for k in range(least, n + 1)]
        return 1.0 / sum(fail)

    assert once_in(20) == pytest.approx(23_000, rel=0.03)
    assert once_in(15) == pytest.approx(2_400, rel=0.03)
    assert min(range(3, 21), key=once_in) == 15
