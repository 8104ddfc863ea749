"""How often one may ask: counted per person and token, told in headers, nobody refused blindly."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.conf import settings
from django.test import Client

from console import limits
from tests.console.api_case import machine, person, send, strict
from tests.routing.cases import make_fleet

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings.ENV, "CONSOLE_API_READS", 3)
    monkeypatch.setitem(settings.ENV, "CONSOLE_API_CHANGES", 2)


def reads(client: Client, n: int) -> list[Any]:
    return [send(client, "get", "/fleets") for _ in range(n)]


def test_each_answer_says_what_is_left() -> None:
    answers = reads(machine("read"), 3)
    assert [a["RateLimit-Policy"] for a in answers] == ['"read";q=3;w=60'] * 3
    assert [a["RateLimit"].split(";")[:2] for a in answers] == [
        ['"read"', f"r={left}"] for left in (2, 1, 0)
    ]
    assert all(1 <= int(a["RateLimit"].rpartition("t=")[2]) <= 60 for a in answers)


def test_whoever_asks_too_often_is_told_when_to_come_back() -> None:
    *_, answer = reads(machine("read"), 4)
    body = strict(answer)
    assert (answer.status_code, body["status"], body["code"]) == (429, 429, "too_many_requests")
    assert 1 <= int(answer["Retry-After"]) <= 60
    assert answer["RateLimit"].startswith('"read";r=0;')


def test_each_person_and_each_token_has_a_count_of_its_own() -> None:
    for client in (machine("read"), machine("read"), person("viewer")):
        assert [a.status_code for a in reads(client, 4)] == [200, 200, 200, 429]


def test_changing_is_counted_apart() -> None:
    make_fleet()
    client = machine("operate")
    reads(client, 4)
    codes = [send(client, "post", "/fleets/f1/holds", {}).status_code for _ in range(3)]
    assert codes == [422, 422, 429]


def test_plans_are_never_refused() -> None:
    make_fleet()
    gate = machine("router")
    answers = [send(gate, "get", "/fleets/f1/plan") for _ in range(6)]
    assert {a.status_code for a in answers} <= {200, 404}
    assert "RateLimit" not in answers[0]


def test_who_is_nobody_is_not_counted() -> None:
    answer = send(Client(), "get", "/fleets")
    assert answer.status_code == 401
    assert "RateLimit" not in answer


def test_without_valkey_everybody_is_served(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away = limits._Valkey("redis://127.0.0.1:1/0")
    monkeypatch.setattr(limits, "_valkey", lambda: away)
    client = machine("read")
    answers = reads(client, 6)
    assert {a.status_code for a in answers} == {200}
    assert "RateLimit" not in answers[0]
    said = [r.message for r in caplog.records if "not counted" in r.message]
    assert len(said) == 1, "said once, and not asked again at once"


def test_it_counts_again_once_valkey_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = limits._Valkey(settings.REDIS_URL)
    working = counter._client
    counter._client = redis.Redis.from_url("redis://127.0.0.1:1/0", socket_connect_timeout=0.1)
    assert counter.count("api:test:back") is None
    counter._client, counter._away_until_s = working, 0.0
    found = counter.count("api:test:back")
    assert found is not None
    assert found[0] == 1
