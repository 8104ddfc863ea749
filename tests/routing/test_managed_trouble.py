"""Routers that answer what nobody foresaw, are slow, or go while something is asked of them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from routing import delivery, managed, managed_work, tasks
from routing.adapters import engines
from routing.adapters.engines import Engine
from routing.adapters.surface import Actual, SurfaceError
from routing.commands import Refused
from routing.fleets import scenario_of
from routing.models import Action, Decision, Fleet, ManagedRouter
from routing.rebalance_looks import engine_looks
from tests.routing.cases import after
from tests.routing.routers_case import D1, FakeRouter, act, clock, cycle, fleet_of, two_and_two

pytestmark = pytest.mark.django_db


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch, router: FakeRouter) -> Fleet:
    return fleet_of(monkeypatch, router)


class HostileRouter(FakeRouter):
    """`raises`: what its answer makes of the adapter that nobody foresaw."""

    raises: Exception | None = None

    def read(self) -> Actual:
        if self.raises is not None:
            raise self.raises
        return super().read()


def test_an_answer_nobody_foresaw_stops_no_other_router(monkeypatch: pytest.MonkeyPatch) -> None:
    hostile, calm = HostileRouter(url="http://127.0.0.1:9301"), two_and_two()
    hostile.raises = RecursionError("too deep")
    fleet = fleet_of(monkeypatch, hostile, calm)
    assert cycle(fleet, 0.0, "r2").state == "sync"
    row = ManagedRouter.objects.get(name="r1")
    assert (row.state, row.findings) == (
        "unreachable",
        ["http://127.0.0.1:9301: its answer was not understood (RecursionError)"],
    )


def test_what_cannot_be_kept_is_not_taken_for_what_was_seen_before(
    fleet: Fleet, router: FakeRouter
) -> None:
    """PostgreSQL keeps no NUL: what the row said before must not stand for now."""
    assert cycle(fleet, 0.0).state == "sync"
    router.put("http://127.0.0.1:9104/\0", "prefill")
    row = cycle(fleet, 2.0)
    assert (row.state, row.away_since) == ("unreachable", after(2.0))
    assert row.findings == [f"{router.url}: what it shows cannot be kept (DataError)"]
    with pytest.raises(Refused, match="does not answer now"):
        act(row, 3.0)


def test_a_clock_that_was_set_back_hides_no_drift(fleet: Fleet, router: FakeRouter) -> None:
    cycle(fleet, 3600.0)
    router.put(D1, "prefill")
    row = cycle(fleet, 0.0)
    assert (row.state, row.observed_at) == ("drifted", after(0.0))


class SlowRouter(FakeRouter):
    """It needs seven seconds to say that it will not."""

    def list_as(self, url: str, role: Any) -> None:
        super().list_as(url, role)
        SlowRouter.now_s += 7.0
        raise SurfaceError(f"{self.url}: not now")

    now_s = 0.0


def test_routers_that_are_slow_to_change_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One cycle has ten seconds for what was asked; who was tried comes after who was not."""
    routers = [two_and_two(SlowRouter, url=f"http://127.0.0.1:940{i}") for i in range(4)]
    fleet = fleet_of(monkeypatch, *routers)
    SlowRouter.now_s = 4.0
    cycle(fleet, 0.0)
    for router in routers:
        router.put(D1, "prefill")
        router.lies = True
    cycle(fleet, 2.0)
    for row in ManagedRouter.objects.order_by("name"):
        act(row, 3.0)
    managed_work.reconcile(lambda: after(SlowRouter.now_s))
    assert [len(router.calls) for router in routers] == [1, 1, 0, 0]
    managed_work.reconcile(lambda: after(SlowRouter.now_s))
    assert [len(router.calls) for router in routers] == [1, 1, 1, 1]


def test_what_is_drained_and_not_wanted_is_as_good_as_gone(
    fleet: Fleet, router: FakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some keep on their list what they no longer send to: an override must not ask for ever."""
    cycle(fleet, 0.0)
    extra = "http://127.0.0.1:9999"
    router.put(extra, "prefill")

    def drain(url: str) -> None:
        router.calls.append(("cordon", url))
        router.put(url, "prefill", "draining")

    monkeypatch.setattr(router, "cordon", drain)
    act(cycle(fleet, 2.0), 3.0)
    row = cycle(fleet, 4.0)
    assert (router.calls, row.operation["state"]) == ([("cordon", extra)], "applied")
    assert row.state == "sync"


def test_a_plan_does_not_wait_for_a_router_that_is_gone(fleet: Fleet, router: FakeRouter) -> None:
    row = cycle(fleet, 0.0)
    decision = Decision.objects.create(
        fleet=fleet, epoch=1, version=1, plan={"clusters": {}}, created_at=after(0.0)
    )
    waits = {"sent_at": after(0.0), "updated_at": after(0.0)}
    decision.deliveries.create(router=str(row), state="pending_restart", **waits)
    decision.deliveries.create(router="f1/pd/gw-1", state="applied", **waits)
    assert not delivery.applied_everywhere(fleet).exists()
    router.put(D1, "prefill")
    act(cycle(fleet, 2.0), 3.0)
    managed.forget(fleet, set())
    forgotten = Action.objects.get(verb="router.forget").before
    assert forgotten["operation"]["state"] == "asked", "it ended with the router, and is not lost"
    assert list(delivery.applied_everywhere(fleet)) == [decision]


def test_a_second_cycle_while_one_waits_for_silent_routers_does_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cycles = []

    def slow(clock: object) -> None:
        cycles.append("begun")
        if len(cycles) == 1:
            tasks.reconcile()

    monkeypatch.setattr(tasks, "_RECONCILED", (slow,))
    tasks.reconcile()
    assert len(cycles) == 1
    tasks.reconcile()
    assert len(cycles) == 2


class MeetingRouter(FakeRouter):
    """It answers once all the others are asked too."""

    all_asked: threading.Barrier

    def read(self) -> Actual:
        self.all_asked.wait(10.0)
        return super().read()


def test_fifty_silent_routers_cost_their_time_limit_once(monkeypatch: pytest.MonkeyPatch) -> None:
    MeetingRouter.all_asked = threading.Barrier(50)
    routers = [two_and_two(MeetingRouter, url=f"http://127.0.0.1:{9400 + i}") for i in range(50)]
    fleet_of(monkeypatch, *routers)
    managed_work.reconcile(clock(0.0))
    assert set(ManagedRouter.objects.values_list("state", flat=True)) == {"sync"}


def test_silent_engines_of_a_move_cost_their_time_limit_once(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_asked = threading.Barrier(20)

    def look(url: str, switch: str, *, token_file: str) -> Engine:
        all_asked.wait(10.0)
        if url == "url-0":
            raise SurfaceError(f"{url}: does not answer")
        return Engine("decode", 0)

    monkeypatch.setattr(engines, "look", look)
    cluster = scenario_of(fleet).cluster("pd")
    assert cluster is not None
    ids = [str(i) for i in range(20)]
    said, silent = engine_looks(cluster, {id: f"url-{id}" for id in ids}, ids)
    assert (len(said), silent) == (19, {"0": "url-0: does not answer"})
