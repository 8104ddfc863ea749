"""An incident opens on a page that somebody looks at, and is taken with the keyboard alone."""

from __future__ import annotations

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from routing.alerts import passes
from routing.alerts.models import Incident
from routing.models import Fleet
from telemetry import wire
from tests.browser.conftest import Open
from tests.routing.alerts.case import FULL, put
from tests.routing.cases import feed

HOSTILE = "<b>=1+1</b> \u202e" + "w" * 60


def full(fleet: Fleet) -> None:
    """One engine whose KV memory is full, as it was read now."""
    feed(
        [
            wire.InstanceSample(
                id=f"{fleet.pk}/pd/{HOSTILE}",
                role="decode",
                engine="vllm",
                at_s=timezone.now().timestamp(),
                signals=wire.InstanceSignals(kv_cache_usage_ratio=0.97),
            )
        ]
    )


@pytest.mark.parametrize("width", [1440, 390])
def test_an_incident_is_acknowledged_by_keyboard(tab: Open, fleet: Fleet, width: int) -> None:
    put(FULL | {"for_s": 0, "fleet": fleet.pk, "runbook_url": "https://wiki.example/kv"})
    operator = tab("operator", width=width)
    operator.open(f"/fleets/{fleet.pk}/")  # the frame of pages without a fleet is the last one's
    page = operator.open("/alerts/")
    expect(page.get_by_text("Nothing fires.")).to_be_visible()
    full(fleet)
    assert passes.look(timezone.now) is not None
    row = page.locator("#incidents tr", has_text="kv_cache_usage_ratio is 0.97")
    expect(row).to_have_count(1)
    row.get_by_role("link").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="kv-full")).to_be_visible()
    page.get_by_label("Note for the others").focus()
    page.keyboard.type("on it")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Acknowledge")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_text("nobody is told again", exact=False).first).to_be_visible()
    assert Incident.objects.get().note == "on it"
    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, "it scrolls sideways"
