"""The connection's protocol of the web server: agents' batches on a short way, all else as ever.

uvicorn makes a task, a scope and four messages of a request; for a thousand agents a second that
is most of the work of taking their batches. So a connection that begins with a plain POST of a
batch is read here, and whatever is not exactly that (another path, chunks, `Expect`, a body that
dribbles in, an unknown token) is handed with every byte so far to uvicorn's own protocol, which
keeps the connection. `telemetry.ingest` decides in both cases. A connection whose batch was stored
is read in `console.rounds` from then on, with all others at once.

Run uvicorn with `--http console.front:Front`.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from console.rounds import Rounds
from telemetry import ingest
from telemetry.flusher import Unavailable

_BEGIN: Final = b"POST " + ingest.PATH.encode() + b" HTTP/1.1\r\n"
_HEAD_END: Final = b"\r\n\r\n"
_MAX_HEAD_BYTES: Final = 16 * 1024
_MAX_BODY_BYTES: Final = 256 * 1024
"""A larger body is uvicorn's: it comes in pieces, and is counted as it comes."""
_PATIENCE_S: Final = 5.0
"""How long the rest of a request may take to follow its beginning here."""
_NEVER_S: Final = float("inf")
_MAX_HEADS: Final = 16
"""Heads of requests remembered by a connection: an agent's differ by the body's length at most."""
_IDLE_S: Final = 75.0
"""A connection that says nothing for so long is closed."""
_SIMPLE: Final = frozenset(
    (
        b"host",
        b"authorization",
        b"content-type",
        b"content-length",
        b"content-encoding",
        b"user-agent",
        b"accept",
        b"accept-encoding",
        b"connection",
        # What proxies add says nothing that a batch depends on.
        b"x-forwarded-for",
        b"x-forwarded-proto",
        b"x-forwarded-host",
        b"x-real-ip",
        b"x-request-id",
    )
)
_REASONS: Final = {200: "OK", 403: "Forbidden", 408: "Request Timeout", 409: "Conflict",
                   413: "Content Too Large",
                   415: "Unsupported Media Type", 422: "Unprocessable Content",
                   500: "Internal Server Error", 503: "Service Unavailable"}  # fmt: skip


