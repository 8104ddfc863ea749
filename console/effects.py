"""Blast radius: what a change stops, what goes on, what it moves, said before it is confirmed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Q
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from django.utils.translation import ngettext

from console import figures
from console.context import STALE_AFTER_S
from console.plans import cluster_words, hold_words, roles
from routing import commands, delivery, fleets, knobs, rebalance
from routing.core.decide import decide
from routing.core.jsonable import from_jsonable
from routing.core.types import Memory, Observation, Prediction, Verdict
from routing.models import Decision, Hold, Policy, Rebalance, RouterState, Tick

MODE_TITLES = {
    "active": _lazy("Activate the loop"),
    "advisory": _lazy("Only advise"),
    "paused": _lazy("Pause the loop"),
}
_AFTER = {
    "active": _lazy("The next tick may push a plan."),
    "advisory": _lazy(
        "Gates keep the plan they run; what the loop would do is recorded as advice."
    ),
    "paused": _lazy("Gates keep the plan they run; nothing is decided until the mode changes."),
}


@dataclass(frozen=True)
class Effect:
    tone: str
    icon: str
    label: str
    text: str

    @classmethod
    def stops(cls, text: str) -> Effect:
        return cls("bad", "bad", _("Stops:"), text)

    @classmethod
    def goes_on(cls, text: str) -> Effect:
        return cls("good", "ok", _("Goes on:"), text)

    @classmethod
    def changes(cls, text: str) -> Effect:
        return cls("warn", "warn", _("Changes:"), text)

    @classmethod
    def undo(cls, text: str) -> Effect:
        return cls("", "wait", _("Undo:"), text)


@dataclass(frozen=True)
class Effects:
    items: tuple[Effect, ...]
    summary: str = ""


def after(mode: str) -> str:
    """One sentence for after the switch."""
    return str(_AFTER[mode])


def of_mode(policy: Policy, wanted: str, n_gates: int, now: datetime) -> Effects:
    """What switching to `wanted` stops and what it leaves alone."""
    gates = ngettext("the %(n)s gate now connected", "the %(n)s gates now connected", n_gates) % {
        "n": n_gates
    }
    going = Effect.goes_on(_("measuring, charts and the record of every tick."))
    if wanted == "active":
        limits = knobs.effective(policy.knobs)
        tick = fleets.newest_tick(policy.fleet)
        says = ""
        if tick:
            says = " " + _("The loop's last word: %(message)s") % {
                "message": tick.verdict["message"]
            }
        return Effects(
            (
                Effect.changes(
                    _(
                        "from the next tick on the loop pushes plans to "
                        "%(gates)s: t between %(t_min_tokens)s and "
                        "%(t_max_tokens)s, at most ×%(t_max_step_factor)s a step "
                        "and %(max_changes_per_hour)s changes an hour.%(says)s"
                    )
                    % {
                        "gates": gates,
                        "t_min_tokens": figures.tokens(limits["t_min_tokens"]),
                        "t_max_tokens": figures.tokens(limits["t_max_tokens"]),
                        "t_max_step_factor": figures.significant(limits["t_max_step_factor"]),
                        "max_changes_per_hour": limits["max_changes_per_hour"],
                        "says": says,
                    }
                ),
                going,
                Effect.undo(_("pause it from the same menu; gates then keep what they run.")),
            )
        )
    running = fleets.newest_adopted(policy.fleet)
    if wanted == "advisory":
        stops = _("pushing plans, also for congestion or a link that is down.")
        decides = Effect.goes_on(_("deciding; what the loop would do is recorded as advice."))
    else:
        stops = _("deciding and pushing, also for congestion or a link that is down. Holds wait.")
        decides = going
    return Effects(
        (
            Effect.stops(stops),
            Effect.goes_on(
                _("%(gates)s route by %(policy)s until somebody acts.")
                % {"gates": gates, "policy": _plan_words(running)}
            ),
            decides,
            *_under_way(policy, running, now),
            Effect.undo(_("activate it again from the same menu, or by the link that shows then.")),
        )
    )


LARGE_GATES, LARGE_CLUSTERS = 10, 3
"""From so many on a switch is confirmed by typing the fleet's name."""


