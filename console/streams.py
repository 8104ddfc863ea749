"""Server-sent events: `GET /api/v1/events` and `/api/v1/fleets/F/events`.

Django's own door decides each time whether a stream may begin and what it holds; then the request
is over for Django, and the stream is a loop here. One question a second for all streams of the
process reads what happened (`routing.rest.events`); who comes back or falls behind reads on from
the database. At least every `recheck_s` the same request is put to the door again: whose token
ended or who may no longer look is sent away.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from django.db import DatabaseError, InterfaceError
from prometheus_client import Gauge

from console.consumers import in_database
from console.raw import refuse
from routing.rest import events
from routing.rest.api import RETRY_MS, SCOPE, Asked

log = logging.getLogger(__name__)

App = Callable[[dict[str, Any], Any, Any], Awaitable[None]]
STREAMS = Gauge("prfaas_console_streams", "Open event streams of this web process.")
PATHS: Final = ("/api/v1/events", "/events")
_PAGE: Final = 200
_KEPT: Final = 2_000
_READ_S: Final = 1.0
_RETRY_S: Final = 5.0
_COME_BACK_S: Final = 30
_SEND_S: Final = 30.0
"""A reader that takes nothing for so long is gone."""
_AWAY: Final = (DatabaseError, InterfaceError)


def is_stream(scope: dict[str, Any]) -> bool:
    """Whether a request is for an event stream."""
    path = scope["path"]
    first, rest = PATHS
    is_one = path == first or (path.startswith("/api/v1/fleets/") and path.endswith(rest))
    return scope["method"] == "GET" and is_one


class Feed:
    """What happened lately, for all streams of this process."""

    def __init__(self) -> None:
        self._recent: list[events.Happened] = []
        self._low = self._high = events.Place(0, 0)
        self._waiting: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None
        self._is_away = False

    @contextlib.asynccontextmanager
    async def listen(self, changed: asyncio.Event) -> AsyncIterator[events.Place]:
        """Sets `changed` whenever something happened. Raises what the database raises."""
        newest = await in_database(events.now)()
        if self._task is None:
            self._low = self._high = newest
            self._recent.clear()
            self._task = asyncio.create_task(self._read_forever(), name="event feed")
        self._waiting.add(changed)
        STREAMS.set(len(self._waiting))
        try:
            yield newest
        finally:
            self._waiting.discard(changed)
            STREAMS.set(len(self._waiting))
            if not self._waiting and self._task is not None:
                self._task.cancel()
                self._task = None

    async def after(
        self, place: events.Place, chosen: events.Chosen
    ) -> tuple[list[events.Happened], events.Place]:
        """The next events, and where that leads. Raises what the database raises."""
        if place < self._low:
            return await in_database(events.after)(place, chosen, _PAGE)
        begin = bisect.bisect_right(self._recent, place, key=lambda each: each.place)
        found = [each for each in self._recent[begin:] if each in chosen][:_PAGE]
        return found, found[-1].place if len(found) == _PAGE else max(place, self._high)

    async def _read_forever(self) -> None:
        while True:
            try:
                found, high = await in_database(events.after)(self._high, events.EVERYTHING, _PAGE)
            except _AWAY as exc:
                if not self._is_away:
                    log.warning("event streams wait, the database is away: %s", exc)
                self._is_away = True
                await asyncio.sleep(_RETRY_S)
                continue
            except Exception:  # the next look may go well
                log.exception("events could not be read")
                await asyncio.sleep(_RETRY_S)
                continue
            self._is_away = False
            self._recent.extend(found)
            if len(self._recent) > 2 * _KEPT:
                self._low = self._recent[-_KEPT - 1].place
                del self._recent[:-_KEPT]
            self._high = high
            if found:
                for changed in self._waiting:
                    changed.set()
            if len(found) < _PAGE:
                await asyncio.sleep(_READ_S)


@dataclass
class _Door:
    """What Django answered to a request for a stream."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    asked: Asked | None = None

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"]) if self.messages else 500


