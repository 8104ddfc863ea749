"""What gates tell each other of prefix caches, between the plan sockets of all web processes.

Only hints travel here (docs/contracts.md, What gates tell each other of caches): nothing is stored,
every queue is bounded and forgets its oldest, and without Valkey gates just know less of each
other. A gate says which places it uses by asking (`cache_wanted`) and hears of no others.
"""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated, Literal

import msgspec
import redis.asyncio
from redis.exceptions import RedisError

from routing.cache_epochs import Epochs, Seen

MAX_KEYS = 8_192
KEY_BYTES = 8
MAX_MESSAGE_BYTES = 128 * 1024
MAX_WAITING = 32
"""Messages that wait for one socket, or for Valkey."""
MESSAGES_PER_S, BURST = 5.0, 10.0
CHECK_S = 5.0
"""How often the instances of the watched fleets are looked at for a new epoch."""

_CHANNEL = "cache:"
_RETRY_S = 1.0
_TIMEOUT_S = 3.0
_QUIET_S = 5.0
_SILENT_S = 15.0
_FUTURE_MS = 300_000

log = logging.getLogger(__name__)

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]


class CacheError(ValueError):
    """A message that cannot be meant. Names the field."""


class CacheNews(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="cache"
):
    """Keys of blocks that a cluster's cache now holds."""

    router: Name
    place: Name
    block_bytes: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    epoch: Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
    linear_state: Literal["none", "exact"]
    keys: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KEYS * KEY_BYTES * 4 // 3 + 4)]
    ends: Annotated[list[int], msgspec.Meta(max_length=MAX_KEYS)] | None = None
    snapshot: bool = False


class CacheWanted(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="cache_wanted"
):
    """A gate that just connected, and the places it uses."""

    router: Name
    places: Annotated[list[Name], msgspec.Meta(min_length=1, max_length=64)]


Message = CacheNews | CacheWanted
_decoder = msgspec.json.Decoder(Message)


def parse(text: str | bytes, *, fleet: str, now_s: float) -> Message:
    """A gate's message, checked. Raises CacheError."""
    if len(text) > MAX_MESSAGE_BYTES:
        raise CacheError(f"message: {len(text)} bytes, at most {MAX_MESSAGE_BYTES} are taken")
    try:
        message = _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise CacheError(str(exc)) from None
    parts = message.router.split("/")
    if len(parts) != 3 or parts[0] != fleet or not all(parts):
        raise CacheError(f"router: must be {fleet}/CLUSTER/NAME, not {message.router!r}")
    if isinstance(message, CacheNews):
        _check_news(message, now_s)
    return message


def _check_news(news: CacheNews, now_s: float) -> None:
    try:
        n_keys, odd_bytes = divmod(len(binascii.a2b_base64(news.keys, strict_mode=True)), KEY_BYTES)
    except ValueError as exc:
        raise CacheError(f"keys: not base64: {exc}") from None
    if odd_bytes or not 0 < n_keys <= MAX_KEYS:
        raise CacheError(f"keys: must be 1 to {MAX_KEYS} keys of {KEY_BYTES} bytes")
    if any(not 0 < end <= n_keys for end in news.ends or ()):
        raise CacheError(f"ends: must be within the {n_keys} keys")
    # Epochs are times: one from far ahead would make every gate deaf to all that follow.
    if news.epoch > now_s * 1000.0 + _FUTURE_MS:
        raise CacheError(f"epoch: {news.epoch} is not an epoch this console told")


class Allowance:
    """Lets `BURST` messages pass at once and `MESSAGES_PER_S` on. `now_s` is monotonic."""

    def __init__(self, now_s: float) -> None:
        self._left, self._at_s = BURST, now_s

    def take(self, now_s: float) -> bool:
        """Whether one more may pass now."""
        self._left = min(BURST, self._left + (now_s - self._at_s) * MESSAGES_PER_S)
        self._at_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class Inbox:
    """What waits for one gate's socket; `work` is set whenever something begins to.

    The newest epoch of each place comes before the news, of which the oldest are forgotten.
    """

    def __init__(self, work: asyncio.Event) -> None:
        self.router = ""
        self.places: frozenset[str] = frozenset()
        self._work = work
        self._epochs: dict[str, int] = {}
        self._news: deque[str] = deque(maxlen=MAX_WAITING)

    def offer(self, message: Message, text: str) -> None:
        """Keeps what another gate said, if it concerns this one."""
        places = [message.place] if isinstance(message, CacheNews) else message.places
        if message.router != self.router and not self.places.isdisjoint(places):
            self._news.append(text)
            self._work.set()

    def offer_epochs(self, epochs: dict[str, int]) -> None:
        """Keeps the epochs of the places this gate uses."""
        mine = {place: epoch for place, epoch in epochs.items() if place in self.places}
        self._epochs.update(mine)
        if mine:
            self._work.set()

    def take(self) -> str | None:
        """The next message to send, or None."""
        if self._epochs:
            place, epoch = self._epochs.popitem()
            document = {"type": "cache_epoch", "place": place, "epoch": epoch}
            return msgspec.json.encode(document).decode()
        return self._news.popleft() if self._news else None


