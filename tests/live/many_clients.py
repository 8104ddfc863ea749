"""Many gates' plan clients in one process, some behind a way that can be blocked.

    python -m tests.live.many_clients --url URL --fleet F --clients 500 --behind 20 --token-file T

Each is the gate's own `PlanClient` with a `PlanBoard` of its own, and no gate around it. The first
`--behind` of them reach the console over two ways that stdin opens and shuts, half of them each:
`shut` makes one a black hole, where connections stay and nothing passes, and the other refuse;
`open` heals both. `report` prints one line of JSON: by version when each client ran it, what each
runs now, how it is in contact, and which ended by themselves. The end of stdin ends the process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import resource
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from routing.gate.cache_map import CacheMap
from routing.gate.metrics import Metrics
from routing.gate.plan import Ack
from routing.gate.plan_client import PlanBoard, PlanClient
from routing.gate.settings import GateConfig

ROOT = Path(__file__).resolve().parents[2]
_FILES = 4096


class Way:
    """A TCP relay to `port` of this machine. Open, a black hole, or refusing."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Nobody listens, and every connection is reset."""
        assert self._server is not None
        self._server.close()
        self.reset()

    def swallow(self) -> None:
        """Connections stay as they are, and are taken; nothing passes."""
        self._open.clear()

    async def heal(self) -> None:
        self._open.set()
        if self._server is not None and not self._server.is_serving():
            await self.start()

    def reset(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        await self._open.wait()
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(back)
        pumps = [
            asyncio.create_task(self._pump(reader, back)),
            asyncio.create_task(self._pump(there, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for end in (writer, back):
                end.transport.abort()
                self._writers.discard(end)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._open.wait()
                writer.write(data)
                await writer.drain()


class Member:
    """One client, and when it first ran which version."""

    def __init__(self, config: GateConfig, session: aiohttp.ClientSession, seed: int) -> None:
        rng = random.Random(seed)
        self.config = config
        self.board = PlanBoard(fleet=config.fleet, cluster=config.cluster, file=None)
        self.ran_s: dict[int, float] = {}
        self.client = PlanClient(
            config,
            self.board,
            session=session,
            ack=self.ack,
            caches=CacheMap(
                router=config.router,
                places={},
                block_bytes=2048,
                metrics=Metrics(),
                rng=rng,
                now_s=time.monotonic,
            ),
            release=lambda override_id: None,
            trust=True,
            rng=rng,
        )

    def ack(self) -> Ack:
        ack = self.board.state.ack(self.config.router)
        if ack.version_running is not None:
            self.ran_s.setdefault(ack.version_running, time.time())
        return ack


def config_of(name: str, url: str, token_file: str, ack_interval_s: float) -> GateConfig:
    return msgspec.convert(
        {
            "router": name,
            "console_url": url,
            "token_file": token_file,
            "ack_interval_s": ack_interval_s,
            "upstreams": {"local": [{"url": "http://127.0.0.1:9"}]},
        },
        GateConfig,
    )


def report(members: list[Member], tasks: list[asyncio.Task[None]]) -> dict[str, Any]:
    ran: dict[int, dict[str, float]] = defaultdict(dict)
    for member in members:
        for version, at_s in member.ran_s.items():
            ran[version][member.config.router] = at_s
    return {
        "ran_s": ran,
        "running": {m.config.router: m.ack().version_running for m in members},
        "contact": {m.config.router: m.client.contact for m in members},
        "ended": {
            member.config.router: "cancelled" if task.cancelled() else repr(task.exception())
            for member, task in zip(members, tasks, strict=True)
            if task.done()
        },
    }


async def serve(args: argparse.Namespace) -> None:
    console_port = int(args.url.rpartition(":")[2])
    hole, wall = Way(console_port), Way(console_port)
    await hole.start()
    await wall.start()
    timeout = aiohttp.ClientTimeout(total=10.0)
    async with AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(limit=0)
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=connector, timeout=timeout)
        )
        urls = [f"http://127.0.0.1:{way.port}" for way in (hole, wall)]
        members = []
        for i in range(args.clients):
            url = urls[i % 2] if i < args.behind else args.url
            name = f"{args.fleet}/{args.cluster}/c-{i}"
            config = config_of(name, url, args.token_file, args.ack_interval_s)
            members.append(Member(config, session, args.seed + i))
        tasks = [asyncio.create_task(member.client.run()) for member in members]
        print(json.dumps({"behind": {"hole": urls[0], "wall": urls[1]}}), flush=True)
        loop = asyncio.get_running_loop()
        lines = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while line := await lines.readline():
            word = line.decode().strip()
            if word == "shut":
                hole.swallow()
                await wall.refuse()
            elif word == "open":
                await hole.heal()
                await wall.heal()
            said = report(members, tasks) if word == "report" else {"done": word}
            print(json.dumps(said), flush=True)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        broken = [e for e in ended if not isinstance(e, asyncio.CancelledError)]
        hole.reset()
        wall.reset()
        if broken:
            raise SystemExit(f"{len(broken)} clients ended by themselves: {broken[0]!r}")


class Clients:
    """That process, from outside. Use as a context manager."""

    def __init__(
        self,
        *,
        url: str,
        fleet: str,
        n: int,
        behind: int,
        token_file: Path,
        log: Path,
        cluster: str = "pd",
        ack_interval_s: float = 5.0,
    ) -> None:
        self._command = [
            *(sys.executable, "-m", "tests.live.many_clients", "--url", url, "--fleet", fleet),
            *("--cluster", cluster, "--clients", str(n), "--behind", str(behind)),
            *("--token-file", str(token_file), "--ack-interval-s", str(ack_interval_s)),
        ]
        self._log = log
        self.names = [f"{fleet}/{cluster}/c-{i}" for i in range(n)]
        self.behind = self.names[:behind]

    def __enter__(self) -> Clients:
        with self._log.open("w") as out:
            self.process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                text=True,
            )
        self._answer()
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        self.process.communicate(timeout=30)
        if failed is None and self.process.returncode:
            raise AssertionError(f"clients failed:\n{self._log.read_text()[-3000:]}")

    def tell(self, word: str) -> dict[str, Any]:
        """`shut`, `open` or `report`; its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the clients ended:\n{self._log.read_text()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--fleet", required=True)
    parser.add_argument("--cluster", default="pd")
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--behind", type=int, default=0)
    parser.add_argument("--token-file", required=True)
    parser.add_argument("--ack-interval-s", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_FILES, hard), hard))
    asyncio.run(serve(args))


if __name__ == "__main__":
    main()
