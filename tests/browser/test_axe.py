"""axe-core on every page, in both themes: no violation of WCAG 2.2 AA nor of its best practices."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

from routing.models import Fleet
from tests import servers
from tests.browser import pages, scene
from tests.browser.conftest import Open
from tests.browser.traffic import Traffic
from tests.routing.cases import make_fleet

TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
EVERYTHING = {"type": "tag", "values": TAGS}
COLOURS = {"type": "tag", "values": ["cat.color"]}
"""What a theme can change; all else is the same page."""
RUN = """async ({ only, within }) => {
    for (const node of document.querySelectorAll("main details")) node.open = true;
    for (const node of document.querySelectorAll(".truth")) node.style.position = "static";
    const found = await axe.run(within ?? document, {
        runOnly: only, resultTypes: ["violations"], preload: false,
        rules: { "color-contrast-enhanced": { enabled: false } },
    });
    const why = ({ any, all, none }) => [...any, ...all, ...none][0]?.message;
    return found.violations.flatMap(({ id, nodes }) => nodes.map((node) =>
        `${id}: ${node.target.join(" ")} (${why(node)})`));
}"""


def violations(page: Page, only: dict[str, Any], within: str | None = None) -> list[str]:
    """What axe finds, with the selector, while nothing lies over anything.

    What a debugger evaluates is under no policy of the page.
    """
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    found: list[str] = page.evaluate(RUN, {"only": only, "within": within})
    return found


def in_both_themes(page: Page, within: str | None = None) -> list[str]:
    page.emulate_media(color_scheme="dark")
    found = [f"dark {line}" for line in violations(page, EVERYTHING, within)]
    page.emulate_media(color_scheme="light")
    return found + [f"light {line}" for line in violations(page, COLOURS, within)]


@pytest.mark.parametrize("part", pages.PARTS)
def test_every_page_in_both_themes(
    tab: Open, fleet: Fleet, server: servers.Server, part: int
) -> None:
    Traffic(server, fleet).send()
    found = tab("admin", reduced_motion="reduce")
    wrong = []
    for name, path in pages.addresses(scene.build(fleet), part):
        page = found.open(path)
        wrong += [f"{name}: {line}" for line in in_both_themes(page)]
    assert not wrong, "\n".join(wrong)


def test_menus_that_are_open(tab: Open, fleet: Fleet) -> None:
    make_fleet(f"{fleet.pk}-b")
    page = tab("admin").open(f"/fleets/{fleet.pk}/")
    wrong = []
    for menu in page.locator("header details[data-menu]").all():
        menu.locator("summary").click()
        wrong += in_both_themes(page, "header details[open] .menu-body")
        menu.locator("summary").click()
    assert not wrong, "\n".join(wrong)


def test_a_fleet_of_which_nothing_is_known_yet(tab: Open, fleet: Fleet) -> None:
    """Empty states, and what a viewer sees; the choice between fleets on the way."""
    empty = make_fleet(f"{fleet.pk}-b").pk
    found = tab("viewer", reduced_motion="reduce")
    wrong = []
    for name in ("fleet-overview", "fleet", *EMPTY):
        page = found.open(pages.address(name, {"fleet": empty}))
        wrong += [f"{name}: {line}" for line in in_both_themes(page)]
    page = found.open("/")
    wrong += [f"overview: {line}" for line in in_both_themes(page)]
    assert not wrong, "\n".join(wrong)


EMPTY = ("routers", "fleet-onboarding", "findings", "signals", "decisions", "backtests")


def test_pages_without_the_frame(tab: Open) -> None:
    found = tab(None)
    wrong = []
    for path in pages.SIGNED_OUT:
        wrong += [f"{path}: {line}" for line in in_both_themes(found.open(path))]
    found = tab("viewer")
    for path in ("/nowhere/", "/tokens/"):
        wrong += [f"{path}: {line}" for line in in_both_themes(found.open(path))]
        found.forgive()  # the browser logs every answer of 404 and 403
    assert not wrong, "\n".join(wrong)
