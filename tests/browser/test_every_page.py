"""Every page, by keyboard alone and on a phone, and that what goes wrong on one is noticed."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from console.pages import urlpatterns
from routing.models import Fleet
from tests import servers
from tests.browser import layout, pages, scene
from tests.browser.conftest import Open
from tests.browser.traffic import Traffic
from tests.routing.cases import make_fleet

STEPS_AT_ONCE = 25
MOST_STEPS = 400
STOPS = """
    window.stops = [];
    const solid = (colour) => !/^rgba\\(.*, 0\\)$|^transparent$/.test(colour);
    const channels = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((c) => c / 255);
    const light = (colour) => channels(colour)
        .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0.05);
    function ground(node) {
        for (let at = node.parentElement; at; at = at.parentElement) {
            const { backgroundColor } = getComputedStyle(at);
            if (solid(backgroundColor)) return backgroundColor;
        }
        return "rgb(255, 255, 255)";
    }
    function ring(node) {
        const row = node.matches("a.row") ? node.closest("tr") : null;  // the row shows it for it
        const styles = [getComputedStyle(node), ...(row ? [getComputedStyle(row)] : [])];
        const { outlineWidth, outlineColor } =
            styles.find(({ outlineStyle }) => outlineStyle !== "none") ?? { outlineWidth: "0" };
        return [parseFloat(outlineWidth), outlineColor];
    }
    addEventListener("focusin", ({ target: node }) => {
        const [width, colour] = ring(node);
        const [one, other] = [light(colour ?? "rgb(0, 0, 0)"), light(ground(node))]
            .sort((a, b) => b - a);
        const box = node.getBoundingClientRect();
        stops.push({
            node,
            name: said(node),  // as it reads now: a node that is replaced is no longer laid out
            ring: width,
            contrast: one / other,
            left: box.left + scrollX, right: box.right + scrollX,
            top: box.top + scrollY, bottom: box.bottom + scrollY,
        });
    });
    window.said = (node) => `${node.tagName.toLowerCase()}${node.id ? "#" + node.id : ""} `
        + `"${(node.innerText || node.getAttribute("aria-label") || node.name || "").trim()
            .replace(/\\s+/g, " ").slice(0, 40)}"`;
    window.controls = () => [...document.querySelectorAll(
        "a[href], button, input, select, textarea, summary, [tabindex]",
    )].filter((node) => node.tabIndex >= 0 && !node.disabled && node.type !== "hidden"
        && node.checkVisibility({ visibilityProperty: true })
        && !(node.type === "radio" && !node.checked));
    window.wrapped = () => stops.findIndex(({ node }, i) => i > 0 && node === stops[0].node);
"""
"""Written down where focus stops: what it is on, how well its ring is seen, where it lies."""
JUDGED = """() => {
    const wrong = [];
    stops.length = wrapped();
    const reached = new Set(stops.map((stop) => stop.node));
    // What scripts put in its place meanwhile was reached by the same name.
    const names = new Set(stops.map(({ name }) => name));
    for (const node of controls()) {
        if (!reached.has(node) && !names.has(said(node)) && there.has(said(node))) {
            wrong.push(`Tab does not reach ${said(node)}`);
        }
        if (node.tabIndex > 0) wrong.push(`${said(node)} has an order of its own`);
    }
    for (const { name, ring, contrast } of stops) {
        if (ring < 2) wrong.push(`no focus ring on ${name}`);
        else if (contrast < 3) wrong.push(`a ring of contrast ${contrast} on ${name}`);
    }
    const inMain = stops.filter(({ node }) => node.closest("main"));
    for (const [i, next] of inMain.slice(1).entries()) {
        const last = inMain[i];
        const above = next.bottom <= last.top && next.left < last.right && last.left < next.right;
        if (above && !last.node.contains(next.node)) {
            wrong.push(`${next.name} lies above ${last.name}, which comes before it`);
        }
    }
    return [...new Set(wrong)];
}"""


PAST_THE_FRAME = """
    const main = document.querySelector("main"), at = document.activeElement;
    main.contains(at) || main.compareDocumentPosition(at) === Node.DOCUMENT_POSITION_FOLLOWING
