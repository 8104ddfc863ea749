"""Roles, rule by rule: when machines move, when they do not, and what happens if they cannot."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from routing.core.decide import decide
from routing.core.model import fleetmodel
from routing.core.model.lengths import LogNormalLengths
from routing.core.model.throughput import Setting, predict
from routing.core.reasons import REASONS
from routing.core.scenario.document import Scenario, parse_scenario
from routing.core.types import (
    Memory,
    Observation,
    Params,
    PdObservation,
    PrefillObservation,
    RoleChange,
    Verdict,
)
from tests.core.cases import demo_document, exact_histogram, link, pd, plan, seen

ACTIVE = Params(mode="active", band_ratio=0.0)
LASTED = Memory(roles_gain_since_s=900.0)
"""Better roles have shown for long enough at now = 1000."""
PLANNED = {"kind": "dynamo", "url": "http://front:8000", "act_for_planner": True}


def scenario(**cluster: Any) -> Scenario:
    document = demo_document()
    document["clusters"][1].update({"control_urls": ["http://stack:9000"], **cluster})
    return parse_scenario(document)


def says(
    observation: Observation | None = None,
    *,
    roles: tuple[int, int] = (6, 2),
    threshold: int = 19_800,
    memory: Memory = LASTED,
    described: Scenario | None = None,
    **params: Any,
) -> Verdict:
    return decide(
        observation or seen(pd=at(*roles)),
        plan(threshold, n_prefill=roles[0], n_decode=roles[1]),
        memory,
        dataclasses.replace(ACTIVE, **params),
        described or scenario(),
    )


def at(n_prefill: int, n_decode: int, **changes: Any) -> PdObservation:
    return pd(n_prefill=n_prefill, n_decode=n_decode, **changes)


def moved(verdict: Verdict) -> tuple[int, int]:
    cluster = verdict.plan.clusters["pd"]
    return cluster.n_prefill, cluster.n_decode


def change(state: Any = "running", **facts: Any) -> RoleChange:
    given = {"id": 7, "n_prefill": 4, "n_decode": 4, "since_s": 950.0}
    return RoleChange(state=state, **{**given, **facts})


def test_roles_move_towards_the_best_by_a_quarter_at_most() -> None:
    verdict = says()
    assert (verdict.action, verdict.reason) == ("adopt", "RoleImbalance")
    assert moved(verdict) == (4, 4)
    assert [(c.name, c.wanted, c.allowed) for c in verdict.clamps] == [
        ("roles_max_step_ratio", 5.0, 4.0)
    ]
    assert verdict.adopted is not None
    assert verdict.current is not None
    assert verdict.adopted.lambda_max_rps == pytest.approx(3.125, rel=0.01)
    assert verdict.current.lambda_max_rps == pytest.approx(1.5625, rel=0.01)
    assert "6/2 -> 4/4" in verdict.message


@pytest.mark.parametrize(
    ("why", "given", "reason"),
    [
        ("it has just been seen", {"memory": Memory()}, "RolesGainPending"),
        (
            "roles moved a minute ago",
            {"memory": dataclasses.replace(LASTED, roles_changed_at_s=940.0)},
            "RolesDwell",
        ),
        ("the hour is full", {"max_changes_per_hour": 1}, "RateLimited"),
    ],
)
def test_a_gain_waits(why: str, given: dict[str, Any], reason: str) -> None:
    memory = dataclasses.replace(given.pop("memory", LASTED), changes_s=(100.0,))
    verdict = says(memory=memory, **given)
    assert (verdict.action, verdict.reason) == ("hold", reason), verdict.message
    assert moved(verdict) == (6, 2)
    assert verdict.next_action_at_s is not None
    assert verdict.next_action_at_s > 1000.0
    assert verdict.memory.roles_gain_since_s is not None


@pytest.mark.parametrize(
    ("why", "described", "params"),
    [
        ("nobody can be asked", scenario(control_urls=[]), {}),
        ("they are its planner's", scenario(control_urls=[], routers=[PLANNED]), {}),
        ("the cluster is pinned", scenario(pinned=True, start={"n_prefill": 6}), {}),
        ("people want them fixed", scenario(), {"roles_mode": "fixed"}),
    ],
)
def test_roles_stay(why: str, described: Scenario, params: dict[str, Any]) -> None:
    verdict = says(described=described, **params)
    assert moved(verdict) == (6, 2), verdict.message


def test_a_gain_below_four_percent_moves_nobody() -> None:
    """4/4 carries 1 % less than 3/5."""
    verdict = says(roles=(4, 4), threshold=23_400)
    assert (verdict.action, verdict.reason) == ("hold", "Optimal"), verdict.message


def test_roles_do_not_wait_for_t_nor_t_for_roles() -> None:
    """At 3/5 only t is wrong; at 6/2 t is tuned too once there is something to gain."""
    verdict = says(roles=(3, 5), threshold=4000, memory=Memory(gain_since_s=900.0))
    assert verdict.reason == "PrefillImbalance"
    assert moved(verdict) == (3, 5)


def test_the_last_of_a_role_and_floors_are_never_taken() -> None:
    short = seen(
        pd=at(6, 2, lengths=exact_histogram(lengths=LogNormalLengths(7.0, 0.5, 128, 8192)))
    )
    wanted = moved(says(short, roles_max_step_ratio=1.0))
    assert wanted[0] >= 1
    kept = moved(says(short, roles_max_step_ratio=1.0, described=scenario(min_prefill=3)))
    assert kept[0] == 3 > wanted[0]


def test_s24_two_busy_decoders_are_not_made_one() -> None:
    """S-24: two decode nodes at 0.70; without one the other would be at 1.40."""
    observation = seen(pd=at(6, 2, demand_rps=0.70 * 2 * 0.78125))
    for objective in ("max_headroom", "min_remote"):
        verdict = says(observation, objective=objective, roles_max_step_ratio=1.0)
        assert moved(verdict)[1] >= 2, verdict.message


def test_s24_prefill_that_is_short_does_not_take_the_second_decoder() -> None:
    document = demo_document()
    document["clusters"][1].update(instances=4, control_urls=["http://stack"])
    document["links"][0]["gbps"] = 2.5
    observation = seen(pd=at(2, 2, demand_rps=1.09), link=link(capacity_gbps=2.5, tx_gbps=0.5))
    running = plan(32_000, n_prefill=2, n_decode=2)
    verdict = decide(observation, running, LASTED, ACTIVE, parse_scenario(document))
    stages = (
        {s.name: s.utilisation_ratio for s in verdict.current.stages} if verdict.current else {}
    )
    assert stages["decode:pd"] == pytest.approx(0.70, abs=0.01)
    assert stages["local_prefill:pd"] > 0.9
    assert moved(verdict) == (2, 2), verdict.message


def test_s25_nothing_more_is_asked_for_while_a_move_runs() -> None:
    observation = seen(pd=at(6, 2, role_change=change()))
    verdict = says(observation, roles=(4, 4), memory=Memory())
    assert moved(verdict) == (4, 4)
    assert verdict.reason not in ("RoleImbalance", "RolesGainPending")


def test_s25_an_expired_move_reverts_the_target_and_is_retried_later_and_later() -> None:
    ended = change("expired", ended_at_s=980.0, why="2 of 2 instances still busy after 600 s")
    observation = seen(pd=at(6, 2, role_change=ended))
    first = says(observation, roles=(4, 4), memory=Memory())
    assert moved(first) == (4, 4), "engines may report late: not at once"
    assert first.memory.roles_failed == {"pd": 1}
    later = dataclasses.replace(observation, now_s=1016.0)
    verdict = says(later, roles=(4, 4), memory=first.memory)
    assert (verdict.reason, moved(verdict)) == ("RolesFollowed", (6, 2))
    assert "still busy" in verdict.message
    assert verdict.memory.roles_failed == {"pd": 1}, "each attempt is counted once"
    again = says(
        dataclasses.replace(observation, now_s=1100.0),
        memory=dataclasses.replace(verdict.memory, roles_gain_since_s=900.0),
    )
    assert (again.reason, again.next_action_at_s) == ("RolesDwell", 980.0 + 2 * 120.0)


@pytest.mark.parametrize(
    "observation",
    [
        seen(pd=at(6, 2, role_change=change(), demand_rps=0.0, demand_state="idle")),
        seen(
            pd=at(
                6,
                2,
                role_change=change(n_prefill=7, n_decode=1),
            )
        ),
    ],
    ids=["demand is gone", "the mix wants the opposite"],
)
def test_s25_a_move_that_is_no_longer_worth_it_is_called_back(observation: Observation) -> None:
    wanted = observation.pd["pd"].role_change
    assert wanted is not None
    running = plan(19_800, n_prefill=wanted.n_prefill, n_decode=wanted.n_decode)
    verdict = decide(observation, running, Memory(), ACTIVE, scenario())
    assert (verdict.reason, moved(verdict)) == ("RolesCancelled", (6, 2)), verdict.message


def test_while_instances_move_t_is_tuned_for_those_that_stay_in_their_role() -> None:
    """4/4 on its way to 2/6: two prefillers and four decoders are certain."""
    mix = exact_histogram(lengths=LogNormalLengths(9.2, 1.0, 128, 131_072))
    on_the_way = at(4, 4, lengths=mix, role_change=change(n_prefill=2, n_decode=6))
    verdict = says(
        seen(pd=on_the_way), roles=(2, 6), memory=Memory(gain_since_s=900.0), threshold=20_250
    )
    assert verdict.reason == "PrefillImbalance", verdict.message
    assert verdict.plan.clusters["pd"].threshold_tokens == 13_500
    assert moved(verdict) == (2, 6)


def test_a_move_that_is_still_worth_it_goes_on() -> None:
    halfway = seen(pd=at(5, 3, role_change=change()))
    verdict = says(halfway, roles=(4, 4), memory=Memory())
    assert moved(verdict) == (4, 4)


def test_s28_in_a_total_outage_the_floor_is_restored_and_nothing_else() -> None:
    dark = Observation(
        now_s=1000.0,
        fleet="prfaas-1t",
        pd={"pd": PdObservation(None, "missing", None, n_prefill=0, n_decode=0)},
        prefill={},
        links={},
    )
    described = scenario(min_decode=3)
    verdict = says(dark, described=described, memory=Memory())
    assert (verdict.action, verdict.reason) == ("adopt", "FloorRestored")
    before, after = (
        plan(19_800, n_prefill=6, n_decode=2).clusters["pd"],
        verdict.plan.clusters["pd"],
    )
    # How KV is sent is not a change of its own: it goes along with any plan.
    assert after == dataclasses.replace(before, n_prefill=5, n_decode=3)
    settled = says(dark, roles=(5, 3), described=described, memory=verdict.memory)
    assert (settled.action, moved(settled)) == ("hold", (5, 3))


def test_s29_a_silent_instance_counts_as_full_and_is_named() -> None:
    """S-29: a decision is made; of the shrinking role the silent one has nothing to give."""
    silent = seen(pd=at(6, 2, prefill_silent=("prfaas-1t/pd/h20-3",)))
    verdict = says(silent)
    assert (verdict.reason, moved(verdict)) == ("RoleImbalance", (4, 4))
    assert any("h20-3" in warning for warning in verdict.warnings)


def test_s29_what_only_a_silent_instance_could_give_is_not_taken() -> None:
    """At 4/4 -> 3/5 under a mix where that gains, unless one of the four prefillers is silent."""
    mix = exact_histogram(lengths=LogNormalLengths(9.6, 1.0, 128, 131_072))
    known = says(seen(pd=at(4, 4, lengths=mix)), roles=(4, 4), threshold=16_000)
    assert moved(known) == (3, 5), known.message
    silent = at(4, 4, lengths=mix, prefill_silent=("a", "b"))
    verdict = says(seen(pd=silent), roles=(4, 4), threshold=16_000)
    assert moved(verdict) == (4, 4), verdict.message


def test_s31_roles_changed_by_hand_are_followed_once_they_stay() -> None:
    observation = seen(pd=at(5, 3))
    first = says(observation, roles=(3, 5), memory=Memory())
    assert moved(first) == (3, 5)
    # Shown at once, and what is computed with is what engines run: three decode, not five.
    assert "pd: engines run 5/3, the plan says 3/5" in first.warnings
    assert first.current is not None
    decode = {stage.name: stage.capacity_rps for stage in first.current.stages}["decode:pd"]
    assert decode == pytest.approx(3 * 0.78125)
    verdict = says(
        dataclasses.replace(observation, now_s=1015.0), roles=(3, 5), memory=first.memory
    )
    assert (verdict.reason, moved(verdict)) == ("RolesFollowed", (5, 3))


def test_a_pool_that_is_partly_unread_is_not_taken_for_a_change() -> None:
    memory = Memory(roles_astray_since_s={"pd": 900.0})
    for found in (at(3, 4), at(4, 4, decode_silent=("x",))):
        verdict = says(seen(pd=found), roles=(3, 5), memory=memory, roles_mode="fixed")
        assert moved(verdict) == (3, 5), verdict.message


def test_roles_move_while_every_link_is_down_and_where_there_is_none() -> None:
    """Everything local, prefill overloaded: that there is traffic does not hang on a link."""
    down = seen(pd=at(2, 6), link=link(capacity_gbps=0.0, tx_gbps=0.0))
    running = plan(None, n_prefill=2, n_decode=6)
    verdict = decide(down, running, LASTED, ACTIVE, scenario())
    assert (verdict.reason, moved(verdict)) == ("RoleImbalance", (4, 4)), verdict.message
    document = demo_document()
    document["links"], document["clusters"] = [], document["clusters"][1:]
    document["clusters"][0]["control_urls"] = ["http://stack"]
    alone = Observation(1000.0, "prfaas-1t", {"pd": at(2, 6)}, {}, {})
    verdict = decide(alone, running, LASTED, ACTIVE, parse_scenario(document))
    assert (verdict.reason, moved(verdict)) == ("RoleImbalance", (4, 4)), verdict.message


def test_without_traffic_roles_stay_though_links_are_down() -> None:
    down = seen(
        pd=at(2, 6, demand_rps=0.0, demand_state="idle"),
        link=link(capacity_gbps=0.0, tx_gbps=0.0),
    )
    verdict = decide(down, plan(None, n_prefill=2, n_decode=6), LASTED, ACTIVE, scenario())
    assert (verdict.reason, moved(verdict)) == ("NoTraffic", (2, 6))


def test_a_floor_that_cannot_be_restored_is_tried_less_and_less_often() -> None:
    """Every attempt fails at once: the plan does not swing, and the hour's changes last."""
    described = scenario(min_decode=2)
    running, memory = plan(19_800, n_prefill=7, n_decode=1), Memory()
    attempt: RoleChange | None = None
    asked = []
    for tick in range(600):
        now_s = 1000.0 + 2.0 * tick
        observation = seen(now_s, pd=at(7, 1, role_change=attempt))
        verdict = decide(observation, running, memory, ACTIVE, described)
        if verdict.reason == "FloorRestored":
            asked.append(now_s)
            attempt = change(
                "failed", id=len(asked), n_prefill=6, n_decode=2, ended_at_s=now_s + 1.0
            )
        running, memory = verdict.plan, verdict.memory
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert 3 <= len(asked) <= 4
    assert gaps == sorted(gaps)
    assert gaps[0] >= 240.0
    assert len(memory.changes_s) < ACTIVE.max_changes_per_hour / 2


