"""The first page: every fleet of this console, with what is wrong of each, in a handful of queries
however many there are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.db.models import Count, OuterRef, Q, Subquery
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from console import figures
from console.context import BAD, GOOD, OFF, WARN, Mark, loop_stale_s
from console.listing import Column, listing
from console.missing import CLOCK_AHEAD_S
from console.roles import readable_across
from routing import rights
from routing.alerts.models import Incident
from routing.models import Fleet, Hold, ManagedRouter, RouterState, Tick

PER_PAGE: Final = 50
_GRAVITY: Final = {"bad": 0, "warn": 1, "off": 2, "good": 3}


@dataclass(frozen=True)
class Facts:
    """What is known of one fleet without reading its telemetry. `tick_at` None: the loop has not
    run for it; `headroom` None: nothing was predicted."""

    name: str
    mode: str
    tick_at: datetime | None = None
    message: str = ""
    headroom: float | None = None
    n_held: int = 0
    n_drifted: int = 0
    n_unreachable: int = 0
    n_overridden: int = 0
    n_firing: int = 0
    n_routers: int = 0


@dataclass(frozen=True)
class FleetRow:
    """A fleet as the list shows it; `mark` is the gravest of what is wrong, `also` the rest."""

    facts: Facts
    mark: Mark
    also: tuple[str, ...]
    loop_age_s: float | None

    @property
    def gravity(self) -> tuple[int, int, str]:
        return _GRAVITY[self.mark.tone], -len(self.also), self.facts.name


COLUMNS: Final = (
    Column("name", gettext_lazy("Fleet"), lambda row: row.facts.name, is_name=True),
    Column("mode", gettext_lazy("Mode"), lambda row: row.facts.mode),
    Column("state", gettext_lazy("State"), lambda row: row.gravity),
    Column("headroom", gettext_lazy("Headroom"), lambda row: row.facts.headroom, is_number=True),
    Column("firing", gettext_lazy("Firing"), lambda row: row.facts.n_firing, is_number=True),
    Column("drifted", gettext_lazy("Drifted"), lambda row: row.facts.n_drifted, is_number=True),
    Column("held", gettext_lazy("Held"), lambda row: row.facts.n_held, is_number=True),
    Column("loop", gettext_lazy("Last tick"), lambda row: row.loop_age_s, is_number=True),
)
STATES: Final = (
    ("bad", gettext_lazy("in trouble")),
    ("warn", gettext_lazy("with a warning")),
    ("good", gettext_lazy("healthy")),
    ("off", gettext_lazy("not running yet")),
)


@readable_across
def home(request: HttpRequest) -> HttpResponse:
    """The only fleet's overview, a choice between several, or how to make the first."""
    found = facts_of(rights.of(request.user).fleets("read"), timezone.now())
    if len(found) == 1:
        query = request.GET.urlencode()
        address = reverse("fleet-overview", args=[found[0].name])
        return redirect(f"{address}?{query}" if query else address)
    now = timezone.now()
    stale_s = loop_stale_s(settings.ENV["CONSOLE_TICK_S"])
    rows = [row_of(facts, now, stale_s=stale_s) for facts in found]
    tones = Counter(row.mark.tone for row in rows)
    words, state = request.GET.get("q", "").lower(), request.GET.get("state", "")
    left = [row for row in rows if words in row.facts.name.lower() and state in ("", row.mark.tone)]
    context = {
        "list": listing(
            left, COLUMNS, request.GET, all_total=len(rows), per_page=PER_PAGE, sort="state"
        ),
        "asked": {"q": request.GET.get("q", ""), "state": state},
        "states": [(key, label, tones[key]) for key, label in STATES],
    }
    return render(request, "home.html", context)


