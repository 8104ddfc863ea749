"""English and Korean in a browser: the switch, live words, a narrow window."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from routing.models import Fleet
from tests.browser.conftest import Open

AGO = re.compile(r"^(방금|\d+(초|분|시간|일) 전)$")


def _speak(page: Page, language: str) -> None:
    menu = page.locator("details", has=page.locator("form[action='/i18n/setlang/']"))
    menu.locator("summary").click()
    page.locator(f"form[action='/i18n/setlang/'] button[value={language}]").click()
    expect(page.locator("html")).to_have_attribute("lang", language)


def test_a_person_switches_and_live_words_follow(tab: Open, fleet: Fleet) -> None:
    address = f"/fleets/{fleet.pk}/?range=1h"
    page = tab("operator").open(address)
    expect(page.locator("#truth-socket")).to_have_text(re.compile("socket ok"))
    _speak(page, "ko")
    expect(page).to_have_url(re.compile(r"\?range=1h$"))
    expect(page.locator("#truth-socket")).to_have_text(re.compile("소켓 정상"))
    expect(page.locator("#missing")).to_contain_text("루프 틱 없음")
    age = page.locator("time[data-ago]").first
    expect(age).to_have_text(AGO)
    was = age.text_content()
    expect(age).not_to_have_text(str(was), timeout=65_000)
    expect(age).to_have_text(AGO)
    _speak(page, "en")
    expect(page.locator("#truth-socket")).to_have_text(re.compile("socket ok"))


def test_korean_fits_a_narrow_window(tab: Open, fleet: Fleet) -> None:
    narrow = tab("operator", width=390, locale="ko-KR")
    for path in ("", "decisions/", "planner/", "onboarding/"):
        page = narrow.open(f"/fleets/{fleet.pk}/{path}")
        expect(page.locator("html")).to_have_attribute("lang", "ko")
        expect(page.locator("#truth-socket")).to_have_text(re.compile("소켓"))
        assert page.evaluate("document.documentElement.scrollWidth") == 390, path


def test_values_stand_in_their_places(blank: Page) -> None:
    said = blank.evaluate(
        """async () => {
            const { _, n_ } = await import("/static/console/i18n.js");
            return [_("%s at %s", "a", 0), _("%2 of %1", 3, 2), _("20 % more"),
              _("20 %% of %s", 5), n_("%s gate", "%s gates", 1), n_("%s gate", "%s gates", 2)];
        }"""
    )
    assert said == ["a at 0", "2 of 3", "20 % more", "20 % of 5", "1 gate", "2 gates"]
