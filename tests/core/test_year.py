"""A year of ticks: whatever the fleet shows, plans stay in bounds and keep to their pace.

Every path has its own limits (docs/algorithms.md, Dampers); the judge below knows them and keeps
its own record of what was changed when.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest

from routing.core.decide import decide
from routing.core.jsonable import from_jsonable, to_jsonable
from routing.core.reasons import REASONS
from routing.core.steps import kept_for_failures, t_of
from routing.core.types import (
    ClusterPlan,
    Memory,
    Observation,
    Params,
    PdObservation,
    Plan,
    Verdict,
)
from tests.core.year import CLUSTERS, MINIMA, SCENARIO, YEAR_S, Year

MOST_MEMORY_BYTES = 32_768
"""Two clusters with 75 buckets each, three links, and at most 60 changes of an hour."""
TUNED = (
    *("PrefillImbalance", "LinkLimit", "Congestion", "CongestionCleared", "LeastRemote"),
    "ShareImbalance",
)
ASTRAY_S = 15.0
URGENT = ("LinkDown", "OutOfBounds", "Congestion", "FloorRestored")
URGENT_SAID = (" is down: ", " fail: ", "the policy allows", " must prefill and ")
ROLES = ("RoleImbalance", "FloorRestored", "RolesFollowed", "RolesCancelled")


@dataclass
class Since:
    """By the judge's own clock, since when something holds without a pause, under any name."""

    at_s: dict[str, float] = field(default_factory=dict)

    def hear(self, name: str, holds: bool, now_s: float) -> None:
        if holds:
            # A clock that was set back begins every wait anew.
            self.at_s[name] = min(self.at_s.get(name, now_s), now_s)
        else:
            self.at_s.pop(name, None)

    def lasted_s(self, name: str, now_s: float) -> float:
        return now_s - self.at_s[name] if name in self.at_s else 0.0


