"""What the frame around every page shows: fleets, mode, freshness, who looks and what they may do.

One small query per fact, on each page: the frame must never be older than the page it frames.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

from console import figures
from console.missing import CLOCK_AHEAD_S
from console.roles import Role, role_of
from routing import commands
from routing.models import Fleet, Policy, RouterState, Tick
from telemetry.models import Agent

STALE_AFTER_S = 15.0
"""An agent or router silent for longer is stale (docs/operations.md, What to watch)."""
FORGOTTEN_AFTER_S = 86_400.0
"""An agent or router silent for a day no longer counts towards `n of m`."""


def loop_stale_s(tick_s: float) -> float:
    """How old the newest tick may be before the loop counts as silent."""
    return max(3 * tick_s, 6.0)


RANGES = {"5m": 300, "15m": 900, "1h": 3600, "6h": 21_600, "24h": 86_400}
DEFAULT_RANGE = "15m"
_MODES = {
    "active": (
        "Activate",
        "The loop computes plans and pushes them to the gates.",
    ),
    "advisory": (
        "Only advise",
        "The loop computes and records what it would do; nothing is pushed.",
    ),
    "paused": (
        "Pause",
        "The loop measures and records; it decides nothing and pushes nothing.",
    ),
}
_MODE_TONES = {"active": "good", "advisory": "info", "paused": "warn"}


@dataclass(frozen=True)
class Mark:
    """A state in words with its tone and icon: colour is never the only sign."""

    tone: str
    icon: str
    text: str


GOOD, WARN, BAD, OFF = ("good", "ok"), ("warn", "warn"), ("bad", "bad"), ("off", "off")


def frame(request: HttpRequest) -> dict[str, Any]:
    """Context for `base.html`. Anonymous visitors get nothing of the fleet."""
    if not request.user.is_authenticated:
        return {}
    role = role_of(request.user)
    fleets = list(Fleet.objects.order_by("name").values_list("name", flat=True))
    match = request.resolver_match
    fleet = (match.kwargs.get("fleet") if match else None) or request.session.get("fleet")
    if fleet not in fleets:
        fleet = fleets[0] if fleets else None
    shown = {
        "fleet": fleet,
        "fleets": fleets,
        "role": role.name,
        "role_help": role.help,
        "can_operate": role.can_operate,
        "can_administer": role.can_administer,
        "nav": _nav(fleet, match.url_name if match else None, role),
        "ranges": list(RANGES),
        "range": range_of(request)[0],
    }
    if fleet:
        now = timezone.now()
        shown |= {
            "tick_s": settings.ENV["CONSOLE_TICK_S"],
            "stale_s": STALE_AFTER_S,
            "mode": mode_chip(fleet, now),
            "truth": _truth(fleet, now),
        }
    return {"frame": shown}


def range_of(request: HttpRequest) -> tuple[str, float]:
    """The chosen time range: its name and seconds. An unknown one is the default."""
    name = request.GET.get("range", DEFAULT_RANGE)
    name = name if name in RANGES else DEFAULT_RANGE
    return name, RANGES[name]


def mode_chip(fleet: str, now: datetime) -> dict[str, Any]:
    """The chip's word, colour and sentence, and the modes one could switch to."""
    policy = Policy.objects.select_related("fleet").get(fleet_id=fleet)
    sentence = _MODES[policy.mode][1]
    chip = {
        "word": policy.mode.upper(),
        "icon": policy.mode,
        "tone": _MODE_TONES[policy.mode],
        "detail": "",
        "sentence": sentence,
        "value": policy.mode,
        "version": policy.version,
        "updated_by": policy.updated_by,
        "updated_at": policy.updated_at,
        "choices": [
            {"mode": mode, "label": words[0], "help": words[1]}
            for mode, words in _MODES.items()
            if mode != policy.mode
        ],
    }
    holds = commands.open_holds(policy.fleet, now)
    if holds and policy.mode == "active":
        last = max(holds, key=lambda hold: hold.expires_at)
        where = last.cluster or "every cluster"
        chip |= {
            "word": "HELD",
            "icon": "held",
            "tone": "warn",
            "detail": f"until {_minute(last.expires_at)} by {last.owner}",
            "sentence": f"Held in {where} until {figures.stamp(last.expires_at)} by {last.owner}: "
            f"{last.reason}. The loop keeps this plan there and decides nothing else.",
        }
    return chip


