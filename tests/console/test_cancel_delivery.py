"""S-57: a plan that a gate does not acknowledge, on its decision's page and over REST."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from routing.models import Action, Decision, Delivery, RouterState
from tests.console.api_case import conforms, machine, person, send, strict
from tests.console.page_case import busy_fleet
from tests.console.test_pages import text, words
from tests.console.test_pages_changing import confirm

pytestmark = pytest.mark.django_db

GATE = "f1/pd/gw-2"


@pytest.fixture
def decision() -> Decision:
    """v2 runs on gw-1; gw-2 has been silent since before it was sent, two hours ago."""
    found = busy_fleet().decisions.get(version=2)
    now = timezone.now()
    rows = Delivery.objects.filter(decision=found, router=GATE)
    rows.update(state="sent", applied_at=None, sent_at=now - timedelta(hours=2))
    silent = RouterState.objects.filter(router=GATE)
    silent.update(last_seen_at=now - timedelta(hours=2, seconds=9), version_running=1)
    return found


def cancel_path(decision: Decision) -> str:
    return f"/fleets/f1/decisions/{decision.pk}/deliveries/cancel"


def test_the_decision_page_tells_who_is_waited_for_and_for_how_long(decision: Decision) -> None:
    found = text(person("viewer"), "decision", "f1", decision.pk)
    assert "waiting for 2 h" in found
    assert "sent silent since" in found
    assert ", runs v1" in found
    assert "Stop waiting" not in found, "a viewer changes nothing"
    assert "Stop waiting" in text(person("operator"), "decision", "f1", decision.pk)


def test_a_gate_too_silent_to_be_sent_the_newest_plan_is_named(decision: Decision) -> None:
    Delivery.objects.filter(router=GATE).delete()
    viewer = person("viewer")
    found = text(viewer, "decision", "f1", decision.pk)
    assert "pd/gw-2 not sent silent since" in found
    assert "it gets the newest plan when it is back" in found
    older = text(viewer, "decision", "f1", decision.fleet.decisions.get(version=1).pk)
    assert "not sent" not in older


def test_an_operator_stops_waiting_on_the_page(decision: Decision) -> None:
    operator = person("operator")
    path = f"{cancel_path(decision)}/?router={GATE}"
    found = words(operator.get(path).content.decode())
    for sentence in (
        "Changes: v2 counts as cancelled for pd/gw-2",
        "routes by v1 for as long as it lives",
        "when pd/gw-2 is back it is sent the newest plan, and that only",
    ):
        assert sentence in found
    assert confirm(operator, path, reason="").status_code == 422
    response = confirm(operator, path, reason="rack is down")
    assert response["Location"] == f"/fleets/f1/decisions/{decision.pk}/"
    shown = text(operator, "decision", "f1", decision.pk)
    assert "cancelled operator: rack is down" in shown
    assert "applied 1/2, else cancelled" in shown
    assert "Stop waiting" not in shown
    again = words(operator.get(path).content.decode())
    assert "Nobody waits for pd/gw-2: v2 is cancelled there." in again
    action = Action.objects.get(verb="delivery.cancel")
    assert (action.actor, action.via, action.reason) == ("operator", "ui", "rack is down")


def test_an_operator_stops_waiting_over_rest(decision: Decision) -> None:
    client = machine("operate")
    body = {"router": GATE, "reason": "rack is down"}
    response = send(client, "post", cancel_path(decision), body)
    template = "/fleets/{fleet}/decisions/{decision_id}/deliveries/cancel"
    answer = conforms(response, template, "post")
    states = {router["router"]: router["state"] for router in answer["routers"]}
    assert (answer["state"], states[GATE]) == ("cancelled", "cancelled")
    assert Action.objects.get(verb="delivery.cancel").via == "rest"
    again = send(client, "post", cancel_path(decision), body)
    assert (again.status_code, list(strict(again)["errors"])) == (422, ["router"])


@pytest.mark.parametrize("missing", ["router", "reason"])
def test_router_and_reason_are_needed(decision: Decision, missing: str) -> None:
    body = {"router": GATE, "reason": "x"}
    del body[missing]
    response = send(machine("operate"), "post", cancel_path(decision), body)
    assert (response.status_code, list(strict(response)["errors"])) == (422, [missing])


def test_a_gate_that_was_never_sent_the_plan_has_no_page(decision: Decision) -> None:
    operator = person("operator")
    assert operator.get(f"{cancel_path(decision)}/?router=f1/pd/nobody").status_code == 404
    assert operator.get(f"{cancel_path(decision)}/").status_code == 404
