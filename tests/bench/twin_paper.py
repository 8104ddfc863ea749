"""The paper's case study in the twin, as docs/results.md shows it: tables between markers, plots.

    python -m tests.bench.twin_paper table      The paper's table
    python -m tests.bench.twin_paper queueing   With queueing

Same seeds, same bytes. The runs are shared out to as many processes as there are cores.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from routing.core.model.planner import plan_scenario
from routing.core.scenario.document import parse_scenario
from routing.simulating import Options, run_of
from routing.twin.compare import Interval, interval
from routing.twin.fleet import simulate
from tests.bench.svg import Panel, chart
from tests.core.cases import demo_document
from tests.core.paper import PAPER_T
from tests.test_docs import block

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = DOCS / "results.md"

POISSON, GAMMA, MMPP = "Poisson", "gamma", "MMPP"
ARRIVALS: dict[str, dict[str, Any]] = {
    POISSON: {"kind": "poisson"},
    GAMMA: {"kind": "gamma", "cv": 3.0},
    MMPP: {"kind": "mmpp", "burst_factor": 2.0, "mean_on_s": 60.0, "mean_off_s": 240.0},
}
LOADS = (0.6, 0.8, 0.9, 0.95)
RATES_RPS = (1.5, 1.9, 2.2, 2.6, 3.0)
LINKS_GBPS = (20.0, 10.0, 5.0)
SEEDS = (1, 2, 3, 4, 5)
DURATION_S, WARMUP_S = 20_000.0, 2_000.0
PRFAAS, HOMOGENEOUS, NAIVE = "PrfaaS-PD", "homogeneous", "naive heterogeneous"
EQUAL_COST, LEAST_LOADED = "homogeneous, equal cost", "least loaded"


@dataclass(frozen=True)
class System:
    """A fleet under one policy. `lambda_max_rps` is the exact method's."""

    name: str
    document: dict[str, Any]
    policy: str
    lambda_max_rps: float

    @property
    def plan(self) -> str:
        """t and roles, as they run."""
        run = run_of(self.document, Options(policy=self.policy))
        plan = run.policy.first()["pd"]
        t = "-" if plan.threshold_tokens is None else f"{plan.threshold_tokens:,}"
        return f"{t}, {plan.n_prefill}/{plan.n_decode}"


@cache
def prfaas(link_gbps: float = 100.0) -> System:
    """t and roles by the planner for this link."""
    document = with_link(link_gbps)
    plan = plan_scenario(parse_scenario(document))
    policy = f"static:{plan['clusters']['pd']['threshold_tokens']}"
    return System(PRFAAS, document, policy, plan["lambda_max_rps"])


@cache
def naive(link_gbps: float = 100.0) -> System:
    document = with_link(link_gbps)
    baselines = plan_scenario(parse_scenario(document))["baselines"]
    return System(NAIVE, document, "always_remote", baselines["naive"]["lambda_max_rps"])


@cache
def homogeneous(instances: int = 12, name: str = HOMOGENEOUS) -> System:
    """H20 only, roles by the planner."""
    document = demo_document()
    document["clusters"] = [document["clusters"][1] | {"instances": instances}]
    document["links"] = []
    del document["baselines"]
    plan = plan_scenario(parse_scenario(document))
    return System(name, document, "always_local", plan["lambda_max_rps"])


def equal_cost() -> System:
    """32 H200 at the price of two H20 each, and 64 H20: 128 H20 are 16 instances."""
    return homogeneous(16, EQUAL_COST)


def least_loaded() -> System:
    """The hardware and roles of PrfaaS-PD; each request goes where it is expected to be sooner."""
    return replace(prfaas(), name=LEAST_LOADED, policy="least_loaded")


def with_link(gbps: float) -> dict[str, Any]:
    document = demo_document()
    document["links"][0]["gbps"] = gbps
    return document


@dataclass(frozen=True)
class Point:
    """One cell of an experiment: a system at one rate under one kind of arrivals."""

    system: System
    arrivals: str
    rate_rps: float
    link_gbps: float = 100.0
    load: float | None = None


@dataclass(frozen=True)
class Task:
    document: dict[str, Any]
    options: Options


def measured(task: Task) -> dict[str, Any]:
    """A report as plain values without its series."""
    report = simulate(run_of(task.document, task.options)).to_json()
    del report["series"]
    return report


def reports(tasks: Sequence[Task]) -> list[dict[str, Any]]:
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        return pool.map(measured, tasks, chunksize=1)


@dataclass(frozen=True)
class Row:
    """What came of a point: its values at each seed."""

    point: Point
    seeds: Sequence[dict[str, Any]]

    def of(self, *path: str) -> Interval:
        return interval(
            [value for report in self.seeds if (value := _at(report, path)) is not None]
        )

    def plotted(self, x: float, *path: str) -> tuple[float, float, float, float]:
        found = self.of(*path)
        mean, low, high = found.mean, found.low, found.high
        return (x, mean or 0.0, mean or 0.0 if low is None else low, high or mean or 0.0)


