"""One error shape with a code, whatever goes wrong and wherever."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from console import parsers, raw
from console.api import CODES
from tests.console.api_case import BASE, machine, person, schema, send, strict
from tests.routing.cases import make_fleet

pytestmark = pytest.mark.django_db

SHAPE = {"ok", "error", "errors", "status", "code", "request_id"}


def refused(response: Any, status: int, code: str) -> dict[str, Any]:
    body: dict[str, Any] = strict(response)
    assert (response.status_code, response["Content-Type"]) == (status, "application/json")
    assert body.keys() == SHAPE
    assert (body["ok"], body["status"], body["code"]) == (False, status, code)
    assert body["error"]
    assert "\n" not in body["error"]
    return body


def test_the_schema_describes_that_shape() -> None:
    error = schema()["components"]["schemas"]["Error"]
    assert set(error["properties"]) == set(error["required"]) == SHAPE


@pytest.mark.parametrize("path", ["/nothing", "/fleets/", "/fleets/f1/nothing", "/Fleets", "/%ff"])
def test_an_unknown_address(path: str) -> None:
    refused(send(machine("read"), "get", path), 404, "not_found")
    refused(send(Client(), "get", path), 404, "not_found")


def test_a_null_character() -> None:
    refused(send(machine("read"), "get", "/fleets?limit=%00"), 400, "bad_request")


def test_nobody_and_somebody_without_rights() -> None:
    refused(send(Client(), "get", "/fleets"), 401, "not_authenticated")
    refused(send(machine("ingest"), "get", "/fleets"), 403, "forbidden")
    make_fleet()
    without_csrf = person("operator", csrf=True)
    refused(send(without_csrf, "post", "/fleets/f1/holds", {}), 403, "forbidden")


@pytest.mark.parametrize("method", ["put", "delete", "patch", "trace", "invented"])
def test_a_wrong_method(method: str) -> None:
    answer = send(machine("admin"), method, "/fleets")
    refused(answer, 405, "method_not_allowed")
    assert "GET" in answer["Allow"]


@pytest.mark.parametrize("accept", ["text/html", "image/png", "application/json;version=9"])
def test_what_is_not_acceptable(accept: str) -> None:
    answer = send(machine("read"), "get", "/fleets", Accept=accept)
    if "json" in accept:
        assert answer.status_code == 200
    else:
        refused(answer, 406, "not_acceptable")


@pytest.mark.parametrize("kind", ["text/plain", "application/xml", "multipart/form-data"])
def test_another_kind_of_body(kind: str) -> None:
    make_fleet()
    answer = machine("operate").post(f"{BASE}/fleets/f1/holds", b"x", content_type=kind)
    refused(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize("body", [b"{", b"[" * 5000, b"\xff", b'{"a": NaN}', b"", b"null", b"[]"])
def test_a_body_that_cannot_be_read(body: bytes) -> None:
    make_fleet()
    answer = machine("operate").post(
        f"{BASE}/fleets/f1/holds", body, content_type="application/json"
    )
    assert answer.status_code in (400, 422)
    refused(answer, answer.status_code, CODES[answer.status_code])


def test_a_body_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    make_fleet()
    monkeypatch.setattr(parsers, "MOST_BYTES", 100)
    body = {"mode": "always_local", "reason": "x" * 100}
    refused(send(machine("operate"), "post", "/fleets/f1/holds", body), 413, "too_large")


def test_preconditions() -> None:
    make_fleet()
    client = machine("operate")
    refused(send(client, "patch", "/fleets/f1/policy", {}), 428, "precondition_required")
    for seen in ('"7"', "*", "", '"x"', "9" * 40):
        answer = send(client, "patch", "/fleets/f1/policy", {}, **{"If-Match": seen})
        refused(answer, 412, "changed_meanwhile")


def test_every_code_is_documented_once() -> None:
    text = (Path(__file__).parents[2] / "docs/api.md").read_text()
    table = dict(re.findall(r"^\| (\d{3}) \| `(\w+)`", text, re.MULTILINE))
    assert {int(status): code for status, code in table.items()} == CODES


class TestBodiesOfNoEnd:
    """Refused before they are read: Django would write them to disk first."""

    async def answers(self, headers: list[tuple[bytes, bytes]], pieces: list[bytes]) -> list[Any]:
        """What is sent for a body of these pieces, and what the application has read of it."""
        sent: list[Any] = []
        left = list(pieces)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect" or not message["more_body"]:
                    sent.append(message["type"])
                    return

        await raw.bounded(app, {"headers": headers}, receive, send)
        return sent

    async def test_by_its_length(self) -> None:
        length = str(raw.MOST_BODY_BYTES + 1).encode()
        start, body = await self.answers([(b"content-length", length)], [b"x"])
        assert start["status"] == 413
        assert json.loads(body["body"])["code"] == "too_large"

    async def test_without_a_length(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(raw, "MOST_BODY_BYTES", 10)
        assert await self.answers([], [b"x" * 6, b"x" * 6, b"x"]) == ["http.disconnect"]
        assert await self.answers([], [b"x" * 5, b"x" * 5]) == ["http.request"]
