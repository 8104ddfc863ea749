"""The best plans for a run in hindsight: an upper bound to judge the loop by, not a policy to run.

Dynamic programming over intervals. At each boundary a cluster's setting, (t, n_prefill) on a grid,
may change to any that the loop's own limits allow: t by `t_max_step_factor` a `t_dwell_s`, roles by
`roles_max_step_ratio` at once and `roles_dwell_s` after the last move ended, so many changes an
hour; instances drain as they do for the loop, and gates run a plan as late. Then every setting is
tried on a copy of the fleet as it stands, with the very requests that come (`rehearsal`). What is
maximised is the number of requests served well, then, where that is equal, P90 of TTFT is least.

What is exact: each way through the settings is simulated as `simulate` does, to the last request,
and the plans of `whole_runs` are among the ways, so that none of these is better. What is not: a
fleet is more than its setting, it has queues. Of the many ways to come to a setting only a few are
kept, those that look best by

    good - cost * waiting - 0.2 * changes,    ties by the sum of TTFT

for two costs: `good` were served well or can still be, what is `waiting` for an instance or a slot
holds up others, and of changes there are only so many an hour. And of the settings with the same
roles only the best `width` go on, none that is hopelessly behind. On instances small enough to try
all scripts this finds the best one (tests/twin/test_oracle.py).

The start is free, as it is for a static plan. Several PD clusters are searched one after the other
with the others' plans fixed, twice. Shares between PrfaaS clusters are those of the static optimum;
a link that is down needs no plan, since no stack takes requests for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from routing.core import hysteresis
from routing.core.model import fleetmodel
from routing.core.model.throughput import ALWAYS_LOCAL_T
from routing.core.relief import band_of
from routing.core.scenario.document import Cluster
from routing.core.steps import kept_for_failures, t_of
from routing.core.types import ClusterPlan, Params
from routing.twin.fleet import Run
from routing.twin.policies import ClusterPlans, PolicyError, Scripted, at_threshold, naive, optimum
from routing.twin.rehearsal import Known, Rehearsal, Score, Snapshot

INTERVAL_S = 60.0
WIDTH = 3
_COSTS = (0.25, 1.0)
_FINALISTS = 4
_CHANGE = 0.2
"""Requests that a change has to be worth: an hour has only so many of them."""
_HOPELESS = 2.0
"""Intervals of requests served well that nothing makes good again."""
_RING = (-0.5, 0.5)
"""Around the static optimum, in steps of the coarse grid."""
_ROUNDS = 2

Way = tuple["Way | None", float, ClusterPlan]
"""How a label was come to: the way before, and since when which plan is wanted."""
Script = Sequence[tuple[float, ClusterPlan]]
Scripts = Mapping[str, Script]
Judged = tuple[int, float]
"""Requests served well, and P90 of TTFT below 0: more is better."""


def oracle(run: Run, *, interval_s: float = INTERVAL_S, width: int = WIDTH) -> Scripted:
    """Plans by time for the very run, its seed and faults included; `run.policy` is not used.

    `width`: settings kept for each cost and split of roles. It takes as long as some 30 * `width`
    runs of a fixed plan, whatever the interval; with caches, whose copies cost, twice that.
    """
    return Scripted(_merged(_Search(run, interval_s=interval_s, width=width).scripts()))


def whole_runs(run: Run) -> Iterator[ClusterPlans]:
    """Static plans of all clusters that the oracle is never below."""
    scenario = run.scenario
    yield optimum(scenario, "exact")
    yield optimum(scenario, "paper")
    # Where nothing is linked to some cluster, not everything can go remote.
    with contextlib.suppress(PolicyError):
        yield naive(scenario)
    yield at_threshold(scenario, ALWAYS_LOCAL_T)
    for tokens in thresholds(run.params, optimum(scenario, "exact").values()):
        yield at_threshold(scenario, tokens)


def thresholds(params: Params, around: Iterable[ClusterPlan]) -> list[int]:
    """The grid of t, ascending: geometric between the bounds, through the t of each plan `around`,
    and finer near it."""
    low, high, factor = params.t_min_tokens, params.t_max_tokens, params.t_max_step_factor
    found = {float(low), float(high)}
    for plan in around:
        centre = t_of(plan, params)
        down = math.floor(math.log(centre / low) / math.log(factor))
        up = math.floor(math.log(high / centre) / math.log(factor))
        found |= {centre * factor**k for k in range(-down, up + 1)}
        found |= {centre * factor**k for k in _RING}
    return sorted({round(min(max(t, low), high)) for t in found})


@dataclass(frozen=True)
class _Label:
    """One way to have come to a setting: how it went, and the fleet as it then stands.

    `n_prefill` and `n_decode` are the roles there are, or are being moved to; t may change again
    from `t_free_s` on, roles from `roles_free_s`.
    """

    t: int
    n_prefill: int
    n_decode: int
    score: Score
    way: Way
    changes_s: tuple[float, ...]
    t_free_s: float
    roles_free_s: float
    rehearsal: Rehearsal

    @cached_property
    def snapshot(self) -> Snapshot:
        return Snapshot(self.rehearsal)

    def value(self, cost: float) -> tuple[float, float]:
        paid = cost * self.score.n_waiting + _CHANGE * len(self.changes_s)
        return self.score.good - paid, -self.score.ttft_s


class _Search:
    """The requests of one run, and everything that may be done about them."""

    def __init__(self, run: Run, *, interval_s: float, width: int) -> None:
        self._run, self._interval_s, self._width = run, interval_s, width
        self._known = Known.of(run)
        n_requests = sum(map(len, self._known))
        self._hopeless = _HOPELESS * n_requests * interval_s / run.duration_s
        self._best = optimum(run.scenario, "exact")
        model = fleetmodel.of_scenario(run.scenario, "exact")
        self._weights = {
            site.name: {remote.name: remote.weight for remote in site.remotes}
            for site in model.sites
        }
        self._grid = {
            name: thresholds(run.params, [plan])
            if self._weights[name]
            else [t_of(plan, run.params)]
            for name, plan in self._best.items()
        }

    def scripts(self) -> Scripts:
        """The best there is of what was tried."""
        tried: list[Scripts] = [
            {name: [(0.0, plan)] for name, plan in plans.items()} for plans in whole_runs(self._run)
        ]
        best = max(tried, key=self._judged)
        reached = self._judged(best)
        for _ in range(_ROUNDS if len(best) > 1 else 1):
            for name in best:
                for script in self._searched(name, best):
                    scripts = {**best, name: script}
                    if (judged := self._judged(scripts)) > reached:
                        best, reached = scripts, judged
        return best

    def _judged(self, scripts: Scripts) -> Judged:
        rehearsal = self._begun(scripts)
        rehearsal.ttfts_s = []
        rehearsal.run(self._run.duration_s)
        if not rehearsal.ttfts_s:
            return rehearsal.served, 0.0
        p90_s = float(np.quantile(rehearsal.ttfts_s, 0.9, method="inverted_cdf"))
        return rehearsal.served, -p90_s

    def _begun(self, scripts: Scripts) -> Rehearsal:
        first = {name: script[0][1] for name, script in scripts.items()}
        rehearsal = Rehearsal(self._run, first, self._known)
        for name, script in scripts.items():
            for at_s, plan in script[1:]:
                rehearsal.adopt(name, plan, at_s)
        return rehearsal

    def _searched(self, name: str, others: Scripts) -> list[Script]:
        """The most promising scripts of one cluster, those of others as they are."""
        end_s = self._run.duration_s
        at_s = min(self._interval_s, end_s)
        labels = self._kept([self._first(name, plan, others, at_s) for plan in self._starts(name)])
        while at_s < end_s:
            until_s = min(at_s + self._interval_s, end_s)
            labels = self._kept(self._gone_on(name, labels, at_s, until_s))
            at_s = until_s
        ended = sorted(labels, key=lambda label: (-label.score.served, label.score.ttft_s))
        return [_script(label.way) for label in ended[:_FINALISTS]]

    def _starts(self, name: str) -> Iterator[ClusterPlan]:
        cluster = self._cluster(name)
        for n_prefill in range(cluster.min_prefill, cluster.instances - cluster.min_decode + 1):
            for t in self._grid[name]:
                yield self._plan(name, t, n_prefill, cluster.instances - n_prefill)

    def _first(self, name: str, plan: ClusterPlan, others: Scripts, until_s: float) -> _Label:
        rehearsal = self._begun({**others, name: [(0.0, plan)]})
        t = round(t_of(plan, self._run.params))
        return self._label(name, rehearsal, until_s, t=t, way=(None, 0.0, plan))

    def _gone_on(
        self, name: str, labels: Sequence[_Label], at_s: float, until_s: float
    ) -> Iterator[_Label]:
        """Every setting that can be reached, from the labels that are best placed for it."""
        aims: dict[tuple[int, int], list[_Label]] = {}
        for label in labels:
            for aim in self._reached(name, label, at_s, until_s):
                aims.setdefault(aim, []).append(label)
        for (t, n_prefill), nearby in sorted(aims.items()):
            ways = [max(nearby, key=lambda each: each.value(cost)) for cost in _COSTS]
            for label in {id(each): each for each in ways}.values():
                yield self._moved(name, label, t, n_prefill, at_s, until_s)

    def _reached(
        self, name: str, label: _Label, at_s: float, until_s: float
    ) -> Iterator[tuple[int, int]]:
        roles = [label.n_prefill]
        if at_s >= label.roles_free_s and self._moves_roles(name):
            cluster, total = self._cluster(name), label.n_prefill + label.n_decode
            most = max(1, math.floor(self._run.params.roles_max_step_ratio * total + 1e-9))
            low = max(cluster.min_prefill, label.n_prefill - most)
            high = min(total - cluster.min_decode, label.n_prefill + most)
            roles += [n for n in range(low, high + 1) if n != label.n_prefill]
        for t in {*self._grid[name], label.t}:
            for n_prefill in roles:
                if self._steps(label, t, n_prefill, at_s, until_s) is not None:
                    yield t, n_prefill

    def _steps(
        self, label: _Label, t: int, n_prefill: int, at_s: float, until_s: float
    ) -> list[tuple[float, int]] | None:
        """When t becomes what on the way to `t`, roles with the first; None if there is no time."""
        params = self._run.params
        now_s, at_t, steps = self._tick(max(at_s, label.t_free_s)), label.t, []
        while at_t != t:
            after = hysteresis.step_limited(at_t, t, params.t_max_step_factor)
            if now_s >= until_s or after == at_t:
                return None
            at_t = after
            steps.append((now_s, at_t))
            now_s = self._tick(now_s + params.t_dwell_s)
        first_s = self._tick(at_s)
        if n_prefill != label.n_prefill and (not steps or steps[0][0] > first_s):
            steps.insert(0, (first_s, label.t))
        limit = params.max_changes_per_hour - kept_for_failures(params.max_changes_per_hour)
        changes_s = label.changes_s
        for change_s, _ in steps:
            if hysteresis.free_at(changes_s, limit, change_s) > change_s:
                return None
            changes_s = (*changes_s, change_s)
        return steps

    def _moved(
        self,
        name: str,
        label: _Label,
        t: int,
        n_prefill: int,
        at_s: float,
        until_s: float,
    ) -> _Label:
        rehearsal, way = label.snapshot.again(), label.way
        steps = self._steps(label, t, n_prefill, at_s, until_s)
        assert steps is not None, "only what was reached is asked for"
        n_decode = label.n_prefill + label.n_decode - n_prefill
        for change_s, at_t in steps:
            plan = self._plan(name, at_t, n_prefill, n_decode)
            rehearsal.adopt(name, plan, change_s)
            way = (way, change_s, plan)
        return self._label(
            name,
            rehearsal,
            until_s,
            t=t,
            way=way,
            changes_s=(
                *hysteresis.within_the_hour(label.changes_s, at_s),
                *(change_s for change_s, _ in steps),
            ),
            t_free_s=steps[-1][0] + self._run.params.t_dwell_s if steps else label.t_free_s,
        )

    def _label(
        self,
        name: str,
        rehearsal: Rehearsal,
        until_s: float,
        *,
        t: int,
        way: Way,
        changes_s: tuple[float, ...] = (),
        t_free_s: float = 0.0,
    ) -> _Label:
        """The rehearsal gone on to `until_s`."""
        rehearsal.run(until_s)
        moves = rehearsal.moves[name]
        change, (n_prefill, n_decode) = moves.change, moves.roles
        dwell_s, roles_free_s = self._run.params.roles_dwell_s, 0.0
        if change is not None and change.state == "running":
            roles_free_s = math.inf
            n_decode += n_prefill - change.n_prefill
            n_prefill = change.n_prefill
        elif change is not None and change.ended_at_s is not None:
            # One that did not succeed doubles the dwell.
            roles_free_s = change.ended_at_s + dwell_s * (1.0 if change.state == "done" else 2.0)
        return _Label(
            t=t,
            n_prefill=n_prefill,
            n_decode=n_decode,
            score=rehearsal.score(),
            way=way,
            changes_s=changes_s,
            t_free_s=t_free_s,
            roles_free_s=roles_free_s,
            rehearsal=rehearsal,
        )

    def _kept(self, labels: Iterable[_Label]) -> list[_Label]:
        """For each cost, the best of each setting, and of these the `width` best of each split of
        roles: moving instances pays later, so splits are not weighed against each other, unless
        one is behind by more than can be made good."""
        each = list(labels)
        least = max(label.score.good for label in each) - self._hopeless
        each = [label for label in each if label.score.good >= least]
        kept: dict[int, _Label] = {}
        for cost in _COSTS:
            settings: dict[tuple[int, int], _Label] = {}
            for label in sorted(each, key=lambda label: label.value(cost), reverse=True):
                settings.setdefault((label.t, label.n_prefill), label)
            n_of_split: dict[int, int] = {}
            for label in settings.values():
                n = n_of_split[label.n_prefill] = n_of_split.get(label.n_prefill, 0) + 1
                if n <= self._width:
                    kept[id(label)] = label
        return list(kept.values())

    def _plan(self, name: str, t: float, n_prefill: int, n_decode: int) -> ClusterPlan:
        plan = dataclasses.replace(self._best[name], n_prefill=n_prefill, n_decode=n_decode)
        if not self._weights[name]:
            return plan
        plan = dataclasses.replace(
            plan,
            mode="threshold",
            threshold_tokens=round(t),
            remote=plan.remote or self._weights[name],
        )
        return dataclasses.replace(plan, band=band_of(plan, self._run.params.band_ratio))

    def _cluster(self, name: str) -> Cluster:
        cluster = self._run.scenario.cluster(name)
        assert cluster is not None, "a planned cluster is described"
        return cluster

    def _moves_roles(self, name: str) -> bool:
        """As the loop: only where there is a stack to ask."""
        cluster = self._cluster(name)
        return (
            self._run.params.roles_mode == "auto"
            and bool(cluster.routers)
            and not (cluster.pinned or cluster.drained)
        )

    def _tick(self, at_s: float) -> float:
        """The first tick from then on."""
        tick_s = self._run.settings.delays.tick_s
        return math.ceil(at_s / tick_s - 1e-9) * tick_s


def _script(way: Way) -> Script:
    found = []
    each: Way | None = way
    while each is not None:
        each, at_s, plan = each
        found.append((at_s, plan))
    return found[::-1]


def _merged(scripts: Scripts) -> list[tuple[float, ClusterPlans]]:
    """The plans of all clusters by every time at which one of them changes."""
    changes = {name: dict(script) for name, script in scripts.items()}
    running: dict[str, ClusterPlan] = {}
    found: list[tuple[float, ClusterPlans]] = []
    for at_s in sorted({at_s for each in changes.values() for at_s in each}):
        running = running | {n: each[at_s] for n, each in changes.items() if at_s in each}
        found.append((at_s, running))
    return found
