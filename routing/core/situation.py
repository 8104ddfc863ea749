"""Everything one pass of the loop knows, derived once, and the two verdicts it can end in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from routing.core import bottleneck, drift, effect, evidence, hysteresis, set_back, words
from routing.core.bottleneck import Roles
from routing.core.links import state as link_state
from routing.core.links.state import NEW_LINK, LinkView
from routing.core.model import fleetmodel
from routing.core.model.draws import FleetDraws, Loads
from routing.core.model.lengths import usable
from routing.core.model.optimize import Freedom, Optimum, optimise
from routing.core.model.throughput import FleetModel, Setting, predict
from routing.core.model.uncertainty import Outlook, outlook, smooth, together
from routing.core.roles import memory as role_memory
from routing.core.scenario.document import Cluster, Link, Scenario
from routing.core.steps import kept_for_failures
from routing.core.types import (
    Bottleneck,
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

FORMULA = "exact-4"
"""Method `exact` with thresholds chosen under sampling noise; stored with every verdict."""
Urgency = Literal["loop", "urgent", "person"]
"""Who asks for a change: the loop, a failure or a bound, a person."""
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
        """The hold of mode and t in force per cluster: its own before one of the whole fleet, the
        newest last."""
        holds = [h for h in self._holds if h.mode is not None]
        pins = {}
        for name in self.clusters:
            own = [h for h in holds if h.cluster == name]
            everyones = [h for h in holds if h.cluster is None]
            if own or everyones:
                pins[name] = (own or everyones)[-1]
        return pins

    @cached_property
    def role_pins(self) -> dict[str, HeldPlan]:
        """The hold of roles in force per cluster."""
        return {
            hold.cluster: hold
            for hold in self._holds
            if hold.cluster in self.clusters and None not in (hold.n_prefill, hold.n_decode)
        }

    @property
    def _holds(self) -> list[HeldPlan]:
        return [hold for hold in self.params.holds if hold.expires_at_s > self.now_s]

    def links_into(self, cluster: str) -> list[Link]:
        """Every link that could bring KV to the cluster, down or not."""
        return fleetmodel.links_into(self.scenario, cluster, self.links.keys())

    def views_into(self, cluster: str) -> list[LinkView]:
        return [self.links[link.id] for link in self.links_into(cluster)]

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
    def linked(self) -> list[str]:
        """Clusters whose threshold is the loop's: not pinned, and something to send to."""
        return [n for n in self.clusters if n not in self.pins and self.links_up(n)]

    @cached_property
    def gaps(self) -> dict[str, evidence.Gap]:
        """Clusters that cannot be judged now."""
        found = {}
        for name in self.clusters:
            links = self.links_up(name) if name in self.linked else []
            gap = evidence.gap_of(
                name,
                self.observation.pd[name],
                self.demand_rps(name),
                {link.id: self.links[link.id] for link in links},
                self.params,
                self.now_s,
            )
            if gap is not None:
                found[name] = gap
        return found

    @cached_property
    def tunable(self) -> list[str]:
        """Clusters whose threshold may be chosen now."""
        return [name for name in self.linked if name not in self.gaps]

    @cached_property
    def movable(self) -> list[str]:
        """Clusters whose roles may be chosen now."""
        return [name for name in self.staffed if name not in self.gaps]

    @cached_property
    def staffed(self) -> list[str]:
        """Clusters whose roles are the loop's: not pinned, with routers, without their planner."""
        if self.params.roles_mode == "fixed":
            return []
        held = {*self.pins, *self.role_pins}
        described = {name: self.cluster(name) for name in self.clusters if name not in held}
        return [
            name
            for name, c in described.items()
            if c.routers
            and not (c.pinned or c.drained or c.follows_planner or self.maintained(name))
        ]

    def maintained(self, name: str) -> bool:
        """Whether people work on the cluster."""
        until_s = self.observation.pd[name].maintenance_until_s
        return until_s is not None and self.now_s < until_s

    @cached_property
    def outlooks(self) -> dict[str, Outlook]:
        """What is known of the lengths of every busy cluster that counted any: those the model is
        of."""
        found = {}
        for name in self.busy:
            seen = self.observation.pd[name].lengths
            if seen is not None and usable(seen):
                known = outlook(together(seen, self.memory.lengths.get(name)))
                # Doubts about one that is left alone are no doubts about a change of others.
                found[name] = known.for_certain() if name in self.gaps else known
        return found

    @cached_property
    def model(self) -> FleetModel | None:
        """The fleet at its observed traffic; None without traffic or where lengths are unknown."""
        if not self.outlooks:
            return None
        return fleetmodel.of_observation(
            self.scenario,
            self.observation,
            lengths={name: each.lengths for name, each in self.outlooks.items()},
            capacity_gbps={
                link: view.planned_gbps
                for link, view in self.links.items()
                if not view.down and not self._left_out(view)
            },
        )

    @cached_property
    def draws(self) -> FleetDraws:
        """What is not known of lengths, as it bears on the model's headroom."""
        assert self.model is not None, "asked for only with a model"
        return FleetDraws(self.model, self.outlooks)

    def _left_out(self, view: LinkView) -> bool:
        """A link that is only probed while its cluster has others: no plan counts on it."""
        target = view.id.partition("->")[2]
        return view.probing and any(not self.links[x.id].probing for x in self.links_up(target))

    def settings(self, clusters: Mapping[str, ClusterPlan]) -> dict[str, Setting]:
        """Plans as the model sees them."""
        sites = {} if self.model is None else {site.name: site for site in self.model.sites}
        return {
            name: fleetmodel.setting(clusters[name], self.observation.pd[name], sites.get(name))
            for name in self.outlooks
        }

    @cached_property
    def unsure_remotes(self) -> set[str]:
        """PrfaaS clusters that somebody sends to of whom it is not known how much."""
        return {
            remote
            for name in self.gaps
            if name not in self.outlooks and evidence.was_measured(self.observation.pd[name])
            if self.clusters[name].mode != "always_local"
            for remote, share in self.clusters[name].remote.items()
            if share > 0.0
        }

    @cached_property
    def running(self) -> dict[str, Setting]:
        """What the clusters run that the model is of."""
        return self.settings(self.clusters)

    @property
    def headroom_target(self) -> float | None:
        """The headroom that is enough; None where more is always better."""
        return self.params.headroom_target if self.params.objective == "min_remote" else None

    def freedom(self, name: str, roles: Roles) -> Freedom:
        """What t may be at these roles; what is not tunable stays as it runs."""
        if name in self.tunable:
            low, high = float(self.params.t_min_tokens), float(self.params.t_max_tokens)
        else:
            low = high = self.running[name].threshold
        return Freedom.of_threshold(low, high, n_prefill=roles[0], n_decode=roles[1])

    @cached_property
    def best_now(self) -> Optimum:
        """The best thresholds and shares at the roles there are."""
        assert self.model is not None, "asked for only with a model"
        present = {
            name: (int(setting.n_prefill), int(setting.n_decode))
            for name, setting in self.running.items()
        }
        freedom = {name: self.freedom(name, roles) for name, roles in present.items()}
        return self.optimum(freedom)

    @cached_property
    def loads_best_now(self) -> Loads:
        """How full everything is in every draw at `best_now`. For copies to change."""
        return self.draws.at(self.best_now.settings)

    def optimum(self, freedom: Mapping[str, Freedom]) -> Optimum:
        """The best plan of the model within a freedom, as the policy has it."""
        assert self.model is not None, "asked for only with a model"
        return optimise(
            self.model,
            freedom,
            headroom_target=self.headroom_target,
            enough=self.params.headroom_target,
        )

    def predict(self, clusters: Mapping[str, ClusterPlan]) -> Prediction | None:
        return None if self.model is None else predict(self.model, self.settings(clusters))

    @cached_property
    def current(self) -> Prediction | None:
        return self.predict(self.clusters)

    @cached_property
    def bottlenecks(self) -> dict[str, Bottleneck]:
        """What limits each cluster, counting the links it sends over."""
        found = {}
        for name, running in self.clusters.items():
            views = () if running.mode == "always_local" else self.views_into(name)
            seen = self.observation.pd[name]
            found[name] = bottleneck.of_cluster(
                name, seen, views, self.current, self.observation.prefill
            )
        return found

    def forbids_roles(self, name: str, before: Roles, after: Roles, at_best_t: Prediction) -> str:
        """Why the bottleneck forbids this move, empty if it does not.

        Signs count as they are; where there are none, the model's tightest stage at the best t of
        the present roles: what t can cure needs no roles.
        """
        found = self.bottlenecks[name]
        if not found.measured:
            found = bottleneck.by_model(name, self.views_into(name), at_best_t)
        margin = self.params.roles_min_gain_ratio
        return bottleneck.forbids(
            found, name, before, after, predicted=at_best_t, margin_ratio=margin
        )

    @cached_property
    def tightest_cluster(self) -> str | None:
        """The PD cluster whose own stages the model finds tightest."""
        used = {
            stage.name.partition(":")[2]: stage.utilisation_ratio or 0.0
            for stage in sorted(
                () if self.current is None else self.current.stages,
                key=lambda stage: stage.utilisation_ratio or 0.0,
            )
        }
        return max((n for n in self.outlooks if n in used), key=lambda n: used[n], default=None)

    @cached_property
    def awaited(self) -> tuple[Memory, tuple[str, ...]]:
        """The memory without effects that have shown, and words for those overdue."""
        return effect.overdue(
            self.memory, self.clusters, self.observation.pd, self.outlooks, self.now_s
        )

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        assumed = fleetmodel.assumptions(self.scenario, self.observation)
        said = [*assumed, *self.observation.kv_leaks]
        if self.tunable or self.movable:
            said += [words.left_alone(name, gap.text) for name, gap in self.gaps.items()]
        if self.current is not None and (self.current.headroom or 0.0) < 1.0:
            said.append("demand is above what the running plan carries")
        for name in self.memory.roles_astray_since_s:
            if name in self.clusters:
                seen = self.observation.pd[name]
                said.append(role_memory.astray_words(name, seen, self.clusters[name]))
        return (*said, *self.awaited[1])

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
                self.awaited[0], gain_since_s=gain_since_s, roles_gain_since_s=None
            ),
            current=self.current,
            clamps=clamps,
            warnings=self.warnings,
            next_action_at_s=self.earliest_change_s if next_at_s is None else next_at_s,
            formula=FORMULA,
            bottleneck=bottleneck.of_fleet(self.bottlenecks, self.current),
            bottlenecks=self.bottlenecks,
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
        down = self.memory.before_down if before_down is None else before_down
        known = self.awaited[0]
        if not advice:
            known = effect.awaiting(
                known, changed, self.plan.clusters, self.observation.pd, self.now_s
            )
        memory = dataclasses.replace(
            known,
            gain_since_s=None,
            roles_gain_since_s=None,
            last_change_s=self.memory.last_change_s if advice else self.now_s,
            changes_s=recent if advice else (*recent, self.now_s),
            before_down={name: t for name, t in down.items() if name in clusters},
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
            bottleneck=bottleneck.of_fleet(self.bottlenecks, self.current),
            bottlenecks=self.bottlenecks,
        )

    def too_soon(self, by: Urgency = "loop", n: int = 1) -> tuple[str, float] | None:
        """Which limit on the number of changes is reached, and until when; None if none is, and
        there is room for `n` changes.

        The last tenth of an hour's changes is kept for what is urgent. A person may always act,
        only not faster than gates take plans.
        """
        params, now_s = self.params, self.now_s
        push_s = hysteresis.wait_until(self.memory.last_change_s, params.push_min_interval_s, now_s)
        if push_s > now_s:
            return f"pushes are at least {params.push_min_interval_s:g} s apart", push_s
        if by == "person":
            return None
        limit = params.max_changes_per_hour
        kept = 0 if by == "urgent" else kept_for_failures(limit)
        free_s = hysteresis.free_at(self.memory.changes_s, limit - kept - (n - 1), now_s)
        if free_s > now_s:
            rest = f" but for {kept} kept for failures" if kept else ""
            return f"the limit of {limit} changes an hour is reached{rest}", free_s
        return None


