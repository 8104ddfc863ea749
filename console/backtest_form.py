"""The form that starts a backtest: its fields, and what they ask for together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from routing import backtest_asked as asking
from routing.backtest_asked import Asked
from routing.core.scenario.document import Scenario
from routing.core.what_if import changes

NUMBER = "number:"
"""Before the name of a changed number in the form's own names."""
WORKLOADS = (
    ("recorded", _lazy("A recorded interval of this fleet")),
    ("trace", _lazy("A trace file")),
    ("scenario", _lazy("The scenario's own traffic")),
)
POLICY_WORDS = {
    "adaptive": _lazy("Adaptive: the loop as it runs live"),
    "paper": _lazy("Paper: the static optimum"),
    "always_local": _lazy("Everything local"),
    "always_remote": _lazy("Everything remote"),
    "least_loaded": _lazy("Least loaded: whichever side answers sooner"),
    asking.ORACLE: _lazy("Oracle: the best plans in hindsight, slow to find"),
    asking.LIVED: _lazy("As lived: the plans of the recorded interval"),
}
SCALES = (
    ("factor", _lazy("× its own rate")),
    ("load", _lazy("% of the best plan's capacity")),
    ("load_thinned", _lazy("% of it, by thinning out a trace")),
)
CACHES = (
    ("", _lazy("as fits the traffic")),
    ("cluster", _lazy("one a cluster")),
    ("instance", _lazy("one an instance")),
    ("none", _lazy("none")),
    ("scenario", _lazy("as the scenario has it")),
)
CAPACITIES = (
    ("unbounded", _lazy("unbounded")),
    ("profile", _lazy("the profiles' kv_capacity_tokens")),
    ("tokens", _lazy("this many tokens:")),
)
PLAN_FOR = (
    ("workload", _lazy("this traffic, as if it had been measured before")),
    ("scenario", _lazy("what the scenario says")),
)
_STATIC = re.compile(r"[,\s]+")
_WHEN = "%Y-%m-%dT%H:%M"


