"""Backtests in a browser: start one, watch it grow, share it, cancel it, on a phone as well."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from routing import backtest_work, backtests
from routing.models import Backtest, Fleet
from tests.browser.conftest import Open
from tests.routing.backtesting import mooncake, scenario_backtest, work_all


@pytest.fixture(autouse=True)
def _fresh_worker() -> None:
    backtest_work._prepared.cache_clear()
    backtest_work._trace.cache_clear()


def pages(fleet: Fleet) -> str:
    return f"/fleets/{fleet.pk}/backtests/"


def test_a_trace_is_uploaded_and_followed_to_its_end(
    tab: Open, fleet: Fleet, tmp_path: Path
) -> None:
    file = tmp_path / "small.jsonl"
    file.write_bytes(mooncake(300, gap_ms=1000))
    page = tab().open(pages(fleet))
    page.get_by_label("A trace file").check()
    expect(page.get_by_label("From, UTC")).to_be_hidden()
    page.set_input_files("[name=upload]", file)
    page.fill("[name=seeds]", "2")
    page.get_by_label("Adaptive: the loop as it runs live").uncheck()
    page.get_by_label("Fixed t, tokens").fill("1000")
    page.get_by_role("button", name="Start backtest").click()
    expect(page).to_have_url(re.compile(r"/backtests/\d+/$"))
    expect(page.locator("#backtest-state")).to_contain_text("queued 0 of 10 runs done")
    expect(page.locator("#chart-goodput")).to_contain_text("Waiting for a worker.")
    # The page never loads again: what follows reached it by itself.
    page.evaluate("window.same = true")
    backtest_work.work(timezone.now)
    expect(page.locator("#backtest-state")).to_contain_text("1 of 10 runs done, 9 waiting")
    expect(page.locator("#chart-goodput path.js-line")).to_have_count(1)
    expect(page.locator("#backtest-facts")).to_contain_text("300 requests in 5 min")
    assert work_all() == 9
    expect(page.locator("#backtest-state")).to_contain_text("done 10 of 10 runs done")
    expect(page.locator("#backtest-results")).to_contain_text("static t 1K")
    expect(page.locator("#backtest-legend")).to_contain_text("paper 2 seeds")
    expect(page.locator("#chart-t .scatterlayer .trace")).to_have_count(5)
    assert page.evaluate("window.same") is True
    page.select_option("#baseline", "static:1000")
    expect(page).to_have_url(re.compile(r"baseline=static%3A1000"))
    expect(page.locator("#backtest-results tr", has_text="baseline")).to_contain_text("static t 1K")


def test_exports_are_a_click_away(tab: Open, fleet: Fleet) -> None:
    made = scenario_backtest(fleet)
    work_all()
    page = tab("viewer").open(f"{pages(fleet)}{made.pk}/")
    page.get_by_text("Share", exact=True).click()
    expect(page.get_by_role("textbox", name="This page")).to_have_value(
        re.compile(rf"/backtests/{made.pk}/$")
    )
    with page.expect_download() as download:
        page.get_by_role("link", name="Everything as JSON").click()
    assert len(json.loads(Path(download.value.path()).read_text())["reports"]) == 4


def test_cancelling_from_the_page(tab: Open, fleet: Fleet) -> None:
    made = scenario_backtest(fleet)
    run = backtests.claim_next(timezone.now())
    assert run is not None
    page = tab().open(f"{pages(fleet)}{made.pk}/")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#backtest-state")).to_contain_text("cancelling 0 of 4 runs done")
    assert not backtests.beat(run, timezone.now(), 0.5, None)
    backtests.stopped(run, timezone.now())
    expect(page.locator("#backtest-state")).to_contain_text("cancelled 0 of 4 runs done")
    expect(page.locator("#backtest-charts")).to_be_hidden()


def test_a_worker_that_is_missing_is_told_of(tab: Open, fleet: Fleet) -> None:
    made = scenario_backtest(fleet)
    Backtest.objects.update(created_at=timezone.now() - timedelta(minutes=1))
    page = tab("viewer").open(f"{pages(fleet)}{made.pk}/")
    expect(page.locator("#backtest-state")).to_contain_text("No worker has taken it for 1 min")
