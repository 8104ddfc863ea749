"""Every address of the URL map x everybody who may come (S-59): what `permission_table` says, the
server does. Sockets and event streams too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone

from console import consumers
from routing import token_commands
from routing.models import Action
from telemetry import tokens
from telemetry.models import ApiToken
from tests.console.api_case import MODEL_BACKEND
from tests.console.permission_table import TABLE
from tests.routing.cases import make_fleet

pytestmark = pytest.mark.django_db

ROLES = {
    "viewer": {"read"},
    "operator": {"read", "operate"},
    "approver": {"read", "approve"},
    "admin": {"read", "operate", "approve", "admin"},
}
TOKENS = {
    "ingest": {"ingest"},
    "router": {"router"},
    "read": {"read"},
    "operate": {"read", "operate"},
    "approve": {"read", "approve"},
    "admin": {"read", "operate", "approve", "admin"},
}
_VERBS = ("get", "post", "put", "patch", "delete")
_ARGUMENTS = {"int": "0", "slug": "n1", "str": "2026-10"}


class Rule(NamedTuple):
    """What one method of one address needs. `where`: fleet, site or any."""

    name: str
    method: str
    path: str
    scopes: frozenset[str]
    where: str

    @property
    def is_rest(self) -> bool:
        return self.path.startswith("/api/v1/")

    def admits(self, scopes: set[str], fleet: str) -> bool:
        """Whether whoever has `scopes` in `fleet` (none: everywhere) gets in."""
        if self.scopes & {"open", "login"}:
            return True
        if self.where == "site" and fleet:
            return False
        if self.where == "fleet" and fleet not in ("", "f1"):
            return False
        return bool(self.scopes & scopes)


def addresses() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(name, path, methods) of every address; a page that is a function takes all methods."""

    def walk(patterns: list[Any], prefix: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        for entry in patterns:
            route = prefix + str(entry.pattern)
            if isinstance(entry, URLResolver):
                yield from walk(entry.url_patterns, route)
            elif isinstance(entry, URLPattern):
                view = getattr(entry.callback, "view_class", None)
                is_ours = view is not None and route.startswith(("api/v1/", "i18n/<"))
                methods = tuple(m.upper() for m in _VERBS if hasattr(view, m)) if is_ours else ()
                yield str(entry.name), "/" + re.sub(r"<(\w+):(\w+)>", _stands_for, route), methods

    yield from walk(get_resolver().url_patterns, "")


def _stands_for(argument: re.Match[str]) -> str:
    named = {"fleet": "f1", "language": "ko", "version": "1"}
    return named.get(argument[2]) or _ARGUMENTS[argument[1]]


def table() -> dict[str, dict[str, str]]:
    """{name: {method: scopes}}"""
    found: dict[str, dict[str, str]] = {}
    for line in TABLE.split("\n"):
        name, *words = line.split() or [""]
        if not name:
            continue
        assert name not in found, f"{name} has two lines"
        pairs = dict(zip(words[::2], words[1::2], strict=True))
        if "page" in pairs:
            pairs = dict.fromkeys(("GET", "POST"), pairs["page"])
        found[name] = pairs
    return found


def rules() -> list[Rule]:
    found = []
    for name, path, _methods in addresses():
        for method, said in table().get(name, {}).items():
            where = "any" if said.endswith("*") else "fleet" if "/f1/" in f"{path}/" else "site"
            scopes = frozenset(said.removesuffix("*").split(","))
            found.append(Rule(name, method, path, scopes, where))
    return found


RULES = rules()


def test_every_address_is_in_the_table() -> None:
    said = table()
    wanted = {name: methods for name, _path, methods in addresses()}
    unknown = sorted(set(wanted) - set(said))
    assert not unknown, f"say in permission_table.py who may what at: {', '.join(unknown)}"
    assert not sorted(set(said) - set(wanted)), "addresses that are no more"
    for name, methods in wanted.items():
        if methods:
            assert set(methods) == set(said[name]), f"{name} answers {methods}"


def send(client: Client, rule: Rule) -> int:
    body = b"" if rule.method == "GET" else b"{}"
    return int(
        client.generic(rule.method, rule.path, body, content_type="application/json").status_code
    )


def person(name: str, *groups: str, **more: Any) -> Client:
    user = User.objects.create_user(name, **more)
    user.groups.set(Group.objects.get_or_create(name=group)[0] for group in groups)
    client = Client(raise_request_exception=False)
    client.force_login(user, backend=MODEL_BACKEND)
    return client


def machine(*scopes: str, fleet: str = "") -> tuple[ApiToken, Client]:
    token, secret = tokens.issue("m", scopes, fleet, "test")
    headers = {"Authorization": f"Bearer {secret}"}
    return token, Client(headers=headers, raise_request_exception=False)


@pytest.fixture(autouse=True)
def _fleets() -> None:
    make_fleet("f1")
    make_fleet("f2")


def leaks(client: Client, scopes: set[str], fleet: str, *, also: str = "") -> list[str]:
    """What whoever comes gets and may not have."""
    found = []
    for rule in RULES:
        if rule.admits(scopes, fleet) or (also and not rule.is_rest):
            continue
        status = send(client, rule)
        if status != 403:
            found.append(f"{rule.method} {rule.path} ({rule.name}) answers {status}")
    return found


@pytest.mark.parametrize(
    ("role", "fleet"), [("viewer", ""), ("operator", ""), ("approver", ""), ("admin", "f2")]
)
def test_people_get_nothing_that_their_role_does_not_give(role: str, fleet: str) -> None:
    client = person("somebody", f"{role}:{fleet}" if fleet else role)
    before = Action.objects.count()
    assert leaks(client, ROLES[role], fleet) == []
    assert Action.objects.count() == before


@pytest.mark.parametrize("group", ["", "viewers", "admin:", ":f1", "root", "Admin", "admin:f1:f2"])
def test_who_is_in_no_group_that_we_know_gets_nothing(group: str) -> None:
    client = person("somebody", *filter(None, [group]))
    samples = [
        rule for rule in RULES if not group or rule.name in ("fleet", "api-policy", "people")
    ]
    found = [f"{r.name} {r.method}" for r in samples if not r.admits(set(), "") and
             send(client, r) != 403]  # fmt: skip
    assert found == []


@pytest.mark.parametrize(
    ("scope", "fleet"), [*((scope, "") for scope in TOKENS if scope != "admin"), ("admin", "f2")]
)
def test_tokens_get_nothing_that_their_scope_does_not_give(scope: str, fleet: str) -> None:
    _token, client = machine(scope, fleet=fleet)
    before = Action.objects.count()
    assert leaks(client, TOKENS[scope], fleet, also="rest") == []
    assert Action.objects.count() == before


@pytest.mark.parametrize("how", ["nobody", "revoked", "expired", "unknown"])
def test_strangers_get_what_is_open(how: str) -> None:
    token, client = machine("admin")
    now = timezone.now()
    if how == "nobody":
        client = Client(raise_request_exception=False)
    elif how == "revoked":
        tokens.revoke(token, now)
    elif how == "expired":
        ApiToken.objects.update(expires_at=now - timedelta(seconds=1))
    else:
        client = Client(headers={"Authorization": "Bearer pf_x_y"}, raise_request_exception=False)
    found = []
    for rule in RULES:
        if "open" in rule.scopes or (how not in ("nobody", "revoked") and rule.method != "GET"):
            continue
        if how != "nobody" and not rule.is_rest:
            continue
        status = send(client, rule)
        if status != (401 if rule.is_rest else 302):
            found.append(f"{rule.method} {rule.path} ({rule.name}) answers {status}")
    assert found == []


LEAST = {"read": "viewer", "operate": "operator", "approve": "approver", "admin": "admin"}


@pytest.mark.parametrize("third", range(3))
@pytest.mark.parametrize("scope", LEAST)
def test_whoever_may_gets_in_also_for_one_fleet_only(scope: str, third: int) -> None:
    """The least of roles that suffices, bound to the fleet where that is enough."""
    everywhere, bound = person("a", LEAST[scope]), person("b", f"{LEAST[scope]}:f1")
    found = []
    for rule in [rule for rule in RULES if scope in rule.scopes][third::3]:
        # A view for any fleet looks closer at what it is asked to change.
        is_looked_at = rule.where == "any" and rule.method != "GET"
        status = send(everywhere if rule.where == "site" or is_looked_at else bound, rule)
        if status in (401, 403) or status in (500, 502):
            found.append(f"{rule.method} {rule.path} ({rule.name}) answers {status}")
    assert found == []


def test_tokens_that_may_get_in_too() -> None:
    machines = {
        (scope, fleet): machine(scope, fleet=fleet)[1] for scope in TOKENS for fleet in ("", "f1")
    }
    found = []
    for rule in RULES:
        if not rule.is_rest or rule.method == "GET":
            continue
        for scope in rule.scopes & set(TOKENS):
            bound = "f1" if rule.where == "fleet" else ""
            status = send(machines[scope, bound], rule)
            if status in (401, 403) or status >= 500:
                found.append(f"{rule.method} {rule.path} ({rule.name}) answers {status} to {scope}")
    assert found == []


@pytest.mark.parametrize(
    ("groups", "statuses"),
    [
        ((), (403, 403, 403)),
        (("viewer",), (None, None, 404)),
        (("approver",), (None, None, 404)),
        (("viewer:f1",), (None, 403, 403)),
        (("admin:f2",), (403, None, 403)),
    ],
)
def test_live_sockets_keep_to_the_fleets_of_who_looks(
    groups: tuple[str, ...], statuses: tuple[int | None, ...]
) -> None:
    key = person("somebody", *groups).session.session_key
    refused = [consumers._refusal(key, fleet) for fleet in ("f1", "f2", "gone")]
    assert tuple(why and why[0] for why in refused) == statuses
    assert consumers._refusal("", "f1") == (401, "log in first")


def test_a_superuser_may_everything() -> None:
    client = person("root", is_superuser=True)
    for name in ("people", "api-users", "fleet", "api-policy"):
        rule = next(r for r in RULES if r.name == name and r.method == "GET")
        assert send(client, rule) == 200


def test_what_somebody_issues_is_for_their_fleet_and_not_longer_than_their_own() -> None:
    _token, client = machine("admin", fleet="f1")
    ends = (timezone.now() + timedelta(days=1)).isoformat()
    ApiToken.objects.update(expires_at=timezone.now() + timedelta(days=2), owner="ana")
    for asked, status in (
        ({"fleet": "f1", "expires_at": ends}, 201),
        ({"fleet": "f1"}, 422),
        ({"fleet": "f2", "expires_at": ends}, 403),
        ({"fleet": "", "expires_at": ends}, 403),
    ):
        body = {"name": "x", "scopes": ["ingest"], **asked}
        response = client.post("/api/v1/tokens", body, content_type="application/json")
        assert response.status_code == status, (asked, response.content)
    issued = ApiToken.objects.get(name="x")
    assert (issued.created_by, issued.owner) == ("token m", "ana")
    listed = client.get("/api/v1/tokens").json()["results"]
    assert {row["fleet"] for row in listed} == {"f1"}


def test_a_rotated_token_goes_on_for_a_while() -> None:
    now = timezone.now()
    old, secret = tokens.issue("agent", ["ingest"], "f1", "ana", now + timedelta(days=90))
    _token, client = machine("admin")
    answer = client.post(
        f"/api/v1/tokens/{old.pk}/rotate", {"grace_s": 3600}, content_type="application/json"
    )
    assert answer.status_code == 201, answer.content
    made = answer.json()
    assert (made["scopes"], made["fleet"], made["replaces"]) == (["ingest"], "f1", old.pk)
    for minutes, is_good in ((30, True), (61, False)):
        found = tokens.find(secret, now + timedelta(minutes=minutes))
        assert (found is not None) is is_good
    assert tokens.find(made["secret"], now + timedelta(days=89)) is not None
    again = client.post(f"/api/v1/tokens/{old.pk}/rotate", {}, content_type="application/json")
    assert again.status_code == 422
    assert "has its place" in again.json()["error"]
    assert Action.objects.get(verb="token.rotate").after["prefix"] == made["prefix"]
    with pytest.raises(token_commands.Refused, match="30 days"):
        token_commands.rotate_token(
            token_id=old.pk, grace=timedelta(days=31), owner="", actor="a", via="t", reason="",
            now=now,
        )  # fmt: skip
