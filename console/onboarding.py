"""The onboarding page: what telemetry is expected, what came, what fits, and what to type next.

For one fleet, or for the whole site. `load` reads the tables once and judges; the page and the API
show the same rows.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final

from django.core.paginator import Paginator
from django.db.models import Exists, FloatField, Func, OuterRef, Q, Subquery
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from msgspec import structs

from console import (
    agents_seen,
    onboarding_missing,
    onboarding_refused,
    onboarding_steps,
    onboarding_words,
)
from console.context import FORGOTTEN_AFTER_S
from console.missing import Finding
from console.onboarding_agents import (
    REFUSED_LATELY_S,
    AgentRow,
    Known,
    RefusedRow,
    ToldBy,
    agent_rows,
)
from console.onboarding_rows import (
    Expected,
    Heard,
    Inventory,
    Key,
    Read,
    Site,
    SourceRow,
    expectations,
    rows_at,
    source_rows,
)
from console.onboarding_signals import SignalRow, StrangerRow, signal_rows, stranger_rows
from console.onboarding_words import Gap
from console.roles import readable
from console.wanted import KINDS
from routing import rights
from routing.models import Fleet, RouterState
from telemetry import reports, store
from telemetry.models import Agent, ApiToken, Source

SOURCES_PER_PAGE: Final = 50
AGENTS_PER_PAGE: Final = 25
MOST_EXPECTED: Final = 60
STRANGERS_SHOWN: Final = 50
_UNTOLD: Final[tuple[object, ...]] = (None, {})
"""What a signal is that a reading does not hold."""
REPORT_LASTS_S: Final = 90.0
"""An agent that was heard so long after its newest report sends none: what it says is past."""
SHOWN: Final = {
    "all": _lazy("All"),
    "trouble": _lazy("In trouble"),
    "instance": _lazy("Instances"),
    "link": _lazy("Links"),
    "router": _lazy("Gates"),
}


@dataclass(frozen=True)
class Telemetry:
    """Everything known of the telemetry of a fleet (or the site), at one moment."""

    fleet: Fleet | None
    inventories: Mapping[str, Inventory]
    rows: list[SourceRow]
    agents: list[AgentRow]
    refused: list[RefusedRow]
    findings: list[Finding]
    now_s: float

    @cached_property
    def expected(self) -> list[tuple[str, Expected]]:
        """(fleet, what it expects and gets), fleet by fleet."""
        there = rows_at(self.rows)
        links = {row.path: row for row in self.rows if row.kind == "link"}
        return [
            (inventory.fleet, expected)
            for inventory in self.inventories.values()
            for expected in expectations(inventory, there, links)
        ]

    @property
    def strangers(self) -> list[StrangerRow]:
        reports_of = {row.name: row.report for row in self.agents if row.report is not None}
        return stranger_rows(self.rows, reports_of)

    @property
    def has_begun(self) -> bool:
        """Whether anything of these fleets ever reported (within a day)."""
        return any(row.fleet and row.last_s is not None for row in self.rows)

    def gaps(self, signals: Sequence[SignalRow]) -> tuple[list[Gap], int]:
        """What is missing that has a next command, the first of it in words, and how much it is."""
        return onboarding_words.gaps(
            self.inventories,
            self.rows,
            self.agents,
            self.refused,
            signals,
            self.findings,
            now_s=self.now_s,
            has_begun=self.has_begun,
        )


def load(shown: str | None, now: datetime, seen: frozenset[str] | None = None) -> Telemetry:
    """Fleet `shown`, or the whole site, as the database has it at `now`. Of agents other than
    those `seen` (None: all) nothing is told."""
    fleets = {
        fleet.pk: fleet for fleet in onboarding_missing.with_loops(Fleet.objects.order_by("name"))
    }
    if shown is not None and shown not in fleets:
        raise Http404(_("There is no such fleet."))
    everyone = inventories(now, fleets.values())
    mine = everyone if shown is None else {shown: everyone[shown]}
    heard = _heard(shown, everyone, now)
    if seen is not None:
        heard = [one for one in heard if one.agent in seen]
    told = reports.told(None if shown is None else {one.agent for one in heard})
    agents = _agents(now)
    current = {
        name: told[name]
        for name in told
        if name in agents and agents[name].last_s - told[name].at_s <= REPORT_LASTS_S
    }
    reads = _reads(shown, heard, current, agents, now)
    # A report without sources was too large to keep them: it says nothing of what is not there.
    telling = {name for name, one in current.items() if one.report.sources}
    heard = [_as_heard(one, reads.get((one.kind, one.path)), telling) for one in heard]
    rows = source_rows(heard, reads, everyone, shown=shown, now_s=now.timestamp())
    names = {row.agent for row in rows if row.agent}
    refused = _refused(shown, names, now, seen)
    names |= {row.agent for row in refused if row.agent}
    known = {name: one for name, one in agents.items() if shown is None or name in names}
    judged = _agent_rows(known, rows, told, refused, now)
    return Telemetry(
        fleet=None if shown is None else fleets[shown],
        inventories=mine,
        rows=rows,
        agents=judged,
        refused=refused,
        findings=onboarding_missing.findings(mine, rows, judged, now),
        now_s=now.timestamp(),
    )


def inventories(now: datetime, fleets: Iterable[Fleet]) -> dict[str, Inventory]:
    """What every registered fleet is made of, by its name. `fleets` are of `with_loops`."""
    gates: dict[str, list[str]] = {}
    lately = now - timedelta(seconds=FORGOTTEN_AFTER_S)
    routers = RouterState.objects.filter(last_seen_at__gt=lately).order_by("router")
    for fleet, router in routers.values_list("fleet_id", "router"):
        gates.setdefault(fleet, []).append(router)
    return {fleet.pk: _inventory(fleet, tuple(gates.get(fleet.pk, ()))) for fleet in fleets}


def _inventory(fleet: Any, gates: tuple[str, ...]) -> Inventory:
    # The document itself: an upgrade that no longer accepts it must not take this page along.
    document = fleet.scenario
    return Inventory(
        fleet=fleet.pk,
        sites={
            cluster["name"]: Site(
                kind=cluster["kind"],
                profile=cluster["profile"],
                instances=cluster["instances"],
                n_prefill=cluster.get("start", {}).get("n_prefill"),
            )
            for cluster in document.get("clusters", [])
        },
        links={f"{link['from']}->{link['to']}": link["gbps"] for link in document.get("links", [])},
        gates=gates,
        loop=onboarding_missing.loop_of(fleet),
    )


def _heard(shown: str | None, everyone: Mapping[str, Inventory], now: datetime) -> list[Heard]:
    """Sources of the last day: those of `shown`, all links, and those of no registered fleet."""
    found = Source.objects.filter(last_seen_at__gt=now - timedelta(seconds=FORGOTTEN_AFTER_S))
    if shown is not None:
        wanted = Q(kind="link") | Q(path__startswith=f"{shown}/")
        stranger = Q()
        for name in everyone:
            stranger &= ~Q(path__startswith=f"{name}/")
        found = found.filter(wanted | stranger)
    columns = found.values_list(
        *("kind", "path", "role", "engine", "engine_version", "agent"),
        *(_seconds("first_seen_at"), _seconds("last_seen_at")),
    )
    return [Heard(*row) for row in columns]


def _seconds(column: str) -> Func:
    """A moment as the database tells it in seconds: thousands are many to make datetimes of."""
    template = "extract(epoch FROM %(expressions)s)::float8"
    return Func(column, template=template, output_field=FloatField())


def _agents(now: datetime) -> dict[str, Known]:
    """Every agent that was heard in the last day."""
    lately = now - timedelta(seconds=FORGOTTEN_AFTER_S)
    found = Agent.objects.filter(last_seen_at__gt=lately)
    return {
        name: Known(last_s=at.timestamp(), skew_s=skew_s)
        for name, at, skew_s in found.values_list("name", "last_seen_at", "skew_s")
    }


def _as_heard(one: Heard, read: Read | None, telling: Container[str]) -> Heard:
    """The table of sources is written every few minutes: whoever told more lately counts."""
    if read is not None:
        return structs.replace(one, last_s=read.heard_s) if read.heard_s > one.last_s else one
    return structs.replace(one, is_left=True) if one.agent in telling else one


def _reads(
    shown: str | None,
    heard: Sequence[Heard],
    told: Mapping[str, reports.Told],
    agents: Mapping[str, Known],
    now: datetime,
) -> dict[Key, Read]:
    """What is known of each source's newest reading: by its agent's report, or by itself."""
    by_agent = {
        agent: {(source.kind, source.id): source for source in found.report.sources}
        for agent, found in told.items()
    }
    reads: dict[Key, Read] = {}
    for one in heard:
        source = by_agent.get(one.agent, {}).get((one.kind, one.path))
        if source is not None:
            reads[one.kind, one.path] = Read(
                found=frozenset(source.found),
                at_s=told[one.agent].at_s,
                heard_s=agents[one.agent].last_s,
                state=source.state,
                error=source.error or "",
                report=source,
            )
    untold = {one.kind for one in heard if (one.kind, one.path) not in reads}
    if untold:
        _read_samples(untold, shown, reads, now)
    return reads


def _read_samples(
    kinds: Collection[str], shown: str | None, reads: dict[Key, Read], now: datetime
) -> None:
    """For sources of which nobody reports: what their newest reading holds."""
    prefixes = {kind: "" if shown is None or kind == "link" else f"{shown}/" for kind in kinds}
    newest = store.latest_of(prefixes, now_s=now.timestamp(), within_s=REPORT_LASTS_S)
    for reading in itertools.chain.from_iterable(newest.values()):
        key = (reading.kind, reading.path)
        if key not in reads:
            reads[key] = Read(
                found=told_of(reading.signals),
                at_s=reading.received_s,
                heard_s=reading.received_s,
                state=reading.state,
                error=reading.error or "",
            )


def told_of(signals: store.Signals) -> frozenset[str]:
    """Names of the signals that a reading holds: one set for all that hold the same."""
    return _told(type(signals), tuple(map(_UNTOLD.__contains__, structs.astuple(signals))))


@functools.lru_cache(maxsize=1024)
def _told(kind: type[store.Signals], is_untold: tuple[bool, ...]) -> frozenset[str]:
    names = zip(kind.__struct_fields__, is_untold, strict=True)
    return frozenset(name for name, untold in names if not untold)


def _refused(
    shown: str | None, mine: set[str], now: datetime, seen: frozenset[str] | None
) -> list[RefusedRow]:
    """Refusals of the last day: of agents of the fleet, and of those that belong to none yet."""
    issued = ApiToken.objects.filter(prefix=OuterRef("token"))
    found: Iterable[Any] = reports.refused(
        since=now - timedelta(seconds=FORGOTTEN_AFTER_S)
    ).annotate(
        token_name=Subquery(issued.values("name")[:1]),
        token_fleet=Subquery(issued.values("fleet")[:1]),
        reads=Exists(Source.objects.filter(agent=OuterRef("agent"))),
    )
    rows = []
    for row in found:
        token, fleet = row.token_name or "", row.token_fleet or ""
        is_elsewhere = row.reads and row.agent not in mine
        if shown is not None and (is_elsewhere or fleet not in ("", shown)):
            continue
        if seen is not None and row.agent not in seen and fleet != shown:
            continue
        rows.append(
            RefusedRow(
                agent=row.agent,
                token=row.token,
                whose=row.agent or (_("token %(token)s") % {"token": token} if token else ""),
                status=row.status,
                field=row.field,
                error=row.error,
                count=row.count,
                first_s=row.first_at.timestamp(),
                last_s=row.last_at.timestamp(),
                is_recent=(now - row.last_at).total_seconds() <= REFUSED_LATELY_S,
            )
        )
    return rows


def _agent_rows(
    known: Mapping[str, Known],
    rows: Sequence[SourceRow],
    told: Mapping[str, reports.Told],
    refused: Sequence[RefusedRow],
    now: datetime,
) -> list[AgentRow]:
    return agent_rows(
        known,
        {name: ToldBy(one.report, one.at_s) for name, one in told.items()},
        refused,
        Counter(row.agent for row in rows if row.agent),
        now_s=now.timestamp(),
    )


@readable
def fleet_page(request: HttpRequest, fleet: str) -> HttpResponse:
    """One fleet's telemetry, or the path to its first figures."""
    telemetry = load(fleet, timezone.now(), agents_seen.by(rights.of(request.user)))
    if request.session.get("fleet") != fleet:  # pages without a fleet keep the last one's frame
        request.session["fleet"] = fleet
    return _page(request, telemetry)


