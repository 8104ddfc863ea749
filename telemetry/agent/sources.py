"""What an agent reads: engines, gates and links, each as one wire sample a reading.

A source never raises for what it reads: a failed reading is a sample too, with `state="failed"`
and the error, because silence and failure are different facts to whoever decides on them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urljoin

import aiohttp

from telemetry import canonical, exposition, wire
from telemetry.agent import config as configuration
from telemetry.agent import http, rates
from telemetry.agent.http import ReadError
from telemetry.agent.link_sources import LinkSource
from telemetry.agent.roles import RoleReader
from telemetry.engine_maps import MAPS

Sample = wire.InstanceSample | wire.LinkSample | wire.RouterSample
Clock = Callable[[], float]


class Source(Protocol):
    """`read` takes one reading, at most `timeout_s` after it was asked."""

    @property
    def name(self) -> str: ...
    @property
    def warnings(self) -> tuple[str, ...]:
        """What the last reading could not make sense of."""

    async def read(self) -> Sample: ...


class _Scraped:
    """One `/metrics` endpoint: fetch, parse, canonicalise."""

    def __init__(
        self,
        url: str,
        *,
        engine: str,
        kind: str,
        session: aiohttp.ClientSession,
        timeout_s: float,
    ) -> None:
        self.url, self._engine, self._kind = url, engine, kind
        self._session, self._timeout_s = session, timeout_s
        self._parser = exposition.Parser()

    async def scrape(self) -> canonical.Canonical:
        """Raises ReadError when there is nothing that can be trusted as a whole."""
        text, content_type = await http.get(self._session, self.url, timeout_s=self._timeout_s)
        parsed = self._parser.parse(text, openmetrics=exposition.is_openmetrics(content_type))
        if parsed.truncated:
            raise ReadError(f"{parsed.warnings[0]} ({self.url})")
        read = canonical.canonicalise(parsed, self._engine, kind=self._kind)
        if not read.recognised:
            wanted = "a known engine" if self._engine == "auto" else self._engine
            raise ReadError(f"no series of {wanted} in the answer of {self.url}")
        return read

    async def ask_version(self, engine: str) -> str:
        """The version an engine states beside its metrics; empty when it states none."""
        path = MAPS[engine].version_path
        if path is None:
            return ""
        try:
            text, _ = await http.get(
                self._session, urljoin(self.url, path), timeout_s=self._timeout_s
            )
            version = json.loads(text)["version"]
        except (ReadError, ValueError, KeyError, TypeError):
            return ""
        usable = isinstance(version, str) and version.isascii() and version.isprintable()
        return str(version)[:60] if usable else ""


class EngineSource:
    """One engine instance."""

    def __init__(
        self,
        instance: configuration.Instance,
        *,
        session: aiohttp.ClientSession,
        timeout_s: float,
        clock: Clock,
    ) -> None:
        self.name = instance.id
        self.warnings: tuple[str, ...] = ()
        self._instance, self._clock = instance, clock
        self._scraped = _Scraped(
            instance.url,
            engine=instance.engine,
            kind="instance",
            session=session,
            timeout_s=timeout_s,
        )
        self._role = RoleReader(instance, session=session, timeout_s=timeout_s)
        self._previous: rates.Reading[wire.InstanceSignals] | None = None
        self._asked_epoch_s: float | None = None
        self._engine = "" if instance.engine == "auto" else instance.engine
        self._version = instance.engine_version

    async def read(self) -> wire.InstanceSample:
        read, wrong_role = await asyncio.gather(self._scrape(), self._role.ask())
        at_s = self._clock()
        if isinstance(read, ReadError):
            return self._sample(wire.InstanceSignals(), at_s=at_s, error=str(read))
        if wrong_role is not None:
            return self._sample(wire.InstanceSignals(), at_s=at_s, error=wrong_role[:500])
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
            self._version = read.engine_version or await self._scraped.ask_version(read.engine)
        return self._sample(signals, at_s=at_s, epoch_s=read.epoch_s)

    async def _scrape(self) -> canonical.Canonical | ReadError:
        try:
            return await self._scraped.scrape()
        except ReadError as exc:
            return exc

    def _sample(
        self,
        signals: wire.InstanceSignals,
        *,
        at_s: float,
        epoch_s: float = 0.0,
        error: str | None = None,
    ) -> wire.InstanceSample:
        return wire.InstanceSample(
            id=self.name,
            role=self._role.role,
            engine=self._engine,
            engine_version=self._version,
            epoch_s=epoch_s,
            at_s=at_s,
            group=self._instance.group,
            state="ok" if error is None else "failed",
            error=error,
            signals=signals,
        )


class GateSource:
    """One gate."""

    def __init__(
        self,
        router: configuration.Router,
        *,
        session: aiohttp.ClientSession,
        timeout_s: float,
        clock: Clock,
    ) -> None:
        self.name = router.id
        self.warnings: tuple[str, ...] = ()
        self._router, self._clock = router, clock
        self._scraped = _Scraped(
            router.url, engine=router.kind, kind="router", session=session, timeout_s=timeout_s
        )
        self._previous: rates.Reading[wire.RouterSignals] | None = None

    async def read(self) -> wire.RouterSample:
        try:
            read = await self._scraped.scrape()
        except ReadError as exc:
            return wire.RouterSample(
                id=self.name,
                kind=self._router.kind,
                at_s=self._clock(),
                state="failed",
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


def of(
    config: configuration.Config, *, session: aiohttp.ClientSession, clock: Clock
) -> list[Source]:
    """Every source of a configuration."""
    timeout_s = config.timeout_s
    return [
        *(
            EngineSource(entry, session=session, timeout_s=timeout_s, clock=clock)
            for entry in config.instances
        ),
        *(
            GateSource(entry, session=session, timeout_s=timeout_s, clock=clock)
            for entry in config.routers
        ),
        *(
            LinkSource(entry, session=session, timeout_s=timeout_s, clock=clock)
            for entry in config.links
        ),
    ]