def facts_of(names: frozenset[str] | None, now: datetime) -> list[Facts]:
    """The fleets of these names, or every fleet, by name."""
    newest = Tick.objects.filter(fleet=OuterRef("pk")).order_by("-seq").values("pk")[:1]
    fleets = Fleet.objects.order_by("name").annotate(tick_id=Subquery(newest))
    if names is not None:
        fleets = fleets.filter(pk__in=names)
    named = list(fleets.values_list("name", "policy__mode", "tick_id"))
    ticks = {
        row["pk"]: row
        for row in Tick.objects.filter(pk__in=[tick for *_, tick in named if tick]).values(
            "pk", "at", "verdict__message", "verdict__current__headroom"
        )
    }
    held = _counted(Hold.objects.filter(released_at=None, expires_at__gt=now))
    managed = _counted(ManagedRouter.objects.all(), "state")
    gates = RouterState.objects.values("fleet_id").annotate(
        n=Count("pk"), n_over=Count("pk", filter=Q(override__until_s__gt=now.timestamp()))
    )
    of_gates = {row["fleet_id"]: (row["n"], row["n_over"]) for row in gates}
    firing = Incident.objects.filter(resolved_at=None).values("fleet").annotate(n=Count("pk"))
    of_alerts = {row["fleet"]: row["n"] for row in firing}
    found = []
    for name, mode, tick_id in named:
        tick = ticks.get(tick_id, {})
        n_gates, n_overridden = of_gates.get(name, (0, 0))
        found.append(
            Facts(
                name=name,
                mode=mode,
                tick_at=tick.get("at"),
                message=tick.get("verdict__message") or "",
                headroom=tick.get("verdict__current__headroom"),
                n_held=held[name,],
                n_drifted=managed[name, "drifted"],
                n_unreachable=managed[name, "unreachable"],
                n_overridden=n_overridden,
                n_firing=of_alerts.get(name, 0),
                n_routers=n_gates + sum(n for key, n in managed.items() if key[0] == name),
            )
        )
    return found


def _counted(rows: Any, *by: str) -> Counter[tuple[Any, ...]]:
    """How many rows there are of each fleet (and of each `by`)."""
    keys = ("fleet_id", *by)
    found = rows.order_by().values(*keys).annotate(n=Count("pk"))
    return Counter({tuple(row[key] for key in keys): row["n"] for row in found})


def row_of(facts: Facts, now: datetime, *, stale_s: float) -> FleetRow:
    """What is wrong of a fleet, the gravest first; nothing wrong is said in a word as well."""
    age_s = None if facts.tick_at is None else (now - facts.tick_at).total_seconds()
    marks = list(_troubles(facts, age_s, stale_s))
    if not marks:
        is_new = facts.tick_at is None
        word = Mark(*OFF, _("the loop has not run yet")) if is_new else Mark(*GOOD, _("healthy"))
        return FleetRow(facts, word, (), age_s)
    marks.sort(key=lambda mark: _GRAVITY[mark.tone])
    return FleetRow(facts, marks[0], tuple(mark.text for mark in marks[1:]), age_s)


def _troubles(facts: Facts, age_s: float | None, stale_s: float) -> Any:
    if age_s is not None and age_s < -CLOCK_AHEAD_S:
        yield Mark(*BAD, _("clock set back"))
    elif age_s is not None and age_s > stale_s:
        yield Mark(*BAD, _("loop silent since %(at)s") % {"at": figures.clock(facts.tick_at)})
    if n := facts.n_firing:
        words = ngettext("%(n)s alert fires", "%(n)s alerts fire", n)
        yield Mark(*BAD, words % {"n": n})
    if n := facts.n_drifted:
        words = ngettext("%(n)s router drifted", "%(n)s routers drifted", n)
        yield Mark(*BAD, words % {"n": n})
    if n := facts.n_unreachable:
        words = ngettext("%(n)s router unreachable", "%(n)s routers unreachable", n)
        yield Mark(*BAD, words % {"n": n})
    if n := facts.n_overridden:
        words = ngettext("%(n)s gate overridden by hand", "%(n)s gates overridden by hand", n)
        yield Mark(*BAD, words % {"n": n})
    if facts.headroom is not None and facts.headroom < 1:
        yield Mark(*BAD, _("demand is above capacity"))
    if n := facts.n_held:
        yield Mark(*WARN, ngettext("%(n)s hold", "%(n)s holds", n) % {"n": n})
    if facts.mode == "paused":
        yield Mark(*WARN, _("paused"))
