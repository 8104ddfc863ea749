"""Pages of costs: a month of a fleet, its prices, and what its decisions were worth."""

from __future__ import annotations

import json
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache

from console import bars, cost_words, documents
from console.changes import VIA
from console.listing import Column, listing
from console.opened import opened
from console.roles import operators_only, readable
from routing import audit
from routing.commands import Refused
from routing.core.costs.report import PARTS
from routing.costs import months, prices, reports, tasks, values
from routing.costs.models import MonthReport
from routing.models import Fleet

PER_PAGE: Final = 50
LISTS: Final = ("pools", "links", "days")
POOLS: Final = (
    Column("name", gettext_lazy("Cluster"), lambda row: row["cluster"], is_name=True),
    Column("role", gettext_lazy("Role"), lambda row: row["role"]),
    Column("gpu", gettext_lazy("GPU"), lambda row: row["gpu"]),
    Column("gpu_hours", gettext_lazy("GPU-hours"), lambda row: row["gpu_hours"], is_number=True),
    Column("instance_hours", gettext_lazy("Instance-hours"), lambda row: row["instance_hours"],
           is_number=True),
    Column("price", gettext_lazy("Price"), lambda row: _float(row["price"]), is_number=True),
    Column("money", gettext_lazy("Money"), lambda row: _float(row["money"]), is_number=True),
    Column("missing", gettext_lazy("Not measured"), lambda row: row["missing_hours"],
           is_number=True),
)  # fmt: skip
LINKS: Final = (
    Column("name", gettext_lazy("Link"), lambda row: row["id"], is_name=True),
    Column("egress", gettext_lazy("Egress"), lambda row: row["bytes"], is_number=True),
    Column("money_gb", gettext_lazy("By the GB"), lambda row: _float(row["money_gb"]),
           is_number=True),
    Column("p95", gettext_lazy("95th percentile"), lambda row: _of(row, "billed_gbps"),
           is_number=True),
    Column("left", gettext_lazy("Burst left"), lambda row: _of(row, "burst_left_s"),
           is_number=True),
    Column("money_p95", gettext_lazy("By the percentile"), lambda row: _float(row["money_p95"]),
           is_number=True),
    Column("money", gettext_lazy("Money"), lambda row: _float(row["money"]), is_number=True),
    Column("missing", gettext_lazy("Not measured"), lambda row: row["missing_hours"],
           is_number=True),
)  # fmt: skip
DAYS: Final = (
    Column("name", gettext_lazy("Day"), lambda row: row["day"], is_name=True),
    *(
        Column(part, label, lambda row, part=part: row["instance_hours"][part], is_number=True)
        for part, label in (
            ("remote_prefill", gettext_lazy("Remote prefill")),
            ("local_prefill", gettext_lazy("Local prefill")),
            ("decode", gettext_lazy("Decode")),
        )
    ),
    Column("gpu_hours", gettext_lazy("GPU-hours"), lambda row: row["gpu_hours"], is_number=True),
    Column("egress", gettext_lazy("Egress"), lambda row: row["bytes"], is_number=True),
    Column("missing", gettext_lazy("Not measured"),
           lambda row: row["hours"] - row["measured_hours"], is_number=True),
)  # fmt: skip
_STARTING_POINT: Final[dict[str, Any]] = {
    "currency": "EUR",
    "decimals": 2,
    "zone": "Europe/Paris",
    "hours": [{"gpu": "*", "per": "gpu_hour", "price": "2.40"}],
    "links": [{"link": "*", "gb": "0.02"}],
}


@readable
def page(request: HttpRequest, fleet: str) -> HttpResponse:
    """A month, the newest if the address names none; empty before anything was recorded."""
    found, scenario = opened(request, fleet)
    known = reports.months_of(fleet)
    asked = request.GET.get("month", "")
    context: dict[str, Any] = {
        "fleet": found,
        "months": known,
        "asked": asked,
        "table": prices.of(fleet)[0],
        "lists": LISTS,
    }
    if not known or (asked and asked not in known):
        return render(request, "costs.html", context, status=404 if asked else 200)
    row = reports.kept(fleet, asked or known[0])
    shown = request.GET.get("list", "pools")
    context |= _month(row, shown if shown in LISTS else "pools", request)
    context["known_links"] = {link.id for link in scenario.links}
    return render(request, "costs.html", context)


@operators_only
@never_cache
def make(request: HttpRequest, fleet: str, month: str) -> HttpResponse:
    """Put a month together again, with the prices of now."""
    found, _scenario = opened(request, fleet)
    if request.method == "POST":
        try:
            row = reports.make(found, _named(found, month), timezone.now())
        except months.NoMonth as exc:
            messages.warning(request, str(exc))
            return redirect("costs", fleet)
        if row is None:
            messages.warning(request, _("Nothing was recorded in %(month)s.") % {"month": month})
            return redirect("costs", fleet)
        audit.record(
            actor=request.user.get_username(),
            via=VIA,
            verb="report.make",
            fleet=fleet,
            target=f"report {row.month}",
            reason=request.POST.get("reason", "")[:500],
        )
        messages.success(request, _("The report of %(month)s is made anew.") % {"month": month})
    return redirect(f"{_address(fleet)}?month={month}")