def is_large(policy: Policy, n_gates: int) -> bool:
    """Whether a switch of mode reaches so much that a slip of the hand must not do it."""
    return n_gates >= LARGE_GATES or len(_pd_clusters(policy)) >= LARGE_CLUSTERS


def _under_way(policy: Policy, newest: Decision | None, now: datetime) -> list[Effect]:
    """What was begun and is not over: a mode stops none of it."""
    items = []
    waits = (
        0 if newest is None else newest.deliveries.filter(state__in=delivery.CANCELLABLE).count()
    )
    if newest is not None and waits:
        text = ngettext(
            "delivering v%(version)s: %(n)s router has not said yet that it runs there.",
            "delivering v%(version)s: %(n)s routers have not said yet that it runs there.",
            waits,
        ) % {"version": newest.version, "n": waits}
        items.append(Effect("warn", "wait", _("Pending:"), text))
    moving = Rebalance.objects.filter(fleet=policy.fleet, state__in=rebalance.ACTIVE)
    moving = moving.annotate(n_done=Count("moves", filter=Q(moves__step="done")))
    for row in moving.order_by("cluster"):
        n_wanted = abs(row.to_n_prefill - row.from_n_prefill)
        text = _(
            "moving %(cluster)s to %(row)s, %(n_done)s of %(n_wanted)s "
            "moved: it is carried to its end. Cancel it on its own page."
        ) % {
            "cluster": row.cluster,
            "row": roles_wanted(row),
            "n_done": row.n_done,
            "n_wanted": n_wanted,
        }
        items.append(Effect("warn", "wait", _("Pending:"), text))
    for hold in commands.open_holds(policy.fleet, now):
        where = hold.cluster or _("every PD cluster")
        text = _(
            "%(owner)s's hold of %(hold)s in %(where)s, until "
            "%(expires_at)s: what gates run stays, and its time runs."
        ) % {
            "owner": hold.owner,
            "hold": hold_words(hold),
            "where": where,
            "expires_at": figures.stamp(hold.expires_at),
        }
        items.append(Effect("warn", "wait", _("Pending:"), text))
    return items


def of_hold(policy: Policy, asked: dict[str, Any], until: datetime, now: datetime) -> Effects:
    """What holding a plan would move, by the model at the traffic of the last tick."""
    where = asked["cluster"] or _("every PD cluster")
    held = [asked["cluster"]] if asked["cluster"] else _pd_clusters(policy)
    items = [Effect.changes(line) for line in _hold_moves(policy, dict.fromkeys(held, asked), now)]
    items += [
        Effect.stops(
            _("deciding for %(where)s until %(until)s, also for congestion or a link that is down.")
            % {"where": where, "until": figures.stamp(until)}
        ),
        Effect.goes_on(_others_words(policy, asked["cluster"])),
        Effect.undo(_("release the hold from the fleet page; the next tick is automatic again.")),
    ]
    return Effects((*what_waits(policy), *items))


def of_all_local(policy: Policy, clusters: Sequence[str], now: datetime) -> tuple[Effect, ...]:
    """What prefilling everything of these PD clusters locally would move, by the same model."""
    asked = {"mode": "always_local", "threshold_tokens": None}
    lines = _hold_moves(policy, dict.fromkeys(clusters, asked), now) if clusters else []
    return tuple(Effect.changes(line) for line in lines)


