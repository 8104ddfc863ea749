"""History for charts: samples of links and pools, ticks of the loop, on one time axis.

Names are `link:A->B:FIELD`, `pool:CLUSTER/ROLE:FIELD`, `loop:VALUE` and `loop:VALUE:CLUSTER`. Bins
are the store's; an empty bin is None, which a chart must draw as a gap.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from django.db import connection

from routing import fleets
from routing.models import Decision, Fleet
from telemetry import history
from telemetry.models import Source

MAX_NAMES = 40
MAX_POINTS = 2_000
MAX_RANGE_S = 31 * 86_400.0
LATEST_S = 32_503_680_000.0
"""The year 3000: what lies beyond is no time this console can have measured."""
MAX_DECISIONS = 200

LINK_FIELDS = ("tx_gbps", "rx_gbps", "capacity_gbps", "retransmit_ratio", "rtt_s", "connections")
POOL_SUMS = {
    "waiting": "requests_waiting",
    "running": "requests_running",
    "prompt_tokens_per_s": "prompt_tokens_per_s",
    "generation_tokens_per_s": "generation_tokens_per_s",
}
POOL_MEANS = {"kv_ratio": "kv_cache_usage_ratio"}
"""The signal behind each field of a pool."""
LOOP_FLEET = ("demand_rps", "lambda_max_rps", "headroom")
LOOP_CLUSTER = ("threshold_tokens", "remote_share", "remote_predicted", "demand_rps")

Values = list[float | None]


class SeriesError(ValueError):
    """A question that cannot be answered: which field, what stood there, why not."""

    def __init__(self, field: str, value: Any, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.value, self.message = field, value, message


@dataclass(frozen=True)
class Axis:
    """Bins of `bin_s` from `start_s`, n of them; `tick_s` is the loop's interval."""

    start_s: float
    bin_s: float
    n: int
    tick_s: float

    @property
    def end_s(self) -> float:
        return self.start_s + self.n * self.bin_s


def read(
    fleet: Fleet,
    names: Sequence[str],
    *,
    since_s: float,
    until_s: float,
    points: int,
    now_s: float,
    tick_s: float,
) -> dict[str, Any]:
    """`{"t", "bin_s", "series": {name: [...]}, "decisions": [...]}`. Raises SeriesError."""
    if not 1 <= len(names) <= MAX_NAMES:
        raise SeriesError("names", len(names), f"give 1..{MAX_NAMES} names, comma separated")
    if not 1 <= points <= MAX_POINTS:
        raise SeriesError("points", points, f"must be in 1..{MAX_POINTS}")
    if not 0.0 < until_s - since_s <= MAX_RANGE_S:
        raise SeriesError("until", until_s, "must be after since, by at most 31 days")
    for field, value in (("since", since_s), ("until", until_s)):
        if not 0.0 <= value <= LATEST_S:
            raise SeriesError(field, value, "must be epoch seconds between the years 1970 and 3000")
    span = {"since_s": since_s, "until_s": until_s, "max_points": points}
    empty = history.series("link", "tx_gbps", paths=[], **span)
    axis = Axis(empty["t"][0], empty["bin_s"], len(empty["t"]), tick_s)
    decisions = _adopted_steps(fleet, axis)
    ticks: list[dict[str, Any] | None] | None = None
    found: dict[str, Values] = {}
    for name in names:
        kind, _, rest = name.partition(":")
        if kind == "link":
            found[name] = _link(fleet, name, rest, span)
        elif kind == "pool":
            found[name] = _pool(fleet, name, rest, span)
        elif kind == "loop" and rest.startswith("threshold_tokens:"):
            found[name] = _threshold(rest.partition(":")[2], decisions, axis, now_s)
        elif kind == "loop":
            ticks = _ticks(fleet, axis) if ticks is None else ticks
            found[name] = _loop(name, rest, ticks)
        else:
            raise SeriesError("names", name, "must start with link:, pool: or loop:")
    return {
        "t": empty["t"],
        "bin_s": axis.bin_s,
        "series": found,
        "decisions": _marks(fleet, since_s, until_s),
    }


def _link(fleet: Fleet, name: str, rest: str, span: dict[str, Any]) -> Values:
    path, _, field = rest.rpartition(":")
    if field not in LINK_FIELDS or "->" not in path:
        raise SeriesError("names", name, f"is link:A->B:FIELD with {', '.join(LINK_FIELDS)}")
    known = [link.id for link in fleets.scenario_of(fleet).links]
    if path not in known:
        # A reader of one fleet may be kept from the others' links.
        raise SeriesError("names", name, f"is no link of {fleet.pk}; it has {', '.join(known)}")
    return history.series("link", field, paths=[path], **span)["series"][path]


def _pool(fleet: Fleet, name: str, rest: str, span: dict[str, Any]) -> Values:
    place, _, field = rest.rpartition(":")
    cluster, _, role = place.partition("/")
    if field not in (*POOL_SUMS, *POOL_MEANS) or not (cluster and role):
        fields = ", ".join((*POOL_SUMS, *POOL_MEANS))
        raise SeriesError("names", name, f"is pool:CLUSTER/ROLE:FIELD with {fields}")
    paths = Source.objects.filter(
        kind="instance", path__startswith=f"{fleet.pk}/{cluster}/", role=role
    ).values_list("path", flat=True)
    signal = {**POOL_SUMS, **POOL_MEANS}[field]
    values = history.read("instance", signal, paths=list(paths), **span).values
    n_known = np.count_nonzero(~np.isnan(values), axis=1)
    totals = np.nansum(values, axis=1) / (np.maximum(n_known, 1) if field in POOL_MEANS else 1)
    return [
        total if n else None for total, n in zip(totals.tolist(), n_known.tolist(), strict=True)
    ]


