"""The findings page in a browser: narrow and wide, and it stays true while somebody looks."""

from __future__ import annotations

import time

from playwright.sync_api import expect

from routing.models import Fleet
from telemetry import wire
from tests.browser import layout
from tests.browser.conftest import Open
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
    row = page.locator(".finding-row", has=page.get_by_role("heading", name="FakeDisaggregation"))
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
    page.locator("#findings-now").get_by_role("link", name="FakeDisaggregation").click()
    expect(page.locator(".finding-row:target h3")).to_have_text("FakeDisaggregation")
