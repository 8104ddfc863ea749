"""Pages of alerts: what fires and who is at it; the rules behind it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import F, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache

from console import documents, figures
from console.changes import UNPROCESSABLE, VIA
from console.context import BAD, GOOD, OFF, WARN, Mark
from console.roles import operators_across, readable_across
from routing import rights
from routing.alerts import incidents, passes, rules, silences
from routing.alerts.models import AlertRule, Incident, Notification, Receiver, Silence
from routing.alerts.signals import UNITS
from routing.commands import Refused
from routing.core.alerts.rule import SEVERITIES, Rule

PER_PAGE = 50
SILENCE_SPANS = (
    (3600, gettext_lazy("1 hour")),
    (4 * 3600, gettext_lazy("4 hours")),
    (24 * 3600, gettext_lazy("24 hours")),
    (7 * 24 * 3600, gettext_lazy("7 days")),
)
_SEVERITY_MARKS = {"page": BAD, "warn": WARN, "info": ("info", "wait")}
_TOLD_MARKS = {
    "sent": GOOD,
    "waiting": ("info", "wait"),
    "given_up": BAD,
    "dropped": OFF,
}
_STARTING_POINT = {
    "name": "kv-full",
    "signal": "instance.kv_cache_usage_ratio",
    "is": "above",
    "threshold": 0.95,
    "back_at": 0.9,
    "where": {"role": "decode"},
    "for_s": 60,
    "keep_firing_s": 120,
    "severity": "warn",
    "group_by": "cluster",
    "receivers": [],
}


class SilenceForm(forms.Form):
    """Of what nobody is told for a while. Patterns are checked by `silences` again."""

    fleet = forms.CharField(max_length=100, required=False)
    rule = forms.CharField(max_length=200, initial="*")
    cluster = forms.CharField(max_length=200, initial="*")
    severity = forms.ChoiceField(choices=[(word, word) for word in ("*", *SEVERITIES)])
    span_s = forms.TypedChoiceField(choices=SILENCE_SPANS, coerce=int)
    reason = forms.CharField(max_length=500)


@readable_across
def page(request: HttpRequest) -> HttpResponse:
    """Incidents that fire, or fired; silences; how many rules there are."""
    now, may = timezone.now(), rights.of(request.user)
    chosen = {name: request.GET.get(name, "") for name in ("fleet", "severity", "state", "rule")}
    incidents_seen = may.within("read", Incident.objects.all())
    found = Paginator(_listed(incidents_seen, chosen), PER_PAGE).get_page(request.GET.get("page"))
    silent = silences.in_force(now)
    given_up = Notification.objects.filter(state="given_up", ended_at__gte=now - timedelta(days=1))
    counts = {
        "n_firing": incidents_seen.filter(resolved_at=None).count(),
        "n_rules": rules.readable(may).filter(enabled=True).count(),
        "n_given_up": may.within("read", given_up, by="incident__fleet").count(),
    }
    context = {
        "page": found,
        "rows": [_row(incident, silent) for incident in found],
        "chosen": chosen,
        "severities": SEVERITIES,
        "silences": [
            {"row": each, "can_end": may.may("operate", each.fleet)}
            for each in silent
            if not each.fleet or may.may("read", each.fleet)
        ],
        **counts,
    }
    return render(request, "alerts.html", context)


@readable_across
def one(request: HttpRequest, incident_id: int) -> HttpResponse:
    """One incident: what fires and how much, its rule, who was told, what to do."""
    row = rights.opened(request.user, "read", Incident.objects.all(), pk=incident_id)
    told = row.told.order_by("-created_at")[:PER_PAGE]
    context = {
        "incident": row,
        "row": _row(row, silences.in_force(timezone.now())),
        "rule": rules.readable(rights.of(request.user)).filter(pk=row.rule).first(),
        "can_operate": rights.of(request.user).may("operate", row.fleet),
        "members": [_member(row, member) for member in row.members],
        "told": [{"row": each, "mark": _told_mark(each)} for each in told],
    }
    return render(request, "incident.html", context)


@operators_across
@never_cache
def acknowledge(request: HttpRequest, incident_id: int) -> HttpResponse:
    """Say that somebody is at it."""
    row = rights.opened(request.user, "operate", Incident.objects.all(), pk=incident_id)
    if request.method == "POST":
        try:
            incidents.acknowledge(
                incident_id=row.pk,
                note=request.POST.get("note", ""),
                if_version=None,
                actor=request.user.get_username(),
                via=VIA,
                now=timezone.now(),
            )
        except Refused as refused:
            messages.warning(request, refused.message)
        else:
            messages.success(request, _("You have acknowledged it: nobody is told again."))
    return redirect("incident", row.pk)


@operators_across
@never_cache
def silence(request: HttpRequest) -> HttpResponse:
    """Keep incidents from being told for a while: what it would cover now, then the POST."""
    sent = request.POST if request.method == "POST" else request.GET
    form = SilenceForm(sent if "reason" in sent else None, initial=sent.dict())
    if request.method == "POST" and form.is_valid():
        asked, now = dict(form.cleaned_data), timezone.now()
        rights.demand(request.user, "operate", asked["fleet"])
        ends_at = now + timedelta(seconds=asked.pop("span_s"))
        try:
            silences.begin(
                **asked,
                ends_at=ends_at,
                actor=request.user.get_username(),
                via=VIA,
                now=now,
            )
        except Refused as refused:
            form.add_error(refused.field if refused.field in form.fields else None, refused.message)
        else:
            messages.success(request, _("Silent until %(at)s.") % {"at": figures.stamp(ends_at)})
            return redirect("alerts")
    status = UNPROCESSABLE if form.errors else 200
    return render(request, "silence.html", {"form": form}, status=status)


@operators_across
@never_cache
def end_silence(request: HttpRequest, silence_id: int) -> HttpResponse:
    """End a silence now; what fires is told then."""
    rows = rights.of(request.user).within_or_site("read", Silence.objects.all())
    rights.demand(request.user, "operate", get_object_or_404(rows, pk=silence_id).fleet)
    if request.method == "POST":
        try:
            silences.end(
                silence_id=silence_id,
                actor=request.user.get_username(),
                via=VIA,
                reason="",
                now=timezone.now(),
            )
        except Refused as refused:
            messages.warning(request, refused.message)
        else:
            messages.success(request, _("The silence has ended."))
    return redirect("alerts")


@readable_across
def rule_list(request: HttpRequest) -> HttpResponse:
    """All rules that one may read, and all receivers they may name."""
    may = rights.of(request.user)
    found = Paginator(rules.readable(may), PER_PAGE).get_page(request.GET.get("page"))
    firing = set(Incident.objects.filter(resolved_at=None).values_list("rule", flat=True))
    context = {
        "page": found,
        "rows": [
            {
                "rule": row,
                "says": rule_words(row),
                "mark": _rule_mark(row, firing),
                "can_change": may.may("operate", row.document.get("fleet", "")),
            }
            for row in found
        ],
        "can_add": may.anywhere("operate"),
        "receivers": Receiver.objects.order_by("name")[:PER_PAGE],
        "sees_receivers": may.may("read"),
    }
    return render(request, "alert_rules.html", context)


@operators_across
@never_cache
def rule(request: HttpRequest, name: str = "") -> HttpResponse:
    """A rule to read, change and try: what it would fire now, before it is kept."""
    may, row = rights.of(request.user), None
    if name:
        row = get_object_or_404(rules.readable(may), pk=name)
        rights.demand(request.user, "operate", row.document.get("fleet", ""))
    names = may.fleets("operate")
    of_one = {} if names is None else {"fleet": min(names)}
    form = documents.form_of(request, row, _STARTING_POINT | of_one)
    would, status = documents.answer(
        request,
        form,
        keep=lambda asked: _kept(request, asked, row),
        trial=lambda document: passes.trial(_allowed(request, document), now=timezone.now()),
    )
    if isinstance(would, HttpResponse):
        return would
    signal = would.rule.signal if would else ""
    context = {
        "rule": row,
        "form": form,
        "would": would,
        "firing": [(source, _shown(value, signal)) for source, value in would.firing]
        if would
        else [],
        "signals": UNITS.items(),
    }
    return render(request, "alert_rule.html", context, status=status)


def rule_words(row: AlertRule) -> str:
    """A rule in one line: what is too much, for how long."""
    try:
        found = rules.parsed(row.document)
    except Refused as refused:
        return _("cannot be read: %(why)s") % {"why": refused}
    return _condition(found)


def _condition(found: Rule) -> str:
    values = {
        "signal": found.signal,
        "threshold": _shown(found.threshold, found.signal),
        "span": figures.duration(found.for_s),
    }
    if found.above:
        return _("%(signal)s above %(threshold)s for %(span)s") % values
    return _("%(signal)s below %(threshold)s for %(span)s") % values


def _allowed(request: HttpRequest, document: Any) -> Rule:
    """The rule of a document, if it is for a fleet that they operate. Raises Refused."""
    found = rules.parsed(document)
    if not rights.of(request.user).may("operate", found.fleet):
        raise Refused("fleet", found.fleet, _("must name a fleet that you operate"))
    return found


def _kept(request: HttpRequest, asked: dict[str, Any], row: AlertRule | None) -> HttpResponse:
    found = _allowed(request, asked["document"])
    if row is not None and found.name != row.pk:
        raise Refused("name", asked["document"]["name"], f"stays {row.pk}")
    kept = rules.put(
        document=asked["document"],
        enabled=asked["enabled"],
        if_version=asked["version"],
        actor=request.user.get_username(),
        via=VIA,
        reason=asked["reason"],
        now=timezone.now(),
    )
    said = _("Rule %(name)s is kept, version %(version)s.")
    messages.success(request, said % {"name": kept.pk, "version": kept.version})
    return redirect("alert-rules")


def _listed(rows: QuerySet[Incident], chosen: dict[str, str]) -> QuerySet[Incident]:
    rows = rows.order_by(F("resolved_at").desc(nulls_first=True), "-opened_at", "-pk")
    for name in ("fleet", "severity", "rule"):
        if chosen[name]:
            rows = rows.filter(**{name: chosen[name]})
    if chosen["state"] in ("", "open"):
        return rows.filter(resolved_at=None)
    return rows.filter(resolved_at__isnull=False) if chosen["state"] == "over" else rows


def _row(incident: Incident, silent: list[Any]) -> dict[str, Any]:
    return {
        "incident": incident,
        "mark": _mark(incident),
        "silence": silences.silenced(incident, silent) if incident.resolved_at is None else None,
    }


def _mark(incident: Incident) -> Mark:
    if incident.resolved_at is not None:
        return Mark(*OFF, _("over"))
    if incident.acknowledged_at is not None:
        by = {"by": incident.acknowledged_by, "severity": incident.severity}
        return Mark("info", "wait", _("%(severity)s, %(by)s is at it") % by)
    return Mark(*_SEVERITY_MARKS[incident.severity], incident.severity)


def _told_mark(row: Notification) -> Mark:
    words = {
        "sent": _("sent"),
        "waiting": _("waiting"),
        "given_up": _("given up"),
        "dropped": _("not needed any more"),
    }
    return Mark(*_TOLD_MARKS[row.state], words[row.state])


def _rule_mark(row: AlertRule, firing: set[str]) -> Mark:
    if not row.enabled:
        return Mark(*OFF, _("switched off"))
    return Mark(*WARN, _("firing")) if row.pk in firing else Mark(*GOOD, _("well"))


def _member(incident: Incident, member: dict[str, Any]) -> dict[str, Any]:
    kind, _dot, signal = incident.signal.partition(".")
    evidence = ""
    if incident.fleet and kind in ("instance", "link", "router"):
        query = urlencode({"kind": kind, "signal": signal, "path": member["source"]})
        evidence = f"{reverse('signals', args=[incident.fleet])}?{query}"
    elif kind == "approval":
        evidence = reverse("approval", args=[member["source"].rpartition("-")[2]])
    value = member["value"]
    return {
        "source": member["source"],
        "value": None if value is None else _shown(value, incident.signal),
        "since": datetime.fromtimestamp(member["since_s"], UTC),
        "evidence": evidence,
    }


def _shown(value: float, signal: str) -> str:
    return figures.with_unit(value, UNITS.get(signal, "")).strip()
