"""Months are put together, kept, closed; prices are read strictly."""

from __future__ import annotations

import datetime
from datetime import UTC, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from routing.commands import Refused, Stale
from routing.core.costs import report
from routing.costs import months, prices, reports
from routing.costs.models import MonthReport, PriceTable, UsageDay
from routing.models import Action, Fleet
from tests.routing.cases import NOW, make_fleet
from tests.routing.costs.case import BY, PRICES, days, price, pushed

pytestmark = pytest.mark.django_db
PARIS = ZoneInfo("Europe/Paris")
OCTOBER = datetime.date(2026, 10, 1)


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet()


def made(fleet: Fleet, month: str, now: datetime.datetime = NOW) -> dict[str, Any]:
    _, read = prices.of(fleet.pk)
    row = reports.make(fleet, months.month_of(month, prices.zone_of(read)), now)
    assert row is not None
    return row.report


def test_a_whole_month_with_the_autumn_change_by_hand(fleet: Fleet) -> None:
    """745 hours in Paris: 4 instances at 4 EUR, 8 at 2.50 EUR, 10 GB a half hour at 2 ct/GB."""
    days("f1", OCTOBER - timedelta(days=1), 33)
    price()
    found = made(fleet, "2026-10")
    assert found["state"] == "whole"
    assert found["coverage"] == {"hours": 745.0, "measured_hours": 745.0, "ratio": 1.0}
    remote, prefill, decode = found["pools"]
    assert (remote["instance_hours"], remote["money"]) == (2980.0, "11920.00")
    assert (prefill["instance_hours"], prefill["money"]) == (2235.0, "5587.50")
    assert (decode["instance_hours"], decode["money"]) == (3725.0, "9312.50")
    [link] = found["links"]
    assert (link["bytes"], link["money_gb"]) == (14_900 * 10**9, "298.00")
    assert (link["p95"]["billed_gbps"], link["money_p95"]) == (None, None)
    assert found["totals"]["money"] == "27118.00"
    assert [day["hours"] for day in found["days"]][23:26] == [24.0, 25.0, 24.0]
    assert found["days"][0]["instance_hours"] == {
        "remote_prefill": 96.0,
        "local_prefill": 72.0,
        "decode": 120.0,
    }


def test_a_month_so_far_ends_with_its_last_half_hour(fleet: Fleet) -> None:
    days("f1", datetime.date(2026, 11, 1), 29)
    found = made(fleet, "2026-11")
    assert (found["state"], found["until"]) == ("so_far", "2026-11-29T12:00:00+00:00")
    assert found["coverage"]["hours"] == 28 * 24 + 12
    assert found["totals"]["money"] is None
    assert found["currency"] is None
    assert found["pools"][0]["instance_hours"] == 4 * (28 * 24 + 12)


def test_days_that_nobody_recorded_are_a_gap(fleet: Fleet) -> None:
    days("f1", OCTOBER + timedelta(days=10), 5)
    found = made(fleet, "2026-10")
    assert (found["coverage"]["hours"], found["coverage"]["measured_hours"]) == (744.0, 120.0)
    assert found["days"][0]["instance_hours"] == dict.fromkeys(report.PARTS)
    assert found["pools"][0]["missing_hours"] == 624.0


def test_a_month_of_which_nothing_was_recorded_is_no_report(fleet: Fleet) -> None:
    days("f1", OCTOBER, 5)
    assert reports.make(fleet, months.month_of("2026-09", PARIS), NOW) is None
    assert reports.make(fleet, months.month_of("2027-01", PARIS), NOW) is None
    with pytest.raises(reports.NoReport, match="there is none yet"):
        reports.kept("f1", "2026-09")


def test_a_report_says_which_prices_it_used_and_what_was_decided(fleet: Fleet) -> None:
    days("f1", OCTOBER, 31)
    pushed(fleet, datetime.datetime(2026, 10, 3, tzinfo=UTC))
    price()
    found = made(fleet, "2026-10")
    assert (found["prices_version"], found["decisions"]["n_pushed"]) == (1, 1)


def test_the_running_month_is_made_again_and_an_ended_one_is_closed_once(fleet: Fleet) -> None:
    days("f1", OCTOBER, 60)
    assert reports.refresh(fleet, NOW) == 2
    assert reports.refresh(fleet, NOW + timedelta(minutes=5)) == 0
    assert dict(MonthReport.objects.values_list("month", "closed")) == {
        "2026-10": True,
        "2026-11": False,
    }
    assert reports.refresh(fleet, NOW + timedelta(minutes=20)) == 1
    ended = datetime.datetime(2026, 12, 1, 3, tzinfo=UTC)
    reports.refresh(fleet, ended)
    assert not MonthReport.objects.get(month="2026-11").closed, "late counters are waited for"
    reports.refresh(fleet, ended + timedelta(hours=5))
    assert MonthReport.objects.get(month="2026-11").closed
    UsageDay.objects.all().delete()
    assert reports.refresh(fleet, ended + timedelta(days=1)) == 0
    assert reports.kept("f1", "2026-11").report["state"] == "whole"


def test_prices_are_kept_by_version_with_an_audit_row(fleet: Fleet) -> None:
    row = price()
    assert (row.version, Action.objects.latest("id").verb) == (1, "price_table.create")
    with pytest.raises(Stale):
        prices.put(fleet="f1", document=PRICES, if_version=0, now=NOW, **BY)
    prices.delete(fleet="f1", if_version=1, **BY)
    assert not PriceTable.objects.exists()
    with pytest.raises(Refused, match="is no fleet"):
        prices.put(fleet="f9", document=PRICES, if_version=None, now=NOW, **BY)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"currency": "eur"}, "currency"),
        ({"decimals": 5}, "decimals"),
        ({"zone": "Paris"}, "zone"),
        ({"zone": "Asia/Kathmandu"}, "zone"),
        ({"hour": []}, "hour"),
        ({"hours": [{"price": "-1"}]}, "hours[0].price"),
        ({"hours": [{"price": True}]}, "hours[0].price"),
        ({"hours": [{"price": "1e9"}]}, "hours[0].price"),
        ({"hours": [{"price": "1", "per": "day"}]}, "hours[0].per"),
        ({"hours": [{"price": "1"}, {"price": "2"}]}, "hours"),
        ({"links": [{"link": "a->b"}]}, "links[0].gb"),
        ({"links": [{"gb": "1", "committed_gbps": "5"}]}, "links[0].committed_gbps"),
        ({"links": "free"}, "links"),
    ],
)
def test_what_is_no_price_table(change: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as refused:
        prices.checked(PRICES | change)
    assert refused.value.field == field


def test_a_number_is_taken_as_it_is_written() -> None:
    read = prices.checked({"currency": "EUR", "hours": [{"price": 0.1}]})
    assert str(read.prices.hours[0].price) == "0.1"
