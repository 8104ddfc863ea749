"""The timeline and one decision in a browser: charts, a list that pages in place, what unfolds."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone
from playwright.sync_api import expect

from routing.models import Fleet
from tests.browser.conftest import Open, until
from tests.browser.test_console import overview
from tests.console.page_case import decision, tick

DRAWN = "(id) => document.getElementById(id).querySelectorAll('.scatterlayer .trace').length"


def test_the_timeline_is_filtered_and_paged_and_drawn(tab: Open, fleet: Fleet) -> None:
    now = timezone.now()
    for version in range(3, 56):
        at = now - timedelta(seconds=8 * (56 - version))
        decision(fleet, at, version, 6000 + 100 * version, previous=6000)
    page = tab("viewer", width=390).open(f"{overview(fleet)}decisions/?range=1h")
    rows = page.locator("#timeline tr.linked")
    expect(rows).to_have_count(50)
    page.locator("#chart-strip").scroll_into_view_if_needed()
    until(page, f"({DRAWN})('chart-strip') >= 4")
    expect(page.locator("#legend-strip")).to_contain_text("11.5K tok")
    page.get_by_role("link", name="Older").click()
    expect(page.locator("#timeline")).to_contain_text("The start.")
    assert "before=" in page.url
    page.get_by_role("link", name="Newest").click()
    page.get_by_label("Kind").select_option("held")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**kind=held**")
    expect(rows.locator(".tag", has_text="kept")).to_have_count(rows.count())
    assert "range=1h" in page.url
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_a_decision_is_read_from_its_sentence_to_its_evidence(tab: Open, fleet: Fleet) -> None:
    row = fleet.decisions.get(version=2)
    for seconds in range(20, 300, 20):
        tick(fleet, row.created_at + timedelta(seconds=seconds))
    page = tab("operator").open(f"{overview(fleet)}decisions/{row.pk}/")
    expect(page.locator(".page-head .sentence")).to_contain_text("Raised t because")
    for name in ("share", "headroom", "gbps"):
        page.locator(f"#chart-{name}").scroll_into_view_if_needed()
        until(page, f"({DRAWN})('chart-{name}') >= 4")
    same = page.locator("#delivery details.same summary")
    same.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#delivery details.same")).to_contain_text("Mode")
    page.get_by_role("link", name="against previous").click()
    expect(page.locator(".sentence")).to_have_text("1 field differs between v1 and v2.")
    page.get_by_role("link", name="Other way round").click()
    expect(page.locator("main")).to_contain_text("this is what going back would change")
