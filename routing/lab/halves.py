"""Engines as the P/D routers of other makes use them: each half of a request comes by itself.

`sglang`  both engines get the same request with a `bootstrap_room`. The prefill computes, and
          answers when the decode of that room has its KV; a decode to which none comes fails. An
          engine does only the half of its own role, so who lists one wrongly fails its requests.
`nixl`    the prefill gets `kv_transfer_params.do_remote_decode`, and says in its answer where the
          KV is; that goes to the decode, which takes it from there. KV that is there no more, or
          that the request does not name, is computed again. Any engine does either half.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from routing.lab.config import PdApi
from routing.lab.engine import Engine, Generation, Job, Unavailable, stages
from routing.lab.prefill import PrefillRun
from routing.lab.profile import KvSize

KEPT_S = 30.0
"""How long KV waits for its decode, and a decode for KV."""


@dataclass
class Kept:
    """The KV of one request between its halves; `run` is what computed it, once it is there."""

    is_there: asyncio.Event = field(default_factory=asyncio.Event)
    is_taken: asyncio.Event = field(default_factory=asyncio.Event)
    run: PrefillRun | None = None
    leaving: ExitStack = field(default_factory=ExitStack)

    def put(self, run: PrefillRun) -> None:
        self.run = run
        self.is_there.set()

    def release(self) -> None:
        """Its memory on the prefill is free; also when it never was there."""
        self.is_taken.set()
        self.leaving.close()


class Handoffs:
    """What is kept, by room or by the name that its prefill gave it."""

    def __init__(self) -> None:
        self._kept: dict[str, Kept] = {}
        self._n_named = 0

    def at(self, key: str) -> Kept:
        """Made by whichever half comes first."""
        return self._kept.setdefault(key, Kept())

    def find(self, key: str) -> Kept | None:
        return self._kept.get(key)

    def forget(self, key: str) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            kept.release()

    def new_name(self) -> int:
        self._n_named += 1
        return self._n_named


@dataclass(frozen=True)
class HalfEngine:
    """An engine behind routers of other makes."""

    engine: Engine
    handoffs: Handoffs
    kv: KvSize
    api: PdApi

    def generate(self, job: Job) -> AbstractAsyncContextManager[Generation]:
        """Whichever half the request asks for, or all of it. Raises Unavailable when entered."""
        if job.half is not None and self.api == "sglang" and job.half.room is not None:
            room = f"room {job.half.room}"
            return self._meet(job, room)
        params = {} if job.half is None else job.half.kv_transfer_params or {}
        if self.api == "nixl" and params.get("do_remote_decode"):
            return self._prefill_and_name(job)
        if self.api == "nixl" and params.get("do_remote_prefill"):
            key = _key(params.get("remote_engine_id"), params.get("remote_block_ids"))
            if self.handoffs.find(key) is not None:
                return self._decode(job, key)
        return self.engine.generate(job)

    def _meet(self, job: Job, room: str) -> AbstractAsyncContextManager[Generation]:
        if self.engine.role == "prefill":
            return self._prefill_until_taken(job, room)
        return self._decode(job, room)

    @asynccontextmanager
    async def _prefill_until_taken(self, job: Job, room: str) -> AsyncIterator[Generation]:
        kept = self.handoffs.at(room)
        try:
            with self.engine.holding(job.prompt.tokens):
                run = await self._compute(job)
                kept.put(run)
                if not await _within(kept.is_taken):
                    raise Unavailable(f"no decode took the KV of {room}")
        finally:
            self.handoffs.forget(room)
        yield self._first_token(run, {})

    @asynccontextmanager
    async def _prefill_and_name(self, job: Job) -> AsyncIterator[Generation]:
        run = await self._compute(job)
        blocks = [self.handoffs.new_name()]
        key = _key(self.engine.id, blocks)
        kept = self.handoffs.at(key)
        kept.leaving.enter_context(self.engine.holding(job.prompt.tokens))
        kept.put(run)
        asyncio.get_running_loop().call_later(KEPT_S, self.handoffs.forget, key)
        yield self._first_token(
            run,
            {
                "kv_transfer_params": {
                    "do_remote_prefill": True,
                    "do_remote_decode": False,
                    "remote_engine_id": self.engine.id,
                    "remote_block_ids": blocks,
                    "remote_host": "127.0.0.1",
                    "remote_port": 5600,
                    "tp_size": 1,
                }
            },
        )

    async def _compute(self, job: Job) -> PrefillRun:
        arrived_s = asyncio.get_running_loop().time()
        async with self.engine.prefill(job, arrived_s=arrived_s) as run:
            await self.engine.finish_prefill(run)
        return run

    def _first_token(self, run: PrefillRun, extra: dict[str, Any]) -> Generation:
        return Generation(
            cached_tokens=run.cached_tokens,
            stages_s=stages(run, move_s=0.0, transfer_s=0.0, decode_wait_s=0.0),
            tokens=_one_token(),
            headers={"X-Lab-Prefill": self.engine.id},
            output_tokens=1,
            extra=extra,
        )

    @asynccontextmanager
    async def _decode(self, job: Job, key: str) -> AsyncIterator[Generation]:
        kept = self.handoffs.at(key)
        with self.engine.receive(job) as receiving:
            try:
                await _within(kept.is_there)
            finally:
                if kept.run is None:
                    self.handoffs.forget(key)
            if kept.run is None:
                raise Unavailable(f"no KV came for {key}")
            run, ready_s = kept.run, asyncio.get_running_loop().time()
            kept.release()
            await receiving.admit(
                ready_s=ready_s, kv_bytes=self.kv.bytes_of(job.prompt.tokens), transfer_s=0.0
            )
            decode_wait_s = receiving.sequence.at_s(1) - ready_s
            yield Generation(
                cached_tokens=run.cached_tokens,
                stages_s=stages(run, move_s=0.0, transfer_s=0.0, decode_wait_s=decode_wait_s),
                tokens=receiving.sequence.tokens,
                headers={"X-Lab-Decode": self.engine.id},
            )


def add_sglang_routes(app: web.Application, engine: Engine, *, model_name: str) -> None:
    """What a router asks an SGLang server about itself before it lists it."""

    async def server_info(request: web.Request) -> web.Response:
        return web.json_response(
            {
                "model_path": model_name,
                "served_model_name": model_name,
                "tokenizer_path": model_name,
                "version": "0.5.23",
                "disaggregation_mode": engine.role,
                "tp_size": 1,
                "dp_size": 1,
                "status": "ready",
            }
        )

    async def model_info(request: web.Request) -> web.Response:
        return web.json_response(
            {"model_path": model_name, "tokenizer_path": model_name, "is_generation": True}
        )

    for path, handler in (("server_info", server_info), ("model_info", model_info)):
        app.router.add_get(f"/{path}", handler)
        app.router.add_get(f"/get_{path}", handler)


def _key(engine_id: Any, blocks: Any) -> str:
    return f"{engine_id} {blocks}"


async def _within(event: asyncio.Event) -> bool:
    try:
        await asyncio.wait_for(event.wait(), KEPT_S)
    except TimeoutError:
        return False
    return True


def _one_token() -> Callable[[], AsyncGenerator[int, None]]:
    async def tokens() -> AsyncGenerator[int, None]:
        yield 1

    return tokens
