"""`WS /ws/plan?fleet=F`: routers get the newest plan as it appears and say which one they run.

The database is the truth and Redis the bell: one subscriber per process hears that a plan was
issued, and every `REREAD_S` the newest plan is read again, so a lost message costs seconds. Only
the newest plan is ever sent, never a queue of old ones. What gates tell each other of caches goes
the same way, after the plan (`cache_relay`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qs

import msgspec
import redis.asyncio
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.db import DatabaseError, InterfaceError
from django.utils import timezone
from redis.exceptions import RedisError

from routing import announce, cache_epochs, cache_relay, delivery
from routing.ack_batches import AckBatches
from routing.acks import AckError, Claim, Override
from routing.models import Fleet
from telemetry import tokens

REREAD_S = 10.0
RECHECK_S = 10.0
"""How often an open socket's token is verified again."""
SILENT_S = 60.0
"""A router acks every 5 s; one that said nothing for this long is gone."""
_RETRY_S = 1.0

_AWAY = (DatabaseError, InterfaceError)

REFUSED, GOING_AWAY, POLICY_VIOLATION, FAILED = 4401, 1001, 1008, 1011

log = logging.getLogger(__name__)


T = TypeVar("T")
_threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="plan-db")
Number = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class Ack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a router says it runs; null versions until it ever ran a plan."""

    router: str
    state: str
    epoch: Number | None = None
    version_running: Number | None = None
    error: str | None = None
    override: Override | None = None


class _Typed(msgspec.Struct):
    type: str | None = None


class PlanFeed:
    """The newest plan of each watched fleet, in this process. Use it from one event loop."""

    def __init__(self) -> None:
        self._newest: dict[str, dict[str, Any] | None] = {}
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self._task: asyncio.Task[None] | None = None
        self._deaf = False

    @contextlib.asynccontextmanager
    async def watch(self, fleet: str, event: asyncio.Event) -> AsyncIterator[None]:
        """Sets `event` whenever `newest(fleet)` may have changed."""
        self._watchers.setdefault(fleet, set()).add(event)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            await self._reread(fleet)
            yield
        finally:
            self._watchers[fleet].discard(event)
            if not self._watchers[fleet]:
                del self._watchers[fleet]
                self._newest.pop(fleet, None)
            if not self._watchers and self._task is not None:
                self._task.cancel()
                self._task = None

    def newest(self, fleet: str) -> dict[str, Any] | None:
        return self._newest.get(fleet)

    async def _run(self) -> None:
        while True:
            try:
                await self._listen()
            except (RedisError, OSError) as exc:
                if not self._deaf:
                    log.warning("plan announcements are not heard, re-reading instead: %s", exc)
                self._deaf = True
            except Exception:  # one odd message must not end the deliveries of all
                log.exception("a plan announcement could not be read")
            await asyncio.sleep(_RETRY_S * random.uniform(0.5, 1.5))
            await self._reread_all()

    async def _listen(self) -> None:
        client = redis.asyncio.Redis.from_url(settings.REDIS_URL)
        async with client, client.pubsub(ignore_subscribe_messages=True) as pubsub:
            await pubsub.subscribe(announce.CHANNEL)
            self._deaf = False
            reread_at_s = time.monotonic() + REREAD_S
            while True:
                wait_s = max(reread_at_s - time.monotonic(), 0.0)
                message = await pubsub.get_message(timeout=wait_s)
                if message is not None:
                    self._offer(message["data"])
                if time.monotonic() >= reread_at_s:
                    await self._reread_all()
                    reread_at_s = time.monotonic() + REREAD_S

    def _offer(self, data: bytes) -> None:
        message = msgspec.json.decode(data)
        if message["type"] == "plan" and message["fleet"] in self._watchers:
            self._keep(message["fleet"], message["plan"])

    async def _reread_all(self) -> None:
        for fleet in list(self._watchers):
            await self._reread(fleet)

    async def _reread(self, fleet: str) -> None:
        try:
            plan = await _in_database(_newest_document, fleet)
        except (*_AWAY, Fleet.DoesNotExist) as exc:
            log.warning("the plan of %s could not be read, it is tried again: %s", fleet, exc)
            return
        self._keep(fleet, plan)

    def _keep(self, fleet: str, plan: dict[str, Any] | None) -> None:
        if plan is None or fleet not in self._watchers:
            return
        if _order(plan) > _order(self._newest.get(fleet)):
            self._newest[fleet] = plan
            for event in self._watchers[fleet]:
                event.set()


class PlanConsumer(AsyncWebsocketConsumer):
    """One router's socket. Refused before it is accepted without a token for its fleet.

    Host and Origin were checked in front of every socket route.
    """

    feed = PlanFeed()
    acks: AckBatches[Ack] = AckBatches(lambda fleet, acks: _in_database(_record, fleet, acks))
    caches = cache_relay.CacheRelay(
        settings.REDIS_URL, lambda fleet: _in_database(_instances, fleet)
    )

    async def connect(self) -> None:
        self.writer: asyncio.Task[None] | None = None
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in self.scope["headers"]}
        query = parse_qs(self.scope["query_string"].decode("latin-1"))
        self.fleet_name = query.get("fleet", [""])[0]
        self.secret = tokens.bearer(headers.get("authorization", ""))
        try:
            allowed = await self._allowed()
        except _AWAY as exc:
            log.warning("a router of %s has to come again: %s", self.fleet_name, exc)
            allowed = False
        if not allowed:
            await self.close(REFUSED)
            return
        self.heard_at_s = time.monotonic()
        self.complained = self.too_many = False
        self.changed = asyncio.Event()
        self.inbox = cache_relay.Inbox(self.changed)
        self.allowance = cache_relay.Allowance(self.heard_at_s)
        await self.accept()
        self.writer = asyncio.create_task(self._serve())

    async def disconnect(self, code: int) -> None:
        if self.writer is not None:
            self.writer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.writer

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        self.heard_at_s = time.monotonic()
        raw = text_data or bytes_data or b""
        try:
            if msgspec.json.decode(raw, type=_Typed).type is None:
                await self._acked(msgspec.json.decode(raw, type=Ack))
            else:
                self._pass_on(raw)
        except (msgspec.DecodeError, AckError, cache_relay.CacheError) as exc:
            if not self.complained:
                log.warning("a message for %s was not understood: %s", self.fleet_name, exc)
            self.complained = True
            await self.send(json.dumps({"type": "error", "error": str(exc)}))

    async def _acked(self, ack: Ack) -> None:
        """An ack that cannot be recorded is lost: the next one says all of it again."""
        release = None
        with contextlib.suppress(*_AWAY):
            await self.acks.add(self.fleet_name, ack)
            if ack.override is not None:
                release = await _in_database(delivery.to_release, ack.router)
        if release:
            await self.send(json.dumps({"type": "release_override", "id": release}))

    def _pass_on(self, raw: str | bytes) -> None:
        """What this router says of caches, to the others. Raises CacheError."""
        if not self.allowance.take(self.heard_at_s):
            if not self.too_many:
                log.warning("a router of %s says too much of caches", self.fleet_name)
            self.too_many = True
            return
        message = cache_relay.parse(raw, fleet=self.fleet_name, now_s=time.time())
        self.caches.publish(self.fleet_name, self.inbox, message)

    async def _serve(self) -> None:
        try:
            with self.caches.delivering(self.fleet_name, self.inbox):
                await self._write()
        except Exception:
            # The router comes back by itself, and asks over HTTP meanwhile.
            log.exception("the plan socket of %s failed", self.fleet_name)
            await self.close(FAILED)

    async def _write(self) -> None:
        """Send the newest plan when it changes; between, what others tell of caches, and see that
        the router may still listen."""
        sent: dict[str, Any] | None = None
        check_at_s = time.monotonic() + RECHECK_S
        async with self.feed.watch(self.fleet_name, self.changed):
            while True:
                self.changed.clear()
                newest = self.feed.newest(self.fleet_name)
                if _order(newest) > _order(sent):
                    await self.send(json.dumps(newest))
                    sent = newest
                if (told := self.inbox.take()) is not None:
                    await self.send(told)
                    self.changed.set()  # one at a time: a plan that came meanwhile goes first
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), check_at_s - time.monotonic())
                if time.monotonic() < check_at_s:
                    continue
                if not await self._still_allowed():
                    await self.close(POLICY_VIOLATION)
                    return
                if time.monotonic() - self.heard_at_s > SILENT_S:
                    await self.close(GOING_AWAY)
                    return
                check_at_s = time.monotonic() + RECHECK_S

    async def _still_allowed(self) -> bool:
        """While the database is away nobody can have revoked anything in it."""
        try:
            return await self._allowed()
        except _AWAY:
            return True

    async def _allowed(self) -> bool:
        if not self.secret or not self.fleet_name:
            return False
        return await _in_database(_may_route, self.secret, self.fleet_name)


async def _in_database(function: Callable[..., T], *args: Any) -> T:
    """`function` on one of two threads, so that all sockets together hold two connections."""
    run = database_sync_to_async(function, thread_sensitive=False, executor=_threads)
    return await run(*args)


def _may_route(secret: str, fleet: str) -> bool:
    if tokens.verify(secret, "router", fleet, timezone.now()) is None:
        return False
    return Fleet.objects.filter(pk=fleet).exists()


def _newest_document(fleet: str) -> dict[str, Any] | None:
    return delivery.newest_document(Fleet.objects.get(pk=fleet))


def _instances(fleet: str) -> cache_epochs.Seen:
    return cache_epochs.look(fleet, now_s=time.time())


def _record(fleet: str, acks: list[Ack]) -> list[AckError | None]:
    return delivery.record_acks(
        Fleet.objects.get(pk=fleet), [_claim(ack) for ack in acks], now=timezone.now()
    )


def _claim(ack: Ack) -> Claim:
    running = (
        None
        if ack.epoch is None or ack.version_running is None
        else (ack.epoch, ack.version_running)
    )
    return Claim(ack.router, running, ack.state, ack.error, "socket", ack.override)


def _order(plan: dict[str, Any] | None) -> tuple[int, int]:
    return (-1, -1) if plan is None else (plan["epoch"], plan["version"])
