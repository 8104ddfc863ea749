"""The API's schema as people read it: a list of operations, one of them with what it takes and
answers, and a form to try it."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import translation
from django.utils.translation import gettext as _
from drf_spectacular.generators import SchemaGenerator

from console import deprecated
from console.roles import readable_across
from routing import rights

METHODS: Final = ("get", "post", "put", "patch", "delete")
_BASE: Final = "/api/v1/"
_DEEPEST: Final = 4
_PLACES: Final = ("path", "query", "header")
_STREAM: Final = "text/event-stream"
Schema = dict[str, Any]


@dataclass(frozen=True)
class Field:
    """A parameter, or a place in a body: `body.name`, `results[].id`."""

    name: str
    kind: str
    help: str
    needed: bool
    place: str = ""
    is_deprecated: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    status: str
    kind: str
    help: str
    fields: tuple[Field, ...] = ()


@dataclass(frozen=True)
class Operation:
    """One method of one address."""

    id: str
    method: str
    path: str
    group: str
    text: str
    scopes: tuple[str, ...]
    is_deprecated: bool

    @property
    def first_sentence(self) -> str:
        """For lists."""
        return self.text.partition("\n\n")[0].replace("\n", " ")


@dataclass(frozen=True)
class Detail:
    """All there is to know of one operation."""

    parameters: tuple[Field, ...]
    body_kind: str
    body: tuple[Field, ...]
    example: str
    answers: tuple[Answer, ...]

    @property
    def can_be_tried(self) -> bool:
        """In the page: what takes JSON or nothing, and ends."""
        streams = any(answer.kind == _STREAM for answer in self.answers)
        return self.body_kind in ("", "application/json") and not streams


@functools.cache
def schema() -> Schema:
    """The document of this process; it takes a second to make and never changes."""
    with translation.override("en"):  # one for all readers; making it leaves another behind
        made: Schema = json.loads(
            json.dumps(SchemaGenerator().get_schema(request=None, public=True))
        )
    return made


@readable_across
def page(request: HttpRequest) -> HttpResponse:
    """Every operation by what it is about, `?q=` narrows them; `?operation=` is one of them."""
    document = schema()
    known = operations(document)
    chosen = request.GET.get("operation")
    if chosen is not None:
        found = next((each for each in known if each.id == chosen), None)
        if found is None:
            raise Http404(_("There is no such operation."))
        return _one(request, document, found)
    query = request.GET.get("q", "")[:100].strip()
    words = query.casefold().split()
    shown = [each for each in known if all(word in _searched(each) for word in words)]
    groups: dict[str, list[Operation]] = {}
    for each in shown:
        groups.setdefault(each.group, []).append(each)
    context = {
        "groups": sorted(groups.items()),
        "n_shown": len(shown),
        "n_all": len(known),
        "q": query,
        "going": deprecated.TABLE,
    }
    return render(request, "api_docs.html", context)


def _one(request: HttpRequest, document: Schema, operation: Operation) -> HttpResponse:
    has = rights.of(request.user)
    context = {
        "operation": operation,
        "detail": detail(document, operation),
        "may": any(has.anywhere(scope) for scope in operation.scopes) or not operation.scopes,
        "acts": operation.method != "get" and "read" not in operation.scopes,
        "back": "?" + urlencode({"q": operation.group}),
    }
    return render(request, "api_operation.html", context)


def operations(document: Schema) -> list[Operation]:
    """All of them, by address and then by method."""
    return [
        Operation(
            id=operation["operationId"],
            method=method,
            path=path,
            group=_group(path),
            text=operation.get("description", ""),
            scopes=tuple(operation.get("x-scopes", ())),
            is_deprecated=operation.get("deprecated", False),
        )
        for path, methods in sorted(document["paths"].items())
        for method in METHODS
        if (operation := methods.get(method)) is not None
    ]


def detail(document: Schema, operation: Operation) -> Detail:
    """What it takes and answers."""
    said = document["paths"][operation.path][operation.method]
    kind, content = next(iter(said.get("requestBody", {}).get("content", {}).items()), ("", {}))
    body = content.get("schema", {})
    return Detail(
        parameters=tuple(
            Field(
                name=each["name"],
                kind=_kind(_resolved(each["schema"], document)),
                help=each.get("description", ""),
                needed=each.get("required", False),
                place=each["in"],
                is_deprecated=each.get("deprecated", False),
                choices=tuple(map(str, _resolved(each["schema"], document).get("enum", ()))),
            )
            for each in sorted(
                said.get("parameters", ()), key=lambda each: _PLACES.index(each["in"])
            )
        ),
        body_kind=kind,
        body=tuple(_fields(body, document)),
        example=_example(body, document) if kind == "application/json" else "",
        answers=tuple(_answers(said["responses"], document)),
    )


def _answers(responses: Schema, document: Schema) -> Iterator[Answer]:
    for status, answer in sorted(responses.items()):
        kind, content = next(iter(answer.get("content", {}).items()), ("", {}))
        is_error = content.get("schema", {}).get("$ref", "").endswith("/Error")
        fields = () if is_error else tuple(_fields(content.get("schema", {}), document))
        yield Answer(status, kind, answer.get("description", ""), fields)


def _in_order(parameter: Schema) -> int:
    return _PLACES.index(parameter["in"])


def _group(path: str) -> str:
    parts = path.removeprefix(_BASE).strip("/").split("/")
    if parts[0] == "fleets" and len(parts) > 2:
        return parts[2]
    return parts[0]


def _searched(operation: Operation) -> str:
    return f"{operation.method} {operation.path} {operation.group} {operation.text}".casefold()


def _resolved(node: Any, document: Schema) -> Schema:
    while isinstance(node, dict) and "$ref" in node:
        node = document["components"]["schemas"][node["$ref"].rpartition("/")[2]]
    if isinstance(node, dict) and len(node.get("allOf", ())) == 1:
        return {**_resolved(node["allOf"][0], document), **node}
    return node if isinstance(node, dict) else {}


def _fields(node: Any, document: Schema, place: str = "", depth: int = 0) -> Iterator[Field]:
    found = _resolved(node, document)
    if depth > _DEEPEST:
        return
    needed = set(found.get("required", ()))
    for name, inner in found.get("properties", {}).items():
        whole = _resolved(inner, document)
        at = f"{place}.{name}" if place else name
        yield Field(at, _kind(whole), whole.get("description", ""), name in needed)
        yield from _fields(whole, document, at, depth + 1)
    items = found.get("items", found.get("additionalProperties"))
    if isinstance(items, dict):
        mark = "[]" if "items" in found else "{}"
        yield from _fields(items, document, place + mark, depth + 1)


def _kind(node: Schema) -> str:
    if "enum" in node:
        return " | ".join(map(str, node["enum"]))
    types = node.get("type", "any")
    words = [types] if isinstance(types, str) else list(types)
    if "format" in node:
        words = [f"{word} ({node['format']})" if word == "string" else word for word in words]
    bounds = [
        f"{mark} {node[name]}"
        for name, mark in (("minimum", "≥"), ("maximum", "≤"), ("maxLength", "at most"))
        if name in node
    ]
    return ", ".join([" | ".join(words), *bounds])


def _example(node: Any, document: Schema) -> str:
    """A body with what is needed, to be filled in."""
    return json.dumps(_sample(node, document), indent=2)


def _sample(node: Any, document: Schema, depth: int = 0) -> Any:
    found = _resolved(node, document)
    if "enum" in found:
        return found["enum"][0]
    types = found.get("type", "object")
    kind = types if isinstance(types, str) else types[0]
    if kind == "object":
        if depth > _DEEPEST:
            return {}
        needed = found.get("required", ())
        return {
            name: _sample(inner, document, depth + 1)
            for name, inner in found.get("properties", {}).items()
            if name in needed
        }
    plain: dict[str, Any] = {"array": [], "integer": 1, "number": 1.0, "boolean": False}
    return plain.get(kind, "2026-12-01T12:00:00Z" if found.get("format") == "date-time" else "")
