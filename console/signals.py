"""The signals page: the history of any signal of a fleet, over any range, for as few or as many
sources as somebody chooses.

Everything chosen is in the address, so a link shows the same to somebody else; the figures
themselves come from the API (`routing.history_api`), which the page asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils import timezone

from console.context import DEFAULT_RANGE, RANGES
from console.figures import stamp
from console.onboarding_steps import TRY
from console.roles import readable
from console.signal_words import ROLES, SIGNALS
from routing.models import Fleet
from telemetry import history
from telemetry.models import Source

SPANS: Final = {**RANGES, "7d": 604_800}
CUSTOM: Final = "custom"
MOST_LINES: Final = 8
"""So many sources are drawn as a line each; more as bands."""
MOST_RATES: Final = 300
"""Rates are made of each source's counter by the page itself, of no more sources than this."""
MOST_OFFERED: Final = 500
_MOST_BINS: Final = 360
_LEAST_BIN_S: Final = 10.0
"""Agents read every second to every ten seconds: finer bins would show holes that are not."""
_LATEST: Final = datetime(2200, 1, 1, tzinfo=UTC)
_UNPROCESSABLE: Final = 422
_KNOWN: Final = {
    *("signal", "cluster", "role", "source", "side", "range", "from", "to"),
}
_ALL: Final = ("", "all")


class MomentField(forms.Field):
    """A moment in UTC: as a browser's date field writes it, or epoch seconds."""

    widget = forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"})

    def to_python(self, value: Any) -> datetime | None:
        text = (value or "").strip()
        if not text:
            return None
        try:
            if text.replace(".", "", 1).isdecimal():
                found = datetime.fromtimestamp(float(text), UTC)
            else:
                found = datetime.fromisoformat(text)
        except (ValueError, OverflowError, OSError):
            raise forms.ValidationError(
                f"{text[:40]} is no moment: write 2026-01-31T14:05 (UTC), or epoch seconds."
            ) from None
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
        if not datetime.fromtimestamp(0, UTC) <= found <= _LATEST:
            raise forms.ValidationError(f"{text[:40]} lies outside 1970..2200.")
        return found

    def prepare_value(self, value: Any) -> Any:
        try:
            found = self.to_python(value)
        except forms.ValidationError:
            return ""  # a browser would drop it; the words beside the field quote it
        return f"{found:%Y-%m-%dT%H:%M:%S}" if found else value


class SignalsForm(forms.Form):
    """Which signal of which sources over which range. `sources` are those it comes down to."""

    def __init__(self, data: Mapping[str, Any], *, fleet: Fleet, now: datetime) -> None:
        super().__init__(data)
        self.fleet, self._now = fleet, now
        self.asked = SIGNALS.get(data["signal"], next(iter(SIGNALS.values())))
        everyone = Source.objects.filter(kind=self.asked.kind, path__startswith=f"{fleet.pk}/")
        self.everyone = everyone.order_by("path")
        self.sources = self.everyone
        clusters = [c["name"] for c in fleet.scenario.get("clusters", [])]
        ranges = [*((name, name) for name in SPANS), (CUSTOM, "from, to")]
        self._choice("signal", "Signal", _grouped())
        self._choice("cluster", "Cluster", [_ALL, *((name, name) for name in clusters)])
        self._choice("role", "Role", [_ALL, *((name, name) for name in ROLES)])
        self._choice("side", "Of", self.asked.sides or [_ALL])
        self._choice("range", "Range", ranges)
        label = "Instance" if self.asked.kind == "instance" else "Gate"
        self.fields["source"] = forms.CharField(label=label, required=False, max_length=300)
        self.fields["source"].widget.attrs |= {"list": "sources", "placeholder": "all"}
        self.fields["from"] = MomentField(label="From, UTC", required=False)
        self.fields["to"] = MomentField(label="To, UTC", required=False)
        for field in self.fields.values():
            field.widget.attrs["autocomplete"] = "off"

    def _choice(self, name: str, label: str, choices: Any) -> None:
        words = {"invalid_choice": "%(value)s is none of those that can be chosen here."}
        self.fields[name] = forms.ChoiceField(
            label=label, choices=choices, required=False, error_messages=words
        )

    @property
    def offered(self) -> list[str]:
        """Ids to choose from, without the fleet's name."""
        cut = len(self.fleet.pk) + 1
        return [p[cut:] for p in self.everyone.values_list("path", flat=True)[:MOST_OFFERED]]

    def clean(self) -> dict[str, Any]:
        found: dict[str, Any] = super().clean()
        self._clean_sources(found)
        if found.get("range") == CUSTOM and not {"from", "to"} & self.errors.keys():
            self._clean_moments(found.get("from"), found.get("to"))
        return found

    def _clean_sources(self, found: dict[str, Any]) -> None:
        fleet, kind = self.fleet.pk, self.asked.kind
        if found.get("role") and kind != "instance":
            self.add_error("role", "Gates have no role.")
        if found.get("cluster"):
            self.sources = self.sources.filter(path__startswith=f"{fleet}/{found['cluster']}/")
        if found.get("role"):
            self.sources = self.sources.filter(role=found["role"])
        if source := found.get("source"):
            path = source if source.startswith(f"{fleet}/") else f"{fleet}/{source}"
            noun = NOUNS[kind][0]
            if not self.everyone.filter(path=path).exists():
                self.add_error("source", f"No {noun} {path} ever reported.")
            elif not self.sources.filter(path=path).exists():
                self.add_error("source", f"{path} is not of the cluster and role chosen.")
            self.sources = self.sources.filter(path=path)

    def _clean_moments(self, since: datetime | None, until: datetime | None) -> None:
        if since is None or until is None:
            self.add_error("from" if since is None else "to", "A range needs both its ends.")
        elif not since < until:
            self.add_error("to", f"The range would end at {stamp(until)}, before it begins.")
        elif since >= self._now:
            self.add_error("from", f"{stamp(since)} is yet to come.")


