"""Forecasts of fleets, made from their kept days. The one writer of Forecast.

Advice only: nothing here moves anything. A job of kind `forecast` takes its roles from here, if a
person scheduled one.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from datetime import UTC, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np

from routing import fleets, knobs
from routing.commands import Refused
from routing.core.costs.usage import MIX_EDGES, N_SLOTS, SLOT_S
from routing.core.forecast import advice, judge
from routing.core.forecast.advice import Split
from routing.core.forecast.pattern import PER_DAY, Pattern, Seen, Unknown, learn
from routing.core.scenario.document import Scenario
from routing.core.scenario.tables import ScenarioError
from routing.costs import prices, usage
from routing.forecast.models import Forecast
from routing.models import Fleet
from routing.role_commands import Seen as SeenRoles

LOOKS_BACK: Final = timedelta(days=42)
"""Six weeks: older habits are other habits."""
AHEAD_H: Final = 24
EVERY: Final = timedelta(minutes=30)
JUDGED_EVERY: Final = timedelta(days=1)
OLD_AFTER: Final = timedelta(hours=2)
"""No job goes by an older one."""
_BASES: Final = ("weeks", "days_of_the_kind", "any_day")
_WHY: Final = {
    "TooShort": "{n:.1f} days of traffic are recorded; a week's pattern needs 7",
    "TooManyGaps": "only {ratio:.0%} of the recorded days was measured; 60 % are needed",
}


def refresh(fleet: Fleet, now: datetime.datetime) -> bool:
    """Make a forecast if one is due, and judge once a day. Whether anything was made."""
    row = Forecast.objects.filter(pk=fleet.pk).first()
    if row is not None and now - row.made_at < EVERY:
        return False
    make(fleet, now, judge_too=row is None or row.judged_at is None
         or now - row.judged_at >= JUDGED_EVERY)  # fmt: skip
    return True


def make(fleet: Fleet, now: datetime.datetime, *, judge_too: bool) -> Forecast:
    _, read = prices.of(fleet.pk)
    zone = prices.zone_of(read)
    scenario = fleets.scenario_of(fleet)
    seen = seen_of(fleet.pk, scenario, zone, now)
    values: dict[str, Any] = {"found": found(fleet, scenario, seen, zone, now), "made_at": now}
    if judge_too and values["found"]["state"] == "known":
        # Today is not over: days are judged whole.
        values |= {"judged": judge.walk_forward(scenario, seen), "judged_at": now}
    row, _ = Forecast.objects.update_or_create(fleet=fleet.pk, defaults=values)
    return row


def seen_of(
    fleet: str, scenario: Scenario, zone: ZoneInfo, now: datetime.datetime
) -> dict[str, Seen]:
    """By PD cluster with traffic, every half hour from the first kept day's beginning to now."""
    span = usage.span_of(fleet)
    if span is None:
        return {}
    first = max(span[0], (now - LOOKS_BACK).date())
    begins = _midnight(first, zone)
    n = max(int((now - begins).total_seconds() // SLOT_S), 0)
    days = usage.days_of(fleet, begins.date(), now.astimezone(UTC).date())
    at_s = begins.timestamp() + SLOT_S * np.arange(n)
    slot = np.array([week_slot(each, zone) for each in at_s], dtype=np.int64)
    return {
        workload.cluster: Seen(slot, *_columns(days, workload.cluster, at_s))
        for workload in scenario.workloads
        if not _is_drained(scenario, workload.cluster)
    }


def found(
    fleet: Fleet,
    scenario: Scenario,
    seen: Mapping[str, Seen],
    zone: ZoneInfo,
    now: datetime.datetime,
) -> dict[str, Any]:
    """{state, why, zone, n_days, measured_ratio, now, hours} as plain values."""
    head: dict[str, Any] = {"state": "unknown", "zone": zone.key, "now": {}, "hours": []}
    patterns = {name: learn(each) for name, each in seen.items()}
    if not patterns:
        return head | {"why": "no day of traffic is kept yet", "n_days": 0.0, "measured_ratio": 0.0}
    known: dict[str, Pattern] = {}
    for name, pattern in patterns.items():
        head |= {"n_days": pattern.n_days, "measured_ratio": pattern.measured_ratio}
        if isinstance(pattern, Unknown):
            said = _WHY[pattern.reason].format(n=pattern.n_days, ratio=pattern.measured_ratio)
            return head | {"why": f"{name}: {said}"}
        known[name] = pattern
    roles = _roles_now(fleet, scenario)
    least_gain = float(knobs.effective(fleet.policy.knobs)["roles_min_gain_ratio"])
    first = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    hours = [
        _hour(scenario, known, first + timedelta(hours=i), zone, roles, least_gain)
        for i in range(AHEAD_H)
    ]
    return head | {
        "state": "known",
        "why": "",
        "now": {name: list(split) for name, split in roles.items()},
        "least_gain_ratio": least_gain,
        "hours": hours,
    }


def advised(fleet: str, cluster: str, now: datetime.datetime) -> Split | None:
    """The roles of the hour to come for a job; None: stay as it is. Raises Refused."""
    row = Forecast.objects.filter(pk=fleet).first()
    if row is None:
        raise Refused("forecast", fleet, "there is none yet")
    if now - row.made_at > OLD_AFTER:
        raise Refused("forecast", fleet, f"the newest is of {row.made_at:%F %H:%M} UTC, too old")
    if row.found["state"] != "known":
        raise Refused("forecast", fleet, f"not known: {row.found['why']}")
    hour = next(
        (h for h in row.found["hours"] if datetime.datetime.fromisoformat(h["at"]) > now), None
    )
    if hour is None or hour["state"] != "known" or cluster not in hour["clusters"]:
        raise Refused("forecast", fleet, f"says nothing of {cluster} in the hour to come")
    told = hour["clusters"][cluster]
    return (told["n_prefill"], told["n_decode"]) if hour["advised"] else None


def week_slot(at_s: float, zone: ZoneInfo) -> int:
    """The half hour of the week, from Monday 00:00 by the zone's clock."""
    local = datetime.datetime.fromtimestamp(at_s, zone)
    return local.weekday() * PER_DAY + local.hour * 2 + local.minute // 30


def _hour(
    scenario: Scenario,
    known: Mapping[str, Pattern],
    at: datetime.datetime,
    zone: ZoneInfo,
    roles: Mapping[str, Split],
    least_gain: float,
) -> dict[str, Any]:
    slot = week_slot(at.timestamp(), zone)
    head: dict[str, Any] = {"at": at.isoformat(), "state": "unknown", "clusters": {}}
    head |= {"headroom": None, "headroom_now": None, "gain_ratio": None, "advised": False}
    traffic = {name: judge.expected_of(pattern, slot) for name, pattern in known.items()}
    told = {name: each for name, each in traffic.items() if each is not None}
    if len(told) < len(traffic):
        return head
    load = advice.with_traffic(scenario, told)
    try:
        best = advice.wanted(load)
        stays = advice.headroom_of(load, roles)
    except ScenarioError:
        return head
    gain = best.headroom / stays - 1.0 if stays else None
    return head | {
        "state": "known",
        "headroom": best.headroom,
        "headroom_now": stays,
        "gain_ratio": gain,
        "advised": gain is not None and gain >= least_gain,
        "clusters": {
            name: {
                "rps": each.rps,
                **dict(zip(("low_rps", "high_rps"), known[name].around(slot), strict=True)),
                "basis": _BASES[int(known[name].basis[slot])],
                "n_prefill": best.roles[name][0],
                "n_decode": best.roles[name][1],
                "threshold_tokens": best.threshold_tokens[name],
            }
            for name, each in told.items()
        },
    }


def _columns(
    days: Mapping[datetime.date, Mapping[str, Any]], cluster: str, at_s: Any
) -> tuple[Any, Any]:
    """Demand (n,) and mix (n, buckets) of each half hour; NaN where nothing is kept."""
    rps = np.full(len(at_s), np.nan)
    mix = np.full((len(at_s), len(MIX_EDGES) + 1), np.nan)
    for i, each in enumerate(at_s):
        at = datetime.datetime.fromtimestamp(each, UTC)
        traffic = days.get(at.date(), {}).get("traffic", {}).get(cluster)
        if traffic is None:
            continue
        slot = (at.hour * 2 + at.minute // 30) % N_SLOTS
        if traffic["rps"][slot] is not None:
            rps[i] = traffic["rps"][slot]
        if traffic["mix"][slot] is not None:
            mix[i] = traffic["mix"][slot]
    return rps, mix


def _midnight(day: datetime.date, zone: ZoneInfo) -> datetime.datetime:
    """The first midnight of the zone at or after the UTC day begins, rounded to a half hour."""
    begins = datetime.datetime.combine(day, datetime.time(), UTC)
    local = begins.astimezone(zone)
    if local.time() != datetime.time():
        local = datetime.datetime.combine(
            local.date() + timedelta(days=1), datetime.time(), local.tzinfo
        )
    at_s = local.timestamp() // SLOT_S * SLOT_S
    return datetime.datetime.fromtimestamp(at_s, UTC)


def _is_drained(scenario: Scenario, name: str) -> bool:
    cluster = scenario.cluster(name)
    return cluster is None or cluster.drained


def _roles_now(fleet: Fleet, scenario: Scenario) -> dict[str, Split]:
    seen = SeenRoles.of(fleet)
    found = {w.cluster: seen.roles(w.cluster) for w in scenario.workloads}
    return {name: split for name, split in found.items() if split is not None}
