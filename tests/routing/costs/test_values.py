"""What a month's decisions were worth: recorded hours through the twin, pair by pair."""

from __future__ import annotations

import datetime
from datetime import UTC, timedelta

import pytest

from routing.commands import Refused
from routing.costs import months, prices, recordings, values
from routing.costs.models import DecisionValue, RecordedHour
from routing.models import Action, Fleet
from tests.routing.cases import NOW, make_fleet
from tests.routing.costs.case import BY, price, pushed, recorded_hours, ticks

pytestmark = pytest.mark.django_db
NOVEMBER = months.month_of("2026-11", prices.UTC_ZONE)
FIRST = datetime.datetime(2026, 11, 2, tzinfo=UTC)


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet()


def asked(fleet: Fleet) -> DecisionValue:
    return values.ask(fleet=fleet, month=NOVEMBER, now=NOW, **BY)


def test_one_hour_in_five_is_kept_once(fleet: Fleet) -> None:
    due = recordings.due(NOW, NOW - timedelta(days=6))
    assert len(due) == 28
    assert len({at.hour for at in due}) == 24, "each hour of the day in five days"
    ticks(fleet, due[-1], 60)
    assert recordings.keep_newest(fleet, NOW) == 11
    assert recordings.keep_newest(fleet, NOW) == 0
    kept = RecordedHour.objects.get(recording__isnull=False)
    assert (kept.at, kept.recording["n_rows"]) == (due[-1], 60)
    assert RecordedHour.objects.filter(text__contains="no tick is stored there").count() == 10
    assert recordings.prune(NOW + timedelta(days=80)) == 11


def test_the_lived_plan_against_itself_is_worth_nothing(fleet: Fleet) -> None:
    pushed(fleet, FIRST)
    recorded_hours("f1", FIRST, 3)
    price()
    row = asked(fleet)
    assert (row.state, len(row.hours)) == ("queued", 3)
    n = 0
    while values.work(lambda: NOW):
        n += 1
        row.refresh_from_db()
        assert len(row.found) == min(n, 3)
    assert (n, row.state) == (3, "done")
    against = row.result["static"]["goodput_rps"]["policies"]["lived"]
    assert (against["n"], against["difference"]["mean"], against["says"]) == (3, 0.0, "unclear")
    assert row.result["static"]["egress_money_per_h"]["policies"]["lived"]["mean"] > 0.0
    assert row.result["paper"]["ttft_p90_s"]["policies"]["lived"]["n"] == 3


def test_one_is_asked_at_a_time(fleet: Fleet) -> None:
    pushed(fleet, FIRST)
    recorded_hours("f1", FIRST, 40)
    row = asked(fleet)
    assert len(row.hours) == 24
    with pytest.raises(Refused, match="is queued: wait"):
        asked(fleet)
    assert Action.objects.filter(verb="value.ask").count() == 1


def test_without_a_plan_or_enough_hours_it_says_so(fleet: Fleet) -> None:
    recorded_hours("f1", FIRST, 2)
    with pytest.raises(Refused, match="no plan was pushed"):
        asked(fleet)
    pushed(fleet, FIRST)
    with pytest.raises(Refused, match=r"has 2 recorded hours .* 3 are needed"):
        asked(fleet)


def test_plans_for_another_fleet_are_not_replayed(fleet: Fleet) -> None:
    pushed(fleet, FIRST)
    recorded_hours("f1", FIRST, 3)
    fleet.scenario["clusters"][1]["instances"] = 10
    fleet.save()
    with pytest.raises(Refused, match="other clusters or instances"):
        asked(fleet)


def test_what_cannot_be_simulated_fails_in_words_and_a_silent_worker_is_replaced(
    fleet: Fleet,
) -> None:
    pushed(fleet, FIRST)
    recorded_hours("f1", FIRST, 3)
    row = asked(fleet)
    DecisionValue.objects.update(state="running", heartbeat_at=NOW)
    assert not values.work(lambda: NOW + timedelta(seconds=values.SILENT_S - 1))
    RecordedHour.objects.all().delete()
    assert values.work(lambda: NOW + timedelta(seconds=values.SILENT_S + 1))
    row.refresh_from_db()
    assert (row.state, row.text.endswith("is no longer kept")) == ("failed", True)
    assert not values.waiting()


def test_a_busy_hour_is_replayed_in_part() -> None:
    rows = [{"at_s": 60.0 * i, "for_s": 60.0, "demand_rps": 1000.0} for i in range(60)]
    recording = {"from_s": 0.0, "until_s": 3600.0, "clusters": {"pd": rows}}
    part = values._first_part(recording)
    assert len(part["clusters"]["pd"]) == 3, "200,000 of 3,600,000 requests are 200 s"
