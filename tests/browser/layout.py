"""Whether a page fits its screen, and what does not."""

from __future__ import annotations

from playwright.sync_api import Page

_STICKS_OUT = """() => {
    const wide = document.documentElement.scrollWidth, screen = innerWidth;
    if (wide <= screen) return "";
    const clipped = (node) => {
        for (let at = node.parentElement; at && at !== document.body; at = at.parentElement) {
            if (getComputedStyle(at).overflowX !== "visible") return true;
        }
        return false;
    };
    const name = (node) => node.tagName.toLowerCase() + (node.id ? `#${node.id}` : "")
        + [...node.classList].map((one) => `.${one}`).join("");
    const out = [...document.body.querySelectorAll("*")].filter((node) =>
        node.getBoundingClientRect().right + scrollX > screen + 0.5 && !clipped(node));
    const where = out.filter((node) => !out.some((one) => one !== node && node.contains(one)))
        .slice(0, 4).map((node) =>
        `${name(node.parentElement)} > ${name(node)} "${node.textContent.trim().slice(0, 30)}"`);
    return `${wide} px wide on a screen of ${screen}: ${where.join("; ")}`;
}"""


def too_wide(page: Page, width: int | None = None) -> str:
    """What makes a page scroll sideways, after `width` became the screen's; empty if nothing."""
    if width is not None:
        page.set_viewport_size({"width": width, "height": 844})
    for _ in range(4):
        found: str = page.evaluate(_STICKS_OUT)
        if not found:
            return ""
        page.wait_for_timeout(100)  # what scripts lay out follows a little later
    return found
