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
from django.views.decorators.cache import never_cache

from console import effects, figures, plans
from console.changes import UNPROCESSABLE, VIA, conflict, policy_of
from console.forms import NeededReasonForm, RollBackForm
from console.roles import operators_only
from routing import commands, delivery, fleets, link_breakers
from routing.core.types import LinkMemory
from routing.models import Decision, Fleet, Policy, Rebalance, RouterState


@operators_only
@never_cache
def roll_back(request: HttpRequest, fleet: str, decision_id: int) -> HttpResponse:
    """Hold what an earlier plan asked of every PD cluster."""
    policy = policy_of(fleet)
    decision = get_object_or_404(Decision, pk=decision_id, fleet_id=fleet)
    now = timezone.now()
    form = RollBackForm(request.POST or None)
    refused = _roll_back_refusal(policy, decision, now)
    if request.method == "POST" and form.is_valid():
        if request.POST.get("version") != str(policy.version):
            return conflict(
                request,
                fleet,
                what="mode",
                seen=request.POST.get("seen", ""),
                seen_version=request.POST.get("version", ""),
                wanted=f"roll back to v{decision.version}",
            )
        asked, user = form.cleaned_data, request.user.get_username()
        expires_at = now + timedelta(seconds=asked["span_s"])
        try:
            commands.roll_back(
                decision_id=decision.pk,
                owner=user,
                expires_at=expires_at,
                actor=user,
                via=VIA,
                reason=asked["reason"],
                now=now,
            )
        except commands.Refused as exc:
            refused = f"Not possible now: {exc.message}."
        else:
            messages.success(
                request,
                f"Rolled back to v{decision.version}: held until {expires_at:%Y-%m-%d %H:%M:%S} "
                "UTC. The next tick adopts it.",
            )
            return redirect("fleet-overview", fleet)
    running = fleets.newest_adopted(policy.fleet)
    does = "Hold" if running is not None and running.pk == decision.pk else "Roll back to"
    title = f"{does} {_plan_tag(decision)}"
    context = {
        "fleet": policy.fleet,
        "policy": policy,
        "title": title,
        "heading": title,
        "note": _plan_words(decision),
        "effects": effects.of_roll_back(policy, decision, now),
        "form": form,
        "refused": refused,
        "submit": "Hold it" if does == "Hold" else "Roll back",
        "keep": "Leave the plan as it is",
        "back": reverse("decision", args=[fleet, decision.pk]),
    }
    return _page(request, context)


def _roll_back_refusal(policy: Policy, decision: Decision, now: datetime) -> str:
    """Why rolling back could only fail now; empty when it could be done."""
    if decision.version is None:
        return "This plan was advice and was never pushed: no gate ran it."
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
            return f"Not possible now: {refused.message}."
    return ""


def _plan_tag(decision: Decision) -> str:
    return "advice" if decision.version is None else f"v{decision.version}"


def _plan_words(decision: Decision) -> str:
    clusters = decision.plan["clusters"].items()
    words = ", ".join(f"{plans.cluster_words(plan)} in {cluster}" for cluster, plan in clusters)
    return f"{words}; in force from {decision.created_at:%Y-%m-%d %H:%M:%S} UTC: {decision.message}"


@operators_only
@never_cache
def cancel_delivery(request: HttpRequest, fleet: str, decision_id: int) -> HttpResponse:
    """Stop waiting for the gate `?router=` to run a plan."""
    decision = get_object_or_404(Decision, pk=decision_id, fleet_id=fleet, version__isnull=False)
    router = request.GET.get("router", "")
    sent = get_object_or_404(decision.deliveries, router=router)
    name = router.removeprefix(f"{fleet}/")
    form = NeededReasonForm(request.POST or None)
    refused = ""
    if sent.state not in delivery.OPEN:
        refused = f"Nobody waits for {name}: v{decision.version} is {sent.state} there."
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
            messages.success(request, f"v{decision.version} no longer waits for {name}.")
            return redirect("decision", fleet, decision.pk)
    context = {
        "fleet": decision.fleet,
        "title": f"Stop waiting for {name}",
        "heading": f"Stop waiting for {name} to run v{decision.version}",
        "note": f"Sent {sent.sent_at:%Y-%m-%d %H:%M:%S} UTC, {sent.state} since.",
        "effects": effects.of_delivery_cancel(
            decision, RouterState.objects.filter(router=router).first(), name
        ),
        "form": form,
        "refused": refused,
        "submit": "Stop waiting",
        "keep": "Keep waiting",
        "back": reverse("decision", args=[fleet, decision.pk]),
    }
    return _page(request, context)


