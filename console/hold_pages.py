"""Holds of a fleet: those in force and those that ended, who placed each, why, until when."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from console import approval_words, effects, figures, plans
from console.changes import UNPROCESSABLE, VIA
from console.effects import Effect, Effects
from console.forms import ExtendForm
from console.opened import opened
from console.roles import operators_only, readable
from routing import commands
from routing.approvals import gate
from routing.models import Action, Hold

ENDED_PER_PAGE = 25
_ENDS = ("hold.release", "hold.expire", "hold.end")


@readable
@never_cache
def page(request: HttpRequest, fleet: str) -> HttpResponse:
    """What is held now, and below what was."""
    found, _scenario = opened(request, fleet)
    now = timezone.now()
    over = Hold.objects.filter(fleet=found).filter(
        Q(released_at__isnull=False) | Q(expires_at__lte=now)
    )
    ended = Paginator(over.order_by("-id"), ENDED_PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "fleet": found,
        "holds": commands.open_holds(found, now),
        "page": ended,
        "ended": ended_rows(ended, _why_ended(fleet, ended)),
    }
    return render(request, "holds.html", context)


def ended_rows(holds: Iterable[Hold], why: dict[int, Action]) -> list[dict[str, Any]]:
    """Holds that are over, with how each ended and who ended it. Pure."""
    rows = []
    for hold in holds:
        action = why.get(hold.pk)
        ended_at = hold.released_at or hold.expires_at
        ran_out = hold.released_at is None or (action is not None and action.verb == "hold.expire")
        words = _("ran out") if ran_out else _("released by %(who)s") % {"who": hold.released_by}
        if action is not None and action.verb == "hold.end":
            words = _("ended with its move of roles")
        rows.append(
            {
                "hold": hold,
                "words": plans.hold_words(hold),
                "ended_at": ended_at,
                "lasted_s": (ended_at - hold.created_at).total_seconds(),
                "how": words,
                "why": "" if action is None or ran_out else action.reason,
            }
        )
    return rows


def _why_ended(fleet: str, holds: Iterable[Hold]) -> dict[int, Action]:
    """The audit row that tells of each hold's end."""
    targets = {commands.hold_target(hold): hold.pk for hold in holds}
    rows = Action.objects.filter(fleet=fleet, verb__in=_ENDS, target__in=targets)
    return {targets[row.target]: row for row in rows}


@operators_only
@never_cache
def extend(request: HttpRequest, fleet: str, hold_id: int) -> HttpResponse:
    """Let a hold end later, or sooner, than it would."""
    hold = get_object_or_404(Hold.objects.select_related("fleet"), pk=hold_id, fleet=fleet)
    now = timezone.now()
    form = ExtendForm(request.POST or None, initial=request.GET.dict())
    refused = ""
    if hold.released_at is not None or hold.expires_at <= now:
        refused = _("This hold has ended; place another.")
    elif request.method == "POST" and form.is_valid():
        until = form.expires_at(now)
        try:
            commands.extend_hold(
                hold_id=hold.pk,
                expires_at=until,
                actor=request.user.get_username(),
                via=VIA,
                reason=form.cleaned_data["reason"],
                now=now,
            )
        except commands.Refused as exc:
            form.add_error(None, f"{exc.message[:1].upper()}{exc.message[1:]}.")
        else:
            says = _("It is held until %(until)s now.") % {"until": figures.stamp(until)}
            messages.success(request, says)
            return redirect("holds", fleet)
    context = {
        "fleet": hold.fleet,
        "title": _("Extend a hold"),
        "heading": _("Extend the hold of %(what)s in %(where)s")
        % {"what": plans.hold_words(hold), "where": hold.cluster or _("every PD cluster")},
        "note": _("Placed by %(owner)s until %(until)s: %(reason)s")
        % {
            "owner": hold.owner,
            "until": figures.stamp(hold.expires_at),
            "reason": hold.reason,
        },
        "effects": approval_words.asked_first(
            of_extend(hold, effects.what_waits(hold.fleet.policy)),
            gate.needed(fleet, *_extended(hold, form, now)),
        ),
        "form": form,
        "refused": refused,
        "submit": _("Set the end"),
        "keep": _("Leave it as it is"),
        "back": reverse("holds", args=[fleet]),
        "way": _("Holds"),
    }
    status = UNPROCESSABLE if request.method == "POST" else 200
    return render(request, "confirm.html", context, status=status)


def _extended(hold: Hold, form: ExtendForm, now: datetime) -> list[gate.Would]:
    """The other end that the form asks for, once it does."""
    if not (form.is_bound and form.is_valid()):
        return []
    until = form.expires_at(now)
    before = commands.hold_values(hold)
    after = before | {"expires_at_s": until.timestamp()}
    return [gate.Would("hold.extend", before, after, commands.lasts(hold.created_at, until))]


def of_extend(hold: Hold, waits: tuple[Effect, ...]) -> Effects:
    """What another end of a hold means. Pure."""
    where = hold.cluster or _("every PD cluster")
    stops = _(
        "deciding for %(where)s until the new end, also for congestion or a link that is down."
    )
    if not hold.mode:
        stops = _("the loop's own moves of roles in %(where)s until the new end; t stays its own.")
    return Effects(
        (
            *waits,
            Effect.stops(stops % {"where": where}),
            Effect.goes_on(_("what it pins, who placed it and why: only its end changes.")),
            Effect.undo(_("set another end, or release it, from the page of holds.")),
        )
    )
