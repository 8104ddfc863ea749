"""What a run of the live lab was, as inputs of the twin, and the two beside each other.

The lab is recorded from outside: by the load generator (when each request was sent, which plan its
gate ran, when its first byte came) and by the lab's own truth (stages, bytes, cached tokens). The
twin gets the arrivals, their lengths and blocks, and the plans; everything else it has to find out.
"""

from __future__ import annotations

import gzip
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from routing.core.jsonable import from_jsonable
from routing.core.scenario.document import Scenario, parse_scenario
from routing.core.types import ClusterPlan, Params, Plan
from routing.twin.fleet import Run, simulate
from routing.twin.policies import Adaptive, ClusterPlans, Policy, Scripted, started
from routing.twin.report import Report
from routing.twin.requests import Blocks, Requests
from routing.twin.settings import parse_settings
from routing.twin.traces import parse_trace
from tests.live.harness import Demo
from tests.twin.cases import Told

NO_PLAN = "none"
"""What a gate calls the plan it runs before it ever had one."""
DRAINED_S = 600.0
"""All answers are out so long after the last arrival, in the twin too."""
SWITCH_S = 2.0
"""What a change of role takes in the lab once the instance is empty (docs/proof.md)."""
LIVE_TICK_S = 2.0
SCRIPT_TICK_S = 0.5
"""How finely the script of plans is followed."""
LIMITS = {
    "throughput_rps": 0.03,
    "ttft_mean_s": 0.10,
    "ttft_p90_s": 0.10,
    "remote_share": 0.02,
    "link_bytes": 0.03,
}
"""How far the twin may be from the lab: of its value, and of remote_share as it is."""


@dataclass(frozen=True)
class LabRun:
    """All requests of a run, from the first arrival until the last answer.

    `requests` are rows of the load generator, `truth` the lab's records by request id, `plans` the
    adopted ones by `epoch.version`; `link_bytes` is what the counter of the link shows at the end.
    `blocks` by row of the trace, None without one.
    """

    scenario: dict[str, Any]
    stack: dict[str, Any]
    knobs: dict[str, Any]
    requests: list[dict[str, Any]]
    truth: dict[str, dict[str, Any]]
    plans: dict[str, ClusterPlans]
    link_bytes: int
    n_gates: int
    blocks: Mapping[int, Blocks] | None = None

    @property
    def began_s(self) -> float:
        return float(self.requests[0]["at_s"])

    @property
    def sent_s(self) -> float:
        """From the first arrival to the last."""
        return float(self.requests[-1]["at_s"]) - self.began_s


def record(demo: Demo, trace: Path | None = None) -> LabRun:
    """A demo whose load has stopped and whose answers are all out, replaying `trace` if any."""
    truth = demo.lab("admin", "/truth?records=10000")["records"]
    adopted = [d for d in demo.all("/decisions") if d["kind"] == "adopted"]
    details = [demo.get(f"/decisions/{d['id']}") for d in adopted]
    links = demo.lab("admin", "/links").values()
    return LabRun(
        scenario=demo.scenario(),
        stack=tomllib.loads((demo.state / "demo" / "stack.toml").read_text()),
        knobs=demo.get("/policy")["knobs"],
        requests=sorted(demo.requests(), key=lambda row: float(row["at_s"])),
        truth={row["id"]: row for row in truth},
        plans={
            f"{d['epoch']}.{d['version']}": from_jsonable(Plan, d["plan"]).clusters for d in details
        },
        link_bytes=sum(link["tx_bytes_total"] for link in links),
        n_gates=len(demo.get("/routers")["results"]),
        blocks=None if trace is None else blocks_of(trace),
    )


def blocks_of(trace: Path) -> dict[int, Blocks]:
    """The full blocks of each row of a Mooncake trace, by its line."""
    with gzip.open(trace, "rt") as lines:
        found = parse_trace(lines, source=trace.name)
    assert found.blocks is not None, "the trace names blocks"
    return dict(enumerate(found.blocks, start=1))


def arrivals(lab: LabRun) -> Requests:
    """What was sent, when: all the twin is told of requests."""
    rows, blocks = lab.requests, lab.blocks
    return Requests(
        at_s=np.array([row["at_s"] for row in rows]) - lab.began_s,
        prompt_tokens=np.array([row["prompt_tokens"] for row in rows], dtype=np.int64),
        output_tokens=np.array([row["output_tokens"] for row in rows], dtype=np.int64),
        site=np.zeros(len(rows), dtype=np.int64),
        blocks=None if blocks is None else [blocks[row["row"]] for row in rows],
    )


def script(lab: LabRun, scenario: Scenario) -> list[tuple[float, ClusterPlans]]:
    """Plans by when a gate first ran each: everything local, with the first roles, before any."""
    firsts: dict[str, float] = {}
    for row in lab.requests:
        firsts.setdefault(row["plan"], float(row["at_s"]) - lab.began_s)
    roles = started(scenario, "exact")
    local: ClusterPlans = {
        name: ClusterPlan("always_local", None, plan.n_prefill, plan.n_decode)
        for name, plan in roles.items()
    }
    found: list[tuple[float, ClusterPlans]] = []
    for version, at_s in sorted(firsts.items(), key=lambda item: item[1]):
        # A tick early: the plan is there when the request comes.
        found.append((at_s - SCRIPT_TICK_S, local if version == NO_PLAN else lab.plans[version]))
    return found