@operators_only
@never_cache
def cancel_rebalance(request: HttpRequest, fleet: str, rebalance_id: int) -> HttpResponse:
    """Give up a move of roles; the instance under way gets its old role back."""
    row = get_object_or_404(Rebalance, pk=rebalance_id, fleet_id=fleet)
    form = NeededReasonForm(request.POST or None)
    refused = ""
    if row.state != "open":
        state = "being given up" if row.state == "aborting" else row.state
        refused = f"There is nothing to cancel: this move of roles is {state} already."
    if request.method == "POST" and form.is_valid():
        try:
            commands.cancel_rebalance(
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
            messages.success(request, f"The move of roles in {row.cluster} is given up.")
            return redirect("fleet", fleet)
    before = f"{row.from_n_prefill}/{row.from_n_decode}"
    wanted = f"{row.to_n_prefill}/{row.to_n_decode}"
    context = {
        "fleet": row.fleet,
        "title": "Cancel the move of roles",
        "heading": f"Cancel {before} → {wanted} in {row.cluster}",
        "note": f"Begun {row.created_at:%Y-%m-%d %H:%M:%S} UTC by {row.requested_by}. "
        + row.waiting_for.replace(f"{fleet}/", ""),
        "effects": effects.of_rebalance_cancel(row),
        "form": form,
        "refused": refused,
        "submit": "Cancel the move",
        "keep": "Let it go on",
        "back": reverse("fleet", args=[fleet]),
    }
    return _page(request, context)


@operators_only
@never_cache
def reset_breaker(request: HttpRequest, fleet: str) -> HttpResponse:
    """Close the breaker of the link `?link=`, which failing transfers opened."""
    found = get_object_or_404(Fleet, pk=fleet)
    link = request.GET.get("link", "")
    if link not in [known.id for known in fleets.scenario_of(found).links]:
        raise Http404(f"{fleet} has no link {link}")
    name = link.replace("->", " → ")
    memory = fleets.memory_after(fleets.newest_tick(found)).links.get(link)
    form = NeededReasonForm(request.POST or None)
    refused = ""
    if memory is None or memory.breaker == "closed":
        refused = f"There is nothing to reset: the breaker of {name} is closed."
    elif request.method == "POST" and form.is_valid():
        link_breakers.reset(
            fleet=found,
            link=link,
            actor=request.user.get_username(),
            via=VIA,
            reason=form.cleaned_data["reason"],
            now=timezone.now(),
        )
        messages.success(request, f"The next tick closes the breaker of {name}.")
        return redirect("fleet", fleet)
    context = {
        "fleet": found,
        "title": "Reset breaker",
        "heading": f"Reset the breaker of {name}",
        "note": "" if memory is None else _breaker_words(memory),
        "effects": effects.of_breaker_reset(name, memory),
        "form": form,
        "refused": refused,
        "submit": "Reset breaker",
        "keep": "Leave it to the probe",
        "back": reverse("fleet", args=[fleet]),
    }
    return _page(request, context)


def _breaker_words(memory: LinkMemory) -> str:
    if memory.breaker == "closed":
        return ""
    since = figures.stamp(memory.breaker_at_s)
    if memory.breaker == "half_open":
        return f"Half open since {since}: a few requests probe whether transfers succeed again."
    again = f", {memory.n_openings} times in a row" if memory.n_openings > 1 else ""
    return f"Open since {since}{again}: too many transfers failed."


def _page(request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
    """A POST that comes here changed nothing: the form has errors, or it was refused."""
    status = UNPROCESSABLE if request.method == "POST" else 200
    return render(request, "confirm.html", context, status=status)
