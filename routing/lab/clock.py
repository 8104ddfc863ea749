"""Time as an argument: an asyncio loop is a `Clock`, and so is a test's heap of callbacks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol


class Handle(Protocol):
    def cancel(self) -> object: ...


class Clock(Protocol):
    """Monotonic seconds and callbacks at a given one of them; a callback may come late."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Handle: ...


async def sleep_until(when_s: float) -> None:
    """Sleep until the running loop's clock shows `when_s`; at least one turn of the loop."""
    await asyncio.sleep(max(0.0, when_s - asyncio.get_running_loop().time()))
