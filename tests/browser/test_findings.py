"""The findings page in a browser: narrow and wide, and it stays true while somebody looks."""

from __future__ import annotations

import time

from django.utils import timezone
from playwright.sync_api import expect

from routing.models import Fleet
from telemetry import wire
from tests import servers
from tests.browser import layout
from tests.browser.conftest import Open
from tests.browser.traffic import Traffic
from tests.console.page_case import decision, prediction
from tests.routing.cases import feed


def fake(fleet: Fleet) -> None:
    """Five minutes in which the one decode engine computes every prompt itself."""
    now_s = time.time()
    for i in range(10):
        tokens = {"local_compute": 3000.0 * i, "local_cache_hit": 0.0, "external_kv_transfer": 0.0}
        feed(
            wire.InstanceSample(
                id=f"{fleet.pk}/pd/{name}",
                role=role,
                engine="vllm",
                at_s=now_s - 290.0 + 30.0 * i,
                signals=wire.InstanceSignals(prompt_tokens_by_source_total=tokens),
            )
            for name, role in (("d0", "decode"), ("p0", "prefill"))
        )


def test_a_finding_appears_by_itself_with_its_figures(tab: Open, fleet: Fleet) -> None:
    page = tab("viewer", hurried=True).open(f"/fleets/{fleet.pk}/findings/")
    row = page.locator(".finding-row", has=page.get_by_role("heading", name="Fake disaggregation"))
    expect(page.locator("#findings")).to_be_visible()
    expect(row).to_have_count(0)
    fake(fleet)
    expect(row).to_have_count(1)
    expect(row.locator("tr", has_text="of these computed on decode")).to_contain_text("100 %")
    expect(row).to_contain_text("What to do")
    assert not layout.too_wide(page, 390)


def test_the_overview_leads_to_the_finding(tab: Open, fleet: Fleet) -> None:
    fake(fleet)
    page = tab("viewer").open(f"/fleets/{fleet.pk}/")
    page.locator("#findings-now").get_by_role("link", name="Fake disaggregation").click()
    expect(page.locator(".finding-row:target h3")).to_have_text("Fake disaggregation")


def test_the_overviews_first_sentence_follows_its_figures(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    """What is over its capacity by the figures is so by the words, within a tick or two."""
    traffic = Traffic(server, fleet)
    page = tab("viewer").open(f"/fleets/{fleet.pk}/")
    said = page.locator("#findings-now")
    expect(said).not_to_contain_text("Over its capacity")
    traffic.loop(current=prediction(0.89))
    expect(page.locator("#limits-sentence")).to_contain_text("is over its capacity")
    expect(said).to_contain_text("Over its capacity: Local prefill pd.")
    expect(said).not_to_contain_text("No check found anything wrong")
    traffic.loop(current=prediction(1.2))
    expect(said).not_to_contain_text("Over its capacity")


def test_the_reasons_of_the_last_decisions_are_readable_whole(tab: Open, fleet: Fleet) -> None:
    message = "Raised t of pd because remote prefill limits. " * 6
    decision(fleet, timezone.now(), 3, 9800, previous=6000, message=message)
    page = tab("viewer").open(f"/fleets/{fleet.pk}/")
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 844})
        row = page.locator("#recent .why", has_text="remote prefill limits").first
        expect(row).to_contain_text(message.strip())
        cut = row.evaluate(
            "(e) => e.scrollWidth > e.clientWidth || e.scrollHeight > e.clientHeight"
        )
        assert not cut
        assert not layout.too_wide(page)
