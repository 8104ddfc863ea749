"""A run of the twin: what happens when, and what is told of it. Read `simulate` first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from routing.core.scenario.document import Scenario
from routing.core.scenario.tables import ScenarioError
from routing.core.types import ClusterPlan, Params
from routing.twin.build import build
from routing.twin.moves import LOOK_S, RoleMoves
from routing.twin.pd import REASONS, PdCluster
from routing.twin.policies import Policy
from routing.twin.report import Finished, Recorder, Report, UnderWay
from routing.twin.requests import Workload
from routing.twin.row import (
    AT,
    BYTES,
    COMPUTED,
    DONE,
    END,
    LINK,
    OUTPUT,
    PROMPT,
    READY,
    REASON,
    RETRIES,
    SITE,
    SLOT,
    START,
    UNCACHED,
    Row,
)
from routing.twin.settings import Settings
from routing.twin.trouble import Act, Trouble
from routing.twin.watch import Eyes

_PER_RUN = 600
_LEAST_S = 1.0
"""How often links and pools are measured: so many times a run, at most once a second."""

Progress = Callable[[float, Report], bool]
"""Told the time simulated so far and the report up to there; False stops the run."""


@dataclass(frozen=True)
class Run:
    """What to simulate. `seed` is of the workload and of everything else that is drawn; what
    arrived before `warmup_s` is simulated and not counted. Raises ScenarioError where the blocks
    of the workload are not those of the cache."""

    scenario: Scenario
    settings: Settings
    workload: Workload
    policy: Policy
    params: Params
    seed: int
    duration_s: float
    warmup_s: float = 0.0

    def __post_init__(self) -> None:
        cache, size = self.settings.cache, self.workload.block_tokens
        if cache is not None and size is not None and cache.block_tokens != size:
            message = f"the workload's blocks are of {size} tokens"
            raise ScenarioError("cache.block_tokens", cache.block_tokens, message)


def simulate(run: Run, progress: Progress | None = None, *, told_every_s: float = 60.0) -> Report:
    """The run from 0 to `duration_s`, or to where `progress` stopped it.

    Deterministic: the same run gives the same report. `progress` is told every `told_every_s`
    simulated seconds.
    """
    fleet = Fleet(run)
    if progress is None:
        fleet.run(run.duration_s)
        return fleet.report()
    for at_s in np.arange(told_every_s, run.duration_s, told_every_s).tolist():
        fleet.run(at_s)
        if not progress(at_s, fleet.report()):
            return fleet.report()
    fleet.run(run.duration_s)
    return fleet.report()


class Fleet:
    """The stages, and a calendar of everything that is not a request."""

    def __init__(self, run: Run) -> None:
        self._run, self.now_s = run, 0.0
        policy, settings, delays = run.policy, run.settings, run.settings.delays
        self._asked = dict(policy.first())
        self.stages = build(run.scenario, settings, self._asked, run.workload.pieces(run.seed))
        self._moves = {
            cluster.name: RoleMoves(
                cluster.pool,
                cluster.decode,
                drain_s=delays.drain_s,
                drain_timeout_s=run.params.drain_timeout_s,
            )
            for cluster in self.stages.clusters
        }
        self._recorder = Recorder(
            run.scenario.slo,
            sites=[cluster.name for cluster in self.stages.clusters],
            reasons=REASONS,
            links=run.scenario.links,
            pools=self._pool_facts(),
            warmup_s=run.warmup_s,
            until_s=run.duration_s,
        )
        self._measured_s = 0.0
        self._seen_bytes = dict.fromkeys(self.stages.links, 0.0)
        self._seen_busy_s = dict.fromkeys(self._pool_facts(), 0.0)
        self._calendar: list[tuple[float, int, Act]] = []
        self._numbers = itertools.count()
        for name, plan in self._asked.items():
            self._recorder.plan_change(0.0, name, plan, "start")
        self._trouble = Trouble(self.stages, run.scenario)
        for at_s, act in self._trouble.acts(settings.faults):
            self._at(at_s, self._measuring(act))
        every_s = max(run.duration_s / _PER_RUN, _LEAST_S)
        self._repeat(every_s, every_s, self._measure)
        if policy.watches:
            self._eyes = Eyes(
                run.scenario,
                self.stages,
                self._moves,
                self._trouble,
                delays=delays,
                rng=np.random.default_rng([run.seed, 1]),
            )
            first_s = delays.tick_s - math.fmod(delays.agent_s, delays.tick_s)
            self._repeat(first_s, delays.tick_s, self._eyes.look)
            self._repeat(delays.tick_s, delays.tick_s, self._tick)

    def run(self, until_s: float) -> None:
        """On to `until_s`."""
        while self._calendar and self._calendar[0][0] <= until_s:
            at_s, _, act = heappop(self._calendar)
            self._pass(at_s)
            act(at_s)
        self._pass(until_s)

    def report(self) -> Report:
        """Of everything up to now."""
        self._measure(self.now_s)
        return self._recorder.report(self.now_s, _under_way(self.stages.under_way))

    def _pass(self, until_s: float) -> None:
        done = self.stages.run(until_s)
        self.now_s = until_s
        if done:
            self._recorder.add(_finished(done))
        if self._run.policy.watches:
            self._eyes.count(self.stages.arrived)
        self.stages.arrived = []

    def _at(self, at_s: float, act: Act) -> None:
        if at_s < math.inf:
            heappush(self._calendar, (at_s, next(self._numbers), act))

    def _repeat(self, at_s: float, every_s: float, act: Act) -> None:
        def again(now_s: float) -> None:
            act(now_s)
            self._at(now_s + every_s, again)

        self._at(at_s, again)

    def _measuring(self, act: Act) -> Act:
        """What links and pools did under what holds until now is told before it changes."""

        def measured(now_s: float) -> None:
            self._measure(now_s)
            act(now_s)
            self.stages.resume(now_s)

        return measured

    def _tick(self, now_s: float) -> None:
        """The policy looks; what it changes reaches gates and engines after a while."""
        policy = self._run.policy
        wanted = policy.next(self._eyes.see(now_s, policy.lengths_since_s))
        for cluster in self.stages.clusters:
            plan = wanted[cluster.name]
            if plan != self._asked[cluster.name]:
                self._asked[cluster.name] = plan
                applied_s = now_s + self._run.settings.delays.gate_s
                self._at(applied_s, self._applying(cluster, plan))

    def _applying(self, cluster: PdCluster, plan: ClusterPlan) -> Act:
        def apply(now_s: float) -> None:
            cluster.adopt(plan)
            self.stages.resume(now_s)
            self._recorder.plan_change(now_s, cluster.name, plan)
            moves = self._moves[cluster.name]
            if not moves.active:
                moves.ask(plan.n_prefill, plan.n_decode, now_s)
                self._look_after(cluster.name, now_s)
            else:
                moves.ask(plan.n_prefill, plan.n_decode, now_s)

        return apply

    def _look_after(self, name: str, now_s: float) -> None:
        """One pass of a cluster's role moves, and the next one while there is something to do."""
        moves = self._moves[name]
        if moves.active:
            self._measure(now_s)
            moves.look(now_s)
            self.stages.resume(now_s)
            self._at(now_s + LOOK_S, lambda at_s: self._look_after(name, at_s))

    def _measure(self, until_s: float) -> None:
        """Tells the report what links and pools did since it was told last."""
        from_s = self._measured_s
        if until_s <= from_s:
            return
        self._measured_s = until_s
        for name, flows in self.stages.links.items():
            sent = flows.sent_bytes - self._seen_bytes[name]
            self._seen_bytes[name] = flows.sent_bytes
            capacity = flows.path.capacity_bytes_per_s * (until_s - from_s)
            self._recorder.link(name, from_s, until_s, sent, capacity)
        for name, (n, busy_s) in self._pools().items():
            worked_s = busy_s - self._seen_busy_s[name]
            self._seen_busy_s[name] = busy_s
            self._recorder.pool(name, from_s, until_s, n, worked_s)
        self.stages.forget_done(until_s)
        for cluster in self.stages.clusters:
            described = self._run.scenario.cluster(cluster.name)
            assert described is not None, "a PD cluster of the run is described"
            each = self._run.scenario.profiles[described.profile].facts.get("kv_capacity_tokens")
            capacity_tokens = None if each is None else float(each) * len(cluster.decode)
            self._recorder.kv(
                f"decode:{cluster.name}", until_s, cluster.decode.kv_tokens(), capacity_tokens
            )

    def _pools(self) -> dict[str, tuple[int, float]]:
        """Instances and instance seconds worked, by pool."""
        now_s, found = self.now_s, {}
        for name, pool in self.stages.pools.items():
            found[f"prefill:{name}"] = (len(pool), pool.busy_s(now_s))
        for cluster in self.stages.clusters:
            found[f"prefill:{cluster.name}"] = (len(cluster.pool), cluster.pool.busy_s(now_s))
            found[f"decode:{cluster.name}"] = (len(cluster.decode), cluster.decode.busy_s(now_s))
        return found

    def _pool_facts(self) -> dict[str, dict[str, str | float]]:
        scenario, found = self._run.scenario, {}
        for cluster in scenario.clusters:
            facts = scenario.profiles[cluster.profile].facts
            found[f"prefill:{cluster.name}"] = facts
            if cluster.kind == "pd":
                found[f"decode:{cluster.name}"] = facts
        return found


def _finished(rows: Sequence[Row]) -> Finished:
    table = np.array(rows, dtype=np.float64).T

    def whole(place: int) -> NDArray[np.int64]:
        column: NDArray[np.int64] = table[place].astype(np.int64)
        return column

    return Finished(
        at_s=table[AT],
        site=whole(SITE),
        prompt_tokens=whole(PROMPT),
        output_tokens=whole(OUTPUT),
        uncached_tokens=whole(UNCACHED),
        computed_tokens=whole(COMPUTED),
        reason=whole(REASON),
        remote=table[LINK] >= 0,
        prefill_start_s=table[START],
        prefill_end_s=table[END],
        ready_s=table[READY],
        decode_start_s=table[SLOT],
        end_s=table[DONE],
        kv_bytes=table[BYTES],
        retries=whole(RETRIES),
    )


def _under_way(rows: Sequence[Row]) -> UnderWay | None:
    if not rows:
        return None
    table = np.array(rows, dtype=np.float64).T
    return UnderWay(
        at_s=table[AT],
        site=table[SITE].astype(np.int64),
        reason=table[REASON].astype(np.int64),
        remote=table[LINK] >= 0,
        prefill_start_s=table[START],
    )
