"""Lab engines for routers of other makes, on a loop of their own, and requests that go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import aiohttp

from routing.lab.config import PdApi, load_config
from routing.lab.fleet import build
from routing.lab.serve import start
from tests.lab.small import BLOCK_TOKENS, SCENARIO

MODEL = "small"
OUTPUT_TOKENS = 40
CLIENTS = 6


class Engines:
    """Two that prefill and two that decode; `urls` by name, `prefills` and `decodes` as started."""

    def __init__(self, loop: asyncio.AbstractEventLoop, closing: AsyncExitStack) -> None:
        self._loop, self._closing = loop, closing
        self.urls: dict[str, str] = {}
        self.failures: list[str] = []
        self.n_served = 0

    async def open(self, folder: Path, api: PdApi) -> None:
        speeds = {
            "prefill_s": 0.05,
            "slow_prefill_s": 0.1,
            "step_s": 0.01,
            "gbps": 100.0,
            "rtt_ms": 1.0,
        }
        text = SCENARIO.format(**speeds).replace("batch = 2", "batch = 64")
        (folder / "scenario.toml").write_text(dedent(text))
        path = folder / "stack.toml"
        path.write_text(
            f'scenario = "scenario.toml"\nblock_tokens = {BLOCK_TOKENS}\nlayers = 10\n'
            f'pd_api = "{api}"\n'
        )
        config = load_config(path)
        self._fleet = build(config)
        ready = await start(self._fleet, config, self._closing)
        self.urls = {
            e["id"].rpartition("/")[2]: e["url"] for e in ready["engines"] if "/pd/" in e["id"]
        }
        self._session = await self._closing.enter_async_context(aiohttp.ClientSession())

    @property
    def prefills(self) -> list[str]:
        return [self.urls["slow-1"], self.urls["slow-2"]]

    @property
    def decodes(self) -> list[str]:
        return [self.urls["slow-3"], self.urls["slow-4"]]

    def decoded_tokens(self, url: str) -> int:
        """What the engine at that URL has generated since it started."""
        name = next(name for name, at in self.urls.items() if at == url)

        async def count() -> int:
            engine = self._fleet.engines[f"small/pd/{name}"]
            engine.slots.count_tokens()
            return engine.metrics.generation_tokens

        return asyncio.run_coroutine_threadsafe(count(), self._loop).result(10)

    @contextmanager
    def load(self, router: str, headers: dict[str, str]) -> Iterator[None]:
        """CLIENTS streams at a time through the router, one after another; `failures` and
        `n_served` tell how they went, once this has ended."""
        stop = asyncio.Event()

        async def client(i: int) -> None:
            n = 0
            while not stop.is_set():
                n += 1
                why = await self._ask(router, headers, [i * 1000 + n] * 8)
                if why is None:
                    self.n_served += 1
                else:
                    self.failures.append(why)

        async def begin() -> list[asyncio.Task[None]]:
            return [self._loop.create_task(client(i)) for i in range(CLIENTS)]

        async def end(tasks: list[asyncio.Task[None]]) -> None:
            stop.set()
            await asyncio.gather(*tasks)

        tasks = asyncio.run_coroutine_threadsafe(begin(), self._loop).result(10)
        try:
            yield
        finally:
            asyncio.run_coroutine_threadsafe(end(tasks), self._loop).result(40)

    def ask(self, router: str, headers: dict[str, str]) -> str | None:
        """One request; why it failed, None: it did not."""
        return self.begin(router, headers, output_tokens=OUTPUT_TOKENS).result(40)

    def begin(
        self, router: str, headers: dict[str, str], *, output_tokens: int
    ) -> Future[str | None]:
        """One request of 10 ms a token, as `ask` tells of it, once it is over."""
        asked = self._ask(router, headers, [7] * 8, output_tokens)
        return asyncio.run_coroutine_threadsafe(asked, self._loop)

    async def _ask(
        self,
        router: str,
        headers: dict[str, str],
        words: list[int],
        output_tokens: int = OUTPUT_TOKENS,
    ) -> str | None:
        body: dict[str, Any] = {
            "model": MODEL,
            "prompt": " ".join(f"w{word}" for word in words),
            "max_tokens": output_tokens,
            "stream": True,
        }
        try:
            async with self._session.post(
                f"{router}/v1/completions", json=body, headers=headers
            ) as answer:
                text = await answer.text()
        except aiohttp.ClientError as exc:
            return repr(exc)
        if answer.status != 200:
            return f"{answer.status}: {text[:200]}"
        if text.count("tok ") != output_tokens or "[DONE]" not in text:
            return f"a truncated stream: {text[-200:]}"
        return None


@contextmanager
def lab_engines(folder: Path, api: PdApi) -> Iterator[Engines]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    closing = AsyncExitStack()
    try:
        engines = Engines(loop, closing)
        asyncio.run_coroutine_threadsafe(engines.open(folder, api), loop).result(20)
        yield engines
    finally:
        asyncio.run_coroutine_threadsafe(closing.aclose(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
