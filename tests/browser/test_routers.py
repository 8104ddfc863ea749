"""A router somebody changed, seen, overridden and proven in a browser."""

from __future__ import annotations

import re

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from routing import managed_work
from routing.models import Fleet, ManagedRouter
from tests.browser.conftest import Open
from tests.browser.pages import address
from tests.routing.routers_case import D1, fleet_of, two_and_two


def test_drift_is_seen_overridden_and_proven(
    tab: Open, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = two_and_two()
    fleet_of(monkeypatch, router, name=fleet.pk)
    managed_work.reconcile(timezone.now)
    row = ManagedRouter.objects.get(fleet=fleet)
    page = tab("operator").open(f"/fleets/{fleet.pk}/routers/")
    panel = page.locator(f"#router-{row.pk}")
    expect(panel).to_contain_text("as desired")
    expect(page.locator("#confirmed")).to_contain_text("applied by all 2 routers")
    router.put(D1, "prefill")
    managed_work.reconcile(timezone.now)
    expect(panel).to_contain_text(f"lists {D1} as prefill, not decode")
    expect(panel.locator("tr.drifted td").nth(2)).to_have_text("prefill")
    panel.get_by_role("link", name="Override…").click()
    expect(page.locator(".effects")).to_contain_text(f"the router is told to list {D1} as decode")
    page.fill("[name=reason]", "nobody asked for it")
    page.get_by_role("button", name="Override it").click()
    expect(page).to_have_url(re.compile(r"/routers/$"))
    expect(panel).to_contain_text("asked for")
    managed_work.reconcile(timezone.now)
    expect(panel).to_contain_text("applied, read back")
    expect(panel.locator("tr.drifted")).to_have_count(0)
    assert router.listed[D1].role == "decode"


@pytest.mark.parametrize("width", [390, 1440])
def test_gates_are_told_of_without_scrolling_sideways(tab: Open, fleet: Fleet, width: int) -> None:
    for name, query in (("fleet", ""), ("cluster", "?id=pd")):
        page = tab("viewer", width=width).open(address(name, {"fleet": fleet.pk}, query))
        expect(page.locator(".gates tr[data-router]")).to_have_count(2)
        hidden = page.locator(".table-wrap:has(.gates)").evaluate(
            "it => it.scrollWidth - it.clientWidth"
        )
        assert hidden <= 0, (name, hidden)
