"""Each command that may become a proposal, at its limit and beyond it."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from routing import commands, link_breakers, role_commands, router_commands
from routing.approvals import asking, limits_rows, proposals
from routing.approvals.models import ApprovalLimits, Proposal
from routing.declared import apply
from routing.jobs import jobs
from routing.jobs.models import Job
from routing.models import Action, Decision, Fleet, Hold, ManagedRouter, Policy, RouterState
from routing.refits import proposals as refits
from routing.refusals import Refused
from routing.windows import maintenance
from routing.windows.models import Maintenance
from tests.console.control_case import movable_fleet
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
from tests.routing.cases import NOW, after, make_fleet, scenario
from tests.routing.jobs.case import ADVISE, MORNING

pytestmark = pytest.mark.django_db


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet()


def test_several_changes_of_one_command_are_one_proposal_and_add_up() -> None:
    """Each hold of a roll-back would be within the limits."""
    fleet = busy_fleet()
    two = scenario("f1")
    two["clusters"].append({**two["clusters"][1], "name": "pd2"})
    two["links"].append({**two["links"][0], "to": "pd2"})
    two["workloads"] = [{**two["workload"], "cluster": c} for c in ("pd", "pd2")]
    del two["workload"]
    commands.create_fleet(scenario=two, now=NOW, **ANA)
    for name in ("pd", "pd2"):
        RouterState.objects.create(
            router=f"f1/{name}/x", fleet=fleet, cluster=name, state="running", last_seen_at=NOW
        )
    old, new = Decision.objects.filter(version__isnull=False).order_by("version")
    for row, mode in ((old, "always_local"), (new, "threshold")):
        plans = row.plan["clusters"]
        plans["pd"] |= {"mode": mode}
        plans["pd2"] = dict(plans["pd"])
        for each in plans.values():
            each["threshold_tokens"] = None if mode == "always_local" else 4000
        row.save()
    limit({"gates_switched": 3})
    row = proposed(
        router_commands.roll_back,
        decision_id=old.pk,
        owner="ana",
        expires_at=after(600.0),
        now=NOW,
        **ANA,
    )
    assert row.reach["figures"]["gates_switched"] == 4.0
    assert [change["verb"] for change in row.changes] == ["hold.place"] * 2
    ended = approve(row)
    assert (ended.state, Hold.objects.count()) == ("done", 2), ended.text
    assert len(ended.result["holds"]) == 2


def by_epoch() -> Any:
    return commands.raise_epoch(fleet="f1", now=NOW, **ANA)


def by_scenario() -> Any:
    return commands.create_fleet(scenario=scenario("f1", start=False), now=NOW, **ANA)


def by_breaker() -> Any:
    return link_breakers.reset(fleet=Fleet.objects.get(pk="f1"), link="prfaas->pd", now=NOW, **ANA)


def by_job() -> Any:
    return jobs.put(document=ADVISE, if_version=0, now=NOW, **ANA)


def by_maintenance() -> Any:
    return maintenance.plan(fleet="f1", link="prfaas->pd", ends_at=after(3600.0), now=NOW, **ANA)


def test_maintenance_is_extended_by_two_and_ended_sooner_by_one(fleet: Fleet) -> None:
    row = by_maintenance()
    limit({"changes": ["maintenance"]})
    who: dict[str, Any] = {"maintenance_id": row.pk, "if_version": None, "now": NOW, **ANA}
    asked = proposed(maintenance.extend, ends_at=after(7200.0), **who)
    maintenance.extend(ends_at=after(1800.0), **who)
    assert approve(asked).state == "failed", "it ends elsewhere by now"
    asked = proposed(maintenance.extend, ends_at=after(7200.0), **who)
    assert approve(asked).result == {"maintenance": row.pk}
    maintenance.end(**who)
    row.refresh_from_db()
    assert row.ends_at == NOW


def by_activation() -> Any:
    return commands.set_policy(fleet="f1", changes={"mode": "active"}, if_version=2, now=NOW, **ANA)


def by_remote() -> Any:
    return hold(mode="always_remote", threshold_tokens=None)


def by_extension() -> Any:
    hold_id = Hold.objects.get().pk
    return commands.extend_hold(hold_id=hold_id, expires_at=after(86_400.0), now=NOW, **ANA)


def started() -> bool:
    return "start" in Fleet.objects.get().scenario["clusters"][1]


@pytest.mark.parametrize(
    ("kind", "ask", "is_done"),
    [
        ("epoch", by_epoch, lambda: Fleet.objects.get().epoch == 2),
        (
            "scenario",
            by_scenario,
            lambda: "start" not in Fleet.objects.get().scenario["clusters"][1],
        ),
        ("breakers", by_breaker, lambda: Action.objects.filter(verb="breaker.reset").exists()),
        ("maintenance", by_maintenance, lambda: Maintenance.objects.exists()),
        ("jobs", by_job, lambda: Job.objects.exists()),
        ("activate", by_activation, lambda: Policy.objects.get().mode == "active"),
        ("always_remote", by_remote, lambda: Hold.objects.exists()),
    ],
)
def test_each_kind_of_change(
    fleet: Fleet, kind: str, ask: Callable[[], Any], is_done: Callable[[], bool]
) -> None:
    set_policy(mode="paused")
    limit({"changes": [kind]})
    row = proposed(ask)
    assert not is_done()
    assert [each["limit"] for each in row.beyond] == [kind]
    ended = approve(row)
    assert (ended.state, is_done()) == ("done", True), ended.text


def test_a_hold_is_judged_as_a_whole_when_it_is_extended(fleet: Fleet) -> None:
    """Else it would be stretched step by step."""
    row = hold(for_s=600.0)
    created = datetime.timedelta(hours=1)
    Hold.objects.update(created_at=NOW - created)
    limit({"hold_s": 7200.0})
    who: dict[str, Any] = {"hold_id": row.pk, "now": NOW, **ANA}
    commands.extend_hold(expires_at=after(3600.0), **who)
    asked = proposed(commands.extend_hold, expires_at=after(3601.0), **who)
    commands.extend_hold(expires_at=after(60.0), **who)
    assert approve(asked, at_s=1.0).state == "failed", "it ends elsewhere by now"


def test_roles_are_moved_within_the_limit_and_beyond_it() -> None:
    fleet = movable_fleet()
    limit({"share_moved": 0.125})
    now = datetime.datetime.now(datetime.UTC)
    asked: dict[str, Any] = {
        "fleet": "f1",
        "cluster": "pd",
        "expected": (3, 5),
        "expires_at": now + datetime.timedelta(minutes=10),
        "now": now,
        "key": "k1",
        **ANA,
    }
    row = proposed(role_commands.move_roles, to=(5, 3), **asked)
    assert row.reach["figures"] == {"instances_moved": 2.0, "share_moved": 0.25, "hold_s": 600.0}
    assert proposed(role_commands.move_roles, to=(5, 3), **asked) == row, "sent twice"
    ended = proposals.approve(proposal_id=row.pk, now=now, **BOB)
    placed = Hold.objects.get()
    assert (ended.state, ended.result) == ("done", {"hold": placed.pk}), ended.text
    assert (placed.n_prefill, placed.n_decode, placed.owner) == (5, 3, "ana")
    repeated = role_commands.move_roles(to=(5, 3), **asked)
    assert (repeated.repeated, repeated.hold) == (True, placed)
    commands.release_hold(hold_id=placed.pk, now=now, **ANA)
    role_commands.move_roles(to=(4, 4), **{**asked, "key": ""})
    assert fleet.holds.count() == 2


def test_roles_that_are_others_by_now_are_not_moved() -> None:
    fleet = movable_fleet()
    limit({"instances_moved": 0})
    now = datetime.datetime.now(datetime.UTC)
    row = proposed(
        role_commands.move_roles,
        fleet="f1",
        cluster="pd",
        to=(4, 4),
        expected=(3, 5),
        expires_at=now + datetime.timedelta(minutes=10),
        now=now,
        **ANA,
    )
    tick = fleet.ticks.order_by("-seq").first()
    assert tick is not None
    tick.observed["pd"]["pd"] |= {"n_prefill": 4, "n_decode": 4}
    tick.save()
    ended = proposals.approve(proposal_id=row.pk, now=now, **BOB)
    assert "4 prefill and 4 decode now; look at it again" in ended.text
    assert not Hold.objects.exists()


def test_a_router_is_overridden_by_two() -> None:
    fleet = movable_fleet()
    limit({"changes": ["routers"]})
    router = ManagedRouter.objects.get(fleet=fleet)
    asked: dict[str, Any] = {"fleet": "f1", "router_id": router.pk, "now": NOW, **ANA}
    row = proposed(router_commands.set_on_drift, on_drift="override", **asked)
    assert approve(row).state == "done"
    assert ManagedRouter.objects.get(fleet=fleet).on_drift == "override"
    router_commands.set_on_drift(on_drift="show", **asked)
    assert Proposal.objects.filter(state="open").count() == 0, "to show only is safer"


def test_what_may_be_proposed_can_be_carried_out() -> None:
    """Each command that may become a proposal is known by the name that the proposal has."""
    modules = (
        commands,
        role_commands,
        router_commands,
        link_breakers,
        jobs,
        limits_rows,
        apply,
        refits,
    )
    wrapped = {
        asking.name_of(found)
        for module in (*modules, apply, refits, maintenance)
        for found in vars(module).values()
        if getattr(found, "__wrapped__", None) and found.__module__ == module.__name__
    }
    assert wrapped == set(proposals.COMMANDS)


def test_what_a_larger_transaction_takes_back_is_kept_again(fleet: Fleet) -> None:
    """The answer of a request under a key is kept in one transaction with what it did."""
    limit(LONG)
    asked = None
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        try:
            hold()
        except asking.Proposed as found:
            asked = found
        raise ZeroDivisionError
    assert not Proposal.objects.exists()
    assert asked is not None
    assert asked.kept() == asked.kept() == Proposal.objects.get()


def test_an_approved_job_does_what_it_says_without_being_asked_again(fleet: Fleet) -> None:
    limit({"changes": ["jobs"], "hold_s": 60.0})
    hold_job = {"kind": "plan", "mode": "threshold", "threshold_tokens": 9000, "for_s": 3600}
    row = proposed(jobs.put, document=MORNING | {"do": hold_job}, if_version=0, now=NOW, **ANA)
    assert {each["limit"] for each in row.beyond} == {"jobs", "hold_s"}
    assert approve(row).result == {"job": "big-morning", "version": 1}


def test_limits_have_a_row_each_and_a_version(fleet: Fleet) -> None:
    assert limit(LONG).version == 1
    assert limit(LONG).version == 1, "nothing new"
    with pytest.raises(Refused, match="no such fleet"):
        limit(LONG, fleet="f9", if_version=None)
    with pytest.raises(Refused, match=r"limits\.hold"):
        limit({"hold": 1})
    assert ApprovalLimits.objects.count() == 1
