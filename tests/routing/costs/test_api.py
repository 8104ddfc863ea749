"""Costs, forecasts and fits over REST: as the schema promises, and in words where nothing is."""

from __future__ import annotations

import datetime

import pytest
from django.test import Client
from django.utils import timezone

from routing.costs import tasks
from routing.forecast import forecasts
from routing.models import Action
from tests.console.api_case import conforms, person, send, strict
from tests.routing.cases import make_fleet
from tests.routing.costs.case import PRICES, days, pushed, recorded_hours

pytestmark = pytest.mark.django_db
REPORT = "/fleets/{fleet}/reports/{month}"


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Client:
    make_fleet()
    monkeypatch.setattr(tasks, "wake", lambda: None)
    return person("operator")


def this_month() -> tuple[str, datetime.date]:
    now = timezone.now()
    return f"{now:%Y-%m}", now.date().replace(day=1)


def test_prices_have_versions(operator: Client) -> None:
    path, of = "/fleets/f1/prices", "/fleets/{fleet}/prices"
    assert send(operator, "get", path).status_code == 404
    made = send(operator, "put", path, {"document": PRICES})
    assert (made["ETag"], conforms(made, of, "put")["version"]) == ('"1"', 1)
    assert send(operator, "put", path, {"document": PRICES}).status_code == 428
    stale = send(operator, "put", path, {"document": PRICES}, **{"If-Match": '"7"'})
    assert stale.status_code == 412
    wrong = send(operator, "put", path, {"document": {"currency": "?"}}, **{"If-Match": '"1"'})
    assert wrong.status_code == 422
    assert "ISO 4217" in str(strict(wrong)["errors"])
    assert conforms(send(operator, "get", path), of)["document"] == PRICES
    assert send(operator, "delete", path, **{"If-Match": '"1"'}).status_code == 204


def test_a_report_is_kept_listed_and_made_again(operator: Client) -> None:
    month, first = this_month()
    missing = send(operator, "get", f"/fleets/f1/reports/{month}")
    assert missing.status_code == 404
    assert "there is none yet" in str(strict(missing))
    assert send(operator, "get", "/fleets/f1/reports/2026-13").status_code == 404
    again = {"reason": "new prices"}
    assert send(operator, "post", f"/fleets/f1/reports/{month}", again).status_code == 404
    days("f1", first, 31)
    if timezone.now().date() == first and timezone.now().hour == 0:
        pytest.skip("the month is not half an hour old")
    made = conforms(send(operator, "post", f"/fleets/f1/reports/{month}", again), REPORT, "post")
    assert made["report"]["state"] == "so_far"
    assert Action.objects.latest("id").verb == "report.make"
    read = conforms(send(operator, "get", f"/fleets/f1/reports/{month}"), REPORT)
    assert read["report"]["pools"][0]["cluster"] == "prfaas"
    listed = send(operator, "get", "/fleets/f1/reports")
    assert [row["month"] for row in conforms(listed, "/fleets/{fleet}/reports")["results"]] == [
        month
    ]


def test_the_value_of_decisions_is_asked_for_and_watched(operator: Client) -> None:
    fleet = make_fleet()
    first = datetime.datetime(2026, 10, 2, tzinfo=datetime.UTC)
    path, of = "/fleets/f1/reports/2026-10/value", REPORT + "/value"
    assert send(operator, "get", path).status_code == 404
    assert send(operator, "post", path, {}).status_code == 422
    pushed(fleet, first)
    recorded_hours("f1", first, 4)
    begun = send(operator, "post", path, {"reason": "for the board"}, **{"Idempotency-Key": "k"})
    assert begun.status_code == 202
    row = conforms(begun, of, "post")
    assert (row["state"], row["n_hours"], row["progress_ratio"]) == ("queued", 4, 0.0)
    same = send(operator, "post", path, {"reason": "for the board"}, **{"Idempotency-Key": "k"})
    assert strict(same)["id"] == row["id"]
    assert conforms(send(operator, "get", path), of)["id"] == row["id"]


def test_a_forecast_says_that_it_does_not_know(operator: Client) -> None:
    assert send(operator, "get", "/fleets/f1/forecast").status_code == 404
    forecasts.make(make_fleet(), timezone.now(), judge_too=True)
    found = conforms(send(operator, "get", "/fleets/f1/forecast"), "/fleets/{fleet}/forecast")
    assert (found["found"]["state"], found["judged"]) == ("unknown", None)
    assert found["found"]["why"] == "no day of traffic is kept yet"


def test_a_fit_is_asked_for_listed_and_not_applied_before_it_is_ready(operator: Client) -> None:
    path, of = "/fleets/f1/profile-fits", "/fleets/{fleet}/profile-fits"
    begun = send(operator, "post", path, {"span_s": 3600})
    assert begun.status_code == 202
    row = conforms(begun, of, "post")
    assert row["state"] == "queued"
    assert send(operator, "post", path, {"span_s": 10**6}).status_code == 422
    refused = send(operator, "post", f"{path}/{row['id']}/apply", {"reason": "x"})
    assert refused.status_code == 422
    assert len(conforms(send(operator, "get", path), of)["results"]) == 1


def test_a_viewer_reads_only() -> None:
    make_fleet()
    month, _ = this_month()
    viewer = person("viewer")
    assert send(viewer, "get", "/fleets/f1/reports").status_code == 200
    for method, path in (
        ("put", "prices"),
        ("post", f"reports/{month}"),
        ("post", f"reports/{month}/value"),
        ("post", "profile-fits"),
        ("post", "profile-fits/1/apply"),
    ):
        assert send(viewer, method, f"/fleets/f1/{path}", {}).status_code == 403
