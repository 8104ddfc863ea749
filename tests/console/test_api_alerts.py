"""Alerts over REST: rules with their ETag, incidents, silences, receivers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from django.utils import timezone

from routing.alerts.models import AlertRule, Incident, Notification, Receiver, Silence
from routing.models import Action
from tests.console.api_case import conforms, person, send, strict
from tests.routing.alerts.case import FULL, incident, receiving
from tests.routing.cases import NOW, make_fleet

pytestmark = pytest.mark.django_db

ONE = "/alert-rules/{name}"


@pytest.fixture
def operator() -> Client:
    make_fleet()
    return person("operator")


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setitem(settings.ENV, "CONSOLE_ALERT_NETWORKS", ["127.0.0.0/8"])
    return person("admin")


def put(client: Client, body: Any, **headers: str) -> Any:
    return send(client, "put", "/alert-rules/kv-full", body, **headers)


def test_the_life_of_a_rule(operator: Client) -> None:
    made = put(operator, {"document": FULL, "reason": "new"})
    assert conforms(made, ONE, "put")["version"] == 1
    assert made["ETag"] == '"1"'
    assert put(operator, {"document": FULL | {"threshold": 0.8}}).status_code == 428
    stale = put(operator, {"document": FULL | {"threshold": 0.8}}, **{"If-Match": '"9"'})
    assert stale.status_code == 412
    changed = put(operator, {"document": FULL | {"threshold": 0.8}}, **{"If-Match": '"1"'})
    assert strict(changed)["document"]["threshold"] == 0.8
    again = send(operator, "get", "/alert-rules/kv-full")
    assert conforms(again, ONE)["version"] == 2
    [listed] = conforms(send(operator, "get", "/alert-rules"), "/alert-rules")["results"]
    assert listed["name"] == "kv-full"
    assert send(operator, "delete", "/alert-rules/kv-full").status_code == 428
    gone = send(operator, "delete", "/alert-rules/kv-full", **{"If-Match": '"2"'})
    assert gone.status_code == 204
    assert not AlertRule.objects.exists()
    assert list(Action.objects.filter(verb__startswith="alert").values_list("verb", "actor")) == [
        ("alert_rule.create", "operator"),
        ("alert_rule.update", "operator"),
        ("alert_rule.delete", "operator"),
    ]


@pytest.mark.parametrize(
    ("document", "field", "words"),
    [
        (FULL | {"signal": "kv_cache_usage_ratio"}, "signal", "did you mean"),
        (FULL | {"where": {"clusters": "a"}}, "where.clusters", "not a known key"),
        (FULL | {"name": "other"}, "document", "in the address"),
        ([], "scenario", "table"),
    ],
    ids=["signal", "where", "name", "list"],
)
def test_a_rule_that_cannot_be_meant_names_its_field(
    operator: Client, document: Any, field: str, words: str
) -> None:
    refused = put(operator, {"document": document})
    assert refused.status_code == 422
    assert words in str(strict(refused)["errors"][field])
    assert not AlertRule.objects.exists()


def test_signals_are_listed_with_units(operator: Client) -> None:
    listed = conforms(send(operator, "get", "/alert-signals"), "/alert-signals")
    assert {"signal": "link.rtt_s", "unit": "s"} in listed


def test_incidents_are_found_and_acknowledged(operator: Client) -> None:
    row = incident()
    incident(rule="old", resolved_at=NOW)
    listed = conforms(send(operator, "get", "/incidents?open=true"), "/incidents")
    assert [found["id"] for found in listed["results"]] == [row.pk]
    assert len(strict(send(operator, "get", "/incidents?fleet=f1&rule=old"))["results"]) == 1
    path = f"/incidents/{row.pk}/acknowledge"
    assert send(operator, "post", path, {}).status_code == 428
    done = send(operator, "post", path, {"note": "on it"}, **{"If-Match": '"1"'})
    assert conforms(done, "/incidents/{incident_id}/acknowledge", "post")["version"] == 2
    assert send(operator, "post", path, {}, **{"If-Match": '"1"'}).status_code == 412
    assert send(operator, "post", path, {}, **{"If-Match": '"2"'}).status_code == 422
    Notification.objects.create(
        incident=row, receiver="hook", event="firing", created_at=NOW, due_at=NOW
    )
    shown = conforms(send(operator, "get", f"/incidents/{row.pk}"), "/incidents/{incident_id}")
    assert (shown["acknowledged_by"], shown["told"][0]["state"]) == ("operator", "waiting")


def test_silences_begin_and_end(operator: Client) -> None:
    ends_at = (timezone.now() + timedelta(hours=1)).isoformat()
    begun = send(operator, "post", "/silences", {"reason": "works", "ends_at": ends_at})
    assert begun.status_code == 201
    number = strict(begun)["id"]
    late = (timezone.now() + timedelta(days=31)).isoformat()
    refused = send(operator, "post", "/silences", {"reason": "works", "ends_at": late})
    assert strict(refused)["errors"]["ends_at"]
    ended = send(operator, "post", f"/silences/{number}/end", {"reason": "done"})
    assert conforms(ended, "/silences/{silence_id}/end", "post")["ended_by"] == "operator"
    assert Silence.objects.get().ends_at <= timezone.now()


def test_receivers_are_kept_tried_and_forgotten(admin: Client) -> None:
    with receiving() as heard:
        body = {"kind": "webhook", "target": heard.url, "reason": "new"}
        made = send(admin, "put", "/receivers/hook", body)
        assert conforms(made, "/receivers/{name}", "put")["version"] == 1
        tried = send(admin, "post", "/receivers/hook/test")
        assert conforms(tried, "/receivers/{name}/test", "post") == {"sent": True, "error": ""}
        assert heard.bodies[0]["rule"] == "test"
        heard.status = 500
        assert strict(send(admin, "post", "/receivers/hook/test"))["error"] == "answered 500"
    assert send(admin, "delete", "/receivers/hook").status_code == 204
    assert not Receiver.objects.exists()


def test_a_receiver_within_the_site_is_refused(admin: Client) -> None:
    refused = send(
        admin, "put", "/receivers/hook", {"kind": "webhook", "target": "http://10.0.0.1/x"}
    )
    assert "CONSOLE_ALERT_NETWORKS" in str(strict(refused)["errors"]["target"])


def test_a_rule_with_an_open_incident_leaves_it_closed(operator: Client) -> None:
    put(operator, {"document": FULL})
    row = incident()
    put(operator, {"document": FULL, "enabled": False}, **{"If-Match": '"1"'})
    assert Incident.objects.get(pk=row.pk).ended_by == "operator switched the rule off"
