"""What a month's decisions were worth, by the twin: recorded hours replayed under the plans that
were lived, under the month's first plan kept still, and under the paper's. The one writer of
DecisionValue.

The rows are the queue. A worker takes one by an update that only one of them can make, replays one
hour, writes it down and lets go; one that died is silent for `SILENT_S` and another goes on.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import Q

from routing import audit, fleets, knobs
from routing.backtest_asked import Asked
from routing.backtest_recordings import beginning_as_lived
from routing.backtest_workloads import WorkloadError, prepare, recording_from
from routing.commands import Refused
from routing.core.costs.worth import LEAST_HOURS, LIVED, PAPER, STATIC, figures_of, spread_out
from routing.core.jsonable import from_jsonable
from routing.core.scenario.document import Scenario
from routing.core.scenario.tables import ScenarioError
from routing.core.types import ClusterPlan
from routing.costs import prices
from routing.costs.models import DecisionValue, RecordedHour
from routing.costs.months import Month
from routing.models import Decision, Fleet
from routing.simulating import SimulateError
from routing.twin.compare import Metric, compare
from routing.twin.fleet import simulate
from routing.twin.policies import Fixed, PolicyError

OPEN: Final = ("queued", "running")
SILENT_S: Final = 900.0
"""An hour of the largest traffic that is replayed takes a few minutes."""
MOST_REQUESTS: Final = 200_000
"""Of one replay; of busier hours the first part is replayed."""
VERB: Final = "value.ask"
POLICIES: Final = (LIVED, STATIC, PAPER)
METRICS: Final = (
    Metric("goodput_rps", ("goodput_rps",), "higher"),
    Metric("good_fraction", ("good_fraction",), "higher"),
    Metric("ttft_p90_s", ("ttft_p90_s",), "lower"),
    Metric("egress_gb_per_h", ("egress_gb_per_h",), "lower"),
    Metric("egress_money_per_h", ("egress_money_per_h",), "lower"),
)
_WARM_UP: Final = 0.1
_LEAST_S: Final = 120.0
_WRONG: Final = (ScenarioError, SimulateError, WorkloadError, PolicyError)
Clock = Callable[[], datetime.datetime]

log = logging.getLogger(__name__)


def ask(
    *,
    fleet: Fleet,
    month: Month,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> DecisionValue:
    """Queue one. Raises Refused where there is nothing to compare, or one is under way."""
    target = f"value of {month.name}"
    with transaction.atomic():
        Fleet.objects.select_for_update(no_key=True).get(pk=fleet.pk)
        running = DecisionValue.objects.filter(fleet=fleet.pk, state__in=OPEN).first()
        if running is not None:
            raise Refused("month", month.name, f"that of {running.month} is {running.state}: wait")
        scenario = fleets.scenario_of(fleet)
        plan = first_plan(fleet, month, scenario)
        hours = spread_out(usable_hours(fleet, month, scenario))
        if len(hours) < LEAST_HOURS:
            message = (
                f"has {len(hours)} recorded hours that fit the fleet as it is, "
                f"{LEAST_HOURS} are needed"
            )
            raise Refused("month", month.name, message)
        row = DecisionValue.objects.create(
            fleet=fleet.pk,
            month=month.name,
            plan=plan,
            hours=hours,
            requested_by=actor,
            created_at=now,
        )
        audit.record(
            actor=actor,
            via=via,
            verb=VERB,
            fleet=fleet.pk,
            target=target,
            after={"value": row.pk, "hours": len(hours)},
            reason=reason,
        )
    return row


def newest(fleet: str, month: str) -> DecisionValue | None:
    return DecisionValue.objects.filter(fleet=fleet, month=month).order_by("-pk").first()


def first_plan(fleet: Fleet, month: Month, scenario: Scenario) -> dict[str, Any]:
    """The plan in force when the month began, else the first one pushed in it. Raises Refused."""
    pushed = Decision.objects.filter(fleet=fleet, version__isnull=False)
    before = pushed.filter(created_at__lte=month.begins_at).order_by("-epoch", "-version").first()
    within = pushed.filter(created_at__lt=month.ends_at).order_by("created_at", "pk")
    found = before or within.first()
    if found is None:
        raise Refused("month", month.name, "no plan was pushed in it or before")
    clusters: dict[str, Any] = found.plan["clusters"]
    if not _fits(clusters, scenario):
        raise Refused(
            "month", month.name, "its first plan is for other clusters or instances than there are"
        )
    return clusters


def usable_hours(fleet: Fleet, month: Month, scenario: Scenario) -> list[str]:
    """Recorded hours whose plans fit the fleet as it is now, ascending."""
    rows = RecordedHour.objects.filter(
        fleet=fleet.pk,
        at__gte=month.begins_at,
        at__lt=month.ends_at,
        recording__isnull=False,
    )
    return [
        at.isoformat()
        for at, lived in rows.order_by("at").values_list("at", "recording__lived")
        if all(_fits(row["clusters"], scenario) for row in lived)
    ]


def work(clock: Clock) -> bool:
    """Replay one hour of whoever waits. False: nobody does."""
    row = _claimed(clock())
    if row is None:
        return False
    mine = DecisionValue.objects.filter(pk=row.pk, heartbeat_at=row.heartbeat_at)
    try:
        found = [*row.found, _replayed(row, row.hours[len(row.found)])]
    except Exception as exc:
        known = isinstance(exc, (*_WRONG, Refused))
        if not known:
            log.exception("value %s failed", row)
        text = str(exc) if known else f"the twin failed ({type(exc).__name__}: {exc})"
        mine.update(state="failed", text=text[:500], heartbeat_at=None, finished_at=clock())
        return True
    if len(found) < len(row.hours):
        mine.update(found=found, heartbeat_at=None)
        return True
    result = result_of(found)
    mine.update(state="done", found=found, result=result, heartbeat_at=None, finished_at=clock())
    return True


def result_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The policies over the hours: against the static plan, and against the paper's."""
    reports = {
        policy: {i: hour["policies"][policy] for i, hour in enumerate(found)} for policy in POLICIES
    }
    return {
        base: compare(reports, baseline=base, metrics=METRICS)["metrics"]
        for base in (STATIC, PAPER)
    }


