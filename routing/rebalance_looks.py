"""One look at the routers and engines of a cluster, in names that the steps of a rebalance go by.

An instance is known by the URL of its engine: the scenario's `engines` name it, or a stack of ours
does. What routers list besides is not of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime

from routing import managed_sites
from routing.adapters import engines
from routing.adapters.engines import Engine
from routing.adapters.surface import Listed, Role, SurfaceError
from routing.core.scenario.document import Cluster
from routing.core.scenario.routers import STACK
from routing.managed_sites import Read
from routing.models import Fleet, RoleMove

_AT_ONCE = 64


@dataclass(frozen=True)
class Look:
    """One instance as every router (by URL) and its engine show it at one moment.

    `at` holds None for a router that had it and lists it no more: taken out, it gets nothing new.
    """

    id: str
    url: str
    at: Mapping[str, Listed | None]
    engine: Engine

    @property
    def requests(self) -> int:
        """What is still on it: each router knows of its own requests at best, the engine of all."""
        known = [listed.requests or 0 for listed in self.at.values() if listed is not None]
        return max(sum(known), self.engine.requests)

    @property
    def role(self) -> Role | None:
        """The engine's; where it has none, that of the first router that lists one."""
        if self.engine.role is not None:
            return self.engine.role
        roles = (listed.role for listed in self.at.values() if listed is not None)
        return next((role for role in roles if role is not None), None)


@dataclass(frozen=True)
class Routers:
    """The routers of one cluster at one moment. Of `reads` those that failed have no `actual`."""

    fleet: str
    cluster: Cluster
    reads: tuple[Read, ...]
    urls: Mapping[str, str] = field(default_factory=dict)
    """Engine URLs by id."""

    @property
    def unanswered(self) -> str | None:
        """What the first router that was not read says, if any."""
        return next((read.error for read in self.reads if read.actual is None), None)

    def named(self, url: str) -> str:
        """A router as people know it."""
        for read in self.reads:
            if read.site.url == url:
                return f"{read.site.name} ({url})"
        return url

    def read_of(self, url: str) -> Read:
        return next(read for read in self.reads if read.site.url == url)

    def serving(self) -> tuple[str, ...]:
        """Routers that a canary can be sent through; first those of which nothing else is proof."""
        found = [r for r in self.reads if r.site.surface is not None and r.site.surface.serves_at]
        found.sort(key=lambda read: read.can is None or read.can.is_readable)
        return tuple(read.site.url for read in found)

    def listings(self) -> dict[str, dict[str, Listed]]:
        """By router that was read: the cluster's instances as it lists them, by id."""
        ids = {url: id for id, url in self.urls.items()}
        return {
            read.site.url: {
                ids[url]: listed for url, listed in read.actual.workers.items() if url in ids
            }
            for read in self.reads
            if read.actual is not None
        }

    def stacks(self) -> list[str]:
        return [read.site.url for read in self.reads if read.site.kind == STACK]

    def of(self, move: RoleMove) -> dict[str, Listed | None]:
        """The instance at every router that was read and lists it, or listed it when it began."""
        return {
            read.site.url: read.actual.workers.get(move.url)
            for read in self.reads
            if read.actual is not None
            and (read.site.url in move.routers or move.url in read.actual.workers)
        }


def read(fleet: Fleet, cluster: Cluster, clock: Callable[[], datetime]) -> Routers:
    """Every router of the cluster, all at once."""
    sites = [s for s in managed_sites.sites(fleet) if s.cluster.name == cluster.name]
    return of_reads(fleet, cluster, managed_sites.readings(sites, clock))


def of_reads(fleet: Fleet, cluster: Cluster, found: Iterable[Read]) -> Routers:
    """The routers as they were read, with the engines that they or the scenario name."""
    reads = tuple(found)
    own = f"{fleet.pk}/{cluster.name}/"
    urls = {f"{own}{name}": url for name, url in cluster.engines.items()}
    for each in reads:
        if each.site.kind != STACK or each.actual is None:
            continue
        for url, listed in each.actual.workers.items():
            if listed.key.startswith(own):
                urls.setdefault(listed.key, url)
    return Routers(fleet.pk, cluster, reads, urls)


def engine_looks(
    cluster: Cluster, urls: Mapping[str, str], ids: Iterable[str]
) -> tuple[dict[str, Engine], dict[str, str]]:
    """What each engine says, and of those that do not answer why. All at once, as routers are."""
    wanted = list(ids)

    def look(id: str) -> Engine | str:
        try:
            return engines.look(urls[id], cluster.role_switch, token_file=cluster.engine_token_file)
        except SurfaceError as exc:
            return str(exc)

    if not wanted:
        return {}, {}
    with ThreadPoolExecutor(min(len(wanted), _AT_ONCE), thread_name_prefix="engines") as pool:
        found = dict(zip(wanted, pool.map(look, wanted), strict=True))
    said = {id: each for id, each in found.items() if not isinstance(each, str)}
    return said, {id: each for id, each in found.items() if isinstance(each, str)}
