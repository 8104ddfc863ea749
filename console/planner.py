"""The planner page: a form of the scenario's numbers; scripts ask the API what they would do.

The form's fields have the names of the API's query, so the page's address, a shared link and a
`curl` of the API carry the same thing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from console.roles import readable, role_of
from routing import cache_budget, fleets, knobs, planning
from routing.core.scenario.document import Scenario
from routing.core.what_if import changes
from routing.models import Fleet

_OPEN_CLUSTERS = 2
"""Clusters whose fields are open from the start: more of them would push the rest off the page."""
LEAST_HEADROOM = "least_headroom"
MOST_WHOLE = 12
"""Up to so many clusters and links the form has every number; of a larger fleet those of the
cluster that it is seen from, and what the address changes."""


@dataclass(frozen=True)
class Field:
    """One number with its slider from `low` to `high`; the number itself may go beyond."""

    name: str
    label: str
    unit: str
    default: str
    shown: str
    low: float
    high: float
    scale: str
    is_whole: bool
    help: str = ""

    @property
    def is_changed(self) -> bool:
        return self.shown != self.default


@dataclass(frozen=True)
class Group:
    """The fields of one cluster's traffic, of the hardware, of the SLO."""

    title: str
    fields: tuple[Field, ...]
    cluster: str = ""
    lengths: str = ""
    measured: Mapping[str, Any] | None = None
    is_open: bool = True


_KINDS: dict[str, tuple[str, str, str, str]] = {
    # kind: label, unit, scale of the slider, help
    "rate_rps": (_lazy("Rate"), "req/s", "log", ""),
    "mu": (_lazy("Length μ"), "ln tok", "linear", _lazy("The median prompt is e^μ tokens.")),
    "sigma": (_lazy("Length σ"), "", "linear", _lazy("Spread: 0 all alike, above 1 heavy-tailed.")),
    "output_tokens": (_lazy("Output"), "tok", "log", _lazy("Mean answer.")),
    "instances": (_lazy("Instances"), "", "linear", ""),
    "gbps": (_lazy("Capacity"), "Gbps", "log", ""),
    "tokens_per_s": (
        _lazy("Pace"),
        "tok/s",
        "log",
        _lazy("Least tokens a second for each request."),
    ),
    "ttft_s": (_lazy("First token"), "s", "log", _lazy("Longest mean time to the first token.")),
}
_SPANS = {"mu": (5.0, 13.0), "sigma": (0.1, 2.5)}
_FACTOR = 10.0


@readable
def page(request: HttpRequest, fleet: str) -> HttpResponse:
    """What would this fleet do with other numbers? Nothing here changes anything."""
    found = get_object_or_404(Fleet.objects.select_related("policy"), pk=fleet)
    if request.session.get("fleet") != fleet:  # pages without a fleet keep the last one's frame
        request.session["fleet"] = fleet
    scenario = fleets.scenario_of(found)
    saw = planning.recorded(found)
    asked = request.GET
    steered = [w.cluster for w in scenario.workloads]
    cluster = asked.get("cluster", steered[0])
    shown = places_shown(scenario, cluster, asked)
    groups = list(_groups(scenario, saw, asked, shown))
    search = _search_fields(found, scenario, asked, shown)
    known = _names(scenario)
    context = {
        "fleet": found,
        "groups": groups,
        "search_fields": search,
        "clusters": steered,
        "cluster": cluster,
        "n_left": 0 if shown is None else len(scenario.clusters) + len(scenario.links) - len(shown),
        "traces": cache_budget.traces_with_prefixes(found),
        "unknown": [name for name in asked if name not in known],
        "page_data": {
            "api": reverse("api-what-if", args=[fleet]),
            "cache_budget": reverse("api-cache-budget", args=[fleet]),
            "hold": reverse("hold", args=[fleet]),
            "can_operate": role_of(request.user, fleet).can_operate,
        },
    }
    return render(request, "planner.html", context)


def places_shown(
    scenario: Scenario, cluster: str, asked: Mapping[str, str]
) -> frozenset[str] | None:
    """The clusters and links whose numbers the form has: None is all of them.

    Of a large fleet it is `cluster`, the links to and from it and what is at their other ends, and
    every place of which the address changes a number.
    """
    if len(scenario.clusters) <= MOST_WHOLE and len(scenario.links) <= MOST_WHOLE:
        return None
    near = [link for link in scenario.links if cluster in (link.source, link.target)]
    asked_of = {key.rpartition(".")[0] for key in asked}
    known = {one.name for one in scenario.clusters} | {link.id for link in scenario.links}
    found = {cluster, *(link.id for link in near), *(asked_of & known)}
    return frozenset((found | {end for link in near for end in (link.source, link.target)}) & known)


