"""One GET with a deadline and a size limit, and in words what went wrong and how."""

from __future__ import annotations

import asyncio
from typing import Literal

import aiohttp

from telemetry.exposition import MAX_TEXT_CHARS

Trouble = Literal["failed", "down", "slow"]
"""What `state` a sample takes for it (`wire.InstanceSample`)."""

_ACCEPT = "text/plain;version=0.0.4, application/openmetrics-text;version=1.0.0;q=0.5, */*;q=0.1"
_HEADERS = {
    "Accept": _ACCEPT,
    # Compressing 70 KB each second would cost the engine's own event loop more than the network.
    "Accept-Encoding": "identity",
}

# One deadline over all of it is set here; the client's own would be timers made for nothing.
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=None)


class ReadError(Exception):
    """A source could not be read; the text is what its sample says as `error`."""

    def __init__(self, why: str, state: Trouble = "failed") -> None:
        # It may quote what the source answered: neither a lone surrogate nor a zero character
        # passes the console's door.
        clean = why.encode("utf-8", errors="replace").decode().replace("\0", "?")
        super().__init__(clean[:500])
        self.state: Trouble = state


async def get(session: aiohttp.ClientSession, url: str, *, timeout_s: float) -> tuple[str, str]:
    """(text, Content-Type) of `url`. Raises ReadError.

    `down`: nobody is there (refused, reset, hung up, no such name). `slow`: no whole answer within
    `timeout_s`. `failed`: an answer that is none.
    """
    try:
        async with asyncio.timeout(timeout_s):
            async with session.get(url, headers=_HEADERS, timeout=_NO_TIMEOUT) as answer:
                if answer.status != 200:
                    raise ReadError(f"HTTP {answer.status} from {url}")
                body = bytearray()
                # Counted as it comes out of any decompression: a small gzip may be large.
                async for chunk in answer.content.iter_any():
                    body += chunk
                    if len(body) > MAX_TEXT_CHARS:
                        raise ReadError(f"more than {MAX_TEXT_CHARS} bytes from {url}")
                return body.decode("utf-8", errors="replace"), answer.content_type
    except TimeoutError:
        raise ReadError(f"no answer within {timeout_s:g} s from {url}", "slow") from None
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError) as exc:
        raise ReadError(f"{_words(exc)} from {url}", "down") from None
    except (aiohttp.ClientError, ValueError) as exc:
        raise ReadError(_words(exc)) from None


def _words(exc: Exception) -> str:
    return str(exc) or type(exc).__name__
