"""When a job is due: wall clock times of a zone as instants, both changes of the clock included.

A time that the clock leaps over is due at the first moment after the leap; one that comes twice is
due the first time. So each day has exactly one. Pure: no clock.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, time, timedelta
from zoneinfo import ZoneInfo

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MOST_AT_ONCE = 400
"""Due times of one question: more than a year of days."""


@dataclass(frozen=True)
class When:
    """`at` by the wall clock of `zone`, on the day `on`, else on each of `days` (0 is Monday)."""

    zone: ZoneInfo
    at: time
    on: date | None = None
    days: frozenset[int] = frozenset()


def due(when: When, after: datetime.datetime, until: datetime.datetime) -> list[datetime.datetime]:
    """The instants in (after, until], ascending, UTC; at most `MOST_AT_ONCE`, the newest."""
    found = [
        instant
        for day in _days(when, after, until)
        if after < (instant := instant_of(day, when.at, when.zone)) <= until
    ]
    return found[-MOST_AT_ONCE:]


def upcoming(when: When, after: datetime.datetime, n: int) -> list[datetime.datetime]:
    """The next `n` instants after that moment, fewer where there are no more."""
    span = timedelta(days=7 * (n + 1) + 2)
    if when.on is not None:
        span = max(timedelta(0), instant_of(when.on, when.at, when.zone) - after)
    return due(when, after, after + span)[:n]


def _days(when: When, after: datetime.datetime, until: datetime.datetime) -> Iterator[date]:
    if when.on is not None:
        yield when.on
        return
    # A leap or a zone may move an instant to the day beside.
    day = after.astimezone(when.zone).date() - timedelta(days=1)
    last = until.astimezone(when.zone).date() + timedelta(days=1)
    day = max(day, last - timedelta(days=7 * MOST_AT_ONCE))
    while day <= last:
        if day.weekday() in when.days:
            yield day
        day += timedelta(days=1)


def instant_of(day: date, at: time, zone: ZoneInfo) -> datetime.datetime:
    """The one instant, UTC, that a wall clock time of a day stands for."""
    local = datetime.datetime.combine(day, at)
    first = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if first.astimezone(zone).replace(tzinfo=None) == local:
        return first
    # It was leapt over: read by the clock before and after the leap it is after and before it.
    before = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return _change(zone, before, first)


def _change(zone: ZoneInfo, low: datetime.datetime, high: datetime.datetime) -> datetime.datetime:
    """The moment in (low, high] at which the zone's offset changes, to the second."""
    offset = low.astimezone(zone).utcoffset()
    while high - low > timedelta(seconds=1):
        middle = low + timedelta(seconds=(high - low) // timedelta(seconds=2))
        if middle.astimezone(zone).utcoffset() == offset:
            low = middle
        else:
            high = middle
    return high
