"""Plans issued as the worker would, on the wall clock, for tests with real web processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from routing import commands, fleets, scheduler, token_commands
from routing.models import Fleet, Tick

WHO: dict[str, Any] = {"actor": "ada", "via": "test", "reason": "test"}


def token(scope: str = "router", fleet: str = "") -> str:
    _, secret = token_commands.issue_token(
        name=scope, scopes=[scope], fleet=fleet, expires_at=None, now=timezone.now(), **WHO
    )
    return secret


def issue(fleet: Fleet, threshold_tokens: int) -> None:
    """The next plan, through a hold and a tick, as the worker would."""
    now = next_push_at(fleet)
    for hold in commands.open_holds(fleet, now):
        commands.release_hold(hold_id=hold.pk, now=now, **WHO)
    commands.place_hold(
        fleet=fleet.pk,
        mode="threshold",
        threshold_tokens=threshold_tokens,
        owner="ada",
        expires_at=now + timedelta(hours=1),
        now=now,
        **WHO,
    )
    tick = run_tick(fleet, now)
    assert tick.action == "adopt", tick.verdict["message"]


def run_tick(fleet: Fleet, now: datetime) -> Tick:
    tick = scheduler.run_tick(fleet.pk, now=now, tick_s=1e-4)  # so short that each is its own
    assert tick is not None
    return tick


def next_push_at(fleet: Fleet) -> datetime:
    """Now, or as long after the last plan as pushes must be apart."""
    newest = fleets.newest_adopted(fleet)
    now = timezone.now()
    return now if newest is None else max(now, newest.created_at + timedelta(seconds=3))


def wait_for(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 15
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
