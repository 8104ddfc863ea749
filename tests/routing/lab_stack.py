"""A lab stack behind real ports on a loop of its own, for code that blocks, and its fleet here.

Two stacks list the same four instances of the PD cluster, as two P/D routers in front of one pool.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any, TypeVar

import aiohttp
from aiohttp import web

from routing import commands
from routing.lab.config import load_config
from routing.lab.control import add_worker_routes
from routing.lab.engine import Engine
from routing.lab.fleet import build
from routing.lab.serve import open_port, start
from routing.lab.workers import Listing, Worker
from routing.models import Fleet
from tests.lab.small import BLOCK_TOKENS, SCENARIO
from tests.routing.cases import NOW, scenario

FLEET = "small"
T = TypeVar("T")


class Ports(AsyncExitStack):
    """Keeps how each port is closed, so that one can be closed before the others."""

    def __init__(self) -> None:
        super().__init__()
        self._runners: list[web.AppRunner] = []

    def push_async_callback(
        self, callback: Callable[..., Awaitable[Any]], /, *args: Any, **kwargs: Any
    ) -> Callable[..., Awaitable[Any]]:
        runner = getattr(callback, "__self__", None)
        if isinstance(runner, web.AppRunner):
            self._runners.append(runner)
        return super().push_async_callback(callback, *args, **kwargs)

    async def shut(self, url: str) -> None:
        """Nobody answers at that URL any more."""
        port = int(url.rpartition(":")[2])
        for runner in self._runners:
            if port in [address[1] for address in runner.addresses]:
                await runner.cleanup()


class LabStack:
    """`controls` are the two control URLs, `engines` the PD cluster's by the end of their id;
    `local` is where the first stack serves."""

    def __init__(self, loop: asyncio.AbstractEventLoop, closing: Ports) -> None:
        self._loop, self._closing = loop, closing
        self.controls: tuple[str, str] = ("", "")
        self.engines: dict[str, Engine] = {}
        self.listings: tuple[Listing, Listing]
        self._asked: list[asyncio.Task[int]] = []

    async def open(self, folder: Path, instances: int) -> None:
        speeds = {
            "prefill_s": 0.05,
            "slow_prefill_s": 0.1,
            "step_s": 0.001,
            "gbps": 100.0,
            "rtt_ms": 1.0,
        }
        text = SCENARIO.format(**speeds).replace("batch = 2", "batch = 8")
        text = text.replace("instances = 4", f"instances = {instances}")
        (folder / "scenario.toml").write_text(dedent(text))
        path = folder / "stack.toml"
        path.write_text(f'scenario = "scenario.toml"\nblock_tokens = {BLOCK_TOKENS}\nlayers = 10\n')
        config = load_config(path)
        fleet = build(config)
        ready = await start(fleet, config, self._closing)
        self.local = ready["local"]
        own = f"{FLEET}/pd/"
        self.engines = {
            id.removeprefix(own): e for id, e in fleet.engines.items() if id.startswith(own)
        }
        second = Listing("pd", [Worker("pd", engine) for engine in self.engines.values()])
        app = web.Application()
        self._urls = {e["id"]: e["url"] for e in ready["engines"]}
        add_worker_routes(app, {"pd": SimpleNamespace(listing=second)}, self._urls)
        other = await open_port(app, "127.0.0.1", 0, self._closing)
        self.controls = (ready["upstreams"]["pd"]["control"], f"{other}/clusters/pd")
        self.listings = (fleet.stacks["pd"].listing, second)
        self._session = await self._closing.enter_async_context(aiohttp.ClientSession())

    def call(self, function: Callable[[], T]) -> T:
        """`function()` on the lab's loop."""

        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(20)

    def serve(self, app: web.Application) -> str:
        """One more port on the lab's loop; its URL."""
        opening = open_port(app, "127.0.0.1", 0, self._closing)
        return asyncio.run_coroutine_threadsafe(opening, self._loop).result(20)

    def url(self, name: str) -> str:
        """Of the engine by that name."""
        return self._urls[f"{FLEET}/pd/{name}"]

    def routers(self) -> list[dict[str, Any]]:
        """Both stacks as a scenario names them; the first can be sent a request."""
        first, second = self.controls
        return [
            {"kind": "stack", "url": first, "serves_at": self.local},
            {"kind": "stack", "url": second},
        ]

    def kill(self, name: str) -> None:
        """The engine by that name answers nobody from now on."""
        shut = self._closing.shut(self._urls[f"{FLEET}/pd/{name}"])
        asyncio.run_coroutine_threadsafe(shut, self._loop).result(20)

    def roles(self) -> dict[str, str]:
        """What each engine is."""
        return self.call(lambda: {name: e.role for name, e in self.engines.items()})

    def listed(self) -> list[dict[str, tuple[str, str]]]:
        """By stack, what it lists each instance of the PD cluster as: (type, status)."""
        return self.call(
            lambda: [
                {
                    w.name: (w.worker_type, w.status)
                    for w in listing.workers
                    if w.name in self.engines and w.cluster == "pd"
                }
                for listing in self.listings
            ]
        )

    def counts(self) -> tuple[int, int]:
        """How many engines prefill, how many decode."""
        roles = list(self.roles().values())
        return roles.count("prefill"), roles.count("decode")

    def settled(self) -> bool:
        """Every stack lists every engine as what it is, ready."""
        want = {name: (role, "ready") for name, role in self.roles().items()}
        return self.listed() == [want, want]

    def worker(self, stack: int, name: str) -> Worker:
        """The worker by that name of one stack, to be changed behind everybody's back."""
        return next(w for w in self.listings[stack].workers if w.name == name and w.cluster == "pd")

    def load(self, requests: int, *, output_tokens: int) -> None:
        """So many requests, all of them decoding when this returns."""

        async def ask(i: int) -> int:
            body = {"prompt": [i * 16 + n for n in range(8)], "max_tokens": output_tokens}
            url = f"{self.local}/v1/completions"
            async with self._session.post(url, json=body) as response:
                await response.read()
                return response.status

        async def decoding() -> None:
            self._asked = [self._loop.create_task(ask(i)) for i in range(requests)]
            while sum(e.slots.n_running for e in self.engines.values()) < requests:
                await asyncio.sleep(0.002)

        asyncio.run_coroutine_threadsafe(decoding(), self._loop).result(20)

    def answers(self) -> list[int]:
        """The status of each request of `load`, once all are over."""

        async def wait() -> list[int]:
            return list(await asyncio.gather(*self._asked))

        return asyncio.run_coroutine_threadsafe(wait(), self._loop).result(20)


@contextmanager
def lab_stack(folder: Path, *, instances: int = 4) -> Iterator[LabStack]:
    """2 prefill (slow-1, slow-2), the others (slow-3, slow-4, ...) decode, of 8 slots each."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    closing = Ports()
    try:
        stack = LabStack(loop, closing)
        asyncio.run_coroutine_threadsafe(stack.open(folder, instances), loop).result(20)
        yield stack
    finally:
        asyncio.run_coroutine_threadsafe(closing.aclose(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def fleet_of(controls: tuple[str, ...], **cluster: Any) -> Fleet:
    """The fleet those stacks serve; `cluster` are further keys of its PD cluster."""
    document = scenario(FLEET)
    document["clusters"][1] |= {
        "instances": 4,
        "start": {"n_prefill": 2, "threshold_tokens": 4000},
        "control_urls": list(controls),
        **cluster,
    }
    return commands.create_fleet(
        scenario=document, mode="active", actor="test", via="test", reason="", now=NOW
    )
