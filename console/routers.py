"""The page of a fleet's routers: desired, last applied and observed side by side, and what to do.

Gates run plans and say so; routers of other makes list engines, which is read back (`managed`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from console import approval_words, figures, router_effects, router_rows, sources
from console.changes import CONFLICT, UNPROCESSABLE, VIA
from console.effects import Effects
from console.forms import NeededReasonForm
from console.listing import whole
from console.opened import opened_running
from console.plans import cluster_words
from console.roles import operators_only, readable
from routing import commands, repeats, router_commands
from routing.approvals import gate
from routing.commands import Stale
from routing.models import Fleet, ManagedRouter, RouterState

GATES_PER_PAGE = 50


class RouterForm(NeededReasonForm):
    """Why, on which version of the router, and under which key it is done once."""

    version = forms.IntegerField(min_value=0, widget=forms.HiddenInput)
    key = forms.CharField(max_length=repeats.MAX_KEY, widget=forms.HiddenInput)


@readable
@never_cache
def page(request: HttpRequest, fleet: str) -> HttpResponse:
    """The fleet's routers, gates first; of many one page of each, those in trouble first."""
    found, _scenario, newest = opened_running(request, fleet)
    now = timezone.now()
    search, show = request.GET.get("q", "").strip(), request.GET.get("show", "all")
    every = sources.gates_under(found, newest, now)
    gates = [gate for gate in every if search.lower() in gate["name"].lower()]
    if show == "trouble":
        gates = [gate for gate in gates if gate["mark"].tone != "good" or gate["findings"]]
    gates.sort(key=lambda gate: gate["mark"].tone == "good" and not gate["findings"])
    chosen = router_rows.chosen(found, search=search, show=show)
    listed, number, n_listed = router_rows.page_of(chosen, max(1, whole(request.GET.get("page"))))
    around, rows = router_rows.around(found, listed), []
    for row in listed:
        row.fleet = found  # each would read the scenario again
        rows.append(router_rows.router(row, around=around, most_engines=router_rows.ENGINES_LISTED))
    checks, good = router_rows.checks(found)
    context = {
        "fleet": found,
        "gates": Paginator(gates, GATES_PER_PAGE).get_page(request.GET.get("gates")),
        "n_gates": len(every),
        "overridden": router_rows.overridden(every, now),
        "routers": rows,
        "page": Paginator(range(n_listed), router_rows.PER_PAGE).get_page(number),
        "confirmed": router_rows.confirmed(newest, good),
        "checks": checks,
        "search": search,
        "show": show,
    }
    return render(request, "routers.html", context)


@operators_only
@never_cache
def adopt(request: HttpRequest, fleet: str, router_id: int) -> HttpResponse:
    """What the router lists is what it should list."""
    row = _managed(fleet, router_id)
    return _act(
        request,
        row,
        title=_("Adopt what %(name)s lists") % {"name": row.name},
        effects=_by_two(row, router_effects.of_adopt(row), gate.Would("router.adopt", None, None)),
        submit=_("Adopt it"),
        keep=_("Leave it drifted"),
        command=router_commands.adopt,
        done=_("%(name)s is as desired: what it lists was adopted.") % {"name": row.name},
    )


@operators_only
@never_cache
def override(request: HttpRequest, fleet: str, router_id: int) -> HttpResponse:
    """Have the router list again what it should."""
    row = _managed(fleet, router_id)
    return _act(
        request,
        row,
        title=_("Override %(name)s") % {"name": row.name},
        effects=_by_two(
            row, router_effects.of_override(row), gate.Would("router.override", None, None)
        ),
        submit=_("Override it"),
        keep=_("Leave it drifted"),
        command=router_commands.override,
        done=_("%(name)s is told within a cycle; what it shows then is read back.")
        % {"name": row.name},
    )


def _by_two(row: ManagedRouter, effects: Effects, would: gate.Would) -> Effects:
    """What it would do, and before that whether it needs a second person."""
    return approval_words.asked_first(effects, gate.needed(row.fleet_id, would))


def _act(
    request: HttpRequest,
    row: ManagedRouter,
    *,
    title: str,
    effects: Effects,
    submit: str,
    keep: str,
    command: Callable[..., router_commands.Done],
    done: str,
) -> HttpResponse:
    form = RouterForm(
        request.POST or None, initial={"version": row.version, "key": uuid.uuid4().hex}
    )
    refused, status = "", 200
    if request.method == "POST" and form.is_valid():
        asked = form.cleaned_data
        try:
            command(
                fleet=row.fleet_id,
                router_id=row.pk,
                if_version=asked["version"],
                key=asked["key"],
                reason=asked["reason"],
                actor=request.user.get_username(),
                via=VIA,
                now=timezone.now(),
            )
        except Stale:
            refused, status = (
                _("%(name)s has changed since you looked: look at it again.") % {"name": row.name},
                CONFLICT,
            )
        except commands.Refused as exc:
            refused, status = (
                _("Not possible now: %(message)s.") % {"message": exc.message},
                UNPROCESSABLE,
            )
        else:
            messages.success(request, done)
            return redirect("routers", row.fleet_id)
    elif request.method == "POST":
        status = UNPROCESSABLE
    context = {
        "fleet": row.fleet,
        "title": title,
        "heading": _("%(title)s (%(kind)s at %(url)s)")
        % {"title": title, "kind": row.kind, "url": row.url},
        "note": " ".join(f"It {one.words}." for one in router_rows.differences(row)),
        "effects": effects,
        "form": form,
        "refused": refused,
        "submit": submit,
        "keep": keep,
        "back": reverse("routers", args=[row.fleet_id]),
        "way": _("Routers"),
    }
    return render(request, "confirm.html", context, status=status)


