"""From the overview down to a raw sample, by mouse and by keyboard, while figures live."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from routing.models import Fleet
from tests import servers
from tests.browser.conftest import Open
from tests.browser.traffic import Traffic
from tests.console.drill_case import instance, land, large_fleet, link, now_s


def test_a_figure_is_followed_to_the_sample_it_came_from(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    traffic = Traffic(server, fleet)
    traffic.send(waiting=3.0)
    page = tab("viewer").open(f"/fleets/{fleet.pk}/")
    expect(page.locator(".pool").first).to_contain_text("1 up, 3 waiting")
    page.click(".cluster a:has-text('pd')")
    expect(page.locator("h1")).to_have_text("Cluster pd")
    page.click("#busiest tr:has-text('d1') a.row")
    expect(page.locator("h1")).to_have_text("d1")
    expect(page.locator("#truth-socket")).to_have_text("socket ok")
    traffic.send(waiting=7.0)
    expect(page.locator("[data-instance] [data-cell=waiting]")).to_have_text("7")
    expect(page.locator("#legend-queue")).to_contain_text("waiting7 req")
    row = page.locator("#signals-now tr", has_text="requests_waiting")
    expect(row).to_contain_text("7", timeout=15_000)
    row.get_by_role("link", name="Raw samples").click()
    expect(page.locator("h1")).to_have_text("Raw samples")
    expect(page.locator("tbody tr").first.locator("td.num").nth(1)).to_have_text("7")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.click(".crumbs-text a:has-text('pd/d1')")
    expect(page.locator("h1")).to_have_text("d1")


def test_links_are_words_and_doors_for_who_does_not_see_them(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    traffic = Traffic(server, fleet)
    traffic.send(tx_gbps=40.0)
    page = tab("viewer").open(f"/fleets/{fleet.pk}/")
    traffic.send(tx_gbps=40.0)
    said = page.locator("a.link-label")
    expect(said).to_have_attribute(
        "aria-label",
        re.compile(r"^Link from prfaas to pd: 40 Gbps of 100, 40 %, 40 % used, loss 0 %, breaker"),
    )
    said.focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("prfaas → pd")
    expect(page.locator("[data-link] [data-cell=tx_gbps]").first).to_have_text("40 Gbps")
    traffic.send(tx_gbps=50.0)
    expect(page.locator("[data-link] [data-cell=utilisation_ratio]").first).to_have_text("50 %")
    expect(page.locator("#legend-egress")).to_contain_text("50 Gbps")


def test_a_list_is_sorted_narrowed_and_arranged_in_place_and_its_address_says_how(
    tab: Open, fleet: Fleet
) -> None:
    large_fleet("big", n_instances=130, n_links=40)
    at_s = now_s()
    land(
        instance(f"big/pd/e-{i:03d}", at_s, signals={"requests_waiting": float(i)})
        for i in range(130)
    )
    land([link("site-000->pd", at_s)])
    page = tab("viewer").open("/fleets/big/instances/")
    first = page.locator("tbody tr a.row").first
    expect(first).to_have_text("pd/e-000")
    page.click("thead a:has-text('Waiting')")
    expect(page).to_have_url(re.compile(r"sort=waiting"))
    expect(first).to_have_text("pd/e-129")
    page.click("text=Next")
    expect(first).to_have_text("pd/e-079")
    page.click("text=Columns")
    page.uncheck("input[name=col][value=engine]")
    page.check("input[name=col][value=cluster]")
    page.click(".column-form button")
    expect(page).to_have_url(re.compile(r"col=cluster"))
    expect(page.locator("thead")).not_to_contain_text("Engine")
    expect(first).to_have_text("pd/e-129")
    page.keyboard.press("/")
    page.keyboard.type("e-12")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(10)
    page.keyboard.press("Escape")
    page.locator("main").focus()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("e-128")


def test_a_fleet_of_many_shows_the_fullest_and_folds_the_rest(tab: Open, fleet: Fleet) -> None:
    large_fleet("many", n_instances=8, n_links=60)
    at_s = now_s()
    land([link("site-029->pd", at_s, signals={"tx_gbps": 90.0}), link("site-001->pd", at_s)])
    page = tab("viewer", width=390).open("/fleets/many/")
    fullest = page.locator(".link-lists > ul li")
    expect(fullest).to_have_count(12)
    expect(fullest.first).to_contain_text("site-029 → pd")
    expect(page.locator(".part.top-row .cluster")).to_have_count(8)
    rest = page.locator(".part.top-row .folded")
    expect(rest).to_contain_text("22 clusters more")
    rest.locator("summary").click()
    rest.locator("a").first.click()
    expect(page.locator("h1")).to_contain_text("Cluster site-")
