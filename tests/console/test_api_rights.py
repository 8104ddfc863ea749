"""Who may do what over REST: enumerated from the URL map, so a new address cannot be forgotten."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone

from routing.models import Action, Hold, Policy
from telemetry.models import ApiToken
from tests.console.api_case import BASE, machine, person, send, strict, token
from tests.routing.cases import make_fleet

pytestmark = pytest.mark.django_db

CHANGING = ("post", "put", "patch", "delete")
ASKING = {"/fleets/f1/explain": 422, "/fleets/f1/what-if": 200}
"""A question too long for an address: posted, and free to whoever may read; what an empty one is
answered."""


def _stands_for(argument: re.Match[str]) -> str:
    if argument[2] == "fleet":
        return "f1"
    return {"int": "1", "slug": "n1", "str": "n1"}[argument[1]]


def api_views() -> Iterator[tuple[str, Any]]:
    """(path, view class) of every address under /api/v1/."""

    def walk(patterns: list[Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for entry in patterns:
            route = prefix + str(entry.pattern)
            if isinstance(entry, URLResolver):
                yield from walk(entry.url_patterns, route)
            elif isinstance(entry, URLPattern) and route.startswith(BASE[1:]):
                route = re.sub(r"<(\w+):(\w+)>", _stands_for, route)
                yield "/" + route, entry.callback.view_class

    yield from walk(get_resolver().url_patterns, "")


READING = sorted(path.removeprefix(BASE) for path, view in api_views() if hasattr(view, "get"))
MUTATING = sorted(
    (path.removeprefix(BASE), method)
    for path, view in api_views()
    for method in CHANGING
    if hasattr(view, method) and path.removeprefix(BASE) not in ASKING
)


def test_the_url_map_has_the_addresses_that_change_something() -> None:
    assert set(MUTATING) >= {
        ("/fleets/f1/policy", "patch"),
        ("/fleets/f1/holds", "post"),
        ("/fleets/f1/holds/1/release", "post"),
        ("/fleets/f1/epoch", "post"),
        ("/tokens", "post"),
        ("/tokens/1/revoke", "post"),
    }


@pytest.mark.parametrize(("path", "method"), MUTATING)
def test_a_session_changes_nothing_without_its_csrf_token(path: str, method: str) -> None:
    """S-59; who may what with it, and who is a stranger, is in `test_permission_table`."""
    make_fleet()
    before = Action.objects.count()
    client = person("operator", csrf=True)
    response = send(client, method, path, {"mode": "paused", "reason": "x"})
    assert response.status_code == 403
    assert strict(response)["status"] == 403
    assert Action.objects.count() == before
    assert Policy.objects.get().mode == "active"


def test_a_stranger_is_told_how_to_come() -> None:
    response = send(Client(), "get", "/fleets")
    assert response.status_code == 401
    assert response["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize("path", [p for p in READING if not p.startswith(("/tokens", "/users"))])
def test_viewers_and_read_tokens_see_everything(path: str) -> None:
    make_fleet()
    for client in (person("viewer"), machine("read")):
        assert send(client, "get", path).status_code in (200, 404, 422)


@pytest.mark.parametrize("path", sorted(ASKING))
def test_questions_change_nothing_and_are_for_whoever_may_read(path: str) -> None:
    make_fleet()
    may = (person("viewer"), machine("read"), machine("operate"))
    may_not = (person("nobody"), machine("router"), machine("ingest"))
    before = Action.objects.count()
    for client in may:
        assert send(client, "post", path, {}).status_code == ASKING[path]
    for client in may_not:
        assert send(client, "post", path, {}).status_code == 403
    assert send(Client(), "post", path, {}).status_code == 401
    assert Action.objects.count() == before


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("post", "/tokens"),
        ("post", "/fleets/f1/epoch"),
        ("put", "/receivers/n1"),
        ("delete", "/receivers/n1"),
        ("post", "/receivers/n1/test"),
    ],
)
def test_operators_are_not_administrators(method: str, path: str) -> None:
    make_fleet()
    for client in (person("operator"), machine("operate")):
        body = {"name": "x", "scopes": ["admin"], "reason": "x"}
        assert send(client, method, path, body).status_code == 403
    assert not ApiToken.objects.filter(name="x").exists()


def test_a_token_bound_to_a_fleet_opens_that_fleet_only() -> None:
    make_fleet("f1")
    make_fleet("f2")
    client = machine("operate", fleet="f2")
    assert send(client, "get", "/fleets/f2/policy").status_code == 200
    for path in ("/fleets/f1/policy", "/receivers", "/telemetry/sources"):
        assert send(client, "get", path).status_code == 403
    assert [row["name"] for row in strict(send(client, "get", "/fleets"))["results"]] == ["f2"]
    response = send(client, "patch", "/fleets/f1/policy", {"mode": "paused"}, **{"If-Match": '"1"'})
    assert response.status_code == 403


@pytest.mark.parametrize("authorization", ["Bearer", "Bearer pf_x_y", "Basic YTpi", "bearer \xff"])
def test_a_bad_authorization_header_is_no_authorization(authorization: str) -> None:
    response = send(Client(), "get", "/fleets", Authorization=authorization)
    assert response.status_code == 401
    assert strict(response)["ok"] is False


def test_a_revoked_token_is_refused_at_once() -> None:
    make_fleet()
    secret = token("read")
    client = Client(headers={"Authorization": f"Bearer {secret}"})
    assert send(client, "get", "/fleets").status_code == 200
    row = ApiToken.objects.latest("id")
    assert send(person("admin"), "post", f"/tokens/{row.pk}/revoke", {}).status_code == 200
    response = send(client, "get", "/fleets")
    assert response.status_code == 401
    assert "revoked" in strict(response)["error"]


def test_the_audit_names_who_came_through_which_door() -> None:
    """S-58."""
    make_fleet()
    soon = timezone.now() + timedelta(hours=1)
    hold = {"mode": "always_local", "reason": "x", "expires_at": soon.isoformat()}
    for client in (person("operator"), machine("operate")):
        response = send(client, "post", "/fleets/f1/holds", hold)
        assert response.status_code == 201, response.content
        released = send(client, "post", f"/fleets/f1/holds/{response.json()['id']}/release", {})
        assert released.status_code == 200
    rows = Action.objects.filter(verb__startswith="hold.").order_by("id")
    assert [(a.actor, a.via, a.verb) for a in rows] == [
        ("operator", "rest", "hold.place"),
        ("operator", "rest", "hold.release"),
        ("token operate", "rest", "hold.place"),
        ("token operate", "rest", "hold.release"),
    ]
    assert set(Hold.objects.values_list("owner", flat=True)) == {"operator", "token operate"}
