"""Carries committed batches to other web processes: one Redis message per group commit for each.

Each web process that shows live pages hears a channel of its own, so that one that is alone sends
nothing at all: what it committed it shows without a detour. The message is a hint, the rows are the
truth: a lost one costs the live pages one interval, so a failure here is counted and logged and
never reaches an ack.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import random
import secrets
import time
from collections.abc import Iterator
from typing import Final

import msgspec
import redis.asyncio
from prometheus_client import Counter

from telemetry import bodies, wire
from telemetry.arrivals import Arrival

log = logging.getLogger(__name__)

_CHANNELS: Final = "telemetry:"
CHANNEL: Final = _CHANNELS + secrets.token_hex(8)
"""The one that this process hears."""
_ASK_EVERY_S: Final = 2.0
_TIMEOUT_S: Final = 2.0
_MAX_WAITING: Final = 32

LOST = Counter(
    "prfaas_ingest_unpublished_batches",
    "Committed batches live pages of other processes never heard of.",
)


def message(arrivals: list[Arrival]) -> bytes:
    """Batches as they came: whoever has no page open need not look into them."""
    return msgspec.msgpack.encode([arrival.body for arrival in arrivals])


_decode_message: Final = msgspec.msgpack.Decoder(list[bytes]).decode


def batches(data: bytes) -> Iterator[wire.Batch]:
    """The batches of a message."""
    for body in _decode_message(data):
        yield bodies.unpack(body)


class Publisher:
    """Publishes in the background; while Redis is away only the newest few messages are kept."""

    def __init__(self, redis_url: str) -> None:
        self._redis_url = redis_url
        self._waiting: collections.deque[list[Arrival]] = collections.deque()
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to publish, in the running loop."""
        self._task = asyncio.create_task(self._run(), name="telemetry publisher")

    async def stop(self) -> None:
        """End at once; what waits is lost to live pages only."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def put(self, arrivals: list[Arrival]) -> None:
        """Publish soon. Never blocks and never fails."""
        if len(self._waiting) >= _MAX_WAITING:
            LOST.inc(len(self._waiting.popleft()))
        self._waiting.append(arrivals)
        self._work.set()

    async def _run(self) -> None:
        client = redis.asyncio.Redis.from_url(
            self._redis_url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
        )
        away = False
        others: list[str] = []
        asked_s = float("-inf")
        async with client:
            while True:
                await self._work.wait()
                self._work.clear()
                while self._waiting:
                    arrivals = self._waiting.popleft()
                    try:
                        if time.monotonic() - asked_s >= _ASK_EVERY_S:
                            others = await _others(client)
                            asked_s = time.monotonic()
                        if others:
                            encoded = message(arrivals)
                            for channel in others:
                                await client.publish(channel, encoded)
                    except (redis.RedisError, OSError) as exc:
                        LOST.inc(len(arrivals))
                        if not away:
                            log.warning("other processes get no telemetry, Redis is away: %s", exc)
                        away = True
                        await asyncio.sleep(random.uniform(0.2, 1.0))
                    else:
                        if away:
                            log.info("Redis is back, other processes get telemetry again")
                        away = False


async def _others(client: redis.asyncio.Redis) -> list[str]:
    """The channels that other web processes hear."""
    heard = await client.pubsub_channels(f"{_CHANNELS}*")
    names = [name if isinstance(name, str) else name.decode() for name in heard]
    return [name for name in names if name != CHANNEL]
