"""What other numbers would have the loop do now: a dry run on what the newest tick saw."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _

from console import figures
from console.core_words import reason_words
from console.effects import Effect, Effects
from console.plans import cluster_words, roles
from routing import commands, fleets
from routing.core.decide import decide
from routing.core.jsonable import from_jsonable
from routing.core.types import Memory, Observation, Verdict
from routing.models import Hold, Policy

_MOST_NAMED = 4


@dataclasses.dataclass(frozen=True)
class DryRun:
    """What the loop says of one moment: in its next tick, with what it remembers, and of what its
    dampers would let through in the end."""

    next: Verdict
    aim: Verdict


def of_knobs(policy: Policy, wanted: Mapping[str, Any], now: datetime) -> Effects:
    """What the loop would decide now with the `wanted` numbers, beside what it decides with those
    it has."""
    holds = commands.open_holds(policy.fleet, now)
    before, after = (dry_run(policy, knobs, holds) for knobs in (policy.knobs, dict(wanted)))
    if before is None or after is None:
        unknown = _("what the loop would decide with them is unknown: no tick has run yet.")
        return Effects((Effect.changes(unknown), *_always(policy)))
    items = [Effect.changes(_next_words(before.next, after.next))]
    if policy.mode != "active":
        waits = _("the fleet is %(mode)s, so no plan is pushed until it is active.")
        items.insert(0, Effect("warn", "warn", _("Not now:"), waits % {"mode": policy.mode}))
    items.append(Effect.changes(_aim_words(before.aim, after.aim)))
    return Effects((*items, *_always(policy)))


def _always(policy: Policy) -> tuple[Effect, ...]:
    return (
        Effect.goes_on(
            _("the plan in force, until a tick decides for another; holds keep what they pin.")
        ),
        Effect.undo(
            _("go back to v%(version)s in the history: its numbers in one step.")
            % {"version": policy.version}
        ),
    )


def dry_run(policy: Policy, knobs: dict[str, Any], holds: list[Hold]) -> DryRun | None:
    """None without a tick or a plan. Nothing of it is written."""
    tick, running = fleets.newest_tick(policy.fleet), fleets.newest_adopted(policy.fleet)
    if tick is None or running is None:
        return None
    asked = Policy(fleet=policy.fleet, mode="active", knobs=knobs)
    params = fleets.params_of(asked, holds)
    seen = from_jsonable(Observation, tick.observed)
    # Past the rest between two pushes: else the answer could only be that it is too soon.
    seen = dataclasses.replace(seen, now_s=seen.now_s + params.push_min_interval_s)
    given = (fleets.plan_of(running),)
    scenario = fleets.scenario_of(policy.fleet)
    at_once = dataclasses.replace(
        params, t_gain_hold_s=0.0, t_dwell_s=0.0, roles_gain_hold_s=0.0, roles_dwell_s=0.0
    )
    return DryRun(
        next=decide(seen, *given, fleets.memory_after(tick), params, scenario),
        aim=decide(seen, *given, Memory(), at_once, scenario),
    )


def _next_words(before: Verdict, after: Verdict) -> str:
    if (before.action, before.reason, before.plan.clusters) == (
        after.action,
        after.reason,
        after.plan.clusters,
    ):
        text = _("nothing in the next tick: on the last readings it says %(said)s either way.")
        return text % {"said": reason_words(after.reason)}
    text = _(
        "in the next tick, on the last readings: %(after)s. With the present numbers: %(before)s."
    )
    return text % {"after": _said(after), "before": _said(before)}


def _said(verdict: Verdict) -> str:
    return f"{reason_words(verdict.reason)}, {verdict.message.rstrip('.')}"


def _aim_words(before: Verdict, after: Verdict) -> str:
    """Where each goes once dampers allow it."""
    text = _(
        "Where it goes once dampers allow it: %(after)s; with the present numbers: %(before)s."
    )
    if _plans(before) == _plans(after):
        text = _("Where it goes once dampers allow it is the same: %(after)s.")
    return text % {"after": _plans(after), "before": _plans(before)}


def _plans(verdict: Verdict) -> str:
    """`pd t 19.8K tok, 3/5, capacity 3.16 req/s`."""
    clusters = list(verdict.plan.clusters.items())
    words = [
        f"{name} {cluster_words(dataclasses.asdict(plan))}, {roles(dataclasses.asdict(plan))}"
        for name, plan in clusters[:_MOST_NAMED]
    ]
    if len(clusters) > _MOST_NAMED:
        words.append(_("and %(n)s more") % {"n": len(clusters) - _MOST_NAMED})
    expected = verdict.adopted or verdict.current
    if expected is not None:
        words.append(_("capacity %(rate)s") % {"rate": figures.rate(expected.lambda_max_rps)})
    return ", ".join(words)
