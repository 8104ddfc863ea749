"""Pages that change something: say what it will do, ask, call one command, say what happened.

GET shows the blast radius, POST does it. Every form carries the policy version its reader saw;
when that is no longer the newest, the answer is the conflict page and nothing is written.
"""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from console import approval_words, effects, figures, plans
from console.forms import HoldForm, ModeForm, ReasonForm
from console.roles import operators_only
from routing import commands, fleets
from routing.approvals import gate
from routing.models import Action, Hold, Policy

VIA = "ui"
CONFLICT = 409
UNPROCESSABLE = 422


@operators_only
@never_cache
def mode(request: HttpRequest, fleet: str) -> HttpResponse:
    """Active, advisory, paused: the kill switch. Confirming names what stops and what goes on."""
    policy = policy_of(fleet)
    if request.method == "POST":
        form = ModeForm(
            request.POST, must_type=_must_type(policy, effects.n_gates(policy, timezone.now()))
        )
        if not form.is_valid():
            return _mode_page(request, policy, request.POST.get("mode", ""), form)
        asked = form.cleaned_data
        try:
            commands.set_policy(
                fleet=fleet,
                changes={"mode": asked["mode"]},
                if_version=asked["version"],
                actor=request.user.get_username(),
                via=VIA,
                reason=asked["reason"],
                now=timezone.now(),
            )
        except commands.Stale:
            return conflict(
                request,
                fleet,
                what="mode",
                seen=asked["seen"],
                seen_version=asked["version"],
                wanted=asked["mode"],
            )
        done = _("%(fleet)s is %(mode)s now. %(mode2)s") % {
            "fleet": fleet,
            "mode": asked["mode"],
            "mode2": effects.after(asked["mode"]),
        }
        back = f"{reverse('mode', args=[fleet])}?to={policy.mode}"
        messages.success(request, undone_by(done, back, _("Undo: %s again") % policy.mode))
        return redirect("fleet", fleet)
    return _mode_page(request, policy, request.GET.get("to", ""))


def undone_by(done: str, address: str, label: str) -> Any:
    """What was done, with the link to the page that undoes it."""
    return format_html('{} <a href="{}">{}</a>', done, address, label)


def _must_type(policy: Policy, n_gates: int) -> str:
    return policy.fleet_id if effects.is_large(policy, n_gates) else ""


def _mode_page(
    request: HttpRequest, policy: Policy, wanted: str, form: ModeForm | None = None
) -> HttpResponse:
    if wanted not in commands.MODES:
        raise Http404(_("no such mode"))
    now = timezone.now()
    n_gates = effects.n_gates(policy, now)
    context = {
        "fleet": policy.fleet,
        "policy": policy,
        "wanted": wanted,
        "title": effects.MODE_TITLES[wanted],
        "effects": approval_words.asked_first(
            effects.of_mode(policy, wanted, n_gates, now),
            gate.needed(policy.fleet_id, _switched(policy, wanted)),
        ),
        "must_type": _must_type(policy, n_gates),
        "form": form,
        "reason": request.POST.get("reason") or request.GET.get("reason", ""),
    }
    return render(request, "mode.html", context, status=UNPROCESSABLE if form else 200)


def _switched(policy: Policy, wanted: str) -> gate.Would:
    before = {"mode": policy.mode, "knobs": policy.knobs}
    return gate.Would("policy.change", before, before | {"mode": wanted})


@operators_only
@never_cache
def hold(request: HttpRequest, fleet: str) -> HttpResponse:
    """Pin a plan. The filled form is a GET that shows the blast radius; confirming is the POST."""
    policy = policy_of(fleet)
    scenario = fleets.scenario_of(policy.fleet)
    clusters = [cluster.name for cluster in scenario.clusters if cluster.kind == "pd"]
    sent = request.POST if request.method == "POST" else request.GET
    filled = "mode" in sent and "reason" in sent
    initial = _hold_initial(policy, sent)
    form = HoldForm(sent if filled else None, initial=initial, clusters=clusters)
    if filled and form.is_valid():
        is_moved_on = _is_moved_on(request, policy)
        if request.method == "POST" and not is_moved_on:
            return _place_hold(request, policy, form)
        if _would_be_refused(policy, form):
            # What another hold forbids is no wrong input: the page re-reads itself when one comes.
            status = 200 if "cluster" in form.errors else UNPROCESSABLE
            return _hold_page(request, policy, form, status=status)
        if is_moved_on:
            form.add_error(
                None,
                _("The loop adopted another plan since you looked. Look again, then hold it."),
            )
        now = timezone.now()
        until = form.expires_at(now)
        would = gate.Would(
            "hold.place",
            None,
            {**form.cleaned_data, "expires_at_s": until.timestamp()},
            commands.lasts(now, until),
        )
        expected = approval_words.asked_first(
            effects.of_hold(policy, form.cleaned_data, until, now),
            gate.needed(policy.fleet_id, would),
        )
        return _hold_page(request, policy, form, expected, CONFLICT if is_moved_on else 200)
    status = UNPROCESSABLE if request.method == "POST" else 200
    return _hold_page(request, policy, form, status=status)


def _is_moved_on(request: HttpRequest, policy: Policy) -> bool:
    """Whether another plan runs than when it was shown what the hold would do: t that was kept
    then would be set back now."""
    seen = request.POST.get("runs")
    return seen is not None and seen != _runs(policy)