def _minute(at: datetime) -> str:
    return f"{at:%H:%M}"


def _nav(fleet: str | None, current: str | None, role: Role) -> list[dict[str, Any]]:
    pages: list[tuple[str, str, str, tuple[str, ...]]] = []
    if fleet:
        pages = [
            ("Overview", "fleet-overview", "overview", ()),
            (
                *("Fleet", "fleet", "fleet"),
                ("mode", "hold", "release", "cancel-rebalance", "reset-breaker"),
            ),
            ("Signals", "signals", "signals", ()),
            ("Onboarding", "fleet-onboarding", "onboarding", ("onboarding",)),
            (
                *("Decisions", "decisions", "decisions"),
                ("decision", "tick", "roll-back", "cancel-delivery"),
            ),
            ("Planner", "planner", "planner", ()),
            (
                *("Backtests", "backtests", "backtests"),
                ("backtest", "start-backtest", "cancel-backtest"),
            ),
            ("Request", "request", "request", ()),
        ]
    else:
        pages = [
            ("Overview", "overview", "overview", ()),
            ("Onboarding", "onboarding", "onboarding", ()),
        ]
    shown = [
        {
            "label": label,
            "icon": icon,
            "url": reverse(name, args=[fleet] if fleet else []),
            "current": current in (name, *also),
        }
        for label, name, icon, also in pages
    ]
    common: list[tuple[str, str, tuple[str, ...]]] = [("Audit", "audit", ())]
    if role.can_operate:
        common.append(("Tokens", "tokens", ("revoke-token",)))
    for label, name, also in common:
        shown.append(
            {
                "label": label,
                "icon": name,
                "url": reverse(name),
                "current": current in (name, *also),
            }
        )
    return shown


def _truth(fleet: str, now: datetime) -> dict[str, Mark]:
    return {
        "loop": _loop_mark(fleet, now),
        "agents": _agents_mark(now),
        "gates": _gates_mark(fleet, now),
        "socket": Mark(*OFF, "socket connecting"),
    }


def _loop_mark(fleet: str, now: datetime) -> Mark:
    at = Tick.objects.filter(fleet_id=fleet).order_by("-seq").values_list("at", flat=True).first()
    if at is None:
        return Mark(*OFF, "loop has not run yet")
    age_s = (now - at).total_seconds()
    if age_s < -CLOCK_AHEAD_S:
        return Mark(*WARN, f"clock set back, last tick {figures.clock(at)}")
    if age_s > loop_stale_s(settings.ENV["CONSOLE_TICK_S"]):
        return Mark(*WARN, f"loop silent since {figures.clock(at)}")
    return Mark(*GOOD, f"loop {figures.age(age_s)}")


def _agents_mark(now: datetime) -> Mark:
    horizon = now - timedelta(seconds=FORGOTTEN_AFTER_S)
    seen = list(
        Agent.objects.filter(last_seen_at__gt=horizon).values_list("last_seen_at", flat=True)
    )
    if not seen:
        return Mark(*OFF, "no agents")
    fresh = sum((now - at).total_seconds() <= STALE_AFTER_S for at in seen)
    tone = GOOD if fresh == len(seen) else WARN
    return Mark(*tone, f"{fresh}/{len(seen)} agents fresh")


def _gates_mark(fleet: str, now: datetime) -> Mark:
    horizon = now - timedelta(seconds=FORGOTTEN_AFTER_S)
    gates = list(RouterState.objects.filter(fleet_id=fleet, last_seen_at__gt=horizon))
    if not gates:
        return Mark(*OFF, "no gates")
    newest = max(
        ((g.epoch_running, g.version_running) for g in gates if g.version_running is not None),
        default=None,
    )
    if newest is None:
        return Mark(*WARN, f"0/{len(gates)} gates run a plan")
    running = sum(
        (g.epoch_running, g.version_running) == newest
        and (now - g.last_seen_at).total_seconds() <= STALE_AFTER_S
        for g in gates
    )
    tone = GOOD if running == len(gates) else WARN
    return Mark(*tone, f"{running}/{len(gates)} gates on v{newest[1]}")
