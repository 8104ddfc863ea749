"""The whole long timescale in the lab: telemetry, tick, plan, rebalance, engines, and back."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from routing import commands, fleets, rebalance_driver, scheduler
from routing.models import Decision, Fleet, Rebalance, Tick
from tests.routing.cases import (
    Gate,
    after,
    feed,
    instance,
    link,
    scenario,
    steady,
)
from tests.routing.lab_stack import FLEET, LabStack, fleet_of

pytestmark = pytest.mark.django_db(transaction=True)

EVERY_S = 10.0


def requests(until_s: float, *, rate_rps: float = 2.5) -> None:
    gate = Gate(path=f"{FLEET}/pd/gw-1")
    feed(steady(gate, np.random.default_rng(3), until_s=until_s, rate_rps=rate_rps))


def scrape(lab: LabStack, at_s: float, *, silent: tuple[str, ...] = ()) -> None:
    """What agents would have stored: each engine with the role it has at this moment."""
    feed(
        instance(f"{FLEET}/pd/{name}", role=role, at_s=at_s)
        for name, role in lab.roles().items()
        if name not in silent
    )
    feed([instance(f"{FLEET}/prfaas/p{i}", at_s=at_s) for i in range(4)])
    feed([link(at_s=at_s, tx_gbps=9.0, capacity_gbps=100.0, retransmit_ratio=0.0)])


def run(lab: LabStack, since_s: float, until_s: float, **scraped: Any) -> list[Tick]:
    """Tick and task, every `EVERY_S`; between two ticks the task has its turn each second."""
    ticks = []
    at_s = since_s
    while at_s <= until_s:
        scrape(lab, at_s, **scraped)
        found = scheduler.run_tick(FLEET, now=after(at_s), tick_s=2.0)
        assert found is not None
        ticks.append(found)
        for second in range(1, int(EVERY_S)):
            rebalance_driver.drive(lambda at_s=at_s + second: after(at_s))
            assert sum(lab.counts()) == 4
        at_s += EVERY_S
    return ticks


def plan_roles(fleet: Fleet) -> tuple[int, int]:
    decision = fleets.newest_adopted(fleet)
    assert decision is not None
    cluster = decision.plan["clusters"]["pd"]
    return cluster["n_prefill"], cluster["n_decode"]


def test_a_gain_that_lasts_ends_in_engines_that_run_the_plan(lab: LabStack) -> None:
    fleet = fleet_of(lab.controls)
    requests(160.0)
    run(lab, 0.0, 50.0)
    assert lab.counts() == (2, 2)
    run(lab, 60.0, 150.0)
    assert plan_roles(fleet) == lab.counts() == (1, 3)
    assert lab.settled()
    moved = Rebalance.objects.get()
    assert moved.state == "done"
    reasons = list(Decision.objects.order_by("id").values_list("reason", flat=True))
    assert reasons.count("RoleImbalance") == 1
    assert "RolesFollowed" not in reasons


def test_s24_two_decoders_at_seventy_percent_stay_two(lab: LabStack) -> None:
    """S-24: 0.70 now, 1.40 with one: the state after the step decides."""
    fleet = fleet_of(lab.controls)
    commands.set_policy(
        fleet=FLEET,
        changes={"knobs": {"objective": "min_remote", "headroom_target": 1.2}},
        if_version=1,
        actor="ada",
        via="test",
        reason="",
        now=after(0.0),
    )
    requests(130.0, rate_rps=0.70 * 2 * 0.78125)
    ticks = run(lab, 0.0, 120.0)
    stages = {s["name"]: s["utilisation_ratio"] for s in ticks[-1].verdict["current"]["stages"]}
    assert stages["decode:pd"] == pytest.approx(0.70, abs=0.08)
    assert plan_roles(fleet) == lab.counts() == (2, 2)
    assert not Rebalance.objects.exists()


def test_s25_what_cannot_be_met_is_pending_then_expires_and_the_target_reverts(
    lab: LabStack,
) -> None:
    fleet = fleet_of(lab.controls)
    _deadline(60.0)
    requests(260.0)
    with _busy(lab, "slow-1", "slow-2"):
        run(lab, 0.0, 70.0)
        assert plan_roles(fleet) == (1, 3)
        pending = run(lab, 80.0, 110.0)
        assert Rebalance.objects.get().state == "open"
        assert not [t for t in pending if t.reason in ("RoleImbalance", "RolesGainPending")]
        run(lab, 120.0, 180.0)
    expired = Rebalance.objects.get()
    assert expired.state == "expired"
    assert plan_roles(fleet) == lab.counts() == (2, 2)
    assert lab.settled()
    assert Decision.objects.order_by("-id")[0].reason in ("RolesFollowed", "PrefillImbalance")
    assert Decision.objects.filter(reason="RolesFollowed").count() == 1


def test_s25_a_load_that_goes_away_calls_the_move_back(lab: LabStack) -> None:
    fleet = fleet_of(lab.controls)
    _deadline(3_000.0)
    requests(80.0)
    with _busy(lab, "slow-1", "slow-2"):
        run(lab, 0.0, 70.0)
        assert Rebalance.objects.get().state == "open"
        quiet = Gate(path=f"{FLEET}/pd/gw-1", epoch_s=after(75.0).timestamp())
        feed([quiet.sample(after(at_s).timestamp()) for at_s in range(1_400, 1_520, 5)])
        run(lab, 1_400.0, 1_500.0)
    cancelled = Rebalance.objects.get()
    assert cancelled.state == "cancelled"
    assert plan_roles(fleet) == lab.counts() == (2, 2)
    assert lab.settled()


def test_s28_in_an_outage_the_least_number_is_restored_and_nothing_else(lab: LabStack) -> None:
    """S-28: no reading of anything, D below its minimum: D is refilled, t and the rest stay."""
    fleet = fleet_of(lab.controls)
    scheduler.run_tick(FLEET, now=after(0.0), tick_s=2.0)
    before = fleets.newest_adopted(fleet)
    assert before is not None
    document = scenario(FLEET)
    document["clusters"][1] |= {
        "instances": 4,
        "start": {"n_prefill": 2, "threshold_tokens": 4000},
        "control_urls": list(lab.controls),
        "min_decode": 3,
    }
    commands.create_fleet(scenario=document, actor="ada", via="test", reason="", now=after(1.0))
    reasons = []
    for second in range(2, 40):
        if second % 2 == 0:
            tick = scheduler.run_tick(FLEET, now=after(second), tick_s=2.0)
            assert tick is not None
            reasons.append((tick.action, tick.reason))
        rebalance_driver.drive(lambda second=second: after(second + 0.5))
    assert lab.counts() == (1, 3)
    assert lab.settled()
    adopted = [reason for action, reason in reasons if action == "adopt"]
    assert adopted == ["FloorRestored"]
    now = fleets.newest_adopted(fleet)
    assert now is not None
    cluster = before.plan["clusters"]["pd"]
    assert now.plan["clusters"]["pd"] == cluster | {"n_prefill": 1, "n_decode": 3}


def test_s29_a_silent_instance_is_taken_as_full_and_said_to_be(lab: LabStack) -> None:
    """S-29: one of four silent: a decision is made and the assumption stands in its record."""
    fleet_of(lab.controls)
    requests(130.0)
    run(lab, 0.0, 40.0)
    ticks = run(lab, 50.0, 80.0, silent=("slow-2",))
    moved = next(t for t in ticks if t.reason == "RoleImbalance")
    assert moved.observed["pd"]["pd"]["prefill_silent"] == [f"{FLEET}/pd/slow-2"]
    assert any("slow-2" in said and "full" in said for said in moved.verdict["warnings"])


def _deadline(deadline_s: float) -> None:
    commands.set_policy(
        fleet=FLEET,
        changes={"knobs": {"rebalance_deadline_s": deadline_s, "drain_timeout_s": deadline_s}},
        if_version=1,
        actor="ada",
        via="test",
        reason="",
        now=after(0.0),
    )


def _busy(lab: LabStack, *names: str) -> ExitStack:
    """KV that nobody fetches stays on these instances until the stack is closed."""
    held = ExitStack()
    lab.call(lambda: [held.enter_context(lab.engines[name].holding(1_000)) for name in names])
    return held