def _at(report: Any, path: Iterable[str]) -> float | None:
    for key in path:
        report = report[key]
    return None if report is None else float(report)


def run_points(points: Sequence[Point]) -> list[Row]:
    tasks = [
        Task(
            point.system.document | {"arrivals": ARRIVALS[point.arrivals]},
            Options(point.system.policy, seed, DURATION_S, WARMUP_S, point.rate_rps),
        )
        for point in points
        for seed in SEEDS
    ]
    found = reports(tasks)
    n = len(SEEDS)
    return [Row(point, found[i * n : i * n + n]) for i, point in enumerate(points)]


# The paper's table


PRINTED = {
    PRFAAS: (2.22, 3.51, 3.24),
    HOMOGENEOUS: (4.44, 9.73, 2.11),
    NAIVE: (1.74, 3.51, 2.45),
}
"""Table 6: TTFT mean and P90, s; Lambda_max, requests/s."""
SERVICE = {PRFAAS: (2.20, 3.51), HOMOGENEOUS: (4.41, 9.73), NAIVE: (1.69, 3.51)}
"""The same TTFT as the calibrated curves give it (tests/core/paper.py)."""
EXACT_RPS = {PRFAAS: 3.158, HOMOGENEOUS: 2.042, NAIVE: 2.362}
LIGHT_RPS, LIGHT_S = 0.02, 1.05e7
FULL, FULL_S, FULL_WARMUP_S = 1.3, 40_000.0, 10_000.0


def paper_systems() -> list[System]:
    """The three of Table 6, at the paper's t."""
    return [replace(prfaas(), policy=f"static:{PAPER_T}"), homogeneous(), naive()]


def light(system: System, *, rate_rps: float = LIGHT_RPS, duration_s: float = LIGHT_S) -> Task:
    """So little traffic that nothing queues."""
    return Task(system.document, Options(system.policy, 1, duration_s, 0.0, rate_rps))


def full(system: System, *, duration_s: float = FULL_S, warmup_s: float = FULL_WARMUP_S) -> Task:
    """More than it carries, without an end."""
    rate_rps = FULL * system.lambda_max_rps
    return Task(system.document, Options(system.policy, 1, duration_s, warmup_s, rate_rps))


