"""Virtual time: an asyncio loop that jumps to its next timer, and a clock stepped by hand."""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """For code without input and output: only its own timers wake it."""

    def __init__(self) -> None:
        super().__init__(_Jumping(self))
        self.now_s = 1000.0

    def time(self) -> float:
        return self.now_s


class _Jumping(selectors.SelectSelector):
    loop: VirtualLoop

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self.loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing is scheduled: this would wait for ever")
        self.loop.now_s += max(0.0, timeout)
        return super().select(0)


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """The result of `main`, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


class HeapClock:
    """A `Clock` that runs its callbacks when told to; `lateness_s` delays each of them."""

    def __init__(self, lateness_s: float = 0.0) -> None:
        self.now_s, self._lateness_s = 0.0, lateness_s
        self._entries: list[tuple[float, int, _Entry]] = []
        self._n = 0

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> _Entry:
        entry = _Entry(callback, args)
        self._n += 1
        heapq.heappush(self._entries, (when + self._lateness_s, self._n, entry))
        return entry

    def run_until(self, until_s: float) -> None:
        while self._entries and self._entries[0][0] <= until_s:
            when_s, _, entry = heapq.heappop(self._entries)
            self.now_s = max(self.now_s, when_s)
            if not entry.cancelled:
                entry.callback(*entry.args)
        self.now_s = until_s


class _Entry:
    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.callback, self.args, self.cancelled = callback, args, False

    def cancel(self) -> None:
        self.cancelled = True
