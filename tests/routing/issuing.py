"""Plans issued as the worker would, on the wall clock, for tests with real web processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.utils import timezone

from routing import commands, scheduler
from routing.models import Fleet

WHO: dict[str, Any] = {"actor": "ada", "via": "test", "reason": "test"}


def token(scope: str = "router", fleet: str = "") -> str:
    _, secret = commands.issue_token(
        name=scope, scopes=[scope], fleet=fleet, expires_at=None, now=timezone.now(), **WHO
    )
    return secret


def issue(fleet: Fleet, threshold_tokens: int) -> None:
    """The next plan, through a hold and a tick, as the worker would."""
    now = timezone.now()
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
    # An interval this short makes every call its own tick.
    assert scheduler.run_tick(fleet.pk, now=timezone.now(), tick_s=1e-4) is not None


def wait_for(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 15
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
