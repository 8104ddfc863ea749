"""A recorded interval of a fleet's own traffic, as its ticks saw it, ready for the twin.

Kept with the backtest, because ticks are forgotten after days: demand and lengths per minute and PD
cluster, what the fleet did meanwhile, and the plans its gates were asked to run. A tick's demand is
a mean that looks back 300 s (docs/algorithms.md): a burst shorter than that is flattened in it, and
it comes that much late.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Iterable, Sequence
from typing import Any

from django.db.models import F
from django.db.models.functions import Mod

from routing.commands import Refused
from routing.core.jsonable import from_jsonable, to_jsonable
from routing.core.model.throughput import ALWAYS_LOCAL_T
from routing.core.scenario.document import Scenario
from routing.core.types import ClusterPlan, LengthHistogram, Observation, PdObservation
from routing.models import Decision, Fleet, Tick
from routing.twin.policies import at_threshold

ROW_S = 60.0
LENGTHS_S = 300.0
"""Lengths are kept this often: they look back as far anyway."""
MOST_S = 86_400.0
_LOOKS = 4_000
"""Ticks read at most; more of them would say the same."""
_LEAST_ROWS = 2


def recorded(
    fleet: Fleet, scenario: Scenario, since: datetime.datetime, until: datetime.datetime
) -> dict[str, Any]:
    """The interval as plain values, times in seconds from its beginning:

        {from_s, until_s, clusters: {NAME: [{at_s, for_s, demand_rps, lengths}]}, lengths: [...],
         n_rows, n_missing, live: {row_s, at_s, demand_rps, remote_fraction, link_gbps},
         lived: [{at_s, clusters}], modes}

    It begins and ends with a minute in which some demand was measured. A row's `lengths` is a place
    in `lengths`; a minute in which a cluster's demand was not measured has no row. Raises Refused.
    """
    if not since < until:
        raise Refused("until", f"{until:%F %H:%M}", "must be after the beginning")
    if (until - since).total_seconds() > MOST_S:
        raise Refused("since", f"{since:%F %H:%M}", f"at most {MOST_S / 3600:g} hours at a time")
    looks = sorted(_looks(fleet, scenario, since, until), key=lambda seen: seen.now_s)
    if not looks:
        raise Refused("since", f"{since:%F %H:%M}", _nothing(fleet))
    begin_s = math.floor(looks[0].now_s / ROW_S) * ROW_S
    n_rows = int((looks[-1].now_s - begin_s) // ROW_S) + 1
    minutes: list[list[Observation]] = [[] for _ in range(n_rows)]
    for seen in looks:
        minutes[int((seen.now_s - begin_s) // ROW_S)].append(seen)
    first, last = _measured(minutes, since)
    minutes, n_rows, begin_s = minutes[first : last + 1], last - first + 1, begin_s + first * ROW_S
    lengths: list[Any] = []
    clusters = {
        workload.cluster: _rows(workload.cluster, minutes, lengths)
        for workload in scenario.workloads
    }
    if not any(row["demand_rps"] > 0 for rows in clusters.values() for row in rows):
        raise Refused("since", f"{since:%F %H:%M}", "no gate reported any demand in it")
    return {
        "from_s": begin_s,
        "until_s": begin_s + n_rows * ROW_S,
        "clusters": clusters,
        "lengths": lengths,
        "n_rows": n_rows,
        "n_missing": {name: n_rows - len(rows) for name, rows in clusters.items()},
        "live": _live(scenario, minutes),
        "lived": _lived(fleet, scenario, begin_s, begin_s + n_rows * ROW_S, minutes[0][0]),
        "modes": sorted(_modes(fleet, since, until)),
    }


def beginning_as_lived(document: dict[str, Any], recording: dict[str, Any]) -> dict[str, Any]:
    """The scenario's document with the plans in force at the beginning as what runs first."""
    plans = recording["lived"][0]["clusters"]
    clusters = []
    for cluster in document["clusters"]:
        plan = plans.get(cluster["name"])
        if plan is not None and not cluster.get("pinned") and _can_start(plan, cluster):
            start = {"n_prefill": plan["n_prefill"]}
            if plan["threshold_tokens"] is not None:
                start["threshold_tokens"] = plan["threshold_tokens"]
            cluster = {**cluster, "start": start}
        clusters.append(cluster)
    return {**document, "clusters": clusters}


def _can_start(plan: dict[str, Any], cluster: dict[str, Any]) -> bool:
    """A scenario can say every plan but that everything is remote."""
    return plan["mode"] != "always_remote" and 0 < plan["n_prefill"] < cluster["instances"]


def span_of(fleet: Fleet) -> tuple[datetime.datetime, datetime.datetime] | None:
    """From when to when ticks are stored."""
    ticks = Tick.objects.filter(fleet=fleet).order_by("at").values_list("at", flat=True)
    first, last = ticks.first(), ticks.last()
    return None if first is None or last is None else (first, last)


def _looks(
    fleet: Fleet, scenario: Scenario, since: datetime.datetime, until: datetime.datetime
) -> Iterable[Observation]:
    ticks = Tick.objects.filter(fleet=fleet, at__gte=since, at__lt=until)
    each = math.ceil(ticks.count() / _LOOKS) or 1
    if each > 1:
        ticks = ticks.alias(place=Mod(F("seq"), each)).filter(place=0)
    names = {cluster.name for cluster in scenario.clusters if cluster.kind == "pd"}
    rows = ticks.order_by("seq").values_list("observed", flat=True)
    for observed in rows.iterator(chunk_size=200):
        try:
            seen = from_jsonable(Observation, observed)
        except (KeyError, TypeError):  # of another release
            continue
        if seen.pd.keys() == names and since.timestamp() <= seen.now_s:
            yield seen