@dataclass
class Judge:
    """Times of what was adopted, and what each adoption had to keep to."""

    changes_s: list[float] = field(default_factory=list)
    roles_s: float | None = None
    reasons: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    most_bytes: int = 0
    n_adopted: int = 0
    gains: Since = field(default_factory=Since)
    astray: Since = field(default_factory=Since)
    dead_at_s: dict[str, float] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)

    def hear(self, seen: Observation, before: Plan, params: Params, verdict: Verdict) -> None:
        now_s = seen.now_s
        # The clock was set back: what lies ahead of it has just been.
        self.changes_s = [min(at_s, now_s) for at_s in self.changes_s if at_s > now_s - 3600.0]
        self.roles_s = None if self.roles_s is None else min(self.roles_s, now_s)
        self._watch(seen, before)
        self.reasons[verdict.reason] += 1
        self.labels[verdict.bottleneck.label] += 1
        self._explained(verdict, now_s)
        self._lasted(verdict, params, now_s)
        if verdict.action == "hold":
            assert verdict.plan == before
            return
        self.n_adopted += 1
        assert params.mode != "paused"
        assert verdict.plan.version == before.version + 1
        for name, after in verdict.plan.clusters.items():
            self._in_bounds(name, before.clusters[name], after, params, verdict)
        if params.mode == "active":
            self._not_too_soon(verdict, params, now_s)
        for name, after in verdict.plan.clusters.items():
            self._stepped(name, seen, before.clusters[name], after, params, verdict)
            self._not_over_what_was_dead(name, before.clusters[name], after, params, verdict, now_s)
        if params.mode == "active":
            self.changes_s.append(now_s)
            if verdict.reason in ("RoleImbalance", "FloorRestored"):
                self.roles_s = now_s

    def _watch(self, seen: Observation, before: Plan) -> None:
        """What this tick shows of links, of attempts that ended, of engines gone astray."""
        now_s = seen.now_s
        self.dead_at_s = {link: min(at_s, now_s) for link, at_s in self.dead_at_s.items()}
        self.dead_at_s |= {n: now_s for n, link in seen.links.items() if link.capacity_gbps == 0.0}
        for name, plan in before.clusters.items():
            found = seen.pd.get(name)
            change = None if found is None else found.role_change
            running = change is not None and change.state == "running"
            if change is not None and not running and self.ended.get(name) != change.id:
                self.ended[name] = change.id
                good = change.state == "done"
                self.failed[name] = 0 if good else self.failed.get(name, 0) + 1
            roles = (plan.n_prefill, plan.n_decode)
            strayed = found is not None and (found.n_prefill, found.n_decode) != roles
            self.astray.hear(name, strayed and not running, now_s)

    def _lasted(self, verdict: Verdict, params: Params, now_s: float) -> None:
        """A gain was in sight for as long as it has to be, in every tick in between."""
        reason, kept = verdict.reason, verdict.memory
        # The tick that adopts has forgotten the gain that it came for.
        for name, here, since_s, hold_s in (
            ("t", TUNED, kept.gain_since_s, params.t_gain_hold_s),
            ("roles", ("RoleImbalance",), kept.roles_gain_since_s, params.roles_gain_hold_s),
        ):
            if verdict.action == "adopt" and reason in here and reason != "Congestion":
                assert self.gains.lasted_s(name, now_s) >= hold_s, verdict.message
            self.gains.hear(name, since_s is not None, now_s)

    def _not_over_what_was_dead(
        self,
        name: str,
        before: ClusterPlan,
        after: ClusterPlan,
        params: Params,
        verdict: Verdict,
        now_s: float,
    ) -> None:
        """Nobody but a person sends over a link that was down within the clear time."""
        if verdict.reason == "Held" or "held by" in verdict.message:
            return
        for source in _remotes(after) - _remotes(before):
            dead_at_s = self.dead_at_s.get(f"{source}->{name}", -math.inf)
            assert now_s - dead_at_s >= params.congestion_clear_s, verdict.message

    def _explained(self, verdict: Verdict, now_s: float) -> None:
        assert verdict.reason in REASONS
        assert verdict.message.endswith(".")
        assert len(verdict.alternatives) <= 8
        at_s = verdict.next_action_at_s
        if verdict.reason != "Paused":
            assert at_s is not None
            assert math.isfinite(at_s)
        stored = json.dumps(to_jsonable(verdict), allow_nan=False)
        if verdict.action == "adopt" or self.reasons.total() % 10 == 0:  # it is slow
            assert from_jsonable(Verdict, json.loads(stored)) == verdict
        remembered = json.dumps(to_jsonable(verdict.memory), allow_nan=False)
        self.most_bytes = max(self.most_bytes, len(remembered))
        assert self.most_bytes <= MOST_MEMORY_BYTES

    def _in_bounds(
        self, name: str, before: ClusterPlan, after: ClusterPlan, params: Params, verdict: Verdict
    ) -> None:
        t = after.threshold_tokens
        assert (t is None) == (after.mode != "threshold")
        if t is not None and t != before.threshold_tokens:
            assert params.t_min_tokens <= t <= params.t_max_tokens, verdict.message
        assert after.n_prefill >= 1, verdict.message
        assert after.n_decode >= 1, verdict.message
        assert after.n_prefill + after.n_decode <= CLUSTERS[name], verdict.message
        assert all(0.0 <= weight <= 1.0 for weight in after.remote.values())
        assert sum(after.remote.values()) == pytest.approx(1.0)
        if after.band is not None:
            assert t is not None
            assert after.band[0] <= t <= after.band[1]

    def _not_too_soon(self, verdict: Verdict, params: Params, now_s: float) -> None:
        last_s = self.changes_s[-1] if self.changes_s else -math.inf
        assert now_s - last_s >= params.push_min_interval_s, verdict.message
        by_person = verdict.reason == "Held" or "held by" in verdict.message
        if not by_person:
            limit = params.max_changes_per_hour
            # The reason is that of the first cluster, the urgent one may be another.
            urgent = verdict.reason in URGENT or any(
                text in verdict.message for text in URGENT_SAID
            )
            kept = 0 if urgent else kept_for_failures(limit)
            assert len(self.changes_s) < limit - kept, verdict.message
        if verdict.reason in TUNED and verdict.reason != "Congestion":
            assert now_s - last_s >= params.t_dwell_s, verdict.message

    def _stepped(
        self,
        name: str,
        seen: Observation,
        before: ClusterPlan,
        after: ClusterPlan,
        params: Params,
        verdict: Verdict,
    ) -> None:
        reason = verdict.reason
        if reason in (*TUNED, "RoleImbalance"):
            was, now = max(t_of(before, params), 128.0), t_of(after, params)
            factor = params.t_max_step_factor
            assert was / factor - 1.0 <= max(now, 128.0), verdict.message
            assert now <= max(was * factor, params.t_min_tokens), verdict.message
        roles = (after.n_prefill, after.n_decode)
        if roles == (before.n_prefill, before.n_decode):
            return
        assert reason in ROLES, verdict.message
        found = seen.pd[name]
        self._roles_in_time(name, found, params, verdict, seen.now_s)
        if reason == "RoleImbalance":
            most = max(1, int(params.roles_max_step_ratio * sum(roles) + 1e-9))
            assert 1 <= abs(roles[1] - found.n_decode) <= most, verdict.message
            contrary = "decode" if roles[0] > found.n_prefill else f"local_prefill:{name}"
            label = verdict.bottlenecks[name]
            assert label.label != "unknown"
            assert not (label.measured and contrary in (label.label, label.stage))
            n_read = sum(roles) - len({*found.prefill_silent, *found.decode_silent})
            assert n_read >= params.quorum_ratio * CLUSTERS[name]
        if reason in ("RoleImbalance", "FloorRestored"):
            assert roles[0] >= MINIMA[name][0], verdict.message
            assert roles[1] >= MINIMA[name][1], verdict.message

    def _roles_in_time(
        self, name: str, found: PdObservation, params: Params, verdict: Verdict, now_s: float
    ) -> None:
        """Roles follow engines after 15 s, are called back at once, and else keep their dwell."""
        if f"The move of {name} to" in verdict.message:
            return
        if f"Engines of {name} run" in verdict.message:
            assert self.astray.lasted_s(name, now_s) >= ASTRAY_S, verdict.message
            return
        dwell_s = params.roles_dwell_s * min(2 ** self.failed.get(name, 0), 8)
        ended_s = None if found.role_change is None else found.role_change.ended_at_s
        if ended_s is not None and ended_s > now_s + 60.0:
            ended_s = None  # of a clock that was set back since
        for last_s in (self.roles_s, ended_s):
            assert last_s is None or now_s - min(last_s, now_s) >= dwell_s, verdict.message


