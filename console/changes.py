"""Pages that change something: say what it will do, ask, call one command, say what happened.

GET shows the blast radius, POST does it. Every form carries the policy version its reader saw;
when that is no longer the newest, the answer is the conflict page and nothing is written.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache

from console import effects, plans, policies
from console.forms import SCOPE_HELP, HoldForm, ModeForm, ReasonForm, TokenForm
from console.roles import administrators_only, operators_only, role_of
from routing import commands, fleets
from routing.models import Action, Fleet, Hold, Policy
from telemetry.models import ApiToken

VIA = "ui"
CONFLICT = 409
UNPROCESSABLE = 422


@operators_only
@never_cache
def mode(request: HttpRequest, fleet: str) -> HttpResponse:
    """Active, advisory, paused: the kill switch. Confirming names what stops and what goes on."""
    policy = policy_of(fleet)
    if request.method == "POST":
        form = ModeForm(request.POST)
        if not form.is_valid():
            return _mode_page(request, policy, request.POST.get("mode", ""), form.errors)
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
        messages.success(request, f"{fleet} is {asked['mode']} now. {effects.after(asked['mode'])}")
        return redirect("fleet", fleet)
    return _mode_page(request, policy, request.GET.get("to", ""))


def _mode_page(
    request: HttpRequest, policy: Policy, wanted: str, errors: Any = None
) -> HttpResponse:
    if wanted not in commands.MODES:
        raise Http404("no such mode")
    now = timezone.now()
    context = {
        "fleet": policy.fleet,
        "policy": policy,
        "wanted": wanted,
        "title": effects.MODE_TITLES[wanted],
        "effects": effects.of_mode(policy, wanted, now),
        "errors": errors,
    }
    return render(request, "mode.html", context, status=UNPROCESSABLE if errors else 200)


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
        if request.method == "POST":
            return _place_hold(request, policy, form)
        if _would_be_refused(policy, form):
            # What another hold forbids is no wrong input: the page re-reads itself when one comes.
            status = 200 if "cluster" in form.errors else UNPROCESSABLE
            return _hold_page(request, policy, form, status=status)
        expected = effects.of_hold(policy, form.cleaned_data, timezone.now())
        return _hold_page(request, policy, form, expected)
    status = UNPROCESSABLE if request.method == "POST" else 200
    return _hold_page(request, policy, form, status=status)


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
            expires_at=now + timedelta(seconds=asked["span_s"]),
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
            wanted=f"hold {plans.cluster_words(asked)}",
        )
    user = request.user.get_username()
    try:
        placed = commands.place_hold(
            fleet=policy.fleet_id,
            cluster=asked["cluster"],
            mode=asked["mode"],
            threshold_tokens=asked["threshold_tokens"],
            owner=user,
            expires_at=now + timedelta(seconds=asked["span_s"]),
            actor=user,
            via=VIA,
            reason=asked["reason"],
            now=now,
        )
    except commands.Refused as refused:
        form.add_error(refused.field if refused.field in form.fields else None, refused.message)
        return _hold_page(request, policy, form, status=UNPROCESSABLE)
    where = placed.cluster or "every PD cluster"
    messages.success(
        request,
        f"Held {plans.cluster_words(asked)} in {where} until "
        f"{placed.expires_at:%Y-%m-%d %H:%M:%S} UTC. The next tick adopts it.",
    )
    return redirect("fleet", policy.fleet_id)


def _hold_page(
    request: HttpRequest,
    policy: Policy,
    form: HoldForm,
    expected: Any = None,
    status: int = 200,
) -> HttpResponse:
    context = {"fleet": policy.fleet, "policy": policy, "form": form, "effects": expected}
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
        "words": plans.cluster_words(
            {"mode": found.mode, "threshold_tokens": found.threshold_tokens}
        ),
        "effects": effects.of_release(found, now),
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
        messages.success(request, f"Released. {context['effects'].summary}")
        return redirect("fleet", fleet)
    return render(request, "release.html", context)


@operators_only
@never_cache
def tokens(request: HttpRequest) -> HttpResponse:
    """Machine keys: operators see them, administrators issue them."""
    names = list(Fleet.objects.order_by("name").values_list("name", flat=True))
    form, secret, status = TokenForm(fleets=names, initial={"expires_days": 90}), None, 200
    if request.method == "POST":
        if not role_of(request.user).can_administer:
            raise PermissionDenied("Only administrators issue and revoke tokens.")
        form = TokenForm(request.POST, fleets=names)
        secret = _issue(request, form) if form.is_valid() else None
        status = 200 if secret else UNPROCESSABLE
    now = timezone.now()
    context = {
        "rows": [
            {"token": token, "mark": policies.token_mark(token, now)}
            for token in ApiToken.objects.order_by("-created_at")
        ],
        "form": form,
        "secret": secret,
        "issued": form.cleaned_data["name"] if secret else "",
        "scope_help": SCOPE_HELP,
    }
    return render(request, "tokens.html", context, status=status)


def _issue(request: HttpRequest, form: TokenForm) -> str | None:
    asked, now = form.cleaned_data, timezone.now()
    days = asked["expires_days"]
    try:
        _, secret = commands.issue_token(
            name=asked["name"],
            scopes=asked["scopes"],
            fleet=asked["fleet"],
            expires_at=now + timedelta(days=days) if days else None,
            actor=request.user.get_username(),
            via=VIA,
            reason="",
            now=now,
        )
    except commands.Refused as refused:
        form.add_error(refused.field if refused.field in form.fields else None, refused.message)
        return None
    return secret


@administrators_only
@never_cache
def revoke_token(request: HttpRequest, token_id: int) -> HttpResponse:
    """End a token at once; says what stops working."""
    token = get_object_or_404(ApiToken, pk=token_id)
    context: dict[str, Any] = {"token": token, "scope_help": SCOPE_HELP}
    if request.method == "POST":
        form = ReasonForm(request.POST)
        if not form.is_valid():
            context["form"] = form
            return render(request, "revoke.html", context, status=UNPROCESSABLE)
        try:
            commands.revoke_token(
                token_id=token_id,
                actor=request.user.get_username(),
                via=VIA,
                reason=form.cleaned_data["reason"],
                now=timezone.now(),
            )
        except commands.Refused as refused:
            context["error"] = refused.message
            return render(request, "revoke.html", context, status=CONFLICT)
        messages.success(request, f"Revoked {token.name}. Whoever holds it is refused from now on.")
        return redirect("tokens")
    return render(request, "revoke.html", context)


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
