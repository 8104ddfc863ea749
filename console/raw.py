"""What is answered in front of Django: refusals in the API's shape, and bodies of no end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from console.api import error_body

App = Callable[[dict[str, Any], Any, Any], Awaitable[None]]
MOST_BODY_BYTES: Final = 65 * 1024 * 1024
"""Django writes a body to disk before anybody looks at it; the largest that is meant is a trace."""


async def refuse(send: Any, status: int, why: str, *, retry_after_s: int | None = None) -> None:
    """The one shape of every error, and the connection's end."""
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    if retry_after_s is not None:
        headers.append((b"retry-after", str(retry_after_s).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    body = msgspec.json.encode(error_body(why, status))
    await send({"type": "http.response.body", "body": body})


async def bounded(app: App, scope: dict[str, Any], receive: Any, send: Any) -> None:
    """`app`, for a body that ends soon enough; one without a length is cut off there."""
    length = dict(scope["headers"]).get(b"content-length", b"0")
    if length.isdigit() and int(length) > MOST_BODY_BYTES:
        why = f"the body has more than {MOST_BODY_BYTES // 1024**2} MiB"
        await refuse(send, 413, why)
        return
    n_bytes = 0

    async def counted() -> dict[str, Any]:
        nonlocal n_bytes
        message: dict[str, Any] = await receive()
        n_bytes += len(message.get("body", b""))
        return message if n_bytes <= MOST_BODY_BYTES else {"type": "http.disconnect"}

    await app(scope, counted, send)
