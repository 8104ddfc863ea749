"""The page of forecasts: what the next hours will want, and how often that was right."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _

from console import bars, figures
from console.context import BAD, GOOD, OFF, WARN, Mark
from console.listing import whole
from console.opened import opened
from console.roles import readable
from routing.forecast.forecasts import OLD_AFTER
from routing.forecast.models import Forecast

PER_PAGE: Final = 12
"""Clusters of an hour that are shown at once."""


@readable
def page(request: HttpRequest, fleet: str) -> HttpResponse:
    """Advice for the next hours of one cluster or a page of them; empty where it is not known."""
    found, scenario = opened(request, fleet)
    row = Forecast.objects.filter(pk=fleet).first()
    known = [workload.cluster for workload in scenario.workloads]
    cluster = request.GET.get("cluster", "")
    cluster = cluster if cluster in known else (known[0] if known else "")
    context: dict[str, Any] = {"fleet": found, "row": row, "clusters": known, "cluster": cluster}
    if row is not None:
        context |= {"found": row.found, "mark": mark_of(row, timezone.now())}
        context |= _hours(row.found, cluster)
        context |= _judged(row, request)
    return render(request, "forecast.html", context)


def mark_of(row: Forecast, now: datetime) -> Mark:
    if row.found["state"] != "known":
        return Mark(*OFF, _("does not know"))
    if now - row.made_at > OLD_AFTER:
        return Mark(*WARN, _("old: no worker made it again"))
    if any(hour["advised"] for hour in row.found["hours"]):
        return Mark("info", "advisory", _("advises a move"))
    return Mark(*GOOD, _("roles suit what is expected"))


def sentence(hour: dict[str, Any], cluster: str, now: list[int] | None, zone: ZoneInfo) -> str:
    """`At 08:00 expect 3.1 req/s (2.6 to 3.9), would want 5:3; now 4:4.`"""
    told = hour["clusters"][cluster]
    values = {
        "at": f"{datetime.fromisoformat(hour['at']).astimezone(zone):%H:%M}",
        "rps": figures.rate(told["rps"]),
        "low": figures.significant(told["low_rps"]),
        "high": figures.significant(told["high_rps"]),
        "wanted": f"{told['n_prefill']}:{told['n_decode']}",
        "now": f"{now[0]}:{now[1]}" if now else "?",
        "gain": figures.change(hour["gain_ratio"]),
    }
    if hour["advised"] and now and values["wanted"] != values["now"]:
        said = _(
            "At %(at)s expect %(rps)s (%(low)s to %(high)s): would want %(wanted)s prefill to "
            "decode, now %(now)s; headroom %(gain)s."
        )
    else:
        said = _("At %(at)s expect %(rps)s (%(low)s to %(high)s): %(now)s suits it.")
    return said % values


def _hours(found: dict[str, Any], cluster: str) -> dict[str, Any]:
    zone = ZoneInfo(found["zone"])
    now = found["now"].get(cluster)
    rows, columns, titles = [], [], []
    for hour in found["hours"]:
        told = hour["clusters"].get(cluster)
        at = datetime.fromisoformat(hour["at"])
        local = f"{at.astimezone(zone):%a %H:%M}"
        moves = told is not None and [told["n_prefill"], told["n_decode"]] != now
        rows.append({"at": at, "local": local, "hour": hour, "told": told, "moves": moves})
        columns.append(None if told is None else (told["low_rps"], told["rps"], told["high_rps"]))
        words = _("not known") if told is None else figures.rate(told["rps"])
        titles.append(f"{local}: {words}")
    first = next((h for h in found["hours"] if h["advised"] and cluster in h["clusters"]), None)
    first = first or next((h for h in found["hours"] if cluster in h["clusters"]), None)
    return {
        "hours": rows,
        "chart": bars.banded(columns, titles) if columns else None,
        "now": now,
        "sentence": sentence(first, cluster, now, zone) if first else "",
    }


def _judged(row: Forecast, request: HttpRequest) -> dict[str, Any]:
    judged = row.judged
    if judged is None:
        return {"judged": None}
    names = sorted(judged["demand"])
    pages = max(1, -(-len(names) // PER_PAGE))
    number = min(max(whole(request.GET.get("page")), 1), pages)
    shown = names[(number - 1) * PER_PAGE : number * PER_PAGE]
    return {
        "judged": judged,
        "judged_demand": [{"name": name} | judged["demand"][name] for name in shown],
        "judged_says": says(judged["difference"]),
        "number": number,
        "pages": pages,
    }


def says(difference: dict[str, Any]) -> Mark:
    """Whether going by the forecast would have been better than reacting."""
    words = {
        "better": Mark(*GOOD, _("better than reacting")),
        "worse": Mark(*BAD, _("worse than reacting")),
        "unclear": Mark(*OFF, _("no difference shown")),
        None: Mark(*OFF, _("too few days to tell")),
    }
    return words[difference["says"]]
