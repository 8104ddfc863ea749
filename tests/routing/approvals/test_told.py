"""Pages of every fleet are told when something begins to wait, and when it no longer does."""

from __future__ import annotations

from typing import Any

import pytest

from routing import announce
from routing.approvals import proposals
from tests.routing.approvals.case import BOB, approve, hold, limit, proposed
from tests.routing.cases import after, make_fleet

pytestmark = pytest.mark.django_db

EVERYWHERE = [{"type": "proposal", "fleet": "f1"}, {"type": "proposal", "fleet": "f2"}]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(announce, "publish_all", said.extend)
    return said


def test_it_is_told_once_when_it_opens_and_when_it_ends(
    told: list[dict[str, Any]],
    django_capture_on_commit_callbacks: Any,
) -> None:
    make_fleet("f1")
    make_fleet("f2")
    limit({"hold_s": 600.0})
    with django_capture_on_commit_callbacks(execute=True):
        row = proposed(hold)
    assert told == EVERYWHERE
    with django_capture_on_commit_callbacks(execute=True):
        assert proposed(hold) == row
    assert told == EVERYWHERE, "the same, asked for again, is nothing new"
    with django_capture_on_commit_callbacks(execute=True):
        proposals.reject(proposal_id=row.pk, now=after(60.0), **BOB)
    assert told == EVERYWHERE * 2
    with django_capture_on_commit_callbacks(execute=True):
        proposed(hold, for_s=7200.0)
        proposals.expire(after(10 * 86400.0))
    assert told == EVERYWHERE * 4


def test_what_is_approved_is_told(
    told: list[dict[str, Any]],
    django_capture_on_commit_callbacks: Any,
) -> None:
    make_fleet("f1")
    limit({"hold_s": 600.0})
    row = proposed(hold)
    with django_capture_on_commit_callbacks(execute=True):
        assert approve(row).state == "done"
    assert EVERYWHERE[0] in told
