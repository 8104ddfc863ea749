"""Moves of roles where something is broken: an engine, a gate, a stack that only says yes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from django.db import transaction

from routing import delivery
from routing.adapters import applied
from routing.lab.engine import RoleRefused
from routing.lab.workers import Worker
from routing.models import Fleet
from tests.routing.cases import after
from tests.routing.lab_stack import LabStack, fleet_of
from tests.routing.rebalancing import (
    ack,
    decide,
    drive,
    finish,
    move_of,
    open_for,
    steps_of,
    to_step,
)

pytestmark = pytest.mark.django_db(transaction=True)

NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def fleet(lab: LabStack) -> Fleet:
    return fleet_of(lab.controls)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a router accepted has to show at once."""
    monkeypatch.setattr(applied, "APPLIED_WITHIN_S", 0.2)


def three_prefill(lab: LabStack) -> None:
    lab.engines["slow-3"].role = "prefill"
    for stack in (0, 1):
        lab.worker(stack, "slow-3").worker_type = "prefill"


@pytest.mark.parametrize("roles", [(1, 3), (1, 2)])
def test_a_dead_engine_stops_no_move_of_others(
    lab: LabStack, fleet: Fleet, roles: tuple[int, int]
) -> None:
    """Whether the target counts it as what it is listed, or leaves it out."""
    lab.kill("slow-4")
    row = finish(open_for(fleet, roles), 1.0)
    assert row.state == "done"
    assert row.reason.startswith(
        f"pd runs {roles[0]} prefill and {roles[1]} decode; not reached: small/pd/slow-4 (http://"
    )
    assert [move.instance for move in row.moves.all()] == ["small/pd/slow-1"]
    assert (lab.counts(), lab.settled()) == ((1, 3), True)


def test_a_dead_engine_is_not_chosen_and_keeps_no_floor(lab: LabStack, fleet: Fleet) -> None:
    """Of three that prefill the idlest is dead, one moves, and one is the last that answers."""
    three_prefill(lab)
    lab.kill("slow-1")
    row = open_for(fleet, (1, 3), deadline_s=60.0)
    for at_s in range(1, 20):
        drive(row, at_s)
    assert row.state == "open"
    assert row.waiting_for.startswith("No instance can be spared; not reached: small/pd/slow-1 (")
    moved = row.moves.values_list("instance", "step")
    assert list(moved) == [("small/pd/slow-2", "done")]
    assert lab.roles()["slow-3"] == "prefill"
    finish(row, 60.0)
    assert row.state == "expired"
    assert "not reached: small/pd/slow-1 (" in row.reason
    assert lab.settled()


def test_a_target_that_counts_neither_is_refused_by_name(lab: LabStack, fleet: Fleet) -> None:
    lab.kill("slow-4")
    row = finish(open_for(fleet, (1, 1)), 1.0)
    assert row.state == "failed"
    assert row.reason.startswith(
        "the routers of pd list 4 instances, the target is 1 + 1; not reached: small/pd/slow-4 ("
    )


def test_where_no_engine_answers_nothing_is_said_to_be_done(lab: LabStack, fleet: Fleet) -> None:
    for name in lab.engines:
        lab.kill(name)
    row = drive(open_for(fleet, (2, 2)), 1.0)
    assert (row.state, row.moves.count()) == ("open", 0)
    assert row.waiting_for.startswith("Nobody can say which roles there are; not reached: small/pd")


