"""Under a freeze the loop decides as ever, and pushes only what makes the fleet safer."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from routing.core.decide import decide
from routing.core.frozen import PASSES
from routing.core.jsonable import from_jsonable, to_jsonable
from routing.core.reasons import REASONS
from routing.core.types import (
    Freeze,
    HeldPlan,
    LinkMemory,
    Memory,
    Observation,
    Params,
    Verdict,
)
from tests.core.asked import says
from tests.core.cases import LINK, demo_scenario, link, pd, plan, seen

ACTIVE = Params(mode="active", band_ratio=0.0, roles_mode="fixed")
LONG_LASTED = Memory(gain_since_s=900.0, roles_gain_since_s=900.0)
FREEZE = Freeze("plans", "black-friday", "peak trading", 500.0, 5000.0)


def asked(
    *freezes: Freeze,
    observation: Observation | None = None,
    memory: Memory = LONG_LASTED,
    threshold: int | None = 4000,
    **params: Any,
) -> Verdict:
    looked = dataclasses.replace(observation or seen(), freezes=freezes)
    given = dataclasses.replace(ACTIVE, **params)
    return decide(looked, plan(threshold), memory, given, demo_scenario())


def test_it_decides_the_same_and_does_not_push() -> None:
    free, held = asked(), asked(FREEZE)
    assert (free.action, held.action, held.reason) == ("adopt", "hold", "Frozen")
    assert held.plan == plan(4000)
    assert (held.best, held.best_plan, held.clamps) == (free.best, free.best_plan, free.clamps)
    assert held.message == (
        "Kept back by freeze black-friday until 1970-01-01 01:23:20 UTC: peak trading. "
        f"Without it: {free.message}"
    )
    assert held.next_action_at_s == 5000.0
    [wait] = [wait for wait in held.waits if wait.reason == "Frozen"]
    assert (wait.what, wait.since_s, wait.until_s) == ("plans", 500.0, 5000.0)


def test_it_remembers_as_if_nothing_had_been_chosen() -> None:
    """So the first tick after the freeze adopts, without waiting for the gain to last again."""
    held = asked(FREEZE)
    assert (held.memory.last_change_s, held.memory.changes_s) == (None, ())
    assert held.memory.gain_since_s == 900.0
    after = asked(observation=seen(1002.0), memory=held.memory)
    assert after.action == "adopt"


@pytest.mark.parametrize(
    ("now_s", "action"), [(499.0, "adopt"), (500.0, "hold"), (5000.0, "adopt")]
)
def test_it_begins_and_ends_to_the_second(now_s: float, action: str) -> None:
    memory = Memory(gain_since_s=now_s - 100.0)
    assert asked(FREEZE, observation=seen(now_s), memory=memory).action == action


def test_of_two_the_one_that_ends_last_is_told() -> None:
    longer = dataclasses.replace(FREEZE, name="year-end", until_s=9000.0)
    held = asked(FREEZE, longer)
    assert "freeze year-end" in held.message
    assert held.next_action_at_s == 9000.0


def test_advice_and_a_pause_are_not_held_back() -> None:
    assert asked(FREEZE, mode="advisory").action == "adopt"
    assert asked(FREEZE, mode="paused").reason == "Paused"


@pytest.mark.parametrize(
    ("why", "observation", "threshold", "params"),
    [
        ("LinkDown", seen(link=link(capacity_gbps=0.0)), 20_000, {}),
        ("Congestion", seen(link=link(capacity_gbps=5.8, tx_gbps=5.7)), 4000, {}),
        ("OutOfBounds", seen(), 4000, {"t_min_tokens": 8000}),
        ("Held", seen(), 4000, {"holds": (HeldPlan("pd", "always_local", None, "op", "x", 9e3),)}),
    ],
)
def test_what_is_safer_or_asked_for_passes(
    why: str, observation: Observation, threshold: int, params: dict[str, Any]
) -> None:
    verdict = asked(FREEZE, observation=observation, threshold=threshold, **params)
    assert (verdict.action, verdict.reason) == ("adopt", why)


def test_after_a_failure_the_fleet_may_return_to_what_it_ran() -> None:
    memory = Memory(before_down={"pd": 19_000})
    verdict = asked(FREEZE, memory=memory, threshold=None)
    assert (verdict.action, verdict.reason) == ("adopt", "LinkBack")


def test_only_known_reasons_pass() -> None:
    assert REASONS.keys() >= PASSES


def test_a_freeze_of_roles_lets_t_go_on_and_says_what_waits() -> None:
    few = seen(pd=pd(n_prefill=6, n_decode=2))
    assert says(few).reason == "RoleImbalance"
    roles = dataclasses.replace(FREEZE, of="roles")
    held = says(dataclasses.replace(few, freezes=(roles,)), memory=LONG_LASTED)
    assert (held.reason, held.next_action_at_s) == ("Frozen", 5000.0)
    assert "freeze black-friday until 1970-01-01 01:23:20 UTC: peak trading" in held.message
    less = seen(pd=pd(n_prefill=2, n_decode=6))
    tuned = says(
        dataclasses.replace(less, freezes=(roles,)),
        running=plan(4000, n_prefill=2, n_decode=6),
        memory=LONG_LASTED,
    )
    assert (tuned.action, tuned.plan.clusters["pd"].n_prefill) == ("adopt", 2)


def test_maintenance_takes_traffic_off_a_link_and_gives_it_back_by_a_probe() -> None:
    worked_on = seen(link=link(maintenance_until_s=1500.0))
    verdict = asked(observation=worked_on, threshold=19_000)
    assert (verdict.action, verdict.reason) == ("adopt", "LinkDown")
    assert verdict.message == (
        "Link prfaas->pd is in maintenance until 1970-01-01 00:25:00 UTC: pd prefills everything "
        "locally."
    )
    assert verdict.memory.links[LINK].signs == "it is in maintenance"
    assert verdict.memory.links[LINK].n_openings == 0
    still = decide(
        dataclasses.replace(worked_on, now_s=1400.0),
        verdict.plan,
        verdict.memory,
        ACTIVE,
        demo_scenario(),
    )
    assert (still.action, still.reason, still.next_action_at_s) == ("hold", "LinkDown", 1500.0)
    back = decide(seen(1500.0), verdict.plan, still.memory, ACTIVE, demo_scenario())
    assert (back.action, back.reason) == ("adopt", "LinkBack")
    assert back.memory.links[LINK].breaker == "half_open"
    assert back.plan.clusters["pd"].threshold_tokens == 19_000


def test_a_reset_does_not_open_what_people_work_on() -> None:
    reset = link(maintenance_until_s=1500.0, breaker_reset_at_s=990.0)
    memory = Memory(links={LINK: LinkMemory(breaker="open", breaker_at_s=950.0)})
    verdict = asked(observation=seen(link=reset), memory=memory, threshold=None)
    assert verdict.memory.links[LINK].breaker == "open"


def test_nobody_moves_roles_of_a_cluster_that_is_worked_on() -> None:
    few = pd(n_prefill=6, n_decode=2, maintenance_until_s=1500.0)
    verdict = says(seen(pd=few))
    assert verdict.reason not in ("RoleImbalance", "RolesDwell")
    assert verdict.plan.clusters["pd"].n_prefill == 6


def test_freezes_are_kept_with_the_tick_and_ticks_of_earlier_releases_have_none() -> None:
    looked = dataclasses.replace(seen(), freezes=(FREEZE,))
    kept = to_jsonable(looked)
    assert from_jsonable(Observation, kept) == looked
    del kept["freezes"]
    assert from_jsonable(Observation, kept) == seen()
