"""One pass of the loop: observe, decide, remember, announce. The only writer of Tick and Decision.

`run_tick` is safe to call twice, late, or from two workers at once: passes of one fleet follow each
other on its row's lock, and (fleet, seq) with seq = floor(now / interval) lets one of them write.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import time
from functools import partial
from typing import Any

from django.db import transaction

from routing import (
    announce,
    commands,
    delivery,
    effect_checks,
    fleets,
    link_breakers,
    managed,
    rebalance,
    role_commands,
)
from routing.core.decide import decide
from routing.core.jsonable import to_jsonable
from routing.core.links import transport
from routing.core.relief import band_of
from routing.core.scenario.document import Scenario
from routing.core.types import (
    ClusterPlan,
    LinkMemory,
    Memory,
    Observation,
    Params,
    Plan,
    RoleChange,
    Verdict,
)
from routing.models import Decision, Fleet, Policy, Rebalance, Tick
from routing.observe import observe
from routing.windows.in_force import with_windows

SAME_ADVICE_RATIO = 0.05
"""Advised thresholds this close are one piece of advice, recorded once."""
SET_BACK = datetime.timedelta(seconds=60)
"""A newest tick this far in the future was written before the clock was set back."""
ADVICE_LASTS = datetime.timedelta(hours=1)
ADVISES_EACH_S = 10.0
"""While somebody holds the plan: to decide once more each tick would cost as much as to decide."""
_ADVICE_EXACT = ("mode", "n_prefill", "n_decode", "cache_mode", "max_remote_in_flight")


def run_tick(fleet_name: str, *, now: datetime.datetime, tick_s: float) -> Tick | None:
    """The tick of the interval that holds `now`, or None if somebody else has written it."""
    started_s = time.perf_counter()
    # Readings are read before the transaction, which would hold their tables until its end: who
    # adds or drops a partition waits for that, and every batch that lands waits behind.
    fleet = Fleet.objects.get(pk=fleet_name)
    newest = fleets.newest_tick(fleet)
    if _next_seq(newest, now, tick_s) is None:
        return None
    seen_with = (fleet.scenario, newest)
    seen = _seen(fleet, newest, now)
    with transaction.atomic():
        # NO KEY: acks insert rows that refer to the fleet, and must not wait for a tick.
        fleet = Fleet.objects.select_for_update(no_key=True).get(pk=fleet_name)
        newest = fleets.newest_tick(fleet)
        seq = _next_seq(newest, now, tick_s)
        if seq is None:
            return None
        if (fleet.scenario, newest) != seen_with:
            seen = _seen(fleet, newest, now)
        commands.expire_holds(fleet=fleet, now=now)
        role_commands.end_spent(fleet=fleet, now=now)
        policy = Policy.objects.get(fleet=fleet)
        scenario = fleets.scenario_of(fleet)
        memory = fleets.memory_after(newest)
        observation = link_breakers.with_resets(_with_role_changes(seen, fleet), fleet)
        observation = _with_labels(observation, managed.label_roles(fleet, now))
        observation = with_windows(observation, fleet.pk, scenario, now)
        running = fleets.newest_adopted(fleet)
        verdict = _verdict(fleet, policy, scenario, observation, running, memory, now)
        tick = Tick.objects.create(
            fleet=fleet,
            seq=seq,
            at=now,
            observed=to_jsonable(observation),
            verdict=to_jsonable(verdict),
            mode=policy.mode,
            action=verdict.action,
            reason=verdict.reason,
            duration_ms=1000.0 * (time.perf_counter() - started_s),
        )
        decision = _record(fleet, policy, tick, verdict, running, now)
        if decision is None and running is not None:
            decision = _advised_while_held(policy, tick, observation, running, memory, newest)
        if decision is not None and decision.version is not None:
            _open_rebalances(policy, decision, verdict.plan, observation, now)
        in_force = decision if decision is not None and decision.version is not None else running
        for message in _messages(fleet, tick, decision, in_force):
            transaction.on_commit(partial(announce.publish, message))
    return tick


def _seen(fleet: Fleet, newest: Tick | None, now: datetime.datetime) -> Observation:
    return observe(
        fleet.pk,
        fleets.scenario_of(fleet),
        at_s=now.timestamp(),
        lengths_since_s=fleets.memory_after(newest).lengths_since_s,
    )


def _next_seq(newest: Tick | None, now: datetime.datetime, tick_s: float) -> int | None:
    """The number of this interval's tick, None when it is written.

    It only rises. A worker that waited for the lock may come with an earlier `now`: its interval is
    over. Much earlier is a clock that was set back: ticks go on behind the newest, one an interval.
    """
    interval = math.floor(now.timestamp() / tick_s)
    if newest is None:
        return interval
    behind = newest.at - now
    if interval == math.floor(newest.at.timestamp() / tick_s):
        return None
    if datetime.timedelta() < behind < SET_BACK:
        return None
    return max(interval, newest.seq + 1)


def prune_ticks(before: datetime.datetime) -> int:
    """Delete ticks older than `before` that carry no decision; how many."""
    deleted, _ = Tick.objects.filter(at__lt=before, decision=None).delete()
    return deleted


def _verdict(
    fleet: Fleet,
    policy: Policy,
    scenario: Scenario,
    observation: Observation,
    running: Decision | None,
    memory: Memory,
    now: datetime.datetime,
) -> Verdict:
    holds = commands.open_holds(fleet, now)
    params = fleets.params_of(policy, holds)
    earlier = running or fleets.newest_of_any_epoch(fleet)
    if running is None and policy.mode == "active":
        first = _first_plan(fleet, scenario, observation, earlier, params)
        if first is not None:
            reason, message, plan = first
            return Verdict(
                action="adopt",
                reason=reason,
                message=message,
                plan=plan,
                memory=dataclasses.replace(memory, last_change_s=now.timestamp()),
            )
    plan = fleets.plan_of(earlier) if earlier else always_local(fleet, scenario, observation)
    return decide(observation, plan, memory, params, scenario)


def _first_plan(
    fleet: Fleet,
    scenario: Scenario,
    observation: Observation,
    earlier: Decision | None,
    params: Params,
) -> tuple[str, str, Plan] | None:
    """The first plan of an epoch: what ran in the last one, else what the scenario starts with.

    None where neither says anything, or a person already holds the plan: then `decide` speaks.
    """
    if earlier is not None:
        plan = dataclasses.replace(fleets.plan_of(earlier), epoch=fleet.epoch, version=1)
        sentence = f"Plan {earlier.epoch}.{earlier.version} is issued again under a raised epoch."
        return "EpochRaised", sentence, plan
    if params.holds or not any(c.start for c in scenario.clusters if c.kind == "pd"):
        return None
    base = always_local(fleet, scenario, observation)
    clusters = dict(base.clusters)
    for cluster in scenario.clusters:
        if cluster.kind == "pd" and cluster.start is not None:
            threshold = cluster.start.threshold_tokens
            started = dataclasses.replace(
                clusters[cluster.name],
                mode="always_local" if threshold is None else "threshold",
                threshold_tokens=threshold,
                transport=transport.described(scenario, cluster.name),
            )
            band = band_of(started, params.band_ratio)
            clusters[cluster.name] = dataclasses.replace(started, band=band)
    plan = dataclasses.replace(base, version=1, clusters=clusters)
    return "Initial", "The first plan is the one the fleet's scenario starts with.", plan


def always_local(fleet: Fleet, scenario: Scenario, observation: Observation) -> Plan:
    """What gates run that never had a plan: version 0, everything local, roles as they are."""
    clusters = {}
    for cluster in scenario.clusters:
        if cluster.kind != "pd":
            continue
        seen = observation.pd[cluster.name]
        n_prefill, n_decode = seen.n_prefill, seen.n_decode
        # What all engines say they run comes before what the scenario starts with.
        if cluster.start is not None and n_prefill + n_decode != cluster.instances:
            n_prefill = cluster.start.n_prefill
            n_decode = cluster.instances - n_prefill
        sources = [link.source for link in scenario.links if link.target == cluster.name]
        clusters[cluster.name] = ClusterPlan(
            mode="always_local",
            threshold_tokens=None,
            n_prefill=n_prefill,
            n_decode=n_decode,
            remote={source: 1.0 / len(sources) for source in sources},
        )
    return Plan(fleet=fleet.pk, epoch=fleet.epoch, version=0, clusters=clusters)


def _record(
    fleet: Fleet,
    policy: Policy,
    tick: Tick,
    verdict: Verdict,
    running: Decision | None,
    now: datetime.datetime,
) -> Decision | None:
    """The Decision of an adopting verdict: pushed when active, advice when advisory, else none."""
    if verdict.action != "adopt" or policy.mode == "paused":
        return None
    values: dict[str, Any] = {
        "fleet": fleet,
        "epoch": fleet.epoch,
        "tick": tick,
        "previous": running.plan if running else None,
        "reason": verdict.reason,
        "message": verdict.message[:500],
        "created_at": now,
    }
    if policy.mode == "advisory":
        if _said_before(fleet, verdict.plan, now):
            return None
        plan = to_jsonable(verdict.plan)
        return Decision.objects.create(**values, kind="advised", version=None, plan=plan)
    version = (running.version if running else 0) + 1
    plan = dataclasses.replace(verdict.plan, epoch=fleet.epoch, version=version)
    decision = Decision(**values, kind="adopted", version=version, plan=to_jsonable(plan))
    if refusal := delivery.refusal(decision):
        return _refused(decision, refusal)
    decision.save()
    delivery.open_deliveries(decision, now)
    effect_checks.begin(decision, now)
    return decision


def _refused(decision: Decision, refusal: str) -> Decision | None:
    """A plan that no gate could run: recorded, not issued; the plan in force stays."""
    if _said_before(decision.fleet, fleets.plan_of(decision), decision.created_at):
        return None
    decision.kind, decision.version = delivery.REFUSED, None
    decision.message = f"Not issued, {refusal}. It was: {decision.message}"[:500]
    decision.save()
    return decision


def _advised_while_held(
    policy: Policy,
    tick: Tick,
    observation: Observation,
    running: Decision,
    memory: Memory,
    before: Tick | None,
) -> Decision | None:
    """What the loop would choose were nothing held: advice, asked for each `ADVISES_EACH_S`."""
    holds = commands.open_holds(policy.fleet, tick.at)
    last_s = 0.0 if before is None else before.at.timestamp()
    if policy.mode != "active" or not holds:
        return None
    if last_s // ADVISES_EACH_S == tick.at.timestamp() // ADVISES_EACH_S:
        return None
    # Dampers wait for the next change of a plan; advice waits for nothing.
    params = dataclasses.replace(
        fleets.params_of(policy, []),
        mode="advisory",
        t_gain_hold_s=0.0,
        t_dwell_s=0.0,
        roles_gain_hold_s=0.0,
        roles_dwell_s=0.0,
    )
    scenario = fleets.scenario_of(policy.fleet)
    verdict = decide(observation, fleets.plan_of(running), memory, params, scenario)
    if verdict.action != "adopt" or _said_before(policy.fleet, verdict.plan, tick.at):
        return None
    return Decision.objects.create(
        fleet=policy.fleet,
        epoch=policy.fleet.epoch,
        tick=tick,
        kind="advised",
        version=None,
        plan=to_jsonable(verdict.plan),
        previous=running.plan,
        reason=verdict.reason,
        message=f"Were nothing held: {verdict.message}"[:500],
        created_at=tick.at,
    )


def _with_role_changes(observation: Observation, fleet: Fleet) -> Observation:
    """The observation, knowing how the newest move of each cluster's roles stands."""
    newest = rebalance.newest(fleet)
    pd = {
        name: dataclasses.replace(seen, role_change=_role_change(newest[name]))
        if name in newest
        else seen
        for name, seen in observation.pd.items()
    }
    return dataclasses.replace(observation, pd=pd)


