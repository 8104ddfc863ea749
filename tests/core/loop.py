"""A fleet in numbers, closed around `decide`: Poisson arrivals, decayed windows, a fluid link.

Pure and seeded. The generator knows the true distribution; `decide` sees histograms only.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from routing.core import drift
from routing.core.decide import decide
from routing.core.model.lengths import LogNormalLengths
from routing.core.model.optimize import Freedom, optimise
from routing.core.model.throughput import FleetModel, Setting, predict
from routing.core.scenario.document import Scenario
from routing.core.types import (
    ClusterPlan,
    LengthHistogram,
    LengthShift,
    LinkObservation,
    Memory,
    Observation,
    Params,
    PdObservation,
    Plan,
    PrefillObservation,
    RoleChange,
    Verdict,
)
from tests.core.cases import LINK, TRUE_LENGTHS, WIRE_EDGES, demo_model

TICK_S = 2.0
TAU_S = 300.0
PARAMS = Params(mode="active", band_ratio=0.0)


@dataclass
class Window:
    """What gates would have counted: decayed weights per wire bucket."""

    counts: np.ndarray = field(default_factory=lambda: np.zeros(len(WIRE_EDGES) + 1))
    squares: float = 0.0
    elapsed_s: float = 0.0
    n_seen: int = 0
    ticks: deque[np.ndarray] = field(default_factory=lambda: deque(maxlen=int(4 * TAU_S / TICK_S)))

    def restart(self, age_s: float) -> None:
        """Forget lengths older than `age_s`; demand is that of the tick rate either way."""
        kept = list(self.ticks)[-round(age_s / TICK_S) :]
        demand_rps = self.demand_rps
        self.counts, self.squares, self.elapsed_s = np.zeros(len(WIRE_EDGES) + 1), 0.0, 0.0
        n_seen = self.n_seen
        self.ticks.clear()
        for lengths in kept:
            self.add(lengths, TICK_S)
        self.n_seen = n_seen
        self.elapsed_s = float(self.counts.sum()) / demand_rps

    def shifts(self) -> tuple[LengthShift, ...]:
        found = []
        for span_s in drift.SPANS_S:
            ticks, n = list(self.ticks), round(span_s / TICK_S)
            if len(ticks) <= n:
                break
            now, then = (np.log(np.concatenate(part)) for part in (ticks[-n:], ticks[:-n]))
            if len(now) and len(then):
                sd = math.sqrt(
                    (now.var() * len(now) + then.var() * len(then)) / (len(now) + len(then))
                )
                found.append(LengthShift(span_s, len(now), now.mean(), len(then), then.mean(), sd))
        return tuple(found)

    def add(self, lengths: np.ndarray, elapsed_s: float) -> None:
        self.ticks.append(lengths)
        fade = math.exp(-elapsed_s / TAU_S)
        new = np.bincount(
            np.searchsorted(WIRE_EDGES, lengths, side="left"), minlength=len(self.counts)
        )
        self.counts = self.counts * fade + new
        self.squares = self.squares * fade**2 + len(lengths)
        self.elapsed_s = self.elapsed_s * fade + elapsed_s
        self.n_seen += len(lengths)

    @property
    def demand_rps(self) -> float:
        return float(self.counts.sum()) / self.elapsed_s

    def histogram(self) -> LengthHistogram | None:
        weight = float(self.counts.sum())
        if not weight:
            return None
        return LengthHistogram(
            edges=tuple(WIRE_EDGES.tolist()),
            counts=tuple(self.counts.tolist()),
            n_effective=weight**2 / self.squares,
            n_seen=self.n_seen,
        )


@dataclass
class FluidLink:
    """Bytes that arrive wait in one backlog and leave at the capacity."""

    backlog_bits: float = 0.0
    tx_gbps: float = 0.0

    def pass_time(self, arriving_bits: float, capacity_gbps: float, elapsed_s: float) -> None:
        waiting = self.backlog_bits + arriving_bits
        sent = min(waiting, capacity_gbps * 1e9 * elapsed_s)
        self.backlog_bits = waiting - sent
        self.tx_gbps = sent / elapsed_s / 1e9


@dataclass
class Movers:
    """Engines that change roles one after the other, `move_s` each, towards what the plan asks.

    `succeeds` False: nothing moves and the attempt expires after `deadline_s`.
    """

    roles: tuple[int, int] = (3, 5)
    move_s: float = 40.0
    deadline_s: float = 600.0
    succeeds: bool = True
    change: RoleChange | None = None
    n_moved: int = 0
    _next_s: float = 0.0

    def follow(self, cluster: ClusterPlan, now_s: float) -> None:
        wanted = (cluster.n_prefill, cluster.n_decode)
        change = self.change
        if change is None or change.state != "running":
            if wanted != self.roles:
                n = 1 if change is None else change.id + 1
                self.change = RoleChange(n, "running", *wanted, since_s=now_s)
                self._next_s = now_s + self.move_s
            return
        if wanted != (change.n_prefill, change.n_decode):
            self._end("cancelled", now_s)
        elif not self.succeeds and now_s - change.since_s >= self.deadline_s:
            self._end("expired", now_s)
        elif self.succeeds and now_s >= self._next_s:
            n_prefill = self.roles[0] + (1 if wanted[0] > self.roles[0] else -1)
            self.roles = (n_prefill, sum(self.roles) - n_prefill)
            self.n_moved += 1
            self._next_s = now_s + self.move_s
            if self.roles == wanted:
                self._end("done", now_s)

    def _end(self, state: Any, now_s: float) -> None:
        assert self.change is not None
        self.change = dataclasses.replace(self.change, state=state, ended_at_s=now_s)


@dataclass(frozen=True)
class Passed:
    """One tick of a run: when, the verdict, the link's backlog, the t and roles before it."""

    at_s: float
    verdict: Verdict
    backlog_bits: float
    tx_gbps: float
    threshold: int | None
    roles: tuple[int, int] = (3, 5)


