"""Days, recorded hours and prices for tests, written by those who write them."""

from __future__ import annotations

import datetime
from datetime import UTC, timedelta
from typing import Any

from routing.core.costs.usage import MIX_EDGES, N_SLOTS
from routing.core.jsonable import to_jsonable
from routing.costs import prices, reports
from routing.costs.models import PriceTable, RecordedHour, UsageDay
from routing.forecast import forecasts
from routing.models import Decision, Fleet, Tick
from routing.refits import proposals
from tests.console.page_case import observation, plan
from tests.routing.cases import NOW

BY: dict[str, Any] = {"actor": "ada", "via": "test", "reason": "because"}
PRICES: dict[str, Any] = {
    "currency": "EUR",
    "zone": "Europe/Paris",
    "hours": [
        {"price": "2.50", "per": "instance_hour"},
        {"cluster": "prfaas", "per": "instance_hour", "price": "4"},
    ],
    "links": [{"gb": "0.02", "gbps_month": "100"}],
}


def price(fleet: str = "f1", document: dict[str, Any] | None = None) -> PriceTable:
    return prices.put(fleet=fleet, document=document or PRICES, if_version=None, now=NOW, **BY)


def ticks(
    fleet: Fleet, begins: datetime.datetime, n: int, *, every_s: float = 60.0, **pd: Any
) -> None:
    """So many ticks as the loop writes them, one a minute."""
    seqs = Tick.objects.filter(fleet=fleet).count()
    Tick.objects.bulk_create(
        Tick(
            fleet=fleet,
            seq=seqs + i,
            at=(at := begins + timedelta(seconds=every_s * i)),
            observed=to_jsonable(observation(fleet.pk, at.timestamp(), **pd)),
            verdict={},
            mode="active",
            action="hold",
            reason="WithinNoise",
            duration_ms=1.0,
        )
        for i in range(n)
    )


def pushed(fleet: Fleet, at: datetime.datetime, version: int = 1, t: int = 4000) -> Decision:
    return Decision.objects.create(
        fleet=fleet,
        epoch=1,
        version=version,
        plan=to_jsonable(plan(fleet.pk, version, t)),
        reason="Initial",
        message="The start.",
        created_at=at,
    )


def usage(
    rps: float = 2.5, *, prefill: int = 3, decode: int = 5, remote: int = 4, gb: int = 10
) -> dict[str, Any]:
    """A whole day, alike in each half hour."""
    mix = [0.0] * (len(MIX_EDGES) + 1)
    mix[14] = 1.0
    each = [1] * N_SLOTS

    def times(n: int) -> list[int]:
        return [n * x for x in each]

    return {
        "minutes": times(30),
        "clusters": {
            "pd": {
                "minutes": times(30),
                "prefill": times(30 * prefill),
                "decode": times(30 * decode),
                "silent": times(0),
            },
            "prfaas": {
                "minutes": times(30),
                "prefill": times(30 * remote),
                "decode": times(0),
                "silent": times(0),
            },
        },
        "traffic": {"pd": {"rps": [rps] * N_SLOTS, "n": times(30), "mix": [mix] * N_SLOTS}},
        "links": {"prfaas->pd": {"minutes": times(30), "bytes": times(gb * 10**9)}},
    }


def days(fleet: str, first: datetime.date, n: int, **facts: Any) -> None:
    UsageDay.objects.bulk_create(
        UsageDay(
            fleet=fleet,
            day=(day := first + timedelta(days=i)),
            usage=usage(**facts),
            until=datetime.datetime.combine(day, datetime.time(), UTC) + timedelta(days=1),
        )
        for i in range(n)
    )


def recorded_hours(fleet: str, first: datetime.datetime, n: int, *, rps: float = 1.0) -> None:
    """Six minutes of traffic in each, under the plan of `plan`."""
    lengths = {
        "edges": [1e3, 1e4, 1e5],
        "counts": [10.0, 60.0, 30.0, 0.0],
        "n_effective": 100.0,
        "n_seen": 100.0,
    }
    rows = [{"at_s": 60.0 * i, "for_s": 60.0, "demand_rps": rps, "lengths": 0} for i in range(6)]
    RecordedHour.objects.bulk_create(
        RecordedHour(
            fleet=fleet,
            at=(at := first + timedelta(hours=5 * i)),
            recording={
                "from_s": at.timestamp(),
                "until_s": at.timestamp() + 360.0,
                "clusters": {"pd": rows},
                "lengths": [lengths],
                "n_rows": 6,
                "n_missing": {"pd": 0},
                "live": {},
                "lived": [{"at_s": 0.0, "clusters": to_jsonable(plan(fleet, 1, 4000))["clusters"]}],
                "modes": ["active"],
            },
        )
        for i in range(n)
    )


def month_so_far(fleet: Fleet, now: datetime.datetime) -> None:
    """Two weeks of days, with all that is made of them, for pages that show it."""
    days(fleet.pk, now.date() - timedelta(days=14), 15)
    price(fleet.pk)
    reports.refresh(fleet, now)
    forecasts.make(fleet, now, judge_too=False)
    proposals.ask(fleet=fleet.pk, span=timedelta(hours=1), now=now, **BY)
