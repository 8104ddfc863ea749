"""The hub without Redis or a server: whose frames depend on whom."""

from __future__ import annotations

import json
from typing import Any

import pytest

from console.hub import Hub
from console.live_state import FleetState


class _Odd(FleetState):
    """A fleet that cannot be shown."""

    def body(self, now_s: float) -> dict[str, Any]:
        raise ValueError("odd")


async def test_a_fleet_that_cannot_be_shown_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def load(fleet: str, now_s: float) -> FleetState:
        return (_Odd if fleet == "odd" else FleetState)(fleet, link_gbps={})

    hub = Hub(redis_url="redis://127.0.0.1:1/0", load=load)
    odd = await hub.join("odd", lambda code, reason: None)
    good = await hub.join("good", lambda code, reason: None)
    for _ in range(3):
        hub._broadcast()
    assert odd.frame is None
    assert good.frame is not None
    assert json.loads(good.frame)["seq"] == 3
    assert [r.message for r in caplog.records] == ["fleet odd has no live frames"]
