"""Everything one pass of the loop knows, derived once, and the two verdicts it can end in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from routing.core import congestion, drift, fleetmodel, hysteresis, role_memory
from routing.core.congestion import LinkView
from routing.core.lengths import usable
from routing.core.scenario import Cluster, Link, Scenario
from routing.core.throughput import FleetModel, Setting, predict
from routing.core.types import (
    Clamp,
    ClusterPlan,
    HeldPlan,
    Memory,
    Observation,
    Params,
    PdObservation,
    Plan,
    Prediction,
    Verdict,
)
from routing.core.uncertainty import Outlook, outlook, smooth, together

FORMULA = "exact-3"
"""Method `exact` with thresholds chosen under sampling noise; stored with every verdict."""
LEAST_RPS, MAX_PLAUSIBLE_RPS = 1e-6, 1e6
"""Less than a request in ten days is none; more than this is a counter gone wrong."""


@dataclass(frozen=True)
class Situation:
    """Inputs of a pass. `memory` already holds what this tick's readings add to it."""

    observation: Observation
    plan: Plan
    memory: Memory
    params: Params
    scenario: Scenario
    links: Mapping[str, LinkView]

    @property
    def now_s(self) -> float:
        return self.observation.now_s

    @cached_property
    def clusters(self) -> dict[str, ClusterPlan]:
        """The PD clusters this pass is about: planned, described and observed."""
        described = {c.name for c in self.scenario.clusters if c.kind == "pd"}
        return {
            name: plan
            for name, plan in self.plan.clusters.items()
            if name in described and name in self.observation.pd
        }

    @cached_property
    def pins(self) -> dict[str, HeldPlan]:
        """The hold in force per cluster: its own before one of the whole fleet, the newest last."""
        pins = {}
        for name in self.clusters:
            holds = [h for h in self.params.holds if h.expires_at_s > self.now_s]
            own = [h for h in holds if h.cluster == name]
            everyones = [h for h in holds if h.cluster is None]
            if own or everyones:
                pins[name] = (own or everyones)[-1]
        return pins

    def links_into(self, cluster: str) -> list[Link]:
        """Every link that could bring KV to the cluster, down or not."""
        return fleetmodel.links_into(self.scenario, cluster, self.links.keys())

    def links_up(self, cluster: str) -> list[Link]:
        return [link for link in self.links_into(cluster) if not self.links[link.id].down]

    def cluster(self, name: str) -> Cluster:
        """The description of one of `clusters`."""
        found = self.scenario.cluster(name)
        assert found is not None, "a cluster of this pass is described"
        return found

    def demand_rps(self, cluster: str) -> float | None:
        """Requests a second that arrive, None when that was not measured."""
        seen = self.observation.pd[cluster]
        if seen.demand_state == "idle":
            return 0.0
        if seen.demand_state != "value" or seen.demand_rps is None:
            return None
        if not 0.0 <= seen.demand_rps <= MAX_PLAUSIBLE_RPS:
            return None
        return seen.demand_rps if seen.demand_rps >= LEAST_RPS else 0.0

    @cached_property
    def busy(self) -> list[str]:
        """Clusters with traffic."""
        return [name for name in self.clusters if (self.demand_rps(name) or 0.0) > 0.0]

    @cached_property
    def tunable(self) -> list[str]:
        """Clusters whose threshold the loop may choose: not pinned, and something to send to."""
        return [n for n in self.clusters if n not in self.pins and self.links_up(n)]

    @cached_property
    def movable(self) -> list[str]:
        """Clusters whose roles the loop may choose: not pinned, and with stacks to ask."""
        if self.params.roles_mode == "fixed":
            return []
        described = {name: self.cluster(name) for name in self.clusters if name not in self.pins}
        return [n for n, c in described.items() if c.control_urls and not (c.pinned or c.drained)]

    @cached_property
    def outlooks(self) -> dict[str, Outlook]:
        """What is known of the lengths of every busy cluster that counted any."""
        found = {}
        for name in self.busy:
            seen = self.observation.pd[name].lengths
            if seen is not None and usable(seen):
                found[name] = outlook(together(seen, self.memory.lengths.get(name)))
        return found

    @cached_property
    def model(self) -> FleetModel | None:
        """The fleet at its observed traffic; None without traffic or where lengths are unknown."""
        if not self.busy or self.outlooks.keys() != set(self.busy):
            return None
        return fleetmodel.of_observation(
            self.scenario,
            self.observation,
            lengths={name: self.outlooks[name].lengths for name in self.busy},
            capacity_gbps={i: v.capacity_gbps for i, v in self.links.items() if not v.down},
        )

    def settings(self, clusters: Mapping[str, ClusterPlan]) -> dict[str, Setting]:
        """Plans as the model sees them."""
        return {
            name: fleetmodel.setting(clusters[name], self.observation.pd[name])
            for name in self.busy
        }

    def predict(self, clusters: Mapping[str, ClusterPlan]) -> Prediction | None:
        return None if self.model is None else predict(self.model, self.settings(clusters))

    @cached_property
    def current(self) -> Prediction | None:
        return self.predict(self.clusters)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        said = list(fleetmodel.assumptions(self.scenario, self.observation))
        if self.current is not None and (self.current.headroom or 0.0) < 1.0:
            said.append("demand is above what the running plan carries")
        return tuple(said)

    @property
    def earliest_change_s(self) -> float:
        """When a better plan that shows in the next moment could be adopted."""
        dwell_s = hysteresis.wait_until(
            self.memory.last_change_s, self.params.t_dwell_s, self.now_s
        )
        return max(self.now_s + self.params.t_gain_hold_s, dwell_s)

    def hold(
        self,
        reason: str,
        message: str,
        *,
        next_at_s: float | None = None,
        gain_since_s: float | None = None,
        clamps: tuple[Clamp, ...] = (),
    ) -> Verdict:
        """The plan stays. `gain_since_s` is kept only where a gain waits for its dampers."""
        return Verdict(
            action="hold",
            reason=reason,
            message=message,
            plan=self.plan,
            memory=dataclasses.replace(
                self.memory, gain_since_s=gain_since_s, roles_gain_since_s=None
            ),
            current=self.current,
            clamps=clamps,
            warnings=self.warnings,
            next_action_at_s=self.earliest_change_s if next_at_s is None else next_at_s,
            formula=FORMULA,
        )

    def adopt(
        self,
        changed: Mapping[str, ClusterPlan],
        reason: str,
        message: str,
        *,
        clamps: tuple[Clamp, ...] = (),
        before_down: Mapping[str, int] | None = None,
    ) -> Verdict:
        """`changed` clusters run something else from now on, the others what they ran."""
        clusters = {**self.plan.clusters, **changed}
        recent = hysteresis.within_the_hour(self.memory.changes_s, self.now_s)
        advice = self.params.mode == "advisory"  # changes nothing, so it uses up no limit
        memory = dataclasses.replace(
            self.memory,
            gain_since_s=None,
            roles_gain_since_s=None,
            last_change_s=self.memory.last_change_s if advice else self.now_s,
            changes_s=recent if advice else (*recent, self.now_s),
            before_down=dict(self.memory.before_down if before_down is None else before_down),
        )
        plan = dataclasses.replace(self.plan, version=self.plan.version + 1, clusters=clusters)
        return Verdict(
            action="adopt",
            reason=reason,
            message=message,
            plan=plan,
            memory=memory,
            current=self.current,
            adopted=self.predict(clusters),
            clamps=clamps,
            warnings=self.warnings,
            next_action_at_s=self.now_s + self.params.t_dwell_s,
            formula=FORMULA,
        )

    def too_soon(self) -> tuple[str, float] | None:
        """Which limit on the number of changes is reached, and until when; None if none is."""
        params, now_s = self.params, self.now_s
        push_s = hysteresis.wait_until(self.memory.last_change_s, params.push_min_interval_s, now_s)
        if push_s > now_s:
            return f"pushes are at least {params.push_min_interval_s:g} s apart", push_s
        limit = params.max_changes_per_hour
        free_s = hysteresis.free_at(self.memory.changes_s, limit, now_s)
        if free_s > now_s:
            return f"the limit of {limit} changes an hour is reached", free_s
        return None


