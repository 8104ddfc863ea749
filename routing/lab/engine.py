"""One emulated engine instance: prefill queue, decode slots, prefix cache, role, metrics.

Used directly it serves a request alone (prefill, then decode, on itself); the P/D stack uses its
halves: `prefill` on one instance, `receive` on another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from routing.lab.cache import PrefixCache
from routing.lab.decode import DecodeSlots, Sequence
from routing.lab.metrics import EngineLoad, EngineMetrics, exposition
from routing.lab.prefill import PrefillQueue, PrefillRun
from routing.lab.profile import Profile
from routing.lab.prompt import Prompt

ROLES = ("prefill", "decode")


@dataclass(frozen=True)
class Move:
    """A wish of a request: the KV of its first `tokens` tokens, as far as cluster `source` holds
    it, is brought to cluster `target` before the prefill there."""

    source: str
    target: str
    tokens: int

    @property
    def link_id(self) -> str:
        return f"{self.source}->{self.target}"


@dataclass(frozen=True)
class Half:
    """What a P/D router put into a request that it sent to two engines: SGLang's room, in which
    both meet, or vLLM's parameters, which say which half this is."""

    room: int | None = None
    kv_transfer_params: dict[str, Any] | None = None


@dataclass(frozen=True)
class Job:
    """A parsed request; exactly `output_tokens` are generated."""

    id: str
    prompt: Prompt
    output_tokens: int
    move: Move | None = None
    half: Half | None = None


@dataclass(frozen=True)
class Generation:
    """A request whose first token is out. `stages_s`: move (of a prefix to the prefill), queue,
    prefill, transfer (its exposed part), decode_wait, and their sum ttft. `tokens()` yields how
    many are out, ending at the last."""

    cached_tokens: int
    stages_s: dict[str, float]
    tokens: Callable[[], AsyncGenerator[int, None]]
    headers: dict[str, str]
    output_tokens: int | None = None
    """Where it is less than was asked for: a prefill answers one."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of an answer that is not a stream."""


class Unavailable(Exception):
    """Nobody can serve the request now; HTTP 503."""


class Misdirected(Exception):
    """A request asks for a move to where it is not computed; HTTP 400."""


class RoleRefused(Exception):
    """A role switch that cannot be; `busy` when it can be once the instance is idle."""

    def __init__(self, message: str, *, busy: bool) -> None:
        super().__init__(message)
        self.busy = busy


class Receiving:
    """A request on the decode instance it was sent to, before and after its KV is there."""

    def __init__(self, engine: Engine, sequence: Sequence) -> None:
        self._engine, self.sequence = engine, sequence

    async def admit(self, *, ready_s: float, kv_bytes: int, transfer_s: float) -> None:
        """The KV is there since `ready_s`: wait for a slot."""
        engine, sequence = self._engine, self.sequence
        # A timer fires a little late, so the KV can be there, nominally, before we were told of it.
        sequence.arrived_s = min(sequence.arrived_s, ready_s)
        engine.metrics.prompt_received(
            prompt_tokens=sequence.prompt_tokens, kv_bytes=kv_bytes, transfer_s=transfer_s
        )
        await engine.slots.admit(sequence, ready_s)
        assert sequence.start_s is not None
        engine.metrics.queue.observe(sequence.start_s - sequence.arrived_s)


