"""Ticks and counters become days: gaps stay gaps, counters are exact over a restart."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from datetime import UTC, timedelta

import pytest

from routing.costs import usage
from routing.costs.models import UsageDay
from routing.models import Tick
from telemetry import compaction, gains, rollups, tables
from telemetry.store import QueryError
from tests.routing.cases import NOW, NOW_S, feed, link, make_fleet
from tests.routing.costs.case import ticks

pytestmark = pytest.mark.django_db
TODAY = datetime.datetime(2026, 11, 29, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _names() -> Iterator[None]:
    """Numbers of signals that a test was given are rolled back with it."""
    yield
    tables.NAMES.forget()


def counted(*bytes_total: float, every_s: float = 30.0, first_s: float = -3600.0) -> None:
    """A link's counter, a reading every 30 s from an hour before NOW, rolled up."""
    feed(
        [
            link(at_s=first_s + every_s * i, tx_bytes_total=value)
            for i, value in enumerate(bytes_total)
        ]
    )
    compaction.run(at_once=True)
    rollups.run(NOW + timedelta(hours=3))


def test_a_day_counts_the_minutes_that_have_a_tick() -> None:
    fleet = make_fleet()
    ticks(fleet, TODAY + timedelta(hours=1), 10)
    ticks(fleet, TODAY + timedelta(hours=1, minutes=20), 5)
    row = usage.fold_day(fleet, TODAY.date(), NOW)
    assert row is not None
    assert (row.usage["minutes"][2], sum(row.usage["minutes"])) == (15, 15)
    pd = row.usage["clusters"]["pd"]
    assert (pd["prefill"][2], pd["decode"][2]) == (45, 75)
    assert row.usage["clusters"]["prfaas"]["prefill"][2] == 60
    traffic = row.usage["traffic"]["pd"]
    assert (traffic["rps"][2], traffic["rps"][3]) == (2.5, None)
    assert sum(traffic["mix"][2]) == pytest.approx(1.0, abs=1e-3)


def test_several_ticks_of_a_minute_count_once_and_silent_ones_do_not_work() -> None:
    fleet = make_fleet()
    ticks(fleet, TODAY, 30, every_s=2.0, decode_silent=("f1/pd/d1", "f1/pd/d2"))
    row = usage.fold_day(fleet, TODAY.date(), NOW)
    assert row is not None
    pd = row.usage["clusters"]["pd"]
    assert (pd["minutes"][0], pd["prefill"][0], pd["decode"][0], pd["silent"][0]) == (1, 3, 3, 2)


def test_a_day_without_ticks_is_no_row() -> None:
    assert usage.fold_day(make_fleet(), TODAY.date(), NOW) is None
    assert not UsageDay.objects.exists()


def test_ticks_that_were_forgotten_take_nothing_away() -> None:
    fleet = make_fleet()
    ticks(fleet, TODAY, 60)
    usage.fold_day(fleet, TODAY.date(), NOW)
    Tick.objects.filter(at__lt=TODAY + timedelta(minutes=30)).delete()
    row = usage.fold_day(fleet, TODAY.date(), NOW)
    assert row is not None
    assert sum(row.usage["minutes"]) == 60


def test_folding_again_changes_nothing() -> None:
    fleet = make_fleet()
    ticks(fleet, TODAY, 60)
    usage.fold_newest(fleet, NOW)
    first = UsageDay.objects.get().usage
    usage.fold_day(fleet, TODAY.date(), NOW)
    assert UsageDay.objects.get().usage == first


def test_a_day_is_folded_again_as_often_as_it_is_worth() -> None:
    day, ends = TODAY.date(), TODAY + timedelta(days=1)
    minute = timedelta(minutes=1)
    assert not usage.is_due(day, NOW, NOW + 9 * minute)
    assert usage.is_due(day, NOW, NOW + 10 * minute)
    assert usage.is_due(day, ends - minute, ends + 60 * minute)
    assert not usage.is_due(day, ends, ends + 30 * minute)
    assert not usage.is_due(day, ends + timedelta(hours=6), ends + timedelta(hours=12))


def test_what_a_link_sent_is_exact_over_a_restart_of_its_counter() -> None:
    """1,000 + 2,000, then anew from 0: 500 + 700. A difference of last values would lose some."""
    fleet = make_fleet()
    counted(10_000.0, 11_000.0, 13_000.0, 500.0, 1_200.0)
    ticks(fleet, TODAY + timedelta(hours=11), 5)
    row = usage.fold_day(fleet, TODAY.date(), NOW + timedelta(hours=3))
    assert row is not None
    sent = row.usage["links"]["prfaas->pd"]
    assert [b for b in sent["bytes"] if b is not None] == [4_200]
    assert sent["bytes"][22] == 4_200
    assert sent["minutes"][22] == 3


def test_gains_of_what_nobody_counted_are_unknown() -> None:
    counted(1.0, 5.0)
    found = gains.read(
        "link",
        "tx_bytes_total",
        paths=["prfaas->pd", "nobody->pd"],
        since_s=NOW_S - 3600.0,
        until_s=NOW_S,
    )
    assert found.values.shape == (60, 2)
    assert found.values[0, 0] == 4.0
    assert (found.values[1:] != found.values[1:]).all()
    assert (found.values[:, 1] != found.values[:, 1]).all()


def test_gains_are_of_counters_and_of_a_day() -> None:
    span = {"paths": ["prfaas->pd"], "since_s": NOW_S - 3600.0, "until_s": NOW_S}
    with pytest.raises(QueryError, match="must be a counter"):
        gains.read("link", "tx_gbps", **span)
    with pytest.raises(QueryError, match="at most a day"):
        gains.read("link", "tx_bytes_total", **span | {"since_s": 0.0})
