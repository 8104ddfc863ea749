"""Costs of the large site: its day folded from its ticks, a month's report, a forecast, a fit."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from routing.costs import reports, usage, values
from routing.costs.models import DecisionValue
from routing.forecast.models import Forecast
from routing.models import Fleet
from routing.refits import proposals
from routing.refits.models import ProfileProposal


def make(fleet: Fleet, pd_names: list[str], now: datetime) -> None:
    """What the workers of costs leave behind, by their own hands where that is quick."""
    usage.fold_newest(fleet, now)
    reports.refresh(fleet, now)
    DecisionValue.objects.create(
        fleet=fleet.pk,
        month=f"{now:%Y-%m}",
        state="done",
        plan={},
        hours=[now.isoformat()] * 3,
        result=values.result_of([_hour(i) for i in range(3)]),
        requested_by="ana",
        created_at=now,
    )
    hours = [_expected(pd_names, now + timedelta(hours=i)) for i in range(1, 25)]
    Forecast.objects.create(
        fleet=fleet.pk,
        made_at=now,
        found={
            "state": "known",
            "why": "",
            "zone": "Europe/Paris",
            "n_days": 20.0,
            "measured_ratio": 0.98,
            "least_gain_ratio": 0.04,
            "now": {name: [20, 36] for name in pd_names},
            "hours": hours,
        },
        judged=_judged(pd_names),
        judged_at=now,
    )
    row = proposals.ask(
        fleet=fleet.pk, span=timedelta(days=1), actor="ana", via="test", reason="", now=now
    )
    clusters = {
        name: {
            "profile": "h20",
            "engines": [],
            "refused": {"reason": "NoRows", "message": "no row"},
        }
        for name in pd_names
    }
    ProfileProposal.objects.filter(pk=row.pk).update(state="failed", clusters=clusters)


def _hour(i: int) -> dict[str, Any]:
    figures = {
        "goodput_rps": 100.0 + i,
        "good_fraction": 0.98,
        "ttft_p90_s": 3.2,
        "egress_gb_per_h": 900.0 + i,
        "egress_money_per_h": None,
    }
    return {"policies": {name: figures for name in values.POLICIES}}


def _expected(names: list[str], at: datetime) -> dict[str, Any]:
    return {
        "at": at.replace(minute=0, second=0, microsecond=0).isoformat(),
        "state": "known",
        "headroom": 1.5,
        "headroom_now": 1.4,
        "gain_ratio": 0.07,
        "advised": True,
        "clusters": {
            name: {
                "rps": 12.0,
                "low_rps": 9.0,
                "high_rps": 15.0,
                "basis": "weeks",
                "n_prefill": 22,
                "n_decode": 34,
                "threshold_tokens": 19_800,
            }
            for name in names
        },
    }


def _judged(names: list[str]) -> dict[str, Any]:
    told = {"n": 168, "error_median": 0.07, "error_p90": 0.2, "inside_ratio": 0.79}
    roles = {"right_ratio": 0.9, "regret_mean": 0.004, "regret_p90": 0.02}
    return {
        "n": 168 * len(names),
        "n_roles": 168,
        "n_days": 7,
        "demand": {name: told for name in names},
        "forecast": roles,
        "reactive": roles,
        "difference": {"n": 7, "mean": 0.0, "low": -0.01, "high": 0.01, "says": "unclear"},
    }