class Engine:
    """`id` is FLEET/CLUSTER/NAME. `roles` are those this instance may take. `does_both`: its role
    is a label that routers have for it, and it takes work of any."""

    def __init__(
        self,
        *,
        id: str,
        role: str,
        roles: tuple[str, ...],
        profile: Profile,
        cache: PrefixCache,
        owns_cache: bool,
        model_name: str,
        block_tokens: int,
        interval: int,
        started_s: float,
        does_both: bool = False,
    ) -> None:
        self.id, self.role, self.roles, self._does_both = id, role, roles, does_both
        self.profile, self.cache, self._owns_cache = profile, cache, owns_cache
        self._model_name, self._block_tokens, self.started_s = model_name, block_tokens, started_s
        self.metrics = EngineMetrics()
        self.queue = PrefillQueue(profile, cache)
        self.slots = DecodeSlots(profile, self.metrics, interval=interval)
        self._held_tokens = 0
        self._n_held = 0

    @property
    def idle(self) -> bool:
        """No request computes, waits or still leaves from here."""
        queue = self.queue
        return not (
            queue.running or queue.n_waiting or queue.n_expected or self.slots.load or self._n_held
        )

    def switch_role(self, new_role: str) -> str:
        """Take another role when idle; the old one. Raises RoleRefused."""
        if new_role not in self.roles:
            raise RoleRefused(
                f"new_role must be one of {', '.join(self.roles)}, got {new_role!r}", busy=False
            )
        if not self.idle:
            raise RoleRefused("the instance is not idle: drain all requests first", busy=True)
        old_role, self.role = self.role, new_role
        if old_role != new_role and self._owns_cache:
            self.cache.clear()  # the memory is laid out anew
        return old_role

    @asynccontextmanager
    async def prefill(self, job: Job, *, arrived_s: float) -> AsyncIterator[PrefillRun]:
        """A turn of the prefill half for a stack, which awaits `finish_prefill` in it. It queues
        since `arrived_s` on the loop's clock.

        Raises Unavailable when the role is another.
        """
        self._must_be("prefill")
        async with self._turn(job, arrived_s) as run:
            yield run

    @asynccontextmanager
    async def _turn(self, job: Job, arrived_s: float) -> AsyncIterator[PrefillRun]:
        try:
            async with self.queue.turn(job.prompt, arrived_s=arrived_s) as run:
                yield run
        except asyncio.CancelledError:
            self.metrics.finished["abort"] += 1
            raise

    async def finish_prefill(self, run: PrefillRun, *, moved_tokens: int = 0) -> None:
        """Sleep to the end of the run, for which `moved_tokens` of its prefix were brought here.
        A prefill instance answers its one token itself."""
        await self._finish(run, moved_tokens)
        self.metrics.ttft.observe(run.queue_s + run.duration_s)
        self.metrics.e2e.observe(run.queue_s + run.duration_s)
        self.metrics.generation_tokens += 1
        self.metrics.generated_tokens.observe(1)
        self.metrics.finished["length"] += 1

    @contextmanager
    def holding(self, tokens: int) -> Iterator[None]:
        """KV stays in this instance's memory until it has been shipped."""
        self._held_tokens += tokens
        self._n_held += 1
        try:
            yield
        finally:
            self._held_tokens -= tokens
            self._n_held -= 1

    @contextmanager
    def receive(self, job: Job) -> Iterator[Receiving]:
        """The decode half: the request is here, its KV is on the way.

        Raises Unavailable when the role is another.
        """
        self._must_be("decode")
        with self.slots.sequence(
            prompt_tokens=job.prompt.tokens,
            output_tokens=job.output_tokens,
            arrived_s=asyncio.get_running_loop().time(),
        ) as sequence:
            yield Receiving(self, sequence)

    @asynccontextmanager
    async def generate(self, job: Job) -> AsyncIterator[Generation]:
        """Both halves on this instance, whatever its role, entered when the first token is out."""
        arrived_s = asyncio.get_running_loop().time()
        async with self._turn(job, arrived_s) as run:
            await self._finish(run, moved_tokens=0)
        with self.slots.sequence(
            prompt_tokens=job.prompt.tokens, output_tokens=job.output_tokens, arrived_s=arrived_s
        ) as sequence:
            await self.slots.admit(sequence, run.end_s)
            assert sequence.start_s is not None
            decode_wait_s = sequence.start_s - run.end_s
            yield Generation(
                cached_tokens=run.cached_tokens,
                stages_s=stages(run, move_s=0.0, transfer_s=0.0, decode_wait_s=decode_wait_s),
                tokens=sequence.tokens,
                headers={"X-Lab-Prefill": self.id, "X-Lab-Decode": self.id},
            )

    def _must_be(self, role: str) -> None:
        if self.role != role and not self._does_both:
            raise Unavailable(f"{self.id} has the role {self.role}, not {role}")

    async def _finish(self, run: PrefillRun, moved_tokens: int) -> None:
        await self.queue.finish(run)
        self.metrics.queue.observe(run.queue_s)
        self.metrics.prefill.observe(run.duration_s)
        self.metrics.prompt_computed(
            prompt_tokens=run.prompt.tokens,
            cached_tokens=run.cached_tokens,
            moved_tokens=min(moved_tokens, run.cached_tokens),
        )

    def load(self) -> EngineLoad:
        running = self.queue.running
        tokens = self._held_tokens + self.slots.kv_tokens()
        tokens += running.prompt.tokens if running else 0
        return EngineLoad(
            running=(1 if running else 0) + self.slots.n_running,
            shipping=self._n_held,
            waiting_prefill=self.queue.n_waiting,
            waiting_kv=self.queue.n_expected + self.slots.n_waiting_kv,
            waiting_slot=self.slots.n_waiting_slot,
            kv_usage_ratio=min(1.0, tokens / self.profile.kv_capacity_tokens),
        )

    def metrics_text(self) -> str:
        self.slots.count_tokens()
        return exposition(
            self.metrics,
            self.load(),
            model_name=self._model_name,
            block_tokens=self._block_tokens,
            kv_capacity_tokens=self.profile.kv_capacity_tokens,
            started_s=self.started_s,
        )


def stages(
    run: PrefillRun, *, move_s: float, transfer_s: float, decode_wait_s: float
) -> dict[str, float]:
    """Where the time to first token went, and its sum."""
    parts = {
        "move": move_s,
        "queue": run.queue_s,
        "prefill": run.duration_s,
        "transfer": transfer_s,
        "decode_wait": decode_wait_s,
    }
    return {**parts, "ttft": sum(parts.values())}
