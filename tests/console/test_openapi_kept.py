"""docs/openapi.json is what the API is, and no change of it breaks a client without notice."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from console import deprecated, openapi_changes
from console.deprecated import Deprecated
from console.management.commands import openapi
from console.openapi_changes import breaking, unannounced

Schema = dict[str, Any]


def test_the_kept_document_is_what_the_api_is() -> None:
    assert openapi.PLACE.read_text() == openapi.generated(), "run: manage.py openapi"


def whole() -> Schema:
    thing = {
        "type": "object",
        "required": ["id", "name"],
        "properties": {
            "id": {"type": "integer"},
            "name": {"type": "string"},
            "kind": {"type": "string", "enum": ["a", "b"]},
            "inner": {"$ref": "#/components/schemas/Inner"},
            "rows": {"type": "array", "items": {"$ref": "#/components/schemas/Inner"}},
            "again": {"$ref": "#/components/schemas/Thing"},
        },
    }
    inner = {"type": "object", "properties": {"deep": {"type": ["number", "null"]}}}
    asked = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string"}, "note": {"type": "string"},
                       "kind": {"type": "string", "enum": ["a", "b"]}},
    }  # fmt: skip
    told = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Asked"}}}}
    limit = {"name": "limit", "in": "query", "schema": {"type": "integer"}}
    return {
        "paths": {
            "/things": {
                "get": {"parameters": [limit], "responses": {"200": told}},
                "post": {"requestBody": body, "responses": {"201": told}},
            }
        },
        "components": {"schemas": {"Thing": thing, "Inner": inner, "Asked": asked}},
    }


def _schemas(document: Schema, name: str) -> Schema:
    return document["components"]["schemas"][name]


def _get(document: Schema) -> Schema:
    return document["paths"]["/things"]["get"]


BREAKS: dict[str, Callable[[Schema], Any]] = {
    "GET /things: is gone": lambda d: d["paths"]["/things"].pop("get"),
    "GET /things limit: is no parameter of the query any more": lambda d: _get(d).pop("parameters"),
    "GET /things limit: may not be integer any more": lambda d: _get(d)["parameters"][0].update(
        schema={"type": "boolean"}
    ),
    "GET /things more: is a parameter of the query that is needed now": lambda d: _get(d)[
        "parameters"
    ].append({"name": "more", "in": "query", "required": True, "schema": {}}),
    "GET /things name: is not told any more": lambda d: _schemas(d, "Thing")["properties"].pop(
        "name"
    ),
    "GET /things inner.deep: is not told any more": lambda d: _schemas(d, "Inner")[
        "properties"
    ].pop("deep"),
    "GET /things id: may be string now": lambda d: _schemas(d, "Thing")["properties"]["id"].update(
        type="string"
    ),
    "GET /things name: may be null now": lambda d: _schemas(d, "Thing")["properties"][
        "name"
    ].update(type=["string", "null"]),
    "GET /things id: may be missing now": lambda d: _schemas(d, "Thing").update(required=["name"]),
    "POST /things note: is needed now": lambda d: _schemas(d, "Asked")["required"].append("note"),
    "POST /things note: is not read any more": lambda d: _schemas(d, "Asked")["properties"].pop(
        "note"
    ),
    "POST /things kind: may not be 'b' any more": lambda d: _schemas(d, "Asked")["properties"][
        "kind"
    ].update(enum=["a"]),
    "GET /things 200: is not answered any more": lambda d: _get(d)["responses"].pop("200"),
}
HARMLESS: dict[str, Callable[[Schema], Any]] = {
    "another address": lambda d: d["paths"].update({"/more": {"get": {"responses": {}}}}),
    "another optional parameter": lambda d: _get(d)["parameters"].append(
        {"name": "more", "in": "query", "schema": {"type": "string"}}
    ),
    "another field of an answer": lambda d: _schemas(d, "Thing")["properties"].update(
        more={"type": "string"}
    ),
    "another optional field of a request": lambda d: _schemas(d, "Asked")["properties"].update(
        more={"type": "string"}
    ),
    "another choice of a request": lambda d: _schemas(d, "Asked")["properties"]["kind"].update(
        enum=["a", "b", "c"]
    ),
    "other words": lambda d: _get(d).update(description="Other words."),
    "a schema of another name": lambda d: (
        d["components"]["schemas"].update(Other=_schemas(d, "Inner")),
        _schemas(d, "Thing")["properties"].update(inner={"$ref": "#/components/schemas/Other"}),
    ),
}


@pytest.mark.parametrize("says", BREAKS)
def test_what_breaks_a_client_is_found(says: str) -> None:
    new = copy.deepcopy(whole())
    BREAKS[says](new)
    assert says in [str(each) for each in breaking(whole(), new)]


@pytest.mark.parametrize("what", HARMLESS)
def test_what_grows_breaks_nobody(what: str) -> None:
    new = copy.deepcopy(whole())
    HARMLESS[what](new)
    assert breaking(whole(), new) == []


def test_what_was_announced_may_go_once_its_time_is_over() -> None:
    new = copy.deepcopy(whole())
    _get(new).pop("parameters")
    broken = breaking(whole(), new)
    entry = Deprecated(
        "get", "/things", date(2026, 1, 1), date(2027, 1, 1), instead="", parameter="limit"
    )
    assert unannounced(broken, date(2027, 1, 1), (entry,)) == []
    assert unannounced(broken, date(2026, 12, 31), (entry,)) == broken
    assert unannounced(broken, date(2028, 1, 1), ()) == broken


def test_the_api_itself_is_compared() -> None:
    kept = json.loads(openapi.PLACE.read_text())
    new = copy.deepcopy(kept)
    del new["paths"]["/api/v1/fleets/{fleet}/holds"]["post"]
    assert [str(each) for each in breaking(kept, new)] == [
        "POST /api/v1/fleets/{fleet}/holds: is gone"
    ]


def test_a_breaking_change_is_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    place = tmp_path / "openapi.json"
    text = openapi.PLACE.read_text()
    place.write_text(text)
    monkeypatch.setattr(openapi, "PLACE", place)
    less = json.loads(text)
    del less["paths"]["/api/v1/fleets"]
    monkeypatch.setattr(openapi, "generated", lambda: json.dumps(less))
    with pytest.raises(CommandError, match=r"GET /api/v1/fleets: is gone"):
        call_command("openapi")
    assert place.read_text() == text
    more = json.loads(text)
    more["info"]["description"] = "Other words."
    monkeypatch.setattr(openapi, "generated", lambda: json.dumps(more))
    with pytest.raises(CommandError, match=r"run manage\.py openapi"):
        call_command("openapi", "--check")
    call_command("openapi", stdout=io.StringIO())
    assert place.read_text() == json.dumps(more)


def test_the_table_gives_a_year_and_is_what_the_docs_say() -> None:
    docs = (openapi.PLACE.parent / "api.md").read_text()
    section = docs.partition("## Deprecation")[2].partition("\n## ")[0]
    for entry in deprecated.TABLE:
        assert (entry.sunset - entry.since).days >= 365
        assert f"| {entry.since} | {entry.sunset} |" in section, entry
        assert f"`{entry.parameter or entry.path}`" in section
    assert section.count("| 20") == 2 * len(deprecated.TABLE)


def test_headers_name_the_days() -> None:
    entry = Deprecated("get", "", date(2026, 12, 1), date(2027, 12, 1), instead="")
    said = entry.headers()
    assert said["Deprecation"] == "@1796083200"
    assert said["Sunset"] == "Wed, 01 Dec 2027 00:00:00 GMT"


def test_of_several_what_ends_first_is_told() -> None:
    early = Deprecated("get", "/a", date(2026, 1, 1), date(2027, 1, 1), "", parameter="x")
    late = Deprecated("get", "/a", date(2026, 1, 1), date(2028, 1, 1), "")
    table = (late, early)
    assert deprecated.used("GET", "/a", ["x"], table) is early
    assert deprecated.used("GET", "/a", [], table) is late
    assert deprecated.used("POST", "/a", ["x"], table) is None
    assert deprecated.used("GET", "/b", ["x"], table) is None


def test_routes_are_written_as_the_schema_writes_them() -> None:
    assert deprecated.template("api/v1/fleets/<slug:fleet>/ticks/<int:seq>") == (
        "/api/v1/fleets/{fleet}/ticks/{seq}"
    )


def test_whatever_is_deprecated_is_in_the_schema_and_says_so() -> None:
    schema = json.loads(openapi.generated())
    for entry in deprecated.TABLE:
        marked = [
            parameter
            for path, operations in schema["paths"].items()
            if entry.is_of(entry.method, path) and entry.method in operations
            for parameter in operations[entry.method].get("parameters", ())
            if parameter.get("deprecated") and parameter["name"] == entry.parameter
        ]
        assert marked or not entry.parameter
    assert openapi_changes.METHODS