def _names(scenario: Scenario) -> set[str]:
    """What the address may carry."""
    steered = [workload.cluster for workload in scenario.workloads]
    return {
        *("cluster", LEAST_HEADROOM),
        *(number.name for number in changes.numbers_of(scenario)),
        *(f"{name}.lengths" for name in steered),
        *(f"{cluster.name}.{planning.MOST}" for cluster in scenario.clusters),
    }


def _groups(
    scenario: Scenario,
    saw: planning.Recorded,
    asked: Mapping[str, str],
    shown: frozenset[str] | None,
) -> Iterator[Group]:
    numbers = [
        number
        for number in changes.numbers_of(scenario)
        if shown is None or number.place in shown or number.place == "slo"
    ]
    several = len(scenario.workloads) > 1
    steered = [w for w in scenario.workloads if shown is None or w.cluster in shown]
    for i, workload in enumerate(steered):
        own = [n for n in numbers if n.place == workload.cluster and n.kind != "instances"]
        name = f"{workload.cluster}.lengths"
        has_shape = any(f"{workload.cluster}.{kind}" in asked for kind in ("mu", "sigma"))
        default = changes.LOGNORMAL if has_shape else changes.SCENARIO
        yield Group(
            title=_("Traffic of %(cluster)s") % {"cluster": workload.cluster}
            if several
            else _("Traffic"),
            fields=tuple(_field(n, asked) for n in own),
            cluster=workload.cluster,
            lengths=asked.get(name, default),
            measured=_measured(saw, workload.cluster),
            is_open=i < _OPEN_CLUSTERS
            or workload.cluster == asked.get("cluster")
            or any(key.startswith(f"{workload.cluster}.") for key in asked),
        )
    sizes = tuple(_field(n, asked, label=n.place) for n in numbers if n.kind == "instances")
    yield Group(_("Instances"), sizes)
    links = tuple(
        _field(n, asked, label=n.place.replace("->", " → ")) for n in numbers if n.kind == "gbps"
    )
    if links:
        yield Group(_("Links"), links)
    yield Group(
        "SLO",
        tuple(_field(n, asked) for n in numbers if n.place == "slo" and n.kind != "instances"),
    )


def _measured(saw: planning.Recorded, cluster: str) -> dict[str, Any] | None:
    """What the newest tick counted, for the button that takes it over."""
    pd = saw.pd.get(cluster)
    if pd is None or (pd.lengths is None and pd.demand_rps is None):
        return None
    return {
        "at": None if saw.at_s is None else datetime.fromtimestamp(saw.at_s, UTC),
        "rate_rps": pd.demand_rps,
        "rate_text": "" if not pd.demand_rps else f"{pd.demand_rps:.3g}",
        "n_requests": None if pd.lengths is None else pd.lengths.n_effective,
    }


def _field(number: changes.Number, asked: Mapping[str, str], label: str = "") -> Field:
    kind_label, unit, scale, help_text = _KINDS[number.kind]
    low, high = _SPANS.get(number.kind) or _span(number)
    # A log-normal like counted lengths is a guess to start from: no six digits of it.
    digits = 4 if number.kind in _SPANS else 6
    default = f"{number.value:.{digits}g}"
    return Field(
        name=number.name,
        label=label or kind_label,
        unit=unit,
        default=default,
        shown=asked.get(number.name, default),
        low=low,
        high=high,
        scale=scale,
        is_whole=number.kind in ("instances", "output_tokens"),
        help=help_text,
    )


def _span(number: changes.Number) -> tuple[float, float]:
    least, most = changes.RANGES[number.kind]
    if number.kind == "instances":
        return least, max(2.0 * number.value, 8.0)
    low, high = number.value / _FACTOR, number.value * _FACTOR
    if number.kind == "gbps":  # a link is more often lost than won
        low, high = number.value / _FACTOR**2, 2.0 * number.value
    return max(least, _rounded(low)), min(most, _rounded(high))


def _rounded(value: float) -> float:
    """Two significant digits, so that sliders end on numbers one can read."""
    scale = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{round(value / scale) * scale:.6g}")


def _search_fields(
    fleet: Fleet, scenario: Scenario, asked: Mapping[str, str], shown: frozenset[str] | None
) -> tuple[Field, ...]:
    """What bounds the search for the cheapest fleet."""
    target = f"{knobs.effective(fleet.policy.knobs)['headroom_target']:g}"
    name = LEAST_HEADROOM
    fields = [
        Field(name, _("Headroom"), "×", target, asked.get(name, target), 1, 3, "linear", False)
    ]
    for cluster in scenario.clusters:
        if shown is not None and cluster.name not in shown:
            continue
        name = f"{cluster.name}.{planning.MOST}"
        most = f"{planning.most_of(cluster)}"
        high = max(4.0 * cluster.instances, 8.0)
        fields.append(
            Field(
                name,
                _("%(name)s, at most") % {"name": cluster.name},
                "",
                most,
                asked.get(name, most),
                1,
                high,
                "linear",
                True,
            )
        )
    return tuple(fields)