def survey(
    observation: Observation, plan: Plan, memory: Memory, params: Params, scenario: Scenario
) -> Situation:
    """Inputs together with what their link readings and windows add to memory."""
    views = {
        link.id: congestion.view(
            link,
            observation.links.get(link.id),
            memory.links.get(link.id, congestion.NEW_LINK),
            memory.base_rtt_s.get(link.id),
            now_s=observation.now_s,
            params=params,
        )
        for link in scenario.links
    }
    congested = [v.memory.since_s for v in views.values() if v.congested]
    clearing = [v.memory.clear_since_s for v in views.values() if v.congested]
    memory = dataclasses.replace(
        memory,
        links={name: seen.memory for name, seen in views.items()},
        base_rtt_s={n: v.base_rtt_s for n, v in views.items() if v.base_rtt_s is not None},
        congested_since_s=min((s for s in congested if s is not None), default=None),
        clear_since_s=max((c for c in clearing if c is not None), default=None)
        if clearing and None not in clearing
        else None,
        changes_s=hysteresis.within_the_hour(memory.changes_s, observation.now_s),
    )
    memory = drift.noticed(memory, observation)
    memory = _with_lengths(memory, observation.pd, observation.now_s)
    memory = role_memory.remembered(memory, observation, plan, scenario)
    return Situation(observation, plan, memory, params, scenario, views)


def _with_lengths(memory: Memory, seen: Mapping[str, PdObservation], now_s: float) -> Memory:
    elapsed_s = 0.0 if memory.smoothed_at_s is None else now_s - memory.smoothed_at_s
    smoothed = {}
    for name, cluster in seen.items():
        window = cluster.lengths
        if window is not None and usable(window):
            smoothed[name] = smooth(window, memory.lengths.get(name), elapsed_s=elapsed_s)
    return dataclasses.replace(memory, lengths=smoothed, smoothed_at_s=now_s)
