"""Instances that change their role together or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from routing import rebalance_driver
from routing.lab.engine import RoleRefused
from tests.routing import swapping_router
from tests.routing.cases import after
from tests.routing.lab_stack import LabStack, fleet_of, lab_stack
from tests.routing.rebalancing import STEPS, drive, finish, move_of, open_for, steps_of, to_step
from tests.routing.swapping_router import SwappingRouter, agree

pytestmark = pytest.mark.django_db(transaction=True)


def busy(new_role: str) -> str:
    raise RoleRefused("KV is still leaving", busy=True)


def never(new_role: str) -> str:
    raise RoleRefused("no graphs for it", busy=False)


class Group:
    """Four that prefill, of which slow-1 and slow-2 go together, and two that decode."""

    def __init__(self, lab: LabStack) -> None:
        self.lab = lab
        for name in ("slow-5", "slow-6"):
            lab.engines[name].role = "prefill"
            lab.worker(0, name).worker_type = "prefill"
        self.swapping = SwappingRouter(lab, lab.roles())
        self.fleet = fleet_of(
            (),
            instances=6,
            routers=[lab.routers()[0], self.swapping.entry()],
            groups={"pair": ["slow-1", "slow-2"]},
        )

    def settled(self, counts: tuple[int, int]) -> bool:
        return self.lab.counts() == counts and agree(self.lab, self.swapping)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with swapping_router.registered(), lab_stack(tmp_path, instances=6) as lab:
        yield Group(lab)


def test_a_group_is_drained_and_switched_together(group: Group) -> None:
    row = open_for(group.fleet, (2, 4))
    rebalance_driver.one_pass(row.pk, after(0.5))
    with group.lab.worker(0, "slow-2").prefilling():
        drive(row, 1.0)
        drive(row, 3.0)
        assert group.lab.counts() == (4, 2), "one is idle, and waits for the other"
        assert row.waiting_for == "small/pd/slow-2 still has 1 request."
    finish(row, 4.0)
    assert row.state == "done"
    assert group.settled((2, 4))
    moves = row.moves.order_by("seq").values_list("instance", "unit", "step")
    assert list(moves) == [
        ("small/pd/slow-1", "pair", "done"),
        ("small/pd/slow-2", "pair", "done"),
    ]
    for name in ("slow-1", "slow-2"):
        assert steps_of(row, name) == [*STEPS, "done"]


@pytest.mark.parametrize("refuses", [never, busy])
def test_of_a_group_all_or_none_change(group: Group, refuses: Callable[[str], str]) -> None:
    """The second member does not switch: the first, which has, is switched back."""
    group.lab.engines["slow-2"].switch_role = refuses  # type: ignore[method-assign]
    row = open_for(group.fleet, (2, 4), drain_timeout_s=30.0)
    at_s = to_step(row, "switch")
    finish(row, at_s) if refuses is never else drive(row, at_s)
    if refuses is busy:
        assert group.lab.counts() == (3, 3), "half of it, and both are held"
        assert {s for n, (_, s) in group.lab.listed()[0].items() if n in ("slow-1", "slow-2")} == {
            "draining"
        }
        finish(row, at_s + 31.0)
    assert row.state == "failed"
    assert group.settled((4, 2))
    assert set(row.moves.values_list("step", flat=True)) == {"restored"}


def test_roles_that_would_split_a_group_are_refused(group: Group) -> None:
    """One of four can go; with both others kept in a group too, none can."""
    row = finish(open_for(group.fleet, (3, 3)), 1.0)
    assert (row.state, move_of(row).unit) == ("done", "")
    assert move_of(row).instance == "small/pd/slow-5"
    document = group.fleet.scenario["clusters"][1]
    groups = {"pair": ["slow-1", "slow-2"], "odd": ["slow-3", "slow-4", "slow-5", "slow-6"]}
    for name in ("slow-3", "slow-4", "slow-5", "slow-6"):
        group.lab.engines[name].role = "prefill"
        group.lab.worker(0, name).worker_type = "prefill"
        group.swapping.workers[group.lab.url(name)] = "prefill"
    for name in ("slow-1", "slow-2"):
        group.lab.engines[name].role = "decode"
        group.lab.worker(0, name).worker_type = "decode"
        group.swapping.workers[group.lab.url(name)] = "decode"
    fleet = fleet_of((), instances=6, routers=document["routers"], groups=groups)
    row = finish(open_for(fleet, (3, 3), at_s=20.0), 21.0)
    assert (row.state, row.reason) == ("failed", "no whole groups of pd leave 3 prefill of 4")
    assert row.moves.count() == 0
