"""The traffic of a backtest: measured, scaled to the fleet, and the runs over it.

Whatever it comes from, its requests are gone over once: rates, uncached lengths and answers of each
PD cluster are counted. What fixed policies plan for, and what "80 % of what the fleet carries"
means, follow from those counts.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing import simulating
from routing.backtest_asked import LIVED, ORACLE, Asked
from routing.core.jsonable import from_jsonable
from routing.core.model.planner import plan_scenario
from routing.core.scenario.document import Scenario, parse_scenario
from routing.core.types import ClusterPlan, LengthHistogram, Params
from routing.twin.cache import PrefixCache
from routing.twin.fleet import Run
from routing.twin.policies import Scripted
from routing.twin.recorded import Interval, Recording
from routing.twin.requests import Requests
from routing.twin.settings import Settings, parse_settings
from routing.twin.trace_workload import trace_workload
from routing.twin.traces import Trace

MOST_REQUESTS = 2_000_000
"""Of one run. Twenty seeds of ten policies of more would keep two cores busy for a day."""
_COUNTED = 200_000
"""Requests gone over: more would not move a mean."""
_BINS = 64


class WorkloadError(ValueError):
    """Traffic that cannot be had as asked."""


@dataclass(frozen=True)
class Traffic:
    """Of one PD cluster. `uncached` is what an unbounded cache of the cluster would leave of each
    prompt, as `buckets` [[upper_tokens, n], ...] and as a mean; None where nothing came."""

    rate_rps: float
    buckets: list[list[float]] | None
    mean_prompt_tokens: float
    mean_uncached_tokens: float
    mean_output_tokens: float


@dataclass(frozen=True)
class Prepared:
    """A workload at the rate asked for. `facts` are what the page tells of it."""

    document: dict[str, Any]
    recorded: Trace | Recording | None
    asked: Asked
    rate_rps: float | None
    keep_ratio: float
    duration_s: float
    facts: dict[str, Any]

    def run(self, policy: str, seed: int, lived: Sequence[Any] = ()) -> Run:
        """One run. `lived` are the plans of the recorded interval (`backtest_recordings`). The
        oracle is not asked here: it takes the run itself, and minutes."""
        options = simulating.Options(
            policy="always_local" if policy in (LIVED, ORACLE) else policy,
            seed=seed,
            duration_s=self.duration_s,
            warmup_s=self.asked.warmup_ratio * self.duration_s,
            rate_rps=self.rate_rps,
        )
        params = Params(mode="active", **self.asked.knobs)
        run = simulating.run_of(self.document, options, recorded=self.recorded, params=params)
        if policy == LIVED:
            run = dataclasses.replace(run, policy=Scripted(_script(lived)))
        if isinstance(self.recorded, Trace) and (self.asked.seeds > 1 or self.keep_ratio < 1.0):
            workload = trace_workload(
                run.scenario,
                self.recorded,
                rate_rps=self.rate_rps,
                keep_ratio=self.keep_ratio,
                shift=self.asked.seeds > 1,
                duration_s=self.duration_s,
            )
            run = dataclasses.replace(run, workload=workload)
        return run


def prepare(document: dict[str, Any], asked: Asked, recorded: Trace | Recording | None) -> Prepared:
    """Goes over the traffic once and scales it.

    Raises WorkloadError, and what `simulating.run_of` raises.
    """
    length_s = asked.duration_s if recorded is None else None
    options = simulating.Options(policy="always_local", duration_s=length_s)
    as_it_was = simulating.run_of(document, options, recorded=recorded)
    scenario = as_it_was.scenario
    traffic = _measured(as_it_was, scenario)
    own_rps = sum(each.rate_rps for each in traffic.values())
    if not own_rps > 0.0:
        raise WorkloadError("the workload has no requests")
    fitted = document
    if recorded is not None and asked.plan_for == "workload":
        fitted = _planned_for(document, scenario, traffic)
        if asked.workload == "trace":
            fitted = _without_start(fitted)
    most_rps = plan_scenario(parse_scenario(fitted))["lambda_max_rps"]
    wanted_rps = asked.scale_value * (own_rps if asked.scale == "factor" else most_rps)
    thinned = asked.scale == "load_thinned"
    if thinned and wanted_rps > own_rps:
        raise WorkloadError(
            f"the trace brings {own_rps:.3g} requests a second, and leaving some out cannot make "
            f"{wanted_rps:.3g} of them: replay it faster instead"
        )
    ratio = wanted_rps / own_rps
    duration_s = as_it_was.duration_s
    if isinstance(recorded, Trace) and not thinned:
        duration_s /= ratio
    if wanted_rps * duration_s > MOST_REQUESTS:
        raise WorkloadError(
            f"{wanted_rps * duration_s:,.0f} requests a run are more than {MOST_REQUESTS:,}"
        )
    return Prepared(
        document=document if fitted is document else _at_rates(fitted, ratio),
        recorded=recorded,
        asked=asked,
        rate_rps=None
        if thinned or ratio == 1.0
        else _asked_rps(scenario, recorded, ratio, own_rps),
        keep_ratio=ratio if thinned else 1.0,
        duration_s=duration_s,
        facts={
            "n_requests": round(own_rps * as_it_was.duration_s),
            "own_rps": own_rps,
            "own_span_s": as_it_was.duration_s,
            "rate_rps": wanted_rps,
            "duration_s": duration_s,
            "warmup_s": asked.warmup_ratio * duration_s,
            "lambda_max_rps": most_rps,
            "load_ratio": wanted_rps / most_rps if most_rps else None,
            "keep_ratio": ratio if thinned else 1.0,
            "speed": ratio if isinstance(recorded, Trace) and not thinned else 1.0,
            "block_tokens": as_it_was.workload.block_tokens,
            "n_left_out": recorded.n_left_out if isinstance(recorded, Trace) else 0,
            "starts_vary": isinstance(recorded, Trace) and asked.seeds > 1,
            "traffic": {name: dataclasses.asdict(each) for name, each in traffic.items()},
        },
    )


def recording_from(stored: Mapping[str, Any]) -> Recording:
    """The recorded interval of a backtest (`backtest_recordings`) as a workload's recording."""
    lengths = [
        None if each is None else from_jsonable(LengthHistogram, each) for each in stored["lengths"]
    ]
    return {
        cluster: [
            Interval.observed(
                row["at_s"],
                row["for_s"],
                row["demand_rps"],
                uncached_tokens=None if row["lengths"] is None else lengths[row["lengths"]],
                output_tokens=None,
            )
            for row in rows
        ]
        for cluster, rows in stored["clusters"].items()
    }


