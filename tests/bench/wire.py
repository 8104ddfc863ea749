"""The two ends of the gate bench, as lean as can be: an engine that only waits, and a client.

Both speak just enough HTTP/1.1 for this bench, so that what is measured is what stands between
them. Times in seconds.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

FIRST_TOKEN_S = 0.030
_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nServer: stand-in\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_EMPTY_OBJECT = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(choices: list[dict[str, object]], **more: object) -> bytes:
    """One event as long as vLLM's are."""
    body = {
        "id": "cmpl-3f6c0f2b9d5e4f6f8a6f8a1f1f6f0b5d",
        "object": "text_completion",
        "created": 1780000000,
        "model": "m",
        "choices": choices,
    }
    return b"data: " + json.dumps(body | more).encode() + b"\n\n"


_TOKEN = _chunk(_event([{"index": 0, "text": " word", "logprobs": None, "finish_reason": None}]))
_END = _chunk(b"data: [DONE]\n\n") + _LAST_CHUNK


class Engine(asyncio.Protocol):
    """One connection of the stand-in engine: headers at once, the first token after 30 ms.

    Then `n_tokens - 1` more, `gap_s` apart; usage only if it was asked for, as engines do. A GET is
    answered with an empty object: routers ask for health and models.
    """

    def __init__(self, *, n_tokens: int, gap_s: float) -> None:
        self._n_tokens, self._gap_s = n_tokens, gap_s
        self._received = bytearray()
        self._head_bytes = self._request_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._request_bytes:
            end = self._received.find(_HEAD_END)
            if end < 0:
                return
            head = bytes(self._received[:end]).lower()
            self._head_bytes = end + len(_HEAD_END)
            _, _, length = head.partition(b"content-length:")
            self._request_bytes = self._head_bytes + int(length.split(b"\r\n")[0] or 0)
        if len(self._received) < self._request_bytes:
            return
        prompt_bytes = self._request_bytes - self._head_bytes
        with_usage = self._received.find(b'"include_usage":true') >= 0
        self._received.clear()
        self._request_bytes = 0
        if not prompt_bytes:
            self._transport.write(_EMPTY_OBJECT)
            return
        self._transport.write(_STREAM_HEAD)
        usage = {"prompt_tokens": prompt_bytes // 4, "completion_tokens": self._n_tokens}
        last = _chunk(_event([], usage=usage)) if with_usage else b""
        self._loop.call_later(FIRST_TOKEN_S, self._token, self._n_tokens, last + _END)

    def _token(self, n_left: int, end: bytes) -> None:
        if self._transport.is_closing():
            return
        if n_left > 1:
            self._transport.write(_TOKEN)
            self._loop.call_later(self._gap_s, self._token, n_left - 1, end)
        else:
            self._transport.write(_TOKEN + end)


async def serve_engine(*, n_tokens: int, gap_s: float) -> None:
    """The engine's process: says where it listens, then serves until it is ended."""
    server = await asyncio.get_running_loop().create_server(
        lambda: Engine(n_tokens=n_tokens, gap_s=gap_s), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    print(json.dumps({"url": f"http://127.0.0.1:{port}"}), flush=True)
    await server.serve_forever()


@dataclass(frozen=True)
class Sent:
    """One request's end: when the first event came after sending began, and how many came.

    `n_before`: how many requests its connection had carried before.
    """

    ttft_s: float
    n_events: int
    n_before: int


class Client(asyncio.Protocol):
    """One kept-alive connection, one stream at a time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._done: asyncio.Future[Sent] | None = None
        self._n_before = 0

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError(f"the stream was cut off: {exc}"))

    def send(self, request: bytes) -> asyncio.Future[Sent]:
        """Sends one request; the future raises ConnectionError or ValueError when it fails."""
        self._done = asyncio.get_running_loop().create_future()
        self._ttft_s: float | None = None
        self._n_events = 0
        self._tail = b""
        self._head_seen = False
        self._started_s = time.perf_counter()
        self.transport.write(request)
        return self._done

    def data_received(self, data: bytes) -> None:
        now_s = time.perf_counter()
        assert self._done is not None
        if not self._head_seen:
            self._head_seen = True
            if not data.startswith(b"HTTP/1.1 200"):
                self._done.set_exception(ValueError(f"answered {data[:200]!r}"))
                return
        n_events = data.count(b"data: ")
        self._n_events += n_events
        if self._ttft_s is None and n_events:
            self._ttft_s = now_s - self._started_s
        self._tail = (self._tail + data)[-len(_LAST_CHUNK) :]
        if self._tail == _LAST_CHUNK:
            if self._ttft_s is None:
                self._done.set_exception(ValueError("the stream held no event"))
            else:
                self._done.set_result(Sent(self._ttft_s, self._n_events, self._n_before))
                self._n_before += 1


def request_of(host: str, body: bytes) -> bytes:
    """What a client of the OpenAI API sends, as bytes."""
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nAccept: application/json\r\n"
        "Accept-Encoding: gzip, deflate\r\nContent-Type: application/json\r\n"
        "Authorization: Bearer sk-none\r\nUser-Agent: bench\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def load(
    url: str, bodies: list[bytes], *, starts_s: list[float], pauses_s: list[float]
) -> list[Sent]:
    """All bodies, on one stream for each of `starts_s`; a pause follows each request."""
    host, _, port = url.removeprefix("http://").partition(":")
    loop = asyncio.get_running_loop()
    waiting: Iterator[tuple[bytes, float]] = iter(zip(bodies, pauses_s, strict=True))
    results: list[Sent] = []

    async def stream(start_s: float) -> None:
        _, client = await loop.create_connection(Client, host, int(port))
        await asyncio.sleep(start_s)
        for body, pause_s in waiting:
            results.append(await client.send(request_of(f"{host}:{port}", body)))
            await asyncio.sleep(pause_s)
        client.transport.close()

    await asyncio.gather(*(stream(start_s) for start_s in starts_s))
    return results
