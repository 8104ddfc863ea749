"""Months by the wall clock of a zone, both changes of the clock included."""

from __future__ import annotations

import datetime
from datetime import UTC
from zoneinfo import ZoneInfo

import pytest

from routing.costs.months import NoMonth, before, month_of, name_of, slots_between

PARIS = ZoneInfo("Europe/Paris")


def slots(name: str, zone: ZoneInfo) -> int:
    return sum(last - first for day in month_of(name, zone).days for _, first, last in day.pieces())


@pytest.mark.parametrize(
    ("name", "zone", "hours"),
    [
        ("2026-10", "UTC", 31 * 24),
        ("2026-10", "Europe/Paris", 31 * 24 + 1),
        ("2026-03", "Europe/Paris", 31 * 24 - 1),
        ("2028-02", "Asia/Kolkata", 29 * 24),
        ("2026-04", "Australia/Lord_Howe", 30 * 24 + 0.5),
    ],
)
def test_a_month_has_each_half_hour_once(name: str, zone: str, hours: float) -> None:
    month = month_of(name, ZoneInfo(zone))
    assert slots(name, ZoneInfo(zone)) == hours * 2
    assert slots_between(month.begins_at, month.ends_at) == hours * 2


def test_a_day_of_paris_touches_two_days_of_utc() -> None:
    day = month_of("2026-10", PARIS).days[24]
    assert day.date == datetime.date(2026, 10, 25)
    assert day.pieces() == [
        (datetime.date(2026, 10, 24), 44, 48),
        (datetime.date(2026, 10, 25), 0, 46),
    ], "25 hours: from 22:00 UTC to 23:00 UTC"


def test_so_far_ends_with_the_last_whole_half_hour() -> None:
    month = month_of("2026-11", ZoneInfo("UTC"))
    days = month.so_far(datetime.datetime(2026, 11, 2, 10, 44, tzinfo=UTC))
    assert len(days) == 2
    assert days[-1].ends_at == datetime.datetime(2026, 11, 2, 10, 30, tzinfo=UTC)
    assert month.so_far(datetime.datetime(2026, 10, 31, tzinfo=UTC)) == []


@pytest.mark.parametrize("name", ["2026-13", "2026-1", "", "1999-01", "2026-10-01", "٢٠٢٦-١٠"])
def test_what_is_no_month(name: str) -> None:
    with pytest.raises(NoMonth, match="is no month"):
        month_of(name, PARIS)


def test_a_zone_that_begins_its_days_within_a_half_hour_is_refused() -> None:
    with pytest.raises(NoMonth, match="within a half hour"):
        month_of("2026-10", ZoneInfo("Asia/Kathmandu"))


def test_names() -> None:
    late = datetime.datetime(2026, 10, 31, 23, 30, tzinfo=UTC)
    assert (name_of(late, PARIS), name_of(late, ZoneInfo("UTC"))) == ("2026-11", "2026-10")
    assert (before("2026-01"), before("2026-10")) == ("2025-12", "2026-09")
