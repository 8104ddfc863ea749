"""Pages of tokens: the keys of agents, gates and automation."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache

from console import figures, policies
from console.changes import CONFLICT, UNPROCESSABLE, VIA
from console.forms import SCOPE_HELP, ReasonForm, TokenForm
from console.roles import administrators_across, operators_across
from routing import rights, token_commands
from routing.commands import Refused
from routing.models import Fleet
from telemetry.models import ApiToken

PER_PAGE = 50
GRACES = (
    (0, gettext_lazy("at once")),
    (3600, gettext_lazy("in 1 hour")),
    (86_400, gettext_lazy("in 24 hours")),
    (7 * 86_400, gettext_lazy("in 7 days")),
)


class RotateForm(ReasonForm):
    grace_s = forms.TypedChoiceField(choices=GRACES, coerce=int, initial=86_400)


@operators_across
@never_cache
def page(request: HttpRequest) -> HttpResponse:
    """Machine keys: operators see those of their fleets, administrators issue them."""
    has = rights.of(request.user)
    form, secret, status = _form(request, None), None, 200
    if request.method == "POST":
        if not has.anywhere("admin"):
            raise PermissionDenied(_("Only administrators issue and revoke tokens."))
        form = _form(request, request.POST)
        secret = _issue(request, form) if form.is_valid() else None
        status = 200 if secret else UNPROCESSABLE
    now = timezone.now()
    rows = has.within("operate", ApiToken.objects.order_by("-created_at", "-pk"))
    rows = rows.select_related("replaces").prefetch_related("replaced_by")
    found = Paginator(rows, PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "page": found,
        "rows": [
            {
                "token": token,
                "mark": policies.token_mark(token, now),
                "can_change": has.may("admin", token.fleet),
                "is_replaced": any(each.revoked_at is None for each in token.replaced_by.all()),
            }
            for token in found
        ],
        "form": form,
        "secret": secret,
        "issued": form.cleaned_data["name"] if secret else "",
        "can_issue": has.anywhere("admin"),
        "scope_help": SCOPE_HELP,
    }
    return render(request, "tokens.html", context, status=status)


def _form(request: HttpRequest, sent: Any) -> TokenForm:
    has = rights.of(request.user)
    names = has.within("admin", Fleet.objects.order_by("name"), by="name")
    return TokenForm(
        sent,
        fleets=list(names.values_list("name", flat=True)),
        with_site=has.may("admin"),
        initial={"expires_days": 90},
    )


def _issue(request: HttpRequest, form: TokenForm) -> str | None:
    asked, now = form.cleaned_data, timezone.now()
    days = asked["expires_days"]
    expires_at = now + timedelta(days=days) if days else None
    try:
        token_commands.check_issuer(request.user, fleet=asked["fleet"], expires_at=expires_at)
        _token, secret = token_commands.issue_token(
            name=asked["name"],
            scopes=asked["scopes"],
            fleet=asked["fleet"],
            expires_at=expires_at,
            actor=request.user.get_username(),
            via=VIA,
            reason="",
            now=now,
        )
    except Refused as refused:
        form.add_error(refused.field if refused.field in form.fields else None, refused.message)
        return None
    return secret


@administrators_across
@never_cache
def rotate(request: HttpRequest, token_id: int) -> HttpResponse:
    """Another secret in a token's place; the old one is good for a while more."""
    token = rights.opened(request.user, "admin", ApiToken.objects.all(), pk=token_id)
    context: dict[str, Any] = {"token": token, "form": RotateForm()}
    if request.method == "POST":
        form = context["form"] = RotateForm(request.POST)
        if not form.is_valid():
            return render(request, "rotate.html", context, status=UNPROCESSABLE)
        now = timezone.now()
        try:
            new, context["secret"] = token_commands.rotate_token(
                token_id=token_id,
                grace=timedelta(seconds=form.cleaned_data["grace_s"]),
                owner=request.user.get_username(),
                actor=request.user.get_username(),
                via=VIA,
                reason=form.cleaned_data["reason"],
                now=now,
            )
        except Refused as refused:
            context["error"] = refused.message
            return render(request, "rotate.html", context, status=CONFLICT)
        token.refresh_from_db()
        context |= {"new": new, "until": figures.stamp(token.expires_at)}
    return render(request, "rotate.html", context)


@administrators_across
@never_cache
def revoke(request: HttpRequest, token_id: int) -> HttpResponse:
    """End a token at once; says what stops working."""
    token = rights.opened(request.user, "admin", ApiToken.objects.all(), pk=token_id)
    context: dict[str, Any] = {
        "token": token,
        "scope_help": SCOPE_HELP,
        "reason": request.POST.get("reason") or request.GET.get("reason", ""),
    }
    if request.method == "POST":
        form = ReasonForm(request.POST)
        if not form.is_valid():
            context["form"] = form
            return render(request, "revoke.html", context, status=UNPROCESSABLE)
        try:
            token_commands.revoke_token(
                token_id=token_id,
                actor=request.user.get_username(),
                via=VIA,
                reason=form.cleaned_data["reason"],
                now=timezone.now(),
            )
        except Refused as refused:
            context["error"] = refused.message
            return render(request, "revoke.html", context, status=CONFLICT)
        messages.success(
            request,
            _("Revoked %(name)s. Whoever holds it is refused from now on.") % {"name": token.name},
        )
        return redirect("tokens")
    return render(request, "revoke.html", context)
