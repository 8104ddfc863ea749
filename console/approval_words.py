"""What waits for a second person, in words: what it would do, why it waits, how it ended."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from console import figures, plans
from console.context import BAD, GOOD, OFF, WARN, Mark
from console.effects import Effect, Effects
from routing.approvals.limits import Beyond
from routing.approvals.models import Proposal

CHANGE_LABELS = {
    "activate": _lazy("Letting the loop do more (from paused to advisory or active)"),
    "always_remote": _lazy("Sending everything remote"),
    "policy": _lazy("Numbers of the loop"),
    "jobs": _lazy("Jobs"),
    "breakers": _lazy("Closing the breaker of a link by hand"),
    "routers": _lazy("What routers of other makes list"),
    "scenario": _lazy("What the fleet is made of"),
    "epoch": _lazy("A new plan epoch"),
    "maintenance": _lazy("Maintenance of a cluster or a link"),
}
_KINDS = {
    "activate": _lazy("it lets the loop do more than now"),
    "always_remote": _lazy("it sends everything remote"),
    "policy": _lazy("it changes numbers of the loop"),
    "jobs": _lazy("it changes what is done at a time"),
    "breakers": _lazy("it closes the breaker of a link by hand"),
    "routers": _lazy("it changes what a router lists"),
    "scenario": _lazy("it changes what the fleet is made of"),
    "epoch": _lazy("it starts a new plan epoch"),
    "maintenance": _lazy("it takes traffic away from a cluster or a link"),
    "approvals": _lazy("it lets one person do more alone"),
}
_TITLES = {
    "commands.create_fleet": _lazy("Change what the fleet is made of"),
    "commands.set_policy": _lazy("Change the policy"),
    "commands.place_hold": _lazy("Hold a plan"),
    "commands.extend_hold": _lazy("Extend a hold"),
    "commands.raise_epoch": _lazy("Start a new plan epoch"),
    "role_commands.move_roles": _lazy("Move roles"),
    "router_commands.adopt": _lazy("Adopt what a router lists"),
    "router_commands.override": _lazy("Override what a router lists"),
    "router_commands.set_on_drift": _lazy("Change what is done about drift"),
    "router_commands.adopt_gate": _lazy("Hold what was set on a gate"),
    "router_commands.roll_back": _lazy("Roll back to an earlier plan"),
    "link_breakers.reset": _lazy("Reset a breaker"),
    "jobs.put": _lazy("Keep a job"),
    "maintenance.plan": _lazy("Begin maintenance"),
    "maintenance.extend": _lazy("Extend maintenance"),
    "proposals.apply": _lazy("Put fitted profiles into the scenario"),
    "apply.apply": _lazy("Apply a document"),
    "limits_rows.put": _lazy("Change when a second person is needed"),
}
STATES = {
    "open": (WARN, _lazy("waits")),
    "done": (GOOD, _lazy("done")),
    "failed": (BAD, _lazy("could not be done")),
    "rejected": (BAD, _lazy("rejected")),
    "withdrawn": (OFF, _lazy("withdrawn")),
    "expired": (OFF, _lazy("ran out")),
}


def mark(row: Proposal, now: datetime) -> Mark:
    """The state of a proposal; one that ran out and was not swept yet counts as such."""
    state = "expired" if row.state == "open" and row.expires_at <= now else row.state
    tone, text = STATES[state]
    if row.broke_glass and row.state == "done":
        return Mark(*BAD, _("done alone, glass broken"))
    return Mark(*tone, str(text))


def title(row: Proposal) -> str:
    """What it would do, in a line."""
    said = str(_TITLES.get(row.command, row.command))
    what = "; ".join(_change_words(change) for change in row.changes[:3])
    return f"{said}: {what}" if what else said


def why(found: Iterable[Beyond]) -> list[str]:
    """Each limit that a change goes beyond."""
    return [_beyond_words(each) for each in found]


def asked_first(effects: Effects, found: Iterable[Beyond]) -> Effects:
    """What a change would do, and before all that confirming only proposes it."""
    said = why(found)
    if not said:
        return effects
    text = _(
        "%(why)s. Confirming changes nothing yet: it makes a proposal, which somebody else with "
        "the right to approve carries out or rejects."
    ) % {"why": "; ".join(said)}
    waits = Effect("warn", "warn", _("Needs approval:"), text)
    return Effects((waits, *effects.items), summary=effects.summary)


def _beyond_words(each: Beyond) -> str:
    if each.value is None or each.most is None:
        return str(_KINDS.get(each.limit, each.limit))
    if each.limit == "hold_s":
        return _("it holds for %(span)s, and one person may for %(most)s") % {
            "span": figures.duration(each.value),
            "most": figures.duration(each.most),
        }
    if each.limit == "share_moved":
        values = {"share": figures.percent(each.value), "most": figures.percent(each.most)}
        text = _(
            "it moves %(share)s of a cluster's instances at once, and one person may move %(most)s"
        )
        return text % values
    values = {"n": f"{each.value:.0f}", "most": f"{each.most:.0f}"}
    if each.limit == "instances_moved":
        return _("it moves %(n)s instances at once, and one person may move %(most)s") % values
    return _("%(n)s gates get another plan mode, and one person may change %(most)s") % values


def _change_words(change: dict[str, Any]) -> str:
    after, before = change["after"] or {}, change["before"] or {}
    match change["verb"]:
        case "hold.place":
            where = after["cluster"] or _("every PD cluster")
            return _("%(plan)s in %(where)s until %(until)s") % {
                "plan": plans.cluster_words(after),
                "where": where,
                "until": figures.stamp(after["expires_at_s"]),
            }
        case "hold.extend":
            return _("until %(until)s") % {"until": figures.stamp(after["expires_at_s"])}
        case "roles.move":
            roles = f"{before['n_prefill']}/{before['n_decode']}"
            return f"{change['target']}, {roles} → {after['n_prefill']}/{after['n_decode']}"
        case "policy.change":
            return _policy_words(before, after)
    return str(change["target"])


def _policy_words(before: dict[str, Any], after: dict[str, Any]) -> str:
    said = [] if before["mode"] == after["mode"] else [f"{before['mode']} → {after['mode']}"]
    names = before["knobs"].keys() | after["knobs"].keys()
    said += sorted(n for n in names if before["knobs"].get(n) != after["knobs"].get(n))
    return ", ".join(said)


def made(row: Proposal) -> str:
    """The address of what came of it; empty where there is no page of that."""
    result = row.result or {}
    try:
        if row.command == "role_commands.move_roles" and "hold" in result:
            return reverse("rebalance-asked", args=[row.fleet, result["hold"]])
        if "hold" in result or "holds" in result:
            return reverse("holds", args=[row.fleet])
        if "policy_version" in result:
            return reverse("policy", args=[row.fleet])
        if "job" in result:
            return reverse("jobs", args=[row.fleet])
    except NoReverseMatch:
        pass
    return ""
