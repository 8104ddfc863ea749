"""What an agent reads: engines, gates and links, each as one wire sample a reading.

A source never raises for what it reads: a reading that went wrong is a sample too, with the state
`failed`, `down` or `slow` and the error, because silence and failure are different facts to whoever
decides on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import aiohttp

from telemetry import canonical, wire
from telemetry.agent import rates
from telemetry.agent.http import ReadError
from telemetry.agent.instances import Instance, Router
from telemetry.agent.roles import RoleReader
from telemetry.agent.scrape import Scrape

Sample = wire.InstanceSample | wire.LinkSample | wire.RouterSample
Clock = Callable[[], float]


_NOTHING = wire.InstanceSignals()


class Source(Protocol):
    """`read` takes one reading, at most `timeout_s` after it was asked."""

    @property
    def name(self) -> str: ...
    @property
    def warnings(self) -> tuple[str, ...]:
        """What the last reading could not make sense of."""

    async def read(self) -> Sample: ...


class EngineSource:
    """One engine instance."""

    def __init__(
        self,
        instance: Instance,
        *,
        session: aiohttp.ClientSession,
        timeout_s: float,
        max_series: int,
        clock: Clock,
    ) -> None:
        self.name = instance.id
        self.warnings: tuple[str, ...] = ()
        self._instance, self._clock = instance, clock
        self.scrape = Scrape(
            instance.url,
            engine=instance.engine,
            kind="instance",
            session=session,
            timeout_s=timeout_s,
            max_series=max_series,
            version=instance.engine_version,
            n_ranks=instance.ranks,
        )
        self._role = RoleReader(instance, session=session, timeout_s=timeout_s)
        self._previous: rates.Reading[wire.InstanceSignals] | None = None
        self._asked_epoch_s: float | None = None
        self._engine = "" if instance.engine == "auto" else instance.engine
        self._version = instance.engine_version

    async def read(self) -> wire.InstanceSample:
        wrong_role = None
        if self._role.asks:
            read, wrong_role = await asyncio.gather(self._scrape(), self._role.ask())
        else:
            read = await self._scrape()
        if isinstance(read, ReadError):
            return self._sample(state=read.state, error=str(read))
        if wrong_role is not None:
            return self._sample(state="failed", error=wrong_role[:500])
        at_s = self._clock()
        self.warnings = (*read.warnings, *self._role.warnings)
        self._engine = read.engine
        cache = read.signals.get("prefix_cache_hit_ratio")
        current = rates.Reading(
            at_s,
            canonical.to_instance_signals(read),
            read.epoch_s,
            cache_hits=cache.sum if cache else None,
            cache_queries=cache.count if cache else None,
        )
        signals = rates.instance(self._previous, current)
        self._previous = current
        if not self._instance.engine_version and read.epoch_s != self._asked_epoch_s:
            # Once a process: an engine that was restarted may have been upgraded.
            self._asked_epoch_s = read.epoch_s
            # What was told to the reading comes back where the text states none.
            stated = read.engine_version if read.engine_version != self.scrape.version else ""
            asked = stated or await self.scrape.ask_version(read.engine)
            self._version = self.scrape.version = asked or read.engine_version
        return self._sample(signals, at_s=at_s, epoch_s=read.epoch_s)

    async def _scrape(self) -> canonical.Canonical | ReadError:
        try:
            return await self.scrape.read()
        except ReadError as exc:
            return exc

    def gone(self, why: str) -> wire.InstanceSample:
        """Its last sample: it is not read any more."""
        return self._sample(state="gone", error=why)

    def _sample(
        self,
        signals: wire.InstanceSignals = _NOTHING,
        *,
        at_s: float | None = None,
        epoch_s: float = 0.0,
        state: wire.InstanceState = "ok",
        error: str | None = None,
    ) -> wire.InstanceSample:
        return wire.InstanceSample(
            id=self.name,
            role=self._role.role,
            engine=self._engine,
            engine_version=self._version,
            epoch_s=epoch_s,
            at_s=self._clock() if at_s is None else at_s,
            group=self._instance.group,
            state=state,
            error=error,
            signals=signals,
        )


class GateSource:
    """One gate."""

    def __init__(
        self,
        router: Router,
        *,
        session: aiohttp.ClientSession,
        timeout_s: float,
        max_series: int,
        clock: Clock,
    ) -> None:
        self.name = router.id
        self.warnings: tuple[str, ...] = ()
        self._router, self._clock = router, clock
        self.scrape = Scrape(
            router.url,
            engine=router.kind,
            kind="router",
            session=session,
            timeout_s=timeout_s,
            max_series=max_series,
        )
        self._previous: rates.Reading[wire.RouterSignals] | None = None

    async def read(self) -> wire.RouterSample:
        try:
            read = await self.scrape.read()
        except ReadError as exc:
            return wire.RouterSample(
                id=self.name,
                kind=self._router.kind,
                at_s=self._clock(),
                state=exc.state,
                error=str(exc),
            )
        at_s = self._clock()
        self.warnings = read.warnings
        current = rates.Reading(at_s, canonical.to_router_signals(read), read.epoch_s)
        signals = rates.router(self._previous, current)
        self._previous = current
        plan_epoch, plan_version = canonical.plan_of(read)
        return wire.RouterSample(
            id=self.name,
            kind=self._router.kind,
            at_s=at_s,
            epoch_s=read.epoch_s,
            plan_epoch=plan_epoch,
            plan_version=plan_version,
            signals=signals,
        )
