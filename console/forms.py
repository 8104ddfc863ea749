"""What people may send, checked before `routing.commands` checks it again."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import gettext_lazy as _

from console import expiry
from routing import commands
from telemetry import tokens

HOLD_SPANS = (
    (900, _("15 minutes")),
    (3600, _("1 hour")),
    (4 * 3600, _("4 hours")),
    (24 * 3600, _("24 hours")),
    (7 * 24 * 3600, _("7 days")),
)
OVERRIDE_SPANS = ((300, _("5 minutes")), (900, _("15 minutes")), (3600, _("1 hour")))
AT_A_TIME = 0
"""The span of what ends at a time of day instead."""
ENDS = (*HOLD_SPANS, (AT_A_TIME, _("until a time of day:")))
NEEDED = {"required": _("Say why: others will see the hold and wonder.")}
TOKEN_SPANS = (
    (0, _("never")),
    (30, _("in 30 days")),
    (90, _("in 90 days")),
    (365, _("in a year")),
)
PLAN_MODES = (
    ("threshold", _("By threshold t")),
    ("always_local", _("Everything local")),
    ("always_remote", _("Everything remote")),
)
SCOPE_HELP = {
    "ingest": _("agents ship telemetry"),
    "router": _("gates fetch plans and acknowledge them"),
    "read": _("automation reads everything"),
    "operate": _("automation changes policy and holds"),
    "approve": _("automation approves what others propose"),
    "admin": _("everything, tokens included"),
}


class ModeForm(forms.Form):
    """A mode switch. `version` and `seen` are what the person looked at when deciding."""

    mode = forms.ChoiceField(choices=[(mode, mode) for mode in commands.MODES])
    version = forms.IntegerField(min_value=0)
    seen = forms.CharField(max_length=20, required=False)
    reason = forms.CharField(max_length=500, required=False)
    typed = forms.CharField(max_length=100, required=False)

    def __init__(self, *args: Any, must_type: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.must_type = must_type

    def clean_typed(self) -> str:
        typed = str(self.cleaned_data["typed"])
        if self.must_type and typed != self.must_type:
            raise forms.ValidationError(
                _("Type %(name)s to confirm.") % {"name": self.must_type}, code="typed"
            )
        return typed


class EndingForm(forms.Form):
    """When it ends: after `span_s`, or when clocks of a `zone` next show `until_at`."""

    span_s = forms.TypedChoiceField(choices=ENDS, coerce=int, label=_("For"), initial=3600)
    until_at = forms.TimeField(
        required=False,
        label=_("Time of day"),
        initial="09:00",
        widget=forms.TimeInput(attrs={"type": "time"}, format="%H:%M"),
    )
    zone = forms.CharField(
        required=False, max_length=60, label=_("Zone"), initial=get_current_timezone_name
    )

    def clean(self) -> dict[str, Any]:
        found: dict[str, Any] = super().clean() or {}
        if found.get("span_s") != AT_A_TIME:
            return found
        if found.get("until_at") is None and "until_at" not in self.errors:
            self.add_error("until_at", _("Say at what time it ends."))
        try:
            expiry.zone_named(found.get("zone") or "UTC")
        except expiry.NoSuchZone:
            self.add_error("zone", _("There is no such time zone; one is Europe/Paris."))
        return found

    @property
    def typed(self) -> list[tuple[str, str]]:
        """What was sent, field by field, for the form that confirms it."""
        return [(name, self.data.get(name, "")) for name in self.fields]

    def expires_at(self, now: datetime) -> datetime:
        """The moment that a valid form means."""
        asked = self.cleaned_data
        if asked["span_s"] != AT_A_TIME:
            return now + timedelta(seconds=asked["span_s"])
        zone = expiry.zone_named(asked["zone"] or "UTC")
        return expiry.next_at(now, asked["until_at"], zone)


class HoldForm(EndingForm):
    """A plan to pin in one PD cluster, or in all of them."""

    cluster = forms.ChoiceField(required=False)
    mode = forms.ChoiceField(choices=PLAN_MODES)
    threshold_tokens = forms.IntegerField(
        required=False, min_value=0, label=_("Threshold t, tokens")
    )
    reason = forms.CharField(max_length=500, label=_("Why"), error_messages=NEEDED)

    def __init__(self, *args: Any, clusters: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices = [(name, name) for name in clusters]
        if len(clusters) > 1:
            choices.append(("", _("every PD cluster")))
        self.fields["cluster"].choices = choices

    def clean(self) -> dict[str, Any]:
        found = super().clean()
        if found.get("mode") != "threshold":
            # t stands in the form from before the mode was chosen; null is what the mode means.
            found["threshold_tokens"] = None
        elif found.get("threshold_tokens") is None and "threshold_tokens" not in self.errors:
            self.add_error(
                "threshold_tokens", _("By threshold needs a t; 0 would send all remote.")
            )
        return found


class RollBackForm(EndingForm):
    """For how long an earlier plan is held, and why."""

    reason = forms.CharField(
        max_length=commands.MAX_ROLL_BACK_REASON, label=_("Why"), error_messages=NEEDED
    )


class ExtendForm(EndingForm):
    """When a hold shall end instead, and why."""

    reason = forms.CharField(max_length=500, label=_("Why"), error_messages=NEEDED)


class MaintenanceForm(EndingForm):
    """A cluster or a link to work on (`cluster:pd`, `link:a->b`), from when, for how long."""

    what = forms.ChoiceField(label=_("Cluster or link"))
    starts_at = forms.DateTimeField(
        required=False,
        label=_("From (empty: now)"),
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        input_formats=["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M"],
    )
    reason = forms.CharField(
        max_length=500,
        label=_("Why"),
        error_messages={"required": _("Say why: others will see it and wonder.")},
    )

    def __init__(self, *args: Any, choices: list[tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["what"].choices = [("", _("choose one")), *choices]


class OverrideForm(forms.Form):
    """For how long one may change what is frozen, and why. No ending by a time of day: it is for
    now."""

    for_s = forms.TypedChoiceField(choices=OVERRIDE_SPANS, coerce=int, label=_("For"), initial=900)
    reason = forms.CharField(
        max_length=500,
        label=_("Why"),
        error_messages={"required": _("Say why: it stands in the audit with your name.")},
    )


class RolesForm(EndingForm):
    """So many instances of a cluster that shall prefill; the rest of its `total` decodes."""

    cluster = forms.ChoiceField(label=_("PD cluster"))
    n_prefill = forms.IntegerField(label=_("Prefill instances"), min_value=0, max_value=100_000)
    reason = forms.CharField(max_length=500, label=_("Why"), error_messages=NEEDED)

    def __init__(self, *args: Any, clusters: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["cluster"].choices = [(name, name) for name in clusters]


class ReasonForm(forms.Form):
    reason = forms.CharField(max_length=500, required=False)


class NeededReasonForm(forms.Form):
    reason = forms.CharField(
        max_length=500,
        label=_("Why"),
        error_messages={"required": _("Say why: it stands in the audit with your name.")},
    )


class TokenForm(forms.Form):
    """A machine's key: who it is for, what it opens, where, how long."""

    name = forms.CharField(max_length=120)
    scopes = forms.MultipleChoiceField(
        choices=[(scope, SCOPE_HELP[scope]) for scope in tokens.SCOPES],
        widget=forms.CheckboxSelectMultiple,
    )
    fleet = forms.ChoiceField(required=False)
    expires_days = forms.TypedChoiceField(choices=TOKEN_SPANS, coerce=int)

    def __init__(
        self, *args: Any, fleets: list[str], with_site: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        every = [("", _("every fleet"))] if with_site else []
        self.fields["fleet"].choices = [*every, *((name, name) for name in fleets)]
        self.fields["fleet"].required = not with_site


class JsonField(forms.CharField):
    """A document typed as JSON."""

    def __init__(self) -> None:
        attrs = {"rows": 18, "spellcheck": "false", "class": "mono"}
        super().__init__(max_length=20_000, widget=forms.Textarea(attrs=attrs))

    def clean(self, value: Any) -> Any:
        try:
            return json.loads(super().clean(value))
        except ValueError as exc:
            raise forms.ValidationError(_("This is no JSON: %(why)s") % {"why": exc}) from None
