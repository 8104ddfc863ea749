"""The situations that policies are judged in: the demo fleet, with one thing that changes.

Rates are 80 to 95 % of what the best plan of the moment carries (`manage.py plan`): 3.16 requests/s
of the fleet as it is, 2.62 with the link at 8 Gbps, 2.79 with 3 of 4 PrfaaS instances, 2.91 with 6
of 8 PD instances, 4.69 and 2.99 with mu at 9.2 and 10.1.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing.core.model.planner import plan_scenario
from routing.core.scenario.document import Scenario, parse_scenario
from routing.core.types import Observation, Params
from routing.trace_files import read_trace
from routing.twin.fleet import Run, simulate
from routing.twin.policies import ClusterPlans, optimum
from routing.twin.requests import Workload
from routing.twin.settings import Settings, parse_settings
from routing.twin.trace_workload import trace_workload
from routing.twin.traces import Trace
from routing.twin.workload import scenario_workload

DEMO = Path(__file__).parents[2] / "routing/lab/prfaas_1t.toml"
WARMUP_S = 300.0
_LONG_S, _SHORT_S = 3600.0, 1800.0

Document = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """`document` is what a scenario file would say. With a `load`, its `lengths` are what is left
    of prompts after prefixes are matched, and its rate is that share of the best plan's capacity.
    `traced`: the requests are the Mooncake trace's, which seeds thin and start elsewhere."""

    name: str
    says: str
    document: Document
    duration_s: float = _LONG_S
    load: float | None = None
    traced: bool = False


@dataclass(frozen=True)
class Situation:
    """A case, ready to be run."""

    case: Case
    scenario: Scenario
    settings: Settings
    workload: Workload


def demo(rate_rps: float, **tables: Any) -> Document:
    """The demo fleet without its start plan, at a rate, with `tables` of the twin."""
    document = tomllib.loads(DEMO.read_text())
    for cluster in document["clusters"]:
        cluster.pop("start", None)
        if cluster["kind"] == "pd":
            # Roles are the loop's only where there is a stack to ask; the twin is one.
            cluster["control_urls"] = ["http://stack.test"]
    document["workload"]["rate_rps"] = rate_rps
    return document | copy.deepcopy(tables)


def _fault(kind: str, at_s: float, for_s: float, **what: Any) -> Document:
    return {"kind": kind, "at_s": at_s, "for_s": for_s, **what}


_LINK = "prfaas->pd"


def _two_clusters() -> Document:
    """Two PD clusters, busy in turn, that share six PrfaaS instances."""
    document = demo(1.0)
    prfaas, pd = document["clusters"]
    link, workload = document["links"][0], document.pop("workload")
    document["clusters"] = [prfaas | {"instances": 6}, pd | {"name": "east"}, pd | {"name": "west"}]
    document["links"] = [link | {"to": name} for name in ("east", "west")]
    document["workloads"] = [workload | {"cluster": name, "rate_rps": 2.1} for name in _TURNS]
    document["arrivals"] = [
        {"cluster": name, "kind": "rate_curve", "factors": factors, "period_s": 3600.0}
        for name, factors in _TURNS.items()
    ]
    return document


_TURNS = {
    "east": [[0.0, 1.0], [900.0, 1.3], [1800.0, 1.0], [2700.0, 0.7]],
    "west": [[0.0, 1.0], [900.0, 0.7], [1800.0, 1.0], [2700.0, 1.3]],
}

_SESSIONS = {
    "kind": "sessions",
    "turns": 5.0,
    "first_tokens": {"kind": "lognormal", "mu": 9.9, "sigma": 1.0, "min": 128, "max": 65536},
    "growth_tokens": {"kind": "lognormal", "mu": 9.0, "sigma": 1.2, "min": 64, "max": 65536},
    "think_s": 20.0,
    "shared_tokens": 4096,
}
_CACHE = {"capacity_tokens": {"prfaas": 8e6, "pd": 6e6}}

