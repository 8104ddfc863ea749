"""S-56: back to an earlier plan, by REST and by page; nothing overwrites it until it runs out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest
from django.test import Client
from django.utils import timezone

from routing import fleets
from routing.models import Action, Decision, Fleet, Hold
from tests.console.api_case import conforms, machine, person, send, strict
from tests.console.page_case import busy_fleet
from tests.console.test_pages import words
from tests.console.test_pages_changing import confirm, hidden
from tests.routing.cases import NOW, Gate, engines, feed, link, make_fleet, steady
from tests.routing.issuing import run_tick

pytestmark = pytest.mark.django_db

SPAN_S = 900


@pytest.fixture
def now() -> datetime:
    return timezone.now()


@pytest.fixture
def fleet(now: datetime) -> Fleet:
    """Twelve minutes of traffic before now and as much of it as the tests look at later."""
    made = make_fleet()
    now_s = (now - NOW).total_seconds()
    until_s = now_s + SPAN_S + 120
    feed(steady(Gate(), np.random.default_rng(1), since_s=now_s - 720, until_s=until_s))
    read_at = [*range(-100, 40, 10), *range(SPAN_S - 20, SPAN_S + 110, 10)]
    for seconds in read_at:
        at_s = now_s + seconds
        feed(engines(at_s=at_s))
        feed([link(at_s=at_s, tx_gbps=9.4, capacity_gbps=100.0, retransmit_ratio=0.0)])
    return made


def ticks(fleet: Fleet, now: datetime, *seconds: range) -> Iterator[Decision]:
    """The plan in force after each tick."""
    for span in seconds:
        for second in span:
            run_tick(fleet, now + timedelta(seconds=second))
            plan = fleets.newest_adopted(fleet)
            assert plan is not None
            yield plan


def t_of(plan: Decision) -> int:
    return int(plan.plan["clusters"]["pd"]["threshold_tokens"])


def by_rest(decision: Decision) -> None:
    expires_at = timezone.now() + timedelta(seconds=SPAN_S)
    body = {"reason": "link flaps", "expires_at": expires_at.isoformat(), "owner": "ada"}
    path = f"/fleets/f1/decisions/{decision.pk}/rollback"
    response = send(machine("operate"), "post", path, body)
    assert response.status_code == 201, response.content
    template = "/fleets/{fleet}/decisions/{decision_id}/rollback"
    [hold] = conforms(response, template, "post")
    assert (hold["cluster"], hold["owner"], hold["threshold_tokens"]) == ("pd", "ada", 4000)


def by_page(decision: Decision) -> None:
    path = f"/fleets/f1/decisions/{decision.pk}/rollback/"
    operator = person("operator")
    response = confirm(operator, path, span_s=str(SPAN_S), reason="link flaps")
    assert response["Location"] == "/fleets/f1/"
    for page in ("/fleets/f1/", "/fleets/f1/fleet/"):
        found = words(operator.get(page).content.decode())
        assert "Held: t 4K tok in pd until" in found
        assert re.search(r"operator ?, [\w ]+ ?: Roll back to plan 1.1: link flaps", found)


@pytest.mark.parametrize("roll_back", [by_rest, by_page])
def test_a_plan_rolled_back_to_stays_until_it_runs_out(
    fleet: Fleet, now: datetime, roll_back: Any
) -> None:
    """S-56."""
    before = list(ticks(fleet, now, range(-90, 0, 9)))
    assert t_of(before[0]) == 4000
    assert t_of(before[-1]) > 5000, "the loop itself wants another t"
    roll_back(before[0])
    held = list(ticks(fleet, now, range(3, 30, 9), range(SPAN_S - 15, SPAN_S - 6, 4)))
    assert {t_of(plan) for plan in held} == {4000}
    assert held[0].version == before[-1].version + 1
    assert {plan.pk for plan in held} == {held[0].pk}, "one plan, pushed once"
    hold = Hold.objects.get()
    assert (hold.mode, hold.reason) == ("threshold", "Roll back to plan 1.1: link flaps")
    after = list(ticks(fleet, now, range(SPAN_S + 5, SPAN_S + 96, 9)))
    assert t_of(after[-1]) > 4000, "automatic again"
    placed, expired = Action.objects.filter(verb__startswith="hold.").order_by("id")
    assert (placed.verb, placed.target) == ("hold.place", f"hold {hold.pk} on pd")
    assert (expired.verb, expired.actor) == ("hold.expire", "system")


def test_the_page_says_first_what_rolling_back_would_do() -> None:
    fleet = busy_fleet()
    first = fleet.decisions.get(version=1)
    first.plan["clusters"]["pd"] |= {"n_prefill": 6, "n_decode": 2}
    first.save()
    found = words(
        person("operator").get(f"/fleets/f1/decisions/{first.pk}/rollback/").content.decode()
    )
    for sentence in (
        "pd goes from t 6K tok to t 4K tok with the next tick.",
        "remote share",
        "Not part of it: roles. pd had 6/2 in that plan and has 3/5 now",
        "Stops: choosing t and moving roles for pd until the hold ends",
        "Undo: release the hold from the fleet page, or let it run out",
    ):
        assert sentence in found
    assert not Hold.objects.exists()


@pytest.fixture
def first(request: pytest.FixtureRequest) -> Decision:
    return busy_fleet().decisions.get(version=1)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"reason": ""}, "reason"),
        ({"reason": "x" * 401}, "reason"),
        ({"owner": " "}, "owner"),
        ({"expires_at": (timezone.now() + timedelta(days=8)).isoformat()}, "expires_at"),
        ({"expires_at": (timezone.now() - timedelta(hours=1)).isoformat()}, "expires_at"),
        ({"mode": "always_local"}, "mode"),
    ],
)
def test_a_rollback_that_cannot_be_meant_is_refused_by_field(
    first: Decision, changes: dict[str, str], field: str
) -> None:
    soon = timezone.now() + timedelta(hours=1)
    body = {"reason": "x", "expires_at": soon.isoformat(), **changes}
    response = send(machine("operate"), "post", f"/fleets/f1/decisions/{first.pk}/rollback", body)
    assert response.status_code == 422
    assert list(strict(response)["errors"]) == [field]
    assert not Hold.objects.exists()


def test_there_is_no_rolling_back_to_advice_nor_over_a_hold(first: Decision) -> None:
    soon = (timezone.now() + timedelta(hours=1)).isoformat()
    body = {"reason": "x", "expires_at": soon}
    client, operator = machine("operate"), person("operator")

    def refused(decision: Decision, why: str) -> None:
        path = f"/fleets/f1/decisions/{decision.pk}/rollback"
        response = send(client, "post", path, body)
        assert (response.status_code, why in strict(response)["error"]) == (422, True)
        assert why in words(operator.get(f"{path}/").content.decode())
        posted = operator.post(f"{path}/", {"span_s": "3600", "reason": "x", "version": "1"})
        assert posted.status_code == 422

    refused(first.fleet.decisions.get(version=None), "was advice")
    assert (
        send(client, "post", f"/fleets/f1/decisions/{first.pk}/rollback", body).status_code == 201
    )
    refused(first, "already holds pd")
    assert Hold.objects.count() == 1


def test_of_two_clusters_both_are_held_or_none(first: Decision) -> None:
    clusters = first.plan["clusters"]
    clusters["pd-2"] = {**clusters["pd"], "threshold_tokens": 9000}
    first.save()
    body = {"reason": "x", "expires_at": (timezone.now() + timedelta(hours=1)).isoformat()}
    response = send(machine("operate"), "post", f"/fleets/f1/decisions/{first.pk}/rollback", body)
    assert response.status_code == 422, "the scenario has no pd-2"
    assert not Hold.objects.exists()


def test_a_rollback_decided_on_an_older_policy_is_a_conflict(first: Decision) -> None:
    operator: Client = person("operator")
    path = f"/fleets/f1/decisions/{first.pk}/rollback/"
    form = hidden(operator.get(path).content.decode())
    confirm(person("admin"), "/fleets/f1/mode/?to=paused", reason="incident 7")
    response = operator.post(path, {**form, "span_s": "3600", "reason": "x"})
    assert response.status_code == 409
    assert "You asked for ROLL BACK TO V1" in words(response.content.decode())
    assert not Hold.objects.exists()


def test_a_decision_of_another_fleet_is_not_found(first: Decision) -> None:
    make_fleet("f2")
    path = f"/fleets/f2/decisions/{first.pk}/rollback"
    assert send(machine("operate"), "post", path, {}).status_code == 404
    assert person("operator").get(f"{path}/").status_code == 404


def test_a_rollback_repeated_under_its_key_is_done_once(first: Decision) -> None:
    body = {"reason": "x", "expires_at": (timezone.now() + timedelta(hours=1)).isoformat()}
    path, client = f"/fleets/f1/decisions/{first.pk}/rollback", machine("operate")
    answers = [send(client, "post", path, body, **{"Idempotency-Key": "k"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert strict(answers[0]) == strict(answers[1])
    assert Hold.objects.count() == 1
    for longer in (
        {"expires_at": (timezone.now() + timedelta(hours=9)).isoformat()},
        {"reason": "y"},
    ):
        response = send(client, "post", path, {**body, **longer}, **{"Idempotency-Key": "k"})
        assert (response.status_code, strict(response)["code"]) == (422, "key_reused")
    other = first.fleet.decisions.get(version=2)
    path = f"/fleets/f1/decisions/{other.pk}/rollback"
    response = send(client, "post", path, body, **{"Idempotency-Key": "k"})
    assert (response.status_code, strict(response)["code"]) == (422, "key_reused")
