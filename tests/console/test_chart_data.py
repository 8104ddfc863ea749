"""What the console gives charts beside plain series: marks of what happened, and rankings."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from django.test import Client
from django.utils import timezone

from console import ranked_series
from routing.models import Fleet, Hold, Rebalance
from tests.console import onboarding_case as case
from tests.console import page_case

NAN = float("nan")


def ask(viewer: Client, what: str, **query: Any) -> Any:
    return viewer.get(f"/api/v1/fleets/f1/{what}", query)


@pytest.mark.django_db
def test_marks_say_who_why_and_what_changed(fleet: Fleet, viewer: Client) -> None:
    now = timezone.now()
    page_case.decision(fleet, now - timedelta(minutes=30), 1, 4000, reason="Initial")
    page_case.decision(fleet, now - timedelta(minutes=5), 2, 6000, previous=4000)
    held = "pd is held by ann until 2026-01-31 14:05:00 UTC: <b>a test</b>"
    page_case.decision(
        fleet, now - timedelta(minutes=2), 3, 7000, previous=6000, reason="Held", message=held
    )
    said = ask(viewer, "marks").json()
    assert [(d["version"], d["who"]) for d in said["decisions"]] == [(2, "loop"), (3, "ann")]
    assert said["decisions"][0]["changes"] == {"pd": {"threshold_tokens": [4000, 6000]}}
    assert said["n_left_out"] == 0


@pytest.mark.django_db
def test_spans_of_holds_and_rebalances_end_when_they_do(fleet: Fleet, viewer: Client) -> None:
    now = timezone.now()
    hold = {"fleet": fleet, "mode": "threshold", "owner": "ann", "reason": "a test"}
    ages = ((50, 40, None), (12, -60, None), (30, -60, 5))
    for begun, expires, released in ages:
        made = Hold.objects.create(**hold, expires_at=now - timedelta(minutes=expires))
        released_at = released and now - timedelta(minutes=released)
        Hold.objects.filter(pk=made.pk).update(
            created_at=now - timedelta(minutes=begun), released_at=released_at
        )
    roles = {"from_n_prefill": 3, "from_n_decode": 5, "to_n_prefill": 4, "to_n_decode": 4}
    moment = now - timedelta(minutes=3)
    Rebalance.objects.create(
        fleet=fleet, cluster="pd", **roles, requested_by="bob", drain_timeout_s=60.0,
        created_at=moment, deadline_at=now, updated_at=now,
    )  # fmt: skip
    spans = ask(viewer, "marks").json()["spans"]
    assert [(s["kind"], s["who"], s["until_s"] is None) for s in spans] == [
        ("hold", "ann", False),
        ("hold", "ann", True),
        ("rebalance", "bob", True),
    ]
    assert (spans[2]["before"], spans[2]["after"]) == ("3/5", "4/4")


@pytest.mark.django_db
@pytest.mark.parametrize(
    "query", [{"since": "5", "until": "4"}, {"since": "-1"}, {"until": "1e300"}, {"colour": "red"}]
)
def test_marks_of_no_range_are_refused(fleet: Fleet, viewer: Client, query: dict[str, str]) -> None:
    assert ask(viewer, "marks", **query).status_code == 422


def test_the_highest_rows_come_first_and_the_rest_is_a_band() -> None:
    values = np.array([[1.0, 9.0, NAN, 4.0, 2.0], [1.0, NAN, NAN, 4.0, 2.0]])
    said = ranked_series.ranked(values, ("a", "b", "c", "d", "e"), n_rows=2, offset=0)
    assert [row["path"] for row in said["rows"]] == ["b", "d"]
    assert np.isnan(said["rows"][0]["values"][1])
    assert said["rest"]["n"].tolist() == [2, 2]
    assert said["rest"]["bands"]["0.5"].tolist() == [1.5, 1.5]
    after = ranked_series.ranked(values, ("a", "b", "c", "d", "e"), n_rows=9, offset=2)
    assert [row["path"] for row in after["rows"]] == ["e", "a", "c"]


def test_counters_are_ranked_as_rates_and_a_new_process_is_a_gap() -> None:
    totals = np.array([[10.0], [30.0], [5.0], [25.0]])
    found = ranked_series.rates(totals, 10.0, 0.0, 35.0, "prompt_tokens_total")
    np.testing.assert_equal(found[:, 0], [NAN, 2.0, NAN, NAN])
    assert ranked_series.rates(totals, 10.0, 0.0, 35.0, "requests_waiting") is totals


@pytest.mark.django_db
def test_a_page_of_a_large_fleet_gets_the_rows_it_asks_for(fleet: Fleet, viewer: Client) -> None:
    case.well()
    query = {"kind": "instance", "signal": "requests_waiting", "rows": 5}
    said = ask(viewer, "telemetry/series/ranked", **query).json()
    assert said["n_sources"] == 12
    assert len(said["rows"]) == 5
    assert max(said["rest"]["n"]) <= 7
    later = ask(viewer, "telemetry/series/ranked", **query, offset=10).json()
    assert len(later["rows"]) == 2
    assert ask(viewer, "telemetry/series/ranked", **{**query, "rows": 61}).status_code == 422


@pytest.mark.django_db
def test_links_are_those_of_the_fleet_and_their_use_is_a_share(
    fleet: Fleet, viewer: Client
) -> None:
    query = {"kind": "link", "signal": "tx_gbps", "over": "capacity_gbps"}
    said = ask(viewer, "telemetry/series/ranked", **query).json()
    assert [row["path"] for row in said["rows"]] == ["prfaas->pd"]
    strange = ask(viewer, "telemetry/series/ranked", **query, paths="a->b")
    assert strange.status_code == 422
    assert "a->b is no link of fleet f1" in strange.content.decode()
