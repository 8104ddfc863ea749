"""Tokens as people and automation hand them out: nobody gives more than they have themselves."""

from __future__ import annotations

import datetime
from typing import Any, Final

from django.db import transaction

from routing import audit, commands, rights
from routing.commands import Refused
from routing.models import Fleet
from telemetry import tokens
from telemetry.models import ApiToken

LONGEST_GRACE: Final = datetime.timedelta(days=30)
GRACE: Final = datetime.timedelta(days=1)
"""So long the old secret stays good after a rotation, unless it is said otherwise."""


def check_issuer(user: Any, *, fleet: str, expires_at: datetime.datetime | None) -> None:
    """Raises PermissionDenied unless `user` administers `fleet` (none: the whole site), and Refused
    for a token that would outlive the one that asks for it."""
    rights.demand(user, "admin", fleet)
    own: datetime.datetime | None = getattr(user, "expires_at", None)
    if own is not None and (expires_at is None or expires_at > own):
        raise Refused("expires_at", expires_at and expires_at.isoformat(), "ends after your own")


def issue_token(
    *,
    name: str,
    scopes: list[str],
    fleet: str,
    expires_at: datetime.datetime | None,
    owner: str = "",
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> tuple[ApiToken, str]:
    """A new token and its secret, which is shown this once. Empty fleet: every fleet.

    `owner` is the person behind an actor that is a token itself.
    """
    commands.text("name", name, 120)
    if not scopes:
        raise Refused("scopes", scopes, f"needs at least one of {', '.join(tokens.SCOPES)}")
    for scope in scopes:
        if scope not in tokens.SCOPES:
            raise Refused("scopes", scope, f"must be one of {', '.join(tokens.SCOPES)}")
    if fleet and not Fleet.objects.filter(pk=fleet).exists():
        raise Refused("fleet", fleet, "no such fleet")
    if expires_at is not None and expires_at <= now:
        raise Refused("expires_at", str(expires_at), "must be in the future")
    with transaction.atomic():
        token, secret = tokens.issue(
            name=name,
            scopes=scopes,
            fleet=fleet,
            created_by=actor,
            expires_at=expires_at,
            owner=owner,
        )
        audit.record(
            actor=actor,
            via=via,
            verb="token.issue",
            fleet=fleet,
            target=f"{name} ({token.prefix})",
            after={"scopes": token.scopes, "expires_at": expires_at and expires_at.isoformat()},
            reason=reason,
        )
    return token, secret


def revoke_token(
    *, token_id: int, actor: str, via: str, reason: str, now: datetime.datetime
) -> ApiToken:
    """End a token at once (open sockets and ingest notice within 10 s)."""
    with transaction.atomic():
        token = ApiToken.objects.filter(pk=token_id).first()
        if token is None:
            raise Refused("token", token_id, "no such token")
        if not tokens.revoke(token, now):
            raise Refused("token", token_id, "this token is already revoked")
        audit.record(
            actor=actor,
            via=via,
            verb="token.revoke",
            fleet=token.fleet,
            target=f"{token.name} ({token.prefix})",
            before={"scopes": token.scopes},
            reason=reason,
        )
    return token


def rotated_until(old: ApiToken, now: datetime.datetime) -> datetime.datetime | None:
    """When a token in the place of `old` would expire: it is for as long as that one was."""
    return None if old.expires_at is None else now + (old.expires_at - old.created_at)


def rotate_token(
    *,
    token_id: int,
    grace: datetime.timedelta,
    owner: str,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> tuple[ApiToken, str]:
    """A token in the place of another, as long as that one was for; its secret is shown this once.

    The old one is good for `grace` more, or until it expires. Raises Refused.
    """
    if not datetime.timedelta(0) <= grace <= LONGEST_GRACE:
        seconds = grace.total_seconds()
        raise Refused("grace_s", seconds, f"must be from 0 s to {LONGEST_GRACE.days} days")
    with transaction.atomic():
        old = ApiToken.objects.select_for_update().filter(pk=token_id).first()
        if old is None:
            raise Refused("token", token_id, "no such token")
        if old.revoked_at is not None or (old.expires_at is not None and old.expires_at <= now):
            raise Refused("token", token_id, "is good no more: issue another")
        if successor := old.replaced_by.filter(revoked_at=None).first():
            raise Refused("token", token_id, f"was rotated: {successor.prefix} has its place")
        before = old.expires_at and old.expires_at.isoformat()
        token, secret = tokens.rotate(
            old,
            expires_at=rotated_until(old, now),
            old_until=now + grace,
            created_by=actor,
            owner=owner,
        )
        audit.record(
            actor=actor,
            via=via,
            verb="token.rotate",
            fleet=old.fleet,
            target=f"{old.name} ({old.prefix})",
            before={"prefix": old.prefix, "expires_at": before},
            after={
                "prefix": token.prefix,
                "expires_at": token.expires_at and token.expires_at.isoformat(),
                "old_until": old.expires_at and old.expires_at.isoformat(),
            },
            reason=reason,
        )
    return token, secret
