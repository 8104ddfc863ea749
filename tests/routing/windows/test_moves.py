"""A freeze of roles that begins while instances are being moved."""

from __future__ import annotations

import pytest

from routing.models import Fleet
from tests.routing.cases import after
from tests.routing.lab_stack import LabStack, fleet_of
from tests.routing.rebalancing import finish, open_for, to_step
from tests.routing.windows.case import FREEZE, put

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def fleet(lab: LabStack) -> Fleet:
    """Two instances too many prefill."""
    lab.engines["slow-3"].role = "prefill"
    for stack in (0, 1):
        lab.worker(stack, "slow-3").worker_type = "prefill"
    return fleet_of(lab.controls)


def freeze(fleet: Fleet, at_s: float) -> None:
    when = {"zone": "UTC", "from": "2026-11-29 12:00", "to": "2026-11-29 12:10"}
    put(FREEZE | {"fleet": fleet.pk, "of": ["roles"], "when": when}, now=after(at_s))


def test_the_instance_under_way_finishes_and_no_other_begins(lab: LabStack, fleet: Fleet) -> None:
    row = open_for(fleet, (1, 3))
    at_s = to_step(row, "drain")
    freeze(fleet, at_s)
    finish(row, at_s + 1.0)
    assert (row.state, row.reason) == (
        "cancelled",
        "pd is frozen by black-friday until 2026-11-29 12:10 UTC: peak trading; "
        "what moved before it stays",
    )
    assert lab.counts() == (2, 2), "one of two has moved, and stays"
    assert lab.settled()
    assert [move.step for move in row.moves.exclude(step="planned")] == ["done"]


def test_one_that_was_allowed_within_it_goes_on(lab: LabStack, fleet: Fleet) -> None:
    freeze(fleet, -1.0)
    row = open_for(fleet, (1, 3), at_s=1.0)
    finish(row, 2.0)
    assert row.state == "done"
    assert lab.counts() == (1, 3)


def test_the_last_instance_ends_the_move_as_done(lab: LabStack, fleet: Fleet) -> None:
    row = open_for(fleet, (2, 2))
    at_s = to_step(row, "drain")
    freeze(fleet, at_s)
    finish(row, at_s + 1.0)
    assert row.state == "done"
