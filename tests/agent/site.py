"""A site under test: an agent.toml, agents run from it, and what of theirs came to the console."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from telemetry.agent.app import Agent
from telemetry.agent.config import load

ROOT = Path(__file__).parents[2]
Eventually = Callable[[Callable[[], Any]], Awaitable[None]]


@dataclass
class Site:
    """An agent.toml with what a test wants in it, and agents run from it."""

    folder: Path
    console_url: str
    tables: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def add(self, kind: str, /, **values: Any) -> None:
        lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        self.tables.append("\n".join([f"[[{kind}]]", *lines]))

    def engine(self, url: str, name: str = "p0") -> None:
        self.add("instances", id=f"f/pd/{name}", role="prefill", url=f"{url}/metrics")

    def write(self) -> Path:
        path = self.folder / "agent.toml"
        head = {
            "agent": "pd",
            "console_url": self.console_url,
            "token": "pf_x_y",
            "spool_dir": "spool",
            "interval_s": 0.1,
            "timeout_s": 10.0,
            **self.settings,
        }
        lines = [f"{key} = {json.dumps(value)}" for key, value in head.items()]
        path.write_text("\n".join([*lines, *self.tables]))
        return path

    async def once(self) -> int:
        return await Agent(load(self.write())).run(asyncio.Event(), once=True)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        path = self.write()
        task = asyncio.create_task(Agent(load(path), path).run(stop))
        try:
            yield
        finally:
            stop.set()
            await task

    async def process(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "telemetry.agent",
            "--config",
            str(self.write()),
            *arguments,
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )


def samples(console: Any, path: str) -> list[Any]:
    """Of one source, in the order they were read."""
    found = [
        sample
        for batch in console.batches
        for sample in (*batch.instances, *batch.links, *batch.routers)
        if sample.id == path
    ]
    return sorted(found, key=lambda sample: sample.at_s)


def n_read(console: Any) -> int:
    """Readings of instances that arrived; those of a backlog come several in a batch."""
    return sum(len(batch.instances) for batch in console.batches)
