"""Errors of the gate's own, in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from aiohttp import web

_RATE = "rate_limit_error"


def error(
    status: int, code: str, message: str, *, headers: Mapping[str, str] | None = None
) -> web.Response:
    """`{"error": {message, type, param, code}}` with this status."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    if status == 429:
        kind = _RATE
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return web.Response(
        status=status,
        body=msgspec.json.encode(body),
        content_type="application/json",
        headers=headers,
    )