class CacheRelay:
    """The inboxes of this process, by fleet. Use it from one event loop.

    `look` tells what telemetry says of a fleet's instances; what it raises is logged and it is
    asked again `CHECK_S` later.
    """

    def __init__(self, redis_url: str, look: Callable[[str], Awaitable[Seen]]) -> None:
        self._redis_url, self._look = redis_url, look
        self._inboxes: dict[str, set[Inbox]] = {}
        self._epochs: dict[str, Epochs] = {}
        self._outbox: deque[tuple[str, bytes]] = deque(maxlen=MAX_WAITING)
        self._to_tell = asyncio.Event()
        self._to_check = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._deaf = False

    @contextlib.contextmanager
    def delivering(self, fleet: str, inbox: Inbox) -> Iterator[None]:
        """Fills `inbox` with what the gates of `fleet` say."""
        if fleet not in self._inboxes:
            self._to_check.set()
        self._inboxes.setdefault(fleet, set()).add(inbox)
        # Kept when the last gate leaves: a role that changes meanwhile is noticed on its return.
        inbox.offer_epochs(self._epochs.setdefault(fleet, Epochs()).by_place)
        if not self._tasks:
            loops = (self._hear(), self._tell(), self._check())
            self._tasks = [asyncio.create_task(loop) for loop in loops]
        try:
            yield
        finally:
            self._inboxes[fleet].discard(inbox)
            if not self._inboxes[fleet]:
                del self._inboxes[fleet]
            if not self._inboxes:
                for task in self._tasks:
                    task.cancel()
                self._tasks = []

    def publish(self, fleet: str, inbox: Inbox, message: Message) -> None:
        """Passes on what the gate behind `inbox` said."""
        inbox.router = message.router
        if isinstance(message, CacheWanted):
            inbox.places = frozenset(message.places)
            inbox.offer_epochs(self._epochs.setdefault(fleet, Epochs()).by_place)
        self._outbox.append((_CHANNEL + fleet, msgspec.json.encode(message)))
        self._to_tell.set()

    async def _tell(self) -> None:
        while True:
            try:
                async with self._client() as client:
                    while True:
                        await self._to_tell.wait()
                        self._to_tell.clear()
                        while self._outbox:
                            await client.publish(*self._outbox.popleft())
            except (RedisError, OSError) as exc:
                self._lost(exc)
            await asyncio.sleep(_RETRY_S * random.uniform(0.5, 1.5))
            self._outbox.clear()

    async def _hear(self) -> None:
        while True:
            try:
                await self._listen()
            except (RedisError, OSError) as exc:
                self._lost(exc)
            await asyncio.sleep(_RETRY_S * random.uniform(0.5, 1.5))

    async def _listen(self) -> None:
        async with self._client() as client, client.pubsub() as pubsub:
            await pubsub.psubscribe(f"{_CHANNEL}*")
            heard_s = time.monotonic()
            while True:
                message = await pubsub.get_message(timeout=_QUIET_S)
                if message is None:
                    if time.monotonic() - heard_s > _SILENT_S:
                        raise redis.ConnectionError("no answer to PING")
                    await pubsub.ping()
                    continue
                heard_s = time.monotonic()
                if message["type"] == "psubscribe":
                    self._deaf = False
                elif message["type"] == "pmessage":
                    self._deliver(message["channel"].decode(), message["data"])

    def _deliver(self, channel: str, data: bytes) -> None:
        inboxes = self._inboxes.get(channel.removeprefix(_CHANNEL), ())
        if not inboxes:
            return
        try:
            message, text = _decoder.decode(data), data.decode()
        except msgspec.MsgspecError as exc:  # another release wrote it; the next may be ours
            log.warning("a message on %s makes no sense: %s", channel, exc)
            return
        for inbox in inboxes:
            inbox.offer(message, text)

    async def _check(self) -> None:
        while True:
            self._to_check.clear()
            for fleet in list(self._inboxes):
                await self._check_fleet(fleet)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._to_check.wait(), CHECK_S)

    async def _check_fleet(self, fleet: str) -> None:
        try:
            seen = await self._look(fleet)
        except Exception as exc:
            log.warning("cache epochs of %s are not known, asked again: %s", fleet, exc)
            return
        epochs = self._epochs[fleet]
        risen = {place: epochs.by_place[place] for place in epochs.update(seen)}
        if risen:
            log.info("cache epochs of %s rose: %s", fleet, risen)
        for inbox in self._inboxes.get(fleet, ()):
            inbox.offer_epochs(risen)

    def _lost(self, exc: Exception) -> None:
        if not self._deaf:
            log.warning("gates hear nothing of each other's caches: %s", exc)
        self._deaf = True

    def _client(self) -> redis.asyncio.Redis:
        return redis.asyncio.Redis.from_url(
            self._redis_url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
        )
