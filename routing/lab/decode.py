"""The decode side of an instance: `batch` slots, one token per `step_s` in each.

The first token is the prefill's own and is out at admission; the others follow one per step, so a
slot is held for `(output_tokens - 1) * step_s`. A slot is freed by the clock, not by the reader of
the stream: a slow client does not hold a GPU.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress

from routing.lab.clock import Handle, sleep_until
from routing.lab.metrics import EngineMetrics
from routing.lab.profile import Profile


class Sequence:
    """One request on a decode instance, from the moment it is sent there until it has `left`."""

    def __init__(
        self,
        *,
        prompt_tokens: int,
        output_tokens: int,
        arrived_s: float,
        step_s: float,
        interval: int,
    ) -> None:
        self.prompt_tokens, self.output_tokens = prompt_tokens, output_tokens
        self.arrived_s, self._step_s, self._interval = arrived_s, step_s, interval
        self.ready_s: float | None = None
        self.start_s: float | None = None
        self.n_counted = 0
        self.delivered = False
        self.left = False

    def at_s(self, n_tokens: int) -> float:
        """When its n-th token is out. Admitted sequences only."""
        assert self.start_s is not None
        return self.start_s + (n_tokens - 1) * self._step_s

    @property
    def end_s(self) -> float:
        return self.at_s(self.output_tokens)

    def generated(self, now_s: float) -> int:
        """Tokens out by `now_s`."""
        if self.start_s is None or now_s < self.start_s:
            return 0
        if self._step_s <= 0.0:
            return self.output_tokens
        # A timer may come a hair early; a millionth of a step must not cost a token.
        return min(self.output_tokens, 1 + int((now_s - self.start_s) / self._step_s + 1e-6))

    async def tokens(self) -> AsyncGenerator[int, None]:
        """Tokens out so far: 1 at once, then each time `interval` more are, up to the last."""
        n = 1
        while True:
            self.delivered = n == self.output_tokens
            yield n
            if self.delivered:
                return
            n = min(self.output_tokens, n + self._interval)
            await sleep_until(self.at_s(n))
            n = max(n, self.generated(asyncio.get_running_loop().time()))


class DecodeSlots:
    """Sequences of one instance: waiting for their KV, for a slot, or in one."""

    def __init__(self, profile: Profile, metrics: EngineMetrics, *, interval: int) -> None:
        self._batch, self._step_s, self._interval = profile.batch, profile.step_s, interval
        self._metrics = metrics
        self._sequences: dict[Sequence, None] = {}
        self._running: dict[Sequence, Handle] = {}
        self._waiting: deque[tuple[Sequence, asyncio.Future[None]]] = deque()

    @property
    def load(self) -> int:
        """Everything sent here and not over."""
        return len(self._sequences)

    @property
    def n_running(self) -> int:
        return len(self._running)

    @property
    def n_waiting_slot(self) -> int:
        return len(self._waiting)

    @property
    def n_waiting_kv(self) -> int:
        return sum(1 for s in self._sequences if s.ready_s is None)

    def kv_tokens(self) -> int:
        """Room that arriving, waiting and running sequences take."""
        now_s = asyncio.get_running_loop().time()
        return sum(s.prompt_tokens + s.generated(now_s) for s in self._sequences)

    @contextmanager
    def sequence(
        self, *, prompt_tokens: int, output_tokens: int, arrived_s: float
    ) -> Iterator[Sequence]:
        """A sequence of this instance; leaving the block frees whatever it holds."""
        sequence = Sequence(
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            arrived_s=arrived_s,
            step_s=self._step_s,
            interval=self._interval,
        )
        self._sequences[sequence] = None
        try:
            yield sequence
        finally:
            self._leave(sequence)

    async def admit(self, sequence: Sequence, ready_s: float) -> None:
        """Wait for a slot with the KV there since `ready_s`; then `start_s` is set."""
        sequence.ready_s = ready_s
        if len(self._running) < self._batch:
            self._start(sequence, ready_s)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((sequence, turn))
        await turn

    def count_tokens(self) -> None:
        """Bring the token counters to now; readers of the metrics call it first."""
        now_s = asyncio.get_running_loop().time()
        for sequence in self._running:
            self._count(sequence, now_s)

    def _count(self, sequence: Sequence, now_s: float) -> None:
        generated = sequence.generated(now_s)
        fresh = generated - sequence.n_counted
        self._metrics.generation_tokens += fresh
        # The first token has no gap before it.
        self._metrics.inter_token.observe(
            self._step_s, fresh - (1 if sequence.n_counted == 0 < fresh else 0)
        )
        sequence.n_counted = generated

    def _start(self, sequence: Sequence, start_s: float) -> None:
        sequence.start_s = start_s
        loop = asyncio.get_running_loop()
        self._running[sequence] = loop.call_at(sequence.end_s, self._finish, sequence)
        self._metrics.ttft.observe(start_s - sequence.arrived_s)

    def _finish(self, sequence: Sequence) -> None:
        """The last token is out: the slot goes to the next, at the planned time."""
        assert sequence.start_s is not None
        del self._running[sequence]
        self._count(sequence, sequence.end_s)
        self._forget(sequence)
        self._metrics.finished["length"] += 1
        self._metrics.decode.observe(sequence.end_s - sequence.start_s)
        self._metrics.e2e.observe(sequence.end_s - sequence.arrived_s)
        self._metrics.generated_tokens.observe(sequence.output_tokens)
        self._grant(sequence.end_s)

    def _grant(self, free_at_s: float) -> None:
        while self._waiting and len(self._running) < self._batch:
            sequence, turn = self._waiting.popleft()
            if turn.cancelled():
                continue  # its request went away and has not cleaned up yet
            assert sequence.ready_s is not None
            self._start(sequence, max(sequence.ready_s, free_at_s))
            turn.set_result(None)

    def _leave(self, sequence: Sequence) -> None:
        if sequence not in self._sequences:
            return  # finished
        handle = self._running.get(sequence)
        if handle is not None:
            handle.cancel()
        if sequence.delivered:
            self._finish(sequence)  # its reader woke a hair before the slot's own timer
            return
        self._forget(sequence)
        self._metrics.finished["abort"] += 1
        if handle is not None:
            now_s = asyncio.get_running_loop().time()
            del self._running[sequence]
            self._count(sequence, now_s)
            self._grant(now_s)
        else:
            with suppress(StopIteration):
                self._waiting.remove(next(entry for entry in self._waiting if entry[0] is sequence))

    def _forget(self, sequence: Sequence) -> None:
        del self._sequences[sequence]
        sequence.left = True
