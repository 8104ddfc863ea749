"""When requests come and how long they are. Open loop: nothing here ever waits for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from routing.lab.clock import sleep_until
from routing.lab.content import random_ids, trace_ids
from routing.lab.lengths import Lengths
from routing.lab.traces import Row


@dataclass(frozen=True)
class Arrival:
    """One request due at `due_s` on the loop's clock. `row` is the trace row, None if drawn."""

    due_s: float
    number: int
    prompt_tokens: int
    output_tokens: int
    row: Row | None


class Source(Protocol):
    """Arrivals in time order, each yielded when it is due, and the prompts that belong to them."""

    def arrivals(self) -> AsyncIterator[Arrival]: ...

    def prompt(self, arrival: Arrival) -> list[int]: ...


class Drawn:
    """Poisson arrivals with drawn lengths and random prompts. `rate_rps` and `lengths` may change
    while it runs: the time to the next arrival is stretched or shortened from that moment on.

    Times, lengths and contents come from separate generators, so the n-th request of a seed is
    the same at any rate.
    """

    def __init__(self, *, rate_rps: float, lengths: Lengths, outputs: Lengths, seed: int) -> None:
        self.lengths, self.outputs = lengths, outputs
        self._rate_rps, self._seed = rate_rps, seed
        self._changed = asyncio.Event()

    @property
    def rate_rps(self) -> float:
        return self._rate_rps

    @rate_rps.setter
    def rate_rps(self, rate_rps: float) -> None:
        self._rate_rps = rate_rps
        self._changed.set()

    async def arrivals(self) -> AsyncIterator[Arrival]:
        gaps, sizes = Random(f"{self._seed}/gaps"), Random(f"{self._seed}/sizes")
        due_s, number = asyncio.get_running_loop().time(), 0
        while True:
            due_s = await self._next_due_s(due_s, gaps.expovariate(1.0))
            prompt_tokens, output_tokens = self.lengths.draw(sizes), self.outputs.draw(sizes)
            yield Arrival(due_s, number, prompt_tokens, output_tokens, None)
            number += 1

    async def _next_due_s(self, from_s: float, mean_gaps: float) -> float:
        """Sleep until `mean_gaps` mean gaps after `from_s` have passed; the planned end of that."""
        while True:
            self._changed.clear()
            rate_rps = self._rate_rps
            due_s = from_s + mean_gaps / rate_rps if rate_rps > 0.0 else None
            if await self._sleep(due_s) and due_s is not None:
                return due_s
            now_s = asyncio.get_running_loop().time()
            mean_gaps = max(0.0, mean_gaps - (now_s - from_s) * rate_rps)
            from_s = now_s

    async def _sleep(self, until_s: float | None) -> bool:
        """Whether `until_s` came before a change of rate."""
        now_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(None if until_s is None else max(0.0, until_s - now_s)):
                await self._changed.wait()
        except TimeoutError:
            return True
        return False

    def prompt(self, arrival: Arrival) -> list[int]:
        return random_ids(arrival.prompt_tokens, Random(f"{self._seed}/{arrival.number}"))


class Replay:
    """A trace, `speed` times as fast. Rows with hash ids share prefixes as the ids say; rows
    without get random prompts of their length."""

    def __init__(self, rows: Sequence[Row], *, speed: float, seed: int) -> None:
        self._rows, self._speed, self._seed = rows, speed, seed

    async def arrivals(self) -> AsyncIterator[Arrival]:
        start_s = asyncio.get_running_loop().time()
        for number, row in enumerate(self._rows):
            due_s = start_s + row.at_s / self._speed
            await sleep_until(due_s)
            yield Arrival(due_s, number, row.prompt_tokens, row.output_tokens, row)

    def prompt(self, arrival: Arrival) -> list[int]:
        row = arrival.row
        if row is None or row.hash_ids is None:
            return random_ids(arrival.prompt_tokens, Random(f"{self._seed}/{arrival.number}"))
        return trace_ids(row.hash_ids, row.prompt_tokens, seed=self._seed)