def _with_labels(observation: Observation, roles: dict[str, tuple[int, int]]) -> Observation:
    """The observation with the roles that routers list, where those are all there is (S-31)."""
    pd = {
        name: dataclasses.replace(seen, n_prefill=roles[name][0], n_decode=roles[name][1])
        if name in roles
        else seen
        for name, seen in observation.pd.items()
    }
    return dataclasses.replace(observation, pd=pd)


def _role_change(row: Rebalance) -> RoleChange:
    return RoleChange(
        id=row.pk,
        state="running" if row.finished_at is None else row.state,
        n_prefill=row.to_n_prefill,
        n_decode=row.to_n_decode,
        since_s=row.created_at.timestamp(),
        ended_at_s=row.finished_at and row.finished_at.timestamp(),
        why=row.reason,
    )


def _open_rebalances(
    policy: Policy, decision: Decision, plan: Plan, seen: Observation, now: datetime.datetime
) -> None:
    """Begin what it takes for engines to run the plan's roles, where they do not already."""
    limits = fleets.params_of(policy, [])
    for name, cluster in plan.clusters.items():
        before = _roles_before(decision, name)
        wanted = (cluster.n_prefill, cluster.n_decode)
        observed = (seen.pd[name].n_prefill, seen.pd[name].n_decode)
        # A first plan only says what is thought to run: it moves nothing.
        if before is None or wanted in (observed, before):
            continue
        change = seen.pd[name].role_change
        if change is not None and change.state == "running":
            continue  # it sees the newer plan and stops; the loop asks again once it has ended
        known = observed if all(observed) else before
        rebalance.open_for(
            decision=decision,
            cluster=name,
            from_n_prefill=known[0],
            from_n_decode=known[1],
            to_n_prefill=wanted[0],
            to_n_decode=wanted[1],
            deadline_s=limits.rebalance_deadline_s,
            drain_timeout_s=limits.drain_timeout_s,
            now=now,
        )