@readable
def site_page(request: HttpRequest) -> HttpResponse:
    """Everything that reports to this console, whatever it belongs to."""
    return _page(request, load(None, timezone.now()))


def _page(request: HttpRequest, telemetry: Telemetry) -> HttpResponse:
    fleet = telemetry.fleet
    signals = signal_rows(telemetry.rows)
    gaps, n_gaps = telemetry.gaps(signals)
    strangers = telemetry.strangers
    show = request.GET.get("show", "all")
    search = request.GET.get("q", "")
    chosen = chosen_rows(telemetry.rows, show=show, search=search)
    context = {
        "fleet": fleet,
        "missing": telemetry.findings[: onboarding_words.MAX_GAPS] if fleet else [],
        "telemetry": telemetry,
        "headline": _headline(telemetry, n_gaps),
        "expected": worst_expected(telemetry.expected),
        "n_expected": len(telemetry.expected),
        "path": _path(request, fleet, telemetry),
        "gaps": gaps[: onboarding_words.MAX_GAPS],
        "n_gaps_left": max(n_gaps - onboarding_words.MAX_GAPS, 0),
        "lacking": [row for row in signals if row.n_lacking],
        "told": [row for row in signals if not row.n_lacking],
        "filters": _filters(telemetry.rows),
        "show": show,
        "search": search,
        "sources": Paginator(chosen, SOURCES_PER_PAGE).get_page(request.GET.get("page")),
        "agents": Paginator(_worst_first(telemetry.agents), AGENTS_PER_PAGE).get_page(
            request.GET.get("agents")
        ),
        "strangers": strangers[:STRANGERS_SHOWN],
        "n_strangers": len(strangers),
        "n_unmatched": sum(row.state == "unmatched" for row in telemetry.rows),
        "refused": [(row, onboarding_refused.refused_words(row)) for row in telemetry.refused],
        "other_fleets": [] if fleet else list(telemetry.inventories),
    }
    return render(request, "onboarding.html", context)


