"""Who decides in the twin: fixed plans, and the very loop that runs live.

A policy is asked at every tick with what telemetry would have shown, and answers with the plan that
gates and engines are then asked to run. One that never changes its mind is asked nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from routing.core.decide import decide
from routing.core.model import fleetmodel
from routing.core.model.optimize import Freedom, optimise
from routing.core.model.planner import plan_scenario
from routing.core.model.site_work import Method
from routing.core.model.throughput import ALWAYS_LOCAL_T
from routing.core.placement.token_edges import TOKEN_EDGES
from routing.core.relief import band_of
from routing.core.scenario.document import Scenario
from routing.core.types import ClusterPlan, Memory, Observation, Params, Plan, Verdict

ClusterPlans = Mapping[str, ClusterPlan]
POLICIES = (
    *("paper", "adaptive", "static:T", "always_local", "always_remote", "least_loaded", "oracle"),
)
"""Names that `policy_named` knows; T is a number of tokens."""


class PolicyError(ValueError):
    """A policy that there is not, or not for this scenario."""


class Policy(Protocol):
    """`watches`: whether it wants to be asked. `lengths_since_s`: from when on lengths count, by
    cluster; before it the traffic was other."""

    @property
    def watches(self) -> bool: ...

    @property
    def lengths_since_s(self) -> Mapping[str, float]: ...

    def first(self) -> ClusterPlans:
        """What runs from the start."""
        ...

    def next(self, seen: Observation) -> ClusterPlans:
        """What should run from now on."""
        ...


@dataclass(frozen=True)
class Fixed:
    """One plan for all time."""

    plans: ClusterPlans
    watches = False
    lengths_since_s: Mapping[str, float] = field(default_factory=dict)

    def first(self) -> ClusterPlans:
        return self.plans

    def next(self, seen: Observation) -> ClusterPlans:
        return self.plans


@dataclass(frozen=True)
class Scripted:
    """Plans by the time from which each is wanted, ascending; the first from the start."""

    script: Sequence[tuple[float, ClusterPlans]]
    watches = True
    lengths_since_s: Mapping[str, float] = field(default_factory=dict)

    def first(self) -> ClusterPlans:
        return self.script[0][1]

    def next(self, seen: Observation) -> ClusterPlans:
        return [plans for at_s, plans in self.script if at_s <= seen.now_s][-1]


@dataclass
class Adaptive:
    """`decide` with its own memory, as the live loop runs it. `verdicts` keeps what it adopted."""

    scenario: Scenario
    params: Params
    plans: ClusterPlans
    watches = True
    verdicts: list[Verdict] = field(default_factory=list)
    _memory: Memory = field(default_factory=Memory)
    _plan: Plan | None = None

    def first(self) -> ClusterPlans:
        self._plan = Plan(self.scenario.fleet, 1, 1, dict(self.plans))
        return self.plans

    def next(self, seen: Observation) -> ClusterPlans:
        assert self._plan is not None, "first() comes first"
        verdict = decide(seen, self._plan, self._memory, self.params, self.scenario)
        self._memory = verdict.memory
        if verdict.action == "adopt":
            self._plan = dataclasses.replace(verdict.plan, version=self._plan.version + 1)
            self.verdicts.append(verdict)
        return self._plan.clusters

    @property
    def lengths_since_s(self) -> Mapping[str, float]:
        return self._memory.lengths_since_s


def policy_named(name: str, scenario: Scenario, params: Params) -> Policy:
    """The policy of a name in `POLICIES`; `oracle` is made by `oracle.py`, from hindsight.

    Raises PolicyError.
    """
    if name == "adaptive":
        plans = started(scenario, "exact")
        ratio = params.band_ratio
        banded = {n: dataclasses.replace(p, band=band_of(p, ratio)) for n, p in plans.items()}
        return Adaptive(scenario, params, banded)
    if name == "paper":
        return Fixed(optimum(scenario, "paper"))
    if name == "always_local":
        return Fixed(at_threshold(scenario, ALWAYS_LOCAL_T))
    if name == "always_remote":
        return Fixed(naive(scenario))
    if name == "least_loaded":
        # A band around everything: whichever side is expected to answer sooner.
        best = optimum(scenario, "exact")
        return Fixed({name: dataclasses.replace(p, band=_ALL) for name, p in best.items()})
    if name.startswith("static:"):
        tokens = name.removeprefix("static:")
        if not tokens.isdecimal():
            raise PolicyError(f"policy {name!r}: T of static:T must be a whole number of tokens")
        return Fixed(at_threshold(scenario, float(tokens)))
    raise PolicyError(f"policy {name!r}: unknown, one of {', '.join(POLICIES)}")


_ALL = (0, int(TOKEN_EDGES[-1]))


def started(scenario: Scenario, method: Method) -> dict[str, ClusterPlan]:
    """What the scenario says runs at first, the optimum of a cluster where it does not say."""
    plans = optimum(scenario, method)
    for cluster in scenario.clusters:
        start = cluster.start
        if start is not None and cluster.name in plans:
            tokens = start.threshold_tokens
            plans[cluster.name] = dataclasses.replace(
                plans[cluster.name],
                mode="always_local" if tokens is None else "threshold",
                threshold_tokens=tokens,
                n_prefill=start.n_prefill,
                n_decode=cluster.instances - start.n_prefill,
            )
    return plans


def optimum(scenario: Scenario, method: Method) -> dict[str, ClusterPlan]:
    """The planner's answer."""
    answer = plan_scenario(scenario, method)["clusters"]
    return {
        name: ClusterPlan(
            mode=found["mode"],
            threshold_tokens=found["threshold_tokens"],
            n_prefill=found["n_prefill"],
            n_decode=found["n_decode"],
            remote=found["remote"],
        )
        for name, found in answer.items()
    }


def at_threshold(scenario: Scenario, tokens: float) -> dict[str, ClusterPlan]:
    """The best roles for one t everywhere; infinite: everything local."""
    model = fleetmodel.of_scenario(scenario, "exact")
    freedom = {}
    for site in model.sites:
        cluster = scenario.cluster(site.name)
        assert cluster is not None, "a modelled site is described"
        t = tokens if site.remotes else ALWAYS_LOCAL_T
        most = cluster.instances - cluster.min_prefill
        freedom[site.name] = Freedom(t, t, cluster.instances, cluster.min_decode, most)
    local = tokens == ALWAYS_LOCAL_T
    return {
        name: ClusterPlan(
            mode="always_local" if local else "threshold",
            threshold_tokens=None if local else round(tokens),
            n_prefill=round(setting.n_prefill),
            n_decode=round(setting.n_decode),
            remote={remote.name: remote.weight for remote in model.works[name].site.remotes},
        )
        for name, setting in optimise(model, freedom).settings.items()
    }


def naive(scenario: Scenario) -> dict[str, ClusterPlan]:
    """Everything remote, every PD instance decodes. Raises PolicyError without a PrfaaS cluster."""
    model = fleetmodel.of_scenario(scenario, "exact")
    plans = {}
    for site in model.sites:
        if not site.remotes:
            raise PolicyError(f"policy always_remote: no PrfaaS cluster is linked to {site.name}")
        cluster = scenario.cluster(site.name)
        assert cluster is not None, "a modelled site is described"
        weights = {remote.name: remote.weight for remote in site.remotes}
        plans[site.name] = ClusterPlan("always_remote", None, 0, cluster.instances, weights)
    return plans
