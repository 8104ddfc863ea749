"""A browser's part of the live socket: session cookie, Origin, strict JSON, pongs."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from django.conf import settings
from django.contrib.auth.models import Group, User
from django.test import Client

from tests.servers import Server

PATIENCE_S = 20.0


def sign_in(name: str, *, group: str | None = "viewer") -> str:
    """A new person's session key."""
    user = User.objects.create_user(name)
    if group is not None:
        user.groups.add(Group.objects.get_or_create(name=group)[0])
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client.session.session_key


def strict(text: str) -> Any:
    """JSON as browsers read it: NaN and Infinity are errors."""

    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


class Page:
    """One open socket. Answers heartbeats while it is read, unless told to be `mute`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, *, mute: bool) -> None:
        self.socket = socket
        self.mute = mute

    async def next(self) -> dict[str, Any]:
        """The next message; heartbeats are answered. EOFError when the server has closed."""
        message = await asyncio.wait_for(self.socket.receive(), PATIENCE_S)
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise EOFError(self.socket.close_code)
        found = strict(message.data)
        if found["type"] == "heartbeat" and not self.mute:
            await self.say("pong")
        return found

    async def frame(
        self, wanted: Callable[[dict[str, Any]], bool] = lambda frame: True
    ) -> dict[str, Any]:
        """The next frame that is `wanted`."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await self.next()
                if found["type"] == "frame" and wanted(found):
                    return found

    async def end(self) -> int | None:
        """The close code, once the server ends it."""
        try:
            while True:
                await self.next()
        except EOFError:
            return self.socket.close_code

    async def say(self, kind: str, **more: Any) -> None:
        await self.socket.send_str(json.dumps({"type": kind, **more}))


def headers(server: Server, session: str | None = None, **more: str) -> dict[str, str]:
    """What a browser on our own page sends."""
    found = {"Origin": f"http://{server.host}", **more}
    if session is not None:
        found["Cookie"] = f"{settings.SESSION_COOKIE_NAME}={session}"
    return found


@asynccontextmanager
async def page(
    server: Server, fleet: str, session: str, *, mute: bool = False, receive_bytes: int = 0
) -> AsyncIterator[Page]:
    """An open live socket. `receive_bytes` makes the kernel's buffer that small."""

    def small(address: Any) -> socket.socket:
        made = socket.socket(address[0], address[1], address[2])
        made.setblocking(False)
        if receive_bytes:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        return made

    connector = aiohttp.TCPConnector(socket_factory=small)
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        http.ws_connect(
            f"http://{server.host}/ws/live?fleet={fleet}",
            headers=headers(server, session),
            max_msg_size=0,
            timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
        ) as opened,
    ):
        yield Page(opened, mute=mute)


async def handshake(server: Server, path: str, lines: list[tuple[str, str]]) -> int:
    """The status a raw handshake with exactly these headers gets (101: accepted)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    fixed = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ]
    text = f"GET {path} HTTP/1.1\r\n"
    text += "".join(f"{name}: {value}\r\n" for name, value in [*lines, *fixed])
    writer.write(f"{text}\r\n".encode("latin-1"))
    status_line = await asyncio.wait_for(reader.readline(), PATIENCE_S)
    writer.close()
    return int(status_line.split()[1]) if status_line else 0
