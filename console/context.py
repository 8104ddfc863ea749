"""What the frame around every page shows: fleets, mode, freshness, who looks and what they may do.

The facts come in one statement (`frame_facts`); here they become words.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from string import ascii_lowercase
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.urls import NoReverseMatch, ResolverMatch, reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from django.utils.translation import ngettext

from console import figures, frame_facts
from console.frame_facts import Facts
from console.missing import CLOCK_AHEAD_S
from console.roles import Role, role_of
from routing import rights

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
        _lazy("Activate"),
        _lazy("The loop computes plans and pushes them to the gates."),
    ),
    "advisory": (
        _lazy("Only advise"),
        _lazy("The loop computes and records what it would do; nothing is pushed."),
    ),
    "paused": (
        _lazy("Pause"),
        _lazy("The loop measures and records; it decides nothing and pushes nothing."),
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
_ROUTER_WORDS = (
    ("drifted", BAD),
    ("unreachable", BAD),
    ("pending_restart", WARN),
    ("applying", ("info", "wait")),
)
"""States of managed routers that are told on every page, the worst first."""


def frame(request: HttpRequest) -> dict[str, Any]:
    """Context for `base.html`. Anonymous visitors get nothing of the fleet."""
    if not request.user.is_authenticated:
        return {}
    match, now = request.resolver_match, timezone.now()
    wanted = (match.kwargs.get("fleet") if match else None) or request.session.get("fleet")
    may = rights.of(request.user)
    fleets, facts = frame_facts.read(
        wanted,
        now,
        among=may.fleets("read"),
        approving=may.fleets("approve"),
        stale_s=STALE_AFTER_S,
        forgotten_s=FORGOTTEN_AFTER_S,
    )
    fleet = facts and facts.fleet
    role = role_of(request.user, fleet or "")
    shown = {
        "fleet": fleet,
        "fleets": fleets,
        "role": role.name,
        "role_help": role.help,
        "can_operate": role.can_operate,
        "can_approve": role.can_approve,
        "can_administer": role.can_administer,
        "nav": nav(
            fleet,
            match.url_name if match else None,
            role,
            counts={"approvals": facts.n_proposed} if facts and may.anywhere("approve") else {},
        ),
        "ranges": list(RANGES),
        "range": range_of(request)[0],
        "rest": _rest_of(match),
        "wall": request.GET.get("wall") == "1",
        "now": now,
        "zone": str(timezone.get_current_timezone()),
    }
    if facts:
        shown |= {
            "tick_s": settings.ENV["CONSOLE_TICK_S"],
            "stale_s": STALE_AFTER_S,
            "mode": mode_chip(facts),
            "truth": _truth(facts, now),
            "windows": facts.windows,
            "maintained": facts.maintained,
        }
    return {"frame": shown}


def range_of(request: HttpRequest) -> tuple[str, float]:
    """The chosen time range: its name and seconds. An unknown one is the default."""
    name = request.GET.get("range", DEFAULT_RANGE)
    name = name if name in RANGES else DEFAULT_RANGE
    return name, RANGES[name]


@dataclass(frozen=True)
class Span:
    """The page's one range as the address says it (`static/console/time.js`): pinned from..to, or
    the last so many seconds."""

    name: str
    since: datetime
    until: datetime
    is_pinned: bool


def span_of(request: HttpRequest, now: datetime) -> Span:
    """From and to of the range in the address; what cannot be read counts as live."""
    name, seconds = range_of(request)
    try:
        since, until = (
            datetime.fromtimestamp(float(request.GET[key]), UTC) for key in ("from", "to")
        )
    except (KeyError, ValueError, OverflowError, OSError):
        return Span(name, now - timedelta(seconds=seconds), now, is_pinned=False)
    if since >= until:
        return Span(name, now - timedelta(seconds=seconds), now, is_pinned=False)
    return Span(name, since, until, is_pinned=True)


_REST = {
    "fleet-overview": "api-snapshot",
    "fleet": "api-instances",
    "findings": "api-findings",
    "routers": "api-managed-routers",
    "decisions": "api-decisions",
    "decision": "api-decision",
    "backtests": "api-backtests",
    "backtest": "api-backtest",
    "onboarding": "api-telemetry-sources",
    "fleet-onboarding": "api-fleet-telemetry-sources",
    "tick": "api-tick",
    "tokens": "api-tokens",
    "audit": "api-audit",
    "alerts": "api-incidents",
    "jobs": "api-job-runs",
    "forecast": "api-forecast",
    "costs": "api-reports",
    "profile-fits": "api-profile-fits",
    "windows": "api-freezes",
    "incident": "api-incident",
    "alert-rules": "api-alert-rules",
    "alert-rule": "api-alert-rule",
    "receivers": "api-receivers",
    "receiver": "api-receiver",
    "approvals": "api-approvals",
    "approval": "api-approval",
    "approval-limits": "api-approval-limits",
    "document": "api-export",
}
"""The REST call that answers what a page shows, for its "curl" button; a page whose own is another
fills the block `share`."""


def _rest_of(match: ResolverMatch | None) -> str:
    name = _REST.get((match.url_name if match else None) or "")
    if match is None or name is None:
        return ""
    try:
        return reverse(name, kwargs=match.kwargs)
    except NoReverseMatch:
        return ""


def mode_chip(facts: Facts) -> dict[str, Any]:
    """The chip's word, colour and sentence, and the modes one could switch to."""
    sentence = _MODES[facts.mode][1]
    chip = {
        "word": facts.mode.upper(),
        "icon": facts.mode,
        "tone": _MODE_TONES[facts.mode],
        "detail": "",
        "sentence": sentence,
        "value": facts.mode,
        "version": facts.policy_version,
        "updated_by": facts.updated_by,
        "updated_at": facts.updated_at,
        "choices": [
            {"mode": mode, "label": words[0], "help": words[1]}
            for mode, words in _MODES.items()
            if mode != facts.mode
        ],
    }
    last = facts.hold
    if last and facts.mode == "active":
        where = last.cluster or _("every cluster")
        chip |= {
            "word": "HELD",
            "icon": "held",
            "tone": "warn",
            "detail": _("until %(expires_at)s by %(owner)s")
            % {"expires_at": _minute(last.expires_at), "owner": last.owner},
            "sentence": _(
                "Held in %(where)s until %(expires_at)s by "
                "%(owner)s: %(reason)s. The loop keeps this plan "
                "there and decides nothing else."
            )
            % {
                "where": where,
                "expires_at": figures.stamp(last.expires_at),
                "owner": last.owner,
                "reason": last.reason,
            },
        }
    return chip


