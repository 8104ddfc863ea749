"""Pages that take something back: an earlier plan, the wait for a gate, a rebalance, a breaker.

GET says what it will do, POST does it; both are one page, `confirm.html`.
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

from console import approval_words, cancel_effects, decisions, effects, figures, plans
from console.changes import UNPROCESSABLE, VIA, conflict, policy_of
from console.forms import NeededReasonForm, RollBackForm
from console.roles import operators_only
from console.verdicts import delivery_words
from routing import commands, delivery, fleets, link_breakers, role_commands, router_commands
from routing.approvals import gate
from routing.core.types import LinkMemory
from routing.models import Decision, Fleet, Policy, Rebalance, RouterState
from routing.windows import in_force


@operators_only
@never_cache
def roll_back(request: HttpRequest, fleet: str, decision_id: int) -> HttpResponse:
    """Hold what an earlier plan asked of every PD cluster."""
    policy = policy_of(fleet)
    decision = get_object_or_404(Decision, pk=decision_id, fleet_id=fleet)
    now = timezone.now()
    form = RollBackForm(request.POST or None, initial=request.GET.dict())
    refused = _roll_back_refusal(policy, decision, now)
    if request.method == "POST" and form.is_valid():
        if request.POST.get("version") != str(policy.version):
            return conflict(
                request,
                fleet,
                what="mode",
                seen=request.POST.get("seen", ""),
                seen_version=request.POST.get("version", ""),
                wanted=_("roll back to v%(version)s") % {"version": decision.version},
            )
        asked, user = form.cleaned_data, request.user.get_username()
        expires_at = form.expires_at(now)
        try:
            router_commands.roll_back(
                decision_id=decision.pk,
                owner=user,
                expires_at=expires_at,
                actor=user,
                via=VIA,
                reason=asked["reason"],
                now=now,
            )
        except commands.Refused as exc:
            refused = _("Not possible now: %(message)s.") % {"message": exc.message}
        else:
            messages.success(
                request,
                _(
                    "Rolled back to v%(version)s: held until %(expires_at)s. The "
                    "next tick adopts it."
                )
                % {"version": decision.version, "expires_at": figures.stamp(expires_at)},
            )
            return redirect("fleet-overview", fleet)
    running = fleets.newest_adopted(policy.fleet)
    is_running = running is not None and running.pk == decision.pk
    title = (_("Hold %(plan)s") if is_running else _("Roll back to %(plan)s")) % {
        "plan": _plan_tag(decision)
    }
    heading = title
    if decision.version is not None and not is_running:
        heading = decisions.set_label(running.plan["clusters"] if running else {}, decision)
    context = {
        "fleet": policy.fleet,
        "policy": policy,
        "title": title,
        "heading": heading,
        "note": _plan_words(decision),
        "effects": approval_words.asked_first(
            effects.of_roll_back(policy, decision, now),
            gate.needed(fleet, *_held_again(decision, form, now)),
        ),
        "form": form,
        "refused": refused,
        "submit": _("Hold it") if is_running else _("Roll back"),
        "keep": _("Leave the plan as it is"),
        "back": reverse("decision", args=[fleet, decision.pk]),
        "way": _decision_way(decision),
    }
    return _page(request, context)


def _held_again(decision: Decision, form: RollBackForm, now: datetime) -> list[gate.Would]:
    """The holds of a roll-back, for as long as the form says by now; an hour before it does."""
    until = now + timedelta(hours=1)
    if form.is_bound and form.is_valid():
        until = form.expires_at(now)
    return [
        gate.Would(
            "hold.place",
            None,
            {"cluster": cluster, "mode": plan["mode"], "expires_at_s": until.timestamp()},
            commands.lasts(now, until),
        )
        for cluster, plan in decision.plan["clusters"].items()
    ]


def _roll_back_refusal(policy: Policy, decision: Decision, now: datetime) -> str:
    """Why rolling back could only fail now; empty when it could be done."""
    if decision.version is None:
        return _("This plan was advice and was never pushed: no gate ran it.")
    for cluster, plan in decision.plan["clusters"].items():
        try:
            commands.check_hold(
                policy,
                cluster=cluster,
                mode=plan["mode"],
                threshold_tokens=plan["threshold_tokens"],
                expires_at=now + commands.MAX_HOLD,
                now=now,
            )
        except commands.Refused as refused:
            return _("Not possible now: %(message)s.") % {"message": refused.message}
    return ""


def _plan_tag(decision: Decision) -> str:
    return _("advice") if decision.version is None else f"v{decision.version}"


def _plan_words(decision: Decision) -> str:
    clusters = decision.plan["clusters"].items()
    words = ", ".join(
        _("%(plan)s in %(cluster)s") % {"plan": plans.cluster_words(plan), "cluster": cluster}
        for cluster, plan in clusters
    )
    return _("%(words)s; in force from %(created_at)s UTC: %(message)s") % {
        "words": words,
        "created_at": f"{decision.created_at:%Y-%m-%d %H:%M:%S}",
        "message": decision.message,
    }


@operators_only
@never_cache
def cancel_delivery(request: HttpRequest, fleet: str, decision_id: int) -> HttpResponse:
    """Stop waiting for the gate `?router=` to run a plan."""
    decision = get_object_or_404(Decision, pk=decision_id, fleet_id=fleet, version__isnull=False)
    router = request.GET.get("router", "")
    sent = get_object_or_404(decision.deliveries, router=router)
    name = router.removeprefix(f"{fleet}/")
    form = NeededReasonForm(request.POST or None, initial=request.GET.dict())
    refused = ""
    if sent.state not in delivery.CANCELLABLE:
        refused = _("Nobody waits for %(name)s: v%(version)s is %(state)s there.") % {
            "name": name,
            "version": decision.version,
            "state": delivery_words(sent.state),
        }
    if request.method == "POST" and form.is_valid():
        try:
            delivery.cancel(
                decision,
                router=router,
                actor=request.user.get_username(),
                via=VIA,
                reason=form.cleaned_data["reason"],
                now=timezone.now(),
            )
        except commands.Refused as exc:
            refused = f"{name} {exc.message}."
        else:
            messages.success(
                request,
                _("v%(version)s no longer waits for %(name)s.")
                % {"version": decision.version, "name": name},
            )
            return redirect("decision", fleet, decision.pk)
    context = {
        "fleet": decision.fleet,
        "title": _("Stop waiting for %(name)s") % {"name": name},
        "heading": _("Stop waiting for %(name)s to run v%(version)s")
        % {"name": name, "version": decision.version},
        "note": _("Sent %(sent_at)s UTC, %(state)s since.")
        % {"sent_at": f"{sent.sent_at:%Y-%m-%d %H:%M:%S}", "state": delivery_words(sent.state)},
        "effects": cancel_effects.of_delivery_cancel(
            decision, RouterState.objects.filter(router=router).first(), name
        ),
        "form": form,
        "refused": refused,
        "submit": _("Stop waiting"),
        "keep": _("Keep waiting"),
        "back": reverse("decision", args=[fleet, decision.pk]),
        "way": _decision_way(decision),
    }
    return _page(request, context)


@operators_only
@never_cache
def cancel_rebalance(request: HttpRequest, fleet: str, rebalance_id: int) -> HttpResponse:
    """Give up a move of roles; the instance under way gets its old role back."""
    row = get_object_or_404(Rebalance, pk=rebalance_id, fleet_id=fleet)
    form = NeededReasonForm(request.POST or None, initial=request.GET.dict())
    refused = ""
    if row.state != "open":
        state = _("being given up") if row.state == "aborting" else row.state
        refused = _("There is nothing to cancel: this move of roles is %(state)s already.") % {
            "state": state
        }
    if request.method == "POST" and form.is_valid():
        try:
            role_commands.cancel_rebalance(
                fleet=fleet,
                rebalance_id=row.pk,
                actor=request.user.get_username(),
                via=VIA,
                reason=form.cleaned_data["reason"],
                now=timezone.now(),
            )
        except commands.Refused as exc:
            refused = f"{exc.message[0].upper()}{exc.message[1:]}."
        else:
            messages.success(
                request,
                _("The move of roles in %(cluster)s is given up.") % {"cluster": row.cluster},
            )
            return redirect("fleet", fleet)
    before = f"{row.from_n_prefill}/{row.from_n_decode}"
    wanted = f"{row.to_n_prefill}/{row.to_n_decode}"
    context = {
        "fleet": row.fleet,
        "title": _("Cancel the move of roles"),
        "heading": _("Cancel %(before)s → %(wanted)s in %(cluster)s")
        % {"before": before, "wanted": wanted, "cluster": row.cluster},
        "note": _("Begun %(at)s by %(who)s.")
        % {
            "at": figures.stamp(row.created_at),
            "who": row.requested_by,
        }
        + " "
        + row.waiting_for.replace(f"{fleet}/", ""),
        "effects": cancel_effects.of_rebalance_cancel(row),
        "form": form,
        "refused": refused,
        "submit": _("Cancel the move"),
        "keep": _("Let it go on"),
        "back": reverse("fleet", args=[fleet]),
        "way": _("Fleet"),
    }
    return _page(request, context)


@operators_only
@never_cache
def reset_breaker(request: HttpRequest, fleet: str) -> HttpResponse:
    """Close the breaker of the link `?link=`, which failing transfers opened."""
    found = get_object_or_404(Fleet, pk=fleet)
    link = request.GET.get("link", "")
    if link not in [known.id for known in fleets.scenario_of(found).links]:
        raise Http404(_("%(fleet)s has no link %(link)s") % {"fleet": fleet, "link": link})
    name = link.replace("->", " → ")
    memory = fleets.memory_after(fleets.newest_tick(found)).links.get(link)
    form = NeededReasonForm(request.POST or None, initial=request.GET.dict())
    refused = ""
    if memory is None or memory.breaker == "closed":
        refused = _("There is nothing to reset: the breaker of %(name)s is closed.") % {
            "name": name
        }
    elif until := in_force.worked_on_until(fleet, link, timezone.now()):
        refused = _("%(name)s is in maintenance until %(until)s: end that first.") % {
            "name": name,
            "until": figures.stamp(until),
        }
    elif request.method == "POST" and form.is_valid():
        link_breakers.reset(
            fleet=found,
            link=link,
            actor=request.user.get_username(),
            via=VIA,
            reason=form.cleaned_data["reason"],
            now=timezone.now(),
        )
        messages.success(
            request, _("The next tick closes the breaker of %(name)s.") % {"name": name}
        )
        return redirect("fleet", fleet)
    context = {
        "fleet": found,
        "title": _("Reset breaker"),
        "heading": _("Reset the breaker of %(name)s") % {"name": name},
        "note": "" if memory is None else _breaker_words(memory),
        "effects": approval_words.asked_first(
            cancel_effects.of_breaker_reset(name, memory),
            gate.needed(fleet, gate.Would("breaker.reset", None, None)),
        ),
        "form": form,
        "refused": refused,
        "submit": _("Reset breaker"),
        "keep": _("Leave it to the probe"),
        "back": reverse("fleet", args=[fleet]),
        "way": _("Fleet"),
    }
    return _page(request, context)


def _breaker_words(memory: LinkMemory) -> str:
    if memory.breaker == "closed":
        return ""
    since = figures.stamp(memory.breaker_at_s)
    if memory.breaker == "half_open":
        return _(
            "Half open since %(since)s: a few requests probe whether transfers succeed again."
        ) % {"since": since}
    if memory.n_openings > 1:
        return _("Open since %(since)s, %(n)s times in a row: too many transfers failed.") % {
            "since": since,
            "n": memory.n_openings,
        }
    return _("Open since %(since)s: too many transfers failed.") % {"since": since}


def _decision_way(decision: Decision) -> str:
    """The page of a decision, by name, for what leads back to it."""
    return _("Decision %(plan)s") % {"plan": _plan_tag(decision)}


def _page(request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
    """A POST that comes here changed nothing: the form has errors, or it was refused."""
    status = UNPROCESSABLE if request.method == "POST" else 200
    return render(request, "confirm.html", context, status=status)
