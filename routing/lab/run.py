"""Run a coroutine until it ends or the process is asked to stop (SIGINT, SIGTERM)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

try:
    from uvloop import new_event_loop
except ImportError:  # not built for this platform
    from asyncio import new_event_loop  # type: ignore[assignment]


def run_until_signal(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """`main(stop)` returns soon after `stop` is set; a signal sets it, a second one kills."""

    async def supervised() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def ask(number: int) -> None:
            stop.set()
            loop.remove_signal_handler(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ask, number)
        await main(stop)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(supervised())