@operators_only
@never_cache
def value(request: HttpRequest, fleet: str, month: str) -> HttpResponse:
    """Ask what a month's decisions were worth."""
    found, _scenario = opened(request, fleet)
    if request.method == "POST":
        try:
            values.ask(
                fleet=found,
                month=_named(found, month),
                actor=request.user.get_username(),
                via=VIA,
                reason=request.POST.get("reason", "")[:500],
                now=timezone.now(),
            )
        except (Refused, months.NoMonth) as exc:
            messages.warning(request, str(exc))
        else:
            tasks.wake()
            messages.success(request, _("It is being replayed: see how far it is below."))
    return redirect(f"{_address(fleet)}?month={month}#value")


@operators_only
@never_cache
def price_table(request: HttpRequest, fleet: str) -> HttpResponse:
    """Prices to read and change: tried before they are kept."""
    found, _scenario = opened(request, fleet)
    row, _read = prices.of(fleet)
    form = documents.DocumentForm(
        request.POST or None,
        initial={
            "document": json.dumps(
                row.document if row else _STARTING_POINT, indent=2, ensure_ascii=False
            ),
            "version": row.version if row else 0,
        },
    )
    would, status = documents.answer(
        request,
        form,
        keep=lambda asked: _kept(request, asked, fleet),
        trial=_tried,
    )
    if isinstance(would, HttpResponse):
        return would
    context = {"fleet": found, "table": row, "form": form, "would": would or ""}
    return render(request, "cost_prices.html", context, status=status)


def _month(row: MonthReport, shown: str, request: HttpRequest) -> dict[str, Any]:
    report = row.report
    rows, columns = {
        "pools": (report["pools"], POOLS),
        "links": (report["links"], LINKS),
        "days": (report["days"], DAYS),
    }[shown]
    asked = values.newest(row.fleet, row.month)
    return {
        "row": row,
        "report": report,
        "shown": shown,
        "list": listing(rows, columns, request.GET, all_total=len(rows), per_page=PER_PAGE),
        "state": cost_words.state_mark(row),
        "coverage": cost_words.coverage_mark(report),
        "limits": cost_words.limits(report),
        "hours_chart": _hours_chart(report),
        "egress_chart": _egress_chart(report),
        "value": asked,
        "value_mark": asked and cost_words.value_mark(asked),
        "value_rows": cost_words.value_rows(asked, report["currency"]) if asked else [],
        "value_open": asked is not None and asked.state in values.OPEN,
    }


def _hours_chart(report: dict[str, Any]) -> bars.Bars:
    days = report["days"]
    titles = []
    for day in days:
        known = [
            f"{cost_words.role_words(part)} {cost_words.hours(n)}"
            for part in PARTS
            if (n := day["instance_hours"][part]) is not None
        ]
        titles.append(f"{day['day']}: {', '.join(known) or _('not measured')}")
    return bars.stacked([day["instance_hours"] for day in days], titles, PARTS)


def _egress_chart(report: dict[str, Any]) -> bars.Bars:
    columns, titles = [], []
    for day in report["days"]:
        sent = day["bytes"]
        columns.append({"egress": None if sent is None else sent / 1e9})
        words = _("not measured") if sent is None else cost_words.gigabytes(sent)
        titles.append(f"{day['day']}: {words}")
    return bars.stacked(columns, titles, ("egress",))


def _named(fleet: Fleet, month: str) -> months.Month:
    return months.month_of(month, prices.zone_of(prices.of(fleet.pk)[1]))


def _tried(document: Any) -> str:
    read = prices.checked(document)
    said = _(
        "%(hours)s prices of hours and %(links)s of links in %(currency)s; months by the clock of "
        "%(zone)s."
    )
    return said % {
        "hours": len(read.prices.hours),
        "links": len(read.prices.links),
        "currency": read.prices.currency,
        "zone": read.zone.key,
    }


def _kept(request: HttpRequest, asked: dict[str, Any], fleet: str) -> HttpResponse:
    row = prices.put(
        fleet=fleet,
        document=asked["document"],
        if_version=asked["version"],
        actor=request.user.get_username(),
        via=VIA,
        reason=asked["reason"],
        now=timezone.now(),
    )
    said = _("Prices are kept, version %(version)s. Months are priced when they are made again.")
    messages.success(request, said % {"version": row.version})
    return redirect("costs", fleet)


def _address(fleet: str) -> str:
    return reverse("costs", args=[fleet])


def _float(text: str | None) -> float | None:
    return None if text is None else float(text)


def _of(row: dict[str, Any], key: str) -> float | None:
    found: float | None = None if row["p95"] is None else row["p95"][key]
    return found
