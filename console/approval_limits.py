"""The page that says when a second person is needed in a fleet; administrators change it."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from django.views.decorators.cache import never_cache

from console import approval_words
from console.changes import UNPROCESSABLE, VIA, policy_of
from console.roles import readable, role_of
from routing import rights
from routing.approvals import limits_rows
from routing.approvals.limits import CHANGES, EXPIRES_S, read_limits
from routing.approvals.models import ApprovalLimits
from routing.commands import Refused, Stale

_EACH_HOUR_S = 3600.0


class LimitsForm(forms.Form):
    """From which reach on a second person is needed; an empty field: never for that reason."""

    share_moved = forms.FloatField(
        required=False,
        min_value=0,
        max_value=100,
        label=_lazy("More than this share of a cluster's instances moved at once, %"),
    )
    instances_moved = forms.IntegerField(
        required=False, min_value=0, label=_lazy("More than so many instances moved at once")
    )
    gates_switched = forms.IntegerField(
        required=False, min_value=0, label=_lazy("More than so many gates to another plan mode")
    )
    hold_min = forms.FloatField(
        required=False, min_value=0, max_value=10_080, label=_lazy("Holding longer than, min")
    )
    changes = forms.MultipleChoiceField(
        required=False,
        choices=[(name, approval_words.CHANGE_LABELS[name]) for name in CHANGES],
        widget=forms.CheckboxSelectMultiple,
        label=_lazy("Always, however small"),
    )
    expires_h = forms.FloatField(
        min_value=0.02, max_value=168, label=_lazy("A proposal waits for, h")
    )
    version = forms.IntegerField(min_value=0, widget=forms.HiddenInput)
    reason = forms.CharField(max_length=500, required=False, label=_lazy("Why"))

    def document(self) -> dict[str, Any]:
        """The limits as they are kept; what is empty is left out."""
        asked = self.cleaned_data
        found: dict[str, Any] = {
            name: asked[name]
            for name in ("instances_moved", "gates_switched")
            if asked[name] is not None
        }
        if asked["share_moved"] is not None:
            found["share_moved"] = asked["share_moved"] / 100
        if asked["hold_min"] is not None:
            found["hold_s"] = asked["hold_min"] * 60.0
        if asked["changes"]:
            found["changes"] = sorted(asked["changes"])
        if found or asked["expires_h"] * _EACH_HOUR_S != EXPIRES_S:
            found["expires_s"] = asked["expires_h"] * _EACH_HOUR_S
        return found


@readable
@never_cache
def page(request: HttpRequest, fleet: str) -> HttpResponse:
    """When a second person is needed in a fleet; administrators change it."""
    policy, row = policy_of(fleet), limits_rows.of(fleet)
    may = role_of(request.user, fleet).can_administer
    typed = {name: _typed(value) for name, value in _initial(row).items()}
    form = LimitsForm(request.POST if request.method == "POST" else None, initial=typed)
    if request.method == "POST":
        rights.demand(request.user, "admin", fleet)
        if form.is_valid() and _kept(request, fleet, form):
            return redirect("approval-limits", fleet)
    known = read_limits(row.limits)
    context = {
        "fleet": policy.fleet,
        "form": form,
        "row": row,
        "is_empty": known.is_empty,
        "may": may,
        "said": _limits_said(row),
    }
    status = UNPROCESSABLE if request.method == "POST" else 200
    return render(request, "approval_limits.html", context, status=status)


def _kept(request: HttpRequest, fleet: str, form: LimitsForm) -> bool:
    try:
        row = limits_rows.put(
            fleet=fleet,
            limits=form.document(),
            if_version=form.cleaned_data["version"],
            actor=request.user.get_username(),
            via=VIA,
            reason=form.cleaned_data["reason"],
            now=timezone.now(),
        )
    except Stale as stale:
        form.add_error(None, stale.message)
        return False
    except Refused as refused:
        form.add_error(None, f"{refused.field}: {refused.message}")
        return False
    messages.success(request, _("Kept, version %(version)s.") % {"version": row.version})
    return True


def _initial(row: ApprovalLimits) -> dict[str, Any]:
    known = read_limits(row.limits)
    share, hold_s = known.most.get("share_moved"), known.most.get("hold_s")
    return {
        "share_moved": None if share is None else round(share * 100, 6),
        "instances_moved": known.most.get("instances_moved"),
        "gates_switched": known.most.get("gates_switched"),
        "hold_min": None if hold_s is None else hold_s / 60.0,
        "changes": sorted(known.changes),
        "expires_h": known.expires_s / _EACH_HOUR_S,
        "version": row.version,
    }


def _typed(value: Any) -> Any:
    """A number as somebody would type it."""
    return f"{value:.10g}" if isinstance(value, float) else value


def _limits_said(row: ApprovalLimits) -> list[tuple[str, str]]:
    """The limits in force, for those who may only read them. Pure."""
    initial = _initial(row)
    said = [
        (str(LimitsForm.base_fields[name].label), f"{initial[name]:g}")
        for name in ("share_moved", "instances_moved", "gates_switched", "hold_min", "expires_h")
        if initial[name] is not None
    ]
    return said + [
        (str(approval_words.CHANGE_LABELS[name]), _("always"))
        for name in CHANGES
        if name in initial["changes"]
    ]
