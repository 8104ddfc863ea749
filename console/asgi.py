"""The ASGI application: telemetry ingest, then Django, then sockets.

Run it with uvicorn and `--lifespan on`: start-up begins the ingest flusher and the live hub,
shut-down commits what was received.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
from collections.abc import Awaitable, Callable
from typing import Any

from channels.routing import URLRouter
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.urls import path, re_path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
# Models can be imported only once Django is set up, which this does.
_django = get_asgi_application()

from console import celery as _celery  # noqa: E402, F401  (tasks of this process use its broker)
from console.consumers import LiveConsumer, in_database  # noqa: E402
from console.hub import Hub  # noqa: E402
from console.live_source import acks, load  # noqa: E402
from console.live_state import FleetState  # noqa: E402
from console.origins import Guard  # noqa: E402
from console.raw import bounded  # noqa: E402
from console.rounds import Rounds  # noqa: E402
from console.streams import Streams, is_stream  # noqa: E402
from routing.sockets import PlanConsumer  # noqa: E402
from telemetry import ingest, tokens  # noqa: E402
from telemetry.arrivals import Arrival  # noqa: E402
from telemetry.doors import receiver as doors  # noqa: E402
from telemetry.doors import service as door_services  # noqa: E402

Application = Callable[[dict[str, Any], Any, Any], Awaitable[None]]
_PLAN_PATH = "/ws/plan"


class Console:
    """One web process. The arguments are intervals that tests shorten."""

    def __init__(
        self, *, heartbeat_s: float = 5.0, frame_s: float = 1.0, recheck_s: float = 60.0
    ) -> None:
        self._hub = Hub(
            redis_url=settings.REDIS_URL,
            load=_load,
            acks=in_database(acks),
            heartbeat_s=heartbeat_s,
            frame_s=frame_s,
        )
        self._forwarder = door_services.forwarder()
        self._ingest = ingest.service(self._committed)
        self._doors = door_services.Service(
            self._ingest.flusher.offer,
            tokens.TokenCache(self._ingest.asker.grant),
            self._forwarder,
        )
        self._streams = Streams(
            _django,
            max_streams=settings.ENV["CONSOLE_MAX_STREAMS"],
            recheck_s=recheck_s,
            heartbeat_s=3 * heartbeat_s,
        )
        live = LiveConsumer.as_asgi(
            hub=self._hub, recheck_s=recheck_s, max_sockets=settings.ENV["CONSOLE_MAX_SOCKETS"]
        )
        routes = URLRouter(
            [
                path("ws/live", live),
                path(_PLAN_PATH.lstrip("/"), PlanConsumer.as_asgi()),
                re_path("", _no_such_socket),
            ]
        )
        self._sockets = Guard(routes, machine_paths={_PLAN_PATH})

    def _committed(self, arrivals: list[Arrival]) -> None:
        """What was just stored, for pages and for where history is forwarded to."""
        if self._forwarder is None and not self._hub.is_watched:
            return
        batches = [arrival.batch for arrival in arrivals]
        self._hub.take(batches)
        if self._forwarder is not None:
            self._forwarder.put(batches)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        match scope["type"]:
            case "http" if scope["path"] == ingest.PATH:
                await self._ingest.app(scope, receive, send)
            case "http" if scope["path"] in doors.PATHS:
                await self._doors.app(scope, receive, send)
            case "http" if is_stream(scope):
                await self._streams.app(scope, receive, send)
            case "http":
                await bounded(_django, scope, receive, send)
            case "websocket":
                await self._sockets(scope, receive, send)
            case "lifespan":
                await self._live(scope, receive, send)

    async def _live(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        await receive()
        # What `console.front` works with, where the server runs with it.
        scope.get("state", {}).update(
            ingest=self._ingest.app, rounds=Rounds(asyncio.get_running_loop())
        )
        await self._ingest.start()
        self._doors.start()
        self._hub.start()
        # Imports every view: the first request would take a second for it, and sockets with it.
        importlib.import_module(settings.ROOT_URLCONF)
        # What is there now stays for good, and what a batch makes is garbage at once: looking
        # through all of it every 700 objects would cost more than the batches.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._hub.stop()
        await self._doors.stop()
        await self._ingest.stop()
        await send({"type": "lifespan.shutdown.complete"})


async def _load(fleet: str, now_s: float) -> FleetState:
    return await in_database(load)(fleet, now_s=now_s)


async def _no_such_socket(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.close", "code": 4404})


application: Application = Console()