def survey(
    observation: Observation, plan: Plan, memory: Memory, params: Params, scenario: Scenario
) -> Situation:
    """Inputs together with what their link readings and windows add to memory."""
    memory = set_back.to_now(memory, observation.now_s)
    views = {
        link.id: link_state.view(
            link,
            observation.links.get(link.id),
            memory.links.get(link.id, NEW_LINK),
            memory.base_rtt_s.get(link.id),
            now_s=observation.now_s,
            params=params,
            needed=_queues(observation.pd.get(link.target)),
        )
        for link in scenario.links
    }
    memory = dataclasses.replace(
        memory,
        links={name: seen.memory for name, seen in views.items()},
        base_rtt_s={n: v.base_rtt_s for n, v in views.items() if v.base_rtt_s is not None},
        changes_s=hysteresis.within_the_hour(memory.changes_s, observation.now_s),
    )
    memory = drift.noticed(memory, observation)
    memory = _with_lengths(memory, observation.pd, observation.now_s)
    memory = role_memory.remembered(memory, observation, plan, scenario)
    return Situation(observation, plan, memory, params, scenario, views)


def _queues(seen: PdObservation | None) -> bool:
    """Whether more requests wait for local prefill than are in it."""
    return seen is not None and (seen.queue_prefill or 0.0) >= max(seen.n_prefill, 1)


def _with_lengths(memory: Memory, seen: Mapping[str, PdObservation], now_s: float) -> Memory:
    elapsed_s = 0.0 if memory.smoothed_at_s is None else now_s - memory.smoothed_at_s
    smoothed = {}
    for name, cluster in seen.items():
        window = cluster.lengths
        if window is not None and usable(window):
            smoothed[name] = smooth(window, memory.lengths.get(name), elapsed_s=elapsed_s)
    return dataclasses.replace(memory, lengths=smoothed, smoothed_at_s=now_s)
