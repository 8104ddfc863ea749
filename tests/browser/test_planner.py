"""The planner in a browser: numbers in, answers at once, addresses to share, a hold to confirm."""

from __future__ import annotations

import csv
import io
import re

from playwright.sync_api import expect

from routing.models import Fleet, Hold
from tests.browser.conftest import Open
from tests.routing.backtesting import upload


def test_numbers_answer_at_once_and_lead_to_a_hold(tab: Open, fleet: Fleet) -> None:
    found = tab("operator")
    page = found.open(f"/fleets/{fleet.pk}/planner/")
    sentence, state = page.locator("#sentence"), page.locator("#answer-state")
    expect(sentence).to_have_text(
        re.compile(r"^Best is t = 24\.9K tok with 4 prefill / 4 decode\. It carries 3\.13 req/s")
    )
    expect(page.locator("#chart-heat .heatmaplayer image")).to_have_count(1)
    page.get_by_label("Menu of the chart Λ over t and roles").click()
    with page.expect_download() as taken:
        page.get_by_role("button", name="Table of what is shown (CSV)").click()
    table = taken.value.path().read_text().splitlines()
    assert table[0] == "threshold_tokens,n_prefill,lambda_rps"
    assert len(table) > 100
    page.keyboard.press("Escape")
    expect(page.locator("#stages-note")).to_contain_text("the plan in force, 1.2")
    expect(page.locator("#cheapest-sentence")).to_contain_text("fewer than now")

    rate = page.locator("[name='pd.rate_rps']")
    rate.fill("5")
    expect(sentence).to_contain_text("of the 5 req/s asked: queues would grow")
    expect(page).to_have_url(re.compile(r"/planner/\?pd\.rate_rps=5$"))
    expect(page.locator("#n-changed")).to_have_text("1 changed")
    twin = page.get_by_role("link", name="Run the twin on this")
    expect(twin).to_have_attribute("href", re.compile(r"/backtests/\?pd\.rate_rps=5$"))

    rate.fill("lots")
    expect(page.locator("[data-error-of='pd.rate_rps']")).to_have_text("must be a number")
    expect(state).to_contain_text("shown is the last good answer")
    expect(sentence).to_contain_text("of the 5 req/s asked"), "the last good answer stays"
    expect(page.locator("#answer")).to_have_class(re.compile("old"))
    found.forgive()  # the browser reports the 422

    page.locator("[data-field='pd.rate_rps'] .was-number").click()
    expect(sentence).to_contain_text("the 2.50 req/s asked")
    expect(page.locator("[data-error-of='pd.rate_rps']")).to_be_hidden()
    expect(page).to_have_url(re.compile(r"/planner/$"))

    slider = page.get_by_label("prfaas → pd, slider")
    slider.focus()
    slider.press("Home")
    expect(page.locator("[name='prfaas->pd.gbps']")).to_have_value("1")
    expect(sentence).to_contain_text("It carries 1.56 req/s")
    page.reload()
    expect(page.locator("[name='prfaas->pd.gbps']")).to_have_value("1")
    expect(sentence).to_contain_text("It carries 1.56 req/s")

    page.locator("#reset").click()
    expect(sentence).to_contain_text("the 2.50 req/s asked")
    expect(page.locator("#actions")).to_contain_text(
        "A hold pins t, not roles: pd runs 3 prefill / 5 decode, this plan needs 4 prefill / 4"
    )
    page.get_by_role("link", name=re.compile(r"Apply t = .* as a hold")).click()
    expect(page.get_by_role("button", name="Hold it")).to_be_visible()
    expect(page.locator("[name=reason]").first).to_have_value(
        "Planner: best t for 3 prefill / 5 decode at 2.50 req/s"
    )
    assert not Hold.objects.exists(), "nothing is held before it is confirmed"


def test_the_cache_budget_is_taken_away_as_picture_table_and_call(tab: Open, fleet: Fleet) -> None:
    trace = upload(fleet)
    page = tab("viewer").open(f"/fleets/{fleet.pk}/planner/")
    panel = page.locator("#cache-budget")
    panel.scroll_into_view_if_needed()
    expect(panel.locator("#chart-cache .main-svg").first).to_be_visible()
    panel.get_by_label("Menu of the chart Cache budget").click()
    with page.expect_download() as taken:
        panel.get_by_role("button", name="Table of what is shown (CSV)").click()
    header, *rows = csv.reader(io.StringIO(taken.value.path().read_text()))
    assert header == [
        *("cluster", "cache_tokens", "hit_ratio", "mean_uncached_tokens", "headroom"),
    ]
    drawn = page.evaluate("document.getElementById('chart-cache').data.map(each => each.x)")
    assert [float(row[1]) for row in rows] == [x for trace in drawn for x in trace]
    with page.expect_download() as taken:
        panel.get_by_role("button", name="Picture (PNG)").click()
    assert taken.value.path().read_bytes().startswith(b"\x89PNG")
    panel.get_by_role("button", name="Copy as curl").click()
    expect(panel.locator(".about code")).to_contain_text(
        f"/api/v1/fleets/{fleet.pk}/cache-budget?trace={trace.pk}"
    )