def test_what_a_move_of_roles_is_expected_to_carry_is_at_the_t_that_runs() -> None:
    verdict = says(threshold=4000)
    assert verdict.adopted is not None
    assert verdict.best is not None
    assert verdict.plan.clusters["pd"].threshold_tokens == 6000
    model = fleetmodel.of_scenario(scenario(), "exact")
    at_6000 = predict(model, {"pd": Setting(6000.0, 4, 4)})
    assert verdict.adopted.lambda_max_rps == pytest.approx(at_6000.lambda_max_rps, rel=0.01)
    assert verdict.best.lambda_max_rps == pytest.approx(3.16, rel=0.01)
    best = verdict.best_plan["pd"]
    assert (best.n_prefill, best.n_decode) == (3, 5)
    assert best.threshold_tokens == pytest.approx(19_813, rel=0.02)


def test_t_takes_its_first_step_with_the_roles_it_suits_if_the_present_ones_bear_it() -> None:
    """4/4 -> 2/6 as prompts become short: at the old t two prefillers would carry a third."""
    mix = exact_histogram(lengths=LogNormalLengths(9.2, 1.0, 128, 131_072))
    seen_now = seen(pd=at(4, 4, lengths=mix))
    verdict = says(seen_now, roles=(4, 4), threshold=20_250)
    cluster = verdict.plan.clusters["pd"]
    assert (verdict.reason, moved(verdict), cluster.threshold_tokens) == (
        "RoleImbalance",
        (2, 6),
        13_500,
    )
    assert "t = 20,250 -> t = 13,500" in verdict.message
    # Where remote prefill is the limit already, sending more there would hurt at once.
    busy = seen(pd=at(4, 4, lengths=mix, demand_rps=2.5))
    fewer = dataclasses.replace(busy, prefill={"prfaas": PrefillObservation(1, age_s=1.0)})
    kept = says(fewer, roles=(4, 4), threshold=20_250)
    assert kept.plan.clusters["pd"].threshold_tokens >= 20_250, kept.message