def _roles_before(decision: Decision, cluster: str) -> tuple[int, int] | None:
    """What the plan before this one asked for."""
    before = (decision.previous or {"clusters": {}})["clusters"].get(cluster)
    return None if before is None else (before["n_prefill"], before["n_decode"])


def _said_before(fleet: Fleet, plan: Plan, now: datetime.datetime) -> bool:
    """Is this advice that was given since the last plan, within the last hour?

    Not the newest alone: t and roles are advised in turns while nobody takes either.
    """
    pushed = fleets.newest_adopted(fleet)
    advised = Decision.objects.filter(
        fleet=fleet, epoch=fleet.epoch, version=None, created_at__gt=now - ADVICE_LASTS
    )
    if pushed is not None:
        advised = advised.filter(created_at__gt=pushed.created_at)
    return any(_same_plan(fleets.plan_of(row), plan) for row in advised)


def _same_plan(said: Plan, new: Plan) -> bool:
    return said.clusters.keys() == new.clusters.keys() and all(
        _same_advice(said.clusters[name], cluster) for name, cluster in new.clusters.items()
    )


def _same_advice(said: ClusterPlan, new: ClusterPlan) -> bool:
    if any(getattr(said, field) != getattr(new, field) for field in _ADVICE_EXACT):
        return False
    was, now = said.threshold_tokens, new.threshold_tokens
    if was is None or now is None:
        return was == now
    return abs(now - was) <= SAME_ADVICE_RATIO * was


