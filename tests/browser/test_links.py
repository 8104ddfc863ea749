"""A link that goes down, in a browser: said in words, everywhere it is shown."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from routing.core.types import LinkLabel, LinkMemory, Memory
from routing.models import Fleet
from tests import servers
from tests.browser.conftest import Open
from tests.browser.test_console import live, overview
from tests.browser.traffic import Traffic
from tests.console.test_rebalances import moving

LINK = "prfaas->pd"


def test_a_link_that_goes_down_says_so_until_it_is_back(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    traffic = Traffic(server, fleet)
    traffic.send()
    looking, beside = tab("viewer").open(overview(fleet)), tab("viewer")
    beside = beside.open(overview(fleet) + "fleet/")
    figure, label = looking.locator("#kpi-link .figure"), looking.locator(".link-label")
    row = beside.locator("tr[data-link='prfaas->pd']")
    told = beside.locator("#missing li", has_text="Link prfaas → pd has been down")
    for page in (looking, beside):
        live(page)
    expect(figure).to_have_text("9.40 / 100 Gbps")
    expect(row.locator("[data-cell=state]")).to_have_text("not judged yet")
    traffic.send(tx_gbps=0.0, capacity_gbps=0.0)
    expect(figure).to_have_text("down")
    expect(looking.locator("#kpi-link .under")).to_have_text(re.compile(r"^⚠ since \d\d:\d\d"))
    expect(label).to_have_text(re.compile(r"^⚠ down since \d\d:\d\d:\d\d$"))
    expect(looking.locator("path.pipe.broken")).to_have_count(1)
    expect(row.locator("[data-cell=state]")).to_have_text("down")
    expect(told).to_contain_text("pd prefills locally")
    beside.reload()  # as the server itself writes it
    expect(row.locator("[data-cell=state] use")).to_have_attribute("href", "#i-bad")
    expect(told).to_be_visible()
    traffic.send(tx_gbps=1.0)
    expect(figure).to_have_text("1 / 100 Gbps")
    expect(looking.locator("path.pipe.broken")).to_have_count(0)
    expect(row.locator("[data-cell=state]")).to_have_text("not judged yet")
    expect(told).to_have_count(0)


def test_a_path_that_lost_a_port_says_so_until_it_is_whole(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    """S-12."""
    traffic = Traffic(server, fleet)
    traffic.send(path_state="degraded", n_members=2.0, n_members_up=1.0)
    looking, beside = tab("viewer").open(overview(fleet)), tab("viewer")
    beside = beside.open(overview(fleet) + "fleet/")
    label, told = looking.locator(".link-label"), beside.locator("tr[data-link] [data-cell=path]")
    words = "path degraded: 1 of 2 members up"
    expect(told).to_have_text(words)  # as the server itself writes it
    for page in (looking, beside):
        live(page)
    expect(label).to_have_text("9.40 Gbps of 100, 9.40 %, ⚠ path degraded")
    expect(label).to_have_attribute("title", re.compile(words))
    expect(looking.locator(".link-label.warn")).to_have_count(1)
    expect(told).to_be_visible()
    traffic.send(path_state="whole", n_members=2.0, n_members_up=2.0)
    expect(label).to_have_text("9.40 Gbps of 100, 9.40 %")
    expect(told).to_be_hidden()
    traffic.send(path_state="degraded")
    expect(told).to_have_text("path degraded")


def found(label: LinkLabel, **memory: Any) -> Memory:
    return Memory(links={LINK: LinkMemory(label=label, **memory)})


def test_what_the_loop_finds_of_a_link_is_followed(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    traffic = Traffic(server, fleet)
    traffic.send()
    traffic.loop(memory=found("clear"))
    looking, beside = tab("viewer").open(overview(fleet)), tab("operator")
    beside = beside.open(overview(fleet) + "fleet/")
    row, told = beside.locator(f"tr[data-link='{LINK}']"), beside.locator("tr[data-told]")
    for page in (looking, beside):
        live(page)
    traffic.loop(memory=found("clear"))  # anew: pages say since when of what is not of just now
    expect(row.locator("[data-cell=state]")).to_have_text("clear")
    expect(told).to_have_count(0)
    since_s = time.time() - 90.0
    for sends in ("it sends 97 of 100 Gbps", "it sends 98 of 100 Gbps"):
        traffic.send(tx_gbps=98.0)
        memory = found("congested", signs=sends, trouble="congested", since_s=since_s)
        traffic.loop(memory=memory)
        expect(row.locator("[data-cell=state]")).to_have_text("congested")
        expect(told).to_contain_text(f"congested: {sends}. Asks for a higher t")
    expect(row.locator("[data-cell=since]")).to_contain_text("for 1 min")
    expect(looking.locator("#kpi-link .under")).to_contain_text("⚠ congested, 98 %")
    expect(looking.locator(".link-label.bad")).to_have_text("⚠ congested: 98 Gbps of 100, 98 %")
    traffic.loop(memory=found("down", breaker="open", breaker_at_s=since_s, signs="it is open"))
    expect(row.locator("[data-cell=state]")).to_have_text("down")
    beside.click("text=Reset breaker…")
    expect(beside.locator(".effects")).to_contain_text("is used again")
    beside.fill("[name=reason]", "cable replaced")
    beside.keyboard.press("Enter")
    expect(beside.locator(".link-events")).to_contain_text("reset its breaker: cable replaced")
    traffic.send()
    traffic.loop(memory=found("clear"))
    expect(row.locator("[data-cell=state]")).to_have_text("clear")
    expect(beside.locator("text=Reset breaker…")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_a_narrow_page_needs_no_sideways_scrolling_for_links_and_alternatives(
    tab: Open, fleet: Fleet, server: servers.Server, scheme: str
) -> None:
    traffic = Traffic(server, fleet)
    traffic.send(tx_gbps=98.0)
    traffic.loop(memory=found("congested", signs="it sends 98 of 100 Gbps", trouble="congested"))
    page = tab("operator", width=390, color_scheme=scheme).open(overview(fleet) + "fleet/")
    live(page)
    expect(page.locator("tr[data-told]")).to_be_visible()
    assert overflowing(page, "#sources .table-wrap") == 0
    page.goto(f"{page.url.removesuffix('fleet/')}decisions/{fleet.decisions.get(version=2).pk}/")
    why = page.locator(".alternatives", has_text="decode limits, which forbids adding prefill")
    expect(why).to_be_visible()
    assert overflowing(page, ".table-wrap:has(.stacked), .body:has(.binds)") == 0


def overflowing(page: Page, selector: str) -> int:
    """How many of these, and the page itself, would scroll sideways."""
    assert page.locator(selector).count() > 0
    return page.evaluate(
        "(selector) => [document.documentElement, ...document.querySelectorAll(selector)]"
        ".filter((node) => node.scrollWidth > node.clientWidth).length",
        selector,
    )


@pytest.mark.parametrize("width", [1280, 1440])
def test_the_fleet_pages_tables_show_every_column(
    tab: Open, fleet: Fleet, server: servers.Server, width: int
) -> None:
    traffic = Traffic(server, fleet)
    traffic.send()
    opened = found("down", breaker="open", breaker_at_s=time.time(), signs="its breaker is open")
    traffic.loop(memory=opened)
    moving(fleet)
    page = tab("operator", width=width).open(overview(fleet) + "fleet/")
    live(page)
    expect(page.locator("tr[data-agent]")).to_have_count(1)
    clipped = page.evaluate(
        "[...document.querySelectorAll('.table-wrap')]"
        ".filter((wrap) => wrap.scrollWidth > wrap.clientWidth)"
        ".map((wrap) => wrap.closest('.panel').querySelector('h2').textContent)"
    )
    assert clipped == []
