"""Moving instances between prefill and decode: against a real lab behind two real stacks."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connections

from console.celery import app as celery
from routing import announce, commands, rebalance, rebalance_driver, role_commands, tasks
from routing.lab.engine import RoleRefused
from routing.models import Action, Fleet, Rebalance
from tests.routing.cases import after
from tests.routing.lab_stack import LabStack, fleet_of
from tests.routing.rebalancing import (
    STEPS,
    ack,
    decide,
    drive,
    finish,
    move_of,
    open_for,
    steps_of,
    verbs_of,
    walk,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def fleet(lab: LabStack) -> Fleet:
    return fleet_of(lab.controls)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    monkeypatch.setattr(announce, "publish", messages.append)
    return messages


def test_one_instance_after_the_other_takes_its_new_role(
    lab: LabStack, fleet: Fleet, told: list[dict[str, Any]]
) -> None:
    row = open_for(fleet, (1, 3))
    drive(row, 1.0)
    assert (row.state, move_of(row).step) == ("open", "drain"), "idle is proven by two looks"
    assert lab.counts() == (2, 2)
    drive(row, 1.5)
    assert move_of(row).step == "drain", "less than a second after the first"
    finish(row, 2.0)
    assert (row.state, row.reason) == ("done", "pd runs 1 prefill and 3 decode")
    assert lab.roles() == {
        "slow-1": "decode", "slow-2": "prefill", "slow-3": "decode", "slow-4": "decode",
    }  # fmt: skip
    assert lab.settled()
    move = move_of(row)
    assert (move.instance, move.from_role, move.to_role) == (
        "small/pd/slow-1", "prefill", "decode",
    )  # fmt: skip
    assert (move.step, move.requests, move.error) == ("done", 0, "")
    assert move.finished_at == row.finished_at == after(2.0)
    assert steps_of(row) == [*STEPS, "done"]
    assert verbs_of(row) == ["rebalance.start", "rebalance.end"]
    assert [m["state"] for m in told][-1] == "done"
    steps = [m["moves"][0]["step"] for m in told if m["moves"]]
    assert sorted(set(steps), key=steps.index) == [*STEPS, "done"]
    assert rebalance.newest(fleet) == {"pd": row}
    assert not rebalance_driver.one_pass(row.pk, after(9.0)), "what has ended stays so"


def test_of_several_moves_one_at_a_time_is_out(lab: LabStack, fleet: Fleet) -> None:
    """And the second is chosen anew when its turn comes: by then another is the least loaded."""
    lab.engines["slow-3"].role = "prefill"
    for stack in (0, 1):
        lab.worker(stack, "slow-3").worker_type = "prefill"
    row = open_for(fleet, (1, 3))
    rebalance_driver.one_pass(row.pk, after(0.5))
    planned = row.moves.order_by("seq").values_list("instance", "step")
    assert list(planned) == [("small/pd/slow-1", "cordon"), ("small/pd/slow-2", "planned")]
    with lab.worker(0, "slow-2").prefilling():
        for at_s in range(1, 60):
            rebalance_driver.one_pass(row.pk, after(at_s))
            for stack in lab.listed():
                assert [status for _, status in stack.values()].count("draining") <= 1
                ready = {role for role, status in stack.values() if status == "ready"}
                assert ready == {"prefill", "decode"}
            assert sum(lab.counts()) == 4
    row.refresh_from_db()
    assert (row.state, lab.counts(), lab.settled()) == ("done", (1, 3), True)
    moved = row.moves.order_by("seq").values_list("seq", "instance", "step")
    assert list(moved) == [(1, "small/pd/slow-1", "done"), (2, "small/pd/slow-3", "done")]


def test_roles_that_are_there_already_move_nothing(lab: LabStack, fleet: Fleet) -> None:
    row = drive(open_for(fleet, (2, 2)), 1.0)
    assert (row.state, row.moves.count()) == ("done", 0)


def test_a_busy_instance_is_drained_before_it_flips(lab: LabStack, fleet: Fleet) -> None:
    """S-32: seven requests run on it; each is answered, then it changes."""
    lab.load(14, output_tokens=1_500)
    row = drive(open_for(fleet, (3, 1)), 1.0)
    move = move_of(row)
    assert (move.instance, move.step, move.requests) == ("small/pd/slow-3", "drain", 7)
    assert row.waiting_for == "small/pd/slow-3 still has 7 requests."
    assert lab.roles()["slow-3"] == "decode"
    assert [stack["slow-3"] for stack in lab.listed()] == [("decode", "draining")] * 2
    assert lab.answers() == [200] * 14
    finish(row, 2.0)
    assert (row.state, lab.counts()) == ("done", (3, 1))
    assert lab.settled()


def test_an_instance_that_does_not_drain_in_time_keeps_its_role(
    lab: LabStack, fleet: Fleet
) -> None:
    """S-32: the timeout restores the old role, and the audit tells both."""
    lab.load(14, output_tokens=1_500)
    row = drive(open_for(fleet, (3, 1), drain_timeout_s=30.0), 1.0)
    finish(row, 31.5)
    assert row.state == "failed"
    assert row.reason == "small/pd/slow-3 did not drain within 30 s: 7 requests left"
    move = move_of(row)
    assert (move.step, move.error) == ("restored", row.reason)
    assert (lab.counts(), lab.settled()) == ((2, 2), True)
    assert steps_of(row) == ["cordon", "drain", "restore", "restored"]
    assert verbs_of(row) == ["rebalance.start", "rebalance.abort", "rebalance.end"]
    assert lab.answers() == [200] * 14


def test_a_switch_the_engine_refuses_never_shows_in_a_listing(lab: LabStack, fleet: Fleet) -> None:
    """S-27: at full budget, P + D stays what there is, pass by pass."""
    lab.engines["slow-1"].roles = ("prefill",)
    row = open_for(fleet, (1, 3))
    for at_s in range(40):
        rebalance_driver.one_pass(row.pk, after(at_s))
        assert lab.counts() == (2, 2)
        for stack in lab.listed():
            assert len(stack) == 4
            assert stack["slow-1"][0] == "prefill"
            ready = [role for role, status in stack.values() if status == "ready"]
            assert {"prefill", "decode"} <= set(ready)
    row.refresh_from_db()
    assert row.state == "failed"
    assert "/pd_role_switch: answers 400" in row.reason
    assert (move_of(row).step, lab.settled()) == ("restored", True)


def test_an_engine_that_is_never_idle_by_its_own_word_is_given_the_drain_timeout(
    lab: LabStack, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(new_role: str) -> str:
        raise RoleRefused("KV is still leaving", busy=True)

    monkeypatch.setattr(lab.engines["slow-1"], "switch_role", busy)
    row = open_for(fleet, (1, 3), drain_timeout_s=30.0)
    for at_s in (1.0, 2.0, 30.0):
        drive(row, at_s)
    assert (row.state, move_of(row).step) == ("open", "switch")
    assert row.waiting_for.endswith("/pd_role_switch: answers 409: KV is still leaving")
    finish(row, 31.5)
    assert (row.state, lab.counts(), lab.settled()) == ("failed", (2, 2), True)


def test_an_engine_that_falls_back_is_not_put_to_work_in_the_new_role(
    lab: LabStack, fleet: Fleet
) -> None:
    row = open_for(fleet, (1, 3))
    at_s = walk(row, 1.0, lambda: row.moves.filter(step="verify").exists())
    lab.engines["slow-1"].role = "prefill"  # it restarted with its own configuration
    finish(row, at_s)
    assert row.state == "failed"
    assert row.reason == "small/pd/slow-1 went back to prefill after its switch"
    assert (lab.counts(), lab.settled()) == ((2, 2), True)


def test_a_gate_that_does_not_ack_is_waited_for_by_name(lab: LabStack, fleet: Fleet) -> None:
    row = open_for(fleet, (1, 3))
    ack(fleet, 1, at_s=1.0)
    ack(fleet, 1, at_s=-60.0, name="gw-2")  # long silent: it runs what it runs
    decide(fleet, (1, 3), at_s=1.0)
    row.decision = fleet.decisions.get(version=2)
    row.save()
    drive(row, 1.0)
    drive(row, 2.0)
    assert (row.state, move_of(row).step) == ("open", "verify")
    assert row.waiting_for == "Not every gate runs the plan yet: small/pd/gw-1 runs 1.1 of 1.2."
    assert lab.roles()["slow-1"] == "decode"
    opened = [stack["slow-1"] for stack in lab.listed()]
    assert opened == [("decode", "ready"), ("prefill", "draining")], "proven at one, held elsewhere"
    ack(fleet, 2, at_s=3.0)
    finish(row, 3.0)
    assert (row.state, lab.settled()) == ("done", True)


@pytest.mark.parametrize("step", STEPS)
def test_a_person_cancels_at_any_step(lab: LabStack, fleet: Fleet, step: str) -> None:
    """It is restored, or stays moved where the new role was already proven."""
    row = open_for(fleet, (1, 3))
    at_s = walk(row, 1.0, lambda: row.moves.filter(step=step).exists())
    asked = {"actor": "ada", "via": "rest", "reason": "not now", "now": after(at_s)}
    role_commands.cancel_rebalance(fleet="small", rebalance_id=row.pk, **asked)
    with pytest.raises(commands.Refused, match="is being given up already"):
        role_commands.cancel_rebalance(fleet="small", rebalance_id=row.pk, **asked)
    finish(row, at_s)
    assert (row.state, row.reason) == ("cancelled", "cancelled by ada: not now")
    moved = step == "uncordon"
    assert move_of(row).step == ("done" if moved else "restored")
    assert lab.counts() == ((1, 3) if moved else (2, 2))
    assert lab.settled()
    assert verbs_of(row) == ["rebalance.start", "rebalance.cancel", "rebalance.end"]
    with pytest.raises(commands.Refused, match="is cancelled already"):
        role_commands.cancel_rebalance(fleet="small", rebalance_id=row.pk, **asked)


def test_a_newer_plan_takes_over(lab: LabStack, fleet: Fleet) -> None:
    row = open_for(fleet, (1, 3))
    at_s = walk(row, 1.0, lambda: row.moves.filter(step="verify").exists())
    newer = decide(fleet, (3, 1), at_s=at_s)
    finish(row, at_s)
    assert row.state == "cancelled"
    assert row.reason == "plan 1.2 wants 3 prefill and 1 decode"
    assert (lab.counts(), lab.settled()) == ((2, 2), True)
    following = rebalance.newest(fleet)["pd"]
    assert (following.pk, following.decision) != (row.pk, row.decision)
    assert (following.decision, following.from_n_prefill) == (newer, 2)
    finish(following, at_s + 10.0)
    assert (following.state, lab.counts(), lab.settled()) == ("done", (3, 1), True)


def test_of_one_cluster_only_one_is_under_way(lab: LabStack, fleet: Fleet) -> None:
    row = open_for(fleet, (1, 3))
    assert open_for(fleet, (1, 3), at_s=1.0) == row
    assert Rebalance.objects.count() == 1


@pytest.mark.parametrize(
    ("roles", "cluster", "reason"),
    [
        ((0, 4), {}, "0 prefill is below min_prefill = 1 of pd"),
        ((4, 0), {}, "0 decode is below min_decode = 1 of pd"),
        ((1, 3), {"min_prefill": 2}, "1 prefill is below min_prefill = 2 of pd"),
        ((3, 3), {}, "3 + 3 is more than the 4 instances of pd"),
        ((1, 2), {}, "the routers of pd list 4 instances, the target is 1 + 2"),
        ((1, 3), {"pinned": True}, "pd is pinned in the scenario: its roles stay"),
        ((1, 3), {"control_urls": []}, "pd has no routers in the scenario"),
    ],
)
def test_what_must_not_be_is_refused_before_anything_moves(
    lab: LabStack, roles: tuple[int, int], cluster: dict[str, Any], reason: str
) -> None:
    row = finish(open_for(fleet_of(lab.controls, **cluster), roles), 1.0)
    assert row.state == ("cancelled" if cluster.get("pinned") else "failed")
    assert row.reason.startswith(reason)
    assert row.moves.count() == 0
    assert (lab.counts(), lab.settled()) == ((2, 2), True)


def test_the_last_ready_instance_of_a_role_is_not_taken(lab: LabStack, fleet: Fleet) -> None:
    row = open_for(fleet, (1, 3))
    lab.call(lambda: lab.worker(0, "slow-2").lease(60.0))
    drive(row, 1.0)
    assert row.moves.count() == 0
    assert row.waiting_for.startswith("small/pd/slow-2 is drained by somebody else")
    lab.call(lambda: lab.worker(0, "slow-2").ready())
    rebalance_driver.one_pass(row.pk, after(2.0))
    lab.call(lambda: lab.worker(1, "slow-2").lease(60.0))
    finish(row, 3.0)
    assert row.state == "failed"
    assert row.reason.endswith("is the last ready prefill instance it lists")
    lab.call(lambda: lab.worker(1, "slow-2").ready())
    assert (lab.counts(), lab.settled()) == ((2, 2), True)


def test_an_instance_one_stack_lists_wrongly_is_listed_right(lab: LabStack, fleet: Fleet) -> None:
    lab.worker(1, "slow-2").worker_type = "decode"
    row = finish(open_for(fleet, (2, 2)), 1.0)
    assert (row.state, lab.counts(), lab.settled()) == ("done", (2, 2), True)
    assert move_of(row).instance == "small/pd/slow-2"


def test_an_engine_somebody_switched_by_hand_counts_as_what_it_is(
    lab: LabStack, fleet: Fleet
) -> None:
    lab.engines["slow-2"].role = "decode"
    row = finish(open_for(fleet, (1, 3)), 1.0)
    assert (row.state, row.moves.count()) == ("done", 1)
    assert lab.roles()["slow-1"] == "prefill", "nothing but the listing had to change"
    assert (lab.counts(), lab.settled()) == ((1, 3), True)


def test_stacks_of_different_instances_are_not_one_cluster(lab: LabStack, fleet: Fleet) -> None:
    lab.listings[1].workers = lab.listings[1].workers[:3]
    row = finish(open_for(fleet, (1, 3)), 1.0)
    assert row.state == "failed"
    first, second = lab.controls
    assert row.reason == f"{first} lists small/pd/slow-4 and {second} does not"


def test_a_drain_that_lapsed_while_nobody_looked_is_begun_again(
    lab: LabStack, fleet: Fleet
) -> None:
    row = open_for(fleet, (1, 3))
    at_s = walk(row, 1.0, lambda: row.moves.filter(step="switch").exists())
    for stack in (0, 1):
        lab.call(lab.worker(stack, "slow-1")._expired)
    finish(row, at_s)
    assert (row.state, lab.counts(), lab.settled()) == ("done", (1, 3), True)


def test_a_drain_is_renewed_while_it_lasts(lab: LabStack, fleet: Fleet) -> None:
    lab.load(14, output_tokens=1_500)
    row = drive(open_for(fleet, (3, 1)), 1.0)
    lab.call(lambda: lab.worker(1, "slow-3").lease(5.0))
    drive(row, 2.0)
    lease_s = lab.call(lambda: lab.worker(1, "slow-3").lease_s)
    assert lease_s is not None
    assert lease_s > 20.0
    assert lab.answers() == [200] * 14


def test_what_cannot_be_reached_is_tried_until_there_is_no_hope(
    lab: LabStack, fleet: Fleet
) -> None:
    row = open_for(fleet, (1, 3), deadline_s=60.0)
    at_s = walk(row, 1.0, lambda: row.moves.filter(step="drain").exists())
    fleet_of((lab.controls[0], "http://127.0.0.1:1"))
    drive(row, at_s)
    assert row.state == "open"
    assert row.waiting_for.startswith("http://127.0.0.1:1/workers: does not answer")
    for later_s in (60.0, 600.0):
        drive(row, later_s)
        assert (row.state, row.ends_as) == ("aborting", "expired")
    drive(row, 661.0)
    assert row.state == "failed"
    assert row.reason.startswith("small/pd/slow-1 could not be restored: http://127.0.0.1:1/")


def test_two_workers_at_once_do_each_thing_once(lab: LabStack, fleet: Fleet) -> None:
    switched = []
    engine = lab.engines["slow-1"]
    plain = engine.switch_role
    engine.switch_role = lambda role: (switched.append(role), plain(role))[1]  # type: ignore[method-assign]
    row = open_for(fleet, (1, 3))
    failures = []

    def work() -> None:
        try:
            for at_s in range(1, 12):
                rebalance_driver.run(row.pk, lambda at_s=at_s: after(at_s))
        except Exception as exc:
            failures.append(exc)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    finish(row, 20.0)
    assert not failures
    assert switched == ["decode"]
    assert steps_of(row) == [*STEPS, "done"]
    assert verbs_of(row) == ["rebalance.start", "rebalance.end"]
    assert (row.state, lab.counts(), lab.settled()) == ("done", (1, 3), True)


def test_one_that_fails_stops_no_other(
    lab: LabStack, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = open_for(fleet, (1, 3))
    Rebalance.objects.create(
        fleet=fleet,
        cluster="gone",
        from_n_prefill=1,
        from_n_decode=1,
        to_n_prefill=1,
        to_n_decode=1,
        requested_by="test",
        drain_timeout_s=1.0,
        created_at=after(0),
        deadline_at=after(60),
        updated_at=after(0),
    )
    plain = rebalance_driver.run

    def run(pk: int, clock: Any) -> None:
        if pk == row.pk:
            raise RuntimeError("boom")
        plain(pk, clock)

    monkeypatch.setattr(rebalance_driver, "run", run)
    rebalance_driver.drive(lambda: after(1.0))
    other = Rebalance.objects.get(cluster="gone")
    assert (other.state, other.reason) == ("failed", "the scenario has no PD cluster gone")
    row.refresh_from_db()
    assert row.state == "open"


def test_the_task_runs_each_second_and_a_burst_of_them_runs_once(
    lab: LabStack, fleet: Fleet
) -> None:
    entry = celery.conf.beat_schedule["routing.rebalance"]
    assert entry["task"] == tasks.rebalance.name
    assert entry["options"]["expires"] < entry["schedule"] == 1.0
    row = open_for(fleet, (2, 2))
    tasks.rebalance()
    row.refresh_from_db()
    assert row.state != "open"


def test_routers_that_are_slow_keep_one_thread_and_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ticks run in the same few threads: a second pass while one waits has nothing to do."""
    passes = []

    def slow(clock: object) -> None:
        passes.append("begun")
        if len(passes) == 1:
            tasks.rebalance()

    monkeypatch.setattr(rebalance_driver, "drive", slow)
    tasks.rebalance()
    assert len(passes) == 1
    tasks.rebalance()
    assert len(passes) == 2, "the next one after it has"


def test_every_act_is_told_in_the_audit_by_the_scheduler(lab: LabStack, fleet: Fleet) -> None:
    row = finish(open_for(fleet, (1, 3)), 1.0)
    rows = Action.objects.filter(target=f"rebalance {row.pk} of pd")
    assert {(a.actor, a.via, a.fleet) for a in rows} == {("system", "scheduler", "small")}
    started = rows.get(verb="rebalance.start")
    assert started.before == {"n_prefill": 2, "n_decode": 2}
    assert started.after == {"n_prefill": 1, "n_decode": 3}
    assert rows.get(verb="rebalance.end").after == {"state": "done"}