@pytest.mark.parametrize("overtaken", [False, True])
def test_a_gate_nobody_waits_for_holds_no_move_up(
    lab: LabStack, fleet: Fleet, overtaken: bool
) -> None:
    """Be it that they stopped waiting for the plan of this move, or for one after it."""
    decide(fleet, (2, 2))
    row = open_for(fleet, (1, 3))
    ack(fleet, 1, at_s=1.0)
    ack(fleet, 1, at_s=1.0, name="gw-2")
    plan = row.decision
    assert plan is not None
    if overtaken:
        plan = decide(fleet, (1, 3), at_s=1.5)
        with transaction.atomic():
            delivery.open_deliveries(plan, after(1.5))
    for at_s in (1.0, 2.0):
        drive(row, at_s)
    both = ("small/pd/gw-1 runs 1.1 of 1.2", "small/pd/gw-2 runs 1.1 of 1.2")
    assert row.waiting_for == f"Not every gate runs the plan yet: {', '.join(both)}."
    delivery.cancel(
        plan, router="small/pd/gw-1", actor="ada", via="test", reason="stuck", now=after(2.5)
    )
    assert drive(row, 3.0).waiting_for == f"Not every gate runs the plan yet: {both[1]}."
    ack(fleet, 2, at_s=4.0, name="gw-2")
    finish(row, 4.0)
    assert (row.state, lab.counts(), lab.settled()) == ("done", (1, 3), True)


def test_at_the_deadline_a_proven_role_stays(lab: LabStack, fleet: Fleet) -> None:
    row = open_for(fleet, (1, 3), deadline_s=20.0)
    for at_s in (1.0, 2.0, 19.0):
        ack(fleet, None, at_s=at_s)
        drive(row, at_s)
    assert (move_of(row).step, lab.counts()) == ("verify", (1, 3))
    finish(row, 20.0)
    assert row.state == "done"
    assert row.reason == (
        "pd runs 1 prefill and 3 decode; the deadline has passed. "
        "Not every gate runs the plan yet: small/pd/gw-1 runs no plan."
    )
    assert (move_of(row).step, move_of(row).error) == ("done", "")
    assert (lab.counts(), lab.settled()) == ((1, 3), True)


def test_at_the_deadline_the_moves_that_are_left_are_not_made(lab: LabStack, fleet: Fleet) -> None:
    three_prefill(lab)
    row = open_for(fleet, (1, 3), deadline_s=20.0)
    for at_s in (1.0, 2.0, 19.0):
        ack(fleet, None, at_s=at_s)
        drive(row, at_s)
    finish(row, 20.0)
    assert row.state == "expired"
    assert "gw-1 runs no plan" in row.reason
    assert list(row.moves.order_by("seq").values_list("step", flat=True)) == ["done", "planned"]
    assert (lab.counts(), lab.settled()) == ((2, 2), True)


@pytest.mark.parametrize(
    ("step", "state", "last"),
    [
        ("cordon", "expired", "restored"),
        ("drain", "expired", "restored"),
        ("switch", "expired", "restored"),
        ("verify", "expired", "restored"),  # no stack lists the new role yet
        ("uncordon", "done", "done"),
    ],
)
def test_at_the_deadline_what_is_not_proven_is_taken_back(
    lab: LabStack, fleet: Fleet, step: str, state: str, last: str
) -> None:
    row = open_for(fleet, (1, 3), deadline_s=60.0)
    to_step(row, step)
    finish(row, 60.0)
    assert (row.state, move_of(row).step) == (state, last)
    assert lab.counts() == ((1, 3) if last == "done" else (2, 2))
    assert lab.settled()


def test_at_the_deadline_a_role_that_was_lost_again_is_not_kept(
    lab: LabStack, fleet: Fleet
) -> None:
    row = open_for(fleet, (1, 3), deadline_s=20.0)
    for at_s in (1.0, 2.0, 19.0):
        ack(fleet, None, at_s=at_s)
        drive(row, at_s)
    lab.engines["slow-1"].role = "prefill"
    finish(row, 20.0)
    assert (row.state, move_of(row).step) == ("expired", "restored")
    assert (lab.counts(), lab.settled()) == ((2, 2), True)


def busy(new_role: str) -> str:
    raise RoleRefused("KV is still leaving", busy=True)