NOUNS: Final = {"instance": ("instance", "instances"), "router": ("gate", "gates")}


def _grouped() -> list[tuple[str, list[tuple[str, str]]]]:
    groups: dict[str, list[tuple[str, str]]] = {}
    for key, signal in SIGNALS.items():
        groups.setdefault(NOUNS[signal.kind][1].capitalize(), []).append((key, signal.name))
    return list(groups.items())


@readable
def page(request: HttpRequest, fleet: str) -> HttpResponse:
    """The history of one signal. Changes nothing."""
    found = get_object_or_404(Fleet, pk=fleet)
    if request.session.get("fleet") != fleet:  # pages without a fleet keep the last one's frame
        request.session["fleet"] = fleet
    now = timezone.now()
    form = SignalsForm(_asked(request.GET.dict()), fleet=found, now=now)
    is_valid = form.is_valid()
    signal = form.asked
    singular, plural = NOUNS[signal.kind]
    context = {
        "fleet": found,
        "form": form,
        "signal": signal,
        "noun": singular,
        "nouns": plural,
        "unknown": sorted(request.GET.keys() - _KNOWN),
        "has_reported": form.everyone.exists(),
        "command": TRY,
        "most_rates": MOST_RATES,
    }
    if is_valid:
        chosen = _chosen(form)
        context |= {"chosen": chosen, "page_data": _page_data(found, form, chosen)}
    return render(request, "signals.html", context, status=200 if is_valid else _UNPROCESSABLE)


def _asked(query: dict[str, str]) -> dict[str, str]:
    """The query with what it leaves out; moments make a range of their own."""
    first = {"signal": next(iter(SIGNALS)), "range": DEFAULT_RANGE}
    asked = {**first, **{name: value for name, value in query.items() if value}}
    if ("from" in asked or "to" in asked) and asked["range"] in SPANS:
        asked["range"] = CUSTOM
    signal = SIGNALS.get(asked["signal"])
    if signal is not None and signal.sides:
        asked.setdefault("side", signal.sides[0][0])
    return asked


@dataclass(frozen=True)
class Chosen:
    """What a valid form comes down to. `view` is how it is drawn; `too_many` draws nothing."""

    n: int
    where: str
    view: str
    too_many: bool = False


def _chosen(form: SignalsForm) -> Chosen:
    found, signal = form.cleaned_data, form.asked
    n = form.sources.count()
    singular, plural = NOUNS[signal.kind]
    what = " ".join(part for part in (found["role"], singular if n == 1 else plural) if part)
    where = found["source"] or f"{n} {what} of {found['cluster'] or form.fleet.pk}"
    if signal.is_histogram:
        return Chosen(n, where, "quantiles")
    too_many = signal.is_counter and n > MOST_RATES
    return Chosen(n, where, "lines" if n <= MOST_LINES else "bands", too_many)


def _page_data(fleet: Fleet, form: SignalsForm, chosen: Chosen) -> dict[str, Any]:
    """What the page's script asks the API for, and how it writes the figures."""
    found, signal = form.cleaned_data, form.asked
    if found["range"] == CUSTOM:
        bounds = [found["from"].timestamp(), found["to"].timestamp()]
        span_s = bounds[1] - bounds[0]
    else:
        bounds, span_s = None, SPANS[found["range"]]
    prefix = f"{fleet.pk}/{found['cluster']}/" if found["cluster"] else f"{fleet.pk}/"
    query = {"kind": signal.kind, "signal": signal.name, "prefix": prefix, "role": found["role"]}
    if found["source"]:
        query = {"kind": signal.kind, "signal": signal.name, "paths": form.sources.get().path}
    if signal.sides:
        query["key"] = found["side"]
    return {
        "api": reverse("api-fleet-signal-series", args=[fleet.pk]),
        "query": {name: value for name, value in query.items() if value},
        "fleet": fleet.pk,
        "view": chosen.view,
        "n": 0 if chosen.too_many else chosen.n,
        "bounds": bounds,
        "span_s": span_s,
        "bin_s": bin_s(span_s),
        "is_counter": signal.is_counter,
        "unit": signal.shown_unit,
        "scale": signal.scale,
        "noun": NOUNS[signal.kind],
        "onboarding": reverse("fleet-onboarding", args=[fleet.pk]),
    }


def bin_s(span_s: float) -> float:
    """The width of a chart's bins over `span_s` seconds: at most `_MOST_BINS` of them."""
    return history.nice_bin_s(max(span_s / _MOST_BINS, _LEAST_BIN_S))