def _script(lived: Sequence[Any]) -> list[tuple[float, dict[str, ClusterPlan]]]:
    return [
        (row["at_s"], {n: from_jsonable(ClusterPlan, plan) for n, plan in row["clusters"].items()})
        for row in lived
    ]


def _measured(run: Run, scenario: Scenario) -> dict[str, Traffic]:
    names = [cluster.name for cluster in scenario.clusters if cluster.kind == "pd"]
    columns: list[list[NDArray[np.int64]]] = [[], [], [], []]
    last_s = 0.0
    for piece, uncached in _uncached(run, len(names)):
        for column, found in zip(
            columns,
            (piece.site, piece.prompt_tokens, uncached, piece.output_tokens),
            strict=True,
        ):
            column.append(found)
        last_s = float(piece.at_s[-1])
        if sum(map(len, columns[0])) >= _COUNTED:
            break
    else:
        last_s = run.duration_s
    if not columns[0]:
        return {}
    site, prompts, left, outputs = (np.concatenate(column) for column in columns)
    return {
        name: _traffic(prompts[site == i], left[site == i], outputs[site == i], last_s)
        for i, name in enumerate(names)
    }


def _uncached(run: Run, n_sites: int) -> Iterator[tuple[Requests, NDArray[np.int64]]]:
    """Each piece with the tokens that an unbounded cache would leave to compute, shape (n,)."""
    settings = run.settings.cache
    exact = settings is not None and settings.linear_state == "exact"
    caches = [PrefixCache(capacity_blocks=None, exact_state=exact) for _ in range(n_sites)]
    for piece in run.workload.pieces(0):
        if not len(piece):
            continue
        left = piece.prompt_tokens.copy()
        if settings is not None and piece.blocks is not None:
            size = settings.block_tokens
            for i, blocks in enumerate(piece.blocks):
                cache = caches[int(piece.site[i])]
                _, n_usable = cache.match(blocks, at_s=0.0)
                cache.insert(blocks, ready_s=0.0)
                left[i] = max(int(left[i]) - n_usable * size, 1)
        yield piece, left


