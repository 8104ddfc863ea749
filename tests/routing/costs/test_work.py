"""The pass of costs: every fleet, whatever one of them does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from console.celery import app
from routing.costs import tasks, work
from routing.costs.models import MonthReport, RecordedHour, UsageDay
from routing.forecast import tasks as forecast_tasks
from routing.forecast.models import Forecast
from routing.models import Fleet
from routing.refits import tasks as refit_tasks
from tests.routing.cases import NOW, make_fleet
from tests.routing.costs.case import ticks

pytestmark = pytest.mark.django_db


def test_a_pass_folds_records_and_reports_and_a_broken_fleet_stops_no_other() -> None:
    broken, sound = make_fleet("f1"), make_fleet("f2")
    Fleet.objects.filter(pk=broken.pk).update(scenario={})
    for fleet in (broken, sound):
        ticks(fleet, datetime(2026, 11, 29, 8, tzinfo=UTC), 120)
    assert work.work(lambda: NOW) == 2
    assert list(UsageDay.objects.values_list("fleet", flat=True)) == ["f2"]
    assert list(MonthReport.objects.values_list("fleet", "month")) == [("f2", "2026-11")]
    assert RecordedHour.objects.filter(fleet="f2").count() == 11
    before = MonthReport.objects.get().made_at
    work.work(lambda: NOW + timedelta(minutes=5))
    assert MonthReport.objects.get().made_at == before


def test_the_tasks_are_known_and_wait_in_the_twins_queue() -> None:
    app.loader.import_default_modules()
    for task in (tasks.keep, tasks.value, forecast_tasks.work, refit_tasks.work):
        assert task.name in app.tasks
        assert app.amqp.router.route({}, task.name)["queue"].name == "twin"
        entry = app.conf.beat_schedule[task.name]
        assert entry["options"]["expires"] < entry["schedule"], "S-53"


def test_each_task_does_its_part_with_nothing_to_do() -> None:
    make_fleet()
    tasks.keep()
    tasks.value()
    refit_tasks.work()
    forecast_tasks.work()
    assert Forecast.objects.get().found["state"] == "unknown"
