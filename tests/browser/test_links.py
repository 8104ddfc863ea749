"""A link that goes down, in a browser: said in words, everywhere it is shown."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from routing.models import Fleet
from tests import servers
from tests.browser.conftest import Open
from tests.browser.test_console import live, overview
from tests.browser.traffic import Traffic
from tests.console.test_rebalances import moving


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
    expect(row.locator("[data-cell=state]")).to_have_text("fresh")
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
    expect(row.locator("[data-cell=state]")).to_have_text("fresh")
    expect(told).to_have_count(0)


@pytest.mark.parametrize("width", [1280, 1440])
def test_the_fleet_pages_tables_show_every_column(
    tab: Open, fleet: Fleet, server: servers.Server, width: int
) -> None:
    Traffic(server, fleet).send()
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