class Front(asyncio.Protocol):
    """One connection, in the place of uvicorn's HttpToolsProtocol."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._made_of = (config, server_state, app_state)
        self._server_state = server_state
        self._ingest: ingest.Ingest | None = app_state.get("ingest")
        self._rounds: Rounds | None = app_state.get("rounds")
        self._fd: int | None = None
        self._asking: asyncio.Task[None] | None = None
        self._heads: dict[bytes, tuple[dict[bytes, bytes], int]] = {}
        self._loop = _loop or asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting = b""
        self._busy = False
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_s = _NEVER_S

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server_state.connections.add(cast(Any, self))
        self._wait(_IDLE_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server_state.connections.discard(cast(Any, self))
        self._leave_rounds()
        self._transport = None
        self._stop_waiting()

    def pause_writing(self) -> None:
        """Whoever sends batches and reads no answers is no agent: give its memory back."""
        if self._transport is not None:
            self._leave_rounds()
            self._transport.abort()

    def shutdown(self) -> None:
        """The server stops: close after the answer that is due."""
        self._closing = True
        if not self._busy:
            self._close()

    def is_ready(self) -> bool:
        """Whether the next bytes are wanted before the batch that came is answered."""
        return not self._busy

    def read(self, data: bytes) -> None:
        """What a round found on this connection."""
        if not data:
            self._close()
            return
        self.data_received(data)
        if self._waiting and not self._busy:
            self._leave_rounds()

    def data_received(self, data: bytes) -> None:
        self._waiting = self._waiting + data if self._waiting else data
        if not self._busy:
            self._next()
        elif len(self._waiting) > _MAX_BODY_BYTES and self._transport is not None:
            self._transport.pause_reading()

    def _next(self) -> None:
        """Take the request that has come, wait for its rest, or hand the connection over."""
        data = self._waiting
        if not data.startswith(_BEGIN[: len(data)]) or self._ingest is None:
            self._hand_over()
            return
        end = data.find(_HEAD_END, 0, _MAX_HEAD_BYTES)
        if end < 0:
            if len(data) >= _MAX_HEAD_BYTES:
                self._hand_over()
            return
        head = data[len(_BEGIN) : end]
        known = self._heads.get(head) or self._learn(head)
        if known is None:
            self._hand_over()
            return
        headers, length = known
        begin = end + len(_HEAD_END)
        if len(data) < begin + length:
            return
        self._take(headers, data[begin : begin + length], begin + length)

    def _learn(self, head: bytes) -> tuple[dict[bytes, bytes], int] | None:
        """A head's headers and the length of the body, if the request is a plain one."""
        headers = _headers(head)
        length = -1 if headers is None else _length(headers)
        if headers is None or not 0 <= length <= _MAX_BODY_BYTES:
            return None
        if len(self._heads) >= _MAX_HEADS:
            self._heads.clear()
        self._heads[head] = headers, length
        return headers, length

    def _take(self, headers: dict[bytes, bytes], body: bytes, n_bytes: int) -> None:
        assert self._ingest is not None
        try:
            taken = self._ingest.at_once(headers, body)
        except (ingest.Refused, Unavailable) as exc:
            self._waiting = self._waiting[n_bytes:]
            self._busy = True
            self._answer_error(exc, headers)
            return
        if taken is None:
            if self._ingest.knows(headers):
                self._hand_over()
            else:
                self._busy = True
                self._asking = self._loop.create_task(self._learn_token(headers, body, n_bytes))
            return
        self._waiting = self._waiting[n_bytes:]
        self._busy = True
        taken.outcome.add_done_callback(lambda _: self._committed(taken, headers))

    async def _learn_token(self, headers: dict[bytes, bytes], body: bytes, n_bytes: int) -> None:
        """Take the request once its token is known; a stranger's is uvicorn's."""
        assert self._ingest is not None
        await self._ingest.learn(headers)
        self._busy = False
        if self._transport is None:
            return
        if self._closing:
            self._answer_error(Unavailable("the console is stopping"), headers)
        elif self._ingest.knows(headers):
            self._take(headers, body, n_bytes)
        else:
            self._hand_over()

    def _committed(self, taken: ingest.Taken, headers: dict[bytes, bytes]) -> None:
        if taken.outcome.cancelled():
            self._answer_error(Unavailable("the console is stopping"), headers)
            return
        try:
            body = ingest.answer(taken)
        except (ingest.Refused, Unavailable) as exc:
            self._answer_error(exc, headers)
        else:
            self._answer(200, body, {})
            self._join_rounds()

    def _answer_error(self, exc: ingest.Refused | Unavailable, headers: dict[bytes, bytes]) -> None:
        if isinstance(exc, Unavailable):
            retry_s = str(max(1, round(exc.retry_s)))
            self._answer(503, {"error": str(exc)}, {"retry-after": retry_s})
            return
        assert self._ingest is not None
        client = self._transport.get_extra_info("peername") if self._transport else None
        self._ingest.note(exc, headers, client)
        self._answer(exc.status, exc.body, exc.headers)

    def _answer(self, status: int, body: dict[str, Any], headers: dict[str, str]) -> None:
        self._busy = False
        if self._transport is None:
            return
        encoded = msgspec.json.encode(body)
        lines = [f"HTTP/1.1 {status} {_REASONS.get(status, '')}".encode()]
        lines += [name + b": " + value for name, value in self._server_state.default_headers]
        lines += [f"{name}: {value}".encode("latin-1") for name, value in headers.items()]
        lines.append(b"content-type: application/json\r\ncontent-length: %d" % len(encoded))
        if self._closing:
            lines.append(b"connection: close")
        self._transport.write(b"\r\n".join(lines) + _HEAD_END + encoded)
        self._server_state.total_requests += 1
        if self._closing:
            self._close()
            return
        if self._fd is None:
            self._transport.resume_reading()
        if self._waiting:
            self._wait(_PATIENCE_S)
            self._loop.call_soon(self._resume)
        else:
            self._wait(_IDLE_S)

    def _resume(self) -> None:
        if not self._busy and self._transport is not None and self._waiting:
            self._next()

    def _hand_over(self) -> None:
        """uvicorn's protocol takes the connection, with all that came of the present request."""
        transport = self._transport
        if transport is None:
            return
        self._leave_rounds()
        self._stop_waiting()
        self._server_state.connections.discard(cast(Any, self))
        self._transport = None
        inner = HttpToolsProtocol(*self._made_of, _loop=self._loop)
        transport.set_protocol(inner)
        inner.connection_made(transport)
        data, self._waiting = self._waiting, b""
        if data:
            inner.data_received(data)

    def _join_rounds(self) -> None:
        """Be read with the others, unless part of another request is here already."""
        transport = self._transport
        if (
            self._fd is not None
            or self._rounds is None
            or transport is None
            or transport.is_closing()
            or self._waiting
            or transport.get_extra_info("sslcontext") is not None
        ):
            return
        transport.pause_reading()
        self._fd = transport.get_extra_info("socket").fileno()
        self._rounds.adopt(self._fd, self)

    def _leave_rounds(self) -> None:
        if self._fd is None:
            return
        assert self._rounds is not None
        self._rounds.release(self._fd, self)
        self._fd = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _close(self) -> None:
        if self._transport is not None:
            transport = self._transport
            self._leave_rounds()
            transport.close()

    def _wait(self, patience_s: float) -> None:
        """Give the next bytes this long; a body that did not end is for `Ingest` to time out.

        One timer runs on and looks at the deadline: two new ones a request would cost more.
        """
        self._deadline_s = self._loop.time() + patience_s
        if self._timer is None or self._timer.when() > self._deadline_s:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._deadline_s, self._waited)

    def _waited(self) -> None:
        self._timer = None
        if self._busy or self._transport is None:
            return
        if self._loop.time() < self._deadline_s:
            self._set_timer()
        elif not self._waiting:
            self._close()
        elif _HEAD_END in self._waiting:
            self._hand_over()
        else:
            # uvicorn waits for the rest of a head for ever.
            self._closing = True
            self._answer(408, {"error": f"no whole request within {_PATIENCE_S:g} s"}, {})

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _headers(head: bytes) -> dict[bytes, bytes] | None:
    """The headers of a plain request, names in lower case; None where one is anything special."""
    found: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        name = name.lower()
        if not colon or name not in _SIMPLE or name in found or b"\n" in value or b"\r" in value:
            return None
        found[name] = value.strip(b" \t")
    if found.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    return found if b"host" in found else None


def _length(headers: dict[bytes, bytes]) -> int:
    declared = headers.get(b"content-length", b"")
    return int(declared) if declared.isdigit() and len(declared) < 12 else -1
