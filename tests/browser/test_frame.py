"""The frame around every page: keys, search and commands, time, zone, sharing, wall and paper."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from routing.models import Fleet
from tests import servers
from tests.browser.conftest import Open
from tests.browser.test_console import live, overview
from tests.browser.traffic import Traffic

MOST_SHIFT = {1440: 0.02, 390: 0.05}
SHIFTS = """
  const sheet = new CSSStyleSheet();
  sheet.replaceSync("#missing { display: none !important; }");
  document.adoptedStyleSheets = [sheet];
  window.shifts = [];
  new PerformanceObserver((list) => {
    for (const { value, hadRecentInput, sources } of list.getEntries()) {
      if (hadRecentInput) continue;
      window.shifts.push([value, sources.map((s) => s.node?.id || s.node?.className).join()]);
    }
  }).observe({ type: "layout-shift", buffered: true });
"""


def test_one_table_of_keys_leads_everywhere(tab: Open, fleet: Fleet) -> None:
    page = tab("operator").open(overview(fleet))
    live(page)
    page.keyboard.press("?")
    help_ = page.get_by_role("dialog", name="Keyboard")
    expect(help_.get_by_role("row", name="Next row of a list")).to_be_visible()
    for link in page.locator(".rail a").all():
        says, key = link.inner_text(), link.get_attribute("data-key")
        expect(help_.get_by_role("row", name=f"g {key} {says}", exact=True)).to_be_visible()
    page.keyboard.press("Escape")
    expect(help_).to_be_hidden()
    page.keyboard.press("t")
    expect(page.locator("#range")).to_be_focused()
    page.locator("#main").focus()
    for key in "jjk":
        page.keyboard.press(key)
    expect(page.locator("#recent .events a").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/decisions/\d+/"))
    live(page)
    page.keyboard.press("g")
    page.keyboard.press("f")
    expect(page).to_have_url(re.compile(r"/fleet/$"))


def test_single_keys_can_be_switched_off(tab: Open, fleet: Fleet) -> None:
    page = tab("viewer").open("/audit/")
    live(page)
    page.keyboard.press("?")
    page.get_by_label("Single keys do something").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    page.wait_for_timeout(100)
    expect(page.locator("dialog[open]")).to_have_count(0)
    page.keyboard.press("Control+k")
    expect(page.locator("#palette")).to_be_visible()


def test_the_palette_finds_and_commands_by_keyboard_alone(tab: Open, fleet: Fleet) -> None:
    page = tab("operator").open(overview(fleet))
    live(page)
    page.keyboard.press("/")
    field = page.get_by_role("combobox", name="Search pages")
    expect(field).to_be_focused()
    chosen = page.locator("#palette [aria-selected=true]")
    expect(chosen).to_contain_text("Overview")
    page.keyboard.type("revert v2")
    expect(page.locator("#palette [role=option]")).to_have_count(1)
    expect(chosen).to_contain_text("Revert v2")
    expect(field).to_have_attribute("aria-activedescendant", "found-0")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/rollback/"))
    live(page)
    page.keyboard.press("Control+k")
    page.keyboard.type("no such thing")
    expect(page.locator(".palette-says")).to_contain_text("Nothing holds every word")
    page.keyboard.press("Escape")
    expect(page.locator("#palette")).to_be_hidden()
    page.keyboard.press("Control+k")
    page.keyboard.type("kill switch")
    expect(page.locator("#palette [role=option]")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/mode/\?to=paused"))


def test_stop_is_one_click_from_any_page_and_names_what_stops(tab: Open, fleet: Fleet) -> None:
    found = tab("operator")
    for path in ("/audit/", overview(fleet)):
        page = found.open(path)
        page.locator(".stop").click()
        expect(page).to_have_url(re.compile(rf"/fleets/{fleet.pk}/mode/\?to=paused"))
        expect(page.locator(".effects")).to_contain_text("gates")
    viewer = tab("viewer").open("/audit/")
    expect(viewer.locator(".stop")).to_have_count(0)


def test_a_range_is_chosen_refused_and_taken_back(tab: Open, fleet: Fleet) -> None:
    page = tab("viewer").open(overview(fleet))
    live(page)
    page.click("#live-word")
    page.fill("#moment-from", "2026-01-02T10:00:00")
    page.fill("#moment-to", "2026-01-02T09:00:00")
    page.get_by_role("button", name="Show this range").click()
    expect(page.locator("#moments .errors")).to_contain_text("must be later")
    page.fill("#moment-to", "2026-01-02T11:00:00")
    page.keyboard.press("Enter")
    expect(page.locator("#live-word")).to_have_text("To 11:00:00")
    assert page.url.endswith("?from=1767348000&to=1767351600")
    links = page.locator(".rail a[href*='from=1767348000']")
    expect(links).to_have_count(page.locator(".rail a").count())
    page.select_option("#range", "1h")
    expect(page.locator("#live-word")).to_have_text("Live")
    page.locator("#main").focus()
    page.keyboard.press("Escape")
    expect(page.locator("#live-word")).to_have_text("To 11:00:00")
    page.keyboard.press("n")
    expect(page.locator("#live-word")).to_have_text("Live")
    assert "from=" not in page.url


def test_every_clock_follows_the_zone_that_was_chosen(tab: Open, fleet: Fleet) -> None:
    page = tab("viewer", timezone_id="Asia/Seoul").open(overview(fleet))
    live(page)
    expect(page.locator("#clock")).to_have_text(re.compile(r"\d\d:\d\d:\d\d UTC$"))
    in_utc = page.locator("#recent .at").first.get_attribute("title") or ""
    page.click("summary[title^='Signed in']")
    page.click("text=Local time")
    expect(page.locator("#clock")).to_have_text(re.compile(r"\d\d:\d\d:\d\d UTC\+9$"))
    in_seoul = page.locator("#recent .at").first.get_attribute("title") or ""
    assert in_seoul.endswith("UTC+9")
    assert (int(in_seoul[11:13]) - int(in_utc[11:13])) % 24 == 9
    assert in_seoul[13:19] == in_utc[13:19]
    page.keyboard.press("p")
    to = int(re.search(r"to=(\d+)", page.url)[1])  # type: ignore[index]
    hour = (to // 3600 + 9) % 24
    expect(page.locator("#live-word")).to_have_text(re.compile(rf"To {hour:02}:"))
    page.click("summary[title^='Signed in']")
    page.click("[data-zone-choice=utc]")
    expect(page.locator("#clock")).to_have_text(re.compile(r"UTC$"))


def test_a_view_is_copied_as_link_and_as_curl(tab: Open, fleet: Fleet) -> None:
    found = tab("viewer")
    found.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = found.open(overview(fleet) + "?range=1h")
    pasted = "navigator.clipboard.readText()"
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator("#copied")).to_have_text("Copied")
    assert page.evaluate(pasted) == found.base + overview(fleet) + "?range=1h"
    page.get_by_role("button", name="curl").click()
    page.wait_for_timeout(50)
    assert page.evaluate(pasted) == (
        'curl -s -H "Authorization: Bearer $PRFAAS_TOKEN" '
        f"'{found.base}/api/v1/fleets/{fleet.pk}/snapshot'"
    )


def test_nothing_moves_when_data_arrives(tab: Open, fleet: Fleet, server: servers.Server) -> None:
    """But for the words that something fell silent, which do move the page: they are left out."""
    traffic = Traffic(server, fleet)
    for width, most in MOST_SHIFT.items():
        traffic.send()
        found = tab("viewer", width=width)
        found.page.add_init_script(SHIFTS)
        page = found.open(overview(fleet))
        live(page)
        traffic.send(tx_gbps=12.3, waiting=4.0)
        traffic.loop()
        expect(page.locator("#kpi-link .figure")).to_contain_text("12.3")
        page.wait_for_timeout(200)
        shifts = page.evaluate("window.shifts")
        moved = [(round(value, 4), what) for value, what in shifts if value > most / 10]
        assert sum(value for value, _ in shifts) < most, (width, moved)


def test_a_wall_display_has_no_menus_and_never_pauses(tab: Open, fleet: Fleet) -> None:
    found = tab("viewer", width=1920)
    page = found.open(overview(fleet) + "?wall=1&from=1767348000&to=1767351600")
    live(page)
    for gone in (".rail", "#range", ".search-open", ".top > .menu"):
        expect(page.locator(gone).first).to_be_hidden()
    page.keyboard.press("p")
    page.wait_for_timeout(50)
    assert page.evaluate("import('/static/console/time.js').then((m) => m.range.pinned)") is None
    page.get_by_role("link", name="Leave the wall display").click()
    expect(page.locator(".rail")).to_be_visible()
    assert "wall=" not in page.url
    page.emulate_media(media="print", color_scheme="dark")
    expect(page.locator(".rail")).to_be_hidden()
    assert _ground(page) == "rgb(244, 246, 248)"


def _ground(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_a_list_is_filtered_in_place_and_the_address_follows(tab: Open, fleet: Fleet) -> None:
    page = tab("operator").open("/audit/")
    live(page)
    page.evaluate("window.kept = true")
    page.fill("#q", fleet.pk)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(rf"/audit/\?q={fleet.pk}"))
    expect(page.locator("#q")).to_be_focused()
    assert page.evaluate("window.kept") is True
    page.go_back()
    expect(page.locator("#q")).to_have_value("")
    expect(page).to_have_url(re.compile(r"/audit/$"))


def test_the_style_guide_is_clean_and_fits_a_phone(tab: Open, fleet: Fleet) -> None:
    found = tab("viewer", width=390)
    page = found.open("/styleguide/")
    live(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    light, dark = (page.locator(f".guide-theme.{theme}") for theme in ("light", "dark"))
    ground = "(node) => getComputedStyle(node).backgroundColor"
    assert light.evaluate(ground) == "rgb(244, 246, 248)"
    assert dark.evaluate(ground) == "rgb(17, 21, 28)"


def test_menus_of_the_bar_stay_on_a_phone(tab: Open, fleet: Fleet) -> None:
    page = tab("operator", width=390).open(overview(fleet))
    live(page)
    for menu in page.locator(".top .menu").all():
        menu.locator("summary").click()
        box = menu.locator(".menu-body").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        menu.locator("summary").click()
