"""A change that reaches too far, by two people and their keyboards alone."""

from __future__ import annotations

import re

from django.utils import timezone
from playwright.sync_api import expect

from routing.approvals.models import Proposal
from routing.approvals.proposals import reject
from routing.models import Fleet, Hold
from tests.browser.conftest import Open
from tests.browser.test_console import overview
from tests.browser.test_control import enter, tab_to
from tests.console.page_case import busy_fleet
from tests.routing.approvals.case import BOB, limit, waiting


def test_one_asks_and_another_approves_by_keys_alone(tab: Open, fleet: Fleet) -> None:
    limit({"hold_s": 600.0}, fleet=fleet.pk)
    page = tab("operator", hurried=True).open(f"{overview(fleet)}hold/")
    tab_to(page, "#id_threshold_tokens")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("9000")
    tab_to(page, "#id_reason")
    page.keyboard.type("maintenance")
    expect(page.locator("#expected")).to_contain_text(
        "Needs approval: it holds for 1 h, and one person may for 10 min"
    )
    tab_to(page, "#expected button.main")
    enter(page, r"/approvals/\d+/$")
    expect(page.locator("main")).to_contain_text("somebody else has to approve it first")
    expect(page.get_by_role("button", name="Approve and do it")).to_have_count(0)
    assert not Hold.objects.exists()
    row = Proposal.objects.get()

    other = tab("approver", width=390).open(f"{overview(fleet)}policy/")
    expect(other.locator("#n-approvals")).to_have_text("1 waiting")
    other.locator(".rail a[href='/approvals/']").focus()
    enter(other, r"/approvals/$")
    tab_to(other, f"a[href='/approvals/{row.pk}/']")
    enter(other, rf"/approvals/{row.pk}/$")
    assert other.evaluate("document.documentElement.scrollWidth <= innerWidth")
    tab_to(other, "#note")
    other.keyboard.type("seen with ana")
    tab_to(other, "button.main")
    enter(other, rf"/approvals/{row.pk}/$")
    expect(other.locator("main")).to_contain_text("It is done, as")
    placed = Hold.objects.get()
    assert (placed.threshold_tokens, placed.owner) == (9000, row.asked_by)
    expect(page.locator("#proposal")).to_contain_text("seen with ana")


def test_the_rail_counts_what_waits_while_somebody_looks(tab: Open, fleet: Fleet) -> None:
    """On pages of any fleet, told by the live connection; who may not approve sees no number."""
    other = busy_fleet(f"{fleet.pk}-b")
    pages = [tab("approver").open(path) for path in (overview(fleet), overview(other))]
    plain = tab("operator").open(overview(fleet))
    for page in (*pages, plain):
        expect(page.locator("#truth-socket")).to_contain_text("socket ok")
        page.evaluate("window.isFirst = true")
    for page in pages:
        expect(page.locator("#n-approvals")).to_be_hidden()
        page.locator(".rail a[href='/approvals/']").focus()
    row = waiting(fleet)
    for page in pages:
        expect(page.locator("#n-approvals")).to_be_visible()
        expect(page.locator("#n-approvals")).to_have_text("1 waiting")
    reject(proposal_id=row.pk, now=timezone.now(), **BOB)
    for page in pages:
        expect(page.locator("#n-approvals")).to_be_hidden()
        assert page.evaluate("window.isFirst") is True, "without loading the page anew"
    expect(plain.locator("#n-approvals")).to_have_count(0)


def test_an_emergency_is_confirmed_by_typing(tab: Open, fleet: Fleet) -> None:
    limit({"changes": ["always_remote"]}, fleet=fleet.pk)
    page = tab("admin").open(
        f"{overview(fleet)}hold/?cluster=pd&mode=always_remote&reason=fire&span_s=3600"
    )
    page.locator("#expected button.main").click()
    expect(page).to_have_url(re.compile(r"/approvals/\d+/$"))
    page.get_by_text("Emergency: do it alone").click()
    page.fill("#glass-confirm", fleet.pk)
    page.fill("#glass-reason", "nobody is awake")
    page.get_by_role("button", name="Break the glass").click()
    expect(page.locator(".note.warning").last).to_contain_text("Glass was broken")
    assert Hold.objects.get().mode == "always_remote"
