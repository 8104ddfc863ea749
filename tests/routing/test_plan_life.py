"""The life of a plan's delivery: sent, accepted, applied by read-back, or why not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from routing import commands, delivery, effect_checks, fleets, scheduler
from routing.adapters.surface import Threshold
from routing.core.jsonable import to_jsonable
from routing.models import Decision, Delivery, Fleet
from tests.console.page_case import plan
from tests.routing.cases import after, make_fleet, traffic
from tests.routing.routers_case import CAN, FakeRouter, clock, cycle, fleet_of, two_and_two

pytestmark = pytest.mark.django_db

GATE = "f1/pd/gw-1"


def issue(fleet: Fleet, version: int, t: int, at_s: float) -> Decision:
    decision = Decision.objects.create(
        fleet=fleet,
        epoch=1,
        version=version,
        plan=to_jsonable(plan(fleet.pk, version, t)),
        reason="PrefillImbalance",
        message="",
        created_at=after(at_s),
    )
    delivery.open_deliveries(decision, after(at_s))
    effect_checks.begin(decision, after(at_s))
    return decision


def ack(fleet: Fleet, version: int | None, at_s: float, **changes: Any) -> None:
    claim = {
        "router": GATE,
        "running": None if version is None else (1, version),
        "state": "running",
        "error": None,
        "transport": "poll",
    }
    delivery.record_ack(fleet=fleet, now=after(at_s), **{**claim, **changes})


def state_of(decision: Decision, router: str = GATE) -> tuple[str, str]:
    row = Delivery.objects.get(decision=decision, router=router)
    return row.state, row.error


def test_a_reload_that_fails_after_all_is_not_applied_and_the_last_good_stays() -> None:
    """S-26: accepted, even applied for a moment, and then the old t is read back."""
    fleet = make_fleet()
    first = issue(fleet, 1, 4000, 0.0)
    ack(fleet, 1, 1.0)
    second = issue(fleet, 2, 6000, 100.0)
    ack(fleet, 1, 101.0, state="accepted")
    assert state_of(second) == ("accepted", "")
    ack(fleet, 2, 102.0)
    assert state_of(second) == ("applied", "")
    ack(fleet, 1, 107.0)
    assert state_of(second) == ("failed", "it runs plan 1.1 again")
    assert delivery.summaries([second])[second.pk]["state"] == "failed"
    assert list(delivery.applied_everywhere(fleet)) == [first]
    ack(fleet, 2, 112.0)
    assert state_of(second) == ("applied", "")


def test_a_plan_that_no_gate_could_run_is_not_issued(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validated before it is sent: the plan in force stays, and why is said once."""
    fleet = make_fleet()
    traffic()
    assert scheduler.run_tick(fleet.pk, now=after(0.0), tick_s=2.0)
    in_force = fleets.newest_adopted(fleet)
    commands.place_hold(
        fleet="f1", mode="threshold", threshold_tokens=9000, owner="ada", actor="ada", via="test",
        reason="x", expires_at=after(3600.0), now=after(1.0),
    )  # fmt: skip
    whole = delivery.document

    def broken(decision: Decision) -> dict[str, Any]:
        found = whole(decision)
        found["clusters"]["pd"]["remote"] = {"prfaas": -1.0}
        return found

    monkeypatch.setattr(delivery, "document", broken)
    for at_s in (4.0, 6.0):
        scheduler.run_tick(fleet.pk, now=after(at_s), tick_s=2.0)
    assert fleets.newest_adopted(fleet) == in_force
    [row] = Decision.objects.filter(kind="refused")
    assert row.version is None
    assert row.message.startswith("Not issued, pd: ")
    assert "remote" in row.message
    assert delivery.summaries([row])[row.pk]["state"] == "refused"
    monkeypatch.undo()
    scheduler.run_tick(fleet.pk, now=after(8.0), tick_s=2.0)
    newest = fleets.newest_adopted(fleet)
    assert newest is not None
    assert newest.plan["clusters"]["pd"]["threshold_tokens"] == 9000


def test_a_plan_that_is_overtaken_before_it_was_applied_says_so() -> None:
    """E12: no plan on top of an unconfirmed one without saying so."""
    fleet = make_fleet()
    ack(fleet, None, 0.0, state="no_plan")
    first = issue(fleet, 1, 4000, 1.0)
    issue(fleet, 2, 6000, 5.0)
    assert state_of(first) == ("superseded", "overtaken by 1.2 before it was applied")


