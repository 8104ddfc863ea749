"""Decode with a step that depends on the batch and its context, and KV memory that may run out.

All requests that an instance runs get a token a step, so one count of tokens serves them all: V,
which grows by 1 / step_s a second, and a request that enters at V0 is through at
V0 + output - 1. The step is worked out anew whenever one comes or goes, for the number that run and
their mean context then.

A request is admitted, in order of arrival, when there is a slot and room for its KV. Everyone's KV
grows with every token; when the memory is full, whoever was admitted last is put back to the front
of the queue and its KV is dropped, as vLLM preempts. Readmitted, it is prefilled again here, all it
had so far, and holds its slot meanwhile. A request that fits nowhere runs alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from routing.twin.decode import DecodePool
from routing.twin.row import DECODER, DONE, OUTPUT, PROMPT, READY, SLOT, Row

StepTime = Callable[[int, float], float]
"""Seconds of a step for so many requests of so many tokens of context each, on the average."""
_CLOSE = 1e-9


@dataclass(eq=False)
class _Sequence:
    """A request of an instance. `tokens`: out of it so far, when it last ran; `end_v`: the V of its
    last token, while it generates."""

    row: Row
    number: int
    tokens: int = 1
    end_v: float = math.inf
    admitted: int = 0

    @property
    def context(self) -> float:
        return float(self.row[PROMPT] + self.tokens)


@dataclass
class _Instance:
    """`version` tells the newest of the times that were announced for it."""

    now_s: float
    v: float = 0.0
    step_s: float = math.inf
    kv_tokens: float = 0.0
    version: int = 0
    generating: list[tuple[float, int, _Sequence]] = field(default_factory=list)
    """A heap by V of the last token."""
    restoring: list[tuple[float, int, _Sequence]] = field(default_factory=list)
    """Prefilled again, a heap by the time at which that is done."""
    waiting: deque[_Sequence] = field(default_factory=deque)

    @property
    def n_running(self) -> int:
        return len(self.generating) + len(self.restoring)


class DecodeBatch(DecodePool):
    """`n` instances of at most `batch` requests and `kv_capacity_tokens`; `prefill_s` gives the
    seconds in which one of them prefills so many tokens again."""

    def __init__(
        self,
        n: int,
        *,
        batch: int,
        step_s: StepTime,
        kv_capacity_tokens: float,
        prefill_s: Callable[[float], float],
    ) -> None:
        self._batch, self._step_s = batch, step_s
        self._capacity, self._prefill_s = kv_capacity_tokens, prefill_s
        self._instances: list[_Instance] = []
        self._next: list[tuple[float, int, int, int]] = []
        """When something happens at an instance: (time, number, instance, its version)."""
        self._numbers = 0
        self._busy_s = 0.0
        super().__init__(n)

    def run(self, until_s: float) -> list[Row]:
        self._events.sort()
        done: list[Row] = []
        n = 0
        for time_s, number, row in self._events:
            if time_s > until_s:
                break
            n += 1
            self._pass(time_s, done)
            decoder = self._given(number, row)
            if decoder >= 0:
                self._arrived(decoder, row, number, time_s)
        del self._events[:n]
        self._pass(until_s, done)
        return done

    def _pass(self, until_s: float, done: list[Row]) -> None:
        """Everything that happens at instances until then."""
        while self._next and self._next[0][0] <= until_s:
            time_s, _, i, version = heappop(self._next)
            instance = self._instances[i]
            if version == instance.version:
                self._happen(instance, time_s, done)
                self._announce(i)

    def _arrived(self, i: int, row: Row, number: int, time_s: float) -> None:
        instance = self._instances[i]
        if row[READY] < 0.0:
            row[READY] = time_s
        instance.waiting.append(_Sequence(row, number))
        if instance.n_running < self._batch and len(instance.waiting) == 1:
            self._advance(instance, time_s)
            self._admit(instance)
            self._announce(i)

    def _happen(self, instance: _Instance, time_s: float, done: list[Row]) -> None:
        self._advance(instance, time_s)
        while instance.restoring and instance.restoring[0][0] <= time_s:
            self._generate(instance, heappop(instance.restoring)[2])
        generating = instance.generating
        while generating and generating[0][0] <= instance.v + _CLOSE * max(1.0, instance.v):
            sequence = heappop(generating)[2]
            row = sequence.row
            instance.kv_tokens -= row[PROMPT] + row[OUTPUT]
            row[DONE] = time_s
            self._loads[row[DECODER]] -= 1
            done.append(row)
        if not instance.n_running:
            instance.kv_tokens = 0.0  # whatever rounding says
        full = instance.kv_tokens >= self._capacity and len(generating) > 1
        while instance.kv_tokens >= self._capacity and len(generating) > 1:
            self._preempt(instance)
        self._admit(instance, full=full)

    def _advance(self, instance: _Instance, time_s: float) -> None:
        elapsed_s = time_s - instance.now_s
        if elapsed_s > 0.0:
            tokens = elapsed_s / instance.step_s
            instance.v += tokens
            instance.kv_tokens += tokens * len(instance.generating)
            self._busy_s += elapsed_s * instance.n_running / self._batch
            instance.now_s = time_s

    def _admit(self, instance: _Instance, *, full: bool = False) -> None:
        """Who waits first, as long as there is room, and a step's room for everyone; nobody where
        somebody was just put back. Then the step for those who run."""
        while instance.waiting and instance.n_running < self._batch:
            sequence = instance.waiting[0]
            step_tokens = instance.n_running + 1
            fits = instance.kv_tokens + sequence.context + step_tokens <= self._capacity
            if (full or not fits) and instance.n_running:
                break
            instance.waiting.popleft()
            instance.kv_tokens += sequence.context
            self._numbers += 1
            sequence.admitted = self._numbers
            row = sequence.row
            if row[SLOT] < 0.0:
                row[SLOT] = instance.now_s
                if self.begun is not None:
                    heappush(self.begun, (instance.now_s, sequence.number, row))
                self._generate(instance, sequence)
            else:
                ready_s = instance.now_s + self._prefill_s(sequence.context)
                heappush(instance.restoring, (ready_s, sequence.number, sequence))
        n = len(instance.generating)
        instance.step_s = (
            self._step_s(n, instance.kv_tokens / instance.n_running) if n else math.inf
        )

    def _generate(self, instance: _Instance, sequence: _Sequence) -> None:
        sequence.end_v = instance.v + sequence.row[OUTPUT] - sequence.tokens
        heappush(instance.generating, (sequence.end_v, sequence.number, sequence))

    def _preempt(self, instance: _Instance) -> None:
        generating = instance.generating
        last = max(range(len(generating)), key=lambda j: generating[j][2].admitted)
        sequence = generating.pop(last)[2]
        heapify(generating)
        left = max(1, math.ceil(sequence.end_v - instance.v))
        instance.kv_tokens -= (
            sequence.row[PROMPT] + sequence.row[OUTPUT] - (sequence.end_v - instance.v)
        )
        sequence.tokens = sequence.row[OUTPUT] - left
        instance.waiting.appendleft(sequence)
        self.preemptions += 1

    def _announce(self, i: int) -> None:
        """When something happens next at an instance."""
        instance = self._instances[i]
        instance.version += 1
        next_s = instance.restoring[0][0] if instance.restoring else math.inf
        n = len(instance.generating)
        if n:
            left = max(0.0, instance.generating[0][0] - instance.v)
            if n > 1 and math.isfinite(self._capacity):
                left = min(left, max(0.0, self._capacity - instance.kv_tokens) / n + _CLOSE)
            next_s = min(next_s, instance.now_s + left * instance.step_s)
        if next_s < math.inf:
            self._numbers += 1
            heappush(self._next, (next_s, self._numbers, i, instance.version))

    @property
    def _held(self) -> list[Row]:
        return [sequence.row for instance in self._instances for sequence in _all(instance)]

    def busy_s(self, now_s: float) -> float:
        """Up to what happened last at each instance, and what runs since then."""
        since = sum((now_s - each.now_s) * each.n_running for each in self._instances)
        return self._busy_s + since / self._batch

    def n_for_slot(self, now_s: float) -> int:
        return sum(len(instance.waiting) for instance in self._instances)

    def kv_tokens(self) -> float:
        """What is held now, as of what happened last at each instance."""
        return sum(instance.kv_tokens for instance in self._instances)

    def _new_instance(self, now_s: float) -> None:
        self._instances.append(_Instance(now_s))

    def _lose(self, decoder: int, now_s: float) -> list[Row]:
        instance = self._instances[decoder]
        self._advance(instance, now_s)
        lost = [sequence.row for sequence in _all(instance)]
        self._instances[decoder] = _Instance(now_s, version=instance.version + 1)
        return lost


def _all(instance: _Instance) -> list[_Sequence]:
    running = [each[2] for each in (*instance.generating, *instance.restoring)]
    return [*running, *instance.waiting]