def first_plan(threshold: int, roles: tuple[int, int] = (3, 5)) -> Plan:
    cluster = ClusterPlan("threshold", threshold, *roles, remote={"prfaas": 1.0})
    return Plan("prfaas-1t", 1, 1, {"pd": cluster})


def run(
    scenario: Scenario,
    *,
    seed: int,
    duration_s: float,
    rate_rps: float,
    start_tokens: int = 4000,
    lengths: Callable[[float], LogNormalLengths] = lambda at_s: TRUE_LENGTHS,
    link_gbps: Callable[[float], float] = lambda at_s: 100.0,
    params: Params = PARAMS,
    movers: Movers | None = None,
) -> list[Passed]:
    """Every tick of a closed loop of `duration_s`.

    Capacity of the link by `link_gbps(at_s)`, the mix by `lengths(at_s)`; `movers` keep the roles,
    and are changed by the run.
    """
    rng = np.random.default_rng(seed)
    window, link = Window(), FluidLink()
    movers = movers or Movers()
    plan, memory = first_plan(start_tokens, movers.roles), Memory()
    passed = []
    for at_s in np.arange(TICK_S, duration_s + TICK_S / 2, TICK_S):
        arrived = _sample(lengths(float(at_s)), rng, rng.poisson(rate_rps * TICK_S))
        window.add(arrived, TICK_S)
        t = plan.clusters["pd"].threshold_tokens
        long = arrived[arrived > (math.inf if t is None else t)]
        capacity = link_gbps(at_s)
        bits = 8.0 * float(np.sum(scenario.model.kv_bytes(long)))
        link.pass_time(bits, capacity, TICK_S)
        seen = LinkObservation(
            capacity_gbps=capacity,
            tx_gbps=link.tx_gbps,
            state="value",
            retransmit_ratio=0.0,
            rtt_s=0.005 * (3.0 if link.backlog_bits else 1.0),
            age_s=0.5,
        )
        observation = Observation(
            now_s=float(at_s),
            fleet="prfaas-1t",
            pd={
                "pd": PdObservation(
                    demand_rps=window.demand_rps,
                    demand_state="value" if window.n_seen else "idle",
                    lengths=window.histogram(),
                    n_prefill=movers.roles[0],
                    n_decode=movers.roles[1],
                    age_s=0.5,
                    shifts=window.shifts(),
                    role_change=movers.change,
                )
            },
            prefill={"prfaas": PrefillObservation(n_prefill=4, age_s=0.5)},
            links={LINK: seen},
        )
        verdict = decide(observation, plan, memory, params, scenario)
        passed.append(
            Passed(float(at_s), verdict, link.backlog_bits, link.tx_gbps, t, movers.roles)
        )
        plan = verdict.plan
        if verdict.memory.lengths_since_s != memory.lengths_since_s:
            window.restart(float(at_s) - verdict.memory.lengths_since_s["pd"])
        memory = verdict.memory
        movers.follow(plan.clusters["pd"], float(at_s))
    return passed


def _sample(lengths: LogNormalLengths, rng: np.random.Generator, n: int) -> np.ndarray:
    """`n` truncated log-normal lengths, by rejection."""
    kept: list[float] = []
    while len(kept) < n:
        drawn = np.exp(rng.normal(lengths.mu, lengths.sigma, n))
        kept += drawn[(drawn >= lengths.min_tokens) & (drawn <= lengths.max_tokens)].tolist()
    return np.array(kept[:n])


def true_share(model: FleetModel, thresholds: np.ndarray) -> np.ndarray:
    """Exact capacity at each t, true parameters, as a share of the best t's."""
    free = {"pd": Freedom.of_threshold(512, 131_072, n_prefill=3, n_decode=5)}
    best = optimise(model, free).prediction.lambda_max_rps
    return np.array(
        [predict(model, {"pd": Setting(float(t), 3, 5)}).lambda_max_rps / best for t in thresholds]
    )


def capacity_share(passed: list[Passed], *, from_s: float) -> float:
    """The least true capacity share of any plan in force from `from_s` on."""
    in_force = {p.verdict.plan.clusters["pd"].threshold_tokens for p in passed if p.at_s >= from_s}
    return float(true_share(demo_model(), np.array(sorted(t for t in in_force if t))).min())


def changes(passed: list[Passed]) -> list[Passed]:
    return [p for p in passed if p.verdict.action == "adopt"]
