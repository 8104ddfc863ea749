"""What came of a plan: its prediction beside what ticks saw after 1, 5 and 15 minutes.

A comparison is only as good as what stayed the same: what else changed meanwhile stands beside it,
and a band says what chance alone does at the traffic there was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connection
from django.db.models import F, Value
from django.db.models.functions import Coalesce
from django.urls import reverse
from django.utils.translation import gettext as _

from console import figures
from console.core_words import reason_words
from console.plans import headline_words
from routing.core import chance
from routing.core.chance import Band
from routing.core.jsonable import from_jsonable
from routing.core.types import LengthHistogram
from routing.models import Action, Decision, Hold, Tick

SPANS: Final = (60.0, 300.0, 900.0)
TOLERANCE_S: Final = 30.0
"""A tick this much later than asked for still counts as "after 5 min"."""
MOST_POINTS: Final = 45
DEMAND_CHANGED: Final = 0.1
_MINUTE_S: Final = 60.0
"""Remote shares are counted over so long; links are averaged over it, to be compared alike."""
_DEMAND_WINDOW_S: Final = 300.0
_MOST_EVENTS: Final = 12
MOST_LINKS: Final = 8
_TOLD: Final = ("policy.change", "fleet.update", "breaker.reset")
"""Verbs of the audit that change what the loop goes by."""


_SEEN: Final = """
WITH mine AS (
  SELECT id, at, row_number() OVER (ORDER BY at) - 1 AS n, count(*) OVER () AS n_all,
    LAG(at) OVER (ORDER BY at) AS was
  FROM routing_tick WHERE fleet_id = %s AND at BETWEEN %s AND %s
)
SELECT tick.seq, tick.at,
  (SELECT jsonb_object_agg(key, jsonb_build_object(
      'demand_rps', value->'demand_rps', 'remote_share', value->'remote_share'))
   FROM jsonb_each(tick.observed->'pd')),
  (SELECT jsonb_object_agg(key, value->'tx_gbps') FROM jsonb_each(tick.observed->'links')),
  jsonb_build_object('headroom', tick.verdict #> '{current,headroom}',
    'lambda_max_rps', tick.verdict #> '{current,lambda_max_rps}')
FROM mine JOIN routing_tick tick USING (id)
WHERE mine.n %% GREATEST(mine.n_all / %s, 1) = 0
  OR EXISTS (
    SELECT 1 FROM unnest(%s::timestamptz[]) due
    WHERE mine.at >= due AND (mine.was IS NULL OR mine.was < due)
  )
ORDER BY tick.at
"""
"""What is shown of a tick is a small part of its row: the rest is left where it is."""


@dataclass(frozen=True)
class Seen:
    """What one tick saw of what was predicted; None where it was not measured."""

    at: datetime
    seq: int
    share: float | None
    headroom: float | None
    capacity_rps: float | None
    demand_rps: float | None
    link_gbps: dict[str, float | None] = field(default_factory=dict)

    @property
    def gbps(self) -> float | None:
        """Over all links."""
        known = [value for value in self.link_gbps.values() if value is not None]
        return sum(known) if known else None


@dataclass(frozen=True)
class Mark:
    """One of the three looks: the tick, or when it will be; `notes` are what makes it doubtful."""

    label: str
    due_at: datetime
    seen: Seen | None
    is_yet_to_come: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    """`inside`: whether it lies in the band; None where there is nothing to compare."""

    label: str
    value: str
    title: str = ""
    inside: bool | None = None


@dataclass(frozen=True)
class Line:
    """One predicted value, its band in words, and what came of it at each look."""

    name: str
    expected: str
    title: str
    band: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Event:
    """Something else that changed meanwhile."""

    at: datetime
    text: str
    href: str = ""


def seen_after(decision: Decision) -> list[Seen]:
    """What ticks of the quarter hour after a decision saw: as many as a chart has room for, and the
    first at or after each span."""
    begins = decision.created_at
    ends = begins + timedelta(seconds=SPANS[-1] + TOLERANCE_S)
    due = [begins + timedelta(seconds=span_s) for span_s in SPANS]
    with connection.cursor() as cursor:
        cursor.execute(_SEEN, [decision.fleet_id, begins, ends, MOST_POINTS, due])
        return [
            _seen(seq, at, *((json.loads(part) if part else None) or {} for part in parts))
            for seq, at, *parts in cursor.fetchall()
        ]


def _first(times: Sequence[tuple[int, datetime]], at: datetime) -> int | None:
    latest = at + timedelta(seconds=TOLERANCE_S)
    return next((seq for seq, seen in times if at <= seen <= latest), None)


def _seen(
    seq: int,
    at: datetime,
    pd: dict[str, Any],
    link_gbps: dict[str, float | None],
    predicted: dict[str, Any],
) -> Seen:
    demand = [one["demand_rps"] for one in pd.values() if one["demand_rps"] is not None]
    return Seen(
        at=at,
        seq=seq,
        share=_share(pd.values()),
        headroom=predicted.get("headroom"),
        capacity_rps=predicted.get("lambda_max_rps"),
        demand_rps=sum(demand) if demand else None,
        link_gbps=link_gbps,
    )


def _share(clusters: Iterable[dict[str, Any]]) -> float | None:
    """Fleet-wide: each cluster's share weighted by its demand."""
    weighted = [
        (pd["remote_share"], pd["demand_rps"])
        for pd in clusters
        if pd["remote_share"] is not None and pd["demand_rps"]
    ]
    demand = sum(d for _, d in weighted)
    return sum(share * d for share, d in weighted) / demand if demand else None


def marks(
    decision: Decision, seen: Sequence[Seen], following: Sequence[Decision], now: datetime
) -> list[Mark]:
    """The looks after 1, 5 and 15 minutes; `following` are the plans pushed after this one."""
    times = [(one.seq, one.at) for one in seen]
    by_seq = {one.seq: one for one in seen}
    before = demand_of(decision.tick)
    found = []
    for span_s in SPANS:
        due_at = decision.created_at + timedelta(seconds=span_s)
        seq = _first(times, due_at)
        one = None if seq is None else by_seq[seq]
        label = _("after %(minutes)d min") % {"minutes": round(span_s / 60)}
        notes = () if one is None else tuple(_doubts(one, following, before))
        yet_to_come = one is None and due_at + timedelta(seconds=TOLERANCE_S) > now
        found.append(Mark(label, due_at, one, yet_to_come, notes))
    return found


def _doubts(seen: Seen, following: Sequence[Decision], before: float | None) -> list[str]:
    notes = []
    by_then = [row for row in following if row.created_at <= seen.at]
    if by_then:
        notes.append(_("under v%(version)d") % {"version": by_then[-1].version})
    changed = demand_change(before, seen.demand_rps)
    if changed is not None and abs(changed) >= DEMAND_CHANGED:
        notes.append(_("demand %(change)s") % {"change": figures.signed_percent(changed)})
    return notes


def demand_change(before: float | None, after: float | None) -> float | None:
    """By how much demand grew; None where either is not known."""
    return after / before - 1 if before and after is not None else None


def demand_of(tick: Tick | None) -> float | None:
    """What a tick saw arrive, over all clusters."""
    pd = tick.observed["pd"].values() if tick else ()
    demand = [one["demand_rps"] for one in pd if one["demand_rps"] is not None]
    return sum(demand) if demand else None


@dataclass(frozen=True)
class Bands:
    """What chance alone does to each predicted value; None where that cannot be said."""

    share: Band | None = None
    headroom: Band | None = None
    capacity: Band | None = None
    gbps: Band | None = None


def bands(predicted: dict[str, Any], tick: Tick | None) -> Bands:
    """Around a prediction, at the traffic it was made of."""
    demand = demand_of(tick)
    if not demand or tick is None:
        return Bands()
    lengths = [
        from_jsonable(LengthHistogram, one["lengths"])
        for one in tick.observed["pd"].values()
        if one["lengths"]
    ]
    n_known = sum(one.n_effective for one in lengths)
    varies = max((chance.variation(one) for one in lengths), default=0.0)
    share, n_minute = predicted["remote_fraction"], demand * _MINUTE_S
    headroom, gbps = predicted["headroom"], sum(predicted["link_gbps"].values())
    # Demand is counted anew for each look, and so is the mix: the rarer of the two decides.
    n_mix = min(n_known, demand * _DEMAND_WINDOW_S)
    return Bands(
        share=chance.of_share(share, n_minute),
        headroom=None if headroom is None else chance.of_work(headroom, n_mix, varies),
        capacity=chance.of_work(predicted["lambda_max_rps"], n_known, varies),
        gbps=chance.of_work(gbps, share * n_minute, varies),
    )


def table(predicted: dict[str, Any] | None, found: Bands, looks: Sequence[Mark]) -> list[Line]:
    """Each predicted value beside what came of it, of links the busiest; nothing where nothing was
    predicted."""
    if not predicted:
        return []

    def line(
        name: str,
        write: Callable[[float | None], str],
        expected: float | None,
        band: Band | None,
        read: Callable[[Seen], float | None],
    ) -> Line:
        cells = tuple(_cell(look, write, band, read) for look in looks)
        words = "" if band is None else f"{write(band.low)} – {write(band.high)}"
        return Line(name, write(expected), figures.exact(expected), words, cells)

    lines = [
        line(
            _("Remote share"),
            figures.percent,
            predicted["remote_fraction"],
            found.share,
            lambda seen: seen.share,
        ),
        line(
            _("Headroom"), times, predicted["headroom"], found.headroom, lambda seen: seen.headroom
        ),
        line(
            _("Capacity"),
            figures.rate,
            predicted["lambda_max_rps"],
            found.capacity,
            lambda seen: seen.capacity_rps,
        ),
    ]
    busiest = sorted(predicted["link_gbps"].items(), key=lambda item: -(item[1] or 0.0))
    for link, gbps in busiest[:MOST_LINKS]:
        lines.append(
            line(
                f"{_('Link')} {link.replace('->', ' → ')}",
                figures.gbps,
                gbps,
                found.gbps if len(predicted["link_gbps"]) == 1 else None,
                lambda seen, link=link: seen.link_gbps.get(link),  # type: ignore[misc]
            )
        )
    return lines


def _cell(
    look: Mark,
    write: Callable[[float | None], str],
    band: Band | None,
    read: Callable[[Seen], float | None],
) -> Cell:
    if look.seen is None:
        if look.is_yet_to_come:
            words = _("not yet, at %(at)s") % {"at": figures.clock(look.due_at)}
        else:
            words = _("no tick then")
        return Cell(look.label, words)
    value = read(look.seen)
    inside = None if value is None or band is None else band.holds(value)
    return Cell(look.label, write(value), figures.exact(value), inside)


def times(value: float | None) -> str:
    """A headroom: `×1.26`."""
    return figures.NONE if value is None else f"×{figures.significant(value)}"


def charts(
    decision: Decision, predicted: dict[str, Any] | None, found: Bands, seen: Sequence[Seen]
) -> dict[str, Any] | None:
    """Columns of the three small charts; None where there is nothing to draw."""
    if not predicted:
        return None
    smooth = _over_a_minute(seen)
    wanted: tuple[tuple[str, float | None, Band | None, list[float | None]], ...] = (
        ("share", predicted["remote_fraction"], found.share, [one.share for one in seen]),
        ("headroom", predicted["headroom"], found.headroom, [one.headroom for one in seen]),
        ("gbps", sum(predicted["link_gbps"].values()), found.gbps, smooth),
    )
    return {
        "begins_s": decision.created_at.timestamp(),
        "ends_s": decision.created_at.timestamp() + SPANS[-1],
        "at_s": [one.at.timestamp() for one in seen],
        "charts": {
            name: {
                "expected": expected,
                "band": None if band is None else [band.low, band.high],
                "values": values,
            }
            for name, expected, band, values in wanted
        },
    }


def _over_a_minute(seen: Sequence[Seen]) -> list[float | None]:
    """Egress over all links, each the mean of the minute before it."""
    found: list[float | None] = []
    for one in seen:
        since = one.at - timedelta(seconds=_MINUTE_S)
        lately = [x.gbps for x in seen if since < x.at <= one.at and x.gbps is not None]
        found.append(None if one.gbps is None else sum(lately) / len(lately))
    return found


def meanwhile(
    decision: Decision, following: Sequence[Decision], looks: Sequence[Mark]
) -> list[Event]:
    """What else changed within the quarter hour, in its order: plans, holds, the policy, demand."""
    begins = decision.created_at
    ends = begins + timedelta(seconds=SPANS[-1])
    events = [
        Event(row.created_at, _plan_words(row), _page_of(row))
        for row in following
        if row.created_at <= ends
    ]
    for is_hold, at, until, who, where, what in _changes(decision.fleet_id, begins, ends):
        if not is_hold:
            words = _("%(who)s: %(where)s %(what)s")
            events.append(Event(at, words % {"who": who, "where": where, "what": what}))
            continue
        said = {"who": who, "where": where or _("every cluster"), "what": what}
        if begins < at <= ends:
            events.append(Event(at, _("%(who)s held %(where)s: %(what)s") % said))
        if begins < until <= ends:
            events.append(Event(until, _("the hold of %(who)s on %(where)s ended") % said))
    before = demand_of(decision.tick)
    for look in looks:
        seen = look.seen
        changed = None if seen is None else demand_change(before, seen.demand_rps)
        if seen is not None and changed is not None and abs(changed) >= DEMAND_CHANGED:
            words = _("demand was %(now)s, %(change)s since the decision")
            said = {"now": figures.rate(seen.demand_rps), "change": figures.signed_percent(changed)}
            href = reverse("tick", args=[decision.fleet_id, seen.seq])
            events.append(Event(seen.at, words % said, href))
    return sorted(events, key=lambda event: event.at)[:_MOST_EVENTS]


def _changes(fleet: str, begins: datetime, ends: datetime) -> list[tuple[Any, ...]]:
    """Holds in force in that time, and changes of what the loop is told: (is it a hold, from, to,
    who, where, what)."""
    holds = (
        Hold.objects.filter(fleet=fleet, created_at__lte=ends, expires_at__gte=begins)
        .order_by("created_at")
        .values_list(
            Value(True),
            "created_at",
            Coalesce("released_at", "expires_at"),
            "owner",
            "cluster",
            "reason",
        )[:_MOST_EVENTS]
    )
    told = (
        Action.objects.filter(fleet=fleet, verb__in=_TOLD, at__gt=begins, at__lte=ends)
        .order_by("at")
        .values_list(Value(False), "at", F("at"), "actor", "verb", "target")[:_MOST_EVENTS]
    )
    return list(holds.union(told, all=True))


def _plan_words(row: Decision) -> str:
    return f"v{row.version} ({reason_words(row.reason)}): {headline_words(row.previous, row.plan)}"


def _page_of(row: Decision) -> str:
    return reverse("decision", args=[row.fleet_id, row.pk])
