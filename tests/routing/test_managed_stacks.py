"""S-31 from the router's own port to the loop: a real stack, changed behind the console's back."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from routing import (
    commands,
    fleets,
    managed,
    managed_work,
    router_commands,
    scheduler,
)
from routing.adapters.registry import surface_of
from routing.fleets import scenario_of
from routing.models import Fleet, ManagedRouter
from tests.routing.cases import NOW, after, scenario
from tests.routing.lab_stack import FLEET, LabStack
from tests.routing.routers_case import CAN, FakeRouter, clock, cycle, fleet_of, two_and_two

BY: dict[str, Any] = {"actor": "ada", "via": "test", "reason": "by hand"}


@pytest.fixture
def small(lab: LabStack) -> Fleet:
    document = copy.deepcopy(scenario(FLEET))
    document["clusters"][1] |= {
        "instances": 4,
        "start": {"n_prefill": 2, "threshold_tokens": 4000},
        "control_urls": list(lab.controls),
    }
    return commands.create_fleet(
        scenario=document, mode="active", actor="test", via="test", reason="", now=NOW
    )


def rows(fleet: Fleet, at_s: float) -> list[ManagedRouter]:
    managed_work.reconcile(clock(at_s))
    return list(ManagedRouter.objects.filter(fleet=fleet).order_by("name"))


@pytest.mark.django_db(transaction=True)
def test_a_worker_drained_by_hand_shows_at_the_stack_that_was_told_and_is_put_back(
    lab: LabStack, small: Fleet
) -> None:
    first, second = rows(small, 0.0)
    assert [row.state for row in (first, second)] == ["sync", "sync"]
    listed = {url: entry["role"] for url, entry in first.desired.items()}
    assert listed.items() >= {lab.url(name): role for name, role in lab.roles().items()}.items()
    place = scenario_of(small).cluster("pd")
    assert place is not None
    named = managed.instances(first, place)
    assert named == {lab.url(name): name for name in lab.roles()}, "not those of the remote side"
    url = lab.url("slow-2")
    surface_of("stack", {"url": lab.controls[0], "lease_s": 600.0}).cordon(url)
    first, second = rows(small, 2.0)
    assert (first.state, second.state) == ("drifted", "sync")
    assert first.findings == [f"sends nothing new to {url}, which should take it"]
    router_commands.override(
        fleet=FLEET, router_id=first.pk, if_version=first.version, now=after(3.0), **BY
    )
    first, _ = rows(small, 4.0)
    assert (first.operation["state"], first.state) == ("applied", "sync")
    assert lab.settled()


@pytest.mark.django_db
def test_the_loop_counts_roles_as_routers_list_them_where_they_are_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S-31, its last part."""
    one = two_and_two(can=CAN)
    other = two_and_two(url="http://127.0.0.1:9301")
    fleet = fleet_of(monkeypatch, one, other, role_switch="label")
    cycle(fleet, 0.0)

    def observed(at_s: float) -> tuple[int, int]:
        cycle(fleet, at_s)
        tick = scheduler.run_tick(fleet.pk, now=after(at_s), tick_s=2.0)
        assert tick is not None
        seen = tick.observed["pd"]["pd"]
        return seen["n_prefill"], seen["n_decode"]

    def relabel(router: FakeRouter) -> None:
        for url in [url for url, w in router.listed.items() if w.role == "decode"][:1]:
            router.put(url, "prefill")

    assert observed(2.0) == (2, 2)
    relabel(one)
    assert observed(4.0) == (0, 0), "they disagree: what engines report stands, and none is read"
    relabel(other)
    assert observed(6.0) == (3, 1), "changed by hand at both: drift is shown, and counted"
    assert fleets.newest_adopted(fleet) is not None
    states = ManagedRouter.objects.values_list("state", flat=True)
    assert set(states) == {"drifted"}
