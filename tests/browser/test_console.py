"""The console in a browser: signing in, live figures, silence, recovery, roles, phones."""

from __future__ import annotations

import re
import signal

from django.utils import timezone
from playwright.sync_api import Page, expect

from routing import announce
from routing.models import Fleet, Policy
from tests import servers
from tests.browser.conftest import APP, PATIENCE_MS, Open, until
from tests.browser.traffic import Traffic
from tests.console.page_case import decision

PASSWORD = "correct horse battery"


def overview(fleet: Fleet) -> str:
    return f"/fleets/{fleet.pk}/"


def live(page: Page) -> None:
    expect(page.locator("#truth-socket")).to_have_text("socket ok")


def test_signing_in_leads_to_the_page_asked_for(
    tab: Open, fleet: Fleet, django_user_model: type
) -> None:
    django_user_model.objects.create_superuser("root", password=PASSWORD)
    found = tab(None)
    page = found.open(overview(fleet))
    expect(page).to_have_url(re.compile(r"/login/\?next="))
    page.fill("[name=username]", "root")
    page.fill("[name=password]", "wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("Name or password is not right")
    page.fill("[name=password]", PASSWORD)
    page.keyboard.press("Enter")
    expect(page).to_have_url(found.base + overview(fleet))
    live(page)
    page.click("text=root")
    page.click("text=Sign out")
    expect(page).to_have_url(re.compile(r"/login/"))


def test_figures_follow_what_agents_and_the_loop_say(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    traffic = Traffic(server, fleet)
    traffic.send()
    page = tab("viewer").open(overview(fleet))
    live(page)
    traffic.send()
    traffic.send(tx_gbps=12.3, waiting=4.0)
    traffic.loop()
    expect(page.locator("#kpi-link .figure")).to_have_text("12.3 / 100 Gbps")
    expect(page.locator("#kpi-link .under")).to_have_text("12.3 %, loss 0 %")
    expect(page.locator("#kpi-throughput .figure")).to_have_text("2.50 req/s")
    expect(page.locator("#kpi-threshold .figure")).to_have_text("6K tok")
    expect(page.locator("#kpi-threshold .under")).to_have_text("was 4K tok 18 min ago")
    expect(page.locator("#kpi-remote .figure")).to_have_text("48 %")
    expect(page.locator("#kpi-remote .under")).to_have_text("predicted 49 %, 1.20 req/s")
    expect(page.locator("#kpi-ttft .figure")).to_have_text(re.compile(r"\d ms P50, \d+ ms P90"))
    expect(page.locator("#limits-sentence")).to_have_text(
        "Prefill, local (pd) binds. If demand grows 20 %, it saturates first."
    )
    expect(page.locator(".link-label")).to_have_text("12.3 Gbps of 100, 12.3 %")
    expect(page.locator(".pool").first).to_contain_text("1 up, 4 waiting")
    expect(page.locator("#truth-gates")).to_have_text("1/1 gates on v2")
    expect(page.locator("tr[data-router] [data-cell=upstreams]").first).to_have_text(
        "down: remote:prfaas"
    )


def test_charts_show_history_and_go_on_live(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    traffic = Traffic(server, fleet)
    traffic.send(waiting=3.0)
    page = tab("viewer").open(overview(fleet))
    live(page)
    page.locator("#chart-queue").scroll_into_view_if_needed()  # what nobody sees is not drawn
    last = "document.querySelector('#chart-queue').data?.at(-1).y.at(-1)"
    until(page, last, 3)
    traffic.send(waiting=5.0)
    until(page, last, 5)
    expect(page.locator("#legend-queue")).to_contain_text("prfaas/prefill5")
    drawn = "[...document.querySelectorAll('.chart')].filter((c) => c._fullLayout).length"
    page.mouse.wheel(0, 4000)
    until(page, drawn, 4)
    expect(page.locator("#chart-demand .xtick text").first).to_have_text(re.compile(r"^\d\d:\d\d"))
    marks = (
        "document.querySelector('#chart-threshold').data"
        ".find((t) => t.name === 'decisions').x.length"
    )
    assert page.evaluate(marks) == 0, "twenty minutes ago is out of the last fifteen"
    page.select_option("#range", "1h")
    until(page, marks, 3)
    assert page.url.endswith("?range=1h")


def test_pausing_pins_the_range_into_the_address_and_escape_goes_live(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    Traffic(server, fleet).send()
    page = tab("viewer").open(overview(fleet))
    live(page)
    page.keyboard.press("p")
    expect(page.locator("#live-word")).to_have_text(re.compile(r"To \d\d:\d\d:\d\d"))
    assert re.search(r"\?from=\d+&to=\d+$", page.url)
    page.reload()
    expect(page.locator("#pause")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Escape")
    expect(page.locator("#live-word")).to_have_text("Live")
    assert "from=" not in page.url


def test_a_decision_appears_without_reloading(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    traffic = Traffic(server, fleet)
    traffic.send()
    page = tab("viewer").open(overview(fleet))
    live(page)
    row = decision(fleet, timezone.now(), 3, 9000, previous=6000)
    announce.publish(
        {
            "type": "decision",
            "fleet": fleet.pk,
            "id": row.pk,
            "epoch": 1,
            "version": 3,
            "kind": "adopted",
            "reason": row.reason,
            "message": row.message,
            "at_s": row.created_at.timestamp(),
        }
    )
    traffic.loop()
    first = page.locator("#recent li").first
    expect(first).to_contain_text("v3")
    expect(first).to_contain_text("t 9K tok")
    expect(page.locator("#kpi-threshold .figure")).to_have_text("9K tok")
    expect(page.locator("#kpi-threshold .under")).to_have_text(re.compile("was 6K tok"))


def test_silence_shows_a_banner_and_what_comes_back_a_snapshot(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    """S-47, the browser's side: a server that hangs, with its connections open."""
    traffic = Traffic(server, fleet)
    traffic.send(tx_gbps=9.4)
    found = tab("viewer")
    page = found.open(overview(fleet))
    live(page)
    expect(page.locator("#banner")).to_be_hidden()
    server.process.send_signal(signal.SIGSTOP)
    try:
        expect(page.locator("#banner")).to_contain_text(
            re.compile(r"No data since \d\d:\d\d:\d\d UTC")
        )
        expect(page.locator("#truth-socket")).to_contain_text("since")
    finally:
        server.process.send_signal(signal.SIGCONT)
    expect(page.locator("#banner")).to_be_hidden()
    live(page)
    traffic.send(tx_gbps=21.0)
    expect(page.locator("#kpi-link .figure")).to_have_text("21 / 100 Gbps")
    found.forgive()


def test_a_restarted_server_is_found_again(tab: Open, fleet: Fleet, server: servers.Server) -> None:
    """S-47: a server that dies; the page polls, reconnects and refetches by itself."""
    traffic = Traffic(server, fleet)
    traffic.send(tx_gbps=9.4)
    found = tab("viewer")
    page = found.open(overview(fleet))
    live(page)
    server.kill()
    expect(page.locator("#banner")).to_contain_text("No data since")
    expect(page.locator("#kpi-throughput .figure")).not_to_be_empty()
    again = servers.start(server.log, app=APP, port=server.port)
    server.process = again.process
    expect(page.locator("#banner")).to_be_hidden(timeout=2 * PATIENCE_MS)
    live(page)
    traffic.send(tx_gbps=33.0)
    expect(page.locator("#kpi-link .figure")).to_have_text("33 / 100 Gbps")
    found.forgive()


def test_a_viewer_sees_no_action(tab: Open, fleet: Fleet) -> None:
    """S-59."""
    found = tab("viewer")
    for path in ("", "fleet/", "decisions/"):
        page = found.open(overview(fleet) + path)
        live(page)
        page.click("#mode-chip")
        expect(page.locator("#mode")).to_contain_text("Only operators change the mode")
        changing = "a[href*='/mode/'], a[href*='/hold/'], a[href*='/release/']"
        assert page.locator(f"main form[method=post], {changing}").count() == 0, path


def test_the_kill_switch_is_two_clicks_and_names_its_reach(tab: Open, fleet: Fleet) -> None:
    page = tab("operator").open(overview(fleet))
    page.click("#mode-chip")
    page.click("text=Pause…")
    expect(page.locator(".effects")).to_contain_text("the 2 gates now connected route by v2")
    page.keyboard.press("Enter")
    expect(page.locator("#mode-chip")).to_contain_text("PAUSED")
    assert Policy.objects.get(fleet=fleet).mode == "paused"


def test_holding_and_releasing_by_hand(tab: Open, fleet: Fleet) -> None:
    page = tab("operator").open(overview(fleet) + "fleet/")
    page.click("text=Hold a plan…")
    page.fill("[name=threshold_tokens]", "8000")
    page.fill("[name=reason]", "link maintenance")
    page.click("text=Show what it would do")
    expect(page.locator(".effects")).to_contain_text("pd goes from t 6K tok to t 8K tok")
    page.click("text=Hold it")
    expect(page.locator("#mode-chip")).to_contain_text("HELD")
    expect(page.locator("#policy")).to_contain_text("link maintenance")
    page.click("text=Release…")
    page.click("text=Release it")
    expect(page.locator("#mode-chip")).to_contain_text("ACTIVE")


def test_the_theme_is_chosen_and_kept(tab: Open, fleet: Fleet) -> None:
    found = tab("viewer", color_scheme="dark")
    page = found.open(overview(fleet))
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(17, 21, 28)"
    page.click("summary[title^='Signed in']")
    page.click("text=Light")
    assert page.evaluate(ground) == "rgb(244, 246, 248)"
    page.reload()
    assert page.evaluate(ground) == "rgb(244, 246, 248)"


def test_the_keyboard_reaches_everything_and_shows_where_it_is(tab: Open, fleet: Fleet) -> None:
    page = tab("operator").open(overview(fleet) + "fleet/")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator("#q")).to_be_focused()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Escape")
    page.locator("#mode-chip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("text=Pause…").first).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#mode .menu-body")).to_be_hidden()