class BacktestForm(forms.Form):
    """`numbers` are made from the scenario; one that is left empty stays as it is."""

    workload = forms.ChoiceField(choices=WORKLOADS, widget=forms.RadioSelect)
    since = forms.DateTimeField(
        required=False,
        input_formats=[_WHEN, "%Y-%m-%dT%H:%M:%S"],
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format=_WHEN),
    )
    until = forms.DateTimeField(
        required=False,
        input_formats=[_WHEN, "%Y-%m-%dT%H:%M:%S"],
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format=_WHEN),
    )
    upload = forms.FileField(
        required=False, widget=forms.FileInput(attrs={"accept": ".jsonl,.csv,.gz,.json,.txt"})
    )
    trace = forms.ChoiceField(required=False)
    duration_min = forms.FloatField(required=False, initial=60, min_value=1)
    scale = forms.ChoiceField(choices=SCALES, initial="factor")
    scale_value = forms.FloatField(label=_lazy("Rate"), initial=1, min_value=0.001)
    policies = forms.MultipleChoiceField(widget=forms.CheckboxSelectMultiple, required=False)
    static = forms.CharField(required=False, max_length=120)
    seeds = forms.IntegerField(initial=5, min_value=1, max_value=asking.MOST_SEEDS)
    warmup_percent = forms.FloatField(initial=10, min_value=0, max_value=90)
    plan_for = forms.ChoiceField(choices=PLAN_FOR, initial="workload")
    cache = forms.ChoiceField(choices=CACHES, required=False)
    cache_capacity = forms.ChoiceField(choices=CAPACITIES, initial="unbounded")
    cache_tokens = forms.IntegerField(required=False, min_value=512)
    note = forms.CharField(required=False, max_length=200)

    def __init__(
        self,
        *args: Any,
        scenario: Scenario,
        traces: Sequence[tuple[int, str]],
        has_ticks: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.fields["trace"].choices = [("", _("upload the file above")), *traces]
        names = [*asking.OFFERED, *([asking.LIVED] if has_ticks else [])]
        self.fields["policies"].choices = [(name, POLICY_WORDS.get(name, name)) for name in names]
        for number in changes.numbers_of(scenario):
            self.fields[NUMBER + number.name] = forms.FloatField(
                required=False,
                label=number.name,
                widget=forms.NumberInput(attrs={"step": "any", "placeholder": f"{number.value:g}"}),
            )
        for workload in scenario.workloads:
            name = f"{workload.cluster}.lengths"
            self.fields[NUMBER + name] = forms.ChoiceField(
                required=False,
                label=name,
                choices=[
                    ("", _("as in the scenario")),
                    *((word, word) for word in changes.LENGTHS),
                ],
            )

    def numbers(self) -> list[Any]:
        """The bound fields of changed numbers."""
        return [self[name] for name in self.fields if name.startswith(NUMBER)]

    def changed_numbers(self) -> bool:
        return any(field.value() not in (None, "") for field in self.numbers())

    def clean(self) -> dict[str, Any]:
        found = super().clean() or {}
        if found.get("workload") == "trace" and not (found.get("upload") or found.get("trace")):
            self.add_error("upload", _("Choose a file, or one that was uploaded before."))
        if found.get("workload") == "recorded" and not (found.get("since") and found.get("until")):
            self.add_error("since", _("Say from when to when."))
        if found.get("cache_capacity") == "tokens" and not found.get("cache_tokens"):
            self.add_error("cache_tokens", _("Say how many tokens."))
        return found

    def asked(self) -> Asked:
        """What the valid form asks for."""
        found = self.cleaned_data
        workload = found["workload"]
        static = [text for text in _STATIC.split(found["static"]) if text]
        by_load = found["scale"] != "factor"
        capacity = found["cache_capacity"]
        # Its box is out of sight for other traffic, and may still be ticked.
        named = [n for n in found["policies"] if n != asking.LIVED or workload == "recorded"]
        cache = found["cache"] or ("cluster" if workload == "trace" else "scenario")
        return Asked(
            workload=workload,
            policies=(*named, *(f"static:{text}" for text in static)),
            seeds=found["seeds"],
            scale=found["scale"],
            scale_value=found["scale_value"] / (100.0 if by_load else 1.0),
            duration_s=60.0 * (found["duration_min"] or 60.0),
            warmup_ratio=found["warmup_percent"] / 100.0,
            plan_for=found["plan_for"],
            cache=cache,
            cache_capacity=str(found["cache_tokens"]) if capacity == "tokens" else capacity,
            numbers=_numbers(found),
        )

    def refuse(self, field: str, message: str) -> None:
        """Puts what the command said beside the field it is about."""
        name = {"duration_s": "duration_min", "warmup_ratio": "warmup_percent"}.get(field, field)
        name = NUMBER + field if NUMBER + field in self.fields else name
        if name == "trace":
            name = "upload"
        if name in self.fields:
            self.add_error(name, message)
        else:
            self.add_error(None, f"{field}: {message}")


def again(asked: Asked, *, note: str, trace: int | None) -> dict[str, Any]:
    """Initial values that ask for the same once more."""
    static = [name.removeprefix("static:") for name in asked.policies if name[:7] == "static:"]
    tokens = asked.cache_capacity if asked.cache_capacity not in asking.CAPACITIES else ""
    factor = 1.0 if asked.scale == "factor" else 100.0
    return {
        "workload": asked.workload,
        "trace": trace,
        "duration_min": f"{asked.duration_s / 60.0:g}",
        "scale": asked.scale,
        "scale_value": f"{asked.scale_value * factor:g}",
        "policies": [name for name in asked.policies if name[:7] != "static:"],
        "static": ", ".join(static),
        "seeds": asked.seeds,
        "warmup_percent": f"{100.0 * asked.warmup_ratio:g}",
        "plan_for": asked.plan_for,
        "cache": asked.cache,
        "cache_capacity": "tokens" if tokens else asked.cache_capacity,
        "cache_tokens": tokens,
        "note": note,
        **{NUMBER + name: value for name, value in asked.numbers.items()},
    }


def _numbers(found: Mapping[str, Any]) -> dict[str, Any]:
    given = {
        name.removeprefix(NUMBER): value
        for name, value in found.items()
        if name.startswith(NUMBER) and value not in (None, "")
    }
    return {
        name: round(value) if name.endswith(".instances") and value == round(value) else value
        for name, value in given.items()
    }
