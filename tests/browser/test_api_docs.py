"""The API's documentation in a browser: an operation is tried as whoever is signed in."""

from __future__ import annotations

import os

from playwright.sync_api import expect

from routing.models import Fleet, Hold
from tests.browser import layout
from tests.browser.conftest import Open
from tests.browser.test_axe import in_both_themes

LISTED = "/api/docs/?q=holds"
ONE = "/api/docs/?operation=fleets_holds_create"


def test_an_operation_is_tried(tab: Open, fleet: Fleet) -> None:
    page = tab("operator").open(f"/fleets/{fleet.pk}/")
    page.goto(page.url.partition("/fleets/")[0] + "/api/docs/?operation=fleets_holds_list")
    expect(page.get_by_label("fleet", exact=False).first).to_have_value(fleet.pk)
    page.get_by_label("limit").fill("1")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#answer")).to_contain_text("200 OK")
    expect(page.locator("#answer")).to_contain_text('"results"')
    expect(page.locator("#answer")).to_contain_text("ratelimit:")


def test_what_acts_is_sent_once_it_is_confirmed(tab: Open, fleet: Fleet) -> None:
    found = tab("operator")
    found.open(f"/fleets/{fleet.pk}/")
    page = found.open("/api/docs/?operation=fleets_breakers_reset_create")
    before = Hold.objects.count()
    page.locator("#body").fill('{"link": "prfaas->pd", "reason": "tried"}')
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#answer")).to_be_empty()
    page.locator("#sure").check()
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#answer")).to_contain_text("204")
    assert Hold.objects.count() == before


def test_it_fits_and_can_be_used_by_everybody(tab: Open, fleet: Fleet) -> None:
    wide, narrow = tab("operator"), tab("operator", width=390)
    wrong = []
    for name, path in (("list", LISTED), ("one", ONE)):
        for found in (wide, narrow):
            page = found.open(path)
            wrong += filter(None, [layout.too_wide(page)])
            if "SHOTS" in os.environ:
                width = page.viewport_size["width"]
                for scheme in ("dark", "light"):
                    page.emulate_media(color_scheme=scheme)
                    target = f"{os.environ['SHOTS']}/{name}-{width}-{scheme}.png"
                    page.screenshot(path=target, full_page=True)
        wrong += in_both_themes(wide.page)
    assert not wrong, "\n".join(map(str, wrong))
