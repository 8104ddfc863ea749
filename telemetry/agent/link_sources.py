"""Directed links, each as one wire sample a reading."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import aiohttp
import msgspec

from telemetry import wire
from telemetry.agent import http, links, rates
from telemetry.agent.http import ReadError
from telemetry.agent.link_config import Link


class LinkSource:
    """One directed link."""

    def __init__(
        self,
        link: Link,
        *,
        session: aiohttp.ClientSession,
        timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.name = link.id
        self.warnings: tuple[str, ...] = ()
        self._link, self._session = link, session
        self._timeout_s, self._clock = timeout_s, clock
        self._previous: rates.Reading[wire.LinkSignals] | None = None

    async def read(self) -> wire.LinkSample:
        link = self._link
        try:
            signals, at_s = await self._counters()
        except ReadError as exc:
            return wire.LinkSample(
                id=link.id,
                at_s=self._clock(),
                measured_layer=link.measured_layer,
                state="failed",
                error=str(exc),
            )
        if signals.capacity_gbps is None:
            signals = msgspec.structs.replace(signals, capacity_gbps=link.capacity_gbps)
        current = rates.Reading(at_s, signals)
        with_rates = rates.link(self._previous, current)
        self._previous = current
        return wire.LinkSample(
            id=link.id, at_s=at_s, measured_layer=link.measured_layer, signals=with_rates
        )

    async def _counters(self) -> tuple[wire.LinkSignals, float]:
        link = self._link
        if link.source == "proc_net_dev":
            return links.read_proc_net_dev(Path(link.path), link.interface), self._clock()
        text, _ = await http.get(self._session, link.url, timeout_s=self._timeout_s)
        signals, at_s = links.from_lab(text, link.id)
        return signals, self._clock() if at_s is None else at_s
