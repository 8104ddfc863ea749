"""`WS /ws/live?fleet=F`: one browser's place at the hub.

Who may look is checked before the socket is accepted and again at least every `recheck_s`, each
time with one short query, so an open socket holds no database connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qs

import msgspec
from channels.consumer import get_handler_name
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.sessions.backends.base import SessionBase
from django.db import DatabaseError
from django.http import HttpRequest, parse_cookie
from django.utils import timezone
from django.utils.module_loading import import_string

from console import sessions
from console.auth import may
from console.hub import Hub, Socket
from console.live_state import MOST_ROWS, Scope
from routing.models import Fleet

log = logging.getLogger(__name__)

T = TypeVar("T")
SIGNED_OUT = 4401
_CLOSE_TIMEOUT_S = 1.0
_RECHECK_RETRY_S = 5.0


_threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="live-db")


def in_database(function: Callable[..., T]) -> Callable[..., Awaitable[T]]:
    """`function` on one of two threads, so that all sockets together hold two connections."""
    return database_sync_to_async(function, thread_sensitive=False, executor=_threads)


_Rows = Annotated[
    tuple[Annotated[str, msgspec.Meta(max_length=300)], ...], msgspec.Meta(max_length=MOST_ROWS)
]


class Message(msgspec.Struct, frozen=True):
    """What a browser says: `pong` to a heartbeat, `snapshot` after a gap.

    `scope` names the rows that it shows of a large fleet.
    """

    type: str
    instances: _Rows = ()
    agents: _Rows = ()


class LiveConsumer(AsyncWebsocketConsumer):
    """Sends `hello`, then a snapshot, then the newest frame of each second."""

    def __init__(self, *, hub: Hub, recheck_s: float, max_sockets: int) -> None:
        super().__init__()
        self._hub = hub
        self._recheck_s = recheck_s
        self._max_sockets = max_sockets
        self._socket: Socket | None = None
        self._dropped = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def receive_unless_dropped() -> dict[str, Any]:
            # A client that reads nothing never lets a close frame out, nor sends us one: the
            # server must be able to end the conversation by itself.
            message = asyncio.ensure_future(receive())
            dropped = asyncio.ensure_future(self._dropped.wait())
            try:
                await asyncio.wait({message, dropped}, return_when=asyncio.FIRST_COMPLETED)
                if message.done():
                    return message.result()
                return {"type": "websocket.disconnect", "code": 1006}
            finally:
                message.cancel()
                dropped.cancel()

        await super().__call__(scope, receive_unless_dropped, send)

    async def dispatch(self, message: dict[str, Any]) -> None:
        # The base class visits the database thread at every message; a database that hangs would
        # then make everybody look silent, and our messages need nothing from it.
        await getattr(self, get_handler_name(message))(message)

    async def connect(self) -> None:
        query = parse_qs(self.scope["query_string"].decode("latin-1"))
        fleet = query.get("fleet", [""])[0]
        if self._hub.n_sockets >= self._max_sockets:
            await self._refuse(503, f"this process serves at most {self._max_sockets} sockets")
            return
        try:
            refusal = await in_database(_refusal)(self._session_key(), fleet)
            if refusal is not None:
                await self._refuse(*refusal)
                return
            socket = await self._hub.join(fleet, self._drop)
        except DatabaseError as exc:
            log.warning("a live socket was turned away, the database is away: %s", exc)
            await self._refuse(503, "the database is away")
            return
        self._socket = socket
        await self.accept()
        self._tasks = [
            asyncio.create_task(self._write(socket), name="live socket writer"),
            asyncio.create_task(self._recheck(fleet), name="live socket recheck"),
        ]

    async def disconnect(self, code: int) -> None:
        if self._socket is not None:
            self._hub.leave(self._socket)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        assert self._socket is not None
        try:
            message = msgspec.json.decode(text_data or bytes_data or b"", type=Message)
        except msgspec.DecodeError:
            return  # not one of our pages; it will fall silent for us
        self._socket.heard_s = time.monotonic()
        if message.type == "snapshot":
            self._socket.want_snapshot()
        elif message.type == "scope":
            self._socket.look_at(Scope(message.instances, message.agents))

    async def _write(self, socket: Socket) -> None:
        """The only one that sends: whatever is newest whenever the client can take it."""
        await self.send(self._hub.hello())
        while True:
            await socket.work.wait()
            socket.work.clear()
            if socket.snapshot_wanted:
                socket.snapshot_wanted = False
                socket.frame = None  # it is in the snapshot
                await self.send(self._hub.snapshot(socket))
            elif socket.frame is not None:
                frame, socket.frame = socket.frame, None
                await self.send(frame)
            if socket.heartbeat_due:
                socket.heartbeat_due = False
                await self.send(self._hub.heartbeat())

    async def _recheck(self, fleet: str) -> None:
        """Drop the socket once its person is signed out, deactivated or without rights."""
        while True:
            await asyncio.sleep(self._recheck_s * random.uniform(0.7, 0.9))
            refusal = None
            while True:
                try:
                    refusal = await in_database(_refusal)(self._session_key(), fleet)
                    break
                except DatabaseError:
                    await asyncio.sleep(min(_RECHECK_RETRY_S, self._recheck_s))
            if refusal is not None:
                self._drop(SIGNED_OUT, refusal[1])
                return

    def _drop(self, code: int, reason: str) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close_or_abandon(code, reason))

    async def _close_or_abandon(self, code: int, reason: str) -> None:
        if self._socket is not None:
            self._hub.leave(self._socket)
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self.close(code, reason), _CLOSE_TIMEOUT_S)
        self._dropped.set()

    async def _refuse(self, status: int, why: str) -> None:
        """Answer the handshake with a status, where the server can, so that a log tells why."""
        if "websocket.http.response" not in self.scope.get("extensions", {}):
            await self.close()
            return
        headers = [(b"content-type", b"text/plain; charset=utf-8")]
        await self.base_send(
            {"type": "websocket.http.response.start", "status": status, "headers": headers}
        )
        await self.base_send({"type": "websocket.http.response.body", "body": f"{why}\n".encode()})

    def _session_key(self) -> str:
        headers = dict(self.scope["headers"])
        cookies = parse_cookie(headers.get(b"cookie", b"").decode("latin-1"))
        return cookies.get(settings.SESSION_COOKIE_NAME, "")


def _refusal(session_key: str, fleet: str) -> tuple[int, str] | None:
    """Why the holder of a session may not look at a fleet: (HTTP status, sentence), or None."""
    request = HttpRequest()
    request.session = _session_store()(session_key or None)
    user = get_user(request)
    if not user.is_authenticated or sessions.is_over(request.session, timezone.now()):
        return 401, "log in first"
    if not may(user, "read", fleet):
        return 403, "this account is in no group that may look at this fleet"
    if not Fleet.objects.filter(pk=fleet).exists():
        return 404, f"there is no fleet {fleet!r}"
    return None


def _session_store() -> type[SessionBase]:
    return import_string(f"{settings.SESSION_ENGINE}.SessionStore")
