"""The routers that a fleet's scenario names, each with the surface it is driven through."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

from routing import fleets
from routing.adapters.registry import surface_of
from routing.adapters.rendered import Rendered, Renders, Wanted
from routing.adapters.surface import Actual, Capabilities, Surface, SurfaceError
from routing.core.scenario.document import Cluster
from routing.managed_steps import LATE_THRESHOLD
from routing.models import Decision, Fleet

_READERS = 64
"""At once: those that are silent hold a cycle up by their time limit, for each so many once."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Site:
    """One router of a cluster. `surface` is None where its settings cannot be meant: `error`."""

    fleet: str
    cluster: Cluster
    name: str
    kind: str
    url: str
    surface: Surface | None
    error: str = ""
    decision: Decision | None = None
    """The plan in force, whose t those routers should show that have one."""

    @property
    def path(self) -> str:
        return f"{self.fleet}/{self.cluster.name}/{self.name}"


def sites(fleet: Fleet) -> list[Site]:
    """Every router of the fleet, in the scenario's order."""
    found = []
    newest = fleets.newest_adopted(fleet)
    for cluster in fleets.scenario_of(fleet).clusters:
        for router in cluster.routers:
            surface, error = None, ""
            try:
                surface = surface_of(router.kind, router.settings)
            except ValueError as exc:
                error = str(exc)[:500]
            found.append(
                Site(
                    fleet.pk, cluster, router.name, router.kind, router.url, surface, error, newest
                )
            )
    return found


@dataclass(frozen=True)
class PlanShown:
    """Whether a router that takes t only from others `runs` the plan's. None: it does not show.

    `rendered` is the change to be applied where it does not, or `why` there is none.
    """

    wanted: Wanted
    runs: bool | None
    rendered: Rendered | None = None
    why: str = ""


@dataclass(frozen=True)
class Read:
    """One reading of one router, begun `at`. `actual` None: it failed, and `error` says how."""

    site: Site
    at: datetime.datetime
    actual: Actual | None = None
    can: Capabilities | None = None
    error: str = ""
    plan: PlanShown | None = None
    decided: Rendered | None = None
    """What its own planner waits for that others have to do."""


def readings(found: Iterable[Site], clock: Callable[[], datetime.datetime]) -> list[Read]:
    """All of them at once: one that does not answer costs its time limit once, not each."""
    wanted = list(found)
    if not wanted:
        return []
    with ThreadPoolExecutor(min(len(wanted), _READERS), thread_name_prefix="routers") as pool:
        return list(pool.map(lambda site: read_one(site, clock), wanted))


def read_one(site: Site, clock: Callable[[], datetime.datetime]) -> Read:
    """What the router shows; `at` is when it was asked. Whatever it answers, nothing is raised."""
    at = clock()
    if site.surface is None:
        return Read(site, at, error=site.error)
    try:
        actual = site.surface.read()
        can = site.surface.capabilities(actual)
        return Read(site, at, actual, can, plan=_plan_shown(site, actual, can))
    except SurfaceError as exc:
        return Read(site, at, error=str(exc)[:500])
    except Exception as exc:  # nobody foresaw it: no reason to stop looking at the others
        log.exception("the answer of router %s was not understood", site.path)
        words = f"{site.url}: its answer was not understood ({type(exc).__name__})"
        return Read(site, at, error=words[:500])


def _plan_shown(site: Site, actual: Actual, can: Capabilities) -> PlanShown | None:
    plan = site.decision and site.decision.plan["clusters"].get(site.cluster.name)
    if not plan or can.threshold not in LATE_THRESHOLD:
        return None
    surface = cast(Renders, site.surface)
    wanted = Wanted(plan["mode"], plan["threshold_tokens"])
    runs = surface.runs(wanted, actual)
    if runs:
        return PlanShown(wanted, runs)
    try:
        return PlanShown(wanted, runs, surface.rendered(wanted, actual))
    except SurfaceError as exc:
        return PlanShown(wanted, runs, why=str(exc)[:500])