class Streams:
    """The event streams of one web process. `door` is Django; intervals are for tests."""

    def __init__(
        self,
        door: App,
        *,
        max_streams: int,
        max_of_one: int = 10,
        recheck_s: float = 60.0,
        heartbeat_s: float = 15.0,
    ) -> None:
        self._door = door
        self._feed = Feed()
        self._max_streams = max_streams
        self._max_of_one = max_of_one
        self._recheck_s = recheck_s
        self._heartbeat_s = heartbeat_s
        self._holders: dict[str, int] = {}

    async def app(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """One request for a stream, from its door to its end."""
        opened = await self._ask(scope)
        if opened.asked is None:
            for message in opened.messages:
                await send(message)
            return
        holder = opened.asked.holder
        refused = self._no_room(holder)
        if refused:
            await refuse(send, *refused, retry_after_s=_COME_BACK_S)
            return
        self._holders[holder] = self._holders.get(holder, 0) + 1
        try:
            await _Stream(self, self._feed, opened.asked, scope, send).run(
                opened.messages[0], receive
            )
        finally:
            self._holders[holder] -= 1
            if not self._holders[holder]:
                del self._holders[holder]

    async def ask_again(self, scope: dict[str, Any]) -> Asked | int | None:
        """What may be heard from now on; a status for who may no longer, None if nobody knows."""
        again = await self._ask({**scope, "asked_again": True})
        if again.asked is not None:
            return again.asked
        return None if again.status >= 500 else again.status

    @property
    def recheck_s(self) -> float:
        return self._recheck_s * random.uniform(0.7, 0.9)

    @property
    def heartbeat_s(self) -> float:
        return self._heartbeat_s

    def _no_room(self, holder: str) -> tuple[int, str] | None:
        if sum(self._holders.values()) >= self._max_streams:
            return 503, f"this process serves at most {self._max_streams} event streams"
        if self._holders.get(holder, 0) >= self._max_of_one:
            return 429, f"you have {self._max_of_one} event streams open, the most there may be"
        return None

    async def _ask(self, scope: dict[str, Any]) -> _Door:
        """Django's answer to this request, without its body."""
        inner = {**scope, SCOPE: None}
        found = _Door()
        requests = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> dict[str, Any]:
            if requests:
                return requests.pop()
            await asyncio.Event().wait()
            raise AssertionError("nobody sets it")

        async def send(message: dict[str, Any]) -> None:
            found.messages.append(message)

        await self._door(inner, receive, send)
        if found.status == 200:
            found.asked = inner[SCOPE]
        return found


class _Stream:
    """One open stream: who writes, who looks whether it may go on, who hears it hang up."""

    def __init__(
        self, streams: Streams, feed: Feed, asked: Asked, scope: dict[str, Any], send: Any
    ) -> None:
        self._streams = streams
        self._feed = feed
        self._asked = asked
        self._scope = scope
        self._send = send
        self._changed = asyncio.Event()

    async def run(self, start: dict[str, Any], receive: Any) -> None:
        """Send until somebody ends it."""
        headers = [pair for pair in start["headers"] if pair[0].lower() != b"content-length"]
        await self._send({**start, "headers": headers})
        tasks = [
            asyncio.create_task(self._write(), name="event stream writer"),
            asyncio.create_task(self._recheck(), name="event stream recheck"),
            asyncio.create_task(_hung_up(receive), name="event stream listener"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        failed = next((task.exception() for task in done if not task.cancelled()), None)
        if failed is not None and not isinstance(failed, TimeoutError | OSError):
            log.error("an event stream failed", exc_info=failed)
        with contextlib.suppress(Exception):
            await asyncio.wait_for(
                self._send({"type": "http.response.body", "body": b"", "more_body": False}), 1.0
            )

    async def _write(self) -> None:
        """The only one that sends."""
        async with contextlib.AsyncExitStack() as stack:
            place = self._asked.since
            while True:
                try:
                    newest = await stack.enter_async_context(self._feed.listen(self._changed))
                    break
                except _AWAY:
                    await self._say(f": the database is away, {_now()}\n\n")
                    await asyncio.sleep(_RETRY_S)
            place = place or newest
            if self._asked.is_lost:
                place = await self._tell_gap(place)
            await self._say(f"retry: {RETRY_MS}\nid: {place}\n\n")
            await self._follow(place)

    async def _tell_gap(self, place: events.Place) -> events.Place:
        """Say that something was forgotten; go on with the oldest that is left, or from now."""
        newest = await in_database(events.now)()
        place = min(place, newest)
        why = {"why": "events after this id are no longer kept: read what there is now anew"}
        await self._say(f"event: gap\ndata: {msgspec.json.encode(why).decode()}\n\n")
        return place

    async def _follow(self, place: events.Place) -> None:
        while True:
            self._changed.clear()
            try:
                found, place = await self._feed.after(place, self._asked.chosen)
            except _AWAY:
                await self._say(f": the database is away, {_now()}\n\n")
                await asyncio.sleep(_RETRY_S)
                continue
            if found:
                await self._say("".join(each.message() for each in found))
                continue
            try:
                await asyncio.wait_for(self._changed.wait(), self._streams.heartbeat_s)
            except TimeoutError:
                # The id moves on where nothing that was chosen happens.
                await self._say(f": {_now()}\nid: {place}\n\n")

    async def _recheck(self) -> None:
        """Return once whoever listens may no longer."""
        while True:
            await asyncio.sleep(self._streams.recheck_s)
            while (found := await self._streams.ask_again(self._scope)) is None:
                await asyncio.sleep(min(_RETRY_S, self._streams.recheck_s))
            if isinstance(found, int):
                return
            self._asked = found

    async def _say(self, text: str) -> None:
        body = {"type": "http.response.body", "body": text.encode(), "more_body": True}
        await asyncio.wait_for(self._send(body), _SEND_S)


async def _hung_up(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