def document(lab: LabRun, *, tick_s: float) -> dict[str, Any]:
    """The scenario with the lab's caches, and with delays of a lab on one machine."""
    stack, blocks = lab.stack, {}
    if lab.blocks is not None:
        capacity = stack["cache_capacity_tokens"]
        bounded = {} if capacity == "infinite" else {"capacity_tokens": float(capacity)}
        blocks["cache"] = {
            "block_tokens": stack.get("block_tokens", 512),
            "scope": stack["cache_scope"],
            "linear_state": stack.get("linear_state", "none"),
            "decode_holds": stack.get("decode_holds", "local_prefix"),
            **bounded,
        }
    scripted = tick_s < LIVE_TICK_S
    delays = {
        "gate_s": 0.0 if scripted else 0.5,
        "drain_s": SWITCH_S,
        "tick_s": tick_s,
        "n_gates": lab.n_gates,
    }
    return lab.scenario | blocks | {"delays": delays}


@dataclass(frozen=True)
class Figures:
    """TTFT is to the first byte at the client in the lab, to the decode slot in the twin, which has
    no HTTP. `throughput_rps` counts answers that ended by the last arrival, `cached_ratio` prompt
    tokens that were not computed; `stages_s` are means."""

    throughput_rps: float
    ttft_mean_s: float
    ttft_p90_s: float
    remote_share: float
    link_bytes: float
    cached_ratio: float
    stages_s: dict[str, float]


def of_lab(lab: LabRun) -> Figures:
    """As the lab and its client counted."""
    rows, truth = lab.requests, [lab.truth[row["id"]] for row in lab.requests]
    ended_s = [float(row["at_s"] + row["total_s"]) - lab.began_s for row in rows]
    ttft_s = np.array([row["ttft_s"] for row in rows])
    stages = ("queue", "prefill", "transfer", "decode_wait")

    def total(name: str) -> int:
        return sum(record[name] for record in truth)

    return Figures(
        throughput_rps=sum(end_s <= lab.sent_s for end_s in ended_s) / lab.sent_s,
        ttft_mean_s=float(ttft_s.mean()),
        ttft_p90_s=float(np.quantile(ttft_s, 0.9, method="inverted_cdf")),
        remote_share=sum(t["side"] == "remote" for t in truth) / len(truth),
        link_bytes=float(lab.link_bytes),
        cached_ratio=total("cached_tokens") / total("prompt_tokens"),
        stages_s={s: float(np.mean([t["stages_s"][s] for t in truth])) for s in stages},
    )


def of_twin(lab: LabRun, *, adaptive: bool = False) -> Figures:
    """The twin's: under the plans that were run, or under those it makes itself."""
    tick_s = LIVE_TICK_S if adaptive else SCRIPT_TICK_S
    told = document(lab, tick_s=tick_s)
    scenario = parse_scenario(told)
    params = Params(mode="active", **lab.knobs)
    run = Run(
        scenario=scenario,
        settings=parse_settings(told, scenario),
        workload=Told(arrivals(lab), None if lab.blocks is None else 512),
        policy=_policy(lab, scenario, params, adaptive=adaptive),
        params=params,
        seed=1,
        duration_s=lab.sent_s + DRAINED_S,
    )
    at_end: list[Report] = []

    def look(at_s: float, report: Report) -> bool:
        at_end.append(report)
        return True

    # Told once, at the last arrival.
    report = simulate(run, look, told_every_s=lab.sent_s)
    assert report.unfinished == 0, "the answers of the last arrivals are out"
    return Figures(
        throughput_rps=_known(at_end[0].throughput_rps),
        ttft_mean_s=_known(report.ttft_s["mean"]),
        ttft_p90_s=_known(report.ttft_s["p90"]),
        remote_share=_known(report.remote_fraction),
        link_bytes=sum(link["bytes"] for link in report.links.values()),
        cached_ratio=1.0 - report.tokens["computed"] / report.tokens["prompt"],
        stages_s={name: _known(stage["mean"]) for name, stage in report.stages_s.items()},
    )


def _known(figure: float | None) -> float:
    assert figure is not None, "requests were answered"
    return figure


def _policy(lab: LabRun, scenario: Scenario, params: Params, *, adaptive: bool) -> Policy:
    if not adaptive:
        return Scripted(script(lab, scenario))
    return Adaptive(scenario, params, started(scenario, "exact"))


def apart(lab: Figures, twin: Figures) -> dict[str, float]:
    """How far the twin is off, by figure: of the lab's value, and of remote_share as it is."""
    found = {}
    for name in LIMITS:
        live, told = getattr(lab, name), getattr(twin, name)
        found[name] = told - live if name == "remote_share" else told / live - 1.0
    return found


def beyond(lab: Figures, twin: Figures) -> list[str]:
    """The figures that are further off than they may be."""
    return [name for name, off in apart(lab, twin).items() if abs(off) > LIMITS[name]]
