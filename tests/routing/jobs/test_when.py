"""Due times over a year in three zones, both changes of the clock included (S-54)."""

from __future__ import annotations

import itertools
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

from routing.jobs.when import When, due, instant_of, upcoming

EVERY_DAY = frozenset(range(7))
ZONES = ("Europe/Paris", "America/New_York", "Australia/Lord_Howe")


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("day", "at", "zone", "instant"),
    [
        ("2026-03-29", "02:30", "Europe/Paris", "2026-03-29T01:00"),  # leapt over: 03:00 there
        ("2026-03-29", "03:00", "Europe/Paris", "2026-03-29T01:00"),
        ("2026-10-25", "02:30", "Europe/Paris", "2026-10-25T00:30"),  # twice: the first
        ("2026-10-25", "03:00", "Europe/Paris", "2026-10-25T02:00"),
        ("2026-03-08", "02:15", "America/New_York", "2026-03-08T07:00"),
        ("2026-11-01", "01:30", "America/New_York", "2026-11-01T05:30"),
        ("2026-10-04", "02:10", "Australia/Lord_Howe", "2026-10-03T15:30"),  # leaps half an hour
        ("2026-04-05", "01:45", "Australia/Lord_Howe", "2026-04-04T14:45"),
        ("2011-12-30", "08:00", "Pacific/Apia", "2011-12-30T10:00"),  # a day that never was
        ("2026-07-01", "08:00", "UTC", "2026-07-01T08:00"),
    ],
)
def test_a_wall_clock_time_is_one_instant(day: str, at: str, zone: str, instant: str) -> None:
    found = instant_of(date.fromisoformat(day), time.fromisoformat(at), ZoneInfo(zone))
    assert found == utc(instant)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("at", ["00:00", "01:45", "02:00", "02:30", "02:59", "03:00", "23:59"])
def test_each_day_of_a_year_has_exactly_one(zone: str, at: str) -> None:
    when = When(ZoneInfo(zone), time.fromisoformat(at), days=EVERY_DAY)
    begins, ends = utc("2026-01-01"), utc("2027-01-01")
    found = due(when, begins, ends)
    assert len(found) == 365
    gaps = {b - a for a, b in itertools.pairwise(found)}
    assert timedelta(hours=22) < min(gaps) <= max(gaps) < timedelta(hours=26)
    local = [instant.astimezone(ZoneInfo(zone)) for instant in found]
    assert sum(moment.time() != when.at for moment in local) <= 1, "but where it was leapt over"


@pytest.mark.parametrize("zone", ZONES)
def test_looks_of_any_length_find_the_same(zone: str) -> None:
    when = When(ZoneInfo(zone), time(2, 30), days=frozenset({5, 6}))
    begins, ends = utc("2026-01-01"), utc("2027-01-01")
    whole, at, parts = due(when, begins, ends), begins, []
    for i in range(10_000):
        until = min(ends, at + timedelta(seconds=1 + 6137 * (i % 17)))
        parts += due(when, at, until)
        at = until
        if at == ends:
            break
    assert parts == whole
    assert len(whole) == 104


def test_once() -> None:
    when = When(ZoneInfo("Europe/Paris"), time(8, 0), on=date(2026, 12, 1))
    assert due(when, utc("2026-11-01"), utc("2027-01-01")) == [utc("2026-12-01T07:00")]
    assert due(when, utc("2026-12-01T07:00"), utc("2027-01-01")) == []
    assert upcoming(when, utc("2026-11-01"), 5) == [utc("2026-12-01T07:00")]
    assert upcoming(when, utc("2026-12-02"), 5) == []


def test_what_comes_next() -> None:
    when = When(ZoneInfo("Europe/Paris"), time(8, 0), days=frozenset({0, 4}))
    assert [d.date().isoformat() for d in upcoming(when, utc("2026-11-30T08:00"), 3)] == [
        *("2026-12-04", "2026-12-07", "2026-12-11"),
    ]


def test_years_away_are_bounded() -> None:
    when = When(ZoneInfo("UTC"), time(0, 0), days=EVERY_DAY)
    assert len(due(when, utc("1990-01-01"), utc("2026-01-01"))) == 400
