"""What people set, in a browser: by keyboard alone, two at once, a login that runs out."""

from __future__ import annotations

import re

from django.contrib.sessions.models import Session
from playwright.sync_api import Page, Route, expect

from routing.models import Fleet, Hold, Policy, Rebalance
from tests.browser.conftest import Open
from tests.browser.test_console import PASSWORD, live, overview
from tests.console.control_case import make_movable, report
from tests.routing.issuing import next_push_at, run_tick

MOST_TABS = 60


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until what is focused is the one that is wanted."""
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        if page.evaluate("(wanted) => document.activeElement?.matches(wanted)", selector):
            return
    raise AssertionError(f"{selector} is not reached by {MOST_TABS} tabs on {page.url}")


def enter(page: Page, leads_to: str) -> None:
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(leads_to))
    page.wait_for_load_state()


def test_keys_alone_move_roles_and_cancel_hold_a_plan_and_revert_one(
    tab: Open, fleet: Fleet
) -> None:
    make_movable(fleet)
    report(fleet)
    page = tab("operator").open(f"{overview(fleet)}policy/")
    # Start a move of roles.
    tab_to(page, "a[href$='/rebalances/new/']")
    enter(page, "/rebalances/new/$")
    tab_to(page, "#id_n_prefill")
    page.keyboard.press("ArrowUp")
    expect(page.locator("[data-rest]")).to_have_text("4")
    tab_to(page, "#id_reason")
    page.keyboard.type("long prompts")
    expect(page.locator("#expected")).to_contain_text("Move 1 instance from decode to prefill")
    expect(page.locator("#expected [data-confirm]")).to_be_enabled()
    tab_to(page, "[data-confirm]")
    enter(page, r"/rebalances/asked/\d+/$")
    expect(page.locator("#rebalance")).to_contain_text("Waiting for the next tick")
    live(page)
    run_tick(fleet, next_push_at(fleet))
    # Cancel it.
    expect(page.locator("#rebalance")).to_contain_text("3/5 → 4/4")
    tab_to(page, "a[href$='/cancel/']")
    enter(page, "/cancel/$")
    tab_to(page, "#id_reason")
    page.keyboard.type("not now")
    enter(page, f"{overview(fleet)}fleet/$")
    expect(page.locator("main")).to_contain_text("The move of roles in pd is given up.")
    assert Rebalance.objects.get().state == "aborting"
    # Hold a plan.
    page.goto(page.url.partition("/fleets/")[0] + f"{overview(fleet)}hold/")
    tab_to(page, "#id_threshold_tokens")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("9000")
    tab_to(page, "#id_reason")
    page.keyboard.type("maintenance")
    expect(page.locator("#expected button.main")).to_be_enabled()
    tab_to(page, "#expected button.main")
    enter(page, f"{overview(fleet)}fleet/$")
    expect(page.locator("main")).to_contain_text("Held t 9K tok in pd until")
    # Undo it by the link that shows then.
    tab_to(page, ".note a[href$='/release/']")
    enter(page, "/release/$")
    tab_to(page, "form button.main")
    enter(page, f"{overview(fleet)}fleet/$")
    expect(page.locator("main")).to_contain_text("Released.")
    # Revert a decision.
    first = fleet.decisions.get(version=1)
    page.goto(page.url.partition("/fleets/")[0] + f"{overview(fleet)}decisions/{first.pk}/")
    tab_to(page, f"a[href$='/decisions/{first.pk}/rollback/']")
    enter(page, "/rollback/$")
    tab_to(page, "#id_reason")
    page.keyboard.type("v2 was wrong")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_contain_text("Rolled back to v1: held until")
    assert Hold.objects.filter(released_at=None, mode="threshold").get().threshold_tokens == 4000


def test_what_was_typed_since_is_shown_before_it_can_be_confirmed(tab: Open, fleet: Fleet) -> None:
    page = tab("operator").open(f"{overview(fleet)}policy/")
    page.fill("#reason", "incident 7")
    page.fill("#k-t_dwell_s", "60")
    confirm = page.locator("#expected [data-confirm]")
    expect(confirm).to_be_enabled()
    kept: list[Route] = []
    with page.expect_request(preview := re.compile("t_dwell_s=90")):
        page.route(preview, lambda route: kept.append(route))
        page.fill("#k-t_dwell_s", "90")
        expect(confirm).to_be_disabled()
    expect(confirm).to_be_disabled()
    kept.pop().continue_()
    page.unroute(preview)
    expect(confirm).to_be_enabled()
    confirm.click()
    expect(page.locator("main")).to_contain_text("1 number changed: the policy is v2.")
    assert Policy.objects.get().knobs == {"t_dwell_s": 90.0}


def test_of_two_operators_the_slower_sees_both_changes(tab: Open, fleet: Fleet) -> None:
    first_tab, second_tab = tab("operator"), tab("admin")
    first = first_tab.open(f"{overview(fleet)}policy/")
    second = second_tab.open(f"{overview(fleet)}policy/")
    second.fill("#k-t_dwell_s", "60")
    second.fill("#reason", "incident 7")
    second.locator("#expected [data-confirm]").click()
    expect(second.locator("main")).to_contain_text("1 number changed: the policy is v2.")
    first.fill("#k-band_ratio", "0.1")
    expect(first.locator("h1")).to_have_text("Changed meanwhile")
    expect(first.locator("main")).to_contain_text("incident 7")
    first_tab.forgive()  # the 409 that the conflict is
    first.get_by_role("link", name="Put mine on top, and look again").click()
    first.fill("#reason", "narrower")
    first.locator("#expected [data-confirm]").click()
    expect(first.locator("main")).to_contain_text("the policy is v3.")
    assert Policy.objects.get().knobs == {"t_dwell_s": 60.0, "band_ratio": 0.1}


def test_a_login_that_runs_out_keeps_what_was_typed(
    tab: Open, fleet: Fleet, django_user_model: type
) -> None:
    django_user_model.objects.create_superuser("root", password=PASSWORD)
    found = tab("operator", width=390)
    page = found.open(f"{overview(fleet)}mode/?to=paused")
    page.fill("#reason", "night shift")
    Session.objects.all().delete()
    page.get_by_role("button", name="Pause the loop").click()
    expect(page).to_have_url(re.compile(r"/login/\?next="))
    found.forgive()  # the socket was closed with the login
    page.fill("[name=username]", "root")
    page.fill("[name=password]", PASSWORD)
    page.keyboard.press("Enter")
    expect(page.locator("#reason")).to_have_value("night shift")
    assert Policy.objects.get().mode == "active"
    page.get_by_role("button", name="Pause the loop").click()
    expect(page.locator("main")).to_contain_text("is paused now")
    assert Policy.objects.get().mode == "paused"
