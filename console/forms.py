"""What people may send, checked before `routing.commands` checks it again."""

from __future__ import annotations

from typing import Any

from django import forms

from routing import commands
from telemetry import tokens

HOLD_SPANS = (
    (900, "15 minutes"),
    (3600, "1 hour"),
    (4 * 3600, "4 hours"),
    (24 * 3600, "24 hours"),
    (7 * 24 * 3600, "7 days"),
)
TOKEN_SPANS = ((0, "never"), (30, "in 30 days"), (90, "in 90 days"), (365, "in a year"))
PLAN_MODES = (
    ("threshold", "By threshold t"),
    ("always_local", "Everything local"),
    ("always_remote", "Everything remote"),
)
SCOPE_HELP = {
    "ingest": "agents ship telemetry",
    "router": "gates fetch plans and acknowledge them",
    "read": "automation reads everything",
    "operate": "automation changes policy and holds",
    "admin": "everything, tokens included",
}


class ModeForm(forms.Form):
    """A mode switch. `version` and `seen` are what the person looked at when deciding."""

    mode = forms.ChoiceField(choices=[(mode, mode) for mode in commands.MODES])
    version = forms.IntegerField(min_value=0)
    seen = forms.CharField(max_length=20, required=False)
    reason = forms.CharField(max_length=500, required=False)


class HoldForm(forms.Form):
    """A plan to pin in one PD cluster, or in all of them."""

    cluster = forms.ChoiceField(required=False)
    mode = forms.ChoiceField(choices=PLAN_MODES)
    threshold_tokens = forms.IntegerField(required=False, min_value=0, label="Threshold t, tokens")
    span_s = forms.TypedChoiceField(choices=HOLD_SPANS, coerce=int, label="For")
    reason = forms.CharField(
        max_length=500,
        label="Why",
        error_messages={"required": "Say why: others will see the hold and wonder."},
    )

    def __init__(self, *args: Any, clusters: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices = [(name, name) for name in clusters]
        if len(clusters) > 1:
            choices.append(("", "every PD cluster"))
        self.fields["cluster"].choices = choices

    def clean(self) -> dict[str, Any]:
        found = super().clean()
        if found.get("mode") != "threshold":
            # t stands in the form from before the mode was chosen; null is what the mode means.
            found["threshold_tokens"] = None
        elif found.get("threshold_tokens") is None and "threshold_tokens" not in self.errors:
            self.add_error("threshold_tokens", "By threshold needs a t; 0 would send all remote.")
        return found


class RollBackForm(forms.Form):
    """For how long an earlier plan is held, and why."""

    span_s = forms.TypedChoiceField(choices=HOLD_SPANS, coerce=int, label="For", initial=3600)
    reason = forms.CharField(
        max_length=commands.MAX_ROLL_BACK_REASON,
        label="Why",
        error_messages={"required": "Say why: others will see the hold and wonder."},
    )


class ReasonForm(forms.Form):
    reason = forms.CharField(max_length=500, required=False)


class NeededReasonForm(forms.Form):
    reason = forms.CharField(
        max_length=500,
        label="Why",
        error_messages={"required": "Say why: it stands in the audit with your name."},
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

    def __init__(self, *args: Any, fleets: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["fleet"].choices = [("", "every fleet"), *((name, name) for name in fleets)]
