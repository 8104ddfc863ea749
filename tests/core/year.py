"""A fleet that has every kind of bad year, seeded: what it shows the loop, tick by tick.

Two PD clusters, of eight and of three instances, share two PrfaaS clusters. Calm weeks alternate
with storms in which readings are missing, failed, not numbers, negative or absurd; gaps run from a
tick to days, and the clock is set back now and then. People hold plans and change the policy,
engines are switched by hand, rebalances end in every way there is.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from routing.core.model.lengths import LogNormalLengths
from routing.core.scenario.document import Scenario, parse_scenario
from routing.core.types import (
    ClusterPlan,
    HeldPlan,
    LengthHistogram,
    LengthShift,
    LinkObservation,
    Observation,
    Params,
    PdObservation,
    Plan,
    PrefillObservation,
    RoleChange,
)
from tests.core.cases import demo_document, exact_histogram

YEAR_S = 365 * 86_400.0
CLUSTERS = {"pd": 8, "pd2": 3}
MINIMA = {"pd": (2, 2), "pd2": (1, 1)}
ABSURD = (math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-300, 1e300, 1e12)
_MIXES = tuple(
    exact_histogram(1500.0, LogNormalLengths(mu, 1.0, 128, 131_072)) for mu in (9.2, 9.9, 10.4)
)
_BAD_LENGTHS = (
    None,
    LengthHistogram((), (), 0.0, 0.0),
    LengthHistogram((1.0, 2.0), (0.0, 0.0, 0.0), 0.0, 5000.0),
    LengthHistogram((1.0, 2.0), (-1.0, math.nan, math.inf), math.nan, 5000.0),
    LengthHistogram((5.0, 2.0), (1.0, 1.0, 1.0), 300.0, 300.0),
    LengthHistogram((128.0, 4096.0), (1.0, 1.0), 300.0, 300.0),
    exact_histogram(20.0),
)


def scenario() -> Scenario:
    document = demo_document()
    first, second = document["clusters"]
    second |= {"control_urls": ["http://s"], "min_prefill": 2, "min_decode": 2}
    document["clusters"] = [
        first,
        {**first, "name": "far", "instances": 2},
        second,
        {**second, "name": "pd2", "instances": 3, "min_prefill": 1, "min_decode": 1},
    ]
    near = document["links"][0]
    document["links"] = [
        near,
        {**near, "from": "far", "gbps": 20.0},
        {**near, "to": "pd2", "gbps": 40.0},
    ]
    traffic = document.pop("workload")
    document["workloads"] = [{**traffic, "cluster": name} for name in CLUSTERS]
    return parse_scenario(document)


SCENARIO = scenario()


@dataclass
class Engines:
    """The roles engines really have, and the rebalance that moves them, if one does."""

    roles: tuple[int, int]
    change: RoleChange | None = None
    ends_s: float = 0.0
    fate: str = "done"


@dataclass
class Year:
    """What is true. `tick` moves it on and returns what the loop is shown and told."""

    rng: np.random.Generator
    now_s: float = 1_700_000_000.0
    left: int = 0
    storm: float = 0.0
    params: Params = field(default_factory=lambda: Params(mode="active", band_ratio=0.0))
    demand_rps: dict[str, float] = field(default_factory=lambda: {"pd": 2.0, "pd2": 0.6})
    mixes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CLUSTERS, 1))
    down: set[str] = field(default_factory=set)
    used_ratio: float = 0.3
    lost: bool = False
    slow: bool = False
    engines: dict[str, Engines] = field(
        default_factory=lambda: {"pd": Engines((3, 5)), "pd2": Engines((1, 2))}
    )

    def tick(self, running: Plan) -> tuple[Observation, Params]:
        self._pass_time()
        for name, engines in self.engines.items():
            self._move(engines, running.clusters[name], CLUSTERS[name])
        self._people()
        links = {link.id: self._link(link.id, link.gbps) for link in SCENARIO.links}
        remotes = {"prfaas": 4, "far": 2}
        observation = Observation(
            now_s=self.now_s,
            fleet="prfaas-1t",
            pd={name: self._pd(name) for name in CLUSTERS if not self._by(0.05 * self.storm)},
            prefill={
                name: PrefillObservation(self._count(n), self._number(0.0), self._number(1.0))
                for name, n in remotes.items()
                if not self._by(0.05 * self.storm)
            },
            links={i: seen for i, seen in links.items() if not self._by(0.05 * self.storm)},
        )
        return observation, self.params

    def _by(self, chance: float) -> bool:
        return bool(self.rng.random() < chance)

    def _pass_time(self) -> None:
        """Ticks every 2 s in episodes of calm or storm, with hours and days between them."""
        self.left -= 1
        if self.left > 0:
            self.now_s += 2.0 if self._by(0.9) else float(self.rng.uniform(0.0, 90.0))
            if self._by(0.003):
                self.now_s -= float(self.rng.choice([1.0, 30.0, 3_600.0, 90_000.0]))
            return
        if self._by(0.7):
            self.params = Params(mode="active", band_ratio=0.0)
        self.down = set()
        self.used_ratio = float(self.rng.choice([0.05, 0.3, 0.95], p=[0.45, 0.45, 0.1]))
        self.lost = self._by(0.1)
        self.slow = self._by(0.1)
        self.left = int(self.rng.integers(30, 200))
        self.now_s += float(self.rng.exponential(YEAR_S / 175))
        self.storm = float(self.rng.choice([0.0, 0.02, 0.5, 1.0], p=[0.3, 0.4, 0.2, 0.1]))
        for name, most in (("pd", 4.0), ("pd2", 1.2)):
            self.demand_rps[name] = 0.0 if self._by(0.1) else float(self.rng.uniform(0.1, most))
            self.mixes[name] = int(self.rng.integers(len(_MIXES)))

    def _people(self) -> None:
        if self._by(0.008):
            self.params = dataclasses.replace(
                self.params,
                mode=self._one(*["active"] * 6, "advisory", "paused"),
                objective=self._one("max_headroom", "max_headroom", "min_remote"),
                t_min_tokens=self._one(0, 512, 8_000),
                t_max_tokens=self._one(131_072, 131_072, 20_000),
                max_changes_per_hour=self._one(1, 5, 60, 60),
                roles_max_step_ratio=self._one(0.01, 0.25, 1.0),
                band_ratio=self._one(0.0, 0.2),
                max_remote_in_flight=self._one(None, 0, 100),
                cache_mode=self._one("auto", "scarce", "abundant"),
            )
        if self._by(0.003):
            hold = HeldPlan(
                cluster=self._one("pd", "pd2", None, "gone"),
                mode=self._one("threshold", "always_local", "always_remote"),
                threshold_tokens=self._one(None, 0, 9_000, 10**9),
                owner="ada",
                reason="incident",
                expires_at_s=self.now_s + float(self.rng.uniform(-100.0, 4_000.0)),
            )
            self.params = dataclasses.replace(self.params, holds=(*self.params.holds, hold)[-3:])

    def _one(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def _move(self, engines: Engines, plan: ClusterPlan, n: int) -> None:
        wanted, change = (plan.n_prefill, plan.n_decode), engines.change
        if change is not None and change.state == "running":
            if wanted != (change.n_prefill, change.n_decode):
                self._end(engines, "cancelled")
            elif self.now_s >= engines.ends_s:
                self._end(engines, engines.fate)
        elif wanted != engines.roles and self.params.mode == "active" and self._by(0.5):
            engines.change = RoleChange(
                id=0 if change is None else change.id + 1,
                state="running",
                n_prefill=wanted[0],
                n_decode=wanted[1],
                since_s=self.now_s,
            )
            engines.ends_s = self.now_s + float(self.rng.uniform(2.0, 200.0))
            engines.fate = self._one("done", "done", "expired", "failed", "cancelled")
        elif self._by(0.002):
            n_prefill = int(self.rng.integers(1, n))  # somebody's hand
            engines.roles = (n_prefill, n - n_prefill)

    def _end(self, engines: Engines, state: Any) -> None:
        change = engines.change
        assert change is not None
        engines.change = dataclasses.replace(
            change, state=state, ended_at_s=self.now_s + self._one(0.0, 0.0, 0.3), why="so it ended"
        )
        if state == "done":
            engines.roles = (change.n_prefill, change.n_decode)
        elif self._by(0.3):
            half = max((engines.roles[0] + change.n_prefill) // 2, 1)
            engines.roles = (half, max(sum(engines.roles) - half, 1))

    def _number(self, true: float | None) -> float | None:
        """The truth, or in a storm whatever a broken reader may say."""
        if not self._by(0.15 * self.storm):
            return true
        return None if self._by(0.5) else float(self._one(*ABSURD))

    def _count(self, true: int) -> int:
        return int(self._one(0, -1, 1, 10**6)) if self._by(0.05 * self.storm) else true

    def _silent(self, kind: str, n: int) -> tuple[str, ...]:
        chance = self.storm * 0.4
        return tuple(f"{kind}-{i}" for i in range(n) if self._by(chance) and self._by(chance))

    def _pd(self, name: str) -> PdObservation:
        engines, demand = self.engines[name], self.demand_rps[name]
        lengths = _MIXES[self.mixes[name]]
        bad = self._by(0.1 * self.storm)
        state = "idle" if demand == 0.0 else "value"
        if self._by(0.1 * self.storm):
            state = self._one("missing", "failed", "idle")
        n_prefill, n_decode = engines.roles
        full = self._by(0.02)
        shift = LengthShift(30.0, 80.0, 9.0, 900.0, 9.0 + self._one(0.0, 0.0, 2.0), 1.0)
        return PdObservation(
            demand_rps=self._number(demand),
            demand_state=state,
            lengths=self._one(*_BAD_LENGTHS) if bad else lengths,
            n_prefill=self._count(n_prefill),
            n_decode=self._count(n_decode),
            queue_prefill=self._number(40.0 if self._by(0.02) else 0.0),
            queue_decode=self._number(float(self.rng.poisson(1.0))),
            remote_share=self._number(float(self.rng.uniform(0.0, 1.0))),
            gates_silent=self._silent("gw", 3),
            age_s=self._number(1.0),
            movable_ratio=self._number(float(self.rng.uniform(0.0, 0.2))),
            shifts=(shift,) if self._by(0.01) else (),
            prefill_silent=self._silent("p", n_prefill),
            decode_silent=self._silent("d", n_decode),
            role_change=engines.change,
            prefill_warming=self._silent("p", n_prefill),
            decode_in_transfer=self._number(0.0),
            decode_kv_usage_ratio=self._number(0.99 if full else 0.5),
            preemptions_per_s=self._number(0.0),
            n_gates=3,
        )

    def _link(self, name: str, gbps: float) -> LinkObservation:
        if name in self.down:
            self.down -= {name} if self._by(0.1) else set()
        elif self._by(0.002):
            self.down.add(name)
        capacity = 0.0 if name in self.down else gbps
        used = self.used_ratio if self._by(0.9) else float(self.rng.uniform(0.0, 0.6))
        state = "value"
        if self._by(0.1 * self.storm):
            state = self._one("missing", "failed", "idle")
        return LinkObservation(
            capacity_gbps=self._number(capacity),
            tx_gbps=self._number(used * capacity),
            state=state,
            retransmit_ratio=self._number(0.02 if self.lost else 0.0),
            rtt_s=self._number(0.02 if self._by(0.002) else 0.005),
            age_s=self._number(0.5),
            connections=self._number(8.0),
            transfers=self._number(20.0),
            transfers_failed_ratio=self._number(0.9 if self._by(0.002) else 0.0),
            transfer_s=self._number(4.0 if self.slow else 0.1),
            transfer_bytes=self._number(5e8),
        )
