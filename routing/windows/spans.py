"""From when to when: wall clock times of a zone as spans of instants, both changes of the clock
included. Pure: no clock.

A time that comes twice has two instants. A freeze lasts from the first of them to the last, and a
change window from the last to the first: what is not sure to be allowed is not.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, time, timedelta
from zoneinfo import ZoneInfo

from routing.jobs.when import instant_of

AHEAD = timedelta(days=8)
"""More than a week: the next span of whatever recurs begins within it."""
FAR = timedelta(days=36_500)


@dataclass(frozen=True)
class Weekly:
    """`begin` to `end` by the wall clock of `zone`, on `days` (0 is Monday); an end that is not
    after the begin is of the next day."""

    zone: ZoneInfo
    days: frozenset[int]
    begin: time
    end: time


@dataclass(frozen=True)
class Once:
    """`begin` to `end` by the wall clock of `zone`."""

    zone: ZoneInfo
    begin: datetime.datetime
    end: datetime.datetime


When = Weekly | Once


@dataclass(frozen=True)
class Span:
    """[begin, end), UTC."""

    begin: datetime.datetime
    end: datetime.datetime

    def holds(self, at: datetime.datetime) -> bool:
        return self.begin <= at < self.end


def spans(
    when: When, after: datetime.datetime, until: datetime.datetime, *, longest: bool
) -> list[Span]:
    """Those that have not ended at `after` and have begun by `until`, ascending."""
    found = (_span(when, days, longest=longest) for days in _days(when, after, until))
    return [span for span in found if max(span.begin, after) < span.end and span.begin <= until]


def ends_at(when: When) -> datetime.datetime | None:
    """When the last of its spans ends; None of what recurs."""
    if isinstance(when, Weekly):
        return None
    return instant(when.end.date(), when.end.time(), when.zone, last=True)


@functools.lru_cache(maxsize=8192)
def instant(day: date, at: time, zone: ZoneInfo, *, last: bool) -> datetime.datetime:
    """The instant, UTC, of a wall clock time; the last of two where the clock was set back."""
    first = instant_of(day, at, zone)
    if not last:
        return first
    local = datetime.datetime.combine(day, at)
    again = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return max(first, again) if again.astimezone(zone).replace(tzinfo=None) == local else first


_Days = tuple[date, date]
"""The days on which a span begins and ends."""


def _days(when: When, after: datetime.datetime, until: datetime.datetime) -> Iterator[_Days]:
    if isinstance(when, Once):
        yield when.begin.date(), when.end.date()
        return
    # Two days before: a span lasts up to one, and a zone may move it to the day beside.
    day = after.astimezone(when.zone).date() - timedelta(days=2)
    last = until.astimezone(when.zone).date() + timedelta(days=1)
    while day <= last:
        if day.weekday() in when.days:
            yield day, day if when.begin < when.end else day + timedelta(days=1)
        day += timedelta(days=1)


def _span(when: When, days: _Days, *, longest: bool) -> Span:
    begin, end = (
        (when.begin, when.end) if isinstance(when, Weekly) else (when.begin.time(), when.end.time())
    )
    return Span(
        instant(days[0], begin, when.zone, last=not longest),
        instant(days[1], end, when.zone, last=longest),
    )
