"""Whole moves of roles over the real programs: under load, and with workers that are killed."""

from __future__ import annotations

import time

import pytest

from routing.models import Fleet, Rebalance
from routing.rebalance import ACTIVE
from tests.peers.routers import Routed
from tests.routing.mortal_workers import Workers
from tests.routing.rebalancing import STEPS, drive, move_of, open_for, steps_of, verbs_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]

WITHIN_S = 60.0


def listed(routed: Routed) -> dict[str, tuple[str | None, str]]:
    """By name: the role and the status that the router shows."""
    names = {url: name for name, url in routed.engines.urls.items()}
    workers = routed.surface.read().workers
    return {names[url]: (worker.role, worker.status) for url, worker in workers.items()}


def end(row: Rebalance, since_s: float) -> Rebalance:
    """Run it as the task does, its clock ours, until it has ended."""
    began_s = time.monotonic()
    while row.state in ACTIVE:
        passed_s = time.monotonic() - began_s
        assert passed_s < WITHIN_S, row.waiting_for
        drive(row, since_s + passed_s)
        time.sleep(0.2)
    return row


def test_roles_move_there_and_back_under_load(routed: Routed, fleet: Fleet) -> None:
    before = listed(routed)
    with routed.engines.load(routed.url, routed.headers):
        there = end(open_for(fleet, (1, 3)), 1.0)
        moved = move_of(there).instance.rpartition("/")[2]
        assert there.state == "done", there.reason
        assert listed(routed)[moved] == ("decode", "ready")
        back = end(open_for(fleet, (2, 2), at_s=100.0), 101.0)
        assert back.state == "done", back.reason
    assert routed.engines.failures == []
    roles = [role for role, _ in listed(routed).values()]
    assert sorted(map(str, roles)) == ["decode"] * 2 + ["prefill"] * 2
    assert len(before) == len(roles) == 4
    for row in (there, back):
        assert steps_of(row) == [*STEPS, "done"]
        assert move_of(row).evidence["canary"]["ok"]
        assert move_of(row).evidence["idle"]["engine_requests"] == 0


@pytest.mark.parametrize("routed", ["smg", "sglang-router", "vllm-router"], indirect=True)
def test_workers_killed_on_the_way_leave_nothing_behind(routed: Routed, fleet: Fleet) -> None:
    """After the router was told, after the engine was, after it was told again."""
    workers = Workers()
    try:
        target = (1, 3)
        for n, dies_at in enumerate((4, 9, 12, 16)):
            row = open_for(fleet, target, at_s=100.0 * n)
            killed = workers.drive(row, at_s=100.0 * n + 1.0, dies_at=dies_at)
            if killed:
                workers.drive(row, at_s=100.0 * n + 50.0)
            assert (row.state, killed) == ("done", True), row.reason
            roles = [role for role, status in listed(routed).values() if status == "ready"]
            assert (roles.count("prefill"), roles.count("decode")) == target
            assert steps_of(row) == [*STEPS, "done"]
            assert verbs_of(row) == ["rebalance.start", "rebalance.end"]
            target = (2, 2) if target == (1, 3) else (1, 3)
        assert routed.engines.ask(routed.url, routed.headers) is None
    finally:
        workers.stop()
