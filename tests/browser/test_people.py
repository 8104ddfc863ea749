"""An administrator makes an account, gives it rights for one fleet, and it has just those."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from routing.models import Fleet
from tests.browser.conftest import Open


def test_an_account_with_rights_for_one_fleet(tab: Open, fleet: Fleet) -> None:
    name = f"bo-{fleet.pk}"
    page = tab("admin").open("/people/")
    page.get_by_role("link", name="New account").click()
    page.get_by_label("Name").fill(name)
    page.get_by_label("Role").select_option("viewer")
    page.get_by_label("Fleet", exact=True).select_option(fleet.pk)
    page.get_by_role("button", name="Make it").click()
    password = page.locator("#secret").inner_text()
    page.get_by_role("link", name="Open the account").click()
    page.get_by_label("Role").select_option("operator")
    page.get_by_label("Fleet", exact=True).select_option(fleet.pk)
    page.get_by_role("button", name="Put into this group").click()
    expect(page.get_by_role("row", name=f"operator:{fleet.pk}")).to_be_visible()

    theirs = tab(None).open("/login/")
    theirs.get_by_label("Name").fill(name)
    theirs.get_by_label("Password").fill(password)
    theirs.get_by_role("button", name="Sign in").click()
    expect(theirs).to_have_url(re.compile(f"/fleets/{fleet.pk}/"))
    theirs.goto(theirs.url.split("/fleets/")[0] + "/account/")
    expect(theirs.get_by_role("row", name=fleet.pk)).to_contain_text("Operator")

    page.get_by_role("button", name=f"Take out of operator:{fleet.pk}").click()
    expect(page.get_by_role("row", name=f"operator:{fleet.pk}")).to_have_count(0)
