"""A person moves instances between roles: choose, see what it would do, confirm, watch.

The filled form is a GET, so that its address keeps what was typed; confirming is the POST. Nobody
moves what they have not seen: the form carries the roles its reader saw.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from console import approval_words, move_effects, plans, rebalances
from console.changes import CONFLICT, UNPROCESSABLE, VIA, policy_of, undone_by
from console.forms import RolesForm
from console.opened import opened
from console.roles import operators_only, readable
from routing import commands, fleets, rebalance_preview, role_commands
from routing.approvals import gate
from routing.models import Action, Hold, Policy, Rebalance
from routing.role_commands import Roles


@operators_only
@never_cache
def new(request: HttpRequest, fleet: str) -> HttpResponse:
    """Choose a cluster and its roles; what that would do; ask for it."""
    policy = policy_of(fleet)
    scenario = fleets.scenario_of(policy.fleet)
    clusters = [cluster.name for cluster in scenario.clusters if cluster.kind == "pd"]
    sent = request.POST if request.method == "POST" else request.GET
    cluster = sent.get("cluster") or (clusters[0] if clusters else "")
    if cluster not in clusters:
        raise Http404("no such PD cluster")
    seen = role_commands.Seen.of(policy.fleet)
    present = seen.roles(cluster)
    filled = "n_prefill" in sent and "reason" in sent
    initial = {
        "cluster": cluster,
        "n_prefill": present and present[0],
        **{key: value for key, value in sent.items() if value},
    }
    form = RolesForm(sent if filled else None, initial=initial, clusters=clusters)
    context: dict[str, Any] = {
        "fleet": policy.fleet,
        "policy": policy,
        "form": form,
        "cluster": cluster,
        "seen": seen,
        "present": present,
        "total": sum(present or ()),
        "limits": scenario.cluster(cluster),
    }
    if request.method == "POST" and form.is_valid():
        return _ask(request, policy, form, _roles(request.POST.get("seen", "")), context)
    status = UNPROCESSABLE if request.method == "POST" else 200
    return _page(request, policy, form, context, status)


def _page(
    request: HttpRequest, policy: Policy, form: RolesForm, context: dict[str, Any], status: int
) -> HttpResponse:
    """What the chosen roles would do is shown as soon as there is a number, reason or not."""
    now, present = timezone.now(), context["present"]
    number = form["n_prefill"].value()
    n_prefill = int(number) if str(number).isdecimal() and len(str(number)) < 7 else None
    if present is not None and n_prefill is not None:
        to = (n_prefill, max(context["total"] - n_prefill, 0))
        actor = request.user.get_username()
        found = rebalance_preview.preview(
            policy, context["cluster"], to, context["seen"], now, actor=actor
        )
        valid = form.is_bound and form.is_valid()
        until = form.expires_at(now) if valid else now + timedelta(hours=1)
        context |= {
            "to": to,
            "found": found,
            "seen_at": found.seen_at,
            "unchanged": to == present,
            "refused": [] if to == present else [text for _field, text in found.refused],
            "in_hand": found.refused and rebalances.active(policy.fleet, context["cluster"]),
            "effects": approval_words.asked_first(
                move_effects.of_move(found, until),
                gate.needed(policy.fleet_id, _moved(present, to, now, until)),
            ),
            "rows": move_effects.rows(found, until),
            "going": move_effects.going_rows(found),
            "may": valid and not found.refused,
        }
    return render(request, "rebalance_new.html", context, status=status)


def _moved(present: Roles, to: Roles, now: datetime, until: datetime) -> gate.Would:
    before, after = (
        {"n_prefill": n_prefill, "n_decode": n_decode} for n_prefill, n_decode in (present, to)
    )
    return gate.Would("roles.move", before, after, commands.lasts(now, until))


def _ask(
    request: HttpRequest, policy: Policy, form: RolesForm, seen: Roles, context: dict[str, Any]
) -> HttpResponse:
    asked, now = form.cleaned_data, timezone.now()
    to = (asked["n_prefill"], sum(seen) - asked["n_prefill"])
    try:
        done = role_commands.move_roles(
            fleet=policy.fleet_id,
            cluster=asked["cluster"],
            to=to,
            expected=seen,
            expires_at=form.expires_at(now),
            actor=request.user.get_username(),
            via=VIA,
            reason=asked["reason"],
            now=now,
        )
    except role_commands.RolesMoved as moved:
        return _conflict(request, policy, asked["cluster"], seen, moved.current, to)
    except commands.Refused as refused:
        field = refused.field if refused.field in form.fields else None
        form.add_error(field, f"{refused.message[:1].upper()}{refused.message[1:]}.")
        return _page(request, policy, form, context, UNPROCESSABLE)
    messages.success(
        request,
        undone_by(
            _("Asked for. The next tick opens the move; it is shown here."),
            reverse("release", args=[policy.fleet_id, done.hold.pk]),
            _("Undo: release the roles"),
        ),
    )
    return redirect("rebalance-asked", policy.fleet_id, done.hold.pk)


def _conflict(
    request: HttpRequest, policy: Policy, cluster: str, seen: Roles, now: Roles, to: Roles
) -> HttpResponse:
    """Somebody moved roles meanwhile: what you saw, what there is, what you asked for."""
    last = Action.objects.filter(fleet=policy.fleet_id, verb="roles.move").order_by("-id").first()
    query = request.GET.copy()
    query.pop("seen", None)
    context = {
        "fleet": policy.fleet,
        "heading": _("The roles of %(cluster)s changed while you looked at them.")
        % {"cluster": cluster},
        "sides": [
            (_("You saw"), f"{seen[0]}/{seen[1]}", ""),
            (
                _("It is now"),
                f"{now[0]}/{now[1]}",
                "" if last is None else f"{last.actor}: {last.reason}",
            ),
            (_("You asked for"), f"{to[0]}/{to[1]}", request.user.get_username()),
        ],
        "what": _("Roles, prefill/decode"),
        "again": f"{request.path}?{query.urlencode()}" if query else request.path,
    }
    return render(request, "conflict.html", context, status=CONFLICT)


def _roles(text: str) -> Roles:
    """The roles that a form saw; none where it does not say."""
    parts = text.split("/")
    if len(parts) != 2 or not all(part.isdecimal() and len(part) < 7 for part in parts):
        return 0, 0
    return int(parts[0]), int(parts[1])


@readable
@never_cache
def asked(request: HttpRequest, fleet: str, hold_id: int) -> HttpResponse:
    """The move that a hold of roles asked for; the wait for the next tick until it is open."""
    found, _scenario = opened(request, fleet)
    hold = get_object_or_404(Hold, pk=hold_id, fleet=found, n_prefill__isnull=False)
    row = hold.rebalances.order_by("-id").first()
    return _watch(request, row, hold)


@readable
@never_cache
def one(request: HttpRequest, fleet: str, rebalance_id: int) -> HttpResponse:
    """One move of roles: how far each instance is, what is waited for, how it ended."""
    opened(request, fleet)
    row = get_object_or_404(
        Rebalance.objects.select_related("hold", "fleet"), pk=rebalance_id, fleet=fleet
    )
    return _watch(request, row, row.hold)


def _watch(request: HttpRequest, row: Rebalance | None, hold: Hold | None) -> HttpResponse:
    owner = row if row is not None else hold
    assert owner is not None, "a page is of a move, or of the hold that asked for one"
    now = timezone.now()
    context = {
        "fleet": owner.fleet,
        "row": rebalances.one(row) if row is not None else None,
        "cluster": owner.cluster,
        "hold": hold,
        "held": hold is not None and hold.released_at is None and hold.expires_at > now,
        "words": plans.hold_words(hold) if hold is not None else "",
        "policy": policy_of(owner.fleet_id),
        "last_tick": fleets.newest_tick(owner.fleet),
    }
    return render(request, "rebalance.html", context)
