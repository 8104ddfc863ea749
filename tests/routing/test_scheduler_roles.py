"""The loop moves roles: what it asks for, once, and how it takes the outcome."""

from __future__ import annotations

import datetime

import numpy as np
import pytest

from routing import commands, fleets, scheduler
from routing.models import Decision, Fleet, Rebalance, Tick
from tests.routing.cases import Gate, after, engines, feed, link, make_fleet, steady

pytestmark = pytest.mark.django_db

EVERY_S = 10.0
MOVABLE = {
    "control_urls": ["http://127.0.0.1:9/clusters/pd"],
    "start": {"n_prefill": 6, "threshold_tokens": 19_800},
}


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet(pd=MOVABLE)


def run(since_s: float, until_s: float, *, roles: tuple[int, int] = (6, 2)) -> list[Tick]:
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


def requests(until_s: float) -> None:
    feed(steady(Gate(), np.random.default_rng(3), until_s=until_s, every_s=10.0))


def test_a_move_is_opened_once_with_its_decision_and_not_before_it_lasted(fleet: Fleet) -> None:
    requests(100.0)
    run(0.0, 50.0)
    assert not Rebalance.objects.exists()
    run(60.0, 90.0)
    moved = Rebalance.objects.get()
    decision = moved.decision
    assert decision is not None
    assert decision.reason == "RoleImbalance"
    assert (moved.from_n_prefill, moved.from_n_decode) == (6, 2)
    assert (moved.to_n_prefill, moved.to_n_decode) == (4, 4)
    assert moved.deadline_at == moved.created_at + datetime.timedelta(seconds=600)
    plan = fleets.newest_adopted(fleet)
    assert plan is not None
    assert plan.plan["clusters"]["pd"]["n_prefill"] == 4
    assert Decision.objects.filter(reason="RoleImbalance").count() == 1


def test_the_loop_knows_how_the_move_stands_and_follows_the_engines_when_it_failed(
    fleet: Fleet,
) -> None:
    requests(200.0)
    run(0.0, 80.0)
    moved = Rebalance.objects.get()
    seen = run(90.0, 90.0)[-1].observed["pd"]["pd"]["role_change"]
    assert (seen["state"], seen["n_prefill"], seen["id"]) == ("running", 4, moved.pk)
    moved.state, moved.reason = "expired", "h20-1 was still busy after 600 s"
    moved.finished_at = after(91.0)
    moved.save()
    ticks = run(100.0, 130.0)
    followed = [t for t in ticks if t.reason == "RolesFollowed"]
    assert len(followed) == 1
    assert "still busy" in followed[0].verdict["message"]
    plan = fleets.newest_adopted(fleet)
    assert plan is not None
    assert (plan.reason, plan.plan["clusters"]["pd"]["n_prefill"]) == ("RolesFollowed", 6)
    assert Rebalance.objects.count() == 1


def test_the_first_plan_is_what_engines_run_and_moves_nothing(fleet: Fleet) -> None:
    """The scenario starts with 6/2, the engines with 3/5."""
    requests(40.0)
    run(0.0, 30.0, roles=(3, 5))
    assert not Rebalance.objects.exists()
    first = Decision.objects.order_by("id")[0]
    assert (first.reason, first.plan["clusters"]["pd"]["n_prefill"]) == ("Initial", 3)
    assert not Decision.objects.filter(reason="RolesFollowed").exists()


def test_an_advisory_fleet_gets_advice_on_t_whatever_its_engines_run() -> None:
    """The scenario starts with 3/5, engines run 4/4, nobody can move them; a band is asked for."""
    make_fleet(mode="advisory")
    commands.set_policy(
        fleet="f1",
        changes={"knobs": {"band_ratio": 0.1}},
        if_version=1,
        actor="ada",
        via="test",
        reason="",
        now=after(0.0),
    )
    requests(400.0)
    ticks = run(0.0, 400.0, roles=(4, 4))
    assert not [t for t in ticks if t.reason in ("RateLimited", "RolesFollowed")]
    advice = Decision.objects.filter(kind="advised")
    assert 0 < advice.count() <= 3
    assert advice.order_by("-id")[0].plan["clusters"]["pd"]["threshold_tokens"] > 4_000


def test_after_the_clock_was_set_back_ticks_go_on_and_stay_unique(fleet: Fleet) -> None:
    requests(60.0)
    before = run(0.0, 40.0)[-1]
    assert scheduler.run_tick("f1", now=after(39.0), tick_s=2.0) is None, "a late worker"
    back = [scheduler.run_tick("f1", now=after(at_s), tick_s=2.0) for at_s in (-300, -299, -298)]
    assert [t and t.seq for t in back] == [before.seq + 1, None, before.seq + 2]


def test_an_advisory_fleet_says_what_it_would_move_and_moves_nothing() -> None:
    make_fleet(mode="advisory", pd=MOVABLE)
    requests(100.0)
    run(0.0, 80.0)
    advice = Decision.objects.filter(reason="RoleImbalance")
    assert advice.exists()
    assert not advice.exclude(version=None).exists()
    assert not Rebalance.objects.exists()