def of_roll_back(policy: Policy, decision: Decision, now: datetime) -> Effects:
    """What holding an earlier plan everywhere would move, and what of it does not come back."""
    wanted = decision.plan["clusters"]
    items = [Effect.changes(line) for line in _hold_moves(policy, wanted, now)]
    running = fleets.newest_adopted(policy.fleet)
    runs = running.plan["clusters"] if running else {}
    for cluster, plan in wanted.items():
        if cluster in runs and roles(runs[cluster]) != roles(plan):
            text = _(
                "roles. %(cluster)s had %(plan)s in that plan and has "
                "%(roles)s now; no instance is moved back."
            ) % {"cluster": cluster, "plan": roles(plan), "roles": roles(runs[cluster])}
            items.append(Effect("warn", "warn", _("Not part of it:"), text))
    items += [
        Effect.stops(
            _(
                "choosing t and moving roles for %(wanted)s until the hold ends, "
                "also for congestion or a link that is down."
            )
            % {"wanted": ", ".join(wanted)}
        ),
        Effect.goes_on(_("measuring, charts and the record of every tick.")),
        Effect.undo(
            _(
                "release the hold from the fleet page, or let it run out: from "
                "the next tick on the loop is automatic again."
            )
        ),
    ]
    return Effects((*_not_now(policy, _("the plan waits")), *items))


def roles_wanted(row: Rebalance) -> str:
    return _("%(to_n_prefill)s prefill and %(to_n_decode)s decode") % {
        "to_n_prefill": row.to_n_prefill,
        "to_n_decode": row.to_n_decode,
    }


def what_waits(policy: Policy) -> tuple[Effect, ...]:
    """That a hold waits, where the fleet is not active."""
    return _not_now(policy, _("the hold waits"))


def _not_now(policy: Policy, waits: str) -> tuple[Effect, ...]:
    if policy.mode == "active":
        return ()
    text = _("the fleet is %(mode)s, so %(waits)s until it is active.") % {
        "mode": policy.mode,
        "waits": waits,
    }
    return (Effect("warn", "warn", _("Not now:"), text),)


def of_release(hold: Hold, now: datetime) -> Effects:
    """What ending a hold gives back to the loop."""
    where = hold.cluster or _("every PD cluster")
    if not hold.mode:
        return _of_role_release(hold)
    policy = Policy.objects.select_related("fleet").get(fleet_id=hold.fleet_id)
    verdict = _verdict(policy, [h for h in commands.open_holds(policy.fleet, now) if h != hold])
    wants = ""
    if verdict is not None and verdict.best_plan:
        best = (dataclasses.asdict(plan) for plan in verdict.best_plan.values())
        wants = " " + _("The model's best now: %(plans)s.") % {
            "plans": ", ".join(cluster_words(plan) for plan in best)
        }
    return Effects(
        (
            Effect.changes(
                _("the loop decides for %(where)s again from the next tick on.%(wants)s")
                % {"where": where, "wants": wants}
            ),
            Effect.goes_on(_("the held plan stays in force until the loop changes it.")),
            Effect.undo(_("hold it again.")),
        ),
        summary=_("The loop decides for %(where)s again from the next tick on.") % {"where": where},
    )


def _of_role_release(hold: Hold) -> Effects:
    summary = _("The roles of %(cluster)s are the loop's again from the next tick on.") % {
        "cluster": hold.cluster
    }
    items = [
        Effect.changes(
            _(
                "the roles of %(cluster)s are the loop's again from the next "
                "tick on: it may move instances back once that is worth it for "
                "long enough."
            )
            % {"cluster": hold.cluster}
        ),
        Effect.goes_on(_("the roles there are, until the loop asks for others; t all the while.")),
        Effect.undo(_("ask for the roles again.")),
    ]
    moving = hold.rebalances.filter(state__in=rebalance.ACTIVE).first()
    if moving is not None:
        text = _("moving %(cluster)s to %(moving)s: cancel that on its own page.") % {
            "cluster": moving.cluster,
            "moving": roles_wanted(moving),
        }
        items.insert(1, Effect.goes_on(text))
    return Effects(tuple(items), summary=summary)


