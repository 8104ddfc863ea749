"""The doors as the console's process runs them, made from Django's settings."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from pathlib import Path

from django.conf import settings

from telemetry.doors import mapping
from telemetry.doors.door import Door, Offer
from telemetry.doors.forward import Forwarder
from telemetry.doors.intake import Intake
from telemetry.doors.promql import Client
from telemetry.doors.receiver import Grants, Receiver
from telemetry.strict_toml import TomlError

log = logging.getLogger(__name__)

LOOK_S = 2.0
"""How often the file of rules is looked at."""


class Service:
    """What `console.asgi` mounts, starts and stops. `forwarder` takes committed batches."""

    def __init__(self, offer: Offer, grants: Grants, forwarder: Forwarder | None) -> None:
        path = settings.ENV["CONSOLE_DOORS_RULES"]
        self._path = Path(path) if path else None
        self._offer = offer
        self._stamp = _stamp(self._path)
        self._door, closed = (
            None,
            (404, "no mapping rules: set CONSOLE_DOORS_RULES (docs/doors.md)"),
        )
        if self._path is not None:
            try:
                self._door = self._made(self._path)
            except TomlError as exc:
                # Senders keep what they have until somebody has mended the file.
                closed = 503, f"the doors stay closed: {exc}"
                log.error(closed[1])
        self._forwarder = forwarder
        self._watching: asyncio.Task[None] | None = None
        self.app = Receiver(
            self._door or closed,
            grants=grants,
            max_bytes=settings.ENV["CONSOLE_INGEST_MAX_BYTES"],
            clock=time.time,
        )

    def start(self) -> None:
        """Begin to ship, to watch the rules and to send history on, in the running loop."""
        if self._door is not None:
            self._door.start()
        if self._path is not None:
            self._watching = asyncio.create_task(self._watch(self._path), name="door rules")
        if self._forwarder is not None:
            self._forwarder.start()

    async def stop(self) -> None:
        """End all of it; what waits is shipped first, briefly."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        if self._door is not None:
            await self._door.stop()
        if self._forwarder is not None:
            await self._forwarder.stop()

    async def _watch(self, path: Path) -> None:
        """Follow the file of rules; one that cannot be used changes nothing."""
        while True:
            await asyncio.sleep(LOOK_S)
            stamp = _stamp(path)
            if stamp == self._stamp:
                continue
            self._stamp = stamp
            try:
                door = self._made(path)
            except TomlError as exc:
                log.error("the rules stay as they were: %s", exc)
                continue
            log.info("the doors follow new rules: %s", path)
            before, self._door = self._door, door
            self.app.open(door)
            if before is not None:
                # First, so that its last batch is not older than the first of the new one.
                await before.stop()
            door.start()

    def _made(self, path: Path) -> Door:
        rules = mapping.load(path)
        return Door(
            Intake(rules),
            self._offer,
            agent=f"remote-write/{rules.name}",
            clock=time.time,
            rng=random.Random(),
        )


def forwarder() -> Forwarder | None:
    """Sends history on where `CONSOLE_FORWARD_URL` says, if it does."""
    url = settings.ENV["CONSOLE_FORWARD_URL"]
    if not url:
        return None
    return Forwarder(url, headers=_headers(), rng=random.Random(), clock=time.time)


def history() -> Client | None:
    """Where ranges older than what is kept here are read back, if `CONSOLE_HISTORY_URL` says so."""
    url = settings.ENV["CONSOLE_HISTORY_URL"]
    return Client(url, headers=_headers()) if url else None


def _headers() -> dict[str, str]:
    return settings.ENV["CONSOLE_HISTORY_HEADERS"] or {}


def _stamp(path: Path | None) -> tuple[int, int] | None:
    """What changes when a file does; None while there is none."""
    try:
        found = path.stat() if path is not None else None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size) if found is not None else None
