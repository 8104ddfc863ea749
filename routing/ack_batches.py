"""Acks of many sockets, recorded together: what comes while one is being recorded is the next's.

Hundreds of gates ack a plan within a tenth of a second of each other, and each says every few
seconds that it lives. One transaction for all of them costs about what one for each of them costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

GATHER_S = 0.05
"""How long the first ack waits for others."""
MAX_AT_ONCE = 500

T = TypeVar("T")


class AckBatches(Generic[T]):
    """`record(fleet, acks)` says of each ack what is wrong with it, or None.

    Use it from one event loop. Nothing piles up: a socket's next ack comes after its last one.
    """

    def __init__(
        self, record: Callable[[str, list[T]], Awaitable[Sequence[Exception | None]]]
    ) -> None:
        self._record = record
        self._waiting: dict[str, list[tuple[T, asyncio.Future[None]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, fleet: str, ack: T) -> None:
        """Returns once `ack` is recorded. Raises what is wrong with it, or what `record` raised."""
        recorded = asyncio.get_running_loop().create_future()
        if fleet not in self._waiting:
            self._waiting[fleet] = []
            task = asyncio.create_task(self._run(fleet))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._waiting[fleet].append((ack, recorded))
        await recorded

    async def _run(self, fleet: str) -> None:
        """Record one batch after another until nobody waits."""
        while self._waiting[fleet]:
            await asyncio.sleep(GATHER_S)
            waiting = self._waiting[fleet]
            batch, self._waiting[fleet] = waiting[:MAX_AT_ONCE], waiting[MAX_AT_ONCE:]
            try:
                errors = await self._record(fleet, [ack for ack, _ in batch])
            except Exception as exc:  # each socket hears of it as if it had recorded alone
                errors = [exc] * len(batch)
            for (_, recorded), error in zip(batch, errors, strict=True):
                if recorded.done():
                    continue  # its socket is gone
                if error is None:
                    recorded.set_result(None)
                else:
                    recorded.set_exception(error)
        del self._waiting[fleet]
