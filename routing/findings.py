"""Every truth check of a fleet, made from its rows: one list for page, API and overview.

Nothing is remembered between two looks. What the loop judges anyway (links, effects of t) is taken
from its newest tick; the rest is read by `truth_facts`.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from routing import commands, fleets, truth_facts
from routing.core.effect import effect_of
from routing.core.jsonable import from_jsonable
from routing.core.model.lengths import BucketLengths, from_histogram, usable
from routing.core.scenario.document import Cluster, Scenario
from routing.core.truth import disaggregation, kv_memory, meaning, paths, prerequisites, split
from routing.core.truth import readiness as ready
from routing.core.truth.finding import Figure, Finding, Outcome, Report, Unknown
from routing.core.truth.finding import report as reported
from routing.core.types import ClusterPlan, LinkMemory, Memory, Observation, PdObservation, Plan
from routing.models import Fleet, ManagedRouter, Rebalance, Tick

OLD_S: Final = 30.0
"""A tick this old says nothing of now."""
LOOKED_S: Final = 300.0
LOOKS: Final = 12
_LOOP: Final = ("NoEffect", "SplitOffPrediction", "FlowLimited", "TransferFailures")


@dataclass(frozen=True)
class _Tick:
    """What ran and what was seen of each PD cluster, as stored."""

    at_s: float
    plans: Mapping[str, Any]
    pds: Mapping[str, Any]


@dataclass(frozen=True)
class _Fleet:
    """What the checks are made of. `observation` is None where no fresh tick tells."""

    name: str
    scenario: Scenario
    plan: Plan | None
    observation: Observation | None
    memory: Memory
    looks: tuple[_Tick, ...]
    routers: tuple[ManagedRouter, ...]
    moving: frozenset[str]
    moves_roles: bool
    seen: truth_facts.Seen

    def plan_of(self, cluster: str) -> ClusterPlan | None:
        return None if self.plan is None else self.plan.clusters.get(cluster)

    def routers_of(self, cluster: str) -> list[ManagedRouter]:
        return [row for row in self.routers if row.cluster == cluster]


def report(fleet: Fleet, *, now: datetime.datetime) -> Report:
    """All checks of a fleet as its rows stand at `now`."""
    found = _read(fleet, now)
    return reported(_outcomes(found), at_s=now.timestamp())


def _read(fleet: Fleet, now: datetime.datetime) -> _Fleet:
    scenario = fleets.scenario_of(fleet)
    at_s = now.timestamp()
    newest, adopted = fleets.newest_tick(fleet), fleets.newest_adopted(fleet)
    fresh = newest is not None and abs(at_s - newest.at.timestamp()) <= OLD_S
    moving = Rebalance.objects.filter(fleet=fleet, finished_at=None)
    params = fleets.params_of(fleet.policy, commands.open_holds(fleet, now))
    return _Fleet(
        name=fleet.pk,
        scenario=scenario,
        plan=None if adopted is None else fleets.plan_of(adopted),
        observation=from_jsonable(Observation, newest.observed) if newest and fresh else None,
        memory=fleets.memory_after(newest),
        looks=_looks(fleet, now) if fresh else (),
        routers=tuple(ManagedRouter.objects.filter(fleet=fleet).order_by("cluster", "name")),
        moving=frozenset(moving.values_list("cluster", flat=True)),
        moves_roles=params.mode == "active" and params.roles_mode == "auto",
        seen=truth_facts.read(fleet.pk, scenario, at_s=at_s),
    )


def _looks(fleet: Fleet, now: datetime.datetime) -> tuple[_Tick, ...]:
    """Some of the ticks of the last minutes, ascending: all of them would say the same."""
    since = now - datetime.timedelta(seconds=LOOKED_S)
    ids = list(
        Tick.objects.filter(fleet=fleet, at__gt=since, at__lte=now)
        .order_by("-seq")
        .values_list("pk", flat=True)
    )
    step = max(len(ids) // LOOKS, 1)
    # Only what the checks look at: a tick of a large fleet is half a megabyte.
    chosen = Tick.objects.filter(pk__in=ids[::step]).order_by("seq")
    return tuple(
        _Tick(at.timestamp(), plans, pds)
        for at, plans, pds in chosen.values_list("at", "verdict__plan__clusters", "observed__pd")
    )


def _outcomes(fleet: _Fleet) -> Iterator[Outcome]:
    pools = {
        pool.subject: pool for pool in truth_facts.leaking(fleet.seen, fleet.scenario.clusters)
    }
    for cluster in fleet.scenario.clusters:
        subject = f"{fleet.name}/{cluster.name}"
        yield from _prerequisites(fleet, cluster)
        lease = truth_facts.lease(fleet.seen, fleet.scenario, cluster)
        if lease is not None:
            yield kv_memory.lease(lease)
        yield from kv_memory.leaks(pools[subject])
        yield from _readiness(fleet, cluster)
        yield from _routers(fleet, cluster)
        if cluster.kind == "pd":
            yield from _some(_disaggregated(fleet, cluster))
            yield from _split(fleet, cluster)
    for link in truth_facts.remote_links(fleet.seen, fleet.scenario, _least_tokens(fleet)):
        yield from _some(disaggregation.of_link(link))
    yield from _links(fleet)


def _some(outcome: Outcome | None) -> Iterator[Outcome]:
    if outcome is not None:
        yield outcome


def _disaggregated(fleet: _Fleet, cluster: Cluster) -> Outcome | None:
    plan = fleet.plan_of(cluster.name)
    runs_by = [(row.observed or {}).get("threshold") for row in fleet.routers_of(cluster.name)]
    return disaggregation.of_cluster(
        truth_facts.pd_cluster(
            fleet.seen,
            fleet.scenario,
            cluster,
            sends_remote=plan is not None and plan.mode != "always_local",
            keeps_short=any(each and each["tokens"] is not None for each in runs_by),
        )
    )


def _least_tokens(fleet: _Fleet) -> dict[str, float]:
    """By cluster the fewest tokens that a plan of the last minutes sent remote."""
    found: dict[str, float] = {}
    for tick in fleet.looks:
        for name, ran in tick.plans.items():
            plan = from_jsonable(ClusterPlan, ran)
            low = split.band_of(plan)[0] if plan.mode == "threshold" else 0.0
            if plan.mode != "always_local":
                found[name] = min(found.get(name, low), low)
    return found


# What decisions rely on


def _prerequisites(fleet: _Fleet, cluster: Cluster) -> Iterator[Outcome]:
    seen = fleet.seen
    yield from _some(prerequisites.prefix_cache(truth_facts.prefill_pool(seen, cluster.name)))
    if cluster.kind != "pd":
        return
    for heard in truth_facts.kv_events(seen, cluster.name):
        yield from _some(prerequisites.kv_events(heard))
    for claimed in truth_facts.cached_claims(seen, fleet.scenario, cluster.name):
        yield from _some(prerequisites.cached_tokens(claimed))
    plan = fleet.plan_of(cluster.name)
    wants = prerequisites.Wants(
        subject=f"{fleet.name}/{cluster.name}",
        threshold_tokens=None if plan is None else plan.threshold_tokens,
        moves_roles=fleet.moves_roles and not (cluster.pinned or cluster.drained),
        has_gate=bool(seen.gates_of(cluster.name)),
        routers=[_ability(row) for row in fleet.routers_of(cluster.name) if row.capabilities],
    )
    yield from prerequisites.capabilities(wants)


def _ability(row: ManagedRouter) -> prerequisites.RouterAbility:
    can = row.capabilities or {}
    return prerequisites.RouterAbility(
        str(row), row.kind, can["threshold"], can["roles"], can["why"]
    )


# Who takes requests


def _readiness(fleet: _Fleet, cluster: Cluster) -> Iterator[Outcome]:
    """Of a drained cluster nothing is wanted."""
    if cluster.drained:
        return
    plan = fleet.plan_of(cluster.name)
    wanted: dict[str, int | None] = {"prefill": None, "decode": None}
    if cluster.kind == "prefill":
        wanted = {"prefill": cluster.instances}
    elif plan is not None:
        wanted = {"prefill": plan.n_prefill, "decode": plan.n_decode}
    for role, expected in wanted.items():
        members = truth_facts.engine_pool(fleet.seen, cluster.name, role)
        if members is not None or expected is not None:
            yield _pool(fleet, cluster, role, "the engines' readings", members, expected)
        lists = {str(row): _listed(row, role) for row in fleet.routers_of(cluster.name)}
        for router, listed in lists.items():
            if listed is None or listed:
                yield _pool(fleet, cluster, role, router, listed)
        # One of several stacks may well list one role only; all of them together may not.
        if lists and all(listed == () for listed in lists.values()):
            yield _pool(fleet, cluster, role, "its routers", (), expected)


def _pool(
    fleet: _Fleet,
    cluster: Cluster,
    role: str,
    by: str,
    members: tuple[ready.Member, ...] | None,
    expected: int | None = None,
) -> Outcome:
    pool = ready.RolePool(
        subject=f"{fleet.name}/{cluster.name}",
        role=role,
        by=by,
        members=members,
        expected=expected,
        moving=cluster.name in fleet.moving,
    )
    return ready.of_pool(pool, fleet.seen.at_s)


def _listed(row: ManagedRouter, role: str) -> tuple[ready.Member, ...] | None:
    """What a router listed when it was read; None where it does not answer now."""
    if row.observed is None or row.away_since is not None:
        return None
    return tuple(
        ready.Member(url, entry["status"])
        for url, entry in sorted(row.observed["workers"].items())
        if entry["role"] == role
    )


def _routers(fleet: _Fleet, cluster: Cluster) -> Iterator[Outcome]:
    rows, plan = fleet.routers_of(cluster.name), fleet.plan_of(cluster.name)
    subject = f"{fleet.name}/{cluster.name}"
    tokens = None if plan is None else plan.threshold_tokens
    yield from meaning.of_cluster(subject, [_rule(row) for row in rows], tokens)
    for row in rows:
        for said in (row.observed or {}).get("findings", ()):
            yield Finding(
                name="RouterMisleads",
                subject=str(row),
                severity="warn",
                sentence=said.rstrip("."),
                evidence=(
                    Figure("make", row.kind, "", "measured"),
                    Figure("version", row.make_version or "not told", "", "measured"),
                ),
                next_step="See the router under Routers and docs/routers.md: it is known of this "
                "make, and the router itself says nothing of it",
            )


def _rule(row: ManagedRouter) -> meaning.RouterRule:
    can: Mapping[str, Any] = row.capabilities or {}
    runs_by = (row.observed or {}).get("threshold") or {}
    return meaning.RouterRule(
        router=str(row),
        kind=row.kind,
        version=row.make_version,
        means=can.get("threshold_means", ""),
        tokens=runs_by.get("tokens"),
        how=can.get("threshold", "none"),
        read=row.capabilities is not None,
    )


# What the loop found


def _split(fleet: _Fleet, cluster: Cluster) -> Iterator[Outcome]:
    """Only where there is a far side: without one nothing is split."""
    subject = f"{fleet.name}/{cluster.name}"
    plan, observation = fleet.plan_of(cluster.name), fleet.observation
    if not fleet.scenario.links_to.get(cluster.name):
        return
    if observation is None or plan is None:
        yield from (_unlooked(name, subject, observation) for name in _LOOP[:2])
        return
    pd = observation.pd.get(cluster.name)
    since = fleet.memory.awaited.get(cluster.name)
    effect = None
    if since is not None and pd is not None:
        effect = effect_of(cluster.name, since, plan, pd, _lengths(pd))
    yield split.no_effect(subject, effect, observation.now_s)
    looks, changed = _judged(fleet, cluster.name)
    yield split.off_prediction(
        subject,
        looks,
        excused=_link_trouble(fleet, cluster.name) or changed,
        limited=plan.max_remote_in_flight is not None,
    )


def _judged(fleet: _Fleet, cluster: str) -> tuple[list[split.Look], str]:
    """(looks at the rule that runs now, ascending; words where it has not run for long)."""
    known = [each for tick in fleet.looks if (each := _look(tick, cluster)) is not None]
    run = list(itertools.takewhile(lambda each: each[0] == known[-1][0], reversed(known)))
    new = len(run) < min(len(known), split.LEAST_LOOKS)
    return [look for _, look in reversed(run)], "t has just changed" if new else ""


def _look(tick: _Tick, cluster: str) -> tuple[tuple[object, ...], split.Look] | None:
    """(the rule that ran, what was seen of it); None where the tick does not know the cluster."""
    ran, seen = tick.plans.get(cluster), tick.pds.get(cluster)
    if ran is None or seen is None:
        return None
    plan, pd = from_jsonable(ClusterPlan, ran), from_jsonable(PdObservation, seen)
    look = split.Look(
        at_s=tick.at_s,
        share=pd.remote_share,
        expected=split.expected(plan, _lengths(pd)),
        n_requests=None if pd.demand_rps is None else pd.demand_rps * 60.0,
    )
    return (plan.mode, plan.threshold_tokens, plan.band), look


def _lengths(pd: PdObservation) -> BucketLengths | None:
    return from_histogram(pd.lengths) if pd.lengths is not None and usable(pd.lengths) else None


def _link_trouble(fleet: _Fleet, cluster: str) -> str:
    """Why nobody can expect t's share just now, empty if one can."""
    for link in fleet.scenario.links_to[cluster]:
        memory = fleet.memory.links.get(link.id)
        if memory is not None and memory.breaker != "closed":
            return f"the breaker of {link.id} is {memory.breaker.replace('_', ' ')}"
        if memory is not None and memory.trouble == "down":
            return f"{link.id} is down"
    return ""


def _links(fleet: _Fleet) -> Iterator[Outcome]:
    for link in fleet.scenario.links:
        if fleet.observation is None:
            yield from (_unlooked(name, link.id, None) for name in _LOOP[2:])
            continue
        memory = fleet.memory.links.get(link.id, LinkMemory())
        seen = fleet.observation.links.get(link.id)
        yield paths.flow(link, seen, memory)
        yield paths.transfers(link, seen, memory)


def _unlooked(name: str, subject: str, observation: Observation | None) -> Unknown:
    if observation is None:
        return Unknown(
            name,
            subject,
            "the loop has not looked lately",
            "See that worker and beat run: GET /readyz says how old the newest tick is",
        )
    return Unknown(
        name,
        subject,
        "no plan is in force, so there is none to hold the share against",
        "Switch the fleet's mode to active, or judge by what the page Planner expects",
    )