@operators_only
@never_cache
def cancel(request: HttpRequest, fleet: str, router_id: int) -> HttpResponse:
    """Stop what is being done to a router."""
    row = _managed(fleet, router_id)
    return _simple(
        request,
        row.fleet,
        title=_("Stop overriding %(name)s") % {"name": row.name},
        note=_("%(n)s steps are done.") % {"n": len((row.operation or {}).get("done", []))},
        effects=router_effects.of_cancel(row),
        submit=_("Stop it"),
        keep=_("Let it go on"),
        act=lambda who: router_commands.cancel(fleet=fleet, router_id=row.pk, **who),
        done=_("Nothing more is done to %(name)s.") % {"name": row.name},
    )


@operators_only
@never_cache
def on_drift(request: HttpRequest, fleet: str, router_id: int) -> HttpResponse:
    """Whether drift is only shown or put back: `?to=`."""
    row = _managed(fleet, router_id)
    wanted = "override" if request.GET.get("to") == "override" else "show"
    title = _("Put drift back by itself") if wanted == "override" else _("Only show drift")
    return _simple(
        request,
        row.fleet,
        title=f"{title}: {row.name}",
        note="",
        effects=_by_two(
            row,
            router_effects.of_on_drift(row, wanted),
            gate.Would("router.policy", {"on_drift": row.on_drift}, {"on_drift": wanted}),
        ),
        submit=title,
        keep=_("Leave it as it is"),
        act=lambda who: router_commands.set_on_drift(
            fleet=fleet, router_id=row.pk, on_drift=wanted, **who
        ),
        done=_("From now on, for %(name)s: %(lower)s%(title)s.")
        % {"name": row.name, "lower": title[0].lower(), "title": title[1:]},
    )


@operators_only
@never_cache
def gate_adopt(request: HttpRequest, fleet: str) -> HttpResponse:
    """Hold for the whole cluster what a person set on the gate `?router=`."""
    state = _overridden_gate(request, fleet)
    name = state.router.split("/", 1)[1]
    return _simple(
        request,
        state.fleet,
        title=_("Hold what runs on %(name)s") % {"name": name},
        note=_override_words(state),
        effects=router_effects.of_gate_adopt(state),
        submit=_("Hold it"),
        keep=_("Leave it on the gate"),
        act=lambda who: router_commands.adopt_gate(router=state.router, **who),
        done=_("Held in %(cluster)s; the override on %(name)s is ended.")
        % {"cluster": state.cluster, "name": name},
    )


@operators_only
@never_cache
def gate_release(request: HttpRequest, fleet: str) -> HttpResponse:
    """End what a person set on the gate `?router=`."""
    state = _overridden_gate(request, fleet)
    name = state.router.split("/", 1)[1]
    return _simple(
        request,
        state.fleet,
        title=_("Release %(name)s") % {"name": name},
        note=_override_words(state),
        effects=router_effects.of_gate_release(state),
        submit=_("Release it"),
        keep=_("Leave it on the gate"),
        act=lambda who: router_commands.release_gate(router=state.router, **who),
        done=_("%(name)s is told to run the plan again.") % {"name": name},
    )


def _simple(
    request: HttpRequest,
    fleet: Fleet,
    *,
    title: str,
    note: str,
    effects: Effects,
    submit: str,
    keep: str,
    act: Callable[[dict[str, Any]], object],
    done: str,
) -> HttpResponse:
    form = NeededReasonForm(request.POST or None)
    refused = ""
    if request.method == "POST" and form.is_valid():
        who = {
            "actor": request.user.get_username(),
            "via": VIA,
            "reason": form.cleaned_data["reason"],
            "now": timezone.now(),
        }
        try:
            act(who)
        except commands.Refused as exc:
            refused = _("Not possible now: %(message)s.") % {"message": exc.message}
        else:
            messages.success(request, done)
            return redirect("routers", fleet.pk)
    context = {
        "fleet": fleet,
        "title": title,
        "heading": title,
        "note": note,
        "effects": effects,
        "form": form,
        "refused": refused,
        "submit": submit,
        "keep": keep,
        "back": reverse("routers", args=[fleet.pk]),
        "way": _("Routers"),
    }
    status = UNPROCESSABLE if request.method == "POST" else 200
    return render(request, "confirm.html", context, status=status)


def _managed(fleet: str, router_id: int) -> ManagedRouter:
    return get_object_or_404(
        ManagedRouter.objects.select_related("fleet"), pk=router_id, fleet_id=fleet
    )


def _overridden_gate(request: HttpRequest, fleet: str) -> RouterState:
    return get_object_or_404(
        RouterState.objects.select_related("fleet"),
        fleet_id=fleet,
        router=request.GET.get("router", ""),
        override__isnull=False,
    )


def _override_words(state: RouterState) -> str:
    found = state.override
    since = datetime.fromtimestamp(found["since_s"], UTC)
    until = datetime.fromtimestamp(found["until_s"], UTC)
    return _("%(found)s, set on the gate by %(by)s at %(since)s until %(until)s: %(reason)s") % {
        "found": cluster_words(found),
        "by": found["by"],
        "since": figures.stamp(since),
        "until": figures.stamp(until),
        "reason": found["reason"],
    }
