"""What limits and freezes say of a document: it is judged by what stood before it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from routing.approvals import proposals
from routing.approvals.asking import Proposed
from routing.approvals.models import ApprovalLimits
from routing.declared.document import NotMeant
from routing.declared.state import read_state
from routing.models import Action, Fleet, Policy
from routing.windows.models import Window
from tests.routing.cases import after
from tests.routing.declared.case import applied, site, tried

pytestmark = pytest.mark.django_db


def document() -> dict[str, Any]:
    return copy.deepcopy(read_state().document)


def test_a_document_is_judged_by_the_freezes_that_stood_before_it() -> None:
    """One that it makes forbids nothing of it; one that it takes away still forbids the rest."""
    site()
    calm, frozen = document(), document()
    calm["policies"]["f1"]["knobs"]["t_dwell_s"] = 40
    calm["windows"]["now"] = {
        "kind": "freeze", "reason": "quiet", "when": {
            "zone": "UTC", "from": "2026-11-29 12:00", "to": "2026-11-29 13:00",
        },
    }  # fmt: skip
    assert [c.kind for c in applied(calm).changes] == ["policies", "windows"]
    frozen["policies"]["f1"]["knobs"]["t_dwell_s"] = 50
    frozen["fleets"]["f2"]["workload"]["rate_rps"] = 4.0
    before, rows = read_state(), Action.objects.count()
    for window in ({}, {"now": calm["windows"]["now"] | {"enabled": False}}):
        frozen["windows"] = window
        with pytest.raises(NotMeant) as refused:
            applied(frozen, prune=True)
        assert {each.path for each in refused.value.wrong} == {"fleets.f2", "policies.f1"}
        assert refused.value.is_only_frozen
        assert "frozen by now until 2026-11-29 13:00 UTC: quiet" in refused.value.message
        assert {("change", "policies"), ("change", "fleets")} <= {
            (change.action, change.kind) for change in refused.value.changes
        }
    assert (read_state(), Action.objects.count()) == (before, rows)
    # What is no change of the fleet is not frozen, and then the rest may be.
    applied({"windows": {"now": calm["windows"]["now"] | {"enabled": False}}})
    assert len(applied(frozen | {"windows": {}}).changes) == 2


def test_a_fleet_that_is_frozen_is_not_deleted() -> None:
    site()
    freeze = {"fleet": "f1", "kind": "freeze", "reason": "quiet", "of": ["people"], "when": {
        "zone": "UTC", "from": "2026-11-29 12:00", "to": "2026-11-29 13:00",
    }}  # fmt: skip
    applied({"windows": {"now": freeze}})
    only_f2 = {"fleets": {"f2": document()["fleets"]["f2"]}, "policies": {}}
    for trial in (applied, tried):
        with pytest.raises(NotMeant) as refused:
            trial(only_f2, prune=True)
        assert [(each.path, each.frozen) for each in refused.value.wrong] == [("fleets.f1", True)]
    assert (Fleet.objects.count(), Window.objects.count()) == (2, 3)


def test_limits_are_loosened_by_two_and_tightened_alone() -> None:
    site(limits={"changes": ["jobs"], "hold_s": 600})
    tighter, looser, none = ({"approval_limits": {"f1": limits}} for limits in (
        {"changes": ["jobs", "policy"], "hold_s": 300}, {"hold_s": 300}, {},
    ))  # fmt: skip
    applied(tighter)
    gone: dict[str, Any] = {"approval_limits": {}}
    for wanted, prune in ((looser, False), (none, False), (gone, True)):
        assert tried(wanted, prune=prune).needs_approval == ("it lets one person do more alone",)
        with pytest.raises(Proposed):
            applied(wanted, prune=prune)
    assert ApprovalLimits.objects.get().limits == tighter["approval_limits"]["f1"]
    with pytest.raises(Proposed) as asked:
        applied(gone, prune=True)
    done = proposals.approve(
        proposal_id=asked.value.kept().pk, actor="bob", via="test", reason="ok", now=after(1)
    )
    assert (done.state, done.text) == ("done", "")
    assert not ApprovalLimits.objects.exists()
    row = Action.objects.get(verb="approval_limits.delete")
    assert (row.actor, row.after["approved_by"]) == ("ada", "bob")


def test_a_fleet_is_judged_by_its_limits_though_they_go_along() -> None:
    site(limits={"changes": ["scenario"]})
    only_f2 = {"fleets": {"f2": document()["fleets"]["f2"]}}
    assert set(tried(only_f2, prune=True).needs_approval) == {
        "it changes what the fleet is made of",
        "it lets one person do more alone",
    }
    with pytest.raises(Proposed):
        applied(only_f2, prune=True)
    assert Fleet.objects.count() == 2


def test_a_proposal_waits_for_the_end_of_a_freeze() -> None:
    site(limits={"changes": ["policy"]})
    wanted = document()
    wanted["policies"]["f1"]["knobs"]["t_dwell_s"] = 50
    with pytest.raises(Proposed) as asked:
        applied(wanted)
    row = asked.value.kept()
    freeze = {"fleet": "f1", "kind": "freeze", "reason": "quiet", "when": {
        "zone": "UTC", "from": "2026-11-29 12:00", "to": "2026-11-29 12:10",
    }}  # fmt: skip
    applied({"windows": {"now": freeze}})
    by: dict[str, Any] = {"proposal_id": row.pk, "actor": "bob", "via": "test", "reason": ""}
    with pytest.raises(NotMeant, match="frozen by now"):
        proposals.approve(now=after(1), **by)
    row.refresh_from_db()
    assert row.state == "open"
    assert proposals.approve(now=after(601), **by).state == "done"
    assert Policy.objects.get(fleet="f1").knobs["t_dwell_s"] == 50
