"""From what people ask of the twin to a run of it: a scenario, maybe a trace, a few options."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from routing.core.scenario.document import Scenario, parse_scenario
from routing.core.scenario.tables import ScenarioError
from routing.core.types import Params
from routing.twin.fleet import Progress, Run, simulate
from routing.twin.oracle import oracle
from routing.twin.policies import policy_named
from routing.twin.recorded import Interval, Recording, recorded_workload
from routing.twin.report import Report
from routing.twin.requests import Workload
from routing.twin.settings import Settings, parse_settings
from routing.twin.trace_workload import trace_workload
from routing.twin.traces import Trace
from routing.twin.workload import scenario_workload

MOST_REQUESTS = 50_000_000
"""A few minutes under a fixed plan; more is a slip of the hand."""
DEFAULT_DURATION_S = 3600.0
"""Where neither the options nor a trace say how long."""


class SimulateError(ValueError):
    """An option, or a trace as a whole, that cannot be meant; `field` names it."""

    def __init__(self, field: str, value: Any, message: str) -> None:
        super().__init__(f"{field} = {value!r}: {message}")
        self.field, self.value, self.message = field, value, message


@dataclass(frozen=True)
class Options:
    """`duration_s` None: as long as the trace, `DEFAULT_DURATION_S` without one. `rate_rps` None:
    what the scenario says, or the trace's own speed. What arrived before `warmup_s` is simulated
    and not counted."""

    policy: str = "paper"
    seed: int = 1
    duration_s: float | None = None
    warmup_s: float = 0.0
    rate_rps: float | None = None


def run_of(
    document: dict[str, Any],
    options: Options,
    *,
    recorded: Trace | Recording | None = None,
    params: Params | None = None,
) -> Run:
    """The run of a scenario document (its files inlined), with a trace in the place of the
    arrivals that it describes. `params` are those of `decide`, its defaults where None. The policy
    `oracle` simulates the run many hundred times, here.

    Raises ScenarioError, TraceError, PolicyError, or SimulateError for an option.
    """
    scenario = parse_scenario(document)
    settings = parse_settings(document, scenario)
    for i, cluster in enumerate(scenario.clusters):
        if cluster.kind == "pd" and cluster.drained:
            message = "nobody plans for a drained PD cluster: take it and its workload out"
            raise ScenarioError(f"clusters[{i}].drained", True, message)
    _check(options)
    duration_s = options.duration_s
    if duration_s is None:
        duration_s = DEFAULT_DURATION_S if recorded is None else _length_s(recorded, options)
    rate_rps = options.rate_rps or sum(workload.rate_rps for workload in scenario.workloads)
    if recorded is None and not rate_rps * duration_s <= MOST_REQUESTS:
        field = "rate_rps" if options.rate_rps else "duration_s"
        message = f"makes {rate_rps * duration_s:.3g} requests, more than {MOST_REQUESTS:,}"
        raise SimulateError(field, getattr(options, field), message)
    if options.warmup_s >= duration_s:
        message = f"must be below the {duration_s:g} s that are simulated"
        raise SimulateError("warmup_s", options.warmup_s, message)
    params = Params() if params is None else params
    workload = _workload(scenario, settings, recorded, options.rate_rps, duration_s)
    hindsight = options.policy == "oracle"
    run = Run(
        scenario=scenario,
        settings=_with_blocks_of(workload, settings),
        workload=workload,
        policy=policy_named("paper" if hindsight else options.policy, scenario, params),
        params=params,
        seed=options.seed,
        duration_s=duration_s,
        warmup_s=options.warmup_s,
    )
    return dataclasses.replace(run, policy=oracle(run)) if hindsight else run


def run_timed(run: Run, progress: Progress | None = None) -> Report:
    """The report of a run with `wall_s`, the seconds that simulating it took."""
    began = time.perf_counter()
    report = simulate(run, progress)
    return dataclasses.replace(report, wall_s=time.perf_counter() - began)


def _check(options: Options) -> None:
    for field in ("duration_s", "rate_rps"):
        value = getattr(options, field)
        if value is not None and not 0.0 < value < math.inf:
            raise SimulateError(field, value, "must be a finite number above 0")
    if not 0.0 <= options.warmup_s < math.inf:
        raise SimulateError("warmup_s", options.warmup_s, "must be a finite number, at least 0")
    if options.seed < 0:
        raise SimulateError("seed", options.seed, "must be a whole number, at least 0")


def _workload(
    scenario: Scenario,
    settings: Settings,
    recorded: Trace | Recording | None,
    rate_rps: float | None,
    duration_s: float,
) -> Workload:
    if recorded is None:
        return scenario_workload(scenario, settings, rate_rps=rate_rps, duration_s=duration_s)
    if isinstance(recorded, Trace):
        return trace_workload(scenario, recorded, rate_rps=rate_rps, duration_s=duration_s)
    ratio = 1.0 if rate_rps is None else rate_rps / _recorded_rps(recorded)
    try:
        return recorded_workload(scenario, recorded, rate_ratio=ratio, duration_s=duration_s)
    except ValueError as exc:
        raise SimulateError("trace", "recorded intervals", str(exc)) from None


def _with_blocks_of(workload: Workload, settings: Settings) -> Settings:
    """Caches hold blocks of the size that the workload names them by."""
    cache, size = settings.cache, workload.block_tokens
    if cache is None or size is None:
        return settings
    return dataclasses.replace(settings, cache=dataclasses.replace(cache, block_tokens=size))


def _length_s(recorded: Trace | Recording, options: Options) -> float:
    """Of a trace, to where its next request would be expected, at the speed that is asked for."""
    if not isinstance(recorded, Trace):
        begin_s, end_s = _span(recorded)
        return end_s - begin_s
    if recorded.mean_rps == 0.0:
        message = f"is needed: all requests of {recorded.source} come at one moment"
        raise SimulateError("duration_s", None, message)
    lap_s = recorded.span_s + 1.0 / recorded.mean_rps
    return lap_s if options.rate_rps is None else lap_s * recorded.mean_rps / options.rate_rps


def _intervals(recording: Recording) -> Sequence[Interval]:
    return [interval for intervals in recording.values() for interval in intervals]


def _span(recording: Recording) -> tuple[float, float]:
    intervals = _intervals(recording)
    return min(i.at_s for i in intervals), max(i.at_s + i.for_s for i in intervals)


def _recorded_rps(recording: Recording) -> float:
    """Of all clusters together, in the mean."""
    begin_s, end_s = _span(recording)
    mean_rps = sum(i.rate_rps * i.for_s for i in _intervals(recording)) / (end_s - begin_s)
    if mean_rps == 0.0:
        raise SimulateError("rate_rps", 0.0, "the recording has no traffic whose rate could change")
    return mean_rps