def _runs(policy: Policy) -> str:
    """The plan in force, in words."""
    running = fleets.newest_adopted(policy.fleet)
    return f"{running.epoch}.{running.version}" if running else ""


def _hold_initial(policy: Policy, sent: Any) -> dict[str, Any]:
    """What the link asked for, else the plan in force: pinning what runs is the common hold."""
    running = fleets.newest_adopted(policy.fleet)
    plan = next(iter(running.plan["clusters"].values())) if running else {}
    initial = {"span_s": 3600, **{k: plan.get(k) for k in ("mode", "threshold_tokens")}}
    return initial | {key: value for key, value in sent.items() if value}


def _would_be_refused(policy: Policy, form: HoldForm) -> bool:
    """Whether confirming could only fail; if so, the form says why before anything is offered."""
    asked, now = form.cleaned_data, timezone.now()
    try:
        commands.check_hold(
            policy,
            cluster=asked["cluster"],
            mode=asked["mode"],
            threshold_tokens=asked["threshold_tokens"],
            expires_at=form.expires_at(now),
            now=now,
        )
    except commands.Refused as refused:
        form.add_error(refused.field if refused.field in form.fields else None, refused.message)
        return True
    return False


def _place_hold(request: HttpRequest, policy: Policy, form: HoldForm) -> HttpResponse:
    asked, now = form.cleaned_data, timezone.now()
    if request.POST.get("version") != str(policy.version):
        return conflict(
            request,
            policy.fleet_id,
            what="mode",
            seen=request.POST.get("seen", ""),
            seen_version=request.POST.get("version", ""),
            wanted=_("hold %(asked)s") % {"asked": plans.cluster_words(asked)},
        )
    user = request.user.get_username()
    try:
        placed = commands.place_hold(
            fleet=policy.fleet_id,
            cluster=asked["cluster"],
            mode=asked["mode"],
            threshold_tokens=asked["threshold_tokens"],
            owner=user,
            expires_at=form.expires_at(now),
            actor=user,
            via=VIA,
            reason=asked["reason"],
            now=now,
        )
    except commands.Refused as refused:
        form.add_error(refused.field if refused.field in form.fields else None, refused.message)
        return _hold_page(request, policy, form, status=UNPROCESSABLE)
    where = placed.cluster or _("every PD cluster")
    done = _("Held %(asked)s in %(where)s until %(expires_at)s. The next tick adopts it.") % {
        "asked": plans.cluster_words(asked),
        "where": where,
        "expires_at": figures.stamp(placed.expires_at),
    }
    back = reverse("release", args=[policy.fleet_id, placed.pk])
    messages.success(request, undone_by(done, back, _("Undo: release it")))
    return redirect("fleet", policy.fleet_id)


def _hold_page(
    request: HttpRequest,
    policy: Policy,
    form: HoldForm,
    expected: Any = None,
    status: int = 200,
) -> HttpResponse:
    context = {
        "fleet": policy.fleet,
        "policy": policy,
        "form": form,
        "effects": expected,
        "runs": _runs(policy) if expected else "",
    }
    return render(request, "hold.html", context, status=status)


@operators_only
@never_cache
def release(request: HttpRequest, fleet: str, hold_id: int) -> HttpResponse:
    """End a hold before its time; the loop is automatic again from the next tick."""
    found = get_object_or_404(Hold, pk=hold_id, fleet_id=fleet)
    now = timezone.now()
    context = {
        "fleet": found.fleet,
        "hold": found,
        "ended": found.released_at is not None or found.expires_at <= now,
        "words": plans.hold_words(found),
        "effects": effects.of_release(found, now),
        "reason": request.POST.get("reason") or request.GET.get("reason", ""),
    }
    if request.method == "POST":
        form = ReasonForm(request.POST)
        if not form.is_valid():
            context["form"] = form
            return render(request, "release.html", context, status=UNPROCESSABLE)
        try:
            commands.release_hold(
                hold_id=hold_id,
                actor=request.user.get_username(),
                via=VIA,
                reason=form.cleaned_data["reason"],
                now=now,
            )
        except commands.Refused as refused:
            context |= {"ended": True, "error": refused.message}
            return render(request, "release.html", context, status=CONFLICT)
        messages.success(
            request, _("Released. %(summary)s") % {"summary": context["effects"].summary}
        )
        return redirect("fleet", fleet)
    return render(request, "release.html", context)


def policy_of(fleet: str) -> Policy:
    """The fleet's policy; 404 for a fleet that does not exist."""
    return get_object_or_404(Policy.objects.select_related("fleet"), fleet_id=fleet)


def conflict(
    request: HttpRequest, fleet: str, *, what: str, seen: str, seen_version: Any, wanted: str
) -> HttpResponse:
    """Somebody was faster: what you saw, what it is now and by whom, what you asked for."""
    policy = policy_of(fleet)
    context = {
        "fleet": policy.fleet,
        "policy": policy,
        "what": what,
        "seen": seen,
        "seen_version": seen_version,
        "wanted": wanted,
        "last_change": Action.objects.filter(fleet=fleet, verb="policy.change").last(),
        "again": request.get_full_path(),
    }
    return render(request, "conflict.html", context, status=CONFLICT)
