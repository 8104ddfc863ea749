"""Pages of alerts: what fires is acknowledged or silenced; rules are tried before kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from routing.alerts.models import AlertRule, Incident, Silence
from tests.console.api_case import person
from tests.routing.alerts.case import FULL, incident, put
from tests.routing.cases import NOW, make_fleet

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def operator() -> Client:
    make_fleet()
    return person("operator")


def text(client: Client, path: str) -> str:
    response = client.get(path)
    assert response.status_code == 200
    return str(response.content.decode())


def test_an_empty_page_says_what_to_do_next(operator: Client) -> None:
    page = text(operator, "/alerts/")
    assert "Nothing is watched: there is no rule yet." in page
    assert "/alerts/rules/new/" in page
    assert "/alerts/rules/new/" not in text(person("viewer"), "/alerts/")


def test_what_fires_comes_first_and_is_filtered(operator: Client) -> None:
    put(FULL)
    incident(rule="bygone", resolved_at=NOW)
    incident(severity="page", sentence=HOSTILE)
    page = text(operator, "/alerts/")
    assert "1 incident is open." in page
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page
    assert "bygone" not in text(operator, "/alerts/?severity=page")
    assert "No incident matches." in text(operator, "/alerts/?severity=info")
    assert "bygone" in text(operator, "/alerts/?state=all")
    assert "bygone" in text(operator, "/alerts/?state=over")


def test_a_change_that_waits_leads_to_its_page(operator: Client) -> None:
    member = {"source": "f1/proposal-7", "value": 910.0, "since_s": NOW.timestamp()}
    row = incident(signal="approval.waits_s", members=[member])
    assert '<a href="/approvals/7/">f1/proposal-7</a>' in text(operator, f"/alerts/{row.pk}/")


def test_an_incident_is_acknowledged(operator: Client) -> None:
    row = incident()
    page = text(operator, f"/alerts/{row.pk}/")
    assert "f1/pd/d1" in page
    assert "/fleets/f1/signals/?kind=instance&amp;signal=kv_cache_usage_ratio" in page
    done = operator.post(f"/alerts/{row.pk}/acknowledge/", {"note": "on it"}, follow=True)
    assert "operator acknowledged it" in done.content.decode()
    assert Incident.objects.get().note == "on it"
    again = operator.post(f"/alerts/{row.pk}/acknowledge/", {"note": ""}, follow=True)
    assert "operator has acknowledged it" in again.content.decode()


def test_a_viewer_sees_and_does_not_act() -> None:
    make_fleet()
    row, viewer = incident(), person("viewer")
    assert "Only operators acknowledge." in text(viewer, f"/alerts/{row.pk}/")
    for path in (f"/alerts/{row.pk}/acknowledge/", "/alerts/silence/", "/alerts/rules/new/"):
        assert viewer.post(path, {}).status_code == 403
    assert Incident.objects.get().acknowledged_at is None


def test_silences_begin_and_end(operator: Client) -> None:
    incident()
    assert 'value="kv-full"' in text(operator, "/alerts/silence/?rule=kv-full&fleet=f1")
    asked = {"rule": "kv-*", "cluster": "*", "severity": "*", "span_s": 3600, "reason": "works"}
    assert operator.post("/alerts/silence/", asked | {"reason": ""}).status_code == 422
    assert operator.post("/alerts/silence/", asked).status_code == 302
    page = text(operator, "/alerts/")
    assert "Rule kv-*" in page
    assert "silent" in page
    row = Silence.objects.get()
    operator.post(f"/alerts/silences/{row.pk}/end/")
    assert Silence.objects.get().ends_at <= timezone.now()


def sent(document: Any, version: int = 0, **more: str) -> dict[str, Any]:
    return {"document": json.dumps(document), "version": version, "enabled": "on", **more}


def test_a_rule_is_tried_before_it_is_kept(operator: Client) -> None:
    tried = operator.post("/alerts/rules/new/", sent(FULL, **{"try": ""}))
    assert "No source matches its patterns" in tried.content.decode()
    assert not AlertRule.objects.exists()
    kept = operator.post("/alerts/rules/new/", sent(FULL, keep=""), follow=True)
    assert "Rule kv-full is kept, version 1." in kept.content.decode()
    assert "instance.kv_cache_usage_ratio above 0.900 for 20 s" in text(operator, "/alerts/rules/")


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{", "This is no JSON"),
        (json.dumps(FULL | {"signal": "x"}), "signal: is no signal there is"),
        (json.dumps(FULL | {"threshold": HOSTILE}), "threshold: must be a finite number"),
    ],
)
def test_what_is_wrong_with_a_rule_is_said_and_nothing_is_lost(
    operator: Client, document: str, words: str
) -> None:
    refused = operator.post(
        "/alerts/rules/new/", {"document": document, "version": 0, "keep": "", "reason": "mine"}
    )
    assert refused.status_code == 422
    page = refused.content.decode()
    assert words in page
    assert 'value="mine"' in page


def test_a_rule_that_somebody_else_changed_is_not_overwritten(operator: Client) -> None:
    put(FULL)
    path = "/alerts/rules/kv-full/edit/"
    put(FULL | {"threshold": 0.8})
    stale = operator.post(path, sent(FULL | {"threshold": 0.7}, version=1, keep=""))
    assert stale.status_code == 422
    assert "is at version 2 now" in stale.content.decode()
    assert AlertRule.objects.get().document["threshold"] == 0.8
    renamed = operator.post(path, sent(FULL | {"name": "other"}, version=2, keep=""))
    assert "name: stays kv-full" in renamed.content.decode()


def test_pages_ask_the_database_a_few_times_only(
    operator: Client, django_assert_max_num_queries: Any
) -> None:
    for i in range(120):
        incident(group=f"f1/c{i}")
    text(operator, "/alerts/")
    with django_assert_max_num_queries(12):
        text(operator, "/alerts/")
    with django_assert_max_num_queries(12):
        text(operator, f"/alerts/{Incident.objects.first().pk}/")
