"""Pages of freezes, change windows and maintenance: what may change now, and when."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from console import documents, figures, window_words
from console.changes import UNPROCESSABLE, VIA
from console.forms import OverrideForm
from console.roles import administrators_only, readable
from routing import fleets, knobs, rights
from routing.commands import Refused
from routing.core.hysteresis import within_the_hour
from routing.core.scenario.tables import ScenarioError
from routing.core.steps import kept_for_failures
from routing.jobs.when import DAYS
from routing.models import Fleet
from routing.windows import in_force, windows
from routing.windows.document import WindowDocument, read_window
from routing.windows.models import Maintenance, Window

PER_PAGE = 50


@readable
def page(request: HttpRequest, fleet: str) -> HttpResponse:
    """What is frozen now, windows of the fleet and of all fleets, maintenance, newest end first."""
    found = get_object_or_404(Fleet.objects.select_related("policy"), pk=fleet)
    now = timezone.now()
    kept = Window.objects.filter(Q(fleet="") | Q(fleet=fleet)).order_by("name")
    listed = Paginator(kept, PER_PAGE).get_page(request.GET.get("windows"))
    worked = Maintenance.objects.filter(fleet=fleet).order_by("-ends_at", "-pk")
    shown = Paginator(worked, PER_PAGE).get_page(request.GET.get("page"))
    frozen = in_force.everything(fleet, now)
    context = {
        "fleet": found,
        "states": window_words.states(frozen),
        "is_frozen": bool(frozen),
        "overrides": list(in_force.overrides(fleet, now)),
        "budget": _budget(found),
        "windows": [window_words.window_row(row, _parsed(row), now) for row in listed],
        "listed": listed,
        "is_site_admin": rights.of(request.user).may("admin"),
        "page": shown,
        "worked": [window_words.maintenance_row(row, now) for row in shown],
    }
    return render(request, "windows.html", context)


@administrators_only
@never_cache
def window(request: HttpRequest, fleet: str, name: str = "") -> HttpResponse:
    """A freeze or change window to read, change and try: when it would mean something."""
    found = get_object_or_404(Fleet, pk=fleet)
    rows = Window.objects.filter(Q(fleet="") | Q(fleet=fleet))
    row = get_object_or_404(rows, pk=name) if name else None
    if row is not None and not rights.of(request.user).may("admin", row.fleet):
        raise PermissionDenied(_("Only administrators of every fleet change what is of all."))
    form = documents.form_of(request, row, _starting_point(fleet))
    would, status = documents.answer(
        request,
        form,
        keep=lambda asked: _kept(request, asked, row, fleet),
        trial=lambda document: window_words.trial_words(
            _asked(request, document, row, fleet), timezone.now()
        ),
    )
    if isinstance(would, HttpResponse):
        return would
    context = {"fleet": found, "window": row, "form": form, "would": would or ""}
    return render(request, "window.html", context, status=status)


@administrators_only
@never_cache
def override(request: HttpRequest, fleet: str) -> HttpResponse:
    """Change what is frozen all the same, oneself, for a while, and say why."""
    found = get_object_or_404(Fleet, pk=fleet)
    now = timezone.now()
    form = OverrideForm(request.POST or None)
    frozen = in_force.everything(fleet, now)
    if request.method == "POST" and form.is_valid():
        try:
            row = windows.override(
                fleet=fleet,
                for_s=form.cleaned_data["for_s"],
                actor=request.user.get_username(),
                via=VIA,
                reason=form.cleaned_data["reason"],
                now=now,
            )
        except Refused as refused:
            form.add_error(None, refused.message)
        else:
            said = _("You may change what is frozen in %(fleet)s until %(until)s.")
            until = figures.stamp(row.ends_at)
            messages.success(request, said % {"fleet": fleet, "until": until})
            return redirect("windows", fleet)
    context = {
        "fleet": found,
        "title": _("Override a freeze"),
        "heading": _("Change what is frozen in %(fleet)s") % {"fleet": fleet},
        "effects": window_words.of_override(frozen),
        "form": form,
        "refused": "" if frozen else _("Nothing is frozen: there is nothing to override."),
        "submit": _("Override"),
        "keep": _("Leave it frozen"),
        "back": reverse("windows", args=[fleet]),
        "way": _("Freezes"),
    }
    status = UNPROCESSABLE if request.method == "POST" else 200
    return render(request, "confirm.html", context, status=status)


def _budget(fleet: Fleet) -> dict[str, Any] | None:
    """Of the plans that the loop may push in an hour, as its newest tick left it."""
    tick = fleets.newest_tick(fleet)
    if tick is None:
        return None
    limit = knobs.effective(fleet.policy.knobs)["max_changes_per_hour"]
    changes = within_the_hour(fleets.memory_after(tick).changes_s, tick.at.timestamp())
    return window_words.budget(changes, limit, kept_for_failures(limit))


def _parsed(row: Window) -> WindowDocument | None:
    try:
        return read_window(row.document)
    except ScenarioError:
        return None


def _asked(request: HttpRequest, document: Any, row: Window | None, fleet: str) -> WindowDocument:
    parsed = windows.parsed(document)
    if parsed.fleet not in ("", fleet):
        raise Refused("fleet", parsed.fleet, f"this page is of {fleet}")
    if not rights.of(request.user).may("admin", parsed.fleet):
        raise Refused("fleet", parsed.fleet, "only administrators of every fleet may leave it out")
    if row is not None and parsed.name != row.pk:
        raise Refused("name", parsed.name, f"stays {row.pk}")
    return parsed


def _kept(
    request: HttpRequest, asked: dict[str, Any], row: Window | None, fleet: str
) -> HttpResponse:
    _asked(request, asked["document"], row, fleet)
    kept = windows.put(
        document=asked["document"],
        enabled=asked["enabled"],
        if_version=asked["version"],
        actor=request.user.get_username(),
        via=VIA,
        reason=asked["reason"],
        now=timezone.now(),
    )
    said = _("Window %(name)s is kept, version %(version)s.")
    messages.success(request, said % {"name": kept.pk, "version": kept.version})
    return redirect("windows", fleet)


def _starting_point(fleet: str) -> dict[str, Any]:
    return {
        "name": "working-hours",
        "fleet": fleet,
        "kind": "changes",
        "of": ["plans", "roles", "people"],
        "when": {"zone": "Europe/Paris", "days": list(DAYS[:5]), "from": "08:00", "to": "18:00"},
        "reason": "only while people look",
    }