def _hold_moves(policy: Policy, wanted: dict[str, dict[str, Any]], now: datetime) -> list[str]:
    """What holding `wanted` (cluster -> mode and t) changes, and what the model expects of it."""
    running = fleets.newest_adopted(policy.fleet)
    runs = running.plan["clusters"] if running else {}
    lines = []
    for cluster, asked in wanted.items():
        words = cluster_words(asked)
        if cluster not in runs:
            lines.append(
                _("%(cluster)s's first plan is %(words)s; gates send all local until then.")
                % {"cluster": cluster, "words": words}
            )
            continue
        before = cluster_words(runs[cluster])
        lines.append(
            _("%(cluster)s keeps %(words)s, what it runs now.")
            % {"cluster": cluster, "words": words}
            if before == words
            else _("%(cluster)s goes from %(before)s to %(words)s with the next tick.")
            % {"cluster": cluster, "before": before, "words": words}
        )
    held = [
        Hold(
            fleet=policy.fleet,
            cluster=cluster,
            mode=asked["mode"],
            threshold_tokens=asked["threshold_tokens"],
            owner="",
            reason="",
            expires_at=now + commands.MAX_HOLD,
        )
        for cluster, asked in wanted.items()
    ]
    verdict = _verdict(policy, held)
    if verdict is None or verdict.current is None:
        lines.append(
            _("what that does to capacity is unknown: no tick measured demand and lengths.")
        )
    else:
        lines.append(_figures_words(verdict.current, verdict.adopted or verdict.current))
    return lines


def _figures_words(now: Prediction, then: Prediction) -> str:
    links = ", ".join(
        _("link %(replace)s %(gbps)s → %(gbps2)s")
        % {
            "replace": name.replace("->", " → "),
            "gbps": figures.gbps(now.link_gbps.get(name)),
            "gbps2": figures.gbps(gbps),
        }
        for name, gbps in then.link_gbps.items()
    )
    demand = now.lambda_max_rps / now.headroom if now.headroom else None
    over = demand is not None and then.lambda_max_rps < demand
    share = _("remote share %(before)s → %(after)s") % {
        "before": figures.percent(now.remote_fraction),
        "after": figures.percent(then.remote_fraction),
    }
    capacity = _("capacity %(before)s → %(after)s; demand now %(demand)s.") % {
        "before": figures.rate(now.lambda_max_rps),
        "after": figures.rate(then.lambda_max_rps),
        "demand": figures.rate(demand),
    }
    words = ", ".join(part for part in (share, links, capacity) if part)
    if over:
        words += " " + _("That is more than it would carry: requests would queue without end.")
    return words


def _verdict(policy: Policy, holds: list[Hold]) -> Verdict | None:
    """What the loop would say of the last tick's traffic under `holds`; None without a tick.

    Without its memory: what a plan does is asked, not whether the loop may change it again so soon.
    """
    tick: Tick | None = fleets.newest_tick(policy.fleet)
    running = fleets.newest_adopted(policy.fleet)
    if tick is None or running is None:
        return None
    params = dataclasses.replace(fleets.params_of(policy, holds), mode="active")
    return decide(
        from_jsonable(Observation, tick.observed),
        fleets.plan_of(running),
        Memory(),
        params,
        fleets.scenario_of(policy.fleet),
    )


def _pd_clusters(policy: Policy) -> list[str]:
    return [c.name for c in fleets.scenario_of(policy.fleet).clusters if c.kind == "pd"]


def _others_words(policy: Policy, cluster: str) -> str:
    others = [name for name in _pd_clusters(policy) if cluster and name != cluster]
    if others:
        return _("measuring everywhere, and deciding for %(others)s.") % {
            "others": ", ".join(others)
        }
    return _("measuring, charts and the record of every tick.")


def n_gates(policy: Policy, now: datetime) -> int:
    """Gates that were heard of lately."""
    heard = now - timedelta(seconds=STALE_AFTER_S)
    return RouterState.objects.filter(fleet=policy.fleet, last_seen_at__gte=heard).count()


def _plan_words(running: Decision | None) -> str:
    if running is None:
        return _("no plan, everything local,")
    plans = ", ".join(
        _("%(plan)s in %(name)s") % {"plan": cluster_words(plan), "name": name}
        for name, plan in running.plan["clusters"].items()
    )
    return f"v{running.version} ({plans})"
