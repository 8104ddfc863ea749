"""The request simulator in a browser: instant with scripts, complete without, never sideways."""

from __future__ import annotations

import base64
import csv
import io
import re
from pathlib import Path

from playwright.sync_api import Page, expect

from routing.models import Fleet
from tests import servers
from tests.browser.conftest import Open
from tests.browser.test_console import live
from tests.browser.traffic import Traffic
from tests.routing.issuing import issue

COLOURS = """async (png) => {
    const image = new Image();
    image.src = `data:image/png;base64,${png}`;
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.width, image.height];
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const { data } = context.getImageData(0, 0, image.width, image.height);
    const found = new Map();
    for (let i = 0; i < data.length; i += 4) {
        const colour = `rgb(${data[i]}, ${data[i + 1]}, ${data[i + 2]})`;
        found.set(colour, (found.get(colour) ?? 0) + 1);
    }
    return Object.fromEntries(found);
}"""
"""Pixels of a picture, by colour."""


def address(fleet: Fleet, query: str = "") -> str:
    return f"/fleets/{fleet.pk}/request/{query}"


def test_the_answer_follows_the_typing_and_the_address_keeps_it(tab: Open, fleet: Fleet) -> None:
    page = tab("viewer").open(address(fleet))
    side, sentence = page.locator("#answer .side"), page.locator("#answer .sentence")
    expect(side).to_contain_text("Remote, at prfaas")
    page.fill("#id_total", "6000")  # t of the plan in force
    expect(side).to_contain_text("Local, at pd")
    expect(sentence).to_contain_text("6,000 uncached tokens are at or below the threshold of 6,000")
    expect(page).to_have_url(re.compile(r"\?.*total=6000"))
    page.fill("#id_total", "6001")
    expect(side).to_contain_text("Remote, at prfaas")
    page.fill("#id_local", "1")
    expect(side).to_contain_text("Local, at pd")
    first = page.locator("#id_decision option", has_text="v1, t 4K tok").get_attribute("value")
    page.select_option("#id_decision", first)
    expect(page.locator("#answer header").first).to_contain_text("in force is v2")
    expect(side).to_contain_text("Remote, at prfaas")
    there = page.url
    again = tab("viewer").open(there.removeprefix(tab("viewer").base))
    expect(again.locator("#answer .side")).to_contain_text("Remote, at prfaas")
    expect(again.locator("#id_total")).to_have_value("6001")
    expect(again.locator("#curl")).to_contain_text(f'"decision": {first}')


def test_a_plan_that_comes_into_force_answers_at_once(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    Traffic(server, fleet).send()
    page = tab("viewer").open(address(fleet, "?total=7000"))
    live(page)
    expect(page.locator("#answer .side")).to_contain_text("Remote, at prfaas")
    issue(fleet, 8000)
    expect(page.locator("#answer .side")).to_contain_text("Local, at pd")
    expect(page.locator("#answer header").first).to_contain_text("by v3, in force, issued")
    expect(page.locator("#id_decision option").first).to_have_text("in force: v3, t 8K tok")


def test_a_wrong_number_is_said_beside_it_and_leaves_the_page_usable(
    tab: Open, fleet: Fleet
) -> None:
    made = tab("viewer")
    page = made.open(address(fleet, "?total=100"))
    page.fill("#id_local", "101")
    expect(page.locator("#errors-local")).to_have_text("101 is more than the prompt's 100 tokens.")
    expect(page.locator("#answer")).to_contain_text("cannot be meant like this")
    made.forgive()  # the browser logs every answer of 422
    page.fill("#id_local", "100")
    expect(page.locator("#errors-local")).to_be_empty()
    expect(page.locator("#answer .side")).to_contain_text("Local, at pd")


def test_the_plot_is_read_out_and_asks_for_the_length_clicked(tab: Open, fleet: Fleet) -> None:
    page = tab("viewer").open(address(fleet))
    plot, readout = page.locator(".lengths-plot .area"), page.locator("#readout")
    expect(readout).to_have_text("Local up to 6,000 tokens, remote above.")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    near_zero = {"x": box["width"] * 0.05, "y": box["height"] / 2}
    plot.hover(position=near_zero)
    expect(readout).to_contain_text("tokens: local (Short). To the first token")
    plot.click(position=near_zero)
    expect(page.locator("#answer .side")).to_contain_text("Local, at pd")
    assert 0 < int(page.input_value("#id_total")) <= 6000


def test_without_scripts_the_form_asks_and_the_plot_is_drawn(tab: Open, fleet: Fleet) -> None:
    page = tab("viewer", java_script_enabled=False).open(address(fleet))
    page.fill("#id_total", "5999")
    page.click("#ask")
    expect(page.locator("#answer .side")).to_contain_text("Local, at pd")
    expect(page).to_have_url(re.compile(r"total=5999"))
    for curve in ("local", "remote"):
        drawn = page.locator(f"path.curve.{curve}").get_attribute("d") or ""
        assert drawn.count("L") > 50
    assert page.locator(".lengths-plot rect.local").count() == 1
    page.click("text=The moment it arrives")
    page.check("#id_local_down")
    page.click("#ask")
    expect(page.locator("#answer .side")).to_contain_text("LocalDown")


def test_no_width_makes_it_scroll_sideways(tab: Open, fleet: Fleet) -> None:
    for width in (360, 390, 760, 1100, 1440):
        page = tab("viewer", width=width).open(address(fleet, "?total=30000&free=0.5"))
        page.wait_for_load_state()
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, width


def test_the_plot_is_taken_away_as_picture_table_and_call(tab: Open, fleet: Fleet) -> None:
    page = tab("viewer").open(address(fleet, "?total=30000"))
    table = csv.reader(io.StringIO(taken(page, "Table of what is shown (CSV)").read_text()))
    header, *rows = table
    assert header == ["total_tokens", "side", "reason", "local_ttft_s", "remote_ttft_s"]
    assert len(rows) > 90
    assert {row[1] for row in rows if int(row[0]) <= 6000} == {"local"}
    assert {row[1] for row in rows if int(row[0]) > 6000} == {"remote"}

    picture = taken(page, "Picture (PNG)").read_bytes()
    pixels = page.evaluate(COLOURS, base64.b64encode(picture).decode())
    for side in ("local", "remote"):
        stroke = page.locator(f"path.curve.{side}").evaluate("it => getComputedStyle(it).stroke")
        assert pixels.get(stroke, 0) > 1000, f"the curve and the strip of {side}"
    panel = page.locator("#lengths").evaluate("it => getComputedStyle(it).backgroundColor")
    assert pixels[panel] > sum(pixels.values()) / 2

    pick(page, "Copy as curl")
    expect(page.locator("#lengths .about code")).to_have_text(page.locator("#curl").inner_text())
    page.fill("#id_total", "6000")
    expect(page.locator("#answer .side")).to_contain_text("Local, at pd")
    expect(page.locator("#lengths .chart-menu")).to_have_count(1)
    pick(page, "Copy as curl")
    expect(page.locator("#lengths .about code")).to_contain_text('"total_tokens": 6000')


def pick(page: Page, action: str) -> None:
    menu = page.locator("#lengths details.chart-menu")
    if menu.get_attribute("open") is None:
        menu.locator("summary").click()
    menu.get_by_role("button", name=action, exact=True).click()


def taken(page: Page, action: str) -> Path:
    with page.expect_download() as waited:
        pick(page, action)
    assert waited.value.suggested_filename.endswith((".csv", ".png"))
    return Path(waited.value.path())
