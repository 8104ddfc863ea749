"""What is kept of large fleets for those who look, and what a missing broker does to that."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
import redis
from django.utils import timezone

from console import kept
from routing.core.truth.finding import Clear, Figure, Finding, Report
from routing.models import Fleet, RouterState
from tests.routing.cases import NOW_S, make_fleet

pytestmark = pytest.mark.django_db
REPORT = Report(
    at_s=NOW_S,
    findings=(
        Finding(
            name="NoEffect",
            subject="f1/pd",
            severity="warn",
            sentence="It did nothing",
            evidence=(
                Figure("share", 0.25, "ratio", "measured"),
                Figure("make", "smg", "", "measured"),
                Figure("rate", None, "", "measured"),
            ),
            next_step="Look",
        ),
    ),
    unknown=(),
    clear=(Clear("FlowLimited", "prfaas->pd", "100 Gbps"),),
)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Times at which a report was made; it is REPORT with that time."""
    made: list[float] = []

    def report(fleet: Fleet, *, now: object) -> Report:
        made.append(now.timestamp())  # type: ignore[attr-defined]
        return replace(REPORT, at_s=made[-1])

    monkeypatch.setattr("console.kept.findings.report", report)
    return made


@pytest.fixture
def large() -> Fleet:
    # Its time of making keeps it apart from those of other tests.
    return make_fleet(pd={"instances": 900})


def test_of_a_small_fleet_nothing_is_kept(reports: list[float]) -> None:
    fleet = make_fleet()
    assert [kept.report(fleet, now_s=NOW_S + n).at_s for n in range(3)] == [
        NOW_S + n for n in range(3)
    ]
    assert kept.refresh(lambda: NOW_S) == 0


def test_of_a_large_fleet_the_first_look_makes_it(large: Fleet, reports: list[float]) -> None:
    found = kept.report(large, now_s=NOW_S)
    assert found == REPORT
    assert kept.report(large, now_s=NOW_S + 5.0) == REPORT, "all of it is read as it was written"
    assert reports == [NOW_S]


def test_a_worker_makes_anew_what_is_looked_at(large: Fleet, reports: list[float]) -> None:
    assert kept.refresh(lambda: NOW_S) == 0, "nobody has looked"
    kept.report(large, now_s=NOW_S)
    assert kept.refresh(lambda: NOW_S + 10.0) == 1
    assert kept.report(large, now_s=NOW_S + 11.0).at_s == NOW_S + 10.0


def test_what_is_missing_is_kept_as_well(large: Fleet) -> None:
    now = timezone.now()
    RouterState.objects.create(
        router="f1/pd/gw-1",
        fleet=large,
        cluster="pd",
        state="running",
        transport="socket",
        last_seen_at=now - timedelta(minutes=2),
    )
    now_s = now.timestamp()
    first = kept.missing(large, now_s=now_s)
    assert first
    assert kept.missing(large, now_s=now_s + 9.0) == first


def test_without_a_broker_it_is_made_each_time(
    large: Fleet, reports: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    away = redis.Redis(port=1, socket_connect_timeout=0.2)
    monkeypatch.setattr("console.kept._client", lambda: away)
    for n in range(2):
        assert kept.report(large, now_s=NOW_S + n).at_s == NOW_S + n
    with pytest.raises(redis.RedisError):
        kept.refresh(lambda: NOW_S)
