"""Which sockets may be opened: Host and Origin are checked before anything is accepted.

A WebSocket is not bound by the same-origin policy and carries the session cookie, so a foreign
page could otherwise open one in a visitor's name. Browsers always send Origin; only machines with
a bearer token may leave it out, and only where a route allows that.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final

from django.conf import settings
from django.http.request import split_domain_port, validate_host
from django.utils.http import is_same_domain

log = logging.getLogger(__name__)

App = Callable[[dict[str, Any], Any, Any], Awaitable[None]]

_ORIGIN: Final = re.compile(r"(https?)://([^\s/?#@\\]+)", re.ASCII)
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
_PAGE_SCHEMES: Final = {"ws": "http", "wss": "https", "http": "http", "https": "https"}


def refusal(
    headers: Sequence[tuple[bytes, bytes]],
    *,
    scheme: str,
    allowed_hosts: Collection[str],
    trusted_origins: Collection[str],
    bearer_needs_no_origin: bool,
) -> str | None:
    """Why a handshake with these headers must be refused, or None if it may go on."""
    host = _only(headers, b"host")
    if host is None:
        return "there must be exactly one Host header"
    domain, port = split_domain_port(host)
    if not domain or not validate_host(domain, list(allowed_hosts)):
        return f"Host {host!r} is not one this console answers to"
    origins = [value for name, value in headers if name.lower() == b"origin"]
    if not origins and bearer_needs_no_origin and _has_bearer(headers):
        return None
    origin = _only(headers, b"origin")
    if origin is None:
        return "there must be exactly one Origin header"
    parsed = _ORIGIN.fullmatch(origin.lower())
    if parsed is None:
        return f"Origin {origin!r} is not http(s)://host[:port]"
    if any(_matches(parsed, trusted.lower()) for trusted in trusted_origins):
        return None
    origin_scheme, origin_place = parsed.groups()
    own_scheme = _PAGE_SCHEMES.get(scheme, "")
    own_place = (domain, port or _DEFAULT_PORTS.get(own_scheme, ""))
    if origin_scheme != own_scheme or _place(origin_scheme, origin_place) != own_place:
        return f"Origin {origin!r} is not this console"
    return None


class Guard:
    """ASGI middleware in front of every socket route. `machine_paths`: a bearer needs no Origin."""

    def __init__(self, app: App, *, machine_paths: Collection[str]) -> None:
        self._app = app
        self._machine_paths = machine_paths

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        reason = refusal(
            scope["headers"],
            scheme=scope.get("scheme", "ws"),
            allowed_hosts=settings.ALLOWED_HOSTS,
            trusted_origins=settings.CSRF_TRUSTED_ORIGINS,
            bearer_needs_no_origin=scope["path"] in self._machine_paths,
        )
        if reason is None and b"%00" in scope["query_string"]:
            reason = "the query holds a null character (%00)"
        if reason is None:
            await self._app(scope, receive, send)
            return
        log.warning("socket %.100s refused: %.200s", scope["path"], reason)
        await receive()
        await send({"type": "websocket.close", "code": 4403})


def _only(headers: Sequence[tuple[bytes, bytes]], wanted: bytes) -> str | None:
    found = [value for name, value in headers if name.lower() == wanted]
    return found[0].decode("latin-1").strip() if len(found) == 1 else None


def _has_bearer(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    value = _only(headers, b"authorization") or ""
    scheme, _, secret = value.partition(" ")
    return scheme.lower() == "bearer" and bool(secret.strip())


def _place(scheme: str, place: str) -> tuple[str, str]:
    """(host, port) of `host[:port]`, with the scheme's default port; ("", "") if malformed."""
    domain, port = split_domain_port(place)
    return (domain, port or _DEFAULT_PORTS[scheme]) if domain else ("", "")


def _matches(origin: re.Match[str], trusted: str) -> bool:
    """Is an origin one of CONSOLE_TRUSTED_ORIGINS, which may be `https://*.example.com`?"""
    wanted = _ORIGIN.fullmatch(trusted)
    if wanted is None or wanted[1] != origin[1]:
        return False
    if not wanted[2].startswith("*."):
        return _place(*wanted.groups()) == _place(*origin.groups())
    return is_same_domain(origin[2], wanted[2].removeprefix("*"))
