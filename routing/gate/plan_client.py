"""Where plans come from: the console's socket, else conditional GET, else the last plan on disk.

The edge is a level: each contact carries the whole ack, each answer the newest plan, so losing any
message costs one interval. While the console is away the gate goes on with the plan it has.

The socket also carries what gates tell each other of caches (`cache_map`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import aiohttp
import msgspec

from routing.gate import cache_map
from routing.gate.cache_map import CacheMap
from routing.gate.plan import Ack, PlanState, offer
from routing.gate.settings import GateConfig

_SOCKET_BACKOFF_S = (1.0, 10.0)
_PING_S = 10.0
_TELL_EVERY_S = (1.0, 1.25)
_MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
_RELEASE = "release_override"
_RELEASE_HEADER = "X-Release-Override"

Contact = Literal["off", "socket", "polling", "away"]

log = logging.getLogger(__name__)


class ConsoleLost(Exception):
    """The console answered, but not with a plan socket or a plan."""


_LOST = (aiohttp.ClientError, OSError, TimeoutError, ValueError, ConsoleLost)
"""ValueError: a token file that is no text, or more than a line. The next one may be better."""


class _Typed(msgspec.Struct):
    type: str | None = None


class _Release(msgspec.Struct):
    # Unknown fields are ignored on purpose: a newer console may add optional ones.
    id: str


class PlanBoard:
    """The plan that runs, kept on disk so that a restart of the gate does not forget it."""

    def __init__(self, *, fleet: str, cluster: str, file: Path | None) -> None:
        self.state = PlanState()
        self.origin: Literal["none", "file", "console"] = "none"
        self.file_error: str | None = None
        self._fleet, self._cluster, self._file = fleet, cluster, file

    def load(self) -> None:
        """Offers the plan on disk, if there is one."""
        if self._file is None or not self._file.exists():
            return
        try:
            document = self._file.read_bytes()
        except OSError as exc:
            self.file_error = f"plan file cannot be read: {exc.strerror}"
            log.warning("%s: %s", self._file, self.file_error)
            return
        if self._offer(document):
            self.origin = "file"

    async def receive(self, document: bytes) -> None:
        """Offers a document from the console; an accepted one is written down."""
        if not self._offer(document):
            return
        self.origin = "console"
        if self._file is not None:
            try:
                await asyncio.to_thread(_write, self._file, document)
                self.file_error = None
            except OSError as exc:
                self.file_error = f"plan file cannot be written: {exc.strerror}"
                log.warning("%s: %s", self._file, self.file_error)

    def _offer(self, document: bytes) -> bool:
        before = self.state
        self.state = offer(before, document, fleet=self._fleet, cluster=self._cluster)
        if self.state.refusal not in (None, before.refusal):
            log.warning("%s", self.state.refusal)
        if self.state.running is None or self.state.running is before.running:
            return False
        log.info("running plan %s: %s", self.state.running.name, self.state.running.rule)
        return True


def _write(file: Path, document: bytes) -> None:
    """Whole or not at all, whenever the process dies."""
    scratch = file.with_name(file.name + ".new")
    with scratch.open("wb") as out:
        out.write(document)
        out.flush()
        os.fsync(out.fileno())
    scratch.replace(file)


class PlanClient:
    """Keeps one gate in touch with its console until cancelled.

    `ack` says what the gate runs at this moment; `caches` is what it tells and hears of caches;
    `release` is told the id of an override that the console ends; `trust` is whom an https console
    is believed; `rng` spreads the retries of many gates.
    """

    def __init__(
        self,
        config: GateConfig,
        board: PlanBoard,
        *,
        session: aiohttp.ClientSession,
        ack: Callable[[], Ack],
        caches: CacheMap,
        rng: random.Random,
        release: Callable[[str], None] = lambda _: None,
        trust: ssl.SSLContext | bool = True,
    ) -> None:
        self._board, self._session, self._release = board, session, release
        self._ack, self._caches, self._rng = ack, caches, rng
        self.contact: Contact = "off" if config.console_url is None else "away"
        self.error: str | None = None
        self.configure(config, trust=trust)

    def configure(self, config: GateConfig, *, trust: ssl.SSLContext | bool) -> None:
        """Takes other settings. A console is left for another one when `run` begins anew."""
        self._config, self._trust = config, trust
        self._console = (config.console_url or "").rstrip("/")

    async def run(self) -> None:
        """Socket first; while it is down, GET at the poll interval and retry it with backoff."""
        loop = asyncio.get_running_loop()
        self.contact, self.error = "away", None
        shortest_s, longest_s = _SOCKET_BACKOFF_S
        backoff_s = shortest_s
        while True:
            if await self._socket():
                backoff_s = shortest_s
            retry_at_s = loop.time() + backoff_s * self._rng.uniform(0.75, 1.25)
            backoff_s = min(longest_s, backoff_s * 2)
            while loop.time() < retry_at_s:
                await self._poll()
                await asyncio.sleep(self._config.poll_interval_s * self._rng.uniform(0.75, 1.25))

    async def _socket(self) -> bool:
        """One life of the socket. True if it ever was open."""
        opened = False
        try:
            async with self._session.ws_connect(
                f"{self._console}/ws/plan",
                params={"fleet": self._config.fleet},
                headers=self._authorization(),
                heartbeat=_PING_S,
                max_msg_size=_MAX_DOCUMENT_BYTES,
                ssl=self._trust,
            ) as socket:
                opened = True
                self._in_contact("socket")
                await self._talk(socket)
            raise ConsoleLost(f"plan socket closed with code {socket.close_code}")
        except _LOST as exc:
            self._lost(exc, at="polling" if self.contact == "polling" else "away")
        return opened

    async def _talk(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        await self._send_ack(socket)
        await socket.send_str(self._caches.opened())
        tasks = [
            asyncio.create_task(self._heartbeat(socket)),
            asyncio.create_task(self._tell(socket)),
        ]
        try:
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.TEXT:
                    continue
                kind = _kind(message.data)
                if kind is None:
                    await self._board.receive(message.data.encode())
                    await self._send_ack(socket)
                elif kind in cache_map.TYPES:
                    await self._caches.receive(message.data)
                elif kind == _RELEASE:
                    self._released(message.data)
                    await self._send_ack(socket)
                elif kind == "error":
                    log.warning("console %s says: %s", self._console, message.data)
        finally:
            self._caches.closed()
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                    await task

    def _released(self, text: str) -> None:
        try:
            self._release(msgspec.json.decode(text, type=_Release).id)
        except msgspec.MsgspecError as exc:
            log.warning("console %s releases an override unclearly: %s", self._console, exc)

    async def _heartbeat(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            await asyncio.sleep(self._config.ack_interval_s)
            await self._send_ack(socket)

    async def _tell(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            await asyncio.sleep(self._rng.uniform(*_TELL_EVERY_S))
            message = self._caches.next_message()
            if message is not None:
                await socket.send_str(message)

    async def _send_ack(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        await socket.send_str(msgspec.json.encode(self._ack()).decode())

    async def _poll(self) -> None:
        """Asks for a plan other than the one that runs."""
        try:
            async with self._session.get(
                f"{self._console}/api/v1/fleets/{self._config.fleet}/plan",
                headers=self._authorization() | ack_headers(self._ack()),
                ssl=self._trust,
            ) as answer:
                # 404: the fleet has no plan yet, which is news of a console that lives.
                if answer.status not in (200, 304, 404):
                    raise ConsoleLost(f"GET plan answered {answer.status}")
                if (released := answer.headers.get(_RELEASE_HEADER)) is not None:
                    self._release(released)
                if answer.status == 200:
                    await self._board.receive(await answer.read())
                self._in_contact("polling")
        except _LOST as exc:
            self._lost(exc, at="away")

    def _authorization(self) -> dict[str, str]:
        token = self._config.read_token()
        return {} if token is None else {"Authorization": f"Bearer {token}"}

    def _in_contact(self, contact: Contact) -> None:
        if self.contact != contact:
            log.info("console %s: %s", self._console, contact)
        self.contact = contact
        if contact == "socket":
            self.error = None

    def _lost(self, exc: Exception, *, at: Contact) -> None:
        """A failed socket leaves polling as it is; a failed poll means the console is away."""
        error = str(exc) or type(exc).__name__
        if (self.contact, self.error) != (at, error):
            log.warning("console %s: %s, now %s", self._console, error, at)
        self.contact, self.error = at, error


def ack_headers(ack: Ack) -> dict[str, str]:
    """The ack of a gate that polls, and the condition of its GET."""
    headers = {"X-Router": ack.router, "X-State": ack.state}
    if ack.version_running is not None:
        name = f"{ack.epoch}.{ack.version_running}"
        headers |= {"X-Version-Running": name, "If-None-Match": f'"{name}"'}
    if ack.error is not None:
        # Header values are one line of ASCII.
        headers["X-Error"] = " ".join(ack.error.encode("ascii", "replace").decode().split())[:500]
    if ack.override is not msgspec.UNSET:
        headers["X-Override"] = json.dumps(msgspec.to_builtins(ack.override))
    return headers


def _kind(text: str) -> str | None:
    """The type of a message about something else; None for what is offered as a plan."""
    try:
        return msgspec.json.decode(text, type=_Typed).type
    except msgspec.MsgspecError:
        return None
