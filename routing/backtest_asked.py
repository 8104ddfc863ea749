"""What a backtest is asked to be: every choice of the form and of the API, checked, as plain
values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from routing.commands import Refused
from routing.core.scenario.document import Scenario
from routing.core.types import Params
from routing.twin.policies import POLICIES, PolicyError, policy_named
from routing.twin.settings import Settings

WORKLOADS = ("trace", "recorded", "scenario")
SCALES = ("factor", "load", "load_thinned")
CACHES = ("scenario", "cluster", "instance", "none")
CAPACITIES = ("unbounded", "profile")
PLAN_FOR = ("workload", "scenario")
LIVED = "lived"
"""The plans that gates were asked to run in the recorded interval, at the time they were."""

MOST_POLICIES = 10
MOST_SEEDS = 20
DEFAULT_POLICIES = ("adaptive", "paper", "always_local", "always_remote", "least_loaded")
ORACLE = "oracle"
"""The best plans in hindsight; to find them a run is simulated some hundred times."""
OFFERED = tuple(name for name in POLICIES if name != "static:T")
_MOST_FACTOR, _MOST_LOAD = 1000.0, 3.0
_LEAST_S, _MOST_S = 60.0, 30 * 86_400.0
_MOST_WARMUP = 0.9


@dataclass(frozen=True)
class Asked:
    """`scale` `factor`: the workload's own rate times `scale_value`. `load`: a mean rate of
    `scale_value` times what the best plan carries, a trace replayed faster or slower for it.
    `load_thinned`: the same by leaving out conversations, at the trace's own speed.

    `duration_s` is for the scenario's own traffic only. `warmup_ratio` of the time is simulated and
    not counted. `plan_for`: fixed plans are the best ones for the lengths and rates of the
    `workload`, or for what the `scenario` says. `cache` `scenario`: as its document has it.
    `cache_capacity` is `unbounded`, `profile` (kv_capacity_tokens of each instance) or a number of
    tokens per cluster, or per instance. `knobs` are the policy's at the time.
    """

    workload: Literal["trace", "recorded", "scenario"]
    policies: tuple[str, ...] = DEFAULT_POLICIES
    seeds: int = 5
    baseline: str = ""
    scale: Literal["factor", "load", "load_thinned"] = "factor"
    scale_value: float = 1.0
    duration_s: float = 3600.0
    warmup_ratio: float = 0.1
    plan_for: Literal["workload", "scenario"] = "workload"
    cache: Literal["scenario", "cluster", "instance", "none"] = "scenario"
    cache_capacity: str = "unbounded"
    numbers: Mapping[str, Any] = field(default_factory=dict)
    knobs: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Asked:
        return cls(**{**stored, "policies": tuple(stored["policies"])})


def checked(asked: Asked, scenario: Scenario, settings: Settings) -> Asked:
    """The same, with its baseline filled in. Raises Refused naming the field and the value."""
    _one_of("workload", asked.workload, WORKLOADS)
    _one_of("scale", asked.scale, SCALES)
    _one_of("cache", asked.cache, CACHES)
    _one_of("plan_for", asked.plan_for, PLAN_FOR)
    if asked.scale == "load_thinned" and asked.workload != "trace":
        raise Refused("scale", asked.scale, "only a trace can be thinned out")
    most = _MOST_FACTOR if asked.scale == "factor" else _MOST_LOAD
    _within("scale_value", asked.scale_value, 0.001, most)
    _within("seeds", asked.seeds, 1, MOST_SEEDS)
    if not _LEAST_S <= asked.duration_s <= _MOST_S:
        raise Refused("duration_s", asked.duration_s, "must be from 1 minute to 30 days")
    _within("warmup_ratio", asked.warmup_ratio, 0.0, _MOST_WARMUP)
    if asked.workload == "scenario" and None in settings.sites.values():
        message = "its arrivals come from a trace: upload that, or choose a recorded interval"
        raise Refused("workload", asked.workload, message)
    _policies(asked, scenario)
    baseline = asked.baseline or asked.policies[0]
    if baseline not in asked.policies:
        raise Refused("baseline", baseline, f"must be one of {', '.join(asked.policies)}")
    return dataclasses.replace(asked, baseline=baseline)


def cache_table(asked: Asked, scenario: Scenario) -> dict[str, Any] | None:
    """The scenario's `[cache]` that the choices stand for; None: none. Raises Refused."""
    if asked.cache == "none":
        return None
    table: dict[str, Any] = {"scope": asked.cache}
    if asked.cache_capacity == "unbounded":
        return table
    if asked.cache_capacity == "profile":
        table["capacity_tokens"] = _of_profiles(asked, scenario)
        return table
    try:
        table["capacity_tokens"] = float(asked.cache_capacity)
    except ValueError:
        message = f"must be {', '.join(CAPACITIES)} or a number of tokens"
        raise Refused("cache_capacity", asked.cache_capacity, message) from None
    _within("cache_capacity", table["capacity_tokens"], 512, 1e12)
    return table


def _of_profiles(asked: Asked, scenario: Scenario) -> dict[str, float]:
    found = {}
    for cluster in scenario.clusters:
        tokens = scenario.profiles[cluster.profile].facts.get("kv_capacity_tokens")
        if tokens is None:
            message = f"profile {cluster.profile} of {cluster.name} has no kv_capacity_tokens"
            raise Refused("cache_capacity", asked.cache_capacity, message)
        n = cluster.instances if asked.cache == "cluster" else 1
        found[cluster.name] = float(tokens) * n
    return found


def _policies(asked: Asked, scenario: Scenario) -> None:
    names: Sequence[str] = asked.policies
    if not names:
        raise Refused("policies", [], "needs one at least")
    if len(names) > MOST_POLICIES:
        raise Refused("policies", list(names), f"at most {MOST_POLICIES} fit side by side")
    if len(set(names)) < len(names):
        raise Refused("policies", list(names), "names one of them twice")
    for name in names:
        if name == LIVED:
            if asked.workload != "recorded":
                message = "needs a recorded interval: no plan was lived under another workload"
                raise Refused("policies", name, message)
            if any(number.endswith(".instances") for number in asked.numbers):
                message = (
                    "its plans are for as many instances as there were: leave them as they are"
                )
                raise Refused("policies", name, message)
            continue
        if name == ORACLE:
            continue
        try:
            policy_named(name, scenario, Params())
        except PolicyError as exc:
            raise Refused("policies", name, str(exc)) from None


def _one_of(field_name: str, value: Any, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise Refused(field_name, value, f"must be one of {', '.join(allowed)}")


def _within(field_name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise Refused(field_name, value, f"must be in {low:g}..{high:g}")