@pytest.mark.parametrize("step", ["drain", "switch", "verify"])
@pytest.mark.parametrize("trouble", ["the engine is busy", "it is dead", "a stack is away"])
def test_a_drain_is_renewed_whatever_is_waited_for(
    lab: LabStack, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, step: str, trouble: str
) -> None:
    row = open_for(fleet, (1, 3))
    at_s = to_step(row, step)
    ack(fleet, None, at_s=at_s)
    if trouble == "the engine is busy":
        monkeypatch.setattr(lab.engines["slow-1"], "switch_role", busy)
    elif trouble == "it is dead":
        lab.kill("slow-1")
    else:
        fleet_of((NOWHERE, lab.controls[0]))
    # Once it is proven the first stack has it open; the others hold it until the gates follow.
    stack = 1 if (step, trouble) == ("verify", "the engine is busy") else 0
    lab.call(lambda: lab.worker(stack, "slow-1").lease(5.0))
    drive(row, at_s)
    assert row.state == "open"
    assert row.waiting_for
    lease_s = lab.call(lambda: lab.worker(stack, "slow-1").lease_s)
    assert lease_s is not None
    assert lease_s > 20.0


def in_name_only(change: Callable[[], None], undo: Callable[[], None]) -> None:
    """Shown in the answer to whoever asks, and gone right after it."""
    change()
    asyncio.get_running_loop().call_soon(undo)


def test_a_stack_that_only_says_that_it_drains_is_asked_once_a_second(
    lab: LabStack, fleet: Fleet, hasty: None
) -> None:
    asked: list[float] = []

    def drain(worker: Worker, lease_s: float) -> None:
        asked.append(lease_s)
        in_name_only(lambda: worker.lease(lease_s), worker.ready)

    lab.listings[1].drain = drain  # type: ignore[method-assign]
    row = open_for(fleet, (1, 3), drain_timeout_s=30.0)
    for i, at_s in enumerate((1.0, 2.0, 3.0), start=1):
        drive(row, at_s)
        assert (row.state, len(asked)) == ("open", i)
        assert row.waiting_for.startswith(f"{lab.controls[1]}: accepted, and 0.2 s later it does")
        assert row.waiting_for.endswith(" as draining")
    said = row.waiting_for
    finish(row, 31.5)
    assert (row.state, row.reason) == ("failed", said), "idle all the time, and never drained"
    assert steps_of(row) == ["cordon", "restore", "restored"]
    assert (lab.counts(), lab.settled()) == ((2, 2), True)


def test_a_stack_that_only_says_that_it_is_ready_is_asked_once_a_second(
    lab: LabStack, fleet: Fleet, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = open_for(fleet, (1, 3), deadline_s=60.0)
    at_s = to_step(row, "uncordon")
    worker = lab.worker(1, "slow-1")
    plain, asked = worker.ready, []

    def ready() -> None:
        asked.append(1)
        in_name_only(plain, lambda: worker.lease(300.0))

    monkeypatch.setattr(worker, "ready", ready)
    for i in (1, 2):
        drive(row, at_s + i)
        assert (row.state, len(asked)) == ("open", i)
        assert row.waiting_for.endswith(" as a ready decode")
    monkeypatch.undo()
    finish(row, at_s + 3)
    assert (row.state, lab.counts(), lab.settled()) == ("done", (1, 3), True)


def test_an_engine_that_only_says_that_it_switched_is_given_the_drain_timeout(
    lab: LabStack, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab.engines["slow-1"], "switch_role", lambda role: role)
    row = open_for(fleet, (1, 3), drain_timeout_s=30.0)
    for at_s in (1.0, 2.0, 30.0):
        drive(row, at_s)
    assert (row.state, move_of(row).step) == ("open", "switch")
    assert "answers 200 with success True, new_role prefill" in row.waiting_for
    finish(row, 31.5)
    assert (row.state, lab.counts(), lab.settled()) == ("failed", (2, 2), True)
