"""A move of roles on the pages: how far it is, what it waits for, how it is given up."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from routing import rebalance
from routing.models import Action, Fleet, Rebalance, RoleMove
from tests.console.api_case import person
from tests.console.page_case import busy_fleet
from tests.console.test_pages import recent, text, words
from tests.console.test_pages_changing import confirm
from tests.routing.cases import feed

pytestmark = pytest.mark.django_db


@pytest.fixture
def fleet() -> Fleet:
    return busy_fleet()


def moving(fleet: Fleet, **changes: Any) -> Rebalance:
    """6/2 to 4/4 in pd, begun two hours ago: one has moved, one has drained for one."""
    now = timezone.now()
    facts = {
        "fleet": fleet,
        "cluster": "pd",
        "decision": fleet.decisions.get(version=2),
        **{"from_n_prefill": 6, "from_n_decode": 2, "to_n_prefill": 4, "to_n_decode": 4},
        "waiting_for": f"{fleet.pk}/pd/h20-5 still has 37 requests.",
        "requested_by": "system",
        "drain_timeout_s": 240.0,
        "created_at": now - timedelta(hours=2),
        "deadline_at": now + timedelta(hours=3, seconds=59),
        "updated_at": now,
    }
    row = Rebalance.objects.create(**{**facts, **changes})
    move(row, 1, "h20-4", step="done", finished_at=now)
    move(row, 2, "h20-5", step="drain", requests=37, step_since=now - timedelta(hours=1))
    return row


def move(row: Rebalance, seq: int, name: str, **facts: Any) -> RoleMove:
    return RoleMove.objects.create(
        rebalance=row,
        seq=seq,
        instance=f"{row.fleet_id}/{row.cluster}/{name}",
        url="http://engine",
        **{"from_role": "prefill", "to_role": "decode", **facts},
    )


def test_the_fleet_page_shows_each_instance_and_its_step(fleet: Fleet) -> None:
    moving(fleet)
    page = person("viewer").get("/fleets/f1/fleet/").content.decode()
    found = words(page)
    for expected in (
        "pd 6/2 → 4/4 prefill/decode moving 1 of 2 moved, for 2 h",
        "Now: pd/h20-5 still has 37 requests.",
        "Why: v2 , Raised t because",
        "Deadline in 3 h .",
        "pd/h20-4 prefill → decode Cordon , done Drain , done Switch , done Prove , done "
        "Open , done moved",
        "pd/h20-5 prefill → decode Cordon , done Drain , current Switch , next Prove , next "
        "Open , next it finishes what it has for 1 h 37 requests still on it",
    ):
        assert expected in found, expected
    assert page.count('aria-current="step"') == 1
    assert "Cancel…" not in page, "a viewer changes nothing"


AT_S = 1_764_500_000.0


def shown_by(
    name: str, role: str | None, status: str, requests: int | None = None
) -> dict[str, Any]:
    return {"name": name, "role": role, "status": status, "requests": requests}


def test_each_router_and_what_was_proven_is_shown(fleet: Fleet) -> None:
    warning = "3 prompts take the 1 left about 12 s"
    row = moving(
        fleet,
        preflight={"blast_radius": "f1/pd/h20-5 will decode.", "warnings": [warning]},
    )
    idle = {"since_s": AT_S, "at_s": AT_S + 2, "engine_requests": 0, "router_requests": {"u": None}}
    canary = {
        **{"router": "smg-2 (http://smg)", "at_s": AT_S, "n_served": 2, "n_failed": 0},
        **{"seen": True, "ok": True, "error": ""},
    }
    row.moves.filter(seq=1).update(
        unit="ep",
        routers={"u": shown_by("stack-1", "decode", "ready")},
        evidence={"idle": idle, "canary": canary},
    )
    routers = {
        "v": shown_by("stack-1", "prefill", "draining", 37),
        "u": shown_by("smg-2", None, "out"),
    }
    row.moves.filter(seq=2).update(routers=routers)
    found = text(person("viewer"), "fleet", "f1")
    for expected in (
        f"Before it: pd/h20-5 will decode. {warning}.",
        "pd/h20-4 prefill → decode with group ep",
        "stack-1 decode, ready Idle: the engine counted 0 requests from",
        "Canary: 2 requests served through smg-2 at",
        "this instance had a part in it.",
        "smg-2 taken out · stack-1 prefill, draining, 37 on it",
    ):
        assert expected in found, expected


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"error": "answers 503", "n_failed": 2}, "2 in a row: answers 503."),
        ({"seen": False}, "this instance had no part in it that shows."),
        ({"seen": None}, "its engine does not tell whether it had a part."),
    ],
)
def test_a_canary_says_how_much_it_proves(fleet: Fleet, change: dict[str, Any], says: str) -> None:
    row = moving(fleet)
    canary = {
        **{"router": "smg-2 (http://smg)", "at_s": AT_S, "n_served": 1, "n_failed": 0},
        **{"seen": True, "ok": True, "error": ""},
    }
    row.moves.filter(seq=2).update(step="verify", evidence={"canary": canary | change})
    assert says in text(person("viewer"), "fleet", "f1")


def test_where_no_canary_could_be_sent_it_is_said(fleet: Fleet) -> None:
    row = moving(fleet)
    row.moves.filter(seq=1).update(routers={"u": shown_by("stack-1", "decode", "ready")})
    assert "Canary: none, no router says where it serves." in text(person("viewer"), "fleet", "f1")


def test_the_overview_says_that_roles_move(fleet: Fleet) -> None:
    row = moving(fleet)
    viewer = person("viewer")
    found = text(viewer, "fleet-overview", "f1")
    assert "moving Roles of pd 6/2 → 4/4 , 1 of 2 moved, for 2 h" in found
    Rebalance.objects.filter(pk=row.pk).update(state="done", finished_at=timezone.now())
    assert "Roles of pd" not in text(viewer, "fleet-overview", "f1")


def test_the_decision_page_says_how_far_its_roles_are(fleet: Fleet) -> None:
    row = moving(fleet)
    viewer = person("viewer")
    page = text(viewer, "decision", "f1", row.decision_id)
    assert "moving pd 6/2 → 4/4, 1 of 2 moved, for 2 h pd/h20-5 still has 37 requests" in page
    ended_at = row.created_at + timedelta(minutes=5)
    Rebalance.objects.filter(pk=row.pk).update(state="failed", finished_at=ended_at, reason="No.")
    page = text(viewer, "decision", "f1", row.decision_id)
    assert "failed pd 6/2 → 4/4, 1 of 2 moved in 5 min No Steps" in page


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("done", "done 1 of 2 moved"),
        ("expired", "deadline passed 1 of 2 moved: it took too long"),
        ("failed", "failed 1 of 2 moved: it took too long"),
        ("cancelled", "cancelled 1 of 2 moved: it took too long"),
    ],
)
def test_what_has_ended_is_listed_with_its_outcome(fleet: Fleet, state: str, says: str) -> None:
    reason = "" if state == "done" else "it took too long"
    moving(fleet, state=state, finished_at=timezone.now(), reason=reason)
    found = text(person("operator"), "fleet", "f1")
    assert "No instance changes its role now." in found
    assert f"pd 6/2 → 4/4 {says}" in found
    assert "Cancel…" not in found


def test_an_instance_that_is_put_back_says_so_and_why(fleet: Fleet) -> None:
    row = moving(fleet, state="aborting", ends_as="expired", reason="its deadline passed")
    row.moves.filter(seq=2).update(step="restore", error="its deadline passed")
    found = text(person("operator"), "fleet", "f1")
    assert "being given up" in found
    assert "its deadline passed. It will end as: deadline passed." in found
    assert "pd/h20-5 prefill → decode gets its old role back" in found
    assert "Cancel…" not in found, "it is given up already"


@pytest.mark.parametrize(
    ("prefill", "decode", "failing", "says"),
    [
        (3, 5, 0, "pd 3/5 3/5 applied"),
        (5, 3, 0, "pd 3/5 5/3 not as planned"),
        (3, 4, 1, "pd 3/5 3/4 , 1 not read unknown: 1 not read"),
        (0, 0, 0, "pd 3/5 – no engine is read"),
    ],
)
def test_roles_as_planned_and_as_engines_report_them(
    fleet: Fleet, prefill: int, decode: int, failing: int, says: str
) -> None:
    feed(
        [
            *(recent(f"f1/pd/p{i}") for i in range(prefill)),
            *(recent(f"f1/pd/d{i}", role="decode") for i in range(decode)),
            *(recent(f"f1/pd/x{i}", state="failed") for i in range(failing)),
        ]
    )
    found = text(person("viewer"), "fleet", "f1")
    assert "Cluster Plan asks Engines report State" in found
    assert says.replace(" , ", ", ") in found


def test_cancelling_says_what_is_put_back_and_what_stays(fleet: Fleet) -> None:
    row = moving(fleet)
    move(row, 3, "h20-6", step="planned")
    operator = person("operator")
    path = f"/fleets/f1/rebalances/{row.pk}/cancel/"
    assert f'href="{path}"' in operator.get("/fleets/f1/fleet/").content.decode()
    found = words(operator.get(path).content.decode())
    for sentence in (
        "Stops: moving instances of pd towards 4 prefill and 4 decode.",
        "Goes on: pd/h20-4 stays decode: it has moved.",
        "Changes: pd/h20-5 (step drain, with 37 requests on it) is put back: prefill again",
        "Goes on: pd/h20-6 stays prefill: its move has not begun.",
    ):
        assert sentence in found
    assert confirm(operator, path, reason="").status_code == 422
    response = confirm(operator, path, reason="wrong hour")
    assert response["Location"] == "/fleets/f1/fleet/"
    row.refresh_from_db()
    assert (row.state, row.ends_as) == ("aborting", "cancelled")
    action = Action.objects.get(verb="rebalance.cancel")
    assert (action.actor, action.via, action.reason) == ("operator", "ui", "wrong hour")
    again = confirm(operator, path, reason="again")
    assert again.status_code == 422
    assert "being given up already" in words(again.content.decode())


def test_a_move_is_cancelled_only_in_its_own_fleet(fleet: Fleet) -> None:
    row = moving(busy_fleet("f2"))
    assert person("operator").get(f"/fleets/f1/rebalances/{row.pk}/cancel/").status_code == 404
    assert rebalance.newest(fleet) == {}
