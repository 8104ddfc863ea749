"""Where would this request go, and why: a form, the live rule's answer, and how it turns on length.

Everything is in the address, so a link shows the same question to somebody else; the answer is that
of `routing.placing`, which the API gives as well.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from console import plans, request_chart, request_words
from console.roles import readable
from routing import commands, fleets, placing
from routing.core.placement.explain import Moment, Placement, Request
from routing.core.placement.rule import Rule, Side
from routing.core.scenario.document import Scenario
from routing.explain_serializers import MOST_SECONDS
from routing.models import Decision, Fleet
from routing.placing import Placer

MOST_TOKENS = 1_048_576
"""The longest prompt the page takes: what lengths are counted up to."""
_RECENT = 25
_UNPROCESSABLE = 422
_FIRST = {"total": "30000", "local": "0"}
"""What the form asks before anybody did."""


@dataclass(frozen=True)
class Turn:
    """Where the request runs when it is this remote's turn, and how often that is."""

    remote: str
    share: float
    cached_tokens: int
    found: Placement
    estimates: Mapping[Side, Any]

    @property
    def sentence(self) -> str:
        return request_words.sentence(self.found)

    @property
    def side_word(self) -> str:
        return request_words.side_word(self.found.side)


class RequestForm(forms.Form):
    """A request, and the moment it arrives at. Fields named `remote-NAME` are one a PrfaaS cluster
    with a link to the PD cluster."""

    cluster = forms.ChoiceField(label=_lazy("PD cluster"))
    decision = forms.ChoiceField(label=_lazy("Plan"), required=False)
    total = forms.IntegerField(label=_lazy("Prompt, tokens"), min_value=0, max_value=MOST_TOKENS)
    local = forms.IntegerField(min_value=0, max_value=MOST_TOKENS)
    free = forms.FloatField(
        label=_lazy("Free share of the link"), required=False, min_value=0.01, max_value=1.0
    )
    in_flight = forms.IntegerField(
        label=_lazy("Remote requests in flight"), required=False, min_value=0, max_value=1_000_000
    )
    wait_local = forms.FloatField(
        label=_lazy("local, s"), required=False, min_value=0.0, max_value=MOST_SECONDS
    )
    wait_remote = forms.FloatField(
        label=_lazy("remote, s"), required=False, min_value=0.0, max_value=MOST_SECONDS
    )
    local_down = forms.BooleanField(label=_lazy("local does not answer"), required=False)
    remote_down = forms.BooleanField(label=_lazy("no remote answers"), required=False)

    def __init__(
        self,
        data: Mapping[str, Any],
        *,
        clusters: list[str],
        remotes: list[str],
        decisions: list[tuple[str, str]],
        free_ratio: float,
    ) -> None:
        super().__init__(data)
        self.fields["cluster"].choices = [(name, name) for name in clusters]
        self.fields["decision"].choices = decisions
        self.remotes = remotes
        for name in remotes:
            self.fields[f"remote-{name}"] = forms.IntegerField(
                label=_("Cached at %(name)s") % {"name": name}, min_value=0, max_value=MOST_TOKENS
            )
        self.fields["free"].widget.attrs["placeholder"] = f"{free_ratio:g}"
        for field in self.fields.values():
            field.widget.attrs |= {"autocomplete": "off"}
            if isinstance(field, forms.FloatField):
                field.widget.attrs["step"] = "any"

    @property
    def remote_fields(self) -> list[forms.BoundField]:
        return [self[f"remote-{name}"] for name in self.remotes]

    def clean(self) -> dict[str, Any]:
        found: dict[str, Any] = super().clean()
        total = found.get("total")
        for name in ("local", *(f"remote-{remote}" for remote in self.remotes)):
            if total is not None and found.get(name) is not None and found[name] > total:
                self.add_error(
                    name,
                    _("%(found)s is more than the prompt's %(total)s tokens.")
                    % {"found": f"{found[name]:,}", "total": f"{total:,}"},
                )
        waits = [found.get("wait_local"), found.get("wait_remote")]
        if waits.count(None) == 1 and not {"wait_local", "wait_remote"} & self.errors.keys():
            missing = "wait_local" if waits[0] is None else "wait_remote"
            self.add_error(missing, _("A band compares two waits: give both, or none."))
        return found

    @property
    def is_moment_open(self) -> bool:
        """Whether something was said about the moment, or said wrongly."""
        names = ("free", "in_flight", "wait_local", "wait_remote", "local_down", "remote_down")
        return any(self[name].value() not in (None, "", False) for name in names)


