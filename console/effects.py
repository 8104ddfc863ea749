"""Blast radius: what a change stops, what goes on, what it moves, said before it is confirmed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from console import figures
from console.context import STALE_AFTER_S
from console.link_states import probed_at
from console.plans import cluster_words, roles
from routing import commands, fleets, knobs
from routing.core.decide import decide
from routing.core.jsonable import from_jsonable
from routing.core.types import LinkMemory, Memory, Observation, Prediction, Verdict
from routing.models import Decision, Hold, Policy, Rebalance, RouterState, Tick

MODE_TITLES = {"active": "Activate the loop", "advisory": "Only advise", "paused": "Pause the loop"}
_AFTER = {
    "active": "The next tick may push a plan.",
    "advisory": "Gates keep the plan they run; what the loop would do is recorded as advice.",
    "paused": "Gates keep the plan they run; nothing is decided until the mode changes.",
}


@dataclass(frozen=True)
class Effect:
    tone: str
    icon: str
    label: str
    text: str


@dataclass(frozen=True)
class Effects:
    items: tuple[Effect, ...]
    summary: str = ""


def _stops(text: str) -> Effect:
    return Effect("bad", "bad", "Stops:", text)


def _goes_on(text: str) -> Effect:
    return Effect("good", "ok", "Goes on:", text)


def _moves(text: str) -> Effect:
    return Effect("warn", "warn", "Changes:", text)


def _undo(text: str) -> Effect:
    return Effect("", "wait", "Undo:", text)


def after(mode: str) -> str:
    """One sentence for after the switch."""
    return _AFTER[mode]


def of_mode(policy: Policy, wanted: str, now: datetime) -> Effects:
    """What switching to `wanted` stops and what it leaves alone."""
    gates = _gates_words(policy, now)
    going = _goes_on("measuring, charts and the record of every tick.")
    if wanted == "active":
        limits = knobs.effective(policy.knobs)
        tick = fleets.newest_tick(policy.fleet)
        says = f" The loop's last word: {tick.verdict['message']}" if tick else ""
        return Effects(
            (
                _moves(
                    f"from the next tick on the loop pushes plans to {gates}: t between "
                    f"{figures.tokens(limits['t_min_tokens'])} and "
                    f"{figures.tokens(limits['t_max_tokens'])}, at most "
                    f"×{figures.significant(limits['t_max_step_factor'])} a step and "
                    f"{limits['max_changes_per_hour']} changes an hour.{says}"
                ),
                going,
                _undo("pause it from the same menu; gates then keep what they run."),
            )
        )
    if wanted == "advisory":
        stops = "pushing plans, also for congestion or a link that is down."
        decides = _goes_on("deciding; what the loop would do is recorded as advice.")
    else:
        stops = "deciding and pushing, also for congestion or a link that is down. Holds wait."
        decides = going
    return Effects(
        (
            _stops(stops),
            _goes_on(f"{gates} route by {_plan_words(policy)} until somebody acts."),
            decides,
            _undo("activate it again from the same menu."),
        )
    )


def of_hold(policy: Policy, asked: dict[str, Any], now: datetime) -> Effects:
    """What holding a plan would move, by the model at the traffic of the last tick."""
    until = now + timedelta(seconds=asked["span_s"])
    where = asked["cluster"] or "every PD cluster"
    held = [asked["cluster"]] if asked["cluster"] else _pd_clusters(policy)
    items = [_moves(line) for line in _hold_moves(policy, dict.fromkeys(held, asked), now)]
    items += [
        _stops(
            f"deciding for {where} until {figures.stamp(until)}, also for congestion or a link "
            "that is down."
        ),
        _goes_on(_others_words(policy, asked["cluster"])),
        _undo("release the hold from the fleet page; the next tick is automatic again."),
    ]
    return Effects((*_not_now(policy, "the hold waits"), *items))


def of_roll_back(policy: Policy, decision: Decision, now: datetime) -> Effects:
    """What holding an earlier plan everywhere would move, and what of it does not come back."""
    wanted = decision.plan["clusters"]
    items = [_moves(line) for line in _hold_moves(policy, wanted, now)]
    running = fleets.newest_adopted(policy.fleet)
    runs = running.plan["clusters"] if running else {}
    for cluster, plan in wanted.items():
        if cluster in runs and roles(runs[cluster]) != roles(plan):
            text = (
                f"roles. {cluster} had {roles(plan)} in that plan and has {roles(runs[cluster])} "
                "now; no instance is moved back."
            )
            items.append(Effect("warn", "warn", "Not part of it:", text))
    items += [
        _stops(
            f"choosing t and moving roles for {', '.join(wanted)} until the hold ends, also for "
            "congestion or a link that is down."
        ),
        _goes_on("measuring, charts and the record of every tick."),
        _undo(
            "release the hold from the fleet page, or let it run out: from the next tick on the "
            "loop is automatic again."
        ),
    ]
    return Effects((*_not_now(policy, "the plan waits"), *items))


def of_delivery_cancel(decision: Decision, router: RouterState | None, name: str) -> Effects:
    """What it means that nobody waits for a router to run `decision` any more."""
    goes_on = f"{name} is not known any more."
    if router is not None:
        runs = "no plan, everything local"
        if router.version_running is not None:
            runs = f"v{router.version_running}"
        goes_on = (
            f"{name}, last heard of at {figures.clock(router.last_seen_at)}, routes by {runs} "
            "for as long as it lives."
        )
    return Effects(
        (
            _moves(f"v{decision.version} counts as cancelled for {name}, with your reason."),
            _goes_on(goes_on),
            _goes_on(f"when {name} is back it is sent the newest plan, and that only."),
            _undo("nothing to undo: once it says it runs the plan, that is recorded."),
        )
    )


def of_rebalance_cancel(row: Rebalance) -> Effects:
    """What is put back when a move of roles is given up, and what stays as it is."""
    items = [_stops(f"moving instances of {row.cluster} towards {_target(row)}.")]
    for move in row.moves.order_by("seq"):
        name = move.instance.split("/", 1)[1]
        if move.step == "planned":
            items.append(_goes_on(f"{name} stays {move.from_role}: its move has not begun."))
        elif move.step == "done":
            items.append(_goes_on(f"{name} stays {move.to_role}: it has moved."))
        elif move.step == "uncordon":
            text = f"{name} has its new role, {move.to_role}, and is opened with it."
            items.append(_goes_on(text))
        elif move.step not in ("restore", "restored"):
            on_it = f", with {move.requests} requests on it" if move.requests else ""
            back = f"is put back: {move.from_role} again, and it takes requests again."
            if move.step == "verify":
                back = f"goes back to {move.from_role} if it is idle, else stays {move.to_role}."
            items.append(_moves(f"{name} (step {move.step}{on_it}) {back}"))
    items += [
        _goes_on("requests: none is cut off. The plan itself, with t, stays in force."),
        _undo(
            "the loop may ask for these roles again after its rest; set roles_mode to fixed in the "
            "policy to keep them."
        ),
    ]
    return Effects(tuple(items))


def of_breaker_reset(name: str, memory: LinkMemory | None) -> Effects:
    """What closing a breaker lets through at once, and what goes on watching it."""
    probe = "It is half open now: without a reset the probe alone decides."
    if memory is not None and memory.breaker == "open":
        at = figures.clock(probed_at(memory))
        probe = f"Without a reset a few requests probe it from {at} on, and close it if they pass."
    return Effects(
        (
            _moves(
                f"from the next tick on {name} is used again for all that the plan sends over it. "
                f"{probe}"
            ),
            _moves("that it ever opened is forgotten: its waits do not double from here on."),
            _goes_on("counting transfers; too many that fail open it again in the same tick."),
            _undo("nothing to undo by hand: hold everything local to keep the link unused."),
        )
    )


def _target(row: Rebalance) -> str:
    return f"{row.to_n_prefill} prefill and {row.to_n_decode} decode"


def _not_now(policy: Policy, waits: str) -> tuple[Effect, ...]:
    if policy.mode == "active":
        return ()
    text = f"the fleet is {policy.mode}, so {waits} until it is active."
    return (Effect("warn", "warn", "Not now:", text),)


def of_release(hold: Hold, now: datetime) -> Effects:
    """What ending a hold gives back to the loop."""
    where = hold.cluster or "every PD cluster"
    policy = Policy.objects.select_related("fleet").get(fleet_id=hold.fleet_id)
    verdict = _verdict(policy, [h for h in commands.open_holds(policy.fleet, now) if h != hold])
    wants = ""
    if verdict is not None and verdict.best_plan:
        best = (dataclasses.asdict(plan) for plan in verdict.best_plan.values())
        wants = f" The model's best now: {', '.join(cluster_words(plan) for plan in best)}."
    return Effects(
        (
            _moves(f"the loop decides for {where} again from the next tick on.{wants}"),
            _goes_on("the held plan stays in force until the loop changes it."),
            _undo("hold it again."),
        ),
        summary=f"The loop decides for {where} again from the next tick on.",
    )


def _hold_moves(policy: Policy, wanted: dict[str, dict[str, Any]], now: datetime) -> list[str]:
    """What holding `wanted` (cluster -> mode and t) changes, and what the model expects of it."""
    running = fleets.newest_adopted(policy.fleet)
    runs = running.plan["clusters"] if running else {}
    lines = []
    for cluster, asked in wanted.items():
        words = cluster_words(asked)
        if cluster not in runs:
            lines.append(f"{cluster}'s first plan is {words}; gates send all local until then.")
            continue
        before = cluster_words(runs[cluster])
        lines.append(
            f"{cluster} keeps {words}, what it runs now."
            if before == words
            else f"{cluster} goes from {before} to {words} with the next tick."
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
        lines.append("what that does to capacity is unknown: no tick measured demand and lengths.")
    else:
        lines.append(_figures_words(verdict.current, verdict.adopted or verdict.current))
    return lines


def _figures_words(now: Prediction, then: Prediction) -> str:
    links = ", ".join(
        f"link {name.replace('->', ' → ')} {figures.gbps(now.link_gbps.get(name))} → "
        f"{figures.gbps(gbps)}"
        for name, gbps in then.link_gbps.items()
    )
    demand = now.lambda_max_rps / now.headroom if now.headroom else None
    over = demand is not None and then.lambda_max_rps < demand
    queues = " That is more than it would carry: requests would queue without end." if over else ""
    return (
        f"remote share {figures.percent(now.remote_fraction)} → "
        f"{figures.percent(then.remote_fraction)}, {links + ', ' if links else ''}capacity "
        f"{figures.rate(now.lambda_max_rps)} → {figures.rate(then.lambda_max_rps)}; demand now "
        f"{figures.rate(demand)}.{queues}"
    )


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
        return f"measuring everywhere, and deciding for {', '.join(others)}."
    return "measuring, charts and the record of every tick."


def _gates_words(policy: Policy, now: datetime) -> str:
    heard = now - timedelta(seconds=STALE_AFTER_S)
    n = RouterState.objects.filter(fleet=policy.fleet, last_seen_at__gte=heard).count()
    return "the 1 gate now connected" if n == 1 else f"the {n} gates now connected"


def _plan_words(policy: Policy) -> str:
    running = fleets.newest_adopted(policy.fleet)
    if running is None:
        return "no plan, everything local,"
    plans = ", ".join(
        f"{cluster_words(plan)} in {name}" for name, plan in running.plan["clusters"].items()
    )
    return f"v{running.version} ({plans})"
