"""Probes and metrics: honest about the loop, the database and the broker."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from console import health
from routing import delivery, scheduler
from routing.models import Fleet
from tests.console.api_case import machine
from tests.routing.cases import make_fleet

pytestmark = pytest.mark.django_db


def tick(*, ago_s: float) -> None:
    at = timezone.now() - timedelta(seconds=ago_s)
    assert scheduler.run_tick("f1", now=at, tick_s=0.001) is not None


def ready() -> tuple[int, list[str]]:
    response = Client().get("/readyz")
    return response.status_code, response.json()["reasons"]


def test_the_process_answers_without_a_login() -> None:
    response = Client().get("/healthz")
    assert (response.status_code, response.json()) == (200, {"ok": True})


def test_a_console_without_fleets_is_ready() -> None:
    assert ready() == (200, [])


def test_a_loop_that_ticks_is_ready_one_that_stopped_is_not() -> None:
    make_fleet()
    tick(ago_s=60.0)
    status, [reason] = ready()
    assert status == 503
    assert reason == "f1: the last tick was 60 s ago"
    tick(ago_s=1.0)
    assert ready() == (200, [])


def test_a_clock_that_was_set_back_is_not_ready() -> None:
    make_fleet()
    tick(ago_s=-3.0)
    assert ready() == (200, [])
    tick(ago_s=-3600.0)
    status, [reason] = ready()
    assert status == 503
    assert reason.startswith("f1: the clock was set back, the last tick is of 20")


def test_a_fleet_that_never_ticked_is_given_a_moment() -> None:
    make_fleet()
    assert ready() == (200, [])
    Fleet.objects.update(created_at=timezone.now() - timedelta(seconds=60))
    status, [reason] = ready()
    assert (status, reason) == (503, "f1: no tick yet, and it was made 60 s ago")


def test_a_broker_that_is_away_is_a_reason(settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    status, [reason] = ready()
    assert status == 503
    assert reason.startswith("the broker does not answer")


def test_a_database_that_is_away_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> list[str]:
        raise DatabaseError

    monkeypatch.setattr(health, "_loop_reasons", away)
    status, [reason] = ready()
    assert status == 503
    assert reason.startswith("the database does not answer")


def metrics() -> dict[str, dict[tuple[str, ...], float]]:
    response = Client().get("/metrics")
    assert response.status_code == 200
    families = text_string_to_metric_families(response.content.decode())
    return {
        sample.name: {
            tuple(s.labels.values()): s.value for s in family.samples if s.name == sample.name
        }
        for family in families
        for sample in family.samples
    }


def test_metrics_say_how_the_loop_does() -> None:
    fleet = make_fleet()
    tick(ago_s=5.0)
    delivery.record_ack(
        fleet=fleet,
        router="f1/pd/gw-1",
        running=(1, 1),
        state="running",
        error=None,
        transport="poll",
        now=timezone.now(),
    )
    found = metrics()
    assert found["prfaas_console_tick_age_seconds"][("f1",)] == pytest.approx(5.0, abs=5.0)
    assert found["prfaas_console_tick_duration_seconds"][("f1",)] > 0
    assert found["prfaas_console_decisions_total"] == {("f1", "adopted", "Initial"): 1.0}
    assert found["prfaas_console_gates"] == {("f1",): 1.0}
    assert found["prfaas_console_gates_applied"] == {("f1",): 1.0}


@pytest.mark.parametrize(
    ("address", "headers", "status"),
    [
        ("127.0.0.1", {}, 200),
        ("::1", {}, 200),
        ("192.0.2.7", {}, 401),
        ("127.0.0.1", {"X-Forwarded-For": "192.0.2.7"}, 401),
        ("192.0.2.7", {"Authorization": "Bearer pf_wrong"}, 401),
    ],
)
def test_metrics_are_for_this_host_or_a_token(
    address: str, headers: dict[str, str], status: int
) -> None:
    response = Client().get("/metrics", headers=headers, REMOTE_ADDR=address)
    assert response.status_code == status


def test_a_token_that_may_read_may_read_metrics() -> None:
    assert machine("read").get("/metrics", REMOTE_ADDR="192.0.2.7").status_code == 200
    assert machine("ingest").get("/metrics", REMOTE_ADDR="192.0.2.7").status_code == 401
