"""Machine tokens: `pf_<prefix>_<random>`, of which only the SHA-256 is kept.

The only writer of ApiToken. `verify` is for Django code; `TokenCache` serves the raw ASGI ingest,
which may not touch the ORM: a grant is re-read after `GRANT_TTL_S`, so a revocation acts within
ten seconds.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import string
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psycopg
from django.db.models import Q

from telemetry.models import ApiToken

SCOPES = ("ingest", "router", "read", "operate", "approve", "admin")
GRANT_TTL_S = 8.0
_UNKNOWN_TTL_S = 2.0
_MAX_CACHED = 20_000
_TOUCH_EVERY = timedelta(minutes=1)
_PREFIX_ALPHABET = string.ascii_lowercase + string.digits


class TokenError(ValueError):
    """A token that cannot be issued; names the field and the value."""

    def __init__(self, error: str, *, field: str, value: object) -> None:
        super().__init__(f"{field}={value!r}: {error}")
        self.error, self.field, self.value = error, field, value


def issue(
    name: str,
    scopes: Iterable[str],
    fleet: str,
    created_by: str,
    expires_at: datetime | None = None,
    *,
    owner: str = "",
    replaces: ApiToken | None = None,
) -> tuple[ApiToken, str]:
    """A new token and its secret, which is shown once and cannot be read back.

    `owner` is the person behind it, unless that is `created_by`, who may be a token.
    """
    wanted = sorted(set(scopes))
    unknown = [scope for scope in wanted if scope not in SCOPES]
    if unknown or not wanted:
        raise TokenError(f"scopes are among {', '.join(SCOPES)}", field="scopes", value=wanted)
    if not name.strip():
        raise TokenError("must not be empty", field="name", value=name)
    prefix = "".join(secrets.choice(_PREFIX_ALPHABET) for _ in range(8))
    secret = f"pf_{prefix}_{secrets.token_urlsafe(32)}"
    token = ApiToken.objects.create(
        name=name.strip(),
        prefix=prefix,
        digest=_digest(secret),
        scopes=wanted,
        fleet=fleet,
        created_by=created_by,
        owner=owner or created_by,
        replaces=replaces,
        expires_at=expires_at,
    )
    return token, secret


def rotate(
    old: ApiToken,
    *,
    expires_at: datetime | None,
    old_until: datetime,
    created_by: str,
    owner: str,
) -> tuple[ApiToken, str]:
    """A token that opens what `old` does, and its secret; `old` ends at `old_until` or before."""
    new, secret = issue(
        old.name, old.scopes, old.fleet, created_by, expires_at, owner=owner, replaces=old
    )
    if old.expires_at is None or old_until < old.expires_at:
        old.expires_at = old_until
        old.save(update_fields=["expires_at"])
    return new, secret


def revoke(token: ApiToken, now: datetime) -> bool:
    """Make a token useless from now on. False if it already was revoked."""
    changed = ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=now)
    token.refresh_from_db(fields=["revoked_at"])
    return bool(changed)


def verify(secret: str, scope: str, fleet: str | None, now: datetime) -> ApiToken | None:
    """The live token behind a secret if it carries `scope` and may touch `fleet`, else None."""
    token = find(secret, now)
    if token is None or scope not in token.scopes:
        return None
    if fleet is not None and token.fleet and token.fleet != fleet:
        return None
    return token


def find(secret: str, now: datetime) -> ApiToken | None:
    """The live (not revoked, not expired) token behind a secret, whatever it may do."""
    alive = Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=now))
    token = ApiToken.objects.filter(alive, digest=_digest(secret)).first()
    if token is not None and (
        token.last_used_at is None or token.last_used_at < now - _TOUCH_EVERY
    ):
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
    return token


def bearer(authorization: str) -> str | None:
    """The secret of an `Authorization: Bearer …` header, or None."""
    scheme, _, secret = authorization.strip().partition(" ")
    secret = secret.strip()
    return secret if scheme.lower() == "bearer" and secret else None


@dataclass(frozen=True)
class Grant:
    """What a live token allows, as the ingest needs it."""

    scopes: tuple[str, ...]
    fleet: str
    expires_at_s: float | None


async def fetch_grant(
    connection: psycopg.AsyncConnection, digest: bytes, *, now: datetime
) -> Grant | None:
    """The grant of a digest, marking the token as used at most once a minute."""
    cursor = await connection.execute(
        """
        WITH touched AS (
            UPDATE telemetry_apitoken SET last_used_at = %(now)s
            WHERE digest = %(digest)s AND revoked_at IS NULL
              AND (last_used_at IS NULL OR last_used_at < %(stale)s)
        )
        SELECT scopes, fleet, expires_at FROM telemetry_apitoken
        WHERE digest = %(digest)s AND revoked_at IS NULL
          AND (expires_at IS NULL OR expires_at > %(now)s)
        """,
        {"digest": digest, "now": now, "stale": now - _TOUCH_EVERY},
    )
    row = await cursor.fetchone()
    if row is None:
        return None
    scopes, fleet, expires_at = row
    return Grant(tuple(scopes), fleet, expires_at.timestamp() if expires_at else None)


class TokenCache:
    """Grants by digest, in this process. `fetch` reads one from the database and may raise."""

    def __init__(self, fetch: Callable[[bytes, datetime], Awaitable[Grant | None]]) -> None:
        self._fetch = fetch
        self._known: dict[bytes, tuple[Grant | None, float]] = {}
        self._asking: dict[bytes, asyncio.Task[Grant | None]] = {}

    def known(self, secret: str, *, now_s: float) -> Grant | None:
        """What `secret` allows, where this process knows it without asking."""
        grant, until_s = self._known.get(_digest(secret), (None, 0.0))
        if grant is None or now_s >= until_s:
            return None
        return None if grant.expires_at_s is not None and now_s >= grant.expires_at_s else grant

    async def grant(self, secret: str, *, now_s: float) -> Grant | None:
        """What `secret` allows at `now_s`, or None. Raises what `fetch` raises."""
        digest = _digest(secret)
        grant, until_s = self._known.get(digest, (None, 0.0))
        if now_s >= until_s:
            grant = await self._ask(digest, now_s)
        if grant is None or (grant.expires_at_s is not None and now_s >= grant.expires_at_s):
            return None
        return grant

    async def _ask(self, digest: bytes, now_s: float) -> Grant | None:
        # A thousand agents with one token ask once when it falls due, not a thousand times.
        task = self._asking.get(digest)
        if task is None:
            now = datetime.fromtimestamp(now_s, UTC)
            task = asyncio.ensure_future(self._fetch(digest, now))
            self._asking[digest] = task
            task.add_done_callback(lambda _: self._asking.pop(digest, None))
        grant = await asyncio.shield(task)
        if len(self._known) >= _MAX_CACHED:  # a guesser must not fill our memory
            self._known.clear()
        self._known[digest] = (grant, now_s + (GRANT_TTL_S if grant else _UNKNOWN_TTL_S))
        return grant


def prefix_of(secret: str) -> str:
    """The part of a secret by which people recognise it."""
    return secret.split("_", 2)[1] if secret.count("_") >= 2 else ""


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
