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
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from console.context import DEFAULT_RANGE, RANGES
from console.figures import stamp
from console.onboarding_steps import TRY
from console.roles import readable
from console.signal_words import ROLES, SIGNALS
from console.wanted import Kind
from routing import fleets
from routing.models import Fleet
from telemetry import history
from telemetry.models import Source

SPANS: Final = {**RANGES, "7d": 604_800}
CUSTOM: Final = "custom"
MOST_LINES: Final = 8
"""So many sources are drawn as a line each; more as bands."""
MOST_ROWS: Final = 30
"""Rows of a page of the heat map of sources."""
TOP_LINES: Final = 5
"""Of many sources so many have a line of their own beside the bands: the highest."""
MOST_OFFERED: Final = 500
_MOST_BINS: Final = 360
_LEAST_BIN_S: Final = 10.0
"""Agents read every second to every ten seconds: finer bins would show holes that are not."""
_LATEST: Final = datetime(2200, 1, 1, tzinfo=UTC)
_UNPROCESSABLE: Final = 422
_KNOWN: Final = {
    *("signal", "cluster", "role", "source", "side", "range", "from", "to", "wall"),
}
_ALL: Final = ("", _lazy("all"))


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
                _("%(text)s is no moment: write 2026-01-31T14:05 (UTC), or epoch seconds.")
                % {"text": text[:40]}
            ) from None
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
        if not datetime.fromtimestamp(0, UTC) <= found <= _LATEST:
            raise forms.ValidationError(
                _("%(text)s lies outside 1970..2200.") % {"text": text[:40]}
            )
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
        self.everyone = _everyone(fleet, self.asked.kind).order_by("path")
        self.sources = self.everyone
        clusters = [c["name"] for c in fleet.scenario.get("clusters", [])]
        ranges = [*((name, name) for name in SPANS), (CUSTOM, _("from, to"))]
        self._choice("signal", _("Signal"), _grouped())
        self._choice("cluster", _("Cluster"), [_ALL, *((name, name) for name in clusters)])
        self._choice("role", _("Role"), [_ALL, *((name, name) for name in ROLES)])
        self._choice("side", _("Of"), self.asked.sides or [_ALL])
        self._choice("range", _("Range"), ranges)
        label = str(NOUNS[self.asked.kind][0]).capitalize()
        self.fields["source"] = forms.CharField(label=label, required=False, max_length=300)
        self.fields["source"].widget.attrs |= {"list": "sources", "placeholder": _("all")}
        self.fields["from"] = MomentField(label=_("From, UTC"), required=False)
        self.fields["to"] = MomentField(label=_("To, UTC"), required=False)
        for field in self.fields.values():
            field.widget.attrs["autocomplete"] = "off"

    def _choice(self, name: str, label: str, choices: Any) -> None:
        words = {"invalid_choice": _("%(value)s is none of those that can be chosen here.")}
        self.fields[name] = forms.ChoiceField(
            label=label, choices=choices, required=False, error_messages=words
        )

    @property
    def offered(self) -> list[str]:
        """Ids to choose from, without the fleet's name."""
        cut = 0 if self.asked.kind == "link" else len(self.fleet.pk) + 1
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
            self.add_error(
                "role",
                _("%(capitalize)s have no role.") % {"capitalize": NOUNS[kind][1].capitalize()},
            )
        if cluster := found.get("cluster"):
            ends = Q(path__startswith=f"{cluster}->") | Q(path__endswith=f"->{cluster}")
            within = Q(path__startswith=f"{fleet}/{cluster}/")
            self.sources = self.sources.filter(ends if kind == "link" else within)
        if found.get("role"):
            self.sources = self.sources.filter(role=found["role"])
        if source := found.get("source"):
            is_whole = kind == "link" or source.startswith(f"{fleet}/")
            path = source if is_whole else f"{fleet}/{source}"
            noun = NOUNS[kind][0]
            if not self.everyone.filter(path=path).exists():
                self.add_error(
                    "source",
                    _("No %(noun)s %(path)s ever reported.") % {"noun": noun, "path": path},
                )
            elif not self.sources.filter(path=path).exists():
                self.add_error(
                    "source", _("%(path)s is not of the cluster and role chosen.") % {"path": path}
                )
            self.sources = self.sources.filter(path=path)

    def _clean_moments(self, since: datetime | None, until: datetime | None) -> None:
        if since is None or until is None:
            self.add_error("from" if since is None else "to", _("A range needs both its ends."))
        elif not since < until:
            self.add_error(
                "to",
                _("The range would end at %(until)s, before it begins.") % {"until": stamp(until)},
            )
        elif since >= self._now:
            self.add_error("from", _("%(since)s is yet to come.") % {"since": stamp(since)})


NOUNS: Final = {
    "instance": (_lazy("instance"), _lazy("instances")),
    "router": (_lazy("gate"), _lazy("gates")),
    "link": (_lazy("link"), _lazy("links")),
}


def _everyone(fleet: Fleet, kind: Kind) -> QuerySet[Source]:
    """Sources of the fleet; links are named after their clusters, not after a fleet."""
    sources = Source.objects.filter(kind=kind)
    if kind == "link":
        return sources.filter(path__in=[link.id for link in fleets.scenario_of(fleet).links])
    return sources.filter(path__startswith=f"{fleet.pk}/")


def _grouped() -> list[tuple[str, list[tuple[str, str]]]]:
    groups: dict[str, list[tuple[str, str]]] = {}
    for key, signal in SIGNALS.items():
        groups.setdefault(str(NOUNS[signal.kind][1]).capitalize(), []).append((key, signal.label))
    return list(groups.items())


