"""Pages of maintenance: plan it for a cluster or a link, extend it, end it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from console import effects, figures, window_words
from console.changes import UNPROCESSABLE, VIA
from console.effects import Effect, Effects
from console.forms import ExtendForm, MaintenanceForm, NeededReasonForm
from console.roles import operators_only
from routing import fleets
from routing.commands import Refused
from routing.core.scenario.document import Scenario
from routing.models import Fleet, Policy
from routing.windows import maintenance
from routing.windows.models import Maintenance


@operators_only
@never_cache
def plan(request: HttpRequest, fleet: str) -> HttpResponse:
    """Work on the cluster `?cluster=` or the link `?link=`, now or later."""
    found = get_object_or_404(Fleet.objects.select_related("policy"), pk=fleet)
    scenario = fleets.scenario_of(found)
    now = timezone.now()
    asked = request.GET.dict()
    initial = {**asked, "what": _what(asked.get("cluster", ""), asked.get("link", ""))}
    form = MaintenanceForm(request.POST or None, initial=initial, choices=_choices(scenario))
    if request.method == "POST" and form.is_valid():
        begins = form.cleaned_data["starts_at"]
        kind, _colon, name = form.cleaned_data["what"].partition(":")
        try:
            row = maintenance.plan(
                fleet=fleet,
                **{kind: name},
                starts_at=begins,
                ends_at=form.expires_at(max(begins or now, now)),
                actor=request.user.get_username(),
                via=VIA,
                reason=form.cleaned_data["reason"],
                now=now,
            )
        except Refused as refused:
            form.add_error(None, refused.message)
        else:
            said = _("Maintenance of %(what)s is planned until %(until)s.")
            values = {
                "what": window_words.what_words(row),
                "until": figures.stamp(row.ends_at),
            }
            messages.success(request, said % values)
            return redirect("windows", fleet)
    what = str(form["what"].value() or "")
    context = {
        "title": _("Plan maintenance"),
        "heading": _("Work on a cluster or a link of %(fleet)s") % {"fleet": fleet},
        "effects": _effects(what, scenario, found.policy, now),
        "submit": _("Plan it"),
        "keep": _("Leave it in use"),
    }
    return _page(request, found, form, context, "maintenance.html")


@operators_only
@never_cache
def extend(request: HttpRequest, fleet: str, maintenance_id: int) -> HttpResponse:
    """Let maintenance end later, or sooner, than it would."""
    found, row = _of(fleet, maintenance_id)
    now = timezone.now()
    form = ExtendForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            maintenance.extend(
                maintenance_id=row.pk,
                ends_at=form.expires_at(max(row.starts_at, now)),
                if_version=None,
                actor=request.user.get_username(),
                via=VIA,
                reason=form.cleaned_data["reason"],
                now=now,
            )
        except Refused as refused:
            form.add_error(None, refused.message)
        else:
            messages.success(request, _("The maintenance has another end now."))
            return redirect("windows", fleet)
    context = {
        "title": _("Extend maintenance"),
        "heading": _("Another end for the maintenance of %(what)s")
        % {"what": window_words.what_words(row)},
        "note": _note(row),
        "effects": Effects((Effect.goes_on(_("all that it does; only its end changes.")),)),
        "refused": _over(row, now),
        "submit": _("Set the end"),
        "keep": _("Leave it as it is"),
    }
    return _page(request, found, form, context)


@operators_only
@never_cache
def end(request: HttpRequest, fleet: str, maintenance_id: int) -> HttpResponse:
    """End maintenance now, or call it off."""
    found, row = _of(fleet, maintenance_id)
    now = timezone.now()
    form = NeededReasonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            maintenance.end(
                maintenance_id=row.pk,
                if_version=None,
                actor=request.user.get_username(),
                via=VIA,
                reason=form.cleaned_data["reason"],
                now=now,
            )
        except Refused as refused:
            form.add_error(None, refused.message)
        else:
            messages.success(request, _("The maintenance is over."))
            return redirect("windows", fleet)
    back = Effect.changes(
        _("traffic returns with the next ticks, a few requests first as a probe.")
    )
    told = Effect.changes(_("people are told again of what fires."))
    context = {
        "title": _("End maintenance"),
        "heading": _("End the maintenance of %(what)s") % {"what": window_words.what_words(row)},
        "note": _note(row),
        "effects": Effects((back, told)),
        "refused": _over(row, now),
        "submit": _("End it"),
        "keep": _("Let it go on"),
    }
    return _page(request, found, form, context)


def _of(fleet: str, maintenance_id: int) -> tuple[Fleet, Maintenance]:
    found = get_object_or_404(Fleet, pk=fleet)
    return found, get_object_or_404(Maintenance, pk=maintenance_id, fleet=fleet)


def _page(
    request: HttpRequest,
    fleet: Fleet,
    form: Any,
    context: dict[str, Any],
    template: str = "confirm.html",
) -> HttpResponse:
    status = UNPROCESSABLE if request.method == "POST" else 200
    shown = {
        "fleet": fleet,
        "form": form,
        "back": reverse("windows", args=[fleet.pk]),
        "way": _("Freezes"),
    } | context
    return render(request, template, shown, status=status)


def _choices(scenario: Scenario) -> list[tuple[str, str]]:
    clusters = [(_what(each.name, ""), each.name) for each in scenario.clusters]
    return clusters + [
        (_what("", link.id), f"{link.source} → {link.target}") for link in scenario.links
    ]


def _what(cluster: str, link: str) -> str:
    """The value of the form that means a cluster, or a link."""
    if link:
        return f"link:{link}"
    return f"cluster:{cluster}" if cluster else ""


def _effects(what: str, scenario: Scenario, policy: Policy, now: datetime) -> effects.Effects:
    kind, _colon, name = what.partition(":")
    cluster = scenario.cluster(name) if kind == "cluster" else None
    known = window_words.of_maintenance(
        name.replace("->", " → "),
        is_remote=cluster is not None and cluster.kind != "pd",
        is_link=kind == "link",
        mode=policy.mode,
    )
    moves: tuple[Effect, ...] = ()
    if policy.mode == "active":
        moves = effects.of_all_local(policy, _left_alone(name, scenario), now)
    return Effects((*moves, *known.items))


def _left_alone(name: str, scenario: Scenario) -> list[str]:
    """The PD clusters that no link reaches while the link or cluster of this name is worked on."""
    found = []
    for cluster in scenario.clusters:
        into = [link for link in scenario.links if link.target == cluster.name]
        touched = [each for each in into if name in (each.id, each.source, each.target)]
        if cluster.kind == "pd" and touched and touched == into:
            found.append(cluster.name)
    return found


def _note(row: Maintenance) -> str:
    return _("Planned by %(owner)s from %(since)s until %(until)s: %(reason)s") % {
        "owner": row.owner,
        "since": figures.stamp(row.starts_at),
        "until": figures.stamp(row.ends_at),
        "reason": row.reason,
    }


def _over(row: Maintenance, now: datetime) -> str:
    if maintenance.state_of(row, now) == "over":
        return _("This maintenance is over.")
    return ""