def _minute(at: datetime) -> str:
    local = timezone.localtime(at)
    is_today = local.date() == timezone.localtime().date()
    return f"{local:%H:%M}" if is_today else f"{local:%m-%d %H:%M}"


def nav(
    fleet: str | None, current: str | None, role: Role, *, counts: dict[str, int]
) -> list[dict[str, Any]]:
    """The pages of the rail, each with the letter that leads to it after `g`; `counts` by icon are
    what waits there, where that is counted."""
    pages: list[tuple[str, str, str, tuple[str, ...]]] = []
    if fleet:
        pages = [
            (_("Overview"), "fleet-overview", "overview", ()),
            (
                *(_("Fleet"), "fleet", "fleet"),
                ("mode", "reset-breaker", "cluster"),
            ),
            (
                *(_("Control"), "policy", "control"),
                (
                    *("hold", "holds", "release", "extend", "rebalance-new", "rebalance"),
                    *("rebalance-asked", "cancel-rebalance", "approval-limits"),
                    *("windows", "window", "new-window", "override-freeze"),
                    *("plan-maintenance", "extend-maintenance", "end-maintenance"),
                ),
            ),
            (_("Instances"), "instances", "instances", ("instance", "samples")),
            (_("Links"), "links", "links", ("link",)),
            (_("Findings"), "findings", "findings", ()),
            (
                *(_("Routers"), "routers", "routers"),
                (
                    *("router-adopt", "router-override", "router-cancel", "router-on-drift"),
                    *("gate-adopt", "gate-release", "router"),
                ),
            ),
            (_("Signals"), "signals", "signals", ()),
            (_("Onboarding"), "fleet-onboarding", "onboarding", ("onboarding",)),
            (
                *(_("Decisions"), "decisions", "decisions"),
                ("decision", "decisions-diff", "tick", "roll-back", "cancel-delivery"),
            ),
            (_("Planner"), "planner", "planner", ()),
            (
                *(_("Backtests"), "backtests", "backtests"),
                ("backtest", "start-backtest", "cancel-backtest"),
            ),
            (_("Request"), "request", "request", ()),
            (
                *(_("Jobs"), "jobs", "jobs"),
                ("job", "new-job", "profile-fits", "ask-profile-fit", "apply-profile-fit"),
            ),
            (_("Forecast"), "forecast", "forecast", ()),
            (
                *(_("Costs"), "costs", "costs"),
                ("cost-prices", "cost-make", "cost-value"),
            ),
        ]
    else:
        pages = [
            (_("Overview"), "overview", "overview", ()),
            (_("Onboarding"), "onboarding", "onboarding", ()),
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
    common: list[tuple[str, str, tuple[str, ...]]] = [
        (
            *(_("Alerts"), "alerts"),
            (
                *("incident", "silence", "alert-rules", "new-alert-rule", "alert-rule"),
                *("receivers", "new-receiver", "receiver"),
            ),
        ),
        (_("Audit"), "audit", ()),
        (_("Approvals"), "approvals", ("approval",)),
    ]
    if role.can_operate:
        common.append((_("Tokens"), "tokens", ("revoke-token", "rotate-token")))
    if role.administers_site:
        common.append((_("People"), "people", ("person", "new-person")))
        common.append((_("Document"), "document", ()))
    for label, name, also in common:
        shown.append(
            {
                "label": label,
                "icon": name,
                "url": reverse(name),
                "current": current in (name, *also),
                "count": counts.get(name),
            }
        )
    for page, letter in zip(shown, _letters([page["icon"] for page in shown]), strict=True):
        page["key"] = letter
    return _grouped(shown) if fleet else shown


_GROUPS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (
        _lazy("Watch"),
        (
            *("overview", "fleet", "instances", "links", "routers", "signals", "findings"),
            *("decisions", "alerts"),
        ),
    ),
    (_lazy("Change"), ("control", "approvals", "jobs")),
    (_lazy("Plan"), ("planner", "request", "backtests", "forecast", "costs")),
    (_lazy("Site"), ("onboarding", "audit", "tokens", "people", "document")),
)
"""Pages of the rail by what one comes for, by their icons; one that is in none comes last."""


