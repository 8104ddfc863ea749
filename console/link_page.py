"""The links of a fleet as a list, and one directed link with all that is known of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.http import Http404, HttpRequest, HttpResponseBase, QueryDict
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as say
from django.utils.translation import gettext_lazy as _

from console import csv_cells, link_states, signal_rows
from console.context import Mark
from console.listing import Column, listing
from console.opened import opened_at_tick
from console.roles import readable
from routing import bills
from routing.core.links import billing
from routing.core.scenario.document import Link, Scenario
from routing.models import Decision, Fleet, Tick
from telemetry.models import Source

PER_PAGE: Final = 50
MOST_BOUND: Final = 10
MOST_SEARCHED: Final = 60
"""Decisions that are searched for those that a link bound: each has a verdict to be unpacked."""
EVENTS: Final = 20


@dataclass(frozen=True)
class LinkRow:
    """A link as lists show it. `told` is its row of `link_states`; `left_s` how long it may still
    be above the cap of its bill this month, None without a cap or where that is not known."""

    link: Link
    told: dict[str, Any]
    cap_gbps: float | None
    left_s: float | None
    age_s: float | None

    @property
    def id(self) -> str:
        return self.link.id

    @property
    def state(self) -> Mark:
        found: Mark = self.told["state"]
        return found

    @property
    def breaker(self) -> str:
        found: str = self.told["breaker"]
        return found

    def signal(self, name: str) -> float | None:
        signals = self.told["signals"]
        return None if signals is None else getattr(signals, name)

    @property
    def use(self) -> float | None:
        return self.told.get("utilisation_ratio")

    @property
    def tx_gbps(self) -> float | None:
        return self.signal("tx_gbps")

    @property
    def retransmit_ratio(self) -> float | None:
        return self.signal("retransmit_ratio")

    @property
    def rtt_s(self) -> float | None:
        return self.signal("rtt_s")

    @property
    def connections(self) -> float | None:
        return self.signal("connections")


COLUMNS: Final = (
    Column("name", _("Link"), lambda row: row.id, is_name=True),
    Column("state", _("State"), lambda row: str(row.state.text)),
    Column("breaker", _("Breaker"), lambda row: row.breaker),
    Column("egress", _("Egress"), lambda row: row.tx_gbps, is_number=True),
    Column("capacity", _("Capacity"), lambda row: row.told["capacity_gbps"], is_number=True),
    Column("use", _("Use"), lambda row: row.use, is_number=True),
    Column("loss", _("Retransmits"), lambda row: row.retransmit_ratio, is_number=True),
    Column("rtt", _("Round trip"), lambda row: row.rtt_s, is_number=True),
    Column("connections", _("Connections"), lambda row: row.connections, is_number=True,
           is_usual=False),
    Column("bill", _("Left above cap"), lambda row: row.left_s, is_number=True),
    Column("layer", _("Read at"), lambda row: row.told.get("layer") or "", is_usual=False),
    Column("age", _("Age"), lambda row: row.age_s, is_number=True),
)  # fmt: skip
STATES: Final = (
    ("clear", _("clear")),
    ("near_limit", _("near limit")),
    ("congested", _("congested")),
    ("flow_limited", _("flow-limited")),
    ("burst", _("burst")),
    ("down", _("down")),
    ("unread", _("not read")),
    ("breaker", _("breaker not closed")),
)


@readable
def every(request: HttpRequest, fleet: str) -> HttpResponseBase:
    """A page of the list, or all that the filter leaves as CSV."""
    found, scenario, tick = opened_at_tick(request, fleet)
    now = timezone.now()
    rows = rows_of(scenario, tick, now)
    left = narrowed(rows, request.GET)
    if request.GET.get("format") == "csv":
        return _csv(found, left)
    shown = listing(left, COLUMNS, request.GET, all_total=len(rows), per_page=PER_PAGE)
    context = {
        "fleet": found,
        "list": shown,
        "clusters": [cluster.name for cluster in scenario.clusters],
        "states": STATES,
        "asked": {name: request.GET.get(name, "") for name in ("q", "cluster", "state")},
    }
    return render(request, "links.html", context)


def rows_of(scenario: Scenario, tick: Tick | None, now: datetime) -> list[LinkRow]:
    """Every link of the scenario, by its id, with what the newest pass of the loop found."""
    told = link_states.judged(scenario, tick, link_states.NOTHING, now)
    rows = [row_of(link, row, now) for link, row in zip(scenario.links, told, strict=True)]
    return sorted(rows, key=lambda row: row.id)


def row_of(link: Link, told: dict[str, Any], now: datetime) -> LinkRow:
    cap = link.facts.get("p95_cap_gbps")
    left_s = None
    if cap is not None and told["memory"] is not None:
        left_s = billing.burst_left_s(told["memory"].billing, now.timestamp())
    at = told.get("at")
    age_s = None if at is None else max((now - at).total_seconds(), 0.0)
    return LinkRow(link, told, cap, left_s, age_s)


def narrowed(rows: list[LinkRow], asked: QueryDict) -> list[LinkRow]:
    """Those whose id holds `q`, from or to `cluster`, in `state`."""
    words, cluster = asked.get("q", "").lower(), asked.get("cluster", "")
    state = asked.get("state", "")
    return [
        row
        for row in rows
        if words in f"{row.id} {row.link.source} → {row.link.target}".lower()
        and (not cluster or cluster in (row.link.source, row.link.target))
        and _is_in(row, state)
    ]


def _is_in(row: LinkRow, state: str) -> bool:
    if state == "unread":
        return row.told["mark"].tone != "good"
    if state == "breaker":
        return row.breaker not in ("", "closed")
    return not state or row.told["label"] == state


_CSV: Final[tuple[tuple[str, Any], ...]] = (
    ("link", lambda row: row.id),
    ("state", lambda row: str(row.state.text)),
    ("breaker", lambda row: row.breaker),
    ("tx_gbps", lambda row: row.tx_gbps),
    ("capacity_gbps", lambda row: row.told["capacity_gbps"]),
    ("utilisation_ratio", lambda row: row.use),
    ("retransmit_ratio", lambda row: row.retransmit_ratio),
    ("rtt_s", lambda row: row.rtt_s),
    ("connections", lambda row: row.connections),
    ("p95_cap_gbps", lambda row: row.cap_gbps),
    ("above_cap_left_s", lambda row: row.left_s),
    ("read_at", lambda row: row.told.get("at")),
)


def _csv(fleet: Fleet, rows: list[LinkRow]) -> HttpResponseBase:
    cells = ([value(row) for _name, value in _CSV] for row in rows)
    return csv_cells.stream(cells, [name for name, _value in _CSV], f"{fleet.pk}-links")


@readable
def page(request: HttpRequest, fleet: str) -> HttpResponseBase:
    """One directed link, the reverse direction beside it."""
    found, scenario, tick = opened_at_tick(request, fleet)
    now = timezone.now()
    links = {link.id: link for link in scenario.links}
    link = links.get(request.GET.get("id", ""))
    if link is None:
        raise Http404(say("This fleet has no such link."))
    reverse = links.get(f"{link.target}->{link.source}")
    past = link_states.history(found, len(links), now, only=link.id)
    told = {row["id"]: row for row in link_states.judged(scenario, tick, past, now)}
    reading = told[link.id]["reading"]
    context = {
        "fleet": found,
        "link": link,
        "row": row_of(link, told[link.id], now),
        "reverse": reverse,
        "back": row_of(reverse, told[reverse.id], now) if reverse else None,
        "tick": tick,
        "is_old": link_states.is_old(tick, now),
        "signals": None if reading is None else signal_rows.rows(reading),
        "reading": reading,
        "source": Source.objects.filter(kind="link", path=link.id).first(),
        "events": [event for event in past.events if event.link == link.id][:EVENTS],
        "since": past.since,
        "is_billed": is_billed(link) or "bill" in request.GET,
        "bill": bill_of(found, link, now, asked="bill" in request.GET),
        "decisions": bound_by(found, link.id),
        "most_searched": MOST_SEARCHED,
        "predicted": predicted_of(tick.verdict if tick else {}, link.id),
        "page_data": {"fleet": fleet, "charts": charts_of(link, reverse)},
    }
    return render(request, "link.html", context)


def is_billed(link: Link) -> bool:
    """Whether the scenario says what its bill is about: a price, or a cap."""
    return not link.facts.keys().isdisjoint(("cost_per_gbps_month", "p95_cap_gbps"))


def bill_of(fleet: Fleet, link: Link, now: datetime, *, asked: bool) -> dict[str, Any] | None:
    """What it costs this month: a month of samples, read where somebody wants to know."""
    if not asked and not is_billed(link):
        return None
    return next(iter(bills.bills(fleet, now_s=now.timestamp(), only=link.id)), None)


def bound_by(fleet: Fleet, link: str) -> list[Decision]:
    """Of the fleet's newest decisions those that this link bound: by the model, or by what was
    measured."""
    verdict, stage = "tick__verdict", f"link:{link}"
    rows = (
        Decision.objects.filter(fleet=fleet)
        .annotate(
            by_model=KeyTextTransform("bottleneck", KeyTransform("current", verdict)),
            measured=KeyTextTransform("stage", KeyTransform("bottleneck", verdict)),
        )
        .only("id", "version", "reason", "message", "created_at", "kind", "fleet_id")
        .order_by("-created_at", "-id")[:MOST_SEARCHED]
    )
    return [row for row in rows if stage in (row.by_model, row.measured)][:MOST_BOUND]


def predicted_of(verdict: dict[str, Any], link: str) -> dict[str, Any]:
    """What the model expects of the link under the plan that runs, at the present demand."""
    current = verdict.get("current") or {}
    stages = {stage["name"]: stage for stage in current.get("stages", ())}
    return {
        "gbps": current.get("link_gbps", {}).get(link),
        "utilisation_ratio": current.get("link_utilisation_ratio", {}).get(link),
        "capacity_rps": stages.get(f"link:{link}", {}).get("capacity_rps"),
        "binds": current.get("bottleneck") == f"link:{link}",
    }


def charts_of(link: Link, reverse: Link | None) -> list[dict[str, Any]]:
    """What the page's script draws (`static/console/detail.js`)."""

    def series(of: Link, field: str, label: str, look: str) -> dict[str, str]:
        return {"name": f"link:{of.id}:{field}", "label": label, "look": look}

    sent = [
        series(link, "tx_gbps", f"{link.source} → {link.target}", "remote"),
        series(link, "capacity_gbps", say("capacity"), "text dash"),
    ]
    if reverse is not None:
        words = f"{reverse.source} → {reverse.target}"
        sent.append(series(reverse, "tx_gbps", words, "local"))
    return [
        {"id": "egress", "unit": "Gbps", "lines": sent},
        {
            "id": "loss",
            "unit": "ratio",
            "least": 0.005,  # a hair of loss must not look like congestion
            "lines": [series(link, "retransmit_ratio", say("retransmits"), "bad")],
        },
        {"id": "rtt", "unit": "s", "lines": [series(link, "rtt_s", say("round trip"), "good")]},
        {
            "id": "connections",
            "unit": "",
            "lines": [series(link, "connections", say("connections"), "decode")],
        },
    ]
