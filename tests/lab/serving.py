"""The small fleet behind real ports, with milliseconds for seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from routing.lab.fleet import LabFleet, build
from routing.lab.serve import start
from tests.lab.small import small_config


class Served:
    """A running lab and a session to it."""

    def __init__(
        self, fleet: LabFleet, ready: dict[str, Any], session: aiohttp.ClientSession
    ) -> None:
        self.fleet, self.ready, self.session = fleet, ready, session
        self.engines = {e["id"].removeprefix("small/"): e["url"] for e in ready["engines"]}
        self.local, self.far, self.admin = ready["local"], ready["remote"]["far"], ready["admin"]

    async def post(self, url: str, body: Any) -> tuple[int, Any, Any]:
        """Status, decoded body, headers."""
        async with self.session.post(url, json=body) as response:
            return response.status, await response.json(), response.headers

    async def get(self, url: str) -> tuple[int, str]:
        async with self.session.get(url) as response:
            return response.status, await response.text()

    async def complete(self, url: str, prompt: Any, max_tokens: int = 3) -> tuple[Any, Any]:
        status, answer, headers = await self.post(
            f"{url}/v1/completions", {"prompt": prompt, "max_tokens": max_tokens}
        )
        assert status == 200, answer
        return answer, headers

    async def settled(self) -> None:
        """Every request is over, here and on the link; bounded by the test's own timeout."""
        while not all(engine.idle for engine in self.fleet.engines.values()):
            await asyncio.sleep(0.005)


@asynccontextmanager
async def lab(folder: Path, **options: Any) -> AsyncIterator[Served]:
    milliseconds = {
        "prefill_s": 0.05,
        "slow_prefill_s": 0.1,
        "step_s": 0.001,
        "gbps": 100.0,
        "rtt_ms": 1.0,
    }
    config = small_config(folder, **{**milliseconds, **options})
    async with AsyncExitStack() as closing:
        fleet = build(config)
        ready = await start(fleet, config, closing)
        session = await closing.enter_async_context(aiohttp.ClientSession())
        yield Served(fleet, ready, session)
