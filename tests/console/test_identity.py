"""People and their rights: who sees which fleet, who makes whom what, how long a sign-in lasts."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from console import consumers, people, sessions
from console.people import Who
from routing import audit, rights
from routing.alerts.models import AlertRule, Incident, Silence
from routing.commands import Refused
from routing.models import Action
from telemetry import tokens
from tests.console.api_case import MODEL_BACKEND, conforms, send, strict
from tests.console.page_case import busy_fleet
from tests.console.test_pages import words

pytestmark = pytest.mark.django_db
WHO = Who("root", "test", "a test")


def somebody(*groups: str, name: str = "ana") -> Client:
    user, _password = people.create(name=name, groups=list(groups), who=WHO)
    client = Client()
    client.force_login(user, backend=MODEL_BACKEND)
    return client


def incident(fleet: str) -> Incident:
    now = timezone.now()
    return Incident.objects.create(
        rule="r", kind="figure", group=fleet, fleet=fleet, severity="warn", signal="x",
        sentence=f"too much in {fleet}", n=1, most=1, members=[], opened_at=now, seen_at=now,
    )  # fmt: skip


@pytest.fixture
def two() -> None:
    """Two fleets with a past, each with alerts, changes and keys."""
    now = timezone.now()
    for name in ("f1", "f2"):
        busy_fleet(name)
        incident(name)
        audit.record(actor=f"zoe-{name}", via="ui", verb="x", fleet=name, target=f"t-{name}")
        tokens.issue(f"key-{name}", ["ingest"], name, "zoe")
        AlertRule.objects.create(
            name=f"rule-{name}", document={"name": f"rule-{name}", "fleet": name}, updated_at=now
        )
        Silence.objects.create(
            fleet=name, reason=f"quiet-{name}", created_by="zoe", created_at=now,
            ends_at=now + timedelta(hours=1),
        )  # fmt: skip
    tokens.issue("key-of-all", ["ingest"], "", "zoe")
    audit.record(actor="zoe-site", via="ui", verb="x", target="t-site")


@pytest.mark.parametrize(
    ("groups", "everywhere", "f1", "f2"),
    [
        ((), "", "", ""),
        (("viewer",), "read", "read", "read"),
        (("operator:f1",), "", "operate read", ""),
        (("viewer", "approver:f2"), "read", "read", "approve read"),
        (("admin:f1", "viewer:f2"), "", "admin approve operate read", "read"),
        (("operator", "approver"), "approve operate read",) + ("approve operate read",) * 2,
        (("admin:", "operator:", "root", "viewers"), "", "", ""),
    ],
)  # fmt: skip
def test_rights_of_groups(groups: tuple[str, ...], everywhere: str, f1: str, f2: str) -> None:
    found = rights.of_groups(list(groups))
    assert [" ".join(sorted(found.scopes(fleet))) for fleet in ("", "f1", "f2")] == [
        everywhere, f1, f2
    ]  # fmt: skip


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/search/?q=f2", "/search/?q=pause", "/audit/", "/audit/?format=csv", "/tokens/"),
        *("/audit/?format=json", "/alerts/?state=all", "/alerts/rules/", "/account/"),
        *("/alerts/?fleet=f2", "/audit/?fleet=f2", "/fleets/f1/", "/fleets/f1/fleet/"),
        *("/api/v1/fleets", "/api/v1/audit", "/api/v1/audit?fleet=f2", "/api/v1/incidents"),
        *("/api/v1/alert-rules", "/api/v1/silences", "/api/v1/tokens", "/api/v1/me"),
    ],
)
def test_who_has_rights_for_one_fleet_sees_only_that_one(two: None, path: str) -> None:
    response = somebody("admin:f1").get(path, follow=True)
    assert response.status_code == 200
    body = b"".join(response.streaming_content) if response.streaming else response.content
    page = body.decode()
    page = page.replace("f2", "", 1) if "=f2" in path and path.startswith("/") else page
    told = r"(?:fleets/|fleet-|in |key-|zoe-|t-|rule-|quiet-|fleet )(?:f2|site|of-all)\b"
    found = re.findall(told, page)
    assert not found, f"{path} tells of another fleet: {found}"


def test_it_is_there_for_who_may_see_it(two: None) -> None:
    client = somebody("viewer")
    for path in ("/", "/audit/", "/alerts/?state=all", "/alerts/rules/"):
        page = client.get(path).content.decode()
        assert "f1" in page, path
        assert "f2" in page, path


def test_objects_of_other_fleets_do_not_exist(two: None) -> None:
    client = somebody("admin:f1")
    theirs = Incident.objects.get(fleet="f2").pk
    for path in (f"/alerts/{theirs}/", "/alerts/rules/rule-f2/edit/"):
        assert client.get(path).status_code == 404
    key = tokens.ApiToken.objects.get(name="key-f2").pk
    assert client.get(f"/tokens/{key}/revoke/").status_code == 404
    for method, path in (
        ("get", f"/incidents/{theirs}"),
        ("post", f"/incidents/{theirs}/acknowledge"),
        ("get", "/alert-rules/rule-f2"),
        ("delete", "/alert-rules/rule-f2"),
        ("post", f"/silences/{Silence.objects.get(fleet='f2').pk}/end"),
        ("post", f"/tokens/{key}/revoke"),
    ):
        assert send(client, method, path, {"reason": "x"}).status_code == 404, path


def test_who_operates_one_fleet_changes_alerts_of_that_one(two: None) -> None:
    client = somebody("operator:f1", "viewer")
    rule = {
        "name": "kv", "signal": "instance.kv_cache_usage_ratio", "is": "above", "threshold": 0.9,
    }  # fmt: skip
    ends = (timezone.now() + timedelta(hours=1)).isoformat()
    for fleet, status in (("f1", 200), ("f2", 403), ("", 403)):
        document = {**rule, "name": f"kv{fleet}"} | ({"fleet": fleet} if fleet else {})
        body = {"document": document, "reason": "x"}
        answer = send(client, "put", f"/alert-rules/kv{fleet}", body)
        assert answer.status_code == status
        silence = {"fleet": fleet, "reason": "x", "ends_at": ends}
        assert send(client, "post", "/silences", silence).status_code in (status, status + 1)
    theirs = Incident.objects.get(fleet="f2").pk
    assert send(client, "post", f"/incidents/{theirs}/acknowledge", {}).status_code == 403
    page = client.get(f"/alerts/{theirs}/").content.decode()
    assert "Acknowledge" not in page
    assert (
        "Acknowledge"
        in client.get(f"/alerts/{Incident.objects.get(fleet='f1').pk}/").content.decode()
    )


def test_people_over_rest() -> None:
    busy_fleet("f1")
    admin = somebody("admin", name="root2")
    made = send(admin, "post", "/users", {"name": "bo", "groups": ["viewer"], "reason": "new"})
    assert made.status_code == 201
    body = conforms(made, "/users", "post")
    assert (body["name"], body["groups"], len(body["password"]) >= 16) == ("bo", ["viewer"], True)
    signed_in = Client().post("/login/", {"username": "bo", "password": body["password"]})
    assert signed_in.status_code == 302
    path = f"/users/{body['id']}"
    joined = send(admin, "post", f"{path}/join", {"group": "operator:f1", "reason": "on call"})
    assert strict(joined)["groups"] == ["operator:f1", "viewer"]
    left = send(admin, "post", f"{path}/leave", {"group": "viewer"})
    assert strict(left)["groups"] == ["operator:f1"]
    assert strict(send(admin, "post", f"{path}/deactivate", {}))["is_active"] is False
    assert strict(send(admin, "post", f"{path}/activate", {}))["is_active"] is True
    again = strict(send(admin, "post", f"{path}/password", {}))["password"]
    assert again != body["password"]
    listed = strict(send(admin, "get", "/users?role=operator&search=b&active=true"))
    assert [row["name"] for row in listed["results"]] == ["bo"]
    verbs = list(Action.objects.filter(target="bo").order_by("id").values_list("verb", flat=True))
    assert verbs == [
        *("user.create", "user.groups", "user.groups", "user.deactivate", "user.activate"),
        "user.password",
    ]
    stored = str(list(Action.objects.values_list("before", "after")))
    assert again not in stored
    assert body["password"] not in stored


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"name": "a b"}, "name"),
        ({"name": "ROOT2"}, "name"),
        ({"name": "\u202ebo"}, "name"),
        ({"name": "bo", "groups": ["root"]}, "groups"),
        ({"name": "bo", "groups": ["viewer:gone"]}, "groups"),
        ({"name": "bo", "groups": ["viewer:"]}, "groups"),
        ({"name": "bo", "email": "a@b@c"}, "email"),
    ],
)
def test_a_person_that_cannot_be(asked: dict[str, Any], field: str) -> None:
    admin = somebody("admin", name="root2")
    answer = send(admin, "post", "/users", asked)
    assert (answer.status_code, list(strict(answer)["errors"])) == (422, [field])
    assert User.objects.count() == 1


def test_somebody_always_administers_the_site() -> None:
    admin = somebody("admin", name="root2")
    me = User.objects.get()
    for path, body in (("deactivate", {}), ("leave", {"group": "admin"})):
        answer = send(admin, "post", f"/users/{me.pk}/{path}", body)
        assert answer.status_code == 422, path
    people.create(name="bo", groups=["admin"], who=WHO)
    assert send(admin, "post", f"/users/{me.pk}/leave", {"group": "admin"}).status_code == 200
    assert send(admin, "get", "/users").status_code == 403
    with pytest.raises(Refused, match="the last who administers"):
        people.activate(User.objects.get(username="bo"), is_active=False, who=WHO)


def test_pages_of_people() -> None:
    busy_fleet("f1")
    admin = somebody("admin", name="root2")
    page = admin.post("/people/new/", {"name": "bo", "role": "operator", "fleet": "f1"})
    secret = re.search(r'id="secret">([^<]+)<', page.content.decode())
    assert secret
    bo = User.objects.get(username="bo")
    assert people.groups_of(bo) == ["operator:f1"]
    assert bo.check_password(secret[1])
    shown = words(admin.get("/people/").content.decode())
    assert "bo" in shown
    assert "operator:f1" in shown
    assert "bo" not in words(admin.get("/people/?role=approver").content.decode()).split()
    admin.post(f"/people/{bo.pk}/join/", {"role": "approver", "fleet": "", "reason": "why"})
    admin.post(f"/people/{bo.pk}/leave/", {"group": "operator:f1"})
    assert people.groups_of(User.objects.get(pk=bo.pk)) == ["approver"]
    admin.post(f"/people/{bo.pk}/activate/", {"to": "off"})
    bo.refresh_from_db()
    assert not bo.is_active
    shown = words(admin.get(f"/people/{bo.pk}/").content.decode())
    assert "may not sign in" in shown
    reset = admin.post(f"/people/{bo.pk}/password/").content.decode()
    assert 'id="secret"' in reset
    assert admin.post(f"/people/{bo.pk}/join/", {"role": "root"}).status_code == 422
    assert "This is you" in words(
        admin.get(f"/people/{User.objects.get(username='root2').pk}/").content.decode()
    )


def test_hostile_names_are_shown_as_they_are() -> None:
    admin = somebody("admin", name="root2")
    User.objects.create_user("<script>x</script>", email="=1+1@x")
    page = admin.get("/people/").content.decode()
    assert "<script>x" not in page


def test_everybody_sees_their_own_account() -> None:
    busy_fleet("f1")
    shown = words(somebody("operator:f1").get("/account/").content.decode())
    assert "Operator: may switch modes" in shown
    assert "every fleet" not in shown
    assert "You are in no group" in words(somebody(name="bo").get("/account/").content.decode())


def test_a_new_password_ends_other_sessions() -> None:
    _user, password = people.create(name="bo", groups=["viewer"], who=WHO)
    here, there = Client(), Client()
    for client in (here, there):
        client.post("/login/", {"username": "bo", "password": password})
    new = "quite another pass phrase"
    wrong = {"old_password": "x", "new_password1": new, "new_password2": new}
    assert here.post("/account/", wrong).status_code == 422
    assert here.post("/account/", {**wrong, "old_password": password}).status_code == 302
    assert here.get("/account/").status_code == 200
    assert there.get("/account/").status_code == 302
    assert Action.objects.get(verb="user.password").actor == "bo"


def test_a_sign_in_ends_whatever_happens_meanwhile(settings: Settings) -> None:
    busy_fleet("f1")
    client = somebody("viewer")
    assert client.get("/fleets/f1/").status_code == 200
    key = client.session.session_key
    assert consumers._refusal(key, "f1") is None
    session = client.session
    session[sessions.SINCE] -= settings.SESSION_S + 1
    session.save()
    assert consumers._refusal(key, "f1") == (401, "log in first")
    assert client.get("/fleets/f1/").status_code == 302
    assert client.get("/api/v1/fleets").status_code == 401


def test_requests_are_told_apart_in_answers_errors_and_the_audit() -> None:
    busy_fleet("f1")
    admin = somebody("admin", name="root2")
    answer = send(admin, "post", "/users", {"name": "bo"}, **{"X-Request-ID": "deploy-17"})
    assert answer["X-Request-ID"] == "deploy-17"
    assert Action.objects.get(target="bo").request_id == "deploy-17"
    assert strict(send(admin, "get", "/audit"))["results"][0]["request_id"] == "deploy-17"
    wrong = send(admin, "post", "/users", {"name": "bo"}, **{"X-Request-ID": "a b\t"})
    assert wrong.status_code == 422
    made_up = strict(wrong)["request_id"]
    assert re.fullmatch("[0-9a-f]{32}", made_up)
    assert wrong["X-Request-ID"] == made_up
    gone = Client().get("/api/v1/nowhere")
    assert gone.json()["request_id"] == gone["X-Request-ID"]


def test_tokens_from_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("token", "issue", "agent", "--scope=ingest", "--days=90")
    secret = capsys.readouterr().out.strip()
    prefix = tokens.prefix_of(secret)
    call_command("token", "rotate", prefix, "--grace-h=1")
    new = capsys.readouterr().out.strip()
    now = timezone.now()
    assert tokens.find(secret, now) is not None
    assert tokens.find(secret, now + timedelta(hours=2)) is None
    assert tokens.find(new, now + timedelta(days=89)) is not None
    call_command("token", "list")
    shown = capsys.readouterr().out
    assert prefix in shown
    assert tokens.prefix_of(new) in shown
    assert secret not in shown


def test_who_last_used_a_token_is_written_once_a_minute() -> None:
    _token, secret = tokens.issue("m", ["read"], "", "ana")
    now = timezone.now()
    for seconds, used in ((0, 0), (59, 0), (61, 61)):
        tokens.find(secret, now + timedelta(seconds=seconds))
        found = tokens.ApiToken.objects.get().last_used_at
        assert found == now + timedelta(seconds=used)
