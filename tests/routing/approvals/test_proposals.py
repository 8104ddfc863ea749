"""What reaches too far is proposed, and done exactly as it was asked for, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, User

from routing import audit, commands, token_commands
from routing.approvals import gate, limits_rows, proposals
from routing.approvals.models import Proposal
from routing.jobs import jobs
from routing.models import Action, Fleet, Hold, Policy, RouterState
from routing.refusals import Outdated, Refused
from routing.windows.refusing import FrozenNow
from tests.console.page_case import busy_fleet
from tests.routing.approvals.case import (
    ANA,
    BOB,
    LONG,
    approve,
    hold,
    limit,
    proposed,
    set_policy,
)
from tests.routing.cases import NOW, after, make_fleet
from tests.routing.jobs.case import ADVISE
from tests.routing.windows import case as windowed

pytestmark = pytest.mark.django_db


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet()


def verbs() -> list[tuple[str, str]]:
    rows = Action.objects.exclude(actor__in=("test", "root")).order_by("pk")
    return [(row.actor, row.verb) for row in rows]


def test_within_its_limits_it_is_done_at_once(fleet: Fleet) -> None:
    limit(LONG)
    hold(for_s=1800.0)
    assert not Proposal.objects.exists()
    assert Hold.objects.count() == 1


def test_beyond_them_nothing_is_done_and_a_second_person_does_it(fleet: Fleet) -> None:
    limit(LONG)
    row = proposed(hold)
    assert not Hold.objects.exists()
    assert (row.fleet, row.command, row.state) == ("f1", "commands.place_hold", "open")
    assert row.beyond == [{"limit": "hold_s", "value": 3600.0, "most": 1800.0}]
    assert [change["verb"] for change in row.changes] == ["hold.place"]
    ended = approve(row)
    placed = Hold.objects.get()
    assert (ended.state, ended.ended_by, ended.result) == ("done", "bob", {"hold": placed.pk})
    assert (placed.owner, placed.reason, placed.expires_at) == ("ana", "because", after(3600))
    assert verbs() == [("ana", "proposal.open"), ("ana", "hold.place"), ("bob", "proposal.done")]
    done = Action.objects.get(verb="hold.place")
    assert (done.after["approved_by"], done.after["proposal"]) == ("bob", row.pk)


def test_what_is_asked_twice_is_one_proposal(fleet: Fleet) -> None:
    limit(LONG)
    first = proposed(hold)
    assert proposed(hold, now=after(2.0)) == first
    assert proposed(hold, for_s=7200.0) != first
    assert proposed(hold, who=BOB) != first
    approve(first)
    assert Proposal.objects.filter(state="open").count() == 2


def test_nobody_approves_what_they_asked_for(fleet: Fleet) -> None:
    limit(LONG)
    row = proposed(hold)
    with pytest.raises(Refused, match="somebody else must approve"):
        approve(row, actor="ana")
    assert Proposal.objects.get().state == "open"


def a_token(name: str, by: str) -> str:
    token_commands.issue_token(
        name=name,
        scopes=["operate", "approve"],
        fleet="",
        expires_at=None,
        actor=by,
        via="test",
        reason="",
        now=NOW,
    )
    return f"token {name}"


@pytest.mark.parametrize(
    ("asks", "approves"),
    [("ana", "token of-ana"), ("token of-ana", "ana"), ("token of-ana", "token also-of-ana"),
     ("token of-token", "ana"), ("ana", "token of-token"), ("job advise", "ana")],
)  # fmt: skip
def test_nor_by_a_token_or_a_job_of_their_own(fleet: Fleet, asks: str, approves: str) -> None:
    a_token("of-ana", "ana")
    a_token("also-of-ana", "ana")
    a_token("of-token", "token of-ana")
    jobs.put(document=ADVISE, if_version=0, now=NOW, **ANA)
    limit(LONG)
    row = proposed(hold, who={**ANA, "actor": asks})
    with pytest.raises(Refused, match="somebody else must approve"):
        approve(row, actor=approves)
    assert approve(row, actor="token of-bob" if a_token("of-bob", "bob") else "").state == "done"


def test_one_that_is_no_longer_what_was_decided_on_fails(fleet: Fleet) -> None:
    limit(LONG)
    row = proposed(hold)
    set_policy(BOB, mode="paused")
    ended = approve(row)
    assert (ended.state, "something else changed since; look again" in ended.text) == (
        "failed",
        True,
    )
    assert not Hold.objects.exists()
    assert verbs()[-1] == ("bob", "proposal.failed")


def test_a_policy_that_was_changed_meanwhile_is_not_overwritten(fleet: Fleet) -> None:
    limit({"changes": ["policy"]})
    row = proposed(set_policy, knobs={"t_dwell_s": 30.0})
    set_policy(BOB, mode="advisory")
    assert approve(row).state == "failed"
    assert Policy.objects.get().knobs == {}


def test_a_hold_that_came_first_is_left_alone(fleet: Fleet) -> None:
    limit(LONG)
    row = proposed(hold)
    hold(for_s=600.0, who=BOB)
    ended = approve(row)
    assert (ended.state, "already holds" in ended.text) == ("failed", True)
    assert Hold.objects.get().owner == "bob"


def test_what_reaches_further_by_now_is_looked_at_again() -> None:
    fleet = busy_fleet()
    limit({"gates_switched": 1})
    row = proposed(hold, mode="always_local", threshold_tokens=None)
    assert row.reach["figures"]["gates_switched"] == 2.0
    RouterState.objects.create(
        router="f1/pd/gw-3", fleet=fleet, cluster="pd", state="running", last_seen_at=NOW
    )
    ended = approve(row)
    assert "it reaches further now (gates_switched); look again" in ended.text
    assert not Hold.objects.exists()


def test_gates_that_keep_their_mode_do_not_count() -> None:
    busy_fleet()
    limit({"gates_switched": 0})
    hold()
    assert Hold.objects.count() == 1


def test_a_proposal_ends_before_what_it_asks_for_would_be_over(fleet: Fleet) -> None:
    limit(LONG | {"expires_s": 7200})
    assert proposed(hold).expires_at == after(3600)
    assert proposed(hold, for_s=36_000.0).expires_at == after(7200)


def test_it_runs_out_by_itself_and_cannot_be_approved_then(fleet: Fleet) -> None:
    limit(LONG)
    row = proposed(hold)
    with pytest.raises(Outdated, match="ran out"):
        approve(row, at_s=3600.0)
    assert proposals.expire(after(3599.0)) == 0
    assert proposals.expire(after(3600.0)) == 1
    assert proposals.expire(after(3601.0)) == 0
    with pytest.raises(Outdated, match="is expired already"):
        approve(row)
    assert verbs()[-1] == ("system", "proposal.expired")
    assert not Hold.objects.exists()


def test_one_that_ran_out_gives_way_to_the_same_again(fleet: Fleet) -> None:
    limit(LONG | {"expires_s": 60})
    row = proposed(hold)
    again = proposed(hold, now=after(61.0))
    row.refresh_from_db()
    assert (row.state, again.state, again == row) == ("expired", "open", False)


def test_rejected_with_a_reason_and_withdrawn_by_who_asked(fleet: Fleet) -> None:
    limit(LONG)
    row = proposed(hold)
    who = {"proposal_id": row.pk, "now": after(5.0)}
    with pytest.raises(Refused, match="reason"):
        proposals.reject(**who, **{**BOB, "reason": " "})
    with pytest.raises(Refused, match="withdraw it instead"):
        proposals.reject(**who, **ANA)
    with pytest.raises(Refused, match="was asked for by ana"):
        proposals.withdraw(**who, **BOB)
    assert proposals.reject(**who, **BOB).state == "rejected"
    assert proposals.reject(**who, **BOB).state == "rejected", "a second click"
    with pytest.raises(Outdated, match="is rejected already by bob"):
        proposals.withdraw(**who, **ANA)
    second = proposed(hold)
    assert proposals.withdraw(**{**who, "proposal_id": second.pk}, **ANA).state == "withdrawn"
    with pytest.raises(Outdated):
        approve(second)
    with pytest.raises(Refused, match="no such proposal"):
        proposals.reject(**{**who, "proposal_id": 10**9}, **BOB)


def test_breaking_the_glass_is_done_alone_and_shown(fleet: Fleet) -> None:
    limit(LONG)
    row = proposed(hold)
    who: dict[str, Any] = {"proposal_id": row.pk, "now": after(5.0), **ANA}
    with pytest.raises(Refused, match="typed by hand"):
        proposals.break_glass(confirm="F1", **who)
    with pytest.raises(Refused, match="reason"):
        proposals.break_glass(confirm="f1", **{**who, "reason": ""})
    ended = proposals.break_glass(confirm="f1", **who)
    assert (ended.state, ended.broke_glass, Hold.objects.count()) == ("done", True, 1)
    assert verbs()[-1] == ("ana", "proposal.break_glass")


def test_who_may_not_any_more_is_not_served(fleet: Fleet) -> None:
    user = User.objects.create_user("ana")
    user.groups.add(Group.objects.get_or_create(name="operator:f1")[0])
    limit(LONG)
    row = proposed(hold, who={**ANA, "via": "ui"})
    other = proposed(hold, for_s=7200.0, who={**ANA, "via": "ui"})
    assert approve(row).state == "done"
    commands.release_hold(hold_id=Hold.objects.get().pk, now=NOW, **ANA)
    user.groups.clear()
    ended = approve(other)
    assert (ended.state, "may not do this any more" in ended.text) == ("failed", True)


def test_under_a_freeze_it_stays_open_and_is_done_afterwards(fleet: Fleet) -> None:
    limit(LONG)
    row = proposed(hold)
    windowed.put(windowed.FREEZE)
    with pytest.raises(FrozenNow):
        approve(row, at_s=100.0)
    row.refresh_from_db()
    assert (row.state, Hold.objects.count()) == ("open", 0)
    assert approve(row, at_s=200.0).state == "done"


def test_limits_that_stand_are_tightened_alone_and_loosened_by_two(fleet: Fleet) -> None:
    limit(LONG)
    limit({"hold_s": 600.0})
    row = proposed(limit, {})
    assert limits_rows.of("f1").limits == {"hold_s": 600.0}
    assert approve(row).state == "done"
    assert limits_rows.of("f1").limits == {}
    hold()
    assert Hold.objects.count() == 1


def test_limits_of_one_fleet_are_no_limits_of_another(fleet: Fleet) -> None:
    make_fleet("f2")
    limit(LONG, fleet="f2")
    hold()
    assert proposed(hold, fleet="f2").fleet == "f2"


def test_the_loop_is_bounded_otherwise(fleet: Fleet) -> None:
    limit(LONG)
    hold(who={**ANA, "via": "scheduler"})
    assert Hold.objects.count() == 1


def test_a_change_that_nobody_watches_is_refused(fleet: Fleet) -> None:
    """A door that goes around the commands meets the same gate."""
    limit({"changes": ["epoch"]})
    with pytest.raises(gate.NeedsApproval, match="needs a second person: it starts a new plan"):
        audit.record(verb="epoch.raise", fleet="f1", target="f1", **ANA)
    assert not Action.objects.filter(verb="epoch.raise").exists()
