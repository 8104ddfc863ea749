"""Whoever decides at the same moment, it is done once or not at all, and one is told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from routing.approvals import proposals
from routing.approvals.asking import Proposed
from routing.approvals.models import Proposal
from routing.models import Action, Hold
from routing.refusals import Refused
from tests.routing.approvals.case import ANA, BOB, LONG, hold, limit, proposed
from tests.routing.cases import after, make_fleet

pytestmark = pytest.mark.django_db(transaction=True)

CLEO: dict[str, Any] = {"actor": "cleo", "via": "test", "reason": "me too"}


def at_once(*acts: Callable[[], Any]) -> list[str]:
    """What became of each, when all begin together."""
    ready = threading.Barrier(len(acts))
    said: list[str] = [""] * len(acts)

    def act(i: int) -> None:
        ready.wait()
        try:
            said[i] = acts[i]().state
        except Proposed as found:
            said[i] = f"proposal {found.kept().pk}"
        except Refused as refused:
            said[i] = refused.message
        finally:
            connection.close()

    threads = [threading.Thread(target=act, args=(i,)) for i in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said


@pytest.fixture
def row() -> Proposal:
    make_fleet()
    limit(LONG)
    return proposed(hold)


def by(decide: Callable[..., Proposal], row: Proposal, who: dict[str, Any]) -> Callable[[], Any]:
    return lambda: decide(proposal_id=row.pk, now=after(60.0), **who)


def test_two_approve_at_once(row: Proposal) -> None:
    for _ in range(2):
        said = at_once(*(by(proposals.approve, row, who) for who in (BOB, CLEO, BOB, CLEO)))
        assert said.count("done") >= 1
        assert Hold.objects.count() == 1
        assert Action.objects.filter(verb="proposal.done").count() == 1
        assert all(word == "done" or word.startswith("is done already by") for word in said)


def test_approved_while_it_is_withdrawn(row: Proposal) -> None:
    said = at_once(
        by(proposals.approve, row, BOB),
        by(proposals.withdraw, row, ANA),
        by(proposals.reject, row, CLEO),
    )
    row.refresh_from_db()
    assert row.state in ("done", "withdrawn", "rejected")
    assert said.count(row.state) == 1
    assert Hold.objects.count() == (row.state == "done")
    assert Action.objects.filter(target=f"proposal {row.pk}").exclude(actor="ana").count() <= 1


def test_approved_while_it_runs_out(row: Proposal) -> None:
    def sweep() -> Proposal:
        proposals.expire(after(3600.0))
        return Proposal.objects.get()

    at_once(by(proposals.approve, row, BOB), sweep)
    row.refresh_from_db()
    assert Hold.objects.count() == (row.state == "done")
    assert row.state in ("done", "expired")


def test_a_form_sent_twice_at_once_is_one_proposal() -> None:
    make_fleet()
    limit(LONG)
    said = at_once(*(lambda: hold() for _ in range(4)))
    assert len(set(said)) == 1
    assert Proposal.objects.count() == 1
    assert Action.objects.filter(verb="proposal.open").count() == 1
