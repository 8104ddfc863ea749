"""Roles that move, an earlier plan held again, and what is missing, in a browser."""

from __future__ import annotations

import re
import signal
import time
from datetime import timedelta

from django.db.models import F
from playwright.sync_api import expect

from routing import announce
from routing.models import Fleet, RoleMove, Tick
from tests import servers
from tests.browser.conftest import Open
from tests.browser.test_console import live, overview
from tests.browser.traffic import Traffic
from tests.console.test_rebalances import moving
from tests.telemetry import batches


def announced(move: RoleMove) -> None:
    """What the driver says after each step."""
    row = move.rebalance
    announce.publish(
        {
            "type": "rebalance",
            "fleet": row.fleet_id,
            "id": row.pk,
            "cluster": row.cluster,
            "state": row.state,
            "waiting_for": row.waiting_for,
            "at_s": time.time(),
            "moves": [],
        }
    )


def test_a_move_of_roles_is_followed_step_by_step(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    traffic = Traffic(server, fleet)
    traffic.send()
    row = moving(fleet)
    page = tab("operator").open(overview(fleet) + "fleet/")
    live(page)
    current = page.locator("#rebalance [aria-current=step]")
    expect(current).to_have_text("Drain, current")
    role = page.locator(f"tr[data-instance='{fleet.pk}/pd/p1'] [data-cell=role]")
    expect(role).to_have_text("prefill")
    expect(page.locator("tr[data-roles=pd] [data-cell=reported]")).to_have_text("1/1")
    move = row.moves.get(seq=2)
    move.step = "verify"
    move.save()
    announced(move)
    expect(current).to_have_text("Prove, current")
    at_s = time.time()
    moved = batches.instance(f"{fleet.pk}/pd/p1", at_s, role="decode", signals={})
    server.post(batches.batch(traffic.agent, moved, seq=next(traffic.seq)), traffic.secret)
    expect(role).to_have_text("decode")
    expect(page.locator("tr[data-roles=pd] [data-cell=reported]")).to_have_text("0/2")
    page.click("text=Cancel…")
    expect(page.locator(".effects")).to_contain_text(
        "is emptied once more and goes back to prefill"
    )
    page.keyboard.press("Tab")
    page.fill("[name=reason]", "wrong hour")
    page.keyboard.press("Enter")
    expect(page.locator("#rebalance")).to_contain_text("being given up")
    row.refresh_from_db()
    assert row.state == "aborting"


def test_rolling_back_is_three_clicks_and_shows_on_every_page(tab: Open, fleet: Fleet) -> None:
    """S-56."""
    first = fleet.decisions.get(version=1)
    page = tab("operator").open(f"{overview(fleet)}decisions/{first.pk}/")
    page.click("text=Set t from 6,000 to 4,000 tokens, as in v1…")
    expect(page.locator(".effects")).to_contain_text("pd goes from t 6K tok to t 4K tok")
    page.fill("[name=reason]", "link flaps")
    page.click("button:has-text('Roll back')")
    expect(page.locator("#holds")).to_contain_text("Roll back to plan 1.1: link flaps")
    expect(page.locator("#mode-chip")).to_contain_text("HELD")


def test_what_is_missing_is_told_and_counted_on_while_nothing_is_heard(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    traffic = Traffic(server, fleet)
    traffic.send()
    Tick.objects.filter(fleet=fleet).update(at=F("at") - timedelta(hours=1))
    found = tab("viewer")
    page = found.open(overview(fleet))
    missing = page.locator("#missing")
    stopped = "The loop has not ticked for 1 h"
    expect(missing).to_contain_text(stopped)
    expect(missing).to_contain_text("t stays as it is, samples are stored, gates keep routing by")
    live(page)
    server.process.send_signal(signal.SIGSTOP)
    try:
        expect(missing).to_contain_text(re.compile(r"As last heard at \d\d:\d\d:\d\d"))
        expect(missing).to_contain_text(stopped)
    finally:
        server.process.send_signal(signal.SIGCONT)
    live(page)
    traffic.loop()
    expect(missing).not_to_contain_text("The loop")
    found.forgive()