@pytest.mark.parametrize("n_silent", [0, 1])
def test_s29_one_of_ten_silent_and_still_a_decision(n_silent: int) -> None:
    document = demo_document()
    document["clusters"][1].update(instances=10, control_urls=["http://stack"])
    silent = tuple(f"prfaas-1t/pd/h20-{i}" for i in range(n_silent))
    observation = seen(pd=at(8, 2, prefill_silent=silent))
    running = plan(19_800, n_prefill=8, n_decode=2)
    verdict = decide(observation, running, LASTED, ACTIVE, parse_scenario(document))
    assert (verdict.reason, moved(verdict)) == ("RoleImbalance", (6, 4)), verdict.message
    assert any("taken as full" in warning for warning in verdict.warnings) == bool(n_silent)


def test_advice_uses_up_no_limit_and_follows_nobody() -> None:
    astray = Memory(roles_astray_since_s={"pd": 900.0}, gain_since_s=900.0)
    verdict = says(seen(pd=at(4, 4)), roles=(3, 5), threshold=4000, memory=astray, mode="advisory")
    assert (verdict.action, verdict.reason) == ("adopt", "PrefillImbalance")
    assert (verdict.memory.changes_s, verdict.memory.last_change_s) == ((), None)


def test_every_reason_is_known() -> None:
    assert {"RoleImbalance", "FloorRestored", "RolesCancelled", "RolesFollowed"} <= REASONS.keys()
