"""Doors to the API for tests: machines by their token, people by their session."""

from __future__ import annotations

import functools
import json
from typing import Any

import jsonschema
from django.contrib.auth.models import Group, User
from django.test import Client
from django.utils import timezone
from drf_spectacular.generators import SchemaGenerator

from routing import token_commands

BASE = "/api/v1"
MODEL_BACKEND = "django.contrib.auth.backends.ModelBackend"


def token(*scopes: str, fleet: str = "") -> str:
    _, secret = token_commands.issue_token(
        name="-".join(scopes),
        scopes=list(scopes),
        fleet=fleet,
        expires_at=None,
        actor="test",
        via="test",
        reason="",
        now=timezone.now(),
    )
    return secret


def machine(*scopes: str, fleet: str = "") -> Client:
    """A client with a fresh token."""
    return Client(headers={"Authorization": f"Bearer {token(*scopes, fleet=fleet)}"})


def person(role: str, *, csrf: bool = False) -> Client:
    """A signed-in viewer, operator, admin (superuser) or nobody (no group)."""
    user = User.objects.create_user(role, is_superuser=role == "admin")
    if role in ("viewer", "operator"):
        user.groups.add(Group.objects.get_or_create(name=role)[0])
    client = Client(enforce_csrf_checks=csrf)
    client.force_login(user, backend=MODEL_BACKEND)
    return client


def send(client: Client, method: str, path: str, body: Any = None, **headers: str) -> Any:
    """The response of one JSON request to an address below /api/v1."""
    return client.generic(
        method.upper(),
        BASE + path,
        b"" if body is None else json.dumps(body).encode(),
        content_type="application/json",
        headers=headers,
    )


def strict(response: Any) -> Any:
    """The body, by a parser that knows no NaN and no Infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(response.content, parse_constant=refuse)


@functools.cache
def schema() -> dict[str, Any]:
    return json.loads(json.dumps(SchemaGenerator().get_schema(request=None, public=True)))


def conforms(response: Any, template: str, method: str = "get") -> Any:
    """The body, once it is what the schema promises of `template` (a path below /api/v1)."""
    operation = schema()["paths"][BASE + template][method]["responses"]
    promised = operation.get(str(response.status_code)) or operation["default"]
    body = strict(response)
    document = promised["content"]["application/json"]["schema"]
    jsonschema.Draft202012Validator({**document, "components": schema()["components"]}).validate(
        body
    )
    return body