def waiting() -> bool:
    return DecisionValue.objects.filter(state__in=OPEN).exists()


def _claimed(now: datetime.datetime) -> DecisionValue | None:
    free = Q(heartbeat_at=None) | Q(heartbeat_at__lt=now - timedelta(seconds=SILENT_S))
    for row in DecisionValue.objects.filter(free, state__in=OPEN).order_by("pk")[:5]:
        same = DecisionValue.objects.filter(pk=row.pk, heartbeat_at=row.heartbeat_at)
        if same.update(state="running", heartbeat_at=now):
            row.heartbeat_at = now
            return row
    return None


def _replayed(row: DecisionValue, hour: str) -> dict[str, Any]:
    """One hour under each policy, over the same requests."""
    fleet = Fleet.objects.select_related("policy").get(pk=row.fleet)
    at = datetime.datetime.fromisoformat(hour)
    kept = RecordedHour.objects.filter(fleet=row.fleet, at=at, recording__isnull=False).first()
    if kept is None:
        raise Refused("hours", hour, "is no longer kept")
    recording = _first_part(kept.recording)
    seed = int(at.timestamp()) // 3600
    gb_prices = _gb_prices(fleet)
    return {
        "at": hour,
        "policies": {
            policy: figures_of(_report(fleet, recording, policy, row.plan, seed), gb_prices)
            for policy in POLICIES
        },
    }


def _report(
    fleet: Fleet, recording: dict[str, Any], policy: str, plan: dict[str, Any], seed: int
) -> dict[str, Any]:
    document = {k: v for k, v in fleet.scenario.items() if k not in ("arrivals", "faults")}
    if policy != PAPER:
        first = recording if policy == LIVED else {"lived": [{"clusters": plan}]}
        document = beginning_as_lived(document, first)
    asked = Asked(
        workload="recorded",
        policies=(LIVED,),
        seeds=1,
        warmup_ratio=_WARM_UP,
        plan_for="scenario",
        knobs=knobs.checked(fleet.policy.knobs),
    )
    prepared = prepare(document, asked, recording_from(recording))
    run = prepared.run(PAPER if policy == STATIC else policy, seed, recording["lived"])
    if policy == STATIC:
        plans = {name: from_jsonable(ClusterPlan, each) for name, each in plan.items()}
        run = dataclasses.replace(run, policy=Fixed(plans))
    return simulate(run).to_json()


def _first_part(recording: dict[str, Any]) -> dict[str, Any]:
    """As many minutes as make `MOST_REQUESTS`, two at least."""
    rows = [row for rows in recording["clusters"].values() for row in rows]
    n = sum(row["demand_rps"] * row["for_s"] for row in rows)
    if n <= MOST_REQUESTS:
        return recording
    span_s = recording["until_s"] - recording["from_s"]
    until_s = max(span_s * MOST_REQUESTS / n // 60.0 * 60.0, _LEAST_S)
    clusters = {
        name: [row for row in rows if row["at_s"] < until_s]
        for name, rows in recording["clusters"].items()
    }
    return {**recording, "clusters": clusters}


def _fits(clusters: Mapping[str, Any], scenario: Scenario) -> bool:
    """Whether a plan is for the PD clusters that there are, with as many instances."""
    pd = {c.name: c.instances for c in scenario.clusters if c.kind == "pd"}
    return clusters.keys() == pd.keys() and all(
        plan["n_prefill"] + plan["n_decode"] == pd[name] for name, plan in clusters.items()
    )


def _gb_prices(fleet: Fleet) -> dict[str, float]:
    _, read = prices.of(fleet.pk)
    if read is None:
        return {}
    found = {link.id: read.prices.of_link(link.id) for link in fleets.scenario_of(fleet).links}
    return {
        name: float(price.gb) for name, price in found.items() if price and price.gb is not None
    }
