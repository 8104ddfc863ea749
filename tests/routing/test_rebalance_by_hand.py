"""A person moves instances between roles: asked for once, held, left alone, given up."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from routing import commands, fleets, rebalance, role_commands, scheduler
from routing.models import Action, Fleet, Hold, Rebalance, Tick
from tests.routing.cases import Gate, after, engines, feed, link, make_fleet, steady

pytestmark = pytest.mark.django_db

EVERY_S = 10.0
EAGER = {"roles_gain_hold_s": 10.0, "roles_dwell_s": 10.0}
"""Numbers that let the loop move roles within the seconds of a test."""
MOVABLE = {
    "control_urls": ["http://127.0.0.1:9/clusters/pd"],
    "start": {"n_prefill": 3, "threshold_tokens": 19_800},
}
WHO: dict[str, Any] = {"actor": "ana", "via": "test", "reason": "long prompts at noon"}


@pytest.fixture
def fleet() -> Fleet:
    """Traffic, and a plan of 3/5 in force."""
    made = make_fleet(pd=MOVABLE)
    feed(steady(Gate(), np.random.default_rng(3), until_s=180.0, every_s=10.0))
    commands.set_policy(
        fleet="f1", changes={"knobs": EAGER}, if_version=1, now=after(-1.0), **{**WHO, "actor": "x"}
    )
    run(0.0, 10.0)
    return made


def run(since_s: float, until_s: float, *, roles: tuple[int, int] = (3, 5)) -> list[Tick]:
    ticks = []
    at_s = since_s
    while at_s <= until_s:
        feed(engines(at_s=at_s, roles=roles))
        feed([link(at_s=at_s, tx_gbps=9.0, capacity_gbps=100.0, retransmit_ratio=0.0)])
        found = scheduler.run_tick("f1", now=after(at_s), tick_s=2.0)
        assert found is not None
        ticks.append(found)
        at_s += EVERY_S
    return ticks


def ask(at_s: float = 25.0, **changes: Any) -> role_commands.Asked:
    facts: dict[str, Any] = {
        "fleet": "f1",
        "cluster": "pd",
        "to": (4, 4),
        "expected": (3, 5),
        "expires_at": after(at_s) + timedelta(minutes=10),
        "now": after(at_s),
        **WHO,
    }
    return role_commands.move_roles(**{**facts, **changes})


def planned(fleet: Fleet) -> tuple[int, int]:
    plan = fleets.newest_adopted(fleet)
    assert plan is not None
    cluster = plan.plan["clusters"]["pd"]
    return cluster["n_prefill"], cluster["n_decode"]


def test_the_next_tick_asks_for_the_roles_and_opens_the_move(fleet: Fleet) -> None:
    asked = ask()
    [tick] = run(30.0, 30.0)
    assert (tick.reason, planned(fleet)) == ("Held", (4, 4))
    assert "pd gets roles 4/4 for 3/5: held by ana until" in tick.verdict["message"]
    row = Rebalance.objects.get()
    assert (row.hold, row.requested_by) == (asked.hold, "ana")
    assert (row.from_n_prefill, row.to_n_prefill, row.to_n_decode) == (3, 4, 4)
    [action] = Action.objects.filter(actor="ana")
    assert (action.verb, action.reason) == ("roles.move", WHO["reason"])
    assert (action.before, action.after["n_prefill"]) == ({"n_prefill": 3, "n_decode": 5}, 4)


def test_nobody_moves_them_back_while_the_hold_lasts_and_then_the_loop_may(fleet: Fleet) -> None:
    """S-56, of roles: t is tuned all the while."""
    ask(to=(6, 2), expires_at=after(105.0))
    run(30.0, 30.0)
    rebalance.end(Rebalance.objects.get(), "done", "", after(35.0))
    held = run(40.0, 100.0, roles=(6, 2))
    assert planned(fleet) == (6, 2)
    assert Rebalance.objects.count() == 1
    roles = {"RoleImbalance", "RolesFollowed", "RolesCancelled", "FloorRestored"}
    assert not roles & {tick.reason for tick in held}
    assert any(tick.reason in ("PrefillImbalance", "GainPending", "Optimal") for tick in held)
    run(110.0, 150.0, roles=(6, 2))
    assert Action.objects.filter(verb="hold.expire").count() == 1
    assert planned(fleet) != (6, 2), "the model would rather have fewer prefill"


@pytest.mark.parametrize("ends_as", ["failed", "expired", "cancelled"])
def test_a_move_that_comes_to_nothing_ends_its_hold_and_is_not_tried_again(
    fleet: Fleet, ends_as: str
) -> None:
    ask()
    run(30.0, 30.0)
    row = Rebalance.objects.get()
    rebalance.end(row, ends_as, "p0 was still busy", after(35.0))
    run(40.0, 60.0)
    hold = Hold.objects.get()
    assert hold.released_by == "system"
    [action] = Action.objects.filter(verb="hold.end")
    assert action.reason == f"its move of roles is {ends_as}: p0 was still busy"
    assert planned(fleet) == (3, 5), "the plan follows the engines"
    assert Rebalance.objects.count() == 1


def test_no_traffic_is_no_reason_to_call_back_what_a_person_asked_for(fleet: Fleet) -> None:
    ask(590.0, expires_at=after(3600.0))
    ticks = run(600.0, 620.0)
    assert "RolesCancelled" not in {tick.reason for tick in ticks}
    assert planned(fleet) == (4, 4)


def test_of_two_people_one_is_told_that_the_roles_are_others_by_now(fleet: Fleet) -> None:
    with pytest.raises(role_commands.RolesMoved, match="has 3 prefill and 5 decode now"):
        ask(expected=(4, 4), to=(5, 3))
    ask()
    with pytest.raises(commands.Refused, match="ana holds the roles of pd until"):
        ask(26.0, actor="ben", to=(2, 6))
    run(30.0, 30.0)
    with pytest.raises(commands.Refused, match="being moved to 4 prefill and 4 decode, asked"):
        ask(31.0, actor="ben", to=(2, 6))
    assert Hold.objects.count() == 1


def test_ones_own_hold_gives_way_to_another(fleet: Fleet) -> None:
    ask()
    run(30.0, 30.0)
    rebalance.end(Rebalance.objects.get(), "done", "", after(35.0))
    run(40.0, 40.0, roles=(4, 4))
    ask(45.0, to=(3, 5), expected=(4, 4), reason="noon is over")
    run(50.0, 50.0, roles=(4, 4))
    first, second = Hold.objects.order_by("id")
    assert (first.released_by, second.released_at) == ("ana", None)
    assert planned(fleet) == (3, 5)
    assert Rebalance.objects.count() == 2


def test_repeated_under_its_key_it_is_done_once(fleet: Fleet) -> None:
    first, again = ask(key="k"), ask(key="k", now=after(26.0))
    assert (again.hold, again.repeated) == (first.hold, True)
    with pytest.raises(commands.Refused, match="asked in other words"):
        ask(key="k", to=(2, 6))
    with pytest.raises(commands.Refused, match="was used by ana"):
        ask(key="k", actor="ben")
    assert Hold.objects.count() == 1


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"to": (8, 0)}, "n_prefill", "0 decode is below min_decode = 1 of pd"),
        ({"to": (4, 5)}, "n_prefill", "4 + 5 is more than the 8 instances of pd"),
        ({"to": (3, 4)}, "n_prefill", "7 instances are asked for, pd has 8"),
        ({"to": (3, 5)}, "n_prefill", "has 3 prefill and 5 decode already"),
        ({"cluster": "prfaas"}, "cluster", "no PD cluster prfaas"),
        ({"reason": " "}, "reason", "must not be empty"),
        ({"expires_at": after(25.0) + timedelta(days=8)}, "expires_at", "in the next 7 days"),
        ({"fleet": "f9"}, "fleet", "no such fleet"),
    ],
)
def test_what_cannot_be_had_is_refused_by_field(
    fleet: Fleet, changes: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(commands.Refused, match=says.replace("+", r"\+")) as refused:
        ask(**changes)
    assert refused.value.field == field
    assert not Hold.objects.exists()


def test_a_fleet_that_is_not_active_moves_nothing(fleet: Fleet) -> None:
    commands.set_policy(
        fleet="f1", changes={"mode": "paused"}, if_version=2, now=after(21.0), **WHO
    )
    with pytest.raises(commands.Refused, match="the fleet is paused"):
        ask()


def test_roles_and_t_are_held_apart(fleet: Fleet) -> None:
    """A hold of t stands in no hold of roles' way, nor the other way about."""
    ask()
    commands.place_hold(
        fleet="f1",
        cluster="pd",
        mode="threshold",
        threshold_tokens=8000,
        owner="ben",
        expires_at=after(600.0),
        now=after(26.0),
        **WHO,
    )
    run(30.0, 30.0)
    plan = fleets.newest_adopted(fleet)
    assert plan is not None
    assert (plan.plan["clusters"]["pd"]["threshold_tokens"], planned(fleet)) == (8000, (4, 4))


def test_a_hold_is_extended_by_an_audited_change(fleet: Fleet) -> None:
    hold = ask().hold
    later = after(25.0) + timedelta(hours=2)
    who = {**WHO, "actor": "ben"}
    commands.extend_hold(hold_id=hold.pk, expires_at=later, now=after(40.0), **who)
    hold.refresh_from_db()
    assert (hold.expires_at, hold.owner) == (later, "ana")
    [action] = Action.objects.filter(verb="hold.extend")
    assert action.before["expires_at_s"] < action.after["expires_at_s"]
    commands.release_hold(hold_id=hold.pk, now=after(41.0), **WHO)
    with pytest.raises(commands.Refused, match="already ended"):
        commands.extend_hold(hold_id=hold.pk, expires_at=later, now=after(42.0), **who)
