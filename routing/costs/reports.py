"""A fleet's month, put together from its days. The one writer of MonthReport.

A report is made by a worker and kept: a month of 300 links is some seconds of reading. The running
month is made again every `EVERY`, and once more after it ended, when late counters are in; then it
is closed and stays as it is, whatever is later forgotten.
"""

from __future__ import annotations

import datetime
from collections import Counter
from datetime import UTC, timedelta
from typing import Any, Final

from routing import bills, fleets
from routing.core.costs import report as core
from routing.core.costs.money import Prices
from routing.core.costs.report import Billed, Part
from routing.core.links import billing
from routing.core.scenario.document import Scenario
from routing.costs import months, prices, usage
from routing.costs.models import MonthReport
from routing.costs.months import Month
from routing.models import Decision, Fleet, Rebalance

EVERY: Final = timedelta(minutes=15)
LATE: Final = usage.LATE + timedelta(hours=1)
"""After its end a month waits so long for its last day before it is closed."""
VERSION: Final = 1
ROUNDING: Final = "half even, each line"


class NoReport(LookupError):
    """There is no such month of this fleet; the message says which there are."""


def make(fleet: Fleet, month: Month, now: datetime.datetime) -> MonthReport | None:
    """Put the month together and keep it. None: nothing was recorded in it."""
    table, read = prices.of(fleet.pk)
    body = report(fleet, month, now, None if read is None else read.prices)
    if body is None:
        return None
    body["prices_version"] = None if table is None else table.version
    closed = now >= month.ends_at + LATE
    row, _ = MonthReport.objects.update_or_create(
        fleet=fleet.pk,
        month=month.name,
        defaults={"report": body, "closed": closed, "made_at": now},
    )
    return row


def report(
    fleet: Fleet, month: Month, now: datetime.datetime, priced: Prices | None
) -> dict[str, Any] | None:
    """The month as plain values (docs/costs.md). None: nothing was recorded in it."""
    days = month.so_far(now)
    if not days:
        return None
    first, last = days[0].begins_at.date(), days[-1].ends_at.date()
    stored = usage.days_of(fleet.pk, first, last)
    parts = [
        Part(
            f"{day.date:%F}",
            tuple((stored.get(date), first, last) for date, first, last in day.pieces()),
        )
        for day in days
    ]
    if not any(part.sum("minutes") for part in parts):
        return None
    scenario = fleets.scenario_of(fleet)
    until = days[-1].ends_at
    return {
        "v": VERSION,
        "fleet": fleet.pk,
        "month": month.name,
        "zone": month.zone.key,
        "begins_at": month.begins_at.isoformat(),
        "ends_at": month.ends_at.isoformat(),
        "until": until.isoformat(),
        "state": "whole" if until >= month.ends_at else "so_far",
        "currency": None if priced is None else priced.currency,
        "decimals": None if priced is None else priced.decimals,
        "rounding": ROUNDING,
        **core.lines(scenario, parts, _billed(fleet, scenario, month, now), priced),
        "decisions": _decisions(fleet, month.begins_at, until),
    }


def kept(fleet: str, month: str) -> MonthReport:
    """Raises NoReport, in words."""
    row = MonthReport.objects.filter(fleet=fleet, month=month).first()
    if row is None:
        known = list(months_of(fleet)[:12])
        there = f"there are {', '.join(known)}" if known else "there is none yet"
        raise NoReport(f"no report of {fleet} for {month:.20} is kept; {there}")
    return row


def months_of(fleet: str) -> list[str]:
    """The months of which there is a report, newest first."""
    rows = MonthReport.objects.filter(fleet=fleet).order_by("-month")
    return list(rows.values_list("month", flat=True))


def refresh(fleet: Fleet, now: datetime.datetime, *, at_once: bool = False) -> int:
    """Make what is due again: the running month, and the one before until it is closed."""
    _, read = prices.of(fleet.pk)
    zone = prices.zone_of(read)
    this = months.name_of(now, zone)
    known = dict(
        MonthReport.objects.filter(fleet=fleet.pk, month__in=(this, months.before(this)))
        .exclude(closed=True)
        .values_list("month", "made_at")
    )
    closed = MonthReport.objects.filter(fleet=fleet.pk, closed=True).values_list("month", flat=True)
    n = 0
    for name in {this, months.before(this)} - set(closed):
        if at_once or name not in known or now - known[name] >= EVERY:
            n += make(fleet, months.month_of(name, zone), now) is not None
    return n


def _billed(
    fleet: Fleet, scenario: Scenario, month: Month, now: datetime.datetime
) -> dict[str, Billed]:
    """By link, the bill of the UTC month of the same name: what carriers count in."""
    begins = datetime.datetime.fromisoformat(f"{month.name}-01").replace(tzinfo=UTC)
    cycle = billing.cycle_at(begins.timestamp())
    ends_s = cycle.begins_s + cycle.n_samples * billing.SAMPLE_S
    rows = bills.of_cycle(fleet, cycle, until_s=min(now.timestamp(), ends_s))
    return {
        link.id: Billed(bill, counts, link.facts.get("p95_cap_gbps")) for link, counts, bill in rows
    }


def _decisions(fleet: Fleet, since: datetime.datetime, until: datetime.datetime) -> dict[str, Any]:
    """How often the plan changed and instances moved."""
    made = Decision.objects.filter(fleet=fleet, created_at__gte=since, created_at__lt=until)
    moved = Rebalance.objects.filter(fleet=fleet, created_at__gte=since, created_at__lt=until)
    states = Counter(moved.values_list("state", flat=True))
    return {
        "n_pushed": made.filter(version__isnull=False).count(),
        "n_advised": made.filter(version__isnull=True).count(),
        "n_rebalances": sum(states.values()),
        "n_rebalances_done": states["done"],
    }
