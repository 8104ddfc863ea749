"""The fleet that a page is about, alone or with what else most of its pages show."""

from __future__ import annotations

from django.db.models import F
from django.http import HttpRequest
from django.shortcuts import get_object_or_404

from routing import fleets
from routing.core.scenario.document import Scenario
from routing.models import Decision, Fleet, Tick


def opened(request: HttpRequest, fleet: str) -> tuple[Fleet, Scenario]:
    """The fleet with its scenario, or a 404; pages without a fleet then keep its frame."""
    return _shown(request, get_object_or_404(Fleet, pk=fleet))


def opened_at_tick(request: HttpRequest, fleet: str) -> tuple[Fleet, Scenario, Tick | None]:
    """The same with the newest tick, None before the first; the fleet comes with its policy. What
    the tick observed is half of it, and no page of these shows it."""
    ticks = Tick.objects.filter(fleet=fleet).select_related("fleet__policy").defer("observed")
    tick = ticks.order_by("-seq").first()
    return *_shown(request, tick.fleet if tick else _with_policy(fleet)), tick


def opened_running(request: HttpRequest, fleet: str) -> tuple[Fleet, Scenario, Decision | None]:
    """The same with the plan in force, None before the first."""
    adopted = Decision.objects.filter(
        fleet=fleet, epoch=F("fleet__epoch"), version__isnull=False
    ).select_related("fleet__policy")
    running = adopted.order_by("-version").first()
    return *_shown(request, running.fleet if running else _with_policy(fleet)), running


def _with_policy(fleet: str) -> Fleet:
    return get_object_or_404(Fleet.objects.select_related("policy"), pk=fleet)


def _shown(request: HttpRequest, found: Fleet) -> tuple[Fleet, Scenario]:
    if request.session.get("fleet") != found.pk:
        request.session["fleet"] = found.pk
    return found, fleets.scenario_of(found)
