"""Sign-in with an identity provider (OpenID Connect), as far as it needs no Django: its settings,
what an ID token must hold, and which of our groups follow from its claims."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import jwt

from console.env import SettingError

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA")
"""Signatures with a key of the provider; none that a shared secret or nobody makes."""
_LEEWAY_S: Final = 60
_NAME = re.compile(r"[\w.@+-]{1,150}")


class BadToken(ValueError):
    """An ID token that proves nothing, and why."""


@dataclass(frozen=True)
class Oidc:
    """The identity provider, and what its groups mean here. No `groups`: groups are given here."""

    issuer: str
    client_id: str
    secret: str
    name: str = "single sign-on"
    groups_claim: str = "groups"
    groups: Mapping[str, tuple[str, ...]] | None = None
    domains: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ("openid", "profile", "email")

    def ours(self, claimed: object) -> list[str]:
        """Our groups that follow from the value of the groups claim."""
        theirs = [claimed] if isinstance(claimed, str) else claimed
        if not isinstance(theirs, list):
            return []
        known = self.groups or {}
        found = {ours for each in theirs if isinstance(each, str) for ours in known.get(each, ())}
        return sorted(found)

    def admits(self, claims: Mapping[str, Any]) -> bool:
        """Whether the address is one that was verified, of the domains that may sign in."""
        if not self.domains:
            return True
        domain = str(claims.get("email", "")).rpartition("@")[2].lower()
        return claims.get("email_verified") is True and domain in self.domains


def configured(env: Mapping[str, Any]) -> Oidc | None:
    """What the environment says of the provider; None if it names none. Raises SettingError."""
    issuer = env["CONSOLE_OIDC_ISSUER"]
    if not issuer:
        return None
    for name in ("CONSOLE_OIDC_CLIENT_ID", "CONSOLE_OIDC_SECRET"):
        if not env[name]:
            raise SettingError(f"{name} is empty: CONSOLE_OIDC_ISSUER needs it")
    url = urlsplit(issuer)
    if url.scheme != "https" and not _is_here(url.hostname or ""):
        raise SettingError(f"CONSOLE_OIDC_ISSUER={issuer!r}: must be https, unless it is this host")
    return Oidc(
        issuer=issuer.rstrip("/"),
        client_id=env["CONSOLE_OIDC_CLIENT_ID"],
        secret=env["CONSOLE_OIDC_SECRET"],
        name=env["CONSOLE_OIDC_NAME"],
        groups_claim=env["CONSOLE_OIDC_GROUPS_CLAIM"],
        groups=env["CONSOLE_OIDC_GROUPS"],
        domains=tuple(domain.lower() for domain in env["CONSOLE_OIDC_DOMAINS"]),
        scopes=tuple(env["CONSOLE_OIDC_SCOPES"]),
    )


def verified(token: str, keys: Mapping[str, Any], *, issuer: str, client_id: str) -> dict[str, Any]:
    """The claims of an ID token that the provider signed, for us, and that is not over.

    Raises BadToken.
    """
    try:
        header = jwt.get_unverified_header(token)
        if header.get("alg") not in ALGORITHMS:
            raise BadToken(f"it is signed by {header.get('alg')!r:.20}")
        key = _key(keys, header.get("kid"))
        claims: dict[str, Any] = jwt.decode(
            token,
            key=key,
            algorithms=[header["alg"]],
            issuer=issuer,
            audience=client_id,
            leeway=_LEEWAY_S,
            options={"require": ["exp", "iat", "iss", "aud", "sub"]},
        )
    except (jwt.PyJWTError, KeyError, TypeError, ValueError) as exc:
        raise BadToken(str(exc) or exc.__class__.__name__) from None
    # For several audiences at once it says which of them asked.
    if claims.get("azp", client_id) != client_id:
        raise BadToken("it was made for another client")
    return claims


def name_of(claims: Mapping[str, Any]) -> str | None:
    """What somebody is called here: the name they prefer, else their address."""
    said = (claims.get("preferred_username"), claims.get("email"))
    return next((name for name in said if isinstance(name, str) and _NAME.fullmatch(name)), None)


def _key(keys: Mapping[str, Any], kid: object) -> Any:
    found = jwt.PyJWKSet.from_dict(dict(keys)).keys
    mine = [key for key in found if key.key_id == kid] or (found if kid is None else [])
    if len(mine) != 1:
        raise BadToken(f"the provider has no key {kid!r:.80}")
    return mine[0].key


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