def table() -> dict[str, str]:
    systems = [*paper_systems(), replace(prfaas(), name=f"{PRFAAS}, exact t")]
    found = reports([light(system) for system in systems] + [full(system) for system in systems])
    lights, fulls = found[: len(systems)], found[len(systems) :]
    rows = [
        "| | t, N_p/N_d | requests | TTFT mean | P90 | service time alone | the paper prints |",
        "|---|---|---|---|---|---|---|",
    ]
    for system, report in zip(systems, lights, strict=True):
        name, ttft = system.name, report["ttft_s"]
        service = "{:.2f} / {:.2f} s".format(*SERVICE[name]) if name in SERVICE else ""
        printed = "{:.2f} / {:.2f} s".format(*PRINTED[name]) if name in PRINTED else ""
        rows.append(
            f"| {name} | {system.plan} | {report['requests']:,} | {ttft['mean']:.3f} s | "
            f"{ttft['p90']:.3f} s | {service} | {printed} |"
        )
    base = fulls[1]["throughput_rps"]
    full_rows = [
        "| | t, N_p/N_d | offered | throughput | exact method | off by | the paper prints | ratio "
        "to homogeneous | the paper's |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for system, report in zip(systems, fulls, strict=True):
        got, want = report["throughput_rps"], system.lambda_max_rps
        printed = PRINTED.get(system.name)
        ratio = "" if printed is None else f"{printed[2] / PRINTED[HOMOGENEOUS][2]:.2f}"
        full_rows.append(
            f"| {system.name} | {system.plan} | {FULL * want:.2f} | {got:.3f} req/s | {want:.3f} | "
            f"{got / want - 1:+.1%} | {'' if printed is None else printed[2]} | "
            f"{got / base:.2f} | {ratio} |"
        )
    return {"paper-light": "\n".join(rows), "paper-full": "\n".join(full_rows)}


# With queueing


HEAD = [
    "| arrivals | load | system | offered | TTFT mean | P50 | P90 | P99 | goodput | served well |",
    "|---|---|---|---|---|---|---|---|---|---|",
]


def compared() -> list[System]:
    return [prfaas(), homogeneous(), naive(), equal_cost()]


def queueing() -> dict[str, str]:
    systems = compared()
    own = [
        Point(system, arrivals, load * system.lambda_max_rps, load=load)
        for arrivals in ARRIVALS
        for load in LOADS
        for system in systems
    ]
    same = [
        Point(system, arrivals, rate_rps)
        for arrivals in ARRIVALS
        for rate_rps in RATES_RPS
        for system in (*systems, least_loaded())
    ]
    links = [
        Point(system, arrivals, load * system.lambda_max_rps, gbps, load)
        for gbps in LINKS_GBPS
        for arrivals in ARRIVALS
        for load in LOADS
        for system in (prfaas(gbps), naive(gbps))
    ]
    found = run_points([*own, *same, *links])
    own_rows, same_rows = found[: len(own)], found[len(own) : len(own) + len(same)]
    link_rows = found[len(own) + len(same) :]
    draw(own_rows, same_rows, link_rows)
    sections = {
        "queueing-systems": systems_table(),
        "queueing-loads": lines(own_rows),
        "queueing-rates": lines(same_rows),
    }
    for gbps in LINKS_GBPS:
        rows = [row for row in link_rows if row.point.link_gbps == gbps]
        sections[f"queueing-link-{gbps:g}"] = lines(rows)
    return sections


def systems_table() -> str:
    rows = ["| system | link | t, N_p/N_d | lambda_max | to PrfaaS-PD |", "|---|---|---|---|---|"]
    on_links = [(100.0, system) for system in compared()]
    on_links += [(gbps, make(gbps)) for gbps in LINKS_GBPS for make in (prfaas, naive)]
    for gbps, system in on_links:
        ratio = system.lambda_max_rps / prfaas(gbps).lambda_max_rps
        link = f"{gbps:g} Gbps" if system.document["links"] else "none"
        rows.append(
            f"| {system.name} | {link} | {system.plan} | {system.lambda_max_rps:.3f} req/s | "
            f"{ratio:.2f} |"
        )
    return "\n".join(rows)


def lines(rows: Sequence[Row]) -> str:
    return "\n".join([*HEAD, *map(line, rows)])


def line(row: Row) -> str:
    point = row.point
    load = point.rate_rps / point.system.lambda_max_rps
    ttft = " | ".join(
        said(row.of("ttft_s", name), seconds) for name in ("mean", "p50", "p90", "p99")
    )
    return (
        f"| {point.arrivals} | {load:.0%} | {point.system.name} | {point.rate_rps:.2f} | {ttft} | "
        f"{said(row.of('goodput_rps'), '{:.2f}'.format)} | "
        f"{said(row.of('good_fraction'), '{:.1%}'.format)} |"
    )


def seconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def said(found: Interval, form: Callable[[float], str]) -> str:
    if found.mean is None or found.high is None:
        return "-"
    return f"{form(found.mean)} ± {form(found.high - found.mean)}"


def draw(own: Sequence[Row], same: Sequence[Row], links: Sequence[Row]) -> None:
    """The plots, with 95 % intervals as bars."""

    def series(rows: Sequence[Row], x: Callable[[Point], float], *path: str) -> dict[str, Any]:
        names = dict.fromkeys(row.point.system.name for row in rows)
        return {
            name: [
                row.plotted(x(row.point), *path) for row in rows if row.point.system.name == name
            ]
            for name in names
        }

    def load(point: Point) -> float:
        return 100.0 * (point.load or 0.0)

    def of(rows: Sequence[Row], arrivals: str) -> list[Row]:
        return [row for row in rows if row.point.arrivals == arrivals]

    loads = [
        Panel(
            f"{arrivals} arrivals", "load, % of its own lambda_max", "TTFT P90, s",
            series(of(own, arrivals), load, "ttft_s", "p90"), top,
        )
        for arrivals, top in ((POISSON, 40.0), (GAMMA, 80.0), (MMPP, 160.0))
    ]  # fmt: skip
    rates = [
        Panel(
            f"{arrivals} arrivals", "offered, requests/s", "goodput, requests/s",
            series(of(same, arrivals), lambda point: point.rate_rps, "goodput_rps"), 3.0,
        )
        for arrivals in ARRIVALS
    ]  # fmt: skip
    (DOCS / "results-loads.svg").write_text(chart(loads))
    (DOCS / "results-rates.svg").write_text(chart(rates))
    by_link = []
    for arrivals, top in ((POISSON, 40.0), (GAMMA, 80.0), (MMPP, 160.0)):
        found = {}
        for gbps in (100.0, *LINKS_GBPS):
            rows = [
                r
                for r in (*own, *links)
                if (r.point.link_gbps, r.point.system.name) == (gbps, PRFAAS)
            ]
            found[f"{PRFAAS} at {gbps:g} Gbps"] = [
                row.plotted(load(row.point), "ttft_s", "p90") for row in of(rows, arrivals)
            ]
        by_link.append(
            Panel(
                f"{arrivals} arrivals",
                "load, % of lambda_max at the link",
                "TTFT P90, s",
                found,
                top,
            )
        )
    (DOCS / "results-links.svg").write_text(chart(by_link))


def write(sections: dict[str, str]) -> None:
    for name, text in sections.items():
        held = RESULTS.read_text()
        found = block(held, name)
        RESULTS.write_text(held[: found.start(2)] + text + "\n" + held[found.end(2) :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("table", "queueing"))
    write({"table": table, "queueing": queueing}[parser.parse_args().what]())


if __name__ == "__main__":
    main()