def worst_expected(rows: list[tuple[str, Expected]]) -> list[tuple[str, Expected]]:
    """Of many those that lack the most, in their order; few stay as they are."""
    if len(rows) <= MOST_EXPECTED:
        return rows
    order = {tone: place for place, tone in enumerate(("bad", "warn", "info", "off", "good"))}
    return sorted(rows, key=lambda row: order.get(row[1].tone, 0))[:MOST_EXPECTED]


def _headline(telemetry: Telemetry, n_gaps: int) -> str:
    if not telemetry.has_begun:
        return (
            _("Nothing reports yet.") if telemetry.inventories else _("No fleet is described yet.")
        )
    several = len(telemetry.inventories) > 1
    expected = [
        (f"{row.label} ({name})" if several else row.label, row.expected, row.fresh)
        for name, row in telemetry.expected
    ]
    return onboarding_words.headline(expected, n_gaps)


def chosen_rows(rows: Sequence[SourceRow], *, show: str, search: str) -> list[SourceRow]:
    """Rows of one kind, or those in trouble, whose id, agent, engine or state has `search`;
    those in trouble first."""
    wanted = search.lower()
    found = [
        row
        for row in rows
        if (show not in KINDS or row.kind == show)
        and (show != "trouble" or row.in_trouble)
        and (not wanted or wanted in _searched(row))
    ]
    return _worst_first(found)