def _messages(
    fleet: Fleet, tick: Tick, decision: Decision | None, in_force: Decision | None
) -> list[dict[str, Any]]:
    messages = [tick_message(tick, in_force)]
    if decision is None:
        return messages
    messages.append(
        {
            "type": "decision",
            "fleet": fleet.pk,
            "id": decision.pk,
            "epoch": decision.epoch,
            "version": decision.version,
            "kind": decision.kind,
            "reason": decision.reason,
            "message": decision.message,
            "at_s": decision.created_at.timestamp(),
        }
    )
    if decision.version is not None:
        plan = delivery.document(decision)
        messages.append({"type": "plan", "fleet": fleet.pk, "plan": plan})
    return messages


def tick_message(tick: Tick, in_force: Decision | None) -> dict[str, Any]:
    """One tick as the live socket and the API summarise it."""
    verdict, pd = tick.verdict, tick.observed["pd"]
    rates = [cluster["demand_rps"] for cluster in pd.values() if cluster["demand_rps"] is not None]
    return {
        "type": "tick",
        "fleet": tick.fleet_id,
        "seq": tick.seq,
        "at_s": tick.at.timestamp(),
        "mode": tick.mode,
        "action": tick.action,
        "reason": tick.reason,
        "message": verdict["message"],
        "plan": None
        if in_force is None
        else {
            "epoch": in_force.epoch,
            "version": in_force.version,
            "clusters": in_force.plan["clusters"],
        },
        "observed": {
            "demand_rps": sum(rates) if rates else None,
            "clusters": {name: _observed_summary(cluster) for name, cluster in pd.items()},
        },
        "links": _link_summaries(verdict),
        "current": verdict["current"],
        "next_action_at_s": verdict["next_action_at_s"],
    }


_USUAL_LINK = {key: getattr(LinkMemory(), key) for key in ("label", "signs", "breaker")}


def _link_summaries(verdict: dict[str, Any]) -> dict[str, Any]:
    """As stored: to read the memory of hundreds of links costs more than all else of a message."""
    try:
        return {
            # A memory is stored without what is at its default.
            name: {key: found.get(key, usual) for key, usual in _USUAL_LINK.items()}
            for name, found in verdict["memory"]["links"].items()
        }
    except (AttributeError, KeyError, TypeError):  # of another release
        return {}


def _observed_summary(cluster: dict[str, Any]) -> dict[str, Any]:
    lengths = cluster["lengths"]
    return {
        "demand_rps": cluster["demand_rps"],
        "demand_state": cluster["demand_state"],
        "remote_share": cluster["remote_share"],
        "gates_silent": cluster["gates_silent"],
        "age_s": cluster["age_s"],
        "n_seen": lengths and lengths["n_seen"],
        "n_effective": lengths and lengths["n_effective"],
    }
