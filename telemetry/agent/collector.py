"""One round of readings: every source on its own, none waiting for another.

Each source has at most one reading in flight. A round takes what arrives within its grace; a slow
source's reading joins the round it finishes in, with the time it was taken, and meanwhile that
source is simply not asked again: an engine that answers late is busy, not in need of more work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from telemetry import wire
from telemetry.agent.sources import Sample, Source

log = logging.getLogger(__name__)


class Collector:
    """Reads the sources; says once when one starts failing and once when it is back."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._in_flight: dict[asyncio.Task[Sample], Source] = {}
        self._failing: dict[str, str] = {}
        self._warned: dict[str, tuple[str, ...]] = {}

    async def round(self, *, grace_s: float) -> list[Sample]:
        """Ask every idle source, wait up to `grace_s`, return all readings that are there."""
        busy = {source.name for source in self._in_flight.values()}
        for source in self._sources:
            if source.name not in busy:
                self._in_flight[asyncio.create_task(source.read())] = source
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
            sample = _acceptable(task.result())
            if sample is None:
                log.error("%s: its reading cannot be sent, dropped", source.name)
                continue
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
        if sample.state == "failed":
            self._failing[source.name] = sample.error or "failed"
            if was is None:
                log.warning("%s cannot be read: %s", source.name, sample.error)
            return
        if was is not None:
            del self._failing[source.name]
            log.info("%s can be read again", source.name)
        if source.warnings != self._warned.get(source.name, ()):
            self._warned[source.name] = source.warnings
            for warning in source.warnings:
                log.warning("%s: %s", source.name, warning)


def _acceptable(sample: Sample) -> Sample | None:
    """The sample, as a failed one if the console would refuse the whole batch for it; None if even
    that would be refused."""
    try:
        wire.check_sample(sample, "")
        return sample
    except wire.WireError as exc:
        value = f"{exc.value!r}"[:80]
        failed = _failed(sample, f"not a reading: {exc.field.lstrip('.')}={value}: {exc.error}")
    try:
        wire.check_sample(failed, "")
    except wire.WireError:
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