def _searched(row: SourceRow) -> str:
    return f"{row.path} {row.agent} {row.engine} {row.role} {row.mark.text}".lower()


def _worst_first(rows: Sequence[Any]) -> list[Any]:
    # Python's sort keeps the order of equals: by id within each half.
    return sorted(rows, key=lambda row: not row.in_trouble)


def _filters(rows: Sequence[SourceRow]) -> list[dict[str, Any]]:
    n = Counter(row.kind for row in rows)
    n["all"] = len(rows)
    n["trouble"] = sum(row.in_trouble for row in rows)
    return [{"value": value, "label": label, "n": n[value]} for value, label in SHOWN.items()]


def _path(
    request: HttpRequest, fleet: Fleet | None, telemetry: Telemetry
) -> list[onboarding_steps.Step]:
    """The numbered way to the first figures; empty once anything of the fleet reported."""
    if fleet is None:
        return [] if telemetry.inventories else onboarding_steps.first_fleet()
    if telemetry.has_begun:
        return []
    usable = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    tokens = ApiToken.objects.filter(usable, revoked_at=None, fleet__in=("", fleet.pk))
    return onboarding_steps.start_path(
        telemetry.inventories[fleet.pk],
        console_url=request.build_absolute_uri("/").rstrip("/"),
        has_token=tokens.filter(scopes__contains=["ingest"]).exists(),
        has_agent=bool(telemetry.agents),
    )