def _remotes(plan: ClusterPlan) -> set[str]:
    if plan.mode == "always_local":
        return set()
    return {source for source, weight in plan.remote.items() if weight > 0.0}


def live_through(n_ticks: int, seed: int) -> tuple[Judge, Year, float]:
    """The judge of `n_ticks`, the fleet at their end, and how much time it lived through."""
    year, judge, memory = Year(np.random.default_rng(seed)), Judge(), Memory()
    plan = Plan(
        "prfaas-1t",
        1,
        1,
        {
            "pd": ClusterPlan("threshold", 13_000, 3, 5, {"prfaas": 0.7, "far": 0.3}),
            "pd2": ClusterPlan("threshold", 13_000, 1, 2, {"prfaas": 1.0}),
        },
    )
    began_s = year.now_s
    for _ in range(n_ticks):
        seen, params = year.tick(plan)
        verdict = decide(seen, plan, memory, params, SCENARIO)
        judge.hear(seen, plan, params, verdict)
        memory = verdict.memory
        if verdict.action == "adopt" and params.mode == "active":
            plan = verdict.plan
    return judge, year, year.now_s - began_s


def test_some_weeks_of_ticks() -> None:
    judge, _, _ = live_through(300, seed=7)
    assert judge.n_adopted >= 5, judge.reasons
    assert len(judge.reasons) >= 8, judge.reasons
    assert len(judge.labels) >= 3, judge.labels


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_year_of_ticks() -> None:
    """20,000 ticks that span about a year."""
    judge, _, lived_s = live_through(20_000, seed=20_260_422)
    assert 0.7 * YEAR_S <= lived_s <= 1.5 * YEAR_S
    adopted = {
        *(*ROLES, "PrefillImbalance", "LinkDown", "LinkBack", "Held", "Congestion"),
        *("OutOfBounds", "LeastRemote", "CacheAbundant", "CacheScarce", "PolicyChanged"),
    }
    held = {
        *("Paused", "StaleTelemetry", "BelowQuorum", "NoTraffic", "Optimal"),
        *("GainPending", "RolesGainPending", "Dwell", "RateLimited", "BottleneckForbids"),
    }
    missing = (adopted | held) - judge.reasons.keys()
    assert not missing, f"the year never came to {missing}: {judge.reasons}"
    assert {"prefill", "decode", "link", "unknown"} <= judge.labels.keys()
