"""A month by the wall clock of a zone, as instants, days and half hours of UTC. No clock."""

from __future__ import annotations

import datetime
import re
import zoneinfo
from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import Final

from routing.core.costs.usage import SLOT_S
from routing.jobs.when import instant_of

_MONTH: Final = re.compile(r"(20[0-9]{2})-(0[1-9]|1[0-2])")
_MIDNIGHT: Final = datetime.time()
_DAY_S: Final = 86_400.0


class NoMonth(ValueError):
    """What stood there is no month, or no month of that zone."""


@dataclass(frozen=True)
class Day:
    """A local day: when it begins and ends; 23 or 25 hours where the clock changes."""

    date: datetime.date
    begins_at: datetime.datetime
    ends_at: datetime.datetime

    def cut(self, until: datetime.datetime) -> Day:
        """Up to the last whole half hour before `until`."""
        if until >= self.ends_at:
            return self
        slots = max((until - self.begins_at).total_seconds(), 0.0) // SLOT_S
        return Day(self.date, self.begins_at, self.begins_at + timedelta(seconds=slots * SLOT_S))

    def pieces(self) -> list[tuple[datetime.date, int, int]]:
        """(UTC day, first slot, last slot not included) of each UTC day that it touches."""
        found = []
        at = self.begins_at
        while at < self.ends_at:
            day = at.date()
            begins = datetime.datetime.combine(day, _MIDNIGHT, UTC)
            ends = min(self.ends_at, begins + timedelta(days=1))
            first, last = ((x - begins).total_seconds() / SLOT_S for x in (at, ends))
            found.append((day, int(first), int(last)))
            at = ends
        return found


@dataclass(frozen=True)
class Month:
    """`name` as 2026-10, by the clock of `zone`."""

    name: str
    zone: zoneinfo.ZoneInfo
    days: tuple[Day, ...]

    @property
    def begins_at(self) -> datetime.datetime:
        return self.days[0].begins_at

    @property
    def ends_at(self) -> datetime.datetime:
        return self.days[-1].ends_at

    def so_far(self, now: datetime.datetime) -> list[Day]:
        """Its days up to the last whole half hour before now."""
        return [day.cut(now) for day in self.days if day.begins_at < now]


def month_of(name: str, zone: zoneinfo.ZoneInfo) -> Month:
    """Raises NoMonth, also in a zone whose days begin within a half hour of UTC."""
    if not _MONTH.fullmatch(name):
        raise NoMonth(f"{name:.20} is no month as 2026-10")
    first = datetime.date.fromisoformat(f"{name}-01")
    dates = [first]
    while (following := dates[-1] + timedelta(days=1)).month == first.month:
        dates.append(following)
    begins = [instant_of(day, _MIDNIGHT, zone) for day in (*dates, following)]
    odd = [at for at in begins if at.timestamp() % SLOT_S]
    if odd:
        raise NoMonth(f"days of {zone.key} begin at {odd[0]:%H:%M} UTC, within a half hour")
    days = (Day(*each) for each in zip(dates, begins[:-1], begins[1:], strict=True))
    return Month(name, zone, tuple(days))


def name_of(at: datetime.datetime, zone: zoneinfo.ZoneInfo) -> str:
    """The month of a moment by the zone's clock."""
    return f"{at.astimezone(zone):%Y-%m}"


def before(name: str) -> str:
    """The month before, by name."""
    year, month = int(name[:4]), int(name[5:])
    return f"{year - 1}-12" if month == 1 else f"{year}-{month - 1:02d}"


def slots_between(since: datetime.datetime, until: datetime.datetime) -> int:
    return int((until - since).total_seconds() // SLOT_S)