def _traffic(
    prompts: NDArray[np.int64], left: NDArray[np.int64], outputs: NDArray[np.int64], span_s: float
) -> Traffic:
    if not len(prompts):
        return Traffic(0.0, None, 0.0, 0.0, 0.0)
    low, high = max(float(left.min()), 2.0), max(float(left.max()), 2.0) * 1.001
    edges = np.geomspace(low, max(high, low * 1.01), _BINS)
    counts = np.histogram(left, bins=np.concatenate([[0.0], edges]))[0]
    buckets = [[float(e), float(n)] for e, n in zip(edges, counts, strict=True)]
    return Traffic(
        rate_rps=len(prompts) / span_s,
        buckets=buckets,
        mean_prompt_tokens=float(prompts.mean()),
        mean_uncached_tokens=float(left.mean()),
        mean_output_tokens=float(outputs.mean()),
    )


def _planned_for(
    document: Mapping[str, Any], scenario: Scenario, traffic: Mapping[str, Traffic]
) -> dict[str, Any]:
    """The document with the workloads as they were counted."""
    root = copy.deepcopy(dict(document))
    for cluster, table in _workloads(root, scenario):
        seen = traffic.get(cluster)
        if seen is not None and seen.buckets is not None:
            table["rate_rps"] = seen.rate_rps
            table["lengths"] = {"kind": "empirical", "buckets": seen.buckets}
            table["output_tokens"] = seen.mean_output_tokens
    root.pop("arrivals", None)
    return root


def _without_start(document: dict[str, Any]) -> dict[str, Any]:
    """What ran before the loop spoke was for other traffic: the loop begins with the best plan for
    this one, as fixed policies do. Where roles may not move, `start` says at what they stand."""
    clusters = [
        each if each.get("pinned") else {k: v for k, v in each.items() if k != "start"}
        for each in document["clusters"]
    ]
    return {**document, "clusters": clusters}


def _asked_rps(
    scenario: Scenario, recorded: Trace | Recording | None, ratio: float, own_rps: float
) -> float:
    """What makes the workload `ratio` times as much: a scenario's own is scaled by what it says its
    rate is, which curves and sessions may differ from in the mean."""
    described_rps = sum(workload.rate_rps for workload in scenario.workloads)
    return ratio * (described_rps if recorded is None else own_rps)


def _at_rates(document: dict[str, Any], ratio: float) -> dict[str, Any]:
    if ratio == 1.0:
        return document
    root = copy.deepcopy(document)
    for _, table in _workloads(root, parse_scenario(document)):
        table["rate_rps"] *= ratio
    return root


def _workloads(root: dict[str, Any], scenario: Scenario) -> Iterator[tuple[str, dict[str, Any]]]:
    given = root["workloads" if "workloads" in root else "workload"]
    tables = given if isinstance(given, list) else [given]
    yield from zip((w.cluster for w in scenario.workloads), tables, strict=True)


def settings_of(document: dict[str, Any]) -> tuple[Scenario, Settings]:
    scenario = parse_scenario(document)
    return scenario, parse_settings(document, scenario)
