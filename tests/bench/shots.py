"""The pictures of `screenshots.py`, taken from beside the console that it started."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from routing.models import Fleet, Rebalance, Tick
from telemetry.models import Source
from tests.browser import pages
from tests.browser.scene import Scene, build
from tests.console.page_case import busy_fleet

LIVE = ("fleet-overview", "fleet", "signals", "decisions", "decision", "planner", "instances")
"""Pages that say more of what lives; all others are shown of the fleet made up."""
MADE_UP = "busy"
WIDTHS = {1440: 900, 390: 844}
THEMES = ("dark", "light")
QUICK = {(1440, "dark"), (390, "light")}
SEEN_MS, DRAWN_MS = 150, 1200


def main(log: str, port: int, out: str, only: list[str], quick: bool) -> None:
    """Pages of the fleet that lives, or of one in which everything happens at once."""
    found = re.search(r"log in as (\S+) with password (\S+)", Path(log).read_text())
    assert found, "no login in the demo's log"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"),
            args=["--no-sandbox", "--disable-gpu"],
        )
        page = browser.new_context(reduced_motion="reduce").new_page()
        base = f"http://127.0.0.1:{port}"
        page.goto(f"{base}/login/")
        page.get_by_label("Name").fill(found[1])
        page.get_by_label("Password").fill(found[2])
        page.keyboard.press("Enter")
        page.wait_for_url(lambda address: "/login/" not in address)
        busy = build(busy_fleet(f"{MADE_UP}-{Fleet.objects.count()}"))
        living = _living(busy)
        for i, (name, path) in enumerate(pages.addresses(busy)):
            if name in LIVE:
                path = pages.addresses(living)[i][1]
            if not only or name in only:
                shoot(page, base + path, Path(out), f"{i:02d}-{name}", quick=quick)
        browser.close()


def _living(busy: Scene) -> Scene:
    """What there is in the demo of what addresses are filled with; for what only pages that are
    not `LIVE` ask, what the busy fleet has."""
    fleet = Fleet.objects.exclude(pk__startswith=MADE_UP).get()
    decision = fleet.decisions.filter(version__isnull=False).order_by("-id").first()
    rebalance = Rebalance.objects.filter(fleet=fleet).order_by("-id").first()
    told = Source.objects.filter(path__startswith=f"{fleet.pk}/pd/").order_by("path")
    instance, router = (
        told.filter(kind=kind).values_list("path", flat=True)[0] for kind in ("instance", "router")
    )
    return Scene(
        fleet,
        busy.arguments
        | {
            "fleet": fleet.pk,
            "decision_id": decision.pk if decision else 0,
            "seq": Tick.objects.filter(fleet=fleet).order_by("-seq")[0].seq,
            "rebalance_id": rebalance.pk if rebalance else 0,
        },
        {
            "gate": router,
            "router": router.removeprefix(f"{fleet.pk}/"),
            "instance": instance.removeprefix(f"{fleet.pk}/"),
            "link": "prfaas->pd",
            "cluster": "pd",
            "remote": "prfaas",
        },
    )


def shoot(page: Page, address: str, out: Path, name: str, *, quick: bool) -> None:
    """One page at each width in each theme, or both once, as far down as it goes."""
    for (width, height), theme in itertools.product(WIDTHS.items(), THEMES):
        if quick and (width, theme) not in QUICK:
            continue
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=theme)
        answer = page.goto(address)
        if answer is not None and not answer.ok:
            print(f"{name}: answers {answer.status}", flush=True)
            return
        for y in range(0, page.evaluate("document.documentElement.scrollHeight"), height // 2):
            page.evaluate(f"scrollTo(0, {y})")  # charts are drawn once they are in sight
            page.wait_for_timeout(SEEN_MS)
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_timeout(DRAWN_MS)
        page.screenshot(path=out / f"{name}-{width}-{theme}.png", full_page=True)