def _measured(
    minutes: Sequence[Sequence[Observation]], since: datetime.datetime
) -> tuple[int, int]:
    """The first and the last minute in which some demand was measured. Raises Refused."""
    known = [
        i
        for i, seen in enumerate(minutes)
        if any(_demand(pd) is not None for each in seen for pd in each.pd.values())
    ]
    if not known or known[-1] - known[0] + 1 < _LEAST_ROWS:
        message = f"gates reported demand in {len(known)} minutes of it; 2 are needed at least"
        raise Refused("since", f"{since:%F %H:%M}", message)
    return known[0], known[-1]


def _rows(
    cluster: str, minutes: Sequence[Sequence[Observation]], lengths: list[Any]
) -> list[dict[str, Any]]:
    """Of each minute in which the demand was known. Adds to `lengths`."""
    found: list[dict[str, Any]] = []
    place, kept_s = None, -math.inf
    for i, seen in enumerate(minutes):
        at_s = i * ROW_S
        demand = _mean(_demand(each.pd[cluster]) for each in seen)
        newest = _newest_lengths(seen, cluster)
        if newest is not None and at_s - kept_s >= LENGTHS_S:
            lengths.append(to_jsonable(newest))
            place, kept_s = len(lengths) - 1, at_s
        if demand is not None:
            found.append({"at_s": at_s, "for_s": ROW_S, "demand_rps": demand, "lengths": place})
    return found


def _demand(pd: PdObservation) -> float | None:
    return pd.demand_rps if pd.demand_state in ("value", "idle") else None


def _newest_lengths(seen: Sequence[Observation], cluster: str) -> LengthHistogram | None:
    known = [each.pd[cluster].lengths for each in seen if each.pd[cluster].lengths is not None]
    return known[-1] if known else None


def _live(scenario: Scenario, minutes: Sequence[Sequence[Observation]]) -> dict[str, Any]:
    """What the fleet did, one value a minute; None where it was not measured."""
    return {
        "row_s": ROW_S,
        "at_s": [i * ROW_S for i in range(len(minutes))],
        "demand_rps": [_mean(_total_demand(each) for each in seen) for seen in minutes],
        "remote_fraction": [_mean(_remote(each) for each in seen) for seen in minutes],
        "link_gbps": {
            link.id: [_mean(_gbps(each, link.id) for each in seen) for seen in minutes]
            for link in scenario.links
        },
    }


def _total_demand(seen: Observation) -> float | None:
    known = [_demand(pd) for pd in seen.pd.values()]
    return None if None in known else sum(each for each in known if each is not None)


def _remote(seen: Observation) -> float | None:
    """Of all clusters, by their demand; None unless every cluster with demand has a share."""
    parts, total = 0.0, 0.0
    for pd in seen.pd.values():
        demand = _demand(pd)
        if demand is None or (demand > 0 and pd.remote_share is None):
            return None
        parts += demand * (pd.remote_share or 0.0)
        total += demand
    return parts / total if total > 0 else None


def _gbps(seen: Observation, link: str) -> float | None:
    found = seen.links.get(link)
    return found.tx_gbps if found is not None and found.state in ("value", "idle") else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _lived(
    fleet: Fleet, scenario: Scenario, begin_s: float, until_s: float, first: Observation
) -> list[dict[str, Any]]:
    """The plans that gates were asked to run, by when; everything local before the first one."""
    begin, until = (datetime.datetime.fromtimestamp(s, datetime.UTC) for s in (begin_s, until_s))
    pushed = Decision.objects.filter(fleet=fleet, version__isnull=False)
    before = pushed.filter(created_at__lte=begin).order_by("-epoch", "-version").first()
    names = [workload.cluster for workload in scenario.workloads]
    local = at_threshold(scenario, ALWAYS_LOCAL_T)
    plans = {name: to_jsonable(_as_seen(local[name], first.pd[name])) for name in names}
    rows = []
    if before is not None:
        plans = {name: before.plan["clusters"].get(name, plans[name]) for name in names}
    rows.append({"at_s": 0.0, "clusters": plans})
    for decision in pushed.filter(created_at__gt=begin, created_at__lt=until).order_by(
        "created_at", "id"
    ):
        plans = {name: decision.plan["clusters"].get(name, plans[name]) for name in names}
        rows.append({"at_s": decision.created_at.timestamp() - begin_s, "clusters": plans})
    return rows


def _as_seen(plan: ClusterPlan, pd: PdObservation) -> ClusterPlan:
    """With the roles that engines had, if all of them were read."""
    if pd.n_prefill + pd.n_decode != plan.n_prefill + plan.n_decode:
        return plan
    return dataclasses.replace(plan, n_prefill=pd.n_prefill, n_decode=pd.n_decode)


def _modes(fleet: Fleet, since: datetime.datetime, until: datetime.datetime) -> set[str]:
    ticks = Tick.objects.filter(fleet=fleet, at__gte=since, at__lt=until)
    return set(ticks.order_by().values_list("mode", flat=True).distinct())


def _nothing(fleet: Fleet) -> str:
    span = span_of(fleet)
    if span is None:
        return "the loop has written no tick of this fleet yet"
    return f"no tick is stored there; the stored ones are of {span[0]:%F %T} to {span[1]:%F %T} UTC"
