"""Who looks, and what becomes of it: two at once, cut off, hidden, signed out, demoted, stale."""

from __future__ import annotations

import json
import re
from typing import Any

from django.contrib.auth.models import Group, User
from django.contrib.sessions.models import Session
from django.utils import timezone
from playwright.sync_api import Page, WebSocketRoute, expect

from routing import announce
from routing.models import Fleet, Hold, Policy
from tests import servers
from tests.browser.conftest import Open
from tests.browser.test_console import PASSWORD, live, overview
from tests.browser.traffic import Traffic
from tests.console import onboarding_case
from tests.console.page_case import decision

AT_ONCE_MS = 3000


class Wire:
    """The live sockets of a page: cut when told to, and what came over each."""

    def __init__(self, page: Page) -> None:
        self.is_cut = False
        self.open: list[WebSocketRoute] = []
        self.heard: list[list[dict[str, Any]]] = []
        self.n_before = 0
        page.route_web_socket(re.compile("/ws/live"), self._joined)

    def _joined(self, ours: WebSocketRoute) -> None:
        if self.is_cut:
            ours.close(code=1006)
            return
        server, heard = ours.connect_to_server(), []
        self.open.append(ours)
        self.heard.append(heard)

        def passed_on(message: str | bytes) -> None:
            heard.append(json.loads(message))
            ours.send(message)

        server.on_message(passed_on)

    def cut(self) -> None:
        self.is_cut = True
        self.n_before = len(self.heard)
        for socket in self.open:
            socket.close(code=1001)
        self.open.clear()

    def snapshots(self) -> list[int]:
        """Of each socket since the cut, how many snapshots it brought.

        Those before do not count: a page that is busy with its first charts for two heartbeats is
        given up and comes back.
        """
        since = self.heard[self.n_before :]
        return [sum(bool(one.get("snapshot")) for one in heard) for heard in since]


def test_two_operators_see_what_each_other_does(tab: Open, fleet: Fleet) -> None:
    """S-55: and whoever decided on what is no longer so is told, not obeyed."""
    one = tab("operator")
    hers = one.open(overview(fleet))
    his = tab("operator").open(overview(fleet) + "mode/?to=paused")
    live(hers)
    live(his)
    his.get_by_role("button", name=re.compile("^Pause")).click()
    expect(hers.locator("#mode-chip")).to_contain_text("PAUSED", timeout=AT_ONCE_MS)
    hers.goto(hers.url + "mode/?to=active")
    stale = hers.context.new_page()
    stale.goto(hers.url)
    hers.get_by_role("button", name=re.compile("^Activate")).click()
    expect(his.locator("#mode-chip")).to_contain_text("ACTIVE", timeout=AT_ONCE_MS)
    stale.get_by_role("button", name=re.compile("^Activate")).click()
    expect(stale.locator("main")).to_contain_text("Nothing of yours was written")
    assert Policy.objects.get(fleet=fleet).version == 3
    one.forgive()  # the browser logs every answer of 409


def test_a_page_cut_off_says_since_when_and_comes_back_with_one_snapshot(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    """S-47: nothing is shown twice, and nothing that happened meanwhile is missed."""
    Traffic(server, fleet).send()
    found = tab("viewer")
    wire = Wire(found.page)
    page = found.open(overview(fleet))
    live(page)
    page.context.set_offline(True)
    wire.cut()
    banner = page.locator("#banner")
    expect(banner).to_contain_text(re.compile(r"No data since \d\d:\d\d:\d\d"))
    expect(page.locator("#truth-socket")).to_contain_text("since")
    made = decision(fleet, timezone.now(), 3, 9000, previous=6000)
    page.context.set_offline(False)
    wire.is_cut = False
    live(page)
    expect(banner).to_be_hidden()
    expect(page.locator("#recent li").first).to_contain_text("v3")
    rows = page.locator("#recent li").all_inner_texts()
    assert len(rows) == len(set(rows)) == 4
    assert wire.snapshots() == [1]
    assert page.locator(f"#recent a[href$='/decisions/{made.pk}/']").count() == 1
    found.forgive()  # the browser tells of requests that went nowhere


def test_a_hidden_tab_resumes_at_once_with_one_snapshot(tab: Open, fleet: Fleet) -> None:
    """S-48: whatever it missed; it does not wait for its next try."""
    found = tab("viewer")
    wire, page = Wire(found.page), found.page
    page.add_init_script(
        "Object.defineProperty(document, 'hidden', { get: () => window.isHidden ?? false });"
    )
    found.open(overview(fleet))
    live(page)
    page.evaluate(HIDE, True)
    wire.cut()
    expect(page.locator("#banner")).to_contain_text("No data since")
    wire.is_cut = False
    page.evaluate(HIDE, False)
    live(page)
    expect(page.locator("#banner")).to_be_hidden()
    assert wire.snapshots() == [1]
    found.forgive()


HIDE = "(hide) => { isHidden = hide; document.dispatchEvent(new Event('visibilitychange')); }"


def test_an_agent_that_fell_silent_is_shown_with_since_when(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    Traffic(server, fleet).send()
    onboarding_case.agent("away", silent_s=90.0)
    onboarding_case.source(f"{fleet.pk}/pd/d9", role="decode", by="away", silent_s=90.0)
    page = tab("viewer").open(overview(fleet) + "fleet/")
    live(page)
    since = re.compile(r"1/2 agents fresh, silent since \d\d:\d\d:\d\d")
    expect(page.locator("#truth-agents")).to_have_text(since)
    expect(page.locator("#missing")).to_contain_text("Agent away has been silent")


def test_a_login_that_expired_is_asked_for_and_leads_back(tab: Open, fleet: Fleet) -> None:
    """S-59: an open socket does not outlive its session."""
    found = tab("viewer")
    there = overview(fleet) + "fleet/?range=1h"
    page = found.open(there)
    live(page)
    person = User.objects.get(username__startswith="viewer-")
    person.set_password(PASSWORD)
    person.save()
    Session.objects.all().delete()
    banner = page.locator("#banner")
    expect(banner).to_contain_text("Signed out")
    expect(page.locator("#truth-socket")).to_contain_text("signed out")
    banner.get_by_role("link", name="Sign in").click()
    page.get_by_label("Name").fill(person.username)
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page).to_have_url(found.base + there)
    live(page)
    found.forgive()


def test_who_is_an_operator_no_more_cannot_act_nor_seems_to(tab: Open, fleet: Fleet) -> None:
    """S-59: pages that are open lose their buttons, a form that was filled in is refused."""
    found = tab("operator", hurried=True)
    page = found.open(overview(fleet) + "fleet/")
    live(page)
    expect(page.locator("main").get_by_role("link", name="Hold a plan…").first).to_be_visible()
    form = page.context.new_page()
    form.goto(page.url.replace("fleet/", "mode/?to=paused"))
    person = User.objects.get(username__startswith="operator-")
    person.groups.set([Group.objects.get_or_create(name="viewer")[0]])
    form.get_by_role("button", name=re.compile("^Pause")).click()
    expect(form.locator("main")).to_contain_text("Only operators")
    found.forgive()  # the browser logs every answer of 403
    announce.publish({"type": "policy", "fleet": fleet.pk, "version": 1})
    expect(page.locator("main").get_by_role("link", name="Hold a plan…")).to_have_count(0)
    page.click("#mode-chip")
    expect(page.locator("#mode")).to_contain_text("Only operators change the mode")
    assert Policy.objects.get(fleet=fleet).mode == "active"
    assert not Hold.objects.exists()
