"""The small fleet in virtual time: a story told against it, then what must hold after any."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from routing.lab.config import StackConfig
from routing.lab.engine import Engine, Job
from routing.lab.fleet import LabFleet, build
from routing.lab.pd import PdStack
from tests.lab.virtual import run_virtual


@dataclass
class Lab:
    """The small fleet, and times relative to its start."""

    fleet: LabFleet
    start_s: float

    @property
    def stack(self) -> PdStack:
        return self.fleet.stacks["pd"]

    @property
    def link(self) -> Any:
        return self.fleet.links["far->pd"]

    def engine(self, name: str) -> Engine:
        return self.fleet.engines[f"small/{name}"]

    def now(self) -> float:
        return asyncio.get_running_loop().time() - self.start_s

    async def at(self, when_s: float) -> None:
        await asyncio.sleep(when_s - self.now())

    async def serve(self, job: Job, remote: str | None) -> Served:
        async with self.stack.generate(job, remote) as generation:
            first_s = self.now()
            async for _ in generation.tokens():
                pass
            stages = {k: round(v, 6) for k, v in generation.stages_s.items()}
            return Served(first_s, self.now(), generation.cached_tokens, stages)

    def send(self, job: Job, remote: str | None) -> asyncio.Task[Served]:
        return asyncio.create_task(self.serve(job, remote))

    def records(self) -> dict[str, dict[str, Any]]:
        return {r["id"]: r for r in self.fleet.truth.document(100)["records"]}


@dataclass(frozen=True)
class Served:
    first_s: float
    end_s: float
    cached_tokens: int
    stages: dict[str, float]


def in_lab(config: StackConfig, story: Callable[[Lab], Awaitable[None]]) -> None:
    async def main() -> None:
        fleet = build(config)
        await story(Lab(fleet, asyncio.get_running_loop().time()))
        assert all(engine.idle for engine in fleet.engines.values()), "something was not freed"
        truth = fleet.truth.document(0)
        for id, link in fleet.links.items():
            known = truth["kv_shipped_bytes_by_link"].get(id, 0)
            known += truth["kv_moved_bytes_by_link"].get(id, 0)
            assert link.read().tx_bytes_total == known, f"{id} and the truth differ"

    run_virtual(main())