CASES: tuple[Case, ...] = (
    Case("steady", "Poisson, 85 % load", demo(2.7), _SHORT_S),
    Case(
        "burst",
        "bursts of 2 minutes at twice the rate between them, 100 % of capacity (MMPP)",
        demo(
            2.1,
            arrivals={"kind": "mmpp", "burst_factor": 2.0, "mean_on_s": 120.0, "mean_off_s": 240.0},
        ),
    ),
    Case(
        "diurnal",
        "a day in an hour, 1.2 to 3.0 requests/s",
        demo(
            2.0,
            arrivals={
                "kind": "rate_curve",
                "factors": [[0.0, 0.8], [900.0, 0.6], [2400.0, 1.48], [3000.0, 1.3]],
                "period_s": 3600.0,
            },
        ),
    ),
    Case(
        "drift",
        "prompts get half as long and the rate rises, then longer than before",
        demo(
            2.6,
            arrivals={
                "kind": "rate_curve",
                "rates_rps": [[900.0, 2.6], [1200.0, 4.0], [2400.0, 4.0], [2700.0, 2.55]],
                "drift": [[900.0, 9.9], [1200.0, 9.2], [2400.0, 9.2], [2700.0, 10.1]],
            },
        ),
    ),
    Case(
        "narrow_link",
        "the link goes from 100 to 8 Gbps and back after 25 minutes",
        demo(2.35, faults=[_fault("link_gbps", 900.0, 1500.0, link=_LINK, gbps=8.0)]),
    ),
    Case(
        "link_flaps",
        "the link is down for 45 s, eight times, 5 minutes apart",
        demo(2.2, faults=[_fault("link_down", 600.0, 45.0, link=_LINK, times=8, every_s=300.0)]),
    ),
    Case(
        "loss",
        "0.05 % loss for 25 minutes: one transfer gets 1 Gbps",
        demo(2.5, faults=[_fault("link_loss", 900.0, 1500.0, link=_LINK, loss_ratio=0.0005)]),
    ),
    Case(
        "lost_prefill",
        "one of four PrfaaS instances is lost for 25 minutes",
        demo(2.45, faults=[_fault("prefill_down", 900.0, 1500.0, cluster="prfaas")]),
    ),
    Case(
        "lost_decode",
        "two of five decode instances are lost for 25 minutes",
        demo(2.5, faults=[_fault("decode_down", 900.0, 1500.0, cluster="pd", instances=2)]),
    ),
    Case(
        "stale_agents",
        "samples 8 s old, 3 of 10 lost, none for 10 minutes in which prompts get shorter",
        demo(
            2.6,
            arrivals={
                "kind": "rate_curve",
                "rates_rps": [[1000.0, 2.6], [1300.0, 3.5]],
                "drift": [[1000.0, 9.9], [1300.0, 9.4]],
            },
            delays={"agent_s": 8.0, "agent_loss_ratio": 0.3},
            faults=[_fault("agent_silent", 900.0, 600.0, cluster="pd")],
        ),
    ),
    Case(
        "sessions",
        "agents' sessions of 5 turns in the mean, prefix caches, 95 % load",
        demo(2.5, arrivals=_SESSIONS, cache=_CACHE),
        _SHORT_S,
        load=0.95,
    ),
    Case(
        "mooncake",
        "the Mooncake conversation trace at 95 % load, prefix caches",
        demo(2.5, arrivals={"kind": "trace"}, cache=_CACHE),
        _SHORT_S,
        load=0.95,
        traced=True,
    ),
    Case("two_clusters", "two PD clusters share one PrfaaS and are busy in turn", _two_clusters()),
)


def situation(case: Case, *, trace_path: Path | None) -> Situation:
    """The case with its workload. `trace_path` is read where the case is `traced`."""
    document, trace = copy.deepcopy(case.document), None
    if case.traced:
        assert trace_path is not None, "whoever asks for a traced case has the trace"
        found = read_trace(trace_path)
        assert isinstance(found, Trace), "the Mooncake trace holds requests"
        trace = found
    if case.load is not None:
        document["workload"]["lengths"] = _matched_lengths(document, trace)
        if trace is not None:
            document["workload"]["output_tokens"] = float(trace.output_tokens.mean())
        best = plan_scenario(parse_scenario(document), "exact")["lambda_max_rps"]
        document["workload"]["rate_rps"] = round(case.load * best, 3)
    scenario = parse_scenario(document)
    settings = parse_settings(document, scenario)
    workload = _workload(scenario, settings, case.duration_s, trace)
    return Situation(case, scenario, settings, workload)


def _workload(
    scenario: Scenario, settings: Settings, duration_s: float, trace: Trace | None
) -> Workload:
    if trace is None:
        return scenario_workload(scenario, settings, duration_s=duration_s)
    rate_rps = scenario.workloads[0].rate_rps
    return trace_workload(
        scenario,
        trace,
        rate_rps=rate_rps,
        keep_ratio=0.8,
        shift=True,
        laps="fresh",
        duration_s=duration_s,
    )


def _matched_lengths(document: Document, trace: Trace | None) -> Document:
    """What gates compare with t once prefixes are matched, which depends on t: three times the
    best plan for the lengths of the run before, half an hour with a seed that no run has."""
    lengths: Document = document["workload"]["lengths"]
    for _ in range(3):
        document["workload"]["lengths"] = lengths
        scenario = parse_scenario(document)
        settings = parse_settings(document, scenario)
        settings = replace(settings, delays=replace(settings.delays, tick_s=_LOOK_S))
        watcher = _Lengths(optimum(scenario, "exact"))
        workload = _workload(scenario, settings, _SHORT_S, trace)
        simulate(Run(scenario, settings, workload, watcher, Params(), _SEED, _SHORT_S))
        rows = zip(watcher.edges, watcher.counts.tolist(), strict=False)
        lengths = {"kind": "empirical", "buckets": [[edge, n] for edge, n in rows]}
    return lengths


@dataclass
class _Lengths:
    """A fixed plan that sums up which lengths its gates have seen."""

    plans: ClusterPlans
    edges: tuple[float, ...] = ()
    counts: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))
    watches = True
    lengths_since_s: Mapping[str, float] = field(default_factory=dict)

    def first(self) -> ClusterPlans:
        return self.plans

    def next(self, seen: Observation) -> ClusterPlans:
        found = [pd.lengths for pd in seen.pd.values() if pd.lengths is not None]
        if found and seen.now_s > WARMUP_S:
            self.edges = found[0].edges
            self.counts = self.counts + np.array(found[0].counts)
        return self.plans


_SEED = 1_000_003
_LOOK_S = 60.0


def chosen(names: list[str] | None) -> Iterator[Case]:
    """The cases of these names, all without any. Raises ValueError for an unknown name."""
    known = {case.name: case for case in CASES}
    for name in known if names is None else names:
        if name not in known:
            raise ValueError(f"scenario {name!r}: unknown, one of {', '.join(known)}")
        yield known[name]
