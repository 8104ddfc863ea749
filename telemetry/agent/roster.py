"""Which sources are read now: the configuration's and the discovered ones, as they come and go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import aiohttp

from telemetry import wire
from telemetry.agent.config import Config
from telemetry.agent.discovery import Discover
from telemetry.agent.instances import Instance, Router
from telemetry.agent.link_config import Link
from telemetry.agent.link_sources import LinkSource
from telemetry.agent.sources import Clock, EngineSource, GateSource, Source

Entry = Instance | Router | Link
_Made = tuple[Entry, float, int]


class Roster:
    """Makes the sources. One whose entry stays the same stays itself, with its last reading."""

    def __init__(self, *, session: aiohttp.ClientSession, clock: Clock) -> None:
        self._session, self._clock = session, clock
        self._sources: dict[tuple[type[Entry], str], tuple[_Made, Source]] = {}
        self.warnings: tuple[str, ...] = ()

    @property
    def sources(self) -> list[Source]:
        return [source for _, source in self._sources.values()]

    def update(
        self, config: Config, found: Mapping[Discover, Sequence[Instance]]
    ) -> list[wire.InstanceSample]:
        """Take these from now on; `found` is what each `[[discover]]` that has answered told.

        Returns the last sample, state `gone`, of each instance that left. While one has not
        answered yet nothing leaves: it may still tell of it.
        """
        entries, self.warnings = _entries(config, found)
        kept = {}
        for entry in entries:
            key = (type(entry), entry.id)
            timeout_s = None if isinstance(entry, Link) else entry.timeout_s
            made = (entry, config.timeout_s if timeout_s is None else timeout_s, config.max_series)
            known = self._sources.get(key)
            kept[key] = known if known and known[0] == made else (made, self._source(*made))
        left = {key: made for key, made in self._sources.items() if key not in kept}
        if not all(entry in found for entry in config.discover):
            self._sources = kept | {key: made for key, made in left.items() if key[0] is Instance}
            return []
        self._sources = kept
        return [
            source.gone("left the agent's configuration or discovery")
            for _, source in left.values()
            if isinstance(source, EngineSource)
        ]

    def _source(self, entry: Entry, timeout_s: float, max_series: int) -> Source:
        session, clock = self._session, self._clock
        if isinstance(entry, Link):
            return LinkSource(entry, session=session, timeout_s=timeout_s, clock=clock)
        if isinstance(entry, Router):
            return GateSource(
                entry, session=session, timeout_s=timeout_s, max_series=max_series, clock=clock
            )
        return EngineSource(
            entry, session=session, timeout_s=timeout_s, max_series=max_series, clock=clock
        )


def _entries(
    config: Config, found: Mapping[Discover, Sequence[Instance]]
) -> tuple[list[Entry], tuple[str, ...]]:
    """(all entries, why some are left out). What is listed goes before what is found."""
    instances: dict[str, Instance] = {}
    warnings = []
    for where, instance in _instances(config, found):
        if instance.id in instances:
            warnings.append(f"{where}: {instance.id} is there already, left out")
        else:
            instances[instance.id] = instance
    return [*instances.values(), *config.routers, *config.links], tuple(warnings)


def _instances(
    config: Config, found: Mapping[Discover, Sequence[Instance]]
) -> Iterator[tuple[str, Instance]]:
    for instance in config.instances:
        yield "instances", instance
    for i, discover in enumerate(config.discover):
        for instance in found.get(discover, ()):
            yield f"discover[{i}]", instance
