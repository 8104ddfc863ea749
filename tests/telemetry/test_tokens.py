"""Machine tokens: hashed, scoped, bound to a fleet, revocable within ten seconds."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from telemetry import tokens
from telemetry.ingest import Asker, database_connect
from telemetry.models import ApiToken

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


@pytest.fixture
def issued(db: None) -> tuple[ApiToken, str]:
    return tokens.issue("agent of pd", ["ingest"], "", "root", NOW + timedelta(days=1))


def test_only_a_digest_of_the_secret_is_kept(issued: tuple[ApiToken, str]) -> None:
    token, secret = issued
    assert secret.startswith(f"pf_{token.prefix}_")
    row = ApiToken.objects.values().get(pk=token.pk)
    assert all(secret not in str(value) for value in row.values())
    assert len(bytes(row["digest"])) == 32


@pytest.mark.parametrize(
    ("scope", "fleet", "at", "bound_to", "accepted"),
    [
        ("ingest", None, NOW, "", True),
        ("ingest", "f", NOW, "", True),
        ("router", None, NOW, "", False),
        ("ingest", "f", NOW, "f", True),
        ("ingest", "g", NOW, "f", False),
        ("ingest", None, NOW + timedelta(days=2), "", False),
    ],
    ids=["scope", "any fleet", "other scope", "its fleet", "another fleet", "expired"],
)
@pytest.mark.django_db
def test_what_a_token_opens(
    scope: str, fleet: str | None, at: datetime, bound_to: str, accepted: bool
) -> None:
    _, secret = tokens.issue("t", ["ingest"], bound_to, "root", NOW + timedelta(days=1))
    assert (tokens.verify(secret, scope, fleet, at) is not None) is accepted


def test_a_revoked_token_opens_nothing(issued: tuple[ApiToken, str]) -> None:
    token, secret = issued
    assert tokens.revoke(token, NOW) is True
    assert tokens.verify(secret, "ingest", None, NOW) is None
    assert tokens.revoke(token, NOW + timedelta(hours=1)) is False
    token.refresh_from_db()
    assert token.revoked_at == NOW


@pytest.mark.parametrize(
    ("name", "scopes", "field"),
    [("x", ["root"], "scopes"), ("x", [], "scopes"), (" ", ["read"], "name")],
)
@pytest.mark.django_db
def test_a_token_that_cannot_be_meant_is_refused(name: str, scopes: list[str], field: str) -> None:
    with pytest.raises(tokens.TokenError) as caught:
        tokens.issue(name, scopes, "", "root")
    assert caught.value.field == field


def test_use_is_noted_at_most_once_a_minute(issued: tuple[ApiToken, str]) -> None:
    token, secret = issued
    for seconds in (0, 30, 90):
        tokens.find(secret, NOW + timedelta(seconds=seconds))
    token.refresh_from_db()
    assert token.last_used_at == NOW + timedelta(seconds=90)
    tokens.find(secret, NOW + timedelta(seconds=120))
    token.refresh_from_db()
    assert token.last_used_at == NOW + timedelta(seconds=90)


@pytest.mark.parametrize(
    ("header", "secret"),
    [
        ("Bearer pf_a_b", "pf_a_b"),
        ("bearer  pf_a_b ", "pf_a_b"),
        ("Basic pf_a_b", None),
        ("Bearer", None),
        ("", None),
    ],
)
def test_the_secret_in_a_header(header: str, secret: str | None) -> None:
    assert tokens.bearer(header) == secret


class Asked:
    """A database that counts questions and can be told what to answer."""

    def __init__(self, grant: tokens.Grant | None) -> None:
        self.answer: tokens.Grant | None = grant
        self.n = 0

    async def __call__(self, digest: bytes, now: datetime) -> tokens.Grant | None:
        self.n += 1
        await asyncio.sleep(0)
        return self.answer


GRANT = tokens.Grant(("ingest",), "", None)


async def test_a_cached_grant_is_asked_for_again_within_ten_seconds() -> None:
    asked = Asked(GRANT)
    cache = tokens.TokenCache(asked)
    assert await cache.grant("s", now_s=100.0) == GRANT
    asked.answer = None
    assert await cache.grant("s", now_s=105.0) == GRANT
    assert await cache.grant("s", now_s=110.0) is None
    assert asked.n == 2


@pytest.mark.django_db(transaction=True)
def test_a_revocation_reaches_the_ingest_within_ten_seconds() -> None:
    token, secret = tokens.issue("agent", ["ingest"], "f", "root")
    asker = Asker(database_connect)
    cache = tokens.TokenCache(asker.grant)

    async def ask(*, at_s: float) -> tokens.Grant | None:
        return await cache.grant(secret, now_s=NOW.timestamp() + at_s)

    async def run() -> None:
        assert await ask(at_s=0.0) == tokens.Grant(("ingest",), "f", None)
        await asyncio.to_thread(revoke)
        assert await ask(at_s=10.0) is None
        await asker.close()

    def revoke() -> None:
        tokens.revoke(token, NOW)
        connection.close()

    asyncio.run(run())
    token.refresh_from_db()
    assert token.last_used_at == NOW


async def test_many_requests_with_one_token_ask_once() -> None:
    asked = Asked(GRANT)
    cache = tokens.TokenCache(asked)
    assert await asyncio.gather(*(cache.grant("s", now_s=1.0) for _ in range(50))) == [GRANT] * 50
    assert asked.n == 1


async def test_a_new_token_works_soon_after_it_was_unknown() -> None:
    asked = Asked(None)
    cache = tokens.TokenCache(asked)
    assert await cache.grant("s", now_s=100.0) is None
    asked.answer = GRANT
    assert await cache.grant("s", now_s=103.0) == GRANT


async def test_expiry_needs_no_question() -> None:
    cache = tokens.TokenCache(Asked(tokens.Grant(("ingest",), "", 102.0)))
    assert await cache.grant("s", now_s=101.0) is not None
    assert await cache.grant("s", now_s=102.0) is None
