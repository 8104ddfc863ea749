"""A job that reaches too far waits for a second person, once or whenever it is due."""

from __future__ import annotations

from typing import Any

import pytest

from routing.approvals import proposals
from routing.approvals.models import Proposal
from routing.jobs import runs
from routing.jobs.models import JobRun
from routing.models import Action, Fleet, Hold, Policy
from tests.routing import test_rebalance_by_hand as by_hand
from tests.routing.approvals.case import BOB, limit, proposed
from tests.routing.cases import after, make_fleet
from tests.routing.jobs.case import ADVISE, BY, MORNING, put

pytestmark = pytest.mark.django_db

HALF_HOUR_S = 1800.0
HOLD = {"kind": "plan", "mode": "threshold", "threshold_tokens": 9000, "for_s": 36_000}


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet()


def work(at_s: float) -> list[tuple[str, str]]:
    runs.work(lambda: after(at_s))
    return list(JobRun.objects.order_by("due_at", "pk").values_list("state", "text"))


def decided(decide: Any = proposals.approve, *, at_s: float = 1900.0) -> Proposal:
    row = Proposal.objects.get(state="open")
    return decide(proposal_id=row.pk, now=after(at_s), **BOB)  # type: ignore[no-any-return]


def test_its_run_waits_and_is_done_when_somebody_approves(fleet: Fleet) -> None:
    put(ADVISE | {"do": HOLD})
    limit({"hold_s": 3600.0})
    [(state, text)] = work(HALF_HOUR_S)
    assert (state, "asked for a second person: proposal" in text) == ("asking", True)
    assert work(HALF_HOUR_S + 20.0)[0][0] == "asking"
    assert not Hold.objects.exists()
    assert decided().asked_by == "job advise"
    [(state, text)] = work(1905.0)
    assert (state, text.startswith("approved by bob: proposal")) == ("done", True)
    placed, run = Hold.objects.get(), JobRun.objects.get()
    assert (placed.owner, run.hold) == ("job advise", placed.pk)
    assert Action.objects.get(verb="hold.place").after["approved_by"] == "bob"


def test_a_run_that_is_rejected_fails_with_the_reason(fleet: Fleet) -> None:
    put(ADVISE | {"do": HOLD})
    limit({"hold_s": 3600.0})
    work(HALF_HOUR_S)
    decided(proposals.reject)
    [(state, text)] = work(1905.0)
    assert state == "failed"
    assert text.endswith("is rejected: looks right")


def test_who_wrote_the_job_is_not_its_second_person(fleet: Fleet) -> None:
    put(ADVISE | {"do": HOLD})
    limit({"hold_s": 3600.0})
    work(HALF_HOUR_S)
    row = Proposal.objects.get()
    with pytest.raises(proposals.Refused, match="somebody else"):
        proposals.approve(proposal_id=row.pk, now=after(1900.0), **{**BOB, "actor": BY["actor"]})


def test_one_run_waits_at_a_time(fleet: Fleet) -> None:
    put(ADVISE | {"do": HOLD})
    limit({"hold_s": 3600.0})
    work(HALF_HOUR_S)
    JobRun.objects.create(job="advise", fleet="f1", due_at=after(1810.0))
    assert work(1811.0)[-1] == (
        "skipped",
        "the run before it still waits for a second person",
    )


def test_roles_that_were_approved_are_followed_to_their_end() -> None:
    by_hand.fleet.__wrapped__()  # type: ignore[attr-defined]
    put(MORNING | {"when": ADVISE["when"] | {"at": "13:01"}}, now=after(25.0))
    limit({"instances_moved": 1})
    assert work(60.0)[0][0] == "asking"
    decided(at_s=65.0)
    assert work(66.0)[0][0] == "moving"
    assert Hold.objects.get().n_prefill == 5


def test_a_version_that_was_approved_runs_without_being_asked_again(fleet: Fleet) -> None:
    limit({"changes": ["jobs", "activate"], "hold_s": 3600.0})
    proposed(put, ADVISE | {"do": HOLD})
    decided(at_s=60.0)
    assert work(HALF_HOUR_S)[0][0] == "done"
    placed = Action.objects.get(verb="hold.place")
    assert (placed.actor, placed.after["approved_by"]) == ("job advise", "bob")
    assert not Proposal.objects.filter(state="open").exists()
    runs.run_now(name="advise", now=after(2000.0), **BY)
    Hold.objects.all().delete()
    assert work(2001.0)[-1][0] == "asking", "at another time than was approved"


def test_the_kill_switch_of_a_job_waits_for_nobody(fleet: Fleet) -> None:
    put(ADVISE)
    limit({"changes": ["activate", "policy", "jobs"]})
    assert work(HALF_HOUR_S) == [("done", "f1 is advisory")]
    assert Policy.objects.get().mode == "advisory"