@readable
def page(request: HttpRequest, fleet: str) -> HttpResponse:
    """Where a request would run under a plan, and why. Changes nothing."""
    found = get_object_or_404(Fleet.objects.select_related("policy"), pk=fleet)
    if request.session.get("fleet") != fleet:  # pages without a fleet keep the last one's frame
        request.session["fleet"] = fleet
    scenario = fleets.scenario_of(found)
    form = _form(request, found, scenario)
    context = {"fleet": found, "form": form, "most_tokens": MOST_TOKENS}
    if form.is_valid():
        try:
            context |= _answer(request, found, form)
        except commands.Refused as refused:
            form.add_error(_FIELDS.get(refused.field), refused.message)
    return render(request, "request.html", context, status=_UNPROCESSABLE if form.errors else 200)


_FIELDS = {"cluster": "cluster", "total_tokens": "total", "decision": "decision"}


def _form(request: HttpRequest, fleet: Fleet, scenario: Scenario) -> RequestForm:
    clusters = [c.name for c in scenario.clusters if c.kind == "pd"]
    asked = request.GET.get("cluster", clusters[0] if clusters else "")
    remotes = [link.source for link in scenario.links if link.target == asked]
    kinds = {c.name: c.kind for c in scenario.clusters}
    remotes = [name for name in dict.fromkeys(remotes) if kinds[name] == "prefill"]
    first = {**_FIRST, "cluster": asked, **{f"remote-{name}": "0" for name in remotes}}
    return RequestForm(
        {**first, **request.GET.dict()},
        clusters=clusters,
        remotes=remotes,
        decisions=_decisions(fleet, request.GET.get("decision", "")),
        free_ratio=placing.free_ratio_of(fleet),
    )


def _decisions(fleet: Fleet, asked: str) -> list[tuple[str, str]]:
    """The plan in force, the newest others, and the one asked for however old it is."""
    running = fleets.newest_adopted(fleet)
    first = (
        _("in force: none yet")
        if running is None
        else _("in force: %(running)s") % {"running": _plan_words(running)}
    )
    rows = Decision.objects.filter(fleet=fleet).order_by("-created_at", "-id")
    others = [row for row in rows[:_RECENT] if running is None or row.pk != running.pk]
    number = int(asked) if asked.isdecimal() and len(asked) < 19 else None
    if number is not None and number not in [row.pk for row in others]:
        others += list(rows.filter(pk=number))
    choices = [
        (str(row.pk), f"{_plan_words(row)}, {row.created_at:%d %b %H:%M:%S}") for row in others
    ]
    return [("", first), *choices]


def _plan_words(decision: Decision) -> str:
    clusters = decision.plan["clusters"]
    several = len(clusters) > 1
    words = [
        (f"{name} " if several else "") + plans.cluster_words(plan)
        for name, plan in list(clusters.items())[:3]
    ]
    tag = _("advised") if decision.version is None else f"v{decision.version}"
    return f"{tag}, {', '.join(words)}{', …' if len(clusters) > 3 else ''}"


def _answer(request: HttpRequest, fleet: Fleet, form: RequestForm) -> dict[str, Any]:
    asked = form.cleaned_data
    by = placing.placer(
        fleet,
        cluster=asked["cluster"],
        now_s=timezone.now().timestamp(),
        decision=int(asked["decision"]) if asked["decision"] else None,
        free_ratio=asked["free"],
    )
    held = {name: asked[f"remote-{name}"] for name in form.remotes}
    turns = _turns(by, asked, held)
    turn = turns[0]
    prompt = _request(asked, turn.cached_tokens)
    moment = _moment(asked)
    rows = request_words.cost_rows(turn.estimates)
    plot = request_chart.plot(
        lambda total: _point(by, asked, turn.cached_tokens, total),
        edges=_edges(by, prompt),
        asked=prompt.total_tokens,
    )
    return {
        "by": by,
        "running": fleets.newest_adopted(fleet),
        "found": turn.found,
        "sentence": turn.sentence,
        "turns": turns if len(turns) > 1 else (),
        "steps": request_words.steps(turn.found, prompt, by.plan, moment, cluster=by.cluster),
        "costs": rows,
        "places": {"local": by.cluster, "remote": turn.found.remote},
        "estimates": turn.estimates,
        "plot": plot,
        "plot_data": _plot_data(plot),
        "curl": _curl(request, fleet, asked, turn.cached_tokens),
    }


