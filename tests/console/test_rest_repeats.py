"""Idempotency-Key: whatever acts takes one, and does once what is sent twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from routing.models import Action, Hold
from routing.rest import once
from routing.rest.models import Answer
from tests.console.api_case import machine, person, schema, send, strict
from tests.console.test_api_rights import ASKING, api_views
from tests.routing.cases import make_fleet

pytestmark = pytest.mark.django_db

BY_CONTENT = {("TraceList", "post")}
"""The same file is kept once."""


def acting() -> Iterator[tuple[str, str, Any]]:
    for path, view in api_views():
        for method in ("post", "put", "patch", "delete"):
            handler = getattr(view, method, None)
            if handler is not None and not path.endswith(tuple(ASKING)):
                yield path, method, handler


def test_whatever_acts_takes_a_key() -> None:
    missing = [
        f"{method.upper()} {path}"
        for path, method, handler in acting()
        if not getattr(handler, "once", False)
        and (handler.__qualname__.split(".")[0], method) not in BY_CONTENT
    ]
    assert not missing, "decorate them with routing.rest.once: " + ", ".join(missing)


def test_the_schema_says_so() -> None:
    operation = schema()["paths"]["/api/v1/fleets/{fleet}/holds"]["post"]
    assert "Idempotency-Key" in [each["name"] for each in operation["parameters"]]


def asked(**more: Any) -> dict[str, Any]:
    ends_at = (timezone.now() + timedelta(hours=1)).isoformat()
    return {"mode": "always_local", "reason": "x", "expires_at": ends_at, **more}


def test_the_second_request_is_given_the_answer_of_the_first() -> None:
    make_fleet()
    client, body = machine("operate"), asked()
    first = send(client, "post", "/fleets/f1/holds", body, **{"Idempotency-Key": "k"})
    again = send(client, "post", "/fleets/f1/holds", body, **{"Idempotency-Key": "k"})
    assert (first.status_code, again.status_code) == (201, 201)
    assert strict(first) == strict(again)
    assert again["Idempotent-Replayed"] == "true"
    assert "Idempotent-Replayed" not in first
    assert Hold.objects.count() == 1
    assert Action.objects.filter(verb="hold.place").count() == 1


def test_without_a_key_it_is_done_twice() -> None:
    make_fleet()
    client = machine("operate")
    for _ in range(2):
        answer = send(client, "post", "/fleets/f1/holds", asked(cluster="pd"))
        assert answer.status_code in (201, 422)
    assert Answer.objects.count() == 0


def test_a_precondition_that_held_once_holds_for_the_repetition() -> None:
    make_fleet()
    client = machine("operate")
    headers = {"Idempotency-Key": "k", "If-Match": '"1"'}
    body = {"mode": "paused", "reason": "x"}
    first = send(client, "patch", "/fleets/f1/policy", body, **headers)
    again = send(client, "patch", "/fleets/f1/policy", body, **headers)
    assert (first.status_code, again.status_code) == (200, 200)
    assert first["ETag"] == again["ETag"] == '"2"'
    stale = send(client, "patch", "/fleets/f1/policy", body, **{"If-Match": '"1"'})
    assert stale.status_code == 412


def test_what_has_no_body_is_repeated_without_one() -> None:
    make_fleet()
    client = machine("operate")
    body = {"link": "prfaas->pd", "reason": "x"}
    for _ in range(2):
        answer = send(client, "post", "/fleets/f1/breakers/reset", body, **{"Idempotency-Key": "k"})
        assert (answer.status_code, answer.content) == (204, b"")


@pytest.mark.parametrize("change", ["body", "address", "seen"])
def test_a_key_stands_for_one_request(change: str) -> None:
    make_fleet("f1"), make_fleet("f2")
    client, body = machine("operate"), asked()
    assert send(client, "post", "/fleets/f1/holds", body, **{"Idempotency-Key": "k"}).status_code
    headers = {"Idempotency-Key": "k", **({"If-Match": '"1"'} if change == "seen" else {})}
    other = {**body, "reason": "y"} if change == "body" else body
    place = "f2" if change == "address" else "f1"
    answer = send(client, "post", f"/fleets/{place}/holds", other, **headers)
    assert (answer.status_code, strict(answer)["code"]) == (422, "key_reused")
    assert Hold.objects.count() == 1


def test_a_key_is_its_holders_own() -> None:
    make_fleet()
    body = asked(cluster="pd")
    for client in (machine("operate"), person("operator")):
        send(client, "post", "/fleets/f1/holds", body, **{"Idempotency-Key": "k"})
    assert Answer.objects.count() >= 1
    assert Answer.objects.filter(holder__startswith="token").count() == 1


def test_a_refusal_is_not_kept() -> None:
    make_fleet()
    client = machine("operate")
    bad = asked(mode="threshold")
    answer = send(client, "post", "/fleets/f1/holds", bad, **{"Idempotency-Key": "k"})
    assert answer.status_code == 422
    assert not Answer.objects.exists()
    good = send(client, "post", "/fleets/f1/holds", asked(), **{"Idempotency-Key": "k"})
    assert good.status_code == 201


def test_a_repetition_needs_the_rights_anew() -> None:
    make_fleet()
    client = person("operator")
    body = asked()
    headers = {"Idempotency-Key": "k"}
    assert send(client, "post", "/fleets/f1/holds", body, **headers).status_code == 201
    client.logout()
    assert send(client, "post", "/fleets/f1/holds", body, **headers).status_code == 401


@pytest.mark.parametrize("key", ["k" * 101, "a\x7f"])
def test_an_odd_key_is_refused(key: str) -> None:
    make_fleet()
    answer = send(
        machine("operate"), "post", "/fleets/f1/holds", asked(), **{"Idempotency-Key": key}
    )
    assert answer.status_code == 422
    assert not Hold.objects.exists()


def test_a_key_is_forgotten_after_a_day() -> None:
    make_fleet()
    client, headers = machine("operate"), {"Idempotency-Key": "k"}
    assert send(client, "post", "/fleets/f1/holds", asked(), **headers).status_code == 201
    Answer.objects.update(at=timezone.now() - timedelta(days=1, seconds=1))
    other = send(client, "post", "/fleets/f1/holds", asked(cluster="pd"), **headers)
    assert strict(other).get("code") != "key_reused"
    assert once.forget(timezone.now() + timedelta(days=1)) <= 1


@pytest.mark.django_db(transaction=True)
def test_of_many_at_once_one_acts_and_all_are_given_its_answer() -> None:
    make_fleet()
    client, body = machine("operate"), asked()
    answers: list[tuple[int, bytes]] = []

    def ask() -> None:
        try:
            found = send(client, "post", "/fleets/f1/holds", body, **{"Idempotency-Key": "k"})
            answers.append((found.status_code, found.content))
        finally:
            connection.close()

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(answers)) == 1, answers
    assert answers[0][0] == 201
    assert Hold.objects.count() == 1