def _loop(name: str, rest: str, ticks: list[dict[str, Any] | None]) -> Values:
    value, _, cluster = rest.partition(":")
    known = LOOP_CLUSTER if cluster else LOOP_FLEET
    if value not in known:
        raise SeriesError(
            "names", name, f"is loop:VALUE with {', '.join(LOOP_FLEET)}, "
            f"or loop:VALUE:CLUSTER with {', '.join(LOOP_CLUSTER)}"
        )  # fmt: skip
    return [None if tick is None else _tick_value(tick, value, cluster) for tick in ticks]


def _tick_value(tick: dict[str, Any], value: str, cluster: str) -> float | None:
    pd, current = tick["pd"], tick["current"] or {}
    if value == "remote_predicted":
        return current.get("remote_fraction")
    if cluster:
        return pd.get(cluster, {}).get(value)
    if value == "demand_rps":
        rates = [c["demand_rps"] for c in pd.values() if c["demand_rps"] is not None]
        return sum(rates) if rates else None
    return current.get(value)


def _ticks(fleet: Fleet, axis: Axis) -> list[dict[str, Any] | None]:
    """The last tick of each bin, as what charts need of it."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT last.bin, tick.verdict -> 'current',
                (SELECT jsonb_object_agg(key, value - 'lengths')
                 FROM jsonb_each(tick.observed -> 'pd'))
            FROM (
                SELECT DISTINCT ON (bin) id,
                    floor(extract(epoch FROM at - %(start)s) / %(bin_s)s)::int AS bin
                FROM routing_tick
                WHERE fleet_id = %(fleet)s AND at >= %(start)s AND at < %(end)s
                ORDER BY bin, at DESC
            ) last JOIN routing_tick tick USING (id)
            """,
            {
                "fleet": fleet.pk,
                "bin_s": axis.bin_s,
                "start": datetime.fromtimestamp(axis.start_s, UTC),
                "end": datetime.fromtimestamp(axis.end_s, UTC),
            },
        )
        rows = cursor.fetchall()
    bins: list[dict[str, Any] | None] = [None] * axis.n
    for index, current, pd in rows:
        bins[index] = {"current": json.loads(current or "null"), "pd": json.loads(pd or "{}")}
    if axis.bin_s < 2 * axis.tick_s:
        # Ticks as wide as bins now and then leave one empty: a hole that no tick was missing from.
        bins = [now or before for before, now in zip([None, *bins], bins, strict=False)]
    return bins


@dataclass(frozen=True)
class _Step:
    at_s: float
    clusters: dict[str, Any]


def _adopted_steps(fleet: Fleet, axis: Axis) -> list[_Step]:
    """Adopted plans that were in force somewhere on the axis, ascending."""
    adopted = Decision.objects.filter(fleet=fleet, version__isnull=False)
    start = datetime.fromtimestamp(axis.start_s, UTC)
    end = datetime.fromtimestamp(axis.end_s, UTC)
    before = adopted.filter(created_at__lte=start).order_by("-created_at").first()
    within = adopted.filter(created_at__gt=start, created_at__lt=end).order_by("created_at")
    rows = [*([before] if before else []), *within]
    return [_Step(row.created_at.timestamp(), row.plan["clusters"]) for row in rows]


def _threshold(cluster: str, steps: list[_Step], axis: Axis, now_s: float) -> Values:
    """t of the plan in force at the end of each bin; None where there was none, or no threshold."""
    times = [step.at_s for step in steps]
    values: Values = []
    for i in range(axis.n):
        start_s = axis.start_s + i * axis.bin_s
        at = bisect.bisect_left(times, start_s + axis.bin_s) - 1
        plan = steps[at].clusters.get(cluster) if at >= 0 and start_s <= now_s else None
        values.append(plan["threshold_tokens"] if plan else None)
    return values


def _marks(fleet: Fleet, since_s: float, until_s: float) -> list[dict[str, Any]]:
    """The newest decisions of the range, ascending, with what each changed."""
    rows = Decision.objects.filter(
        fleet=fleet,
        created_at__gte=datetime.fromtimestamp(since_s, UTC),
        created_at__lte=datetime.fromtimestamp(until_s, UTC),
    ).order_by("-created_at")[:MAX_DECISIONS]
    return [
        {
            "id": row.pk,
            "at_s": row.created_at.timestamp(),
            "epoch": row.epoch,
            "version": row.version,
            "kind": row.kind,
            "reason": row.reason,
            "message": row.message,
            "changes": changes(row),
        }
        for row in reversed(rows)
    ]


def changes(decision: Decision) -> dict[str, dict[str, list[Any]]]:
    """By cluster, each field of its plan that changed: [before, after]."""
    before = (decision.previous or {}).get("clusters", {})
    found = {}
    for name, after in decision.plan["clusters"].items():
        was = before.get(name, {})
        moved = {k: [was.get(k), after[k]] for k in after if was.get(k) != after[k]}
        if moved:
            found[name] = moved
    return found
