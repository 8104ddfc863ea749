"""One round of readings: every source on its own, none waiting for another.

Each source has at most one reading in flight. A round takes what arrives within its grace; a slow
source's reading joins the round it finishes in, with the time it was taken, and meanwhile that
source is simply not asked again: an engine that answers late is busy, not in need of more work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from telemetry import wire
from telemetry.agent.sources import Sample, Source
from telemetry.refusals import WireError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Last:
    """A source's last reading and how long it took."""

    sample: Sample
    read_s: float


class Collector:
    """Reads the sources; says once when one starts failing and once when it is back."""

    def __init__(self, sources: Sequence[Source] = ()) -> None:
        self._sources = sources
        self._in_flight: dict[asyncio.Task[Last], Source] = {}
        self._failing: dict[str, str] = {}
        self._warned: dict[str, tuple[str, ...]] = {}
        self.last: dict[Source, Last] = {}
        """By source, what it said last; nothing before its first reading."""

    def read_these(self, sources: Sequence[Source]) -> None:
        """From now on these; readings in flight of the others are given up."""
        self._sources, kept = sources, set(sources)
        for task in [task for task, source in self._in_flight.items() if source not in kept]:
            del self._in_flight[task]
            task.cancel()
        names = {source.name for source in sources}
        self.last = {source: last for source, last in self.last.items() if source in kept}
        self._failing = {name: why for name, why in self._failing.items() if name in names}
        self._warned = {name: said for name, said in self._warned.items() if name in names}

    async def round(self, *, grace_s: float) -> list[Sample]:
        """Ask every idle source, wait up to `grace_s`, return all readings that are there."""
        busy = set(self._in_flight.values())
        for source in self._sources:
            if source not in busy:
                self._in_flight[asyncio.create_task(_timed(source))] = source
        if self._in_flight:
            await asyncio.wait(self._in_flight, timeout=grace_s)
        return self.finished()

    def finished(self) -> list[Sample]:
        """Readings that have arrived since they were last taken."""
        done = [task for task in self._in_flight if task.done()]
        samples = []
        for task in done:
            source = self._in_flight.pop(task)
            if (error := task.exception()) is not None:
                # A fault of ours in reading one source must not silence the others.
                log.error("%s: reading it failed inside the agent", source.name, exc_info=error)
                continue
            last = task.result()
            sample = _acceptable(last.sample)
            if sample is None:
                log.error("%s: its reading cannot be sent, dropped", source.name)
                continue
            self.last[source] = Last(sample, last.read_s)
            self._say(source, sample)
            samples.append(sample)
        return samples

    async def close(self) -> None:
        """Give up the readings in flight."""
        for task in self._in_flight:
            task.cancel()
        await asyncio.gather(*self._in_flight, return_exceptions=True)
        self._in_flight.clear()

    def _say(self, source: Source, sample: Sample) -> None:
        was = self._failing.get(source.name)
        if sample.state != "ok":
            self._failing[source.name] = sample.state
            if was != sample.state:
                log.warning("%s cannot be read: %s", source.name, sample.error)
            return
        if was is not None:
            del self._failing[source.name]
            log.info("%s can be read again", source.name)
        if source.warnings != self._warned.get(source.name, ()):
            self._warned[source.name] = source.warnings
            for warning in source.warnings:
                log.warning("%s: %s", source.name, warning)


async def _timed(source: Source) -> Last:
    clock = asyncio.get_running_loop().time
    began_s = clock()
    sample = await source.read()
    return Last(sample, clock() - began_s)


def _acceptable(sample: Sample) -> Sample | None:
    """The sample, as a failed one if the console would refuse the whole batch for it; None if even
    that would be refused."""
    try:
        wire.check_sample(sample, "")
        return sample
    except WireError as exc:
        value = f"{exc.value!r}"[:80]
        failed = _failed(sample, f"not a reading: {exc.field.lstrip('.')}={value}: {exc.error}")
    try:
        wire.check_sample(failed, "")
    except WireError:
        return None
    return failed


def _failed(sample: Sample, error: str) -> Sample:
    if isinstance(sample, wire.InstanceSample):
        return msgspec.structs.replace(
            sample, state="failed", error=error, epoch_s=0.0, signals=wire.InstanceSignals()
        )
    if isinstance(sample, wire.RouterSample):
        return msgspec.structs.replace(
            sample,
            state="failed",
            error=error,
            epoch_s=0.0,
            plan_epoch=None,
            plan_version=None,
            signals=wire.RouterSignals(),
        )
    return msgspec.structs.replace(sample, state="failed", error=error, signals=wire.LinkSignals())