def _turns(by: Placer, asked: dict[str, Any], held: Mapping[str, int]) -> list[Turn]:
    """The request at each remote's turn; first the one a gate that has sent none begins with."""
    weights = by.plan.remote if by.plan is not None else {}
    weights = {name: weight for name, weight in weights.items() if weight > 0.0}
    total = sum(weights.values())
    if not weights or asked["remote_down"]:
        # Nobody's turn: what remotes hold cannot matter, but the question may have named it.
        cached = held.get(next(iter(weights), ""), 0)
        return [_turn(by, asked, "", 0.0, cached)]
    first = by.place(_request(asked, 0), _moment(asked)).remote
    names = sorted(weights, key=lambda name: (name != first, -weights[name], name))
    return [
        _turn(by, asked, n, weights[n] / total, held.get(n, 0), only=None if n == first else n)
        for n in names
    ]


def _turn(
    by: Placer,
    asked: dict[str, Any],
    name: str,
    share: float,
    cached_tokens: int,
    *,
    only: str | None = None,
) -> Turn:
    prompt, moment = _request(asked, cached_tokens), _moment(asked, only=only)
    found = by.place(prompt, moment)
    estimates = by.estimates(found, prompt, moment)
    return Turn(name, share, cached_tokens, found, estimates)


def _request(asked: dict[str, Any], remote_tokens: int) -> Request:
    return placing.request_of(asked["total"], {"local": asked["local"], "remote": remote_tokens})


def _moment(asked: dict[str, Any], *, only: str | None = None) -> Moment:
    admissible = [] if asked["remote_down"] else None if only is None else [only]
    return Moment(
        admissible=admissible,
        remote_in_flight=asked["in_flight"] or 0,
        local_up=not asked["local_down"],
        waits_s=_waits(asked),
    )


def _waits(asked: dict[str, Any]) -> dict[Side, float | None]:
    if asked["wait_local"] is None:
        return {}
    return {"local": asked["wait_local"], "remote": asked["wait_remote"]}


def _point(
    by: Placer, asked: dict[str, Any], remote_tokens: int, total: int
) -> request_chart.Point:
    """The same caches under a prompt of another length; a shorter one is all they hold."""
    cached: dict[Side, int] = {
        "local": min(asked["local"], total),
        "remote": min(remote_tokens, total),
    }
    prompt, moment = Request(total, cached), _moment(asked)
    found = by.place(prompt, moment)
    sides = by.estimates(found, prompt, moment)
    local, remote = sides["local"], sides["remote"]
    return request_chart.Point(
        total=total,
        side=found.side,
        reason=found.reason,
        in_band=by.plan is not None and Rule.of(by.plan).in_band(found.uncached_tokens),
        local_s=None if local is None else local.ttft_s,
        remote_s=None if remote is None else remote.ttft_s,
    )


def _edges(by: Placer, prompt: Request) -> set[int]:
    """Lengths after which the rule may say otherwise: t and the band behind each prefix, and where
    one is long enough to move."""
    if by.plan is None:
        return set()
    held = {0, *prompt.cached_tokens.values()}
    t = () if by.plan.threshold_tokens is None else (by.plan.threshold_tokens,)
    behind = {*t, *(by.plan.band or ()), *by.plan.moves.values(), 0}
    return {tokens + more for tokens in held for more in behind}


def _plot_data(plot: request_chart.Plot) -> dict[str, Any]:
    """Columns for the script that reads the plot out under the pointer."""
    points = plot.points
    return {
        "most": plot.most_tokens,
        "total": [p.total for p in points],
        "side": [p.side for p in points],
        "reason": [p.reason for p in points],
        "local_s": [p.local_s for p in points],
        "remote_s": [p.remote_s for p in points],
    }


def _curl(request: HttpRequest, fleet: Fleet, asked: dict[str, Any], remote_tokens: int) -> str:
    body: dict[str, Any] = {
        "cluster": asked["cluster"],
        "total_tokens": asked["total"],
        "cached_tokens": {"local": asked["local"], "remote": remote_tokens},
    }
    if asked["decision"]:
        body["decision"] = int(asked["decision"])
    if asked["free"] is not None:
        body["free_ratio"] = asked["free"]
    moment: dict[str, Any] = {}
    if asked["in_flight"]:
        moment["remote_in_flight"] = asked["in_flight"]
    if asked["local_down"]:
        moment["local_up"] = False
    if asked["remote_down"]:
        moment["admissible"] = []
    if waits := _waits(asked):
        moment["waits_s"] = waits
    if moment:
        body["moment"] = moment
    address = request.build_absolute_uri(reverse("api-explain", args=[fleet.pk]))
    # One line a field: a long one would run out of the page.
    lines = ",\n       ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in body.items())
    return " \\\n  ".join(
        (
            f"curl -s {address}",
            '-H "Authorization: Bearer $TOKEN"',
            "-H 'Content-Type: application/json'",
            f"-d {shlex.quote('{' + lines + '}')}",
        )
    )
