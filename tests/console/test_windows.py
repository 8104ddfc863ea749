"""Freezes, change windows and maintenance over REST and on their pages."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from routing.core.types import LinkMemory, Memory
from routing.models import Action, Fleet, Hold, Policy
from routing.windows import maintenance
from routing.windows.models import Maintenance, Override, Window
from tests.console.api_case import conforms, machine, person, send, strict
from tests.console.page_case import busy_fleet, tick
from tests.routing.cases import make_fleet
from tests.routing.windows.case import BY, CHANGES, FREEZE, put

pytestmark = pytest.mark.django_db

ONE = "/windows/{name}"
WORKED = "/fleets/{fleet}/maintenance"
ALWAYS = {
    "zone": "UTC",
    "days": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"],
    "from": "00:00",
    "to": "00:00",
}
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def admin() -> Client:
    make_fleet()
    return person("admin")


@pytest.fixture
def operator() -> Client:
    make_fleet()
    return person("operator")


def freeze_now(**changes: Any) -> Window:
    document = FREEZE | {"when": ALWAYS} | changes
    return put(document, now=timezone.now() - timedelta(minutes=1))


def in_s(seconds: float) -> str:
    return (timezone.now() + timedelta(seconds=seconds)).isoformat()


def text(client: Client, path: str, status: int = 200) -> str:
    response = client.get(path)
    assert response.status_code == status
    return str(response.content.decode())


def test_the_life_of_a_window_over_rest(admin: Client) -> None:
    made = send(admin, "put", "/windows/working-hours", {"document": CHANGES, "reason": "new"})
    assert conforms(made, ONE, "put")["version"] == 1
    assert made["ETag"] == '"1"'
    assert len(strict(made)["next"]) == 3
    again = {"document": CHANGES | {"fleet": "f1"}}
    assert send(admin, "put", "/windows/working-hours", again).status_code == 428
    stale = send(admin, "put", "/windows/working-hours", again, **{"If-Match": '"7"'})
    assert stale.status_code == 412
    kept = send(admin, "put", "/windows/working-hours", again, **{"If-Match": '"1"'})
    assert strict(kept)["fleet"] == "f1"
    [listed] = conforms(send(admin, "get", "/windows"), "/windows")["results"]
    assert listed["name"] == "working-hours"
    assert conforms(send(admin, "get", "/windows/working-hours"), ONE)["version"] == 2
    gone = send(admin, "delete", "/windows/working-hours", **{"If-Match": '"2"'})
    assert gone.status_code == 204
    assert not Window.objects.exists()


def test_only_administrators_keep_windows_and_override_them(operator: Client) -> None:
    freeze_now()
    for method, path, body in (
        ("put", "/windows/other", {"document": CHANGES | {"name": "other"}}),
        ("put", "/windows/black-friday", {"document": FREEZE}),
        ("delete", "/windows/black-friday", None),
        ("post", "/fleets/f1/freezes/override", {"reason": "x"}),
    ):
        assert send(operator, method, path, body).status_code == 403, path
    assert send(operator, "get", "/windows/black-friday").status_code == 200
    of_f1 = machine("admin", fleet="f1")
    assert (
        send(of_f1, "put", "/windows/all", {"document": CHANGES | {"name": "all"}}).status_code
        == 403
    )
    mine = CHANGES | {"name": "mine", "fleet": "f1"}
    assert send(of_f1, "put", "/windows/mine", {"document": mine}).status_code == 200


def test_what_is_wrong_with_a_window_is_named(admin: Client) -> None:
    document = CHANGES | {"when": CHANGES["when"] | {"zone": "Paris"}}
    refused = send(admin, "put", "/windows/working-hours", {"document": document})
    assert refused.status_code == 422
    assert "IANA" in str(strict(refused)["errors"]["when.zone"])


def test_a_frozen_command_is_a_conflict_that_names_the_freeze(operator: Client) -> None:
    freeze_now(of=["people"])
    hold = {"cluster": "pd", "mode": "always_local", "expires_at": in_s(600), "reason": "x"}
    refused = send(operator, "post", "/fleets/f1/holds", hold)
    assert refused.status_code == 409
    assert "is frozen by black-friday until" in strict(refused)["error"]
    policy = {"mode": "paused", "reason": "x"}
    paused = send(operator, "patch", "/fleets/f1/policy", policy, **{"If-Match": '"1"'})
    assert paused.status_code == 200
    back = send(
        operator, "patch", "/fleets/f1/policy", policy | {"mode": "active"}, **{"If-Match": '"2"'}
    )
    assert back.status_code == 409
    assert Policy.objects.get().mode == "paused"


def test_an_override_lets_the_administrator_through(admin: Client) -> None:
    nothing = send(admin, "post", "/fleets/f1/freezes/override", {"reason": "x"})
    assert nothing.status_code == 422
    freeze_now()
    state = conforms(send(admin, "get", "/fleets/f1/freezes"), "/fleets/{fleet}/freezes")
    assert [each["of"] for each in state["frozen"]] == ["plans", "roles", "people"]
    asked = {"reason": "incident 7", "for_s": 300}
    made = send(admin, "post", "/fleets/f1/freezes/override", asked)
    assert made.status_code == 201
    conforms(made, "/fleets/{fleet}/freezes/override", "post")
    hold = {"cluster": "pd", "mode": "always_local", "expires_at": in_s(600), "reason": "x"}
    assert send(admin, "post", "/fleets/f1/holds", hold).status_code == 201
    assert Action.objects.filter(verb="freeze.override", actor="admin").count() == 1


def test_the_life_of_maintenance_over_rest(operator: Client) -> None:
    body = {"link": "prfaas->pd", "ends_at": in_s(600), "reason": "new fibre"}
    path = "/fleets/f1/maintenance"
    made = send(operator, "post", path, body, **{"Idempotency-Key": "k"})
    assert made.status_code == 201
    row = conforms(made, WORKED, "post")
    assert (row["state"], row["owner"], row["version"]) == ("now", "operator", 1)
    again = send(operator, "post", path, body, **{"Idempotency-Key": "k"})
    assert strict(again)["id"] == row["id"]
    one = f"{path}/{row['id']}"
    assert conforms(send(operator, "get", one), WORKED + "/{maintenance_id}")["id"] == row["id"]
    longer = {"ends_at": in_s(1200), "reason": "not done"}
    assert send(operator, "post", f"{one}/extend", longer).status_code == 428
    extended = send(operator, "post", f"{one}/extend", longer, **{"If-Match": '"1"'})
    assert conforms(extended, WORKED + "/{maintenance_id}/extend", "post")["version"] == 2
    assert (
        send(operator, "post", f"{one}/end", {"reason": "x"}, **{"If-Match": '"1"'}).status_code
        == 412
    )
    ended = send(operator, "post", f"{one}/end", {"reason": "done"}, **{"If-Match": '"2"'})
    assert conforms(ended, WORKED + "/{maintenance_id}/end", "post")["state"] == "over"
    listed = conforms(send(operator, "get", f"{path}?open=false"), WORKED)["results"]
    assert [each["id"] for each in listed] == [row["id"]]
    assert conforms(send(operator, "get", f"{path}?open=true"), WORKED)["results"] == []
    assert send(operator, "get", one + "/end").status_code == 405
    viewer = person("viewer")
    assert send(viewer, "post", path, body).status_code == 403
    assert send(viewer, "get", path).status_code == 200


def test_an_empty_page_says_what_could_be(operator: Client) -> None:
    page = text(operator, "/fleets/f1/windows/")
    assert "Changes are allowed at any time." in page
    assert "Nothing is worked on." in page
    assert "The loop has not run yet" in page
    assert page.count("may change") >= 3
    assert "New window" not in page


def test_a_busy_page_says_what_is_frozen_until_when_by_whom() -> None:
    busy_fleet()
    admin = person("admin")
    freeze_now(reason=HOSTILE)
    put(CHANGES | {"fleet": "f1"}, enabled=False)
    now = timezone.now()
    maintenance.plan(fleet="f1", cluster="pd", ends_at=now + timedelta(hours=1), now=now, **BY)
    page = text(admin, "/fleets/f1/windows/")
    assert HOSTILE not in page
    assert page.count("black-friday") >= 4
    assert "cluster pd" in page
    assert "switched off" in page
    assert "/fleets/f1/windows/override/" in page
    for path in ("", "fleet/", "cluster/?id=pd", "link/?id=prfaas-%3Epd"):
        shown = text(admin, f"/fleets/f1/{path}")
        assert "Frozen by <strong>black-friday</strong>" in shown
        assert "Maintenance of <strong>cluster pd</strong>" in shown
        assert HOSTILE not in shown
    assert "Maintenance of" not in text(admin, "/fleets/f1/cluster/?id=prfaas")


def test_a_window_is_tried_and_kept(admin: Client) -> None:
    path = "/fleets/f1/windows/new/"
    assert "working-hours" in text(admin, path)
    form = {
        "document": json.dumps(FREEZE | {"when": ALWAYS}),
        "enabled": "on",
        "version": "0",
        "reason": "",
    }
    tried = admin.post(path, form | {"try": ""})
    assert "It would forbid changes: " in tried.content.decode()
    assert not Window.objects.exists()
    kept = admin.post(path, form | {"keep": ""})
    assert kept.status_code == 302
    edit = "/fleets/f1/windows/black-friday/edit/"
    assert "peak trading" in text(admin, edit)
    other = form | {"document": json.dumps(FREEZE | {"name": "other"}), "version": "1", "keep": ""}
    assert admin.post(edit, other).status_code == 422
    stale = admin.post(edit, form | {"keep": "", "version": "9"})
    assert stale.status_code == 422
    assert "read it again" in stale.content.decode()


def test_a_page_whose_change_is_frozen_says_so_and_writes_nothing(operator: Client) -> None:
    freeze_now(of=["people"])
    asked = {"mode": "active", "version": "1", "seen": "active", "typed": "f1"}
    Policy.objects.update(mode="advisory")
    answer = operator.post("/fleets/f1/mode/?to=active", asked)
    page = answer.content.decode()
    assert answer.status_code == 409
    assert "Frozen by black-friday until" in page
    assert "An administrator may override the freeze." in page
    assert Policy.objects.get().mode == "advisory"
    paused = operator.post("/fleets/f1/mode/?to=paused", asked | {"mode": "paused"})
    assert paused.status_code == 302
    assert Policy.objects.get().mode == "paused"


def test_an_administrator_overrides_on_the_page(admin: Client) -> None:
    path = "/fleets/f1/windows/override/"
    assert "Nothing is frozen" in text(admin, path)
    freeze_now()
    assert "you alone may change what is frozen" in text(admin, path)
    assert admin.post(path, {"for_s": "300", "reason": ""}).status_code == 422
    assert not Override.objects.exists()
    assert admin.post(path, {"for_s": "300", "reason": "incident 7"}).status_code == 302
    assert "admin overrides it until" in text(admin, "/fleets/f1/windows/")


def test_maintenance_is_planned_extended_and_ended_on_its_pages(operator: Client) -> None:
    path = "/fleets/f1/maintenance/plan/"
    page = text(operator, path + "?link=prfaas-%3Epd")
    assert "its breaker is held open" in page
    assert '<option value="link:prfaas-&gt;pd" selected>' in page
    form = {"what": "link:prfaas->pd", "starts_at": "", "span_s": "3600", "reason": "new fibre"}
    assert operator.post(path, form | {"reason": ""}).status_code == 422
    assert operator.post(path, form | {"what": "link:a->b"}).status_code == 422
    assert operator.post(path, form).status_code == 302
    row = Maintenance.objects.get()
    assert row.ends_at - row.starts_at == timedelta(hours=1)
    twice = operator.post(path, form)
    assert twice.status_code == 422
    assert "extend that" in twice.content.decode()
    one = f"/fleets/f1/maintenance/{row.pk}"
    assert "new fibre" in text(operator, f"{one}/extend/")
    longer = {"span_s": str(4 * 3600), "reason": "not done"}
    assert operator.post(f"{one}/extend/", longer).status_code == 302
    assert operator.post(f"{one}/end/", {"reason": "done"}).status_code == 302
    row.refresh_from_db()
    assert (row.ended_by, row.version) == ("operator", 3)
    assert "This maintenance is over." in text(operator, f"{one}/end/")
    assert operator.post(f"{one}/end/", {"reason": "again"}).status_code == 422


def test_maintenance_may_begin_later(operator: Client) -> None:
    later = timezone.localtime() + timedelta(days=1)
    form = {
        "what": "cluster:pd",
        "starts_at": f"{later:%Y-%m-%dT%H:%M}",
        "span_s": "3600",
        "reason": "racks move",
    }
    assert operator.post("/fleets/f1/maintenance/plan/", form).status_code == 302
    row = Maintenance.objects.get()
    assert row.starts_at == later.replace(second=0, microsecond=0)
    assert row.ends_at == row.starts_at + timedelta(hours=1)
    assert "planned" in text(operator, "/fleets/f1/windows/")
    assert not Hold.objects.exists()


def test_the_breaker_of_what_is_worked_on_is_not_reset(operator: Client) -> None:
    now = timezone.now()
    maintenance.plan(fleet="f1", cluster="pd", ends_at=now + timedelta(hours=1), now=now, **BY)
    judged = {"prfaas->pd": LinkMemory(label="down", breaker="open", breaker_at_s=now.timestamp())}
    tick(Fleet.objects.get(), now, memory=Memory(links=judged))
    path = "/fleets/f1/breakers/reset/?link=prfaas-%3Epd"
    assert "is in maintenance until" in text(operator, path)
    answer = operator.post(path, {"reason": "cable"})
    assert answer.status_code == 422
    assert not Action.objects.filter(verb="breaker.reset").exists()


def test_what_maintenance_would_do_to_capacity_is_said_first() -> None:
    busy_fleet()
    page = text(person("operator"), "/fleets/f1/maintenance/plan/?cluster=prfaas")
    assert "to everything local with the next tick" in page
    assert "no prefill is sent to it" in page


def test_charts_mark_maintenance(operator: Client) -> None:
    now = timezone.now()
    row = maintenance.plan(
        fleet="f1", link="prfaas->pd", ends_at=now + timedelta(hours=1), now=now, **BY
    )
    found = conforms(send(operator, "get", "/fleets/f1/marks"), "/fleets/{fleet}/marks")
    [span] = found["spans"]
    assert (span["kind"], span["id"], span["cluster"]) == ("maintenance", row.pk, "prfaas->pd")
    assert (span["until_s"], span["who"]) == (None, "ada")


def test_forms_of_what_is_frozen_say_so_before_they_are_sent(operator: Client) -> None:
    freeze_now(of=["people"])
    for path in ("hold/", "policy/", "holds/"):
        assert "Frozen by <strong>black-friday</strong>" in text(operator, f"/fleets/f1/{path}")
    hold = {"cluster": "pd", "mode": "always_local", "span_s": "3600", "reason": "x"}
    sent = operator.post("/fleets/f1/hold/", hold | {"version": "1", "seen": "active"})
    assert sent.status_code in (409, 422)
    assert "frozen by black-friday until" in sent.content.decode().lower()
    assert not Hold.objects.exists()
