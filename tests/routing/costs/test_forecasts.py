"""Forecasts are made from kept days, judged, and acted on by a job alone; fits are proposals."""

from __future__ import annotations

import copy
import datetime
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from routing import profiling
from routing.commands import Outdated, Refused
from routing.core.model.profile_fit import Fit, Refusal
from routing.core.scenario.document import Cluster
from routing.costs.models import UsageDay
from routing.forecast import forecasts
from routing.forecast.models import Forecast
from routing.jobs import doing
from routing.jobs.document import read_job
from routing.models import Fleet
from routing.profiling import Measured
from routing.refits import proposals
from tests.routing.cases import NOW, NOW_S, make_fleet
from tests.routing.costs.case import BY, days, price, pushed
from tests.routing.jobs.case import MORNING

pytestmark = pytest.mark.django_db
FIRST = datetime.date(2026, 11, 16)
"""A Monday, 13 days before NOW."""
PARIS = ZoneInfo("Europe/Paris")


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet()


def long_mornings(first: datetime.date, n: int) -> None:
    """Short prompts, but long ones from 08:00 to 12:00 UTC of each day."""
    days("f1", first, n)
    for row in UsageDay.objects.all():
        for slot in range(48):
            mix = [0.0] * 22
            mix[18 if 16 <= slot < 24 else 10] = 1.0
            row.usage["traffic"]["pd"]["mix"][slot] = mix
        row.save()


def test_with_six_days_it_does_not_know(fleet: Fleet) -> None:
    days("f1", NOW.date() - timedelta(days=6), 7)
    row = forecasts.make(fleet, NOW, judge_too=True)
    assert row.found["state"] == "unknown"
    assert row.found["why"] == "pd: 6.5 days of traffic are recorded; a week's pattern needs 7"
    assert (row.judged, row.judged_at) == (None, None)


def test_it_tells_what_each_hour_will_want(fleet: Fleet) -> None:
    long_mornings(FIRST, 14)
    pushed(fleet, NOW)
    row = forecasts.make(fleet, NOW, judge_too=False)
    assert row.found["state"] == "known"
    assert row.found["now"] == {"pd": [3, 5]}
    hours = {datetime.datetime.fromisoformat(h["at"]).hour: h for h in row.found["hours"]}
    assert len(hours) == 24
    noon, morning = hours[13], hours[9]
    assert (noon["clusters"]["pd"]["rps"], morning["clusters"]["pd"]["low_rps"]) == (2.5, 2.5)
    assert morning["clusters"]["pd"]["n_prefill"] > noon["clusters"]["pd"]["n_prefill"]
    assert morning["advised"]
    assert morning["gain_ratio"] > 0.04
    assert morning["headroom"] == pytest.approx(
        (1 + morning["gain_ratio"]) * morning["headroom_now"]
    )


def test_it_is_judged_once_a_day_and_made_every_half_hour(fleet: Fleet) -> None:
    long_mornings(FIRST, 14)
    assert forecasts.refresh(fleet, NOW)
    judged = Forecast.objects.get().judged
    assert judged["n_roles"] == 6 * 24, "13 whole days, of which 7 had a week before them, less one"
    assert judged["forecast"]["right_ratio"] == 1.0
    assert judged["reactive"]["regret_mean"] >= 0.0
    assert not forecasts.refresh(fleet, NOW + timedelta(minutes=29))
    assert forecasts.refresh(fleet, NOW + timedelta(minutes=31))
    row = Forecast.objects.get()
    assert (row.judged_at, row.made_at) == (NOW, NOW + timedelta(minutes=31))


def test_half_hours_are_of_the_fleets_own_week(fleet: Fleet) -> None:
    monday = datetime.datetime(2026, 3, 30, 6, 30, tzinfo=datetime.UTC).timestamp()
    assert forecasts.week_slot(monday, PARIS) == 17, "08:30 in summer"
    price()
    days("f1", FIRST, 14)
    seen = forecasts.seen_of("f1", *_read(fleet))["pd"]
    assert seen.slot[0] == 48, "the first local midnight after the first kept day begins"
    assert np.isnan(seen.rps).sum() == 0


def _read(fleet: Fleet) -> tuple[Any, ZoneInfo, datetime.datetime]:
    return forecasts.fleets.scenario_of(fleet), PARIS, NOW


def job(**do: Any) -> Any:
    return read_job(MORNING | {"do": do})


FOLLOW = {"kind": "forecast", "cluster": "pd", "for_s": 3600}


