"""Which agents somebody may be told of: those that read something of a fleet they may look at."""

from __future__ import annotations

from django.db.models import Q

from routing import fleets
from routing.models import Fleet
from routing.rights import Rights
from telemetry.models import Source


def by(may: Rights) -> frozenset[str] | None:
    """Names of agents; None is every agent, also of no fleet.

    One that reads for several fleets is told of wherever one of them is. A link does not say whose
    it is: it is that of each fleet which has it.
    """
    names = may.fleets("read")
    if names is None:
        return None
    wanted = Q()
    for fleet in Fleet.objects.filter(name__in=sorted(names)):
        links = [link.id for link in fleets.scenario_of(fleet).links]
        wanted |= Q(path__startswith=f"{fleet.pk}/") | Q(kind="link", path__in=links)
    if not wanted:
        return frozenset()
    return frozenset(Source.objects.filter(wanted).values_list("agent", flat=True).distinct())