def _grouped(pages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pages in the order of their groups; the first of each has its group's name."""
    place = {
        icon: (i, j) for i, (_name, icons) in enumerate(_GROUPS) for j, icon in enumerate(icons)
    }
    last = (len(_GROUPS) - 1, len(pages))
    found = sorted(pages, key=lambda page: place.get(page["icon"], last))
    named: set[int] = set()
    for page in found:
        group = place.get(page["icon"], last)[0]
        page["group"] = "" if group in named else _GROUPS[group][0]
        named.add(group)
    return found


def _letters(names: list[str]) -> list[str]:
    """A letter for each name, which is its icon's as no language changes that: the first letter
    where it is free, else a later one that begins no name, else any."""
    letters = dict.fromkeys(names, "")
    for name in names:
        if name[0] not in letters.values():
            letters[name] = name[0]
    for name in names:
        if not letters[name]:
            wanted = (*name, *ascii_lowercase)
            free = (c for c in wanted if c.isalpha() and c not in letters.values())
            letters[name] = next(free, "")
    return list(letters.values())


def _truth(facts: Facts, now: datetime) -> dict[str, Mark | None]:
    return {
        "loop": _loop_mark(facts.tick_at, now),
        "agents": _agents_mark(facts),
        "gates": _gates_mark(facts),
        "routers": _routers_mark(facts),
        "socket": Mark(*OFF, _("socket connecting")),
    }


def _loop_mark(at: datetime | None, now: datetime) -> Mark:
    if at is None:
        return Mark(*OFF, _("loop has not run yet"))
    age_s = (now - at).total_seconds()
    if age_s < -CLOCK_AHEAD_S:
        return Mark(*WARN, _("clock set back, last tick %s") % figures.clock(at))
    if age_s > loop_stale_s(settings.ENV["CONSOLE_TICK_S"]):
        return Mark(*WARN, _("loop silent since %s") % figures.clock(at))
    return Mark(*GOOD, _("loop %s") % figures.age(age_s))


def _agents_mark(facts: Facts) -> Mark:
    if not facts.n_agents:
        return Mark(*OFF, _("no agents"))
    tone = GOOD if facts.n_agents_fresh == facts.n_agents else WARN
    words = _("%(some)s/%(n)s agents fresh") % {
        "some": facts.n_agents_fresh,
        "n": facts.n_agents,
    }
    return Mark(*tone, words)


def _gates_mark(facts: Facts) -> Mark:
    if not facts.n_gates:
        return Mark(*OFF, _("no gates"))
    if facts.newest_plan is None:
        return Mark(*WARN, _("0/%(n)s gates run a plan") % {"n": facts.n_gates})
    tone = GOOD if facts.n_gates_on_it == facts.n_gates else WARN
    words = _("%(some)s/%(n)s gates on v%(version)s") % {
        "some": facts.n_gates_on_it,
        "n": facts.n_gates,
        "version": facts.newest_plan[1],
    }
    return Mark(*tone, words)


def _routers_mark(facts: Facts) -> Mark | None:
    """The worst that is known of routers of other makes, and of gates that a person overrode."""
    n = facts.n_overridden
    first = ""
    if n:
        text = ngettext("%(n)s gate overridden by hand", "%(n)s gates overridden by hand", n)
        first = text % {"n": n}
    for state, tone in _ROUTER_WORDS:
        if n := facts.routers.get(state):
            also = _router_words(state, n)
            return Mark(*(BAD if first else tone), ", ".join(filter(None, (first, also))))
    if first:
        return Mark(*BAD, first)
    if not facts.routers:
        return None
    n = sum(facts.routers.values())
    return Mark(
        *GOOD, ngettext("%(n)s router as desired", "%(n)s routers as desired", n) % {"n": n}
    )


def _router_words(state: str, n: int) -> str:
    words = {
        "drifted": ngettext("%(n)s router drifted", "%(n)s routers drifted", n),
        "unreachable": ngettext("%(n)s router unreachable", "%(n)s routers unreachable", n),
        "pending_restart": ngettext(
            "%(n)s router pending restart", "%(n)s routers pending restart", n
        ),
        "applying": ngettext("%(n)s router being changed", "%(n)s routers being changed", n),
    }
    return words[state] % {"n": n}
