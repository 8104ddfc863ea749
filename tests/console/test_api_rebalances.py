"""Moves of roles over REST: seen, narrowed, given up with a reason."""

from __future__ import annotations

import pytest
from django.test import Client

from routing import rebalance
from routing.models import Action, Fleet, Rebalance
from routing.rebalance import PlannedMove
from tests.console.api_case import conforms, machine, send, strict
from tests.routing.cases import after, make_fleet
from tests.routing.rebalancing import open_for

pytestmark = pytest.mark.django_db

LIST = "/fleets/f1/rebalances"
LIST_TEMPLATE = "/fleets/{fleet}/rebalances"
ONE = "/fleets/{fleet}/rebalances/{rebalance_id}"


@pytest.fixture
def operator() -> Client:
    return machine("operate")


@pytest.fixture
def row(fleet: Fleet) -> Rebalance:
    opened = open_for(fleet, (1, 3))
    moves = [PlannedMove(f"f1/pd/p{i}", "http://127.0.0.1:1", "prefill", "decode") for i in (1, 2)]
    rebalance.begin(opened, [[move] for move in moves], after(1.0), preflight={})
    seen = [(opened.moves.get(seq=1), 7, False)]
    rebalance.wait(opened, "Something.", after(2.0), seen=seen)
    return opened


def test_each_instance_is_shown_with_its_step(row: Rebalance, operator: Client) -> None:
    body = conforms(send(operator, "get", LIST), LIST_TEMPLATE)
    [seen] = body["results"]
    assert (seen["id"], seen["cluster"], seen["state"]) == (row.pk, "pd", "open")
    assert (seen["from_n_prefill"], seen["to_n_prefill"]) == (2, 1)
    assert (seen["waiting_for"], seen["decision"]) == ("Something.", row.decision_id)
    moves = [(m["instance"], m["step"], m["requests"]) for m in seen["moves"]]
    assert moves == [("f1/pd/p1", "cordon", 7), ("f1/pd/p2", "planned", None)]
    assert conforms(send(operator, "get", f"{LIST}/{row.pk}"), ONE) == seen


def test_those_under_way_can_be_asked_for_alone(
    fleet: Fleet, row: Rebalance, operator: Client
) -> None:
    assert strict(send(operator, "get", f"{LIST}?open=false"))["results"] == []
    rebalance.end(row, "done", "pd runs them", after(3.0))
    assert conforms(send(operator, "get", f"{LIST}?open=true"), LIST_TEMPLATE)["results"] == []
    assert len(strict(send(operator, "get", f"{LIST}?open=false"))["results"]) == 1
    [seen] = conforms(send(operator, "get", LIST), LIST_TEMPLATE)["results"]
    assert (seen["state"], seen["reason"]) == ("done", "pd runs them")


def test_cancelling_restores_and_is_audited_once(row: Rebalance, operator: Client) -> None:
    path = f"{LIST}/{row.pk}/cancel"
    body = conforms(
        send(operator, "post", path, {"reason": "maintenance"}), f"{ONE}/cancel", "post"
    )
    assert (body["state"], body["ends_as"]) == ("aborting", "cancelled")
    assert body["reason"].endswith(": maintenance")
    assert body["moves"][0]["step"] == "restore"
    [action] = Action.objects.filter(verb="rebalance.cancel")
    assert (action.via, action.fleet, action.reason) == ("rest", "f1", "maintenance")
    again = send(operator, "post", path, {"reason": "maintenance"})
    assert again.status_code == 422
    assert "is being given up already" in conforms(again, f"{ONE}/cancel", "post")["error"]
    assert Action.objects.filter(verb="rebalance.cancel").count() == 1


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/fleets/f1/rebalances/999999/cancel", {}, 404),
        ("/fleets/f2/rebalances/{pk}/cancel", {}, 404),
        ("/fleets/f1/rebalances/{pk}/cancel", {"reason": "x" * 501}, 422),
        ("/fleets/f1/rebalances/{pk}/cancel", {"raeson": "x"}, 422),
    ],
)
def test_what_cannot_be_meant_changes_nothing(
    row: Rebalance, operator: Client, path: str, body: dict[str, str], status: int
) -> None:
    make_fleet("f2")
    assert send(operator, "post", path.format(pk=row.pk), body).status_code == status
    row.refresh_from_db()
    assert row.state == "open"


def test_who_may_only_read_cancels_nothing(row: Rebalance) -> None:
    reader = machine("read")
    assert send(reader, "get", f"{LIST}/{row.pk}").status_code == 200
    assert send(reader, "post", f"{LIST}/{row.pk}/cancel", {}).status_code == 403
    row.refresh_from_db()
    assert row.state == "open"
