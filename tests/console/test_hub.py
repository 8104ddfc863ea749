"""The hub without Redis or a server: whose frames depend on whom."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from django.db import OperationalError

from console.hub import Hub, Socket
from console.live_state import MOST_ROWS, Ack, FleetState, Scope
from telemetry import wire
from tests.telemetry.batches import batch, instance


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


async def _whole(fleet: str, now_s: float) -> FleetState:
    return FleetState(fleet, link_gbps={})


async def _no_acks() -> dict[str, list[Ack]]:
    return {}


def _sent(n: int) -> wire.Batch:
    now_s = time.time()
    return batch("agent", *(instance(f"f/pd/d{i:04}", now_s) for i in range(n)))


async def test_pages_that_show_the_same_rows_of_a_large_fleet_share_one_encoded_frame() -> None:
    hub = Hub(redis_url="redis://127.0.0.1:1/0", load=_whole, acks=_no_acks)
    sockets = [await hub.join("f", lambda code, reason: None) for _ in range(3)]
    hub.take([_sent(MOST_ROWS + 1)])
    sockets[1].look_at(Scope(("f/pd/d0200",)))
    sockets[2].look_at(Scope(("f/pd/d0200",)))
    hub._broadcast()
    plain, *same = [socket.frame for socket in sockets]
    assert same[0] is same[1]
    assert plain is not None
    assert same[0] is not None
    one, other = json.loads(plain), json.loads(same[0])
    assert "f/pd/d0200" not in one["instances"]
    assert other.pop("instances").keys() == {*one.pop("instances"), "f/pd/d0200"}
    assert one == other


async def test_a_small_fleet_has_one_frame_for_all_pages() -> None:
    hub = Hub(redis_url="redis://127.0.0.1:1/0", load=_whole, acks=_no_acks)
    sockets = [await hub.join("f", lambda code, reason: None) for _ in range(2)]
    sockets[0].look_at(Scope(("f/pd/d0000",)))
    hub.take([_sent(5)])
    hub._broadcast()
    assert sockets[0].frame is sockets[1].frame


async def test_a_batch_that_cannot_be_shown_does_not_harm_its_ack(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def odd(self: FleetState, sent: wire.Batch, *, received_s: float) -> None:
        raise ValueError("odd")

    hub = Hub(redis_url="redis://127.0.0.1:1/0", load=_whole, acks=_no_acks)
    await hub.join("f", lambda code, reason: None)
    monkeypatch.setattr(FleetState, "apply_batch", odd)
    for _ in range(2):
        hub.take([_sent(1)])
    assert [r.message for r in caplog.records] == ["a batch of agent cannot be shown in f"]


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
