"""What freezes and maintenance mean now: to the loop, to commands, to moves of roles.

Read from rows each time, so nothing has to be set or undone: what is over by the clock forbids
nothing, whoever died meanwhile.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final

from django.db.models import Q, QuerySet

from routing import audit
from routing.core.scenario.document import Scenario
from routing.core.scenario.tables import ScenarioError
from routing.core.types import Freeze, LinkObservation, Observation
from routing.windows import frozen
from routing.windows.document import Of, read_window
from routing.windows.frozen import Frozen, Rule
from routing.windows.models import Maintenance, Override, Window

_NOT_READ: Final = LinkObservation(None, None, "missing")

log = logging.getLogger(__name__)


def rules(fleet: str, now: datetime.datetime) -> list[Rule]:
    """The windows of a fleet that are not over for good. One that cannot be read forbids nothing,
    and is logged."""
    rows = Window.objects.filter(Q(fleet="") | Q(fleet=fleet), enabled=True)
    rows = rows.filter(Q(ends_at=None) | Q(ends_at__gt=now)).order_by("name")
    return rules_of((row.name, row.document, row.updated_at) for row in rows)


def rules_of(rows: Iterable[tuple[str, dict[str, Any], datetime.datetime]]) -> list[Rule]:
    """The same of rows at hand: name, document, when it was changed last."""
    found = []
    for name, document, updated_at in rows:
        try:
            found.append(Rule(read_window(document), updated_at))
        except ScenarioError:
            log.warning("window %s cannot be read, and forbids nothing", name)
    return found


def everything(fleet: str, now: datetime.datetime) -> dict[Of, Frozen]:
    """What is frozen in the fleet now."""
    return frozen.everything(rules(fleet, now), now)


def frozen_by(known: Sequence[Rule], now: datetime.datetime) -> dict[Of, Frozen]:
    """What these rules freeze now."""
    return frozen.everything(known, now)


def forbids(
    fleet: str, kinds: Sequence[Of], *, actor: str, now: datetime.datetime
) -> Frozen | None:
    """The freeze that forbids the actor a change of these kinds now: of several, the one that ends
    last. The console itself is forbidden nothing, nor who may override it."""
    if actor == audit.SYSTEM:
        return None
    known = everything(fleet, now)
    found = [known[of] for of in kinds if of in known]
    if not found or overrides(fleet, now).filter(actor=actor).exists():
        return None
    return max(found, key=lambda each: each.until)


def overrides(fleet: str, now: datetime.datetime) -> QuerySet[Override]:
    """Who may change what is frozen, the one that ends last first."""
    found = Override.objects.filter(fleet=fleet, created_at__lte=now, ends_at__gt=now)
    return found.order_by("-ends_at", "pk")


def stops_moves(fleet: str, begun_at: datetime.datetime, now: datetime.datetime) -> Frozen | None:
    """The freeze of roles that a move of roles, begun before it, has to stop for. One that began
    within it was allowed to."""
    found = everything(fleet, now).get("roles")
    return found if found is not None and begun_at < found.since else None


def maintained(fleet: str, now: datetime.datetime) -> list[Maintenance]:
    """What people work on now, the one that ends last first."""
    rows = Maintenance.objects.filter(fleet=fleet, starts_at__lte=now, ends_at__gt=now)
    return list(rows.order_by("-ends_at", "pk"))


def touches(row: Maintenance, link: str) -> bool:
    """Whether it keeps traffic off the link."""
    return row.link == link or bool(row.cluster and row.cluster in link.split("->"))


def worked_on_until(fleet: str, link: str, now: datetime.datetime) -> datetime.datetime | None:
    """Until when people keep traffic off the link, if they do."""
    ends = (row.ends_at for row in maintained(fleet, now) if touches(row, link))
    return next(ends, None)


def with_windows(
    observation: Observation, fleet: str, scenario: Scenario, now: datetime.datetime
) -> Observation:
    """The observation, knowing what people froze and what they work on."""
    return _with_maintenance(_with_freezes(observation, fleet, now), fleet, scenario, now)


def _with_freezes(observation: Observation, fleet: str, now: datetime.datetime) -> Observation:
    freezes = tuple(
        Freeze(
            of="roles" if each.of == "roles" else "plans",
            name=each.name,
            why=each.why,
            since_s=each.since.timestamp(),
            until_s=each.until.timestamp(),
        )
        for each in everything(fleet, now).values()
        if each.of != "people"
    )
    return dataclasses.replace(observation, freezes=freezes) if freezes else observation


def _with_maintenance(
    observation: Observation, fleet: str, scenario: Scenario, now: datetime.datetime
) -> Observation:
    """A cluster that is worked on neither sends nor is sent to, and keeps its roles."""
    rows = maintained(fleet, now)
    if not rows:
        return observation
    clusters: dict[str, float] = {}
    links: dict[str, float] = {}
    for row in reversed(rows):  # of several, the one that ends last
        (links if row.link else clusters)[row.link or row.cluster] = row.ends_at.timestamp()
    seen = dict(observation.links)
    for link in scenario.links:
        ends = [links.get(link.id), clusters.get(link.source), clusters.get(link.target)]
        until_s = max((end for end in ends if end is not None), default=None)
        if until_s is not None:
            known = seen.get(link.id, _NOT_READ)
            seen[link.id] = dataclasses.replace(known, maintenance_until_s=until_s)
    pd = {
        name: dataclasses.replace(known, maintenance_until_s=clusters[name])
        if name in clusters
        else known
        for name, known in observation.pd.items()
    }
    return dataclasses.replace(observation, links=seen, pd=pd)
