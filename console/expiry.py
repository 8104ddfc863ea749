"""When something ends that a person sets: after a span, or at a time of day somewhere. Pure.

A time of day is the next such moment on a clock of that zone. Where clocks are set forward over it
the first moment after the gap counts; where they are set back and it comes twice, the first.
"""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


class NoSuchZone(ValueError):
    """A name that is no time zone."""


def zone_named(name: str) -> ZoneInfo:
    """The zone of an IANA name such as `Europe/Paris`. Raises NoSuchZone."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise NoSuchZone(name) from None


def next_at(now: datetime, at: time, zone: ZoneInfo) -> datetime:
    """The next moment, in UTC, at which clocks of the zone show `at`."""
    local = now.astimezone(zone)
    for days in range(3):
        day = (local + timedelta(days=days)).date()
        moment = _first(datetime.combine(day, at), zone)
        if moment > now:
            return moment
    raise AssertionError("a day has every time, or the moment after its gap")


def _first(wall: datetime, zone: ZoneInfo) -> datetime:
    moment = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if moment.astimezone(zone).replace(tzinfo=None) == wall:
        return moment
    # In a gap: fold 0 counts by the clock before it, fold 1 by the one after.
    low = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    high = moment
    before = low.astimezone(zone).utcoffset()
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) / 2
        if middle.astimezone(zone).utcoffset() == before:
            low = middle
        else:
            high = middle
    return high.replace(microsecond=0)
