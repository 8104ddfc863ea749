"""The prefill side of an instance: one prompt at a time, first come first served.

Turns follow each other on planned times, not on when a callback happened to run: the next prefill
starts at the later of its arrival and the previous one's planned end, so a busy machine does not
make the emulated GPU slower.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field

from routing.lab.cache import PrefixCache
from routing.lab.clock import sleep_until
from routing.lab.profile import Profile
from routing.lab.prompt import Prompt


@dataclass(frozen=True)
class PrefillRun:
    """One prefill under way; times on the loop's clock. `queue_s`: its wait for the turn."""

    prompt: Prompt
    cached_tokens: int
    queue_s: float
    start_s: float
    end_s: float

    @property
    def uncached_tokens(self) -> int:
        return self.prompt.tokens - self.cached_tokens

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(eq=False)
class _Ticket:
    prompt: Prompt
    arrived_s: float
    expected_s: float
    turn: asyncio.Future[PrefillRun] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class PrefillQueue:
    """Turns on one emulated GPU."""

    def __init__(self, profile: Profile, cache: PrefixCache) -> None:
        self._profile, self._cache = profile, cache
        self._waiting: deque[_Ticket] = deque()
        self._expected: dict[object, float] = {}
        self._current: tuple[_Ticket, PrefillRun] | None = None
        self._finished: PrefillRun | None = None
        self._free_at_s = 0.0

    @property
    def running(self) -> PrefillRun | None:
        return self._current[1] if self._current else None

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def n_expected(self) -> int:
        """Requests that will join the queue once their prefix is here."""
        return len(self._expected)

    def expected_finish_s(
        self, prompt: Prompt, *, held_tokens: int = 0, not_before_s: float = 0.0
    ) -> float:
        """Seconds from now until this prompt would be prefilled here: the queue, then its own
        uncached tokens as the cache stands now, or would with `held_tokens` of it brought here in
        `not_before_s`."""
        now_s = asyncio.get_running_loop().time()
        left_s = max(0.0, self._current[1].end_s - now_s) if self._current else 0.0
        queue_s = left_s + sum(t.expected_s for t in self._waiting) + sum(self._expected.values())
        return max(queue_s, not_before_s) + self._expected_s(prompt, held_tokens)

    @contextmanager
    def expecting(self, prompt: Prompt, held_tokens: int) -> Iterator[None]:
        """A request was sent here and joins when `held_tokens` of its prefix have come."""
        mark = object()
        self._expected[mark] = self._expected_s(prompt, held_tokens)
        try:
            yield
        finally:
            del self._expected[mark]

    @asynccontextmanager
    async def turn(self, prompt: Prompt, *, arrived_s: float) -> AsyncIterator[PrefillRun]:
        """Wait for a turn, since `arrived_s` on the loop's clock; leaving the block ends it, at
        its planned end or at once."""
        ticket = _Ticket(prompt, arrived_s, self._expected_s(prompt))
        self._waiting.append(ticket)
        self._grant()
        try:
            yield await ticket.turn
        finally:
            self._leave(ticket)

    async def finish(self, run: PrefillRun) -> None:
        """Sleep to the end of the run; its blocks are then in the cache."""
        await sleep_until(run.end_s)
        self._cache.insert(run.prompt)
        self._finished = run

    def _expected_s(self, prompt: Prompt, held_tokens: int = 0) -> float:
        cached_tokens = max(held_tokens, self._cache.cached_tokens(prompt))
        return self._profile.prefill_s(prompt.tokens - cached_tokens)

    def _grant(self) -> None:
        while self._current is None and self._waiting:
            ticket = self._waiting.popleft()
            if ticket.turn.cancelled():
                continue  # its request went away and has not cleaned up yet
            start_s = max(ticket.arrived_s, self._free_at_s)
            cached_tokens = self._cache.cached_tokens(ticket.prompt)
            uncached_tokens = ticket.prompt.tokens - cached_tokens
            run = PrefillRun(
                prompt=ticket.prompt,
                cached_tokens=cached_tokens,
                queue_s=start_s - ticket.arrived_s,
                start_s=start_s,
                end_s=start_s + self._profile.prefill_s(uncached_tokens),
            )
            self._current = (ticket, run)
            ticket.turn.set_result(run)

    def _leave(self, ticket: _Ticket) -> None:
        if self._current is not None and self._current[0] is ticket:
            run = self._current[1]
            if run is self._finished:
                self._free_at_s = run.end_s
            else:
                self._free_at_s = max(asyncio.get_running_loop().time(), run.start_s)
            self._current = None
            self._grant()
        else:
            with suppress(ValueError):
                self._waiting.remove(ticket)
