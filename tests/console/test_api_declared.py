"""REST of the whole configuration as one document: formats, rights, versions, one error shape."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from routing.declared.state import read_state
from routing.declared.text import FORMATS, Format
from routing.models import Action, Fleet, Policy
from tests.console.api_case import BASE, conforms, machine, person, send
from tests.routing.cases import scenario
from tests.routing.declared.case import site, wipe

pytestmark = pytest.mark.django_db

TYPES: dict[Format, str] = {
    "toml": "application/toml",
    "yaml": "application/yaml",
    "json": "application/json",
}


def post(client: Client, raw: bytes, type_: str, query: str = "", **headers: str) -> Any:
    return client.generic("POST", f"{BASE}/apply{query}", raw, content_type=type_, headers=headers)


@pytest.mark.parametrize("format_", FORMATS)
def test_what_is_exported_is_applied_and_exported_again(format_: Format) -> None:
    site()
    admin = machine("admin")
    exported = admin.get(f"{BASE}/export?format={format_}")
    assert exported.headers["Content-Type"] == TYPES[format_]
    wipe()
    answer = post(admin, exported.content, TYPES[format_])
    body = conforms(answer, "/apply", "post")
    assert {change["action"] for change in body["changes"]} == {"create"}
    again = admin.get(f"{BASE}/export?format={format_}")
    assert again.content == exported.content
    assert again.headers["ETag"] == exported.headers["ETag"] == answer.headers["ETag"]
    assert Action.objects.order_by("-id")[0].via == "rest"
    rows = Action.objects.count()
    assert post(admin, exported.content, TYPES[format_], "?prune=true").json()["changes"] == []
    assert Action.objects.count() == rows


def test_an_export_that_is_known_is_not_sent_again() -> None:
    site()
    reader = machine("read")
    etag = reader.get(f"{BASE}/export").headers["ETag"]
    answer = reader.get(f"{BASE}/export", headers={"If-None-Match": etag})
    assert (answer.status_code, answer.content) == (304, b"")


def test_all_that_is_wrong_is_told_at_once_in_the_one_shape() -> None:
    site()
    wanted = read_state().document
    wanted["fleets"]["f1"]["links"][0] |= {"gbps": "fast", "speed": 1}
    wanted["policies"]["f1"]["mode"] = "asleep"
    answer = post(machine("admin"), json.dumps(wanted).encode(), TYPES["json"])
    body = conforms(answer, "/apply", "post")
    assert answer.status_code == 422
    assert body["errors"] == {
        "fleets.f1.links[0].gbps": ["must be a finite number (it is 'fast')"],
        "fleets.f1.links[0].speed": [body["errors"]["fleets.f1.links[0].speed"][0]],
        "policies.f1.mode": ["must be active or advisory or paused (it is 'asleep')"],
    }


@pytest.mark.parametrize(
    ("raw", "type_", "status"),
    [
        (b"a: 1\na: 2", "application/yaml", 422),
        (b"a = ", "application/toml", 422),
        (b"[1]", "application/json", 422),
        (b"{", "application/json", 422),
        (b'{"fleets": {"a": NaN}}', "application/json", 422),
        (b"", "application/json", 422),
        (b"x", "text/plain", 415),
        (b"#" * (4 * 2**20 + 1), "application/toml", 413),
        (b"{}", "application/json", 422),
        (b"# nothing", "application/yaml", 422),
        (b'{"version": 1}', "application/json", 200),
    ],
    ids=lambda v: str(v)[:30],
)
def test_bodies_that_cannot_be_read(raw: bytes, type_: str, status: int) -> None:
    answer = post(machine("admin"), raw, type_)
    assert answer.status_code == status
    conforms(answer, "/apply", "post")


@pytest.mark.parametrize("query", ["?dry_run=maybe", "?force=1", "?prune=true&prune=true"])
def test_a_query_that_cannot_be_meant(query: str) -> None:
    assert post(machine("admin"), b"{}", TYPES["json"], query).status_code == 422


def test_who_may_apply_and_who_may_look() -> None:
    site()
    bodies = {"fleets": {"f3": scenario("f3")}}
    raw = json.dumps(bodies).encode()
    for client in (machine("read"), machine("operate"), person("viewer"), person("operator")):
        assert post(client, raw, TYPES["json"]).status_code == 403
        assert post(client, raw, TYPES["json"], "?dry_run=false").status_code == 403
        assert client.get(f"{BASE}/export").status_code == 200
        tried = post(client, raw, TYPES["json"], "?dry_run=true")
        assert [c["name"] for c in conforms(tried, "/apply", "post")["changes"]] == ["f3"]
    for client in (machine("ingest"), machine("admin", fleet="f1"), Client()):
        assert post(client, raw, TYPES["json"], "?dry_run=true").status_code in (401, 403)
        assert client.get(f"{BASE}/export").status_code in (401, 403)
    assert Fleet.objects.count() == 2
    assert post(person("admin"), raw, TYPES["json"], "?reason=growth").status_code == 200
    row = Action.objects.order_by("-id")[0]
    assert (row.verb, row.actor, row.reason) == ("fleet.create", "admin", "growth")


def test_another_state_by_now_is_412_and_changes_nothing() -> None:
    site()
    admin = machine("admin")
    seen = admin.get(f"{BASE}/export").headers["ETag"]
    assert post(admin, b"policies: {f1: {mode: paused}}", TYPES["yaml"]).status_code == 200
    answer = post(admin, b"policies: {f1: {mode: active}}", TYPES["yaml"], **{"If-Match": seen})
    assert answer.status_code == 412
    assert Policy.objects.get(fleet="f1").mode == "paused"
    # What is so already needs no look again: a repetition of a request that was lost is answered.
    answer = post(admin, b"policies: {f1: {mode: paused}}", TYPES["yaml"], **{"If-Match": seen})
    assert (answer.status_code, answer.json()["changes"]) == (200, [])


def test_a_change_says_its_values_and_a_deletion_is_asked_for_by_name() -> None:
    site()
    admin = machine("admin")
    raw = b'[policies.f2]\nmode = "paused"\n[fleets]\n'
    answer = post(admin, raw, TYPES["toml"], "?prune=true")
    assert set(answer.json()["errors"]) == {"policies.f2"}  # the fleet it is of would go
    answer = post(admin, b"[policies.f2]\nmode = 'paused'\n", TYPES["toml"])
    assert answer.json()["changes"] == [
        {
            "action": "change",
            "kind": "policies",
            "name": "f2",
            "because": "",
            "before": None,
            "after": None,
            "differences": [{"path": "mode", "before": "advisory", "after": "paused"}],
        }
    ]
    send(admin, "get", "/fleets/f2")
    answer = post(admin, b"[fleets]\n", TYPES["toml"], "?prune=true&confirm=f1,f2")
    assert answer.status_code == 200
    assert not Fleet.objects.exists()


def test_a_document_that_reaches_too_far_waits_for_a_second_person() -> None:
    site()
    admin, other = machine("admin"), person("admin")
    limits = {"limits": {"changes": ["activate"]}}
    assert send(admin, "put", "/fleets/f2/approval-limits", limits).status_code in (200, 202)
    raw = b"policies: {f2: {mode: active}, f1: {mode: paused}}"
    tried = post(admin, raw, TYPES["yaml"], "?dry_run=true").json()
    assert tried["needs_approval"]
    answer = post(admin, raw, TYPES["yaml"])
    assert answer.status_code == 202
    assert Policy.objects.get(fleet="f1").mode == "active"
    path = f"/approvals/{answer.json()['id']}/approve"
    approved = send(other, "post", path, {"reason": "seen"})
    assert (approved.status_code, approved.json()["state"]) == (200, "done"), approved.content
    assert list(Policy.objects.order_by("fleet").values_list("mode", flat=True)) == [
        *("paused", "active"),
    ]


@pytest.mark.parametrize("query", ["", "?dry_run=true"])
def test_a_request_that_is_sent_again_under_its_key_is_answered_again(query: str) -> None:
    site()
    admin, raw = machine("admin"), b"policies: {f1: {mode: paused}}"
    first = post(admin, raw, TYPES["yaml"], query, **{"Idempotency-Key": "k1"})
    again = post(admin, raw, TYPES["yaml"], query, **{"Idempotency-Key": "k1"})
    assert (first.status_code, again.status_code) == (200, 200), again.content
    assert again.json() == first.json()
    assert again.headers["ETag"] == first.headers["ETag"]
