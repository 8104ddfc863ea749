"""Runs what finds instances, one task for each `[[discover]]`, and keeps what each told last."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from telemetry.agent.discovery import Discover, FileFinder, Finder, Target, instances_of
from telemetry.agent.dns import DnsFinder
from telemetry.agent.instances import Instance
from telemetry.agent.kubernetes import KubernetesFinder

log = logging.getLogger(__name__)


class Finders:
    """`found` is what each told last, by its entry; one that never answered is not in it."""

    def __init__(self, *, session: aiohttp.ClientSession, rng: random.Random) -> None:
        self._session, self._rng = session, rng
        self._running: dict[Discover, tuple[Finder, asyncio.Task[None]]] = {}
        self._left_out: dict[Discover, tuple[str, ...]] = {}
        self.found: dict[Discover, tuple[Instance, ...]] = {}
        self.changed = False
        """Set when `found` is another; whoever looks at it clears it."""

    def run_these(self, entries: Sequence[Discover]) -> None:
        """From now on these; one that was running goes on with what it knows."""
        for entry in self._running.keys() - set(entries):
            _, task = self._running.pop(entry)
            task.cancel()
            self.found.pop(entry, None)
            self._left_out.pop(entry, None)
        for entry in entries:
            if entry not in self._running:
                finder = self._finder(entry)
                self._running[entry] = (finder, asyncio.create_task(self._run(entry, finder)))
        self.changed = True

    async def _run(self, entry: Discover, finder: Finder) -> None:
        def publish(targets: Sequence[Target]) -> None:
            instances, left_out = instances_of(entry, targets)
            if self.found.get(entry) != instances:
                log.info("%s discovery: %d instances of %s", entry.source, len(instances), entry.id)
                self.found[entry] = instances
                self.changed = True
            self._left_out[entry] = left_out

        await finder.run(publish)

    def _finder(self, entry: Discover) -> Finder:
        if entry.source == "file":
            return FileFinder(Path(entry.path), refresh_s=min(entry.refresh_s, 2.0))
        if entry.source == "dns":
            return DnsFinder(
                entry.names,
                entry.record,
                nameserver=entry.nameserver,
                refresh_s=entry.refresh_s,
                rng=self._rng,
            )
        return KubernetesFinder(entry, session=self._session, rng=self._rng)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with any of them now."""
        said = []
        for i, (entry, (finder, task)) in enumerate(self._running.items()):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                said.append(f"discover[{i}]: ended by a fault in the agent: {error!r}")
            if finder.problem is not None:
                state = "keeps what it told last" if entry in self.found else "told nothing yet"
                said.append(f"discover[{i}] {state}: {finder.problem}")
            said += [f"discover[{i}]: {why}" for why in self._left_out.get(entry, ())]
        return tuple(said)

    async def first_answers(self, timeout_s: float) -> None:
        """Return when each told something, or has a problem, or the time is over."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while loop.time() < deadline_s:
            if all(entry in self.found or f.problem for entry, (f, _) in self._running.items()):
                return
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """End them all."""
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
