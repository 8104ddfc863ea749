"""The client has a method for each operation of the schema, and none besides.

`python -m tests.console.client_calls` writes them anew.
"""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import httpx
import pytest

from console.client.client import Client
from console.client.http import OPERATIONS, Calls
from tests.console.api_case import schema
from tests.console.client_calls import CLIENT, operations

AGAIN = "run: python -m tests.console.client_calls"


def test_the_operations_are_those_of_the_schema() -> None:
    kept = json.loads((CLIENT / "operations.json").read_text())
    wanted = operations(schema())
    assert sorted(kept) == sorted(wanted), AGAIN
    assert kept == wanted, AGAIN


def test_each_has_its_method_and_nothing_else_has_one() -> None:
    own = {name for name, _ in inspect.getmembers(Calls, inspect.isfunction)}
    methods = {
        name
        for name, _ in inspect.getmembers(Client, inspect.isfunction)
        if name not in own and not name.startswith("_")
    }
    assert methods == OPERATIONS.keys(), AGAIN


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_a_method_asks_what_its_operation_says(name: str) -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"results": [], "next": None})

    operation = OPERATIONS[name]
    client = Client("http://console", "pf_x", transport=httpx.MockTransport(answer))
    method = getattr(client, name)
    taken = list(inspect.signature(method).parameters)
    place: dict[str, Any] = {p: 7 for p in re.findall(r"{(\w+)}", operation.path)}
    assert [p for p in taken if p not in ("body", "asked")] == list(place), AGAIN
    asked: dict[str, Any] = dict.fromkeys(operation.query, "1")
    asked |= {header.lower().replace("-", "_"): "2" for header in operation.headers}
    found = method(**place, **({"body": {}} if "body" in taken else {}), **asked)
    if inspect.isgenerator(found):
        if "stream" in inspect.getsource(method):
            return
        list(found)
    [request] = seen
    assert request.method == operation.method
    assert request.url.path == "/api/v1" + re.sub(r"{\w+}", "7", operation.path)
    assert dict(request.url.params) == dict.fromkeys(operation.query, "1")
    assert all(request.headers[header].strip('"') == "2" for header in operation.headers)
    assert ("body" in taken) == bool(operation.media_types)


def test_what_an_operation_does_not_take_is_refused_here() -> None:
    client = Client("http://console", "", transport=httpx.MockTransport(lambda _: 1 / 0))  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="no colour"):
        client.fleets_policy_retrieve("f1", colour="red")
