"""One hub per web process: keeps the newest of each watched fleet, feeds the sockets.

Batches that this process committed are handed to it, those of others come over Redis, as do ticks
and events. Once a second it builds one frame per fleet that has sockets and encodes it once for all
of them; of a large fleet, the rows that a page shows once for all pages that show the same ones.
No frame touches the database. Each socket has room for one frame: a newer one replaces it, so a
slow browser costs neither memory nor the others' time, and sees the gap in `seq`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import redis.asyncio
from prometheus_client import Counter, Gauge

from console.live_state import NO_ROWS, REREAD_S, Ack, FleetState, Scope
from routing import announce
from telemetry import publish, wire

log = logging.getLogger(__name__)

SOCKETS = Gauge("prfaas_console_sockets", "Open live sockets of this web process.")
SKIPPED = Counter(
    "prfaas_console_skipped_frames", "Frames replaced before a slow socket took them."
)

_EVENTS: Final = ("decision", "delivery", "policy", "rebalance", "router", "alert", "proposal")
_MAX_EVENTS: Final = 200
_FORGET_EVERY_S: Final = 30.0
_REDIS_TIMEOUT_S: Final = 3.0
_REDIS_QUIET_S: Final = 5.0
_REDIS_SILENT_S: Final = 15.0
_DATABASE_PATIENCE_S: Final = 5.0
_RETRY_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)


@dataclass(eq=False)
class Socket:
    """What waits for one browser. `drop(code, reason)` ends it and must not block."""

    fleet: str
    drop: Callable[[int, str], None]
    heard_s: float
    beat_s: float
    scope: Scope = NO_ROWS
    frame: str | None = None
    snapshot_wanted: bool = True
    heartbeat_due: bool = False
    work: asyncio.Event = field(default_factory=asyncio.Event)

    def offer(self, frame: str) -> None:
        """Hold the newest frame, in place of one that was not taken yet."""
        if self.frame is not None:
            SKIPPED.inc()
        self.frame = frame
        self.work.set()

    def look_at(self, scope: Scope) -> None:
        """Show these rows from now on."""
        if scope != self.scope:
            self.scope = scope
            self.want_snapshot()

    def want_snapshot(self) -> None:
        self.snapshot_wanted = True
        self.work.set()


@dataclass
class _Watched:
    """A fleet somebody looked at. `seq` counts its frames."""

    state: FleetState
    seq: int = 0
    sockets: set[Socket] = field(default_factory=set)
    events: list[dict[str, Any]] = field(default_factory=list)
    snapshots: _Frames | None = None
    snapshots_s: float = float("-inf")
    stumbled: bool = False
    baffled: bool = False


class _Frames:
    """One moment of a fleet, encoded once for each set of rows that pages show."""

    def __init__(self, state: FleetState, now_s: float, about: dict[str, Any]) -> None:
        self._state, self._now_s = state, now_s
        self._common = _json(about | state.common(now_s))
        self._known: dict[Scope, str] = {}

    def of(self, scope: Scope) -> str:
        """The frame for pages that show `scope`."""
        scope = scope if self._state.partial else NO_ROWS
        found = self._known.get(scope)
        if found is None:
            rows = _json(self._state.rows(self._now_s, scope))
            found = self._known[scope] = f"{self._common[:-1]},{rows[1:]}"
        return found


class Hub:
    """Construct, `start` in the server's loop, `join` sockets. `load` reads a fleet's newest rows.

    `acks` reads, by fleet, what only the database knows of routers; it fails when that is away.
    `SILENT` closes a socket that did not answer for two heartbeats.
    """

    SILENT: Final = 4408

    def __init__(
        self,
        *,
        redis_url: str,
        load: Callable[[str, float], Awaitable[FleetState]],
        acks: Callable[[], Awaitable[dict[str, list[Ack]]]],
        heartbeat_s: float = 5.0,
        frame_s: float = 1.0,
        acks_every_s: float = 5.0,
        reread_s: float = REREAD_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.heartbeat_s = heartbeat_s
        self.frame_s = frame_s
        self.stream = secrets.token_hex(8)
        self._acks_every_s = acks_every_s
        self._reread_s = reread_s
        self._redis_url = redis_url
        self._load = load
        self._acks = acks
        self._clock = clock
        self._watched: dict[str, _Watched] = {}
        self._loading: dict[str, asyncio.Lock] = {}
        self._redis_state = "connecting"
        self._redis_away_s: float | None = None
        self._database_away_s: float | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def n_sockets(self) -> int:
        return sum(len(watched.sockets) for watched in self._watched.values())

    def start(self) -> None:
        """Begin to listen and to send frames, in the running loop."""
        self._tasks = [
            asyncio.create_task(self._listen_forever(), name="hub listener"),
            asyncio.create_task(self._every(self.frame_s, self._broadcast), name="hub frames"),
            asyncio.create_task(self._every(self.heartbeat_s / 4, self._beat), name="hub beats"),
            asyncio.create_task(self._every(_FORGET_EVERY_S, self._forget), name="hub forgetting"),
            asyncio.create_task(self._reread_forever(), name="hub reader"),
            asyncio.create_task(self._read_acks_forever(), name="hub acks"),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def join(self, fleet: str, drop: Callable[[int, str], None]) -> Socket:
        """A place for a new socket, which first wants a snapshot. Raises what `load` raises."""
        async with self._loading.setdefault(fleet, asyncio.Lock()):
            if fleet not in self._watched:
                self._watched[fleet] = _Watched(await self._load(fleet, self._clock()))
        now_s = time.monotonic()
        socket = Socket(fleet, drop, heard_s=now_s, beat_s=now_s)
        socket.work.set()
        self._watched[fleet].sockets.add(socket)
        SOCKETS.set(self.n_sockets)
        return socket

    def leave(self, socket: Socket) -> None:
        """Forget a socket; nothing is sent to it any more. Safe to call twice."""
        self._watched[socket.fleet].sockets.discard(socket)
        SOCKETS.set(self.n_sockets)

    def snapshot(self, socket: Socket) -> str:
        """The newest state as a frame, encoded at most once between two broadcasts."""
        watched = self._watched[socket.fleet]
        if watched.snapshots is None or time.monotonic() - watched.snapshots_s >= self.frame_s:
            watched.snapshots = self._frames(watched, snapshot=True, events=[])
            watched.snapshots_s = time.monotonic()
        return watched.snapshots.of(socket.scope)

    @property
    def is_watched(self) -> bool:
        """Whether any fleet is kept for a page."""
        return bool(self._watched)

    def take(self, batches: list[wire.Batch]) -> None:
        """Batches that were just committed; never fails, their acks must not depend on a page."""
        received_s = self._clock()
        for fleet, watched in self._watched.items():
            for batch in batches:
                try:
                    watched.state.apply_batch(batch, received_s=received_s)
                except Exception:
                    if not watched.baffled:
                        log.exception("a batch of %s cannot be shown in %s", batch.agent, fleet)
                    watched.baffled = True

    def hello(self) -> str:
        """The first message of every socket."""
        return _json(
            {
                "type": "hello",
                "stream": self.stream,
                "heartbeat_s": self.heartbeat_s,
                "frame_s": self.frame_s,
            }
        )

    def heartbeat(self) -> str:
        """What a browser answers with {"type": "pong"}."""
        return _json({"type": "heartbeat", "at_s": self._clock()})

    def _broadcast(self) -> None:
        for fleet, watched in self._watched.items():
            events, watched.events = watched.events, []
            if not watched.sockets:
                continue
            watched.seq += 1
            watched.snapshots = None
            try:
                frames = self._frames(watched, snapshot=False, events=events)
                offers = [(socket, frames.of(socket.scope)) for socket in watched.sockets]
            except Exception:  # one fleet's odd value must not stop the frames of all
                if not watched.stumbled:
                    log.exception("fleet %s has no live frames", fleet)
                watched.stumbled = True
                continue
            watched.stumbled = False
            for socket, frame in offers:
                socket.offer(frame)

    def _frames(self, watched: _Watched, *, snapshot: bool, events: list[Any]) -> _Frames:
        now_s = self._clock()
        missing = watched.state.missing(
            now_s, database_away_s=self._database_away_s, broker_away_s=self._redis_away_s
        )
        about = {
            "type": "frame",
            "stream": self.stream,
            "seq": watched.seq,
            "at_s": now_s,
            "snapshot": snapshot,
            "missing": [finding.jsonable() for finding in missing],
            "hub": {"redis": self._redis_state},
            "events": events,
        }
        return _Frames(watched.state, now_s, about)

    def _beat(self) -> None:
        """Ask everybody for a sign of life; let go of those that gave none for two heartbeats.

        Frames do not count: they may pile up unread in the kernel of a sleeping laptop.
        """
        now_s = time.monotonic()
        for watched in self._watched.values():
            for socket in list(watched.sockets):
                if now_s - socket.heard_s > 2 * self.heartbeat_s:
                    self.leave(socket)
                    socket.drop(self.SILENT, "no answer for two heartbeats")
                elif now_s - socket.beat_s >= self.heartbeat_s:
                    socket.beat_s = now_s
                    socket.heartbeat_due = True
                    socket.work.set()

    def _forget(self) -> None:
        for watched in self._watched.values():
            watched.state.forget(self._clock())

    async def _every(self, period_s: float, step: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(period_s)
            try:
                step()
            except Exception:  # the next step may go well
                log.exception("the hub stumbled")

    async def _listen_forever(self) -> None:
        failures = 0
        while True:
            try:
                await self._listen()
            except (redis.RedisError, OSError) as exc:
                if not self._redis_state.startswith("away"):
                    failures = 0
                    log.warning("live pages hear no news, Redis is away: %s", exc)
                    self._redis_away_s = self._clock()
                    since = datetime.fromtimestamp(self._redis_away_s, UTC)
                    self._redis_state = f"away since {since:%Y-%m-%dT%H:%M:%SZ}"
                failures += 1
            delay_s = _RETRY_S[min(failures, len(_RETRY_S)) - 1]
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.5))

    async def _listen(self) -> None:
        """Hear both channels until the connection fails. Raises RedisError or OSError."""
        client = redis.asyncio.Redis.from_url(
            self._redis_url, socket_connect_timeout=_REDIS_TIMEOUT_S
        )
        async with client, client.pubsub() as pubsub:
            await pubsub.subscribe(publish.CHANNEL, announce.CHANNEL)
            heard_s = time.monotonic()
            while True:
                message = await pubsub.get_message(timeout=_REDIS_QUIET_S)
                if message is None:
                    if time.monotonic() - heard_s > _REDIS_SILENT_S:
                        raise redis.ConnectionError("no answer to PING")
                    await pubsub.ping()
                    continue
                heard_s = time.monotonic()
                if message["type"] == "subscribe":
                    await self._heard_again()
                elif message["type"] == "message":
                    try:
                        self._hear(message["channel"].decode(), message["data"])
                    except Exception as exc:  # another release wrote it; the next may be ours
                        log.warning("a message on %s makes no sense: %r", message["channel"], exc)

    async def _heard_again(self) -> None:
        """What was said meanwhile is lost: read it from the database."""
        if self._redis_state == "ok":
            return
        if self._redis_state != "connecting":
            log.info("Redis is back, live pages are read anew")
            await self._reload_all()
        self._redis_state = "ok"
        self._redis_away_s = None

    async def _reread_forever(self) -> None:
        """While the broker carries nothing, pages that are open follow the database itself."""
        while True:
            await asyncio.sleep(self._reread_s)
            if self._redis_away_s is None or self._database_away_s is not None:
                continue
            for fleet, watched in list(self._watched.items()):
                if watched.sockets:
                    try:
                        watched.state = await self._load(fleet, self._clock())
                    except Exception as exc:  # reading acks tells if it is the database
                        log.warning("the live view of %s could not be re-read: %s", fleet, exc)

    async def _read_acks_forever(self) -> None:
        """Acks, and since when the database gives none; once it is back, everything is re-read."""
        while True:
            await asyncio.sleep(self._acks_every_s)
            if not self.n_sockets:
                continue
            asked_s = self._clock()
            reading = asyncio.ensure_future(self._acks())
            done, _ = await asyncio.wait({reading}, timeout=_DATABASE_PATIENCE_S)
            if not done:
                self._database_away_s = self._database_away_s or asked_s
                await asyncio.wait({reading})
            failed = reading.exception()
            if failed is not None:
                if self._database_away_s is None:
                    log.warning("the database does not answer: %s", failed)
                    self._database_away_s = asked_s
                continue
            for fleet, watched in self._watched.items():
                watched.state.acks = reading.result().get(fleet, [])
            if self._database_away_s is not None:
                self._database_away_s = None
                await self._reload_all()

    async def _reload_all(self) -> None:
        for fleet, watched in list(self._watched.items()):
            await self._reload(fleet, watched)

    async def _reload(self, fleet: str, watched: _Watched) -> None:
        for delay_s in _RETRY_S:
            try:
                watched.state = await self._load(fleet, self._clock())
                return
            except Exception as exc:  # both may have been restarted; it will be back in a moment
                log.warning("the live view of %s could not be read: %s", fleet, exc)
                await asyncio.sleep(delay_s * random.uniform(0.5, 1.5))

    def _hear(self, channel: str, data: bytes) -> None:
        if channel == publish.CHANNEL:
            if self._watched:
                self.take(list(publish.batches(data)))
            return
        message = msgspec.json.decode(data)
        watched_fleet = self._watched.get(message.get("fleet"))
        if watched_fleet is None:
            return
        if message["type"] == "tick":
            watched_fleet.state.apply_loop(message, plan_since_s=message["at_s"])
        elif message["type"] in _EVENTS and len(watched_fleet.events) < _MAX_EVENTS:
            watched_fleet.events.append(message)


def _json(value: dict[str, Any]) -> str:
    # msgspec writes strict JSON: whatever is not finite becomes null.
    return msgspec.json.encode(value).decode()
