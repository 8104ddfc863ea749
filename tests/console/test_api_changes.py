"""Changing things over REST: nobody's change is lost, what cannot be meant is named."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from routing.models import Action, Fleet, Hold, Policy
from telemetry import tokens
from telemetry.models import ApiToken
from tests.console.api_case import BASE, conforms, machine, person, send, strict
from tests.routing.cases import make_fleet

pytestmark = pytest.mark.django_db

POLICY = "/fleets/f1/policy"


@pytest.fixture
def operator() -> Client:
    return machine("operate")


@pytest.fixture
def admin() -> Client:
    return machine("admin")


def soon(**delta: float) -> str:
    return (timezone.now() + timedelta(**delta or {"hours": 1})).isoformat()


def test_the_policy_carries_its_version_as_etag(fleet: Fleet, operator: Client) -> None:
    response = send(operator, "get", POLICY)
    body = conforms(response, "/fleets/{fleet}/policy")
    assert response["ETag"] == '"1"'
    assert (body["mode"], body["version"], body["changed_knobs"]) == ("active", 1, {})
    assert body["knobs"]["t_dwell_s"] == 20.0


def test_of_two_changes_from_one_version_the_second_is_refused(
    fleet: Fleet, operator: Client
) -> None:
    """S-55."""
    seen = {"If-Match": send(operator, "get", POLICY)["ETag"]}
    first = send(operator, "patch", POLICY, {"mode": "paused", "reason": "x"}, **seen)
    body = conforms(first, "/fleets/{fleet}/policy", "patch")
    assert (first.status_code, body["mode"], first["ETag"]) == (200, "paused", '"2"')
    second = send(operator, "patch", POLICY, {"knobs": {"t_dwell_s": 5}}, **seen)
    assert second.status_code == 412
    assert "version 2" in conforms(second, "/fleets/{fleet}/policy", "patch")["error"]
    assert Policy.objects.get().knobs == {}


def test_a_change_must_say_what_it_read(fleet: Fleet, operator: Client) -> None:
    response = send(operator, "patch", POLICY, {"mode": "paused"})
    assert (response.status_code, strict(response)["status"]) == (428, 428)
    for nonsense in ("*", "two", '"1.5"', "²", "9" * 5_000):
        refused = send(operator, "patch", POLICY, {"mode": "paused"}, **{"If-Match": nonsense})
        assert refused.status_code == 412


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"mode": "on"}, "mode"),
        ({"modes": "active"}, "modes"),
        ({"knobs": {"speed": 1}}, "knobs.speed"),
        ({"knobs": {"t_dwell_s": -1}}, "knobs.t_dwell_s"),
        ({"knobs": 3}, "knobs"),
        ({"reason": "x" * 501}, "reason"),
        ([], "non_field_errors"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_422(
    fleet: Fleet, operator: Client, body: Any, field: str
) -> None:
    response = send(operator, "patch", POLICY, body, **{"If-Match": '"1"'})
    answer = strict(response)
    assert (response.status_code, answer["ok"], answer["status"]) == (422, False, 422)
    assert field in answer["errors"]


@pytest.mark.parametrize("body", [b"{", b'{"knobs": {"t_dwell_s": NaN}}', b'{"mode": Infinity}'])
def test_what_is_not_strict_json_is_400(fleet: Fleet, operator: Client, body: bytes) -> None:
    """S-05, inwards."""
    response = operator.patch(
        f"{BASE}{POLICY}", body, content_type="application/json", headers={"If-Match": '"1"'}
    )
    assert (response.status_code, strict(response)["ok"]) == (400, False)


def test_a_person_changes_policy_with_their_csrf_token(fleet: Fleet) -> None:
    client = person("operator", csrf=True)
    client.cookies["csrftoken"] = "a" * 32
    headers = {"If-Match": '"1"', "X-CSRFToken": "a" * 32}
    response = send(client, "patch", POLICY, {"mode": "paused"}, **headers)
    assert response.status_code == 200, response.content
    assert Action.objects.latest("id").actor == "operator"


def test_a_hold_is_placed_listed_and_released(fleet: Fleet, operator: Client) -> None:
    body = {"cluster": "pd", "mode": "threshold", "threshold_tokens": 9000, "reason": "test",
            "expires_at": soon()}  # fmt: skip
    placed = send(operator, "post", "/fleets/f1/holds", body)
    hold = conforms(placed, "/fleets/{fleet}/holds", "post")
    assert (placed.status_code, hold["owner"]) == (201, "token operate")
    assert strict(send(operator, "get", POLICY))["holds"] == [hold]
    listed = conforms(send(operator, "get", "/fleets/f1/holds?open=true"), "/fleets/{fleet}/holds")
    assert listed["results"] == [hold]
    assert strict(send(operator, "get", "/fleets/f1/holds?open=false"))["results"] == []
    released = send(operator, "post", f"/fleets/f1/holds/{hold['id']}/release", {"reason": "done"})
    assert conforms(released, "/fleets/{fleet}/holds/{hold_id}/release", "post")["released_by"]
    assert strict(send(operator, "get", "/fleets/f1/holds?open=true"))["results"] == []
    assert len(strict(send(operator, "get", "/fleets/f1/holds?open=false"))["results"]) == 1
    again = send(operator, "post", f"/fleets/f1/holds/{hold['id']}/release", {})
    assert again.status_code == 422


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"reason": None}, "reason"),
        ({"reason": " "}, "reason"),
        ({"owner": ""}, "owner"),
        ({"expires_at": "tomorrow"}, "expires_at"),
        ({"expires_at": None}, "expires_at"),
        ({"threshold_tokens": "many"}, "threshold_tokens"),
        ({"threshold_tokens": None}, "threshold_tokens"),
        ({"threshold_tokens": 10**12}, "threshold_tokens"),
        ({"cluster": "mars"}, "cluster"),
        ({"until": 3}, "until"),
    ],
)
def test_a_hold_that_cannot_be_meant_is_422(
    fleet: Fleet, operator: Client, changes: dict[str, Any], field: str
) -> None:
    body = {"mode": "threshold", "threshold_tokens": 9000, "reason": "x", "expires_at": soon()}
    response = send(operator, "post", "/fleets/f1/holds", body | changes)
    assert response.status_code == 422
    assert field in strict(response)["errors"]
    assert not Hold.objects.exists()


def test_a_hold_ends_within_a_week(fleet: Fleet, operator: Client) -> None:
    body = {"mode": "always_local", "reason": "x", "expires_at": soon(days=8)}
    assert send(operator, "post", "/fleets/f1/holds", body).status_code == 422


def test_a_hold_of_another_fleet_cannot_be_released_here(fleet: Fleet, operator: Client) -> None:
    make_fleet("f2")
    body = {"mode": "always_local", "reason": "x", "expires_at": soon()}
    hold = strict(send(operator, "post", "/fleets/f2/holds", body))
    response = send(operator, "post", f"/fleets/f1/holds/{hold['id']}/release", {})
    assert response.status_code == 404


def test_an_admin_raises_the_epoch_and_says_why(fleet: Fleet, admin: Client) -> None:
    assert send(admin, "post", "/fleets/f1/epoch", {}).status_code == 422
    response = send(admin, "post", "/fleets/f1/epoch", {"reason": "restored from backup"})
    assert conforms(response, "/fleets/{fleet}/epoch", "post")["epoch"] == 2
    assert Action.objects.latest("id").verb == "epoch.raise"


def test_a_tokens_secret_is_shown_once(admin: Client) -> None:
    response = send(admin, "post", "/tokens", {"name": "gate", "scopes": ["router"]})
    body = conforms(response, "/tokens", "post")
    assert response.status_code == 201
    assert tokens.find(body["secret"], timezone.now()) is not None
    listed = send(admin, "get", "/tokens")
    assert body["prefix"] in {row["prefix"] for row in conforms(listed, "/tokens")["results"]}
    assert body["secret"].encode() not in listed.content
    assert b"digest" not in listed.content
    assert body["secret"] not in str(list(Action.objects.values_list("after", flat=True)))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"scopes": ["router"]}, "name"),
        ({"name": "x"}, "scopes"),
        ({"name": "x", "scopes": []}, "scopes"),
        ({"name": "x", "scopes": ["root"]}, "scopes.0"),
        ({"name": "x", "scopes": ["read"], "fleet": "nobody"}, "fleet"),
        ({"name": "x", "scopes": ["read"], "expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
    ],
)
def test_a_token_that_cannot_be_meant_is_422(
    admin: Client, body: dict[str, Any], field: str
) -> None:
    before = ApiToken.objects.count()
    response = send(admin, "post", "/tokens", body)
    assert response.status_code == 422
    assert field in strict(response)["errors"]
    assert ApiToken.objects.count() == before


def test_the_audit_is_read_newest_first(fleet: Fleet, operator: Client) -> None:
    send(operator, "patch", POLICY, {"mode": "paused", "reason": "night"}, **{"If-Match": '"1"'})
    body = conforms(send(operator, "get", "/audit?fleet=f1"), "/audit")
    newest = body["results"][0]
    assert (newest["verb"], newest["actor"], newest["reason"]) == (
        "policy.change",
        "token operate",
        "night",
    )
    assert (newest["before"]["mode"], newest["after"]["mode"]) == ("active", "paused")


def test_a_knob_no_float_can_hold_is_refused(fleet: Fleet, operator: Client) -> None:
    seen = {"If-Match": '"1"'}
    body = {"knobs": {"headroom_target": 10**400}}
    response = send(operator, "patch", POLICY, body, **seen)
    assert response.status_code == 422
    assert strict(response)["errors"] == {"knobs.headroom_target": ["must be in 1..10"]}


def test_a_body_nested_too_deeply_is_the_senders_mistake(fleet: Fleet, operator: Client) -> None:
    response = operator.generic(
        "PATCH",
        BASE + POLICY,
        b"[" * 100_000,
        content_type="application/json",
        headers={"If-Match": '"1"'},
    )
    assert (response.status_code, strict(response)["status"]) == (400, 400)


def test_the_audit_names_the_scopes_a_token_has(admin: Client) -> None:
    send(admin, "post", "/tokens", {"name": "twice", "scopes": ["read", "read"]})
    assert Action.objects.latest("id").after["scopes"] == ["read"]
