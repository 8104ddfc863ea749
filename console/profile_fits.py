"""The page of fitted profiles: what telemetry shows beside the scenario, to apply."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from console.changes import VIA
from console.context import BAD, GOOD, OFF, Mark
from console.opened import opened
from console.roles import operators_only, readable
from routing.commands import Refused
from routing.refits import proposals
from routing.refits.models import ProfileProposal

PER_PAGE: Final = 10
MOST_CLUSTERS: Final = 50
SPAN: Final = timedelta(days=1)


@readable
def page(request: HttpRequest, fleet: str) -> HttpResponse:
    """Fits of a fleet, newest first."""
    found, _scenario = opened(request, fleet)
    rows = ProfileProposal.objects.filter(fleet=fleet).order_by("-pk")
    shown = Paginator(rows, PER_PAGE).get_page(request.GET.get("page"))
    context = {"fleet": found, "page": shown, "rows": [_row(row) for row in shown]}
    return render(request, "profile_fits.html", context)


@operators_only
@never_cache
def ask(request: HttpRequest, fleet: str) -> HttpResponse:
    """Fit profiles to the last day."""
    opened(request, fleet)
    if request.method == "POST":
        proposals.ask(
            fleet=fleet,
            span=SPAN,
            actor=request.user.get_username(),
            via=VIA,
            reason=request.POST.get("reason", "")[:500],
            now=timezone.now(),
        )
        messages.success(request, _("Profiles are being fitted: look again in a minute."))
    return redirect("profile-fits", fleet)


@operators_only
@never_cache
def apply(request: HttpRequest, fleet: str, fit_id: int) -> HttpResponse:
    """Put a ready fit into the scenario."""
    opened(request, fleet)
    row = get_object_or_404(ProfileProposal, pk=fit_id, fleet=fleet)
    if request.method == "POST":
        try:
            proposals.apply(
                proposal=row,
                actor=request.user.get_username(),
                via=VIA,
                reason=request.POST.get("reason", "")[:500],
                now=timezone.now(),
            )
        except Refused as refused:
            messages.warning(request, refused.message)
        else:
            said = _("The scenario has the fitted profiles: %(names)s.")
            messages.success(request, said % {"names": ", ".join(sorted(row.profiles))})
    return redirect("profile-fits", fleet)


def _row(row: ProfileProposal) -> dict[str, Any]:
    marks = {
        "queued": Mark("info", "wait", _("being fitted")),
        "ready": Mark("info", "advisory", _("ready to apply")),
        "failed": Mark(*BAD, _("failed")),
        "applied": Mark(*GOOD, _("applied")),
        "replaced": Mark(*OFF, _("replaced by a newer one")),
    }
    names = sorted(row.clusters)
    return {
        "fit": row,
        "mark": marks[row.state],
        "clusters": [{"name": name} | row.clusters[name] for name in names[:MOST_CLUSTERS]],
        "n_more": max(len(names) - MOST_CLUSTERS, 0),
        "is_ready": row.state == "ready",
    }