"""


def test_every_address_is_opened_by_these_tests_or_says_why_not() -> None:
    known = {entry.name for entry in urlpatterns}
    listed = {*pages.OPENED, *pages.NOT_OPENED}
    assert known - listed == set(), "new pages: tests/browser/pages.py says what to do"
    assert listed - known == set(), "entries of tests/browser/pages.py without a page"


@pytest.mark.parametrize("part", pages.PARTS)
def test_every_page_is_walked_by_keyboard_and_fits_a_phone(
    tab: Open, fleet: Fleet, server: servers.Server, part: int
) -> None:
    Traffic(server, fleet).send()
    found = tab("admin", color_scheme="dark")
    page = found.page
    page.add_init_script(STOPS)
    wrong = []
    for name, path in pages.addresses(scene.build(fleet), part):
        page.set_viewport_size({"width": 1440, "height": 900})
        answer = page.goto(found.base + path)
        assert answer is not None
        if not answer.ok:
            wrong.append(f"{name}: answers {answer.status}")
            continue
        if walked(page):  # or a part of it was brought up to date just then: once more
            page.reload()
            wrong += [f"{name}: {what}" for what in walked(page)]
        if wide := layout.too_wide(page, 390):
            wrong.append(f"{name}: {wide}")
    assert not wrong, "\n".join(wrong)


def walked(page: Page) -> list[str]:
    """What somebody without a pointer would stumble over."""
    skip = page.locator(".skip")
    skip.focus()  # some pages begin further down, at what they ask for
    page.evaluate("stops.splice(0, stops.length - 1); there = new Set(controls().map(said))")
    for _ in range(0, MOST_STEPS, STEPS_AT_ONCE):
        for _ in range(STEPS_AT_ONCE):
            page.keyboard.press("Tab")
        if page.evaluate("wrapped()") > 0:
            break
    else:
        return [f"Tab does not come round: {page.evaluate('said(document.activeElement)')}"]
    wrong: list[str] = page.evaluate(JUDGED)
    skip.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    if not page.evaluate("controls()[0] === document.querySelector('.skip')"):
        wrong.append("the first stop is not the link past the frame")
    elif not page.evaluate(PAST_THE_FRAME):
        wrong.append("the link past the frame does not lead past it")
    return wrong


def test_pages_before_the_frame_fit_a_phone(tab: Open) -> None:
    found = tab(None, width=390)
    for path in pages.SIGNED_OUT:
        page = found.open(path)
        assert not layout.too_wide(page)
        expect(page.get_by_label("Name")).to_be_focused()


def test_a_choice_between_fleets_is_a_page_too(tab: Open, fleet: Fleet) -> None:
    make_fleet(f"{fleet.pk}-b")
    page = tab("viewer", width=390).open("/")
    expect(page.get_by_role("link", name=f"{fleet.pk}-b").first).to_be_visible()
    assert not layout.too_wide(page)


TROUBLE = (
    ("console.error('told')", "console: told"),
    ("console.warn('warned')", "console: warned"),
    ("setTimeout(() => { throw new Error('thrown') })", "script: thrown"),
    ("Promise.reject(new Error('rejected'))", "script: rejected"),
    ("fetch('/nowhere/')", "status of 404"),
    ("new WebSocket('ws://' + location.host + '/nowhere')", "WebSocket connection to"),
    (
        "document.body.append(Object.assign(document.createElement('script'),"
        " { textContent: 'window.ran = 1' }))",
        "CSP script-src-elem inline",
    ),
    ("document.body.innerHTML += '<img src=data: onerror=\"ran = 1\">'", "CSP script-src-attr"),
    ("setTimeout('window.ran = 1')", "CSP script-src eval"),
    (
        "document.head.append(Object.assign(document.createElement('style'),"
        " { textContent: 'p { color: red }' }))",
        "CSP style-src-elem inline",
    ),
    ("fetch('https://elsewhere.invalid/').catch(() => 0)", "CSP connect-src"),
    (
        "document.body.append(Object.assign(document.createElement('iframe'), { src: '/' }))",
        "CSP frame-src",
    ),
    (
        "document.body.append(Object.assign(document.createElement('form'),"
        " { action: 'https://elsewhere.invalid/' })); document.forms[1].submit()",
        "CSP form-action",
    ),
)


def test_what_goes_wrong_on_a_page_is_noticed(tab: Open) -> None:
    """A test sees nothing only where there is nothing: each kind of trouble, made on purpose."""
    found = tab(None)
    page = found.open("/login/")
    for does, noticed in TROUBLE:
        page.evaluate(f"() => {{ {does} }}")
        for _ in range(40):
            if any(noticed in line for line in found.wrong):
                break
            page.wait_for_timeout(25)
        assert any(noticed in line for line in found.wrong), (does, found.wrong)
        found.forgive()
    assert page.evaluate("window.ran") is None