@readable
def page(request: HttpRequest, fleet: str) -> HttpResponse:
    """The history of one signal. Changes nothing."""
    found = get_object_or_404(Fleet, pk=fleet)
    if request.session.get("fleet") != fleet:  # pages without a fleet keep the last one's frame
        request.session["fleet"] = fleet
    now = timezone.now()
    form = SignalsForm(asked(request.GET.dict()), fleet=found, now=now)
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
    }
    if is_valid:
        chosen = _chosen(form)
        context |= {"chosen": chosen, "page_data": _page_data(found, form, chosen)}
    return render(request, "signals.html", context, status=200 if is_valid else _UNPROCESSABLE)


def asked(query: dict[str, str]) -> dict[str, str]:
    """The query with what it leaves out; moments make a range of their own."""
    first = {"signal": next(iter(SIGNALS)), "range": DEFAULT_RANGE}
    found = {**first, **{name: value for name, value in query.items() if value}}
    if ("from" in found or "to" in found) and found["range"] in SPANS:
        found["range"] = CUSTOM
    signal = SIGNALS.get(found["signal"])
    if signal is not None and signal.sides:
        found.setdefault("side", signal.sides[0][0])
    return found


def span_of(form: SignalsForm, now: datetime) -> tuple[float, float]:
    """From when to when a valid form asks, epoch seconds."""
    found = form.cleaned_data
    if found["range"] == CUSTOM:
        return found["from"].timestamp(), found["to"].timestamp()
    return now.timestamp() - SPANS[found["range"]], now.timestamp()


@dataclass(frozen=True)
class Chosen:
    """What a valid form comes down to. `view` is how it is drawn: `lines` of each source, `bands`
    over all with `lines` of the highest, `ranked` where the bands are over the others only, or
    `quantiles` of a histogram's observations."""

    n: int
    where: str
    view: str

    @property
    def has_levels(self) -> bool:
        """Whether it is also counted how many were at which level."""
        return self.view in ("bands", "quantiles")

    @property
    def has_rows(self) -> bool:
        """Whether each source also has a row of a heat map."""
        return self.view in ("bands", "ranked")


def _chosen(form: SignalsForm) -> Chosen:
    found, signal = form.cleaned_data, form.asked
    n = form.sources.count()
    singular, plural = NOUNS[signal.kind]
    what = " ".join(str(part) for part in (found["role"], singular if n == 1 else plural) if part)
    where = found["source"] or _("%(n)s %(what)s of %(value)s") % {
        "n": n,
        "what": what,
        "value": found["cluster"] or form.fleet.pk,
    }
    if signal.is_histogram:
        return Chosen(n, where, "quantiles")
    if n <= MOST_LINES:
        return Chosen(n, where, "lines")
    # Totals have no bands of their own, and links belong to no one fleet: the console ranks both.
    is_ranked = signal.is_counter or signal.kind == "link"
    return Chosen(n, where, "ranked" if is_ranked else "bands")


def _page_data(fleet: Fleet, form: SignalsForm, chosen: Chosen) -> dict[str, Any]:
    """What the page's script asks the API for, and how it writes the figures."""
    found, signal = form.cleaned_data, form.asked
    if found["range"] == CUSTOM:
        bounds = [found["from"].timestamp(), found["to"].timestamp()]
        span_s = bounds[1] - bounds[0]
    else:
        bounds, span_s = None, SPANS[found["range"]]
    query = {"kind": signal.kind, "signal": signal.name}
    if found["source"]:
        query["paths"] = form.sources.get().path
    elif signal.kind == "link" and found["cluster"]:
        query["paths"] = ",".join(form.sources.values_list("path", flat=True))
    elif signal.kind != "link":
        prefix = f"{fleet.pk}/{found['cluster']}/" if found["cluster"] else f"{fleet.pk}/"
        query |= {"prefix": prefix, "role": found["role"]}
    if signal.over:
        query["over"] = signal.over
    if signal.sides:
        query["key"] = found["side"]
    return {
        "api": reverse("api-fleet-signal-series", args=[fleet.pk]),
        "query": {name: value for name, value in query.items() if value},
        "fleet": fleet.pk,
        "view": chosen.view,
        "n": chosen.n,
        "kind": signal.kind,
        "label": signal.label,
        "bounds": bounds,
        "span_s": span_s,
        "bin_s": bin_s(span_s),
        "is_counter": signal.is_counter,
        "unit": signal.shown_unit,
        "scale": signal.scale,
        "noun": [str(noun) for noun in NOUNS[signal.kind]],
        "onboarding": reverse("fleet-onboarding", args=[fleet.pk]),
        "csv": "" if signal.is_histogram else reverse("signals-csv", args=[fleet.pk]),
        "csv_query": _csv_query(form),
        "page_of": reverse(signal.kind, args=[fleet.pk]),
        "top_lines": TOP_LINES,
        "most_rows": MOST_ROWS,
    }


def _csv_query(form: SignalsForm) -> dict[str, str]:
    """What the address of the same sources as a table has, but for the range."""
    names = ("signal", "cluster", "role", "source", "side")
    return {name: form.cleaned_data[name] for name in names if form.cleaned_data.get(name)}


def bin_s(span_s: float) -> float:
    """The width of a chart's bins over `span_s` seconds: at most `_MOST_BINS` of them."""
    return history.nice_bin_s(max(span_s / _MOST_BINS, _LEAST_BIN_S))
