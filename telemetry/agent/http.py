"""One GET with a deadline and a size limit, and in words what went wrong."""

from __future__ import annotations

import asyncio

import aiohttp

from telemetry.exposition import MAX_TEXT_CHARS

_ACCEPT = "text/plain;version=0.0.4, application/openmetrics-text;version=1.0.0;q=0.5, */*;q=0.1"


class ReadError(Exception):
    """A source could not be read; the text is what its sample says as `error`."""

    def __init__(self, why: str) -> None:
        # It may quote what the source answered: neither a lone surrogate nor a zero character
        # passes the console's door.
        clean = why.encode("utf-8", errors="replace").decode().replace("\0", "?")
        super().__init__(clean[:500])


async def get(session: aiohttp.ClientSession, url: str, *, timeout_s: float) -> tuple[str, str]:
    """(text, Content-Type) of `url`. Raises ReadError."""
    try:
        async with asyncio.timeout(timeout_s):
            async with session.get(url, headers={"Accept": _ACCEPT}) as answer:
                if answer.status != 200:
                    raise ReadError(f"HTTP {answer.status} from {url}")
                body = bytearray()
                # Counted as it comes out of any decompression: a small gzip may be large.
                async for chunk in answer.content.iter_chunked(64 * 1024):
                    body += chunk
                    if len(body) > MAX_TEXT_CHARS:
                        raise ReadError(f"more than {MAX_TEXT_CHARS} bytes from {url}")
                return body.decode("utf-8", errors="replace"), answer.content_type
    except TimeoutError:
        raise ReadError(f"no answer within {timeout_s:g} s from {url}") from None
    except (aiohttp.ClientError, OSError, ValueError) as exc:
        raise ReadError(str(exc) or type(exc).__name__) from None