def test_waiting_ends_at_a_deadline_and_the_router_may_still_come() -> None:
    """S-57."""
    fleet = make_fleet()
    ack(fleet, None, 0.0, state="no_plan")
    decision = issue(fleet, 1, 4000, 1.0)
    deadline_s = 1.0 + delivery.DEADLINE.total_seconds()
    [row] = delivery.summaries([decision])[decision.pk]["routers"]
    assert row["deadline_at"] == after(deadline_s)
    assert delivery.expire(clock(deadline_s - 1.0)) == 0
    assert delivery.expire(clock(deadline_s)) == 1
    assert state_of(decision) == ("expired", "not applied within 120 s")
    delivery.cancel(
        decision, router=GATE, actor="ada", via="test", reason="gone", now=after(deadline_s + 1.0)
    )
    assert state_of(decision)[0] == "cancelled"
    ack(fleet, 1, deadline_s + 60.0)
    assert state_of(decision) == ("applied", "")


def test_a_gate_that_a_person_overrides_runs_the_plan_only_afterwards() -> None:
    fleet = make_fleet()
    decision = issue(fleet, 1, 4000, 0.0)
    ack(fleet, 1, 1.0)
    override = delivery.acks.Override(
        id="ov-1", mode="always_local", threshold_tokens=None, by="grace", reason="link",
        since_s=after(2.0).timestamp(), until_s=(after(2.0) + timedelta(hours=1)).timestamp(),
    )  # fmt: skip
    ack(fleet, 1, 3.0, state="overridden", override=override)
    assert state_of(decision) == ("accepted", "overridden on the gate itself by grace")
    assert list(delivery.applied_everywhere(fleet)) == []
    for at_s in (200.0, 205.0):  # past the deadline of a plan that nothing else keeps back
        ack(fleet, 1, at_s, state="overridden", override=override)
        assert delivery.expire(lambda at_s=at_s: after(at_s + 1.0)) == 0
        assert state_of(decision)[0] == "accepted"
    assert delivery.expire(lambda: after(300.0)) == 1, "nor is one that went silent waited for"
    ack(fleet, 1, 301.0)
    assert state_of(decision) == ("applied", "")


RESTARTED = replace(CAN, threshold="restart", threshold_means="Remote above nonCachedTokens.")


@pytest.fixture
def router() -> FakeRouter:
    return two_and_two(can=RESTARTED, threshold=Threshold(4000, "nonCachedTokens 4000"))


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch, router: FakeRouter) -> Fleet:
    return fleet_of(monkeypatch, router)


def test_a_router_without_hot_reload_is_pending_restart_until_it_shows_the_new_t(
    fleet: Fleet, router: FakeRouter
) -> None:
    """S-40."""
    first = issue(fleet, 1, 4000, 0.0)
    assert cycle(fleet, 1.0).state == "sync"
    assert state_of(first, "f1/pd/r1") == ("applied", "")
    second = issue(fleet, 2, 6000, 100.0)
    assert state_of(second, "f1/pd/r1")[0] == "pending_restart", "at once, not after a cycle"
    row = cycle(fleet, 102.0)
    assert row.state == "pending_restart"
    assert row.findings == [
        "plan 1.2 (remote above 6000 uncached tokens) waits until it is restarted"
    ]
    assert row.observed["rendered"]["content"] == "nonCachedTokens: 6000"
    assert delivery.summaries([second])[second.pk]["state"] == "pending_restart"
    assert delivery.expire(clock(900.0)) == 0, "it waits for its people, not for a deadline"
    router.threshold = Threshold(6000, "nonCachedTokens 6000")
    row = cycle(fleet, 902.0)
    assert (row.state, row.findings, row.observed["rendered"]) == ("sync", [], None)
    assert state_of(second, "f1/pd/r1") == ("applied", "")


def test_a_restart_with_the_old_settings_is_applied_no_more(
    fleet: Fleet, router: FakeRouter
) -> None:
    first = issue(fleet, 1, 4000, 0.0)
    cycle(fleet, 1.0)
    router.threshold = Threshold(512, "nonCachedTokens 512")
    assert cycle(fleet, 3.0).state == "pending_restart"
    assert state_of(first, "f1/pd/r1") == ("failed", "not any more: nonCachedTokens 512")


def test_a_router_that_does_not_show_its_t_proves_nothing(fleet: Fleet, router: FakeRouter) -> None:
    router.threshold = None
    decision = issue(fleet, 1, 4000, 0.0)
    cycle(fleet, 1.0)
    assert state_of(decision, "f1/pd/r1")[0] == "pending_restart"
