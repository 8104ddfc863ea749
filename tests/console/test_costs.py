"""Pages of costs, forecasts and fits: honest where nothing is, safe with hostile names."""

from __future__ import annotations

import csv
import datetime
import io
import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from console import bars, cost_pdf, cost_words, forecast
from routing import profiling
from routing.costs import months, prices, reports, tasks, values
from routing.costs.models import DecisionValue, MonthReport, PriceTable
from routing.forecast import forecasts
from routing.models import Action, Fleet
from routing.refits import proposals
from routing.refits.models import ProfileProposal
from tests.console.api_case import person
from tests.console.big_people import HOSTILE
from tests.console.test_pages import words
from tests.routing.cases import NOW, make_fleet
from tests.routing.costs.case import BY, PRICES, days, price, pushed, recorded_hours
from tests.routing.costs.test_forecasts import fitted, long_mornings

pytestmark = pytest.mark.django_db
FIRST = datetime.date(2026, 9, 30)
PAGE = "/fleets/f1/costs/"


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet()


@pytest.fixture
def operator(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(tasks, "wake", lambda: None)
    return person("operator")


def october(fleet: Fleet) -> MonthReport:
    """A whole month in Paris, with prices."""
    days("f1", FIRST, 33)
    price()
    row = reports.make(fleet, months.month_of("2026-10", prices.of("f1")[1].zone), NOW)  # type: ignore[union-attr]
    assert row is not None
    return row


def read(client: Client, path: str, status: int = 200) -> str:
    response = client.get(path)
    assert response.status_code == status
    return words(response.content.decode())


def test_before_anything_was_recorded_it_says_so(operator: Client) -> None:
    assert "Nothing was recorded yet." in read(operator, PAGE)
    assert "manage.py up" in read(operator, PAGE)
    assert operator.get(f"{PAGE}2026-10/sheet.pdf").status_code == 404
    assert operator.get(f"{PAGE}2026-10/table.csv").status_code == 404


def test_a_month_in_figures(operator: Client, fleet: Fleet) -> None:
    october(fleet)
    page = read(operator, PAGE)
    assert "Costs of 2026-10" in page
    assert "27,118.00 EUR" in page
    assert "whole month, closed" in page
    assert "100 % of the time measured" in page
    assert "11,920.00 EUR" in page
    assert "not every profile says gpus_per_instance" in page
    assert "1 link has no price" not in page
    links = read(operator, f"{PAGE}?list=links")
    assert "prfaas → pd" in links
    assert "298.00 EUR" in links
    by_day = read(operator, f"{PAGE}?list=days&sort=-egress")
    assert "2026-10-25" in by_day
    assert "There is no report of 2026-09." in read(operator, f"{PAGE}?month=2026-09", 404)
    assert read(operator, f"{PAGE}?list=odd&page=x&sort=?")


def test_a_month_with_gaps_warns_and_shows_no_zero(operator: Client, fleet: Fleet) -> None:
    days("f1", FIRST + timedelta(days=5), 10)
    reports.make(fleet, months.month_of("2026-10", prices.UTC_ZONE), NOW)
    page = read(operator, PAGE)
    assert "504 of 744 hours were not measured" in page
    assert "There are no prices, so there is no money." in page
    html = operator.get(PAGE).content.decode()
    assert html.count('<rect class="gap"') == 42, "21 days without hours and without egress"
    assert "style=" not in re.sub(r"<style[^>]*>", "", html)


def test_its_file_is_a_table_that_never_runs(operator: Client, fleet: Fleet) -> None:
    row = october(fleet)
    row.report["pools"][0]["cluster"] = "=cmd|' /C calc'!A0"
    row.save()
    response = operator.get(f"{PAGE}2026-10/table.csv")
    rows = list(csv.reader(io.StringIO(b"".join(response).decode())))
    assert tuple(rows[0]) == cost_words.HEADER
    assert rows[1][3].startswith("'=cmd")
    assert rows[1][6:12] == ["2980.0", "instance-hours", "4", "instance_hour", "11920.00", "EUR"]
    assert [line[2] for line in rows[1:]] == ["pool"] * 3 + ["link", "link_p95", "total"]
    assert rows[-1][10] == "27118.00"


@pytest.mark.parametrize("name", [*HOSTILE, "שלום\u202eevil", "x" * 300, "한국어"])
def test_its_sheet_takes_any_name(fleet: Fleet, name: str) -> None:
    row = october(fleet)
    row.report["pools"][0]["cluster"] = row.report["links"][0]["id"] = name
    assert cost_pdf.sheet(row).startswith(b"%PDF-")
    shown = cost_pdf.plain(name, 10_000)
    assert shown.encode("latin-1")
    assert shown.isprintable()


def test_a_sheet_of_a_large_fleet_ends(fleet: Fleet) -> None:
    row = october(fleet)
    row.report["pools"] *= 1000
    row.report["links"] *= 300
    made = cost_pdf.sheet(row)
    assert made.count(b"/Type /Page\n") < 30


def test_the_sheet_is_a_file_over_both_doors(operator: Client, fleet: Fleet) -> None:
    october(fleet)
    for path in (f"{PAGE}2026-10/sheet.pdf", "/api/v1/fleets/f1/reports/2026-10/sheet"):
        response = operator.get(path)
        assert response["Content-Type"] == "application/pdf"
        assert response["Content-Disposition"] == 'attachment; filename="f1-costs-2026-10.pdf"'
        assert response.content.startswith(b"%PDF-")
    table = operator.get("/api/v1/fleets/f1/reports/2026-10/table")
    assert table["Content-Type"] == "text/csv; charset=utf-8"
    assert operator.get("/api/v1/fleets/f1/reports/2026-01/table").status_code == 404


def test_prices_are_tried_before_they_are_kept(operator: Client) -> None:
    path = f"{PAGE}prices/"
    assert "Price table" in read(operator, path)
    sent = {"document": forms(PRICES), "version": 0, "reason": "new contract"}
    tried = operator.post(path, {**sent, "try": ""}).content.decode()
    assert "2 prices of hours and 1 of links in EUR; months by the clock of Europe/Paris." in tried
    assert not PriceTable.objects.exists()
    wrong = operator.post(path, {**sent, "document": '{"currency": "x"}', "keep": ""})
    assert wrong.status_code == 422
    assert "ISO 4217" in wrong.content.decode()
    kept = operator.post(path, {**sent, "keep": ""}, follow=True)
    assert "Prices are kept, version 1." in words(kept.content.decode())
    assert operator.post(path, {**sent, "keep": ""}).status_code == 422
    assert Action.objects.latest("id").reason == "new contract"


def forms(document: dict[str, Any]) -> str:
    return str(document).replace("'", '"')


def test_a_month_is_made_again_by_hand(operator: Client, fleet: Fleet) -> None:
    october(fleet)
    prices.delete(fleet="f1", if_version=1, **BY)
    again = operator.post(f"{PAGE}2026-10/make/", {"reason": "x"}, follow=True)
    assert "no prices, so quantities only" in words(again.content.decode())
    none = operator.post(f"{PAGE}2026-01/make/", {"reason": "x"}, follow=True)
    assert "Nothing was recorded in 2026-01." in words(none.content.decode())
    odd = operator.post(f"{PAGE}2026-77/make/", {"reason": "x"}, follow=True)
    assert "is no month" in words(odd.content.decode())


def test_the_worth_of_decisions_is_asked_for_and_shown_with_its_interval(
    operator: Client, fleet: Fleet
) -> None:
    october(fleet)
    path = f"{PAGE}2026-10/value/"
    refused = operator.post(path, {}, follow=True)
    assert "no plan was pushed" in words(refused.content.decode())
    first = datetime.datetime(2026, 10, 2, tzinfo=datetime.UTC)
    pushed(fleet, first)
    recorded_hours("f1", first, 3)
    asked = operator.post(path, {}, follow=True).content.decode()
    assert 'data-open="yes"' in asked
    assert "waits for a worker of the twin" in words(asked)
    row = DecisionValue.objects.get()
    DecisionValue.objects.update(
        state="done", result=values.result_of([hour(2.0), hour(2.2), hour(2.4)])
    )
    page = read(operator, PAGE)
    assert "better +0.500 req/s" in page
    assert "+0.500 req/s to +0.500 req/s" in page
    assert "egress, in money" not in page, "no price: no line"
    assert "how much these hours differ, not how true the twin is" in page
    DecisionValue.objects.update(state="failed", result=None, text="hours: is no longer kept")
    assert "is no longer kept" in read(operator, PAGE)
    row.refresh_from_db()
    assert cost_words.value_mark(row).text == "failed"


def hour(goodput_rps: float) -> dict[str, Any]:
    def figures(more: float) -> dict[str, Any]:
        return {
            "goodput_rps": goodput_rps + more,
            "good_fraction": 0.9,
            "ttft_p90_s": 2.0,
            "egress_gb_per_h": 100.0,
            "egress_money_per_h": None,
        }

    return {"policies": {"lived": figures(0.5), "static": figures(0.0), "paper": figures(0.5)}}


def test_a_forecast_in_a_sentence(operator: Client, fleet: Fleet) -> None:
    path = "/fleets/f1/forecast/"
    assert "No forecast was made yet." in read(operator, path)
    forecasts.make(fleet, NOW, judge_too=True)
    assert "It does not know." in read(operator, path)
    long_mornings(timezone.now().date() - timedelta(days=13), 14)
    pushed(fleet, NOW)
    forecasts.make(fleet, timezone.now(), judge_too=True)
    page = read(operator, path)
    assert re.search(r"At \d\d:00 expect 2.50 req/s \(2.50 to 2.50\): would want \d:\d", page)
    assert "would move to" in page
    assert "the forecast 100 %" in page
    assert "Inside the band" in page


def test_an_old_forecast_is_said_to_be_old(fleet: Fleet) -> None:
    long_mornings(datetime.date(2026, 11, 16), 14)
    row = forecasts.make(fleet, NOW, judge_too=False)
    assert forecast.mark_of(row, NOW).text == "roles suit what is expected"
    assert forecast.mark_of(row, NOW + timedelta(hours=3)).text == "old: no worker made it again"


def test_fits_are_asked_for_and_applied(
    operator: Client, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/fleets/f1/profile-fits/"
    assert "Nothing was fitted yet." in read(operator, path)
    monkeypatch.setattr(profiling, "measure", lambda *_, **__: [fitted("pd")])
    asked = operator.post(f"{path}ask/", {}, follow=True)
    assert "being fitted" in words(asked.content.decode())
    proposals.work(timezone.now)
    page = read(operator, path)
    assert "ready to apply" in page
    assert "0.4 + 5e-05 x" in page
    row = ProfileProposal.objects.get()
    done = operator.post(f"{path}{row.pk}/apply/", {"reason": "measured"}, follow=True)
    assert "The scenario has the fitted profiles: h20." in words(done.content.decode())
    again = operator.post(f"{path}{row.pk}/apply/", {"reason": "measured"}, follow=True)
    assert "only a ready one can be applied" in words(again.content.decode())


def test_a_viewer_sees_figures_and_no_buttons(fleet: Fleet) -> None:
    october(fleet)
    viewer = person("viewer")
    page = viewer.get(PAGE).content.decode()
    assert "27,118.00 EUR" in page
    assert "Replay this month" not in page
    assert "Make it again" not in page
    assert viewer.get(f"{PAGE}2026-10/sheet.pdf").status_code == 200
    for path in ("prices/", "2026-10/make/", "2026-10/value/"):
        assert viewer.get(PAGE + path).status_code == 403


def test_bars_leave_gaps_and_stack_to_the_top() -> None:
    found = bars.stacked([{"a": 1.0, "b": 3.0}, {"a": None, "b": None}], ["x", "y"], ("a", "b"))
    low, high, gap = found.boxes
    assert (found.top, low.y, low.height) == (4.0, 75.0, 25.0)
    assert (high.y, high.height, gap.kind) == (0.0, 75.0, "gap")
    assert bars.stacked([], [], ("a",)).top is None
    assert bars.stacked([{"a": 0.0}], ["x"], ("a",)).boxes == ()
    band, middle, hole = bars.banded([(1.0, 2.0, 4.0), None], ["x", "y"]).boxes
    assert (band.y, band.height, middle.y, hole.kind) == (0.0, 75.0, 49.0, "gap")
