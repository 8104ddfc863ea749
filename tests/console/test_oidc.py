"""Signing in with an identity provider that runs beside the test, also when it lies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client
from pytest_django import Settings

from console import env, oidc, people, sso
from console.oidc import Oidc
from console.people import Who
from routing import rights
from routing.models import Action
from tests.console import oidc_provider
from tests.console.oidc_provider import CLIENT_ID, SECRET, Provider
from tests.routing.cases import make_fleet

pytestmark = pytest.mark.django_db
GROUPS = {
    "sre": ("operator",),
    "leads": ("approver", "viewer"),
    "pd-team": ("operator:f1", "operator:gone"),
    "admins": ("admin",),
}


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with oidc_provider.running() as found:
        yield found


@pytest.fixture
def idp(provider: Provider, settings: Settings) -> Provider:
    """The provider as it is when nobody bends it, and a console that knows it."""
    provider.signed_with, provider.algorithm, provider.kid = provider.key, "RS256", "one"
    provider.userinfo, provider.calls_itself = None, provider.issuer
    provider.sends_id_token = True
    settings.OIDC = Oidc(provider.issuer, CLIENT_ID, SECRET, "Example SSO", groups=GROUPS)
    settings.AUTHENTICATION_BACKENDS = [*settings.AUTHENTICATION_BACKENDS, sso.BACKEND]
    return provider


def come(client: Client, query: str = "") -> HttpResponse:
    """Through the provider and back, as a browser goes."""
    away = client.get(f"/oidc/login/{query}")
    assert away.status_code == 302, away.content
    back = requests.get(away["Location"], allow_redirects=False, timeout=5)
    parts = urlsplit(back.headers["Location"])
    assert parts.path == "/oidc/callback/"
    return client.get(f"{parts.path}?{parts.query}")


def who(client: Client) -> str:
    me = client.get("/api/v1/me")
    return me.json()["name"] if me.status_code == 200 else ""


def test_somebody_new_comes_in_with_the_rights_that_the_provider_gives(idp: Provider) -> None:
    make_fleet()
    idp.somebody("ana", "sre", "pd-team", "chess club")
    client = Client()
    response = come(client)
    assert (response.status_code, response["Location"]) == (302, "/")
    ana = User.objects.get(username="ana")
    assert (ana.email, ana.has_usable_password()) == ("ana@example.com", False)
    assert people.groups_of(ana) == ["operator", "operator:f1"]
    assert client.get("/api/v1/me").json()["scopes"] == ["operate", "read"]
    made = Action.objects.get(verb="user.create")
    assert (made.actor, made.via, made.target) == ("identity provider", "oidc", "ana")


def test_the_way_there_has_state_nonce_and_pkce(idp: Provider) -> None:
    idp.somebody("ana", "sre")
    away = Client().get("/oidc/login/?next=//evil.example/")
    asked = {k: v[0] for k, v in parse_qs(urlsplit(away["Location"]).query).items()}
    assert asked["code_challenge_method"] == "S256"
    assert len(asked["nonce"]) >= 24
    assert len(asked["state"]) >= 16
    assert asked["redirect_uri"] == "http://testserver/oidc/callback/"
    assert set(asked["scope"].split()) == {"openid", "profile", "email"}


@pytest.mark.parametrize(
    ("wanted", "led"),
    [("/audit/?actor=ana", "/audit/?actor=ana"), ("//evil.example/", "/"), ("javascript:x", "/")],
)
def test_one_is_led_where_one_wanted_to_go_within_the_console(
    idp: Provider, wanted: str, led: str
) -> None:
    idp.somebody("ana", "sre")
    client = Client()
    client.get("/oidc/login/")
    away = client.get("/oidc/login/", {"next": wanted})
    back = requests.get(away["Location"], allow_redirects=False, timeout=5)
    assert client.get(back.headers["Location"].removeprefix("http://testserver"))["Location"] == led


def test_rights_follow_the_provider_at_each_sign_in(idp: Provider) -> None:
    idp.somebody("ana", "admins")
    come(Client())
    assert rights.of(User.objects.get()).may("admin")
    idp.somebody("ana", "leads")
    come(Client())
    assert people.groups_of(User.objects.get()) == ["approver", "viewer"]
    idp.somebody("ana", "chess club")
    client = Client()
    assert come(client).status_code == 403
    assert who(client) == ""
    assert people.groups_of(User.objects.get()) == []
    changes = Action.objects.filter(verb="user.groups").order_by("id")
    assert [row.after["groups"] for row in changes] == [["approver", "viewer"], []]


def test_somebody_without_rights_gets_no_account(idp: Provider) -> None:
    idp.somebody("eve")
    response = come(Client())
    assert response.status_code == 403
    assert b"no group that has rights" in response.content
    assert not User.objects.exists()


def test_a_local_account_is_not_taken_over_by_its_name(idp: Provider) -> None:
    people.create(name="Ana", groups=["admin"], who=Who("test", "test"))
    idp.somebody("ana", "sre")
    client = Client()
    assert b"There is an account" in come(client).content
    assert who(client) == ""
    sso.link(User.objects.get(), "ana", who=Who("test", "test"))
    come(client)
    assert who(client) == "Ana"
    assert people.groups_of(User.objects.get()) == ["operator"]


def test_who_was_deactivated_stays_out(idp: Provider) -> None:
    idp.somebody("ana", "sre")
    come(Client())
    User.objects.update(is_active=False)
    client = Client()
    assert b"may not sign in" in come(client).content
    assert who(client) == ""


@pytest.mark.parametrize(
    ("email", "is_verified", "comes_in"),
    [
        ("ana@Example.com", True, True),
        ("ana@example.com", False, False),
        ("ana@example.com", None, False),
        ("ana@evil.example", True, False),
        ("ana@example.com@evil.example", True, False),
        ("ana", True, False),
    ],
)
def test_only_verified_addresses_of_our_domains(
    idp: Provider, settings: Settings, email: str, is_verified: bool, comes_in: bool
) -> None:
    settings.OIDC = Oidc(idp.issuer, CLIENT_ID, SECRET, groups=GROUPS, domains=("example.com",))
    idp.somebody("ana", "sre", email=email, email_verified=is_verified)
    client = Client()
    come(client)
    assert (who(client) == "ana") is comes_in


def lies(idp: Provider) -> dict[str, dict[str, Any]]:
    """By how it lies: what the provider does, or what it claims."""
    now = int(time.time())
    return {
        "another key": {"signed_with": idp.stranger},
        "an unknown key": {"kid": "two"},
        "no signature": {"signed_with": None, "algorithm": "none"},
        "a shared secret": {"signed_with": SECRET * 4, "algorithm": "HS256"},
        "no token": {"sends_id_token": False},
        "another audience": {"aud": "grafana"},
        "another client among several": {"aud": [CLIENT_ID, "grafana"], "azp": "grafana"},
        "another issuer": {"iss": "https://evil.example"},
        "over": {"iat": now - 900, "exp": now - 600},
        "never over": {"exp": None},
        "from tomorrow": {"iat": now + 86_400},
        "nobody": {"sub": None},
        "another attempt's": {"nonce": "x" * 32},
        "no nonce": {"nonce": None},
    }


def lie(idp: Provider, how: str) -> None:
    for name, value in lies(idp)[how].items():
        if hasattr(idp, name):
            setattr(idp, name, value)
        else:
            idp.claims[name] = value


@pytest.mark.parametrize(
    "how",
    [
        *("another key", "an unknown key", "no signature", "a shared secret"),
        *("another audience", "another client among several", "another issuer"),
        *("over", "never over", "from tomorrow", "nobody", "another attempt's", "no nonce"),
        "no token",
    ],
)
def test_a_token_that_proves_nothing_lets_nobody_in(idp: Provider, how: str) -> None:
    idp.somebody("ana", "admins")
    lie(idp, how)
    client = Client()
    response = come(client)
    assert response.status_code == 403
    assert b"You are not signed in" in response.content
    assert who(client) == ""
    assert not User.objects.exists()


def test_an_answer_counts_once_and_for_whoever_asked(idp: Provider) -> None:
    idp.somebody("ana", "sre")
    client = Client()
    away = client.get("/oidc/login/")
    back = requests.get(away["Location"], allow_redirects=False, timeout=5)
    address = back.headers["Location"].removeprefix("http://testserver")
    assert Client().get(address).status_code == 403  # somebody else's browser
    assert client.get(address).status_code == 302
    client.logout()
    assert client.get(address).status_code == 403
    assert Client().get("/oidc/callback/?error=access_denied&state=x").status_code == 403
    assert len(idp.redeemed) >= 1


def test_a_provider_under_another_name_is_none(idp: Provider) -> None:
    idp.calls_itself = "https://evil.example"
    assert Client().get("/oidc/login/").status_code == 503


def test_a_provider_that_is_away_is_told(idp: Provider, settings: Settings) -> None:
    settings.OIDC = Oidc("http://127.0.0.1:9", CLIENT_ID, SECRET)
    response = Client().get("/oidc/login/")
    assert response.status_code == 503
    assert b"does not answer" in response.content


def test_groups_may_stand_in_the_userinfo_of_the_same_person(idp: Provider) -> None:
    idp.somebody("ana", groups=None)
    idp.userinfo = {"sub": "eve", "groups": ["admins"]}
    assert come(Client()).status_code == 403
    idp.userinfo = {"sub": "ana", "groups": ["sre"]}
    client = Client()
    come(client)
    assert people.groups_of(User.objects.get()) == ["operator"]


def test_the_login_page_offers_it_where_there_is_one(idp: Provider, settings: Settings) -> None:
    page = Client().get("/login/").content.decode()
    assert "Sign in with Example SSO" in page
    assert 'name="password"' in page
    settings.LOCAL_PASSWORDS = False
    page = Client().get("/login/").content.decode()
    assert 'name="password"' not in page
    assert Client().post("/login/", {"username": "a", "password": "b"}).status_code == 403
    settings.OIDC, settings.LOCAL_PASSWORDS = None, True
    page = Client().get("/login/").content.decode()
    assert "Sign in with" not in page
    assert Client().get("/oidc/login/").status_code == 404
    assert Client().get("/oidc/callback/").status_code == 404


def test_what_the_environment_may_say() -> None:
    said = env.read_all() | {
        "CONSOLE_OIDC_ISSUER": "https://sso.example.com/realm/",
        "CONSOLE_OIDC_CLIENT_ID": "prfaas",
        "CONSOLE_OIDC_SECRET": "s",
    }
    found = oidc.configured(said)
    assert found is not None
    assert found.issuer == "https://sso.example.com/realm"
    for name, value, error in (
        ("CONSOLE_OIDC_SECRET", "", "CONSOLE_OIDC_SECRET is empty"),
        ("CONSOLE_OIDC_ISSUER", "http://sso.example.com", "must be https"),
    ):
        with pytest.raises(env.SettingError, match=error):
            oidc.configured(said | {name: value})
    assert oidc.configured(said | {"CONSOLE_OIDC_ISSUER": None}) is None


@pytest.mark.parametrize(
    ("raw", "groups"),
    [
        ("sre=operator; pd=operator:demo;", {"sre": ("operator",), "pd": ("operator:demo",)}),
        ("CN=sre,OU=x = viewer", {"CN=sre,OU=x": ("viewer",)}),
        ("a=viewer;a=approver", {"a": ("viewer", "approver")}),
        ("a", None),
        ("=viewer", None),
        ("a=", None),
    ],
)
def test_groups_here_by_groups_there(
    raw: str, groups: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONSOLE_OIDC_GROUPS", raw)
    setting = next(s for s in env.SETTINGS if s.name == "CONSOLE_OIDC_GROUPS")
    if groups is None:
        with pytest.raises(env.SettingError, match="CONSOLE_OIDC_GROUPS"):
            setting.read()
    else:
        assert setting.read() == groups


@pytest.mark.parametrize("claimed", [None, 3, {"sre": 1}, [3, None, ["sre"]], ""])
def test_a_strange_groups_claim_gives_nothing(claimed: Any) -> None:
    assert Oidc("https://x", "c", "s", groups=GROUPS).ours(claimed) == []
    assert Oidc("https://x", "c", "s", groups=GROUPS).ours("sre") == ["operator"]
