"""Pages of receivers: added, changed, tried and forgotten by administrators of the site."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Group, User
from django.test import Client

from routing.alerts.models import Receiver
from routing.models import Action
from tests.console.api_case import person
from tests.routing.alerts.case import FULL, Heard, put, receiving
from tests.routing.cases import make_fleet

pytestmark = pytest.mark.django_db

EDIT = "/alerts/receivers/hook/edit/"
MAIL = {"name": "hook", "kind": "email", "target": "on-call@example.com", "secret_file": ""}


@pytest.fixture
def admin() -> Client:
    make_fleet()
    return person("admin")


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    monkeypatch.setitem(settings.ENV, "CONSOLE_ALERT_NETWORKS", ["127.0.0.0/8"])
    with receiving() as found:
        yield found


def keep(client: Client, version: int = 0, path: str = "", **changes: Any) -> Any:
    body = MAIL | {"version": version, "reason": "on call moved"} | changes
    return client.post(path or "/alerts/receivers/new/", body, follow=True)


def text(client: Client, path: str = "/alerts/receivers/") -> str:
    response = client.get(path)
    assert response.status_code == 200
    return str(response.content.decode())


def test_an_empty_list_says_who_adds_the_first(admin: Client) -> None:
    assert "Add the first one" in text(admin)
    viewer = text(person("viewer"))
    assert "An administrator of the site adds one." in viewer
    assert "/alerts/receivers/new/" not in viewer


def test_one_is_added_and_changed(admin: Client) -> None:
    assert "Receiver hook is kept, version 1." in keep(admin).content.decode()
    changed = keep(admin, 1, EDIT, target="lead@example.com, on-call@example.com", name="other")
    assert "version 2" in changed.content.decode()
    row = Receiver.objects.get()
    assert (row.pk, row.target) == ("hook", "lead@example.com, on-call@example.com")
    audited = Action.objects.latest("pk")
    assert (audited.via, audited.actor, audited.reason) == ("ui", "admin", "on call moved")
    page = text(admin)
    assert "told nothing yet" in page
    assert EDIT in page
    assert EDIT not in text(person("viewer"))


def test_who_has_not_seen_the_newest_version_does_not_overwrite_it(admin: Client) -> None:
    keep(admin)
    keep(admin, 1, EDIT, target="a@example.com")
    stale = keep(admin, 1, EDIT, target="b@example.com")
    assert stale.status_code == 409
    assert "is at version 2 now" in stale.content.decode()
    assert Receiver.objects.get().target == "a@example.com"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "On Call"}, "must be small letters"),
        ({"target": "nobody"}, "is no e-mail address"),
        ({"kind": "slack", "target": "ftp://x"}, "must be http://HOST"),
        ({"kind": "webhook", "target": "http://10.0.0.1/x"}, "CONSOLE_ALERT_NETWORKS"),
        ({"kind": "pigeon"}, "Select a valid choice"),
        ({"secret_file": "../key"}, "without a folder"),
        ({"reason": "turned\u202eround"}, "U+202E"),
    ],
)
def test_what_cannot_be_meant_stands_at_its_field(
    admin: Client, change: dict[str, str], says: str
) -> None:
    answer = keep(admin, **change)
    assert answer.status_code == 422
    assert says in answer.content.decode()
    assert not Receiver.objects.exists()


def test_a_test_message_is_sent_and_its_failure_told(admin: Client, heard: Heard) -> None:
    keep(admin, kind="webhook", target=heard.url)
    done = admin.post("/alerts/receivers/hook/test/", follow=True)
    assert "A test message was sent to hook." in done.content.decode()
    assert heard.bodies[0]["rule"] == "test"
    heard.status = 500
    failed = admin.post("/alerts/receivers/hook/test/", follow=True).content.decode()
    assert "The test message was not sent: answered 500." in failed


def test_one_that_a_rule_names_stays_until_none_does(admin: Client) -> None:
    keep(admin)
    rule = put(FULL | {"receivers": ["hook"]})
    assert "Forget it" not in text(admin, EDIT)
    kept = admin.post("/alerts/receivers/hook/forget/", follow=True).content.decode()
    assert "is named by the rule kv-full" in kept
    rule.delete()
    gone = admin.post("/alerts/receivers/hook/forget/", {"reason": "moved"}, follow=True)
    assert "Receiver hook is forgotten." in gone.content.decode()
    assert not Receiver.objects.exists()


def test_an_operator_and_an_administrator_of_one_fleet_change_none(admin: Client) -> None:
    keep(admin)
    of_one = person("viewer")
    User.objects.get(username="viewer").groups.set([Group.objects.create(name="admin:f1")])
    for client in (person("operator"), of_one):
        for path in (EDIT, "/alerts/receivers/new/"):
            assert client.get(path).status_code == 403
        for path in (EDIT, "/alerts/receivers/hook/test/", "/alerts/receivers/hook/forget/"):
            assert client.post(path, MAIL | {"version": 1}).status_code == 403
    assert admin.get("/alerts/receivers/hook/forget/").status_code == 405
    assert admin.get("/alerts/receivers/nobody/edit/").status_code == 404