def test_a_job_does_what_is_advised_and_nothing_where_nothing_is(fleet: Fleet) -> None:
    pushed(fleet, NOW)
    with pytest.raises(Refused, match="there is none yet"):
        doing.preview(job(**FOLLOW), now=NOW)
    long_mornings(FIRST, 14)
    at = NOW.replace(hour=7, minute=30)
    forecasts.make(fleet, at, judge_too=False)
    to = forecasts.advised("f1", "pd", at)
    assert to is not None
    assert to[0] > 3
    with pytest.raises(Refused, match="no routers"):
        doing.preview(job(**FOLLOW), now=at)
    quiet = {**Forecast.objects.get().found}
    for hour in quiet["hours"]:
        hour["advised"] = False
    Forecast.objects.update(found=quiet)
    assert forecasts.advised("f1", "pd", at) is None
    assert doing.preview(job(**FOLLOW), now=at).text.endswith("already")
    with pytest.raises(Refused, match="too old"):
        forecasts.advised("f1", "pd", at + timedelta(hours=3))
    with pytest.raises(Refused, match="says nothing of x"):
        forecasts.advised("f1", "x", at)


def test_a_job_of_a_forecast_is_read_strictly() -> None:
    assert job(**FOLLOW).do.for_s == 3600.0
    for wrong in ({"for_s": 0}, {"n_prefill": 5}, {"cluster": ""}):
        with pytest.raises(ValueError, match="do\\."):
            job(**FOLLOW | wrong)


def test_the_job_that_fits_profiles_only_asks(fleet: Fleet) -> None:
    nightly = job(kind="refit_profiles", span_s=86_400)
    assert doing.preview(nightly, now=NOW).text == "dry run: would fit profiles to the last 24 h"
    done = doing.act(nightly, actor="job", via="job", key="k", due_at=NOW, now=NOW)
    row = proposals.ProfileProposal.objects.get()
    assert done.text == f"profiles are being fitted: see proposal {row.pk}"
    assert (row.state, row.until - row.since) == ("queued", timedelta(days=1))
    with pytest.raises(Refused, match="at most 3 days"):
        doing.preview(job(kind="refit_profiles", span_s=6 * 86_400), now=NOW)


def fitted(name: str, n_requests: float = 500.0) -> Measured:
    fit = Fit(
        constant_s=0.4,
        linear_s=5e-5,
        square_s=1e-10,
        range_tokens=(256.0, 65_000.0),
        n_requests=n_requests,
        n_rows=100,
        n_wild=0,
        n_warm_up=0,
        n_unusable=0,
        spread_ratio=0.05,
        measured_from_s=NOW_S - 3600,
        measured_until_s=NOW_S,
    )
    return Measured(Cluster(name, "pd", "h20", 8), ("vllm 0.32",), fit)


def asked() -> proposals.ProfileProposal:
    return proposals.ask(fleet="f1", span=timedelta(hours=6), now=NOW, **BY)


def test_a_fit_is_kept_beside_what_stands_and_applied_by_a_person(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = copy.deepcopy(fleet.scenario["profiles"]["h20"])
    measured = [fitted("pd"), Measured(Cluster("x", "pd", "h200", 2), (), Refusal("NoRows", "no"))]
    monkeypatch.setattr(profiling, "measure", lambda *_, **__: measured)
    first, row = asked(), asked()
    first.refresh_from_db()
    assert first.state == "replaced"
    assert proposals.work(lambda: NOW) == 1
    row.refresh_from_db()
    assert row.state == "ready"
    assert row.clusters["x"]["refused"] == {"reason": "NoRows", "message": "no"}
    assert row.profiles["h20"]["before"] == before
    proposals.apply(proposal=row, now=NOW, **BY)
    fleet.refresh_from_db()
    changed = fleet.scenario["profiles"]["h20"]
    assert changed["prefill"] == {"fit": [0.4, 5e-5, 1e-10], "range_tokens": [256, 65_000]}
    assert (changed["engine"], changed["engine_version"]) == ("vllm", "0.32")
    assert changed["decode"] == before["decode"]
    with pytest.raises(Refused, match="is applied"):
        proposals.apply(proposal=row, now=NOW, **BY)


def test_a_profile_that_was_changed_meanwhile_is_not_overwritten(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "measure", lambda *_, **__: [fitted("pd")])
    row = asked()
    proposals.work(lambda: NOW)
    fleet.scenario["profiles"]["h20"]["gpu"] = "h20-141"
    fleet.save()
    with pytest.raises(Outdated, match="was changed since"):
        proposals.apply(proposal=row, now=NOW, **BY)


def test_of_clusters_that_share_a_profile_the_busiest_counts(fleet: Fleet) -> None:
    few, many = fitted("a", 100.0), fitted("b", 900.0)
    found = proposals.proposed(fleet.scenario, [few, many], NOW)
    assert list(found) == ["h20"]
    assert proposals.told(many)["n_requests"] == 900.0


def test_nothing_that_can_be_fitted_is_a_failure_in_words(fleet: Fleet) -> None:
    row = asked()
    proposals.work(lambda: NOW)
    row.refresh_from_db()
    assert (row.state, row.text) == ("failed", "no cluster could be fitted")
    assert row.clusters["pd"]["refused"]["reason"] == "NoInstance"
