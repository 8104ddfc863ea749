"""A door with an ingest queue that tests can break, and requests to it as ASGI messages."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from telemetry import tokens, wire
from telemetry.doors.door import Door
from telemetry.doors.receiver import Receiver
from telemetry.flusher import Rejected, Unavailable
from tests.doors.sending import intake
from tests.doors.texts import RULES

TOKEN = "pf_test"


@dataclass
class Result:
    state: str = "stored"


@dataclass
class Queue:
    """Stores batches as the ingest does: a key once. `away` and `refuses` break it."""

    batches: list[wire.Batch] = field(default_factory=list)
    offers: list[wire.Batch] = field(default_factory=list)
    away: bool = False
    refuses: str = ""
    older: int = 0
    gate: asyncio.Event | None = None

    async def offer(self, batch: wire.Batch, *, received_s: float) -> Result:
        self.offers.append(batch)
        if self.gate is not None:
            await self.gate.wait()
        if self.away:
            raise Unavailable("the database is away")
        if self.older:
            self.older -= 1
            return Result("older")
        if self.refuses and any(s.id == self.refuses for s in batch.instances):
            raise Rejected("it is not liked", by_content=True)
        wire.check(batch)
        self.batches.append(batch)
        return Result()

    def samples(self) -> list[wire.InstanceSample]:
        return [sample for batch in self.batches for sample in batch.instances]


class Grants:
    """Knows one token."""

    def __init__(self, fleet: str = "", scopes: tuple[str, ...] = ("ingest",)) -> None:
        self._grant = tokens.Grant(scopes, fleet, None)

    async def grant(self, secret: str, *, now_s: float) -> tokens.Grant | None:
        return self._grant if secret == TOKEN else None


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", errors="replace")


async def call(
    app: Any,
    path: str,
    body: bytes | Iterable[bytes],
    headers: Mapping[str, str],
    *,
    method: str = "POST",
    token: str | None = TOKEN,
) -> Answer:
    """One request. A body in parts has no length."""
    lines = {k.lower(): v for k, v in headers.items()}
    if token is not None:
        lines["authorization"] = f"Bearer {token}"
    parts = [body] if isinstance(body, bytes) else list(body)
    if isinstance(body, bytes):
        lines["content-length"] = str(len(body))
    messages = [
        {"type": "http.request", "body": part, "more_body": i + 1 < len(parts)}
        for i, part in enumerate(parts)
    ]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(k.encode(), v.encode("latin-1")) for k, v in lines.items()],
    }
    await app(scope, receive, send)
    start, end = sent
    told = {k.decode(): v.decode() for k, v in start["headers"]}
    return Answer(start["status"], told, end["body"])


class Clock:
    """Moves with the loop's own, from a fixed beginning."""

    def __init__(self, now_s: float) -> None:
        self._from_s = now_s
        self._began_s = asyncio.get_running_loop().time()

    def __call__(self) -> float:
        return self._from_s + asyncio.get_running_loop().time() - self._began_s


@dataclass
class Site:
    """A receiver over a door over a queue."""

    queue: Queue
    door: Door
    app: Receiver
    clock: Clock


def site(*, now_s: float, rules: str = RULES, fleet: str = "", max_bytes: int = 1_000_000) -> Site:
    queue, clock = Queue(), Clock(now_s)
    door = Door(
        intake(rules), queue.offer, agent="remote-write/test", clock=clock, rng=random.Random(1)
    )
    app = Receiver(door, grants=Grants(fleet), max_bytes=max_bytes, clock=clock)
    return Site(queue, door, app, clock)
