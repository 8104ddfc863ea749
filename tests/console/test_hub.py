"""The hub without Redis or a server: whose frames depend on whom."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from django.db import OperationalError

from console.hub import Hub, Socket
from console.live_state import Ack, FleetState


class _Odd(FleetState):
    """A fleet that cannot be shown."""

    def common(self, now_s: float) -> dict[str, Any]:
        raise ValueError("odd")


async def test_a_fleet_that_cannot_be_shown_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def load(fleet: str, now_s: float) -> FleetState:
        return (_Odd if fleet == "odd" else FleetState)(fleet, link_gbps={})

    async def acks() -> dict[str, list[Ack]]:
        return {}

    hub = Hub(redis_url="redis://127.0.0.1:1/0", load=load, acks=acks)
    odd = await hub.join("odd", lambda code, reason: None)
    good = await hub.join("good", lambda code, reason: None)
    for _ in range(3):
        hub._broadcast()
    assert odd.frame is None
    assert good.frame is not None
    assert json.loads(good.frame)["seq"] == 3
    assert [r.message for r in caplog.records] == ["fleet odd has no live frames"]


class _Servers:
    """A database that can be taken away, and a broker that is never there."""

    def __init__(self) -> None:
        self.database = True
        self.n_loads = 0

    async def load(self, fleet: str, now_s: float) -> FleetState:
        self.check()
        self.n_loads += 1
        return FleetState(fleet, link_gbps={})

    async def acks(self) -> dict[str, list[Ack]]:
        self.check()
        return {"f": [Ack("f/pd/gw-1", time.time() - 60.0, None)]}

    def check(self) -> None:
        if not self.database:
            raise OperationalError("gone")


async def until(socket: Socket, keys: list[str]) -> None:
    """Wait for a frame in which exactly these things are missing."""
    async with asyncio.timeout(20):
        while True:
            await asyncio.sleep(0.02)
            frame, socket.frame = socket.frame, None
            if frame and [found["key"] for found in json.loads(frame)["missing"]] == keys:
                return


async def test_open_pages_follow_the_database_while_the_broker_is_away() -> None:
    servers = _Servers()
    hub = Hub(
        redis_url="redis://127.0.0.1:1/0",
        load=servers.load,
        acks=servers.acks,
        frame_s=0.02,
        acks_every_s=0.05,
        reread_s=0.05,
    )
    socket = await hub.join("f", lambda code, reason: None)
    hub.start()
    try:
        await until(socket, ["broker", "silent:router:pd"])
        n_loads = servers.n_loads
        async with asyncio.timeout(20):
            while servers.n_loads < n_loads + 3:
                await asyncio.sleep(0.02)
        servers.database = False
        await until(socket, ["database", "broker"])
        servers.database = True
        await until(socket, ["broker", "silent:router:pd"])
    finally:
        await hub.stop()
