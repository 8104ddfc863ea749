"""Pages of receivers: where alerts are told. Administrators of the site add, change, try and forget
them; who may read the whole site sees them."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Count, OuterRef, Q, Subquery
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from console.changes import CONFLICT, UNPROCESSABLE, VIA
from console.context import BAD, GOOD, OFF, Mark
from console.roles import needs, readable
from routing import rights
from routing.alerts import receivers, sending, telling
from routing.alerts.messages import KINDS
from routing.alerts.models import AlertRule, Notification, Receiver
from routing.commands import Refused, Stale

PER_PAGE = 50
_KIND_WORDS = {
    "webhook": gettext_lazy("webhook"),
    "slack": gettext_lazy("Slack"),
    "pagerduty": gettext_lazy("PagerDuty"),
    "alertmanager": gettext_lazy("Alertmanager"),
    "email": gettext_lazy("e-mail"),
}
_TARGETS = (
    ("slack", "https://hooks.slack.com/services/..."),
    ("webhook", "https://alerts.example.com/prfaas"),
    ("pagerduty", "https://events.pagerduty.com/v2/enqueue"),
    ("alertmanager", "https://alertmanager.example.com/api/v2/alerts"),
    ("email", "on-call@example.com, lead@example.com"),
)
"""What a target looks like, by kind."""

site_admins_only = needs(
    "admin", gettext_lazy("Only administrators of the whole site change where alerts are told.")
)


class ReceiverForm(forms.Form):
    """`version` is what its reader saw, 0 of a new one. Everything is checked by `receivers`."""

    name = forms.CharField(max_length=80)
    kind = forms.ChoiceField(choices=[(kind, _KIND_WORDS.get(kind, kind)) for kind in KINDS])
    target = forms.CharField(max_length=1000)
    secret_file = forms.CharField(max_length=100, required=False)
    version = forms.IntegerField(min_value=0, widget=forms.HiddenInput)
    reason = forms.CharField(max_length=500, required=False)


@readable
def page(request: HttpRequest) -> HttpResponse:
    """All receivers, how many rules name each, and how the last message to it went."""
    last = Notification.objects.filter(receiver=OuterRef("name")).order_by("-created_at", "-pk")
    rows = Receiver.objects.order_by("name").annotate(
        last_state=Subquery(last.values("state")[:1]),
        last_error=Subquery(last.values("error")[:1]),
        last_at=Subquery(last.values("created_at")[:1]),
    )
    found = Paginator(rows, PER_PAGE).get_page(request.GET.get("page"))
    named = _n_rules([row.name for row in found])
    context = {
        "page": found,
        "can_change": rights.of(request.user).may("admin"),
        "rows": [
            {
                "row": row,
                "kind": _KIND_WORDS.get(row.kind, row.kind),
                "n_rules": named[row.name],
                "mark": told_mark(row.last_state, row.last_error or ""),
            }
            for row in found
        ],
    }
    return render(request, "receivers.html", context)


def _n_rules(names: list[str]) -> dict[str, int]:
    """How many rules name each, in one statement."""
    counts = {
        f"n{i}": Count("pk", filter=Q(document__receivers__contains=[name]))
        for i, name in enumerate(names)
    }
    found = AlertRule.objects.aggregate(**counts) if counts else {}
    return {name: found[f"n{i}"] for i, name in enumerate(names)}


def told_mark(state: str | None, error: str) -> Mark:
    """How the last message to a receiver went; one that was never told anything says so."""
    if state is None:
        return Mark(*OFF, _("told nothing yet"))
    if state == "sent":
        return Mark(*GOOD, _("sent"))
    if state == "given_up":
        return Mark(*BAD, _("given up: %(error)s") % {"error": error} if error else _("given up"))
    if state == "dropped":
        return Mark(*OFF, _("not needed any more"))
    return Mark(
        "info", "wait", _("waiting: %(error)s") % {"error": error} if error else _("waiting")
    )


@site_admins_only
@never_cache
def receiver(request: HttpRequest, name: str = "") -> HttpResponse:
    """A receiver to read, change, try and forget, or a new one."""
    row = get_object_or_404(Receiver, pk=name) if name else None
    form = ReceiverForm(request.POST or None, initial=_initial(row))
    if row is not None:
        form.fields["name"].disabled = True
    status = 200
    if request.method == "POST":
        status = UNPROCESSABLE
        if form.is_valid():
            answer = _keep(request, form)
            if isinstance(answer, HttpResponse):
                return answer
            status = answer
    context = {
        "receiver": row,
        "form": form,
        "targets": [(_KIND_WORDS.get(kind, kind), target) for kind, target in _TARGETS],
        "named_by": AlertRule.objects.filter(document__receivers__contains=[row.pk]) if row else (),
    }
    return render(request, "receiver.html", context, status=status)


def _initial(row: Receiver | None) -> dict[str, Any]:
    if row is None:
        return {"version": 0, "kind": "slack"}
    fields = ("name", "kind", "target", "secret_file", "version")
    return {field: getattr(row, field) for field in fields}


def _keep(request: HttpRequest, form: ReceiverForm) -> HttpResponse | int:
    """Where it leads once kept; else the status, and what is wrong stands at its field."""
    asked = dict(form.cleaned_data)
    try:
        kept = receivers.put(
            **{key: asked[key] for key in ("name", "kind", "target", "secret_file", "reason")},
            if_version=asked["version"],
            actor=request.user.get_username(),
            via=VIA,
            now=timezone.now(),
        )
    except Stale as stale:
        form.add_error(None, stale.message)
        return CONFLICT
    except Refused as refused:
        form.add_error(refused.field if refused.field in form.fields else None, refused.message)
        return UNPROCESSABLE
    said = _("Receiver %(name)s is kept, version %(version)s.")
    messages.success(request, said % {"name": kept.pk, "version": kept.version})
    return redirect("receiver", kept.pk)


@site_admins_only
@require_POST
def send_test(request: HttpRequest, name: str) -> HttpResponse:
    """A message that says that it is a test, now."""
    row = get_object_or_404(Receiver, pk=name)
    try:
        sending.send(row, telling.test_message(at=timezone.now()))
    except sending.NotSent as exc:
        messages.warning(request, _("The test message was not sent: %(why)s.") % {"why": exc})
    else:
        messages.success(request, _("A test message was sent to %(name)s.") % {"name": row.pk})
    return redirect("receiver", row.pk)


@site_admins_only
@require_POST
def forget(request: HttpRequest, name: str) -> HttpResponse:
    """Forget a receiver that no rule names."""
    row = get_object_or_404(Receiver, pk=name)
    try:
        receivers.delete(
            name=row.pk,
            actor=request.user.get_username(),
            via=VIA,
            reason=request.POST.get("reason", "")[:500],
        )
    except Refused as refused:
        messages.warning(
            request,
            _("%(name)s is kept: it %(why)s.") % {"name": row.pk, "why": refused.message},
        )
        return redirect("receiver", row.pk)
    messages.success(request, _("Receiver %(name)s is forgotten.") % {"name": row.pk})
    return redirect("receivers")
