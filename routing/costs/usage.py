"""Ticks and counters become one row a day, before ticks are forgotten. The one writer of UsageDay.

The day that runs is folded again every ten minutes, and the two before it once an hour until six
hours after their end: link counters are told ten minutes late, and later by agents that had to
wait.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, timedelta
from typing import Any, Final

import numpy as np
from django.db import connection

from routing import fleets
from routing.core.costs.usage import MINUTE_S, N_SLOTS, SLOT_S, Minute, Roles, fold
from routing.core.jsonable import from_jsonable
from routing.core.types import LengthHistogram
from routing.costs.models import UsageDay
from routing.models import Fleet
from telemetry import gains

DAYS_AGAIN: Final = 2
"""Days before today that are folded again: ticks are kept for three."""
_TODAY_AGAIN: Final = timedelta(minutes=10)
_PAST_AGAIN: Final = timedelta(hours=1)
LATE: Final = timedelta(hours=6)
"""After its end a day waits so long for counters."""
_LENGTHS_EVERY: Final = 10
"""Minutes: lengths look back five as it is."""
_PER_SLOT: Final = int(SLOT_S / MINUTE_S)


def fold_day(fleet: Fleet, day: datetime.date, now: datetime.datetime) -> UsageDay | None:
    """The row of a day as its ticks are now. None, and nothing written, where there are none, or
    fewer than the row knows: they were forgotten since."""
    begins = datetime.datetime.combine(day, datetime.time(), UTC)
    usage = fold(_minutes(fleet, begins), begins.timestamp())
    usage["links"] = _links(fleet, begins, min(now, begins + timedelta(days=1)))
    known = UsageDay.objects.filter(fleet=fleet.pk, day=day).first()
    before = 0 if known is None else sum(known.usage["minutes"])
    if not sum(usage["minutes"]) or sum(usage["minutes"]) < before:
        return known
    row, _ = UsageDay.objects.update_or_create(
        fleet=fleet.pk,
        day=day,
        defaults={"usage": usage, "until": now},
    )
    return row


def fold_newest(fleet: Fleet, now: datetime.datetime) -> None:
    """Today and the days before it that may still change, each as often as it is worth."""
    today = now.astimezone(UTC).date()
    first = today - timedelta(days=DAYS_AGAIN)
    folded = dict(
        UsageDay.objects.filter(fleet=fleet.pk, day__gte=first).values_list("day", "until")
    )
    for back in range(DAYS_AGAIN, -1, -1):
        day = today - timedelta(days=back)
        if day not in folded or is_due(day, folded[day], now):
            fold_day(fleet, day, now)


def is_due(day: datetime.date, folded_at: datetime.datetime, now: datetime.datetime) -> bool:
    """Whether a day that was folded then is worth folding again now."""
    ends = datetime.datetime.combine(day, datetime.time(), UTC) + timedelta(days=1)
    if now < ends:
        return now - folded_at >= _TODAY_AGAIN
    return folded_at < ends + LATE and now - folded_at >= _PAST_AGAIN


def days_of(
    fleet: str, first: datetime.date, last: datetime.date
) -> dict[datetime.date, Mapping[str, Any]]:
    """Stored days from `first` to `last`, both included."""
    rows = UsageDay.objects.filter(fleet=fleet, day__gte=first, day__lte=last)
    return dict(rows.values_list("day", "usage"))


def span_of(fleet: str) -> tuple[datetime.date, datetime.date] | None:
    """The first and the last stored day."""
    days = UsageDay.objects.filter(fleet=fleet).order_by("day").values_list("day", flat=True)
    first, last = days.first(), days.last()
    return None if first is None or last is None else (first, last)


def _minutes(fleet: Fleet, begins: datetime.datetime) -> Iterator[Minute]:
    """The last tick of each minute of a day, as what is counted of it."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT minute,
                (SELECT jsonb_object_agg(key, jsonb_build_array(
                    value -> 'n_prefill', value -> 'n_decode',
                    jsonb_array_length(coalesce(value -> 'prefill_silent', '[]')),
                    jsonb_array_length(coalesce(value -> 'decode_silent', '[]')),
                    CASE WHEN value ->> 'demand_state' IN ('value', 'idle')
                        THEN value -> 'demand_rps' END,
                    CASE WHEN minute %% %(every)s = 0 THEN value -> 'lengths' END))
                 FROM jsonb_each(tick.observed -> 'pd')),
                (SELECT jsonb_object_agg(key, value -> 'n_prefill')
                 FROM jsonb_each(tick.observed -> 'prefill'))
            FROM (
                SELECT DISTINCT ON (minute) id,
                    floor(extract(epoch FROM at - %(begins)s) / 60)::int AS minute
                FROM routing_tick
                WHERE fleet_id = %(fleet)s AND at >= %(begins)s AND at < %(ends)s
                ORDER BY minute, at DESC
            ) last JOIN routing_tick tick USING (id)
            ORDER BY minute
            """,
            {
                "every": _LENGTHS_EVERY,
                "fleet": fleet.pk,
                "begins": begins,
                "ends": begins + timedelta(days=1),
            },
        )
        rows = cursor.fetchall()
    for minute, pd, prefill in rows:
        at_s = begins.timestamp() + minute * MINUTE_S
        yield _minute(at_s, json.loads(pd or "{}"), json.loads(prefill or "{}"))


def _minute(at_s: float, pd: Mapping[str, Sequence[Any]], prefill: Mapping[str, Any]) -> Minute:
    roles, demand, lengths = {}, {}, {}
    for name, (n_prefill, n_decode, p_silent, d_silent, rps, histogram) in pd.items():
        # Silent ones keep their place in a pool for a while; they were not read.
        roles[name] = Roles(
            max(n_prefill - p_silent, 0), max(n_decode - d_silent, 0), p_silent + d_silent
        )
        demand[name] = rps
        lengths[name] = None if histogram is None else _lengths(histogram)
    for name, n in prefill.items():
        roles[name] = Roles(n or 0, 0)
    return Minute(at_s, roles, demand, lengths)


def _lengths(stored: Any) -> LengthHistogram | None:
    try:
        return from_jsonable(LengthHistogram, stored)
    except (KeyError, TypeError):  # of another release
        return None


def _links(
    fleet: Fleet, begins: datetime.datetime, until: datetime.datetime
) -> dict[str, dict[str, list[Any]]]:
    """By link, bytes sent in each slot and the minutes in which they were counted."""
    paths = [link.id for link in fleets.scenario_of(fleet).links]
    if not paths or until <= begins:
        return {}
    found = gains.read(
        "link",
        "tx_bytes_total",
        paths=paths,
        since_s=begins.timestamp(),
        until_s=until.timestamp(),
    )
    gained = np.full((N_SLOTS * _PER_SLOT, len(paths)), np.nan)
    gained[: len(found.values)] = found.values
    slots = gained.reshape(N_SLOTS, _PER_SLOT, len(paths))
    known = ~np.isnan(slots)
    n_known = known.sum(axis=1)
    total = np.where(known, slots, 0.0).sum(axis=1)
    return {
        path: {
            "minutes": n_known[:, i].tolist(),
            "bytes": [
                round(total[slot, i]) if n_known[slot, i] else None for slot in range(N_SLOTS)
            ],
        }
        for i, path in enumerate(paths)
        if n_known[:, i].any()
    }
