"""How well the loop controls: `decide` in the twin beside other policies and the oracle. By hand.

    .venv/bin/python -m tests.bench.control_quality --out DIR --trace MOONCAKE.jsonl.gz
    .venv/bin/python -m tests.bench.control_quality --out DIR --seeds 3 --scenarios burst,loss

Every run leaves a file in DIR/SCENARIO/POLICY/SEED.json, and one that is there is not made again,
unless `--again POLICY,...` asks for it (after a change of the loop). The table is of all files that
are there; `--write` puts it into docs/results.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from routing.core.types import Params
from routing.twin.compare import Interval, compare, interval
from routing.twin.fleet import Run, simulate
from routing.twin.oracle import oracle
from routing.twin.policies import Adaptive, Fixed, Policy, optimum, policy_named
from tests.bench.control_scenarios import (
    CASES,
    WARMUP_S,
    Case,
    Situation,
    chosen,
    situation,
)
from tests.test_docs import block

POLICIES = (
    *("optimum", "paper", "always_local", "always_remote", "least_loaded"),
    *("adaptive", "oracle"),
)
RESULTS = Path(__file__).parents[2] / "docs/results.md"
FLAP_S, FLAP_RATIO = 300.0, 0.02
"""t that goes one way and back within this time, by at least this much each."""

Reports = dict[str, dict[int, dict[str, Any]]]


@dataclass(frozen=True)
class Job:
    case: str
    policy: str
    seed: int
    out: Path
    trace: Path | None
    params: Params

    @property
    def path(self) -> Path:
        return self.out / self.case / self.policy / f"{self.seed}.json"


@lru_cache
def _situation(case: str, trace: Path | None) -> Situation:
    (found,) = chosen([case])
    return situation(found, trace_path=trace)


def work(job: Job) -> tuple[Job, float]:
    """Makes one run and its file; the CPU seconds it took."""
    began_s = time.process_time()
    this = _situation(job.case, job.trace)
    policy = _policy(job, this)
    report = simulate(_run(job, this, policy)).to_json()
    del report["series"]
    if isinstance(policy, Adaptive):
        report["verdicts"] = [
            {"at_s": v.memory.last_change_s, "reason": v.reason, "message": v.message}
            for v in policy.verdicts
        ]
    took_s = time.process_time() - began_s
    job.path.parent.mkdir(parents=True, exist_ok=True)
    part = job.path.with_suffix(".part")
    part.write_text(json.dumps({**report, "cpu_s": took_s}))
    os.replace(part, job.path)
    return job, took_s


def _run(job: Job, this: Situation, policy: Policy) -> Run:
    return Run(
        scenario=this.scenario,
        settings=this.settings,
        workload=this.workload,
        policy=policy,
        params=job.params,
        seed=job.seed,
        duration_s=this.case.duration_s,
        warmup_s=WARMUP_S,
    )


def _policy(job: Job, this: Situation) -> Policy:
    best = Fixed(optimum(this.scenario, "exact"))
    if job.policy == "optimum":
        return best
    if job.policy == "oracle":
        return oracle(_run(job, this, best))
    return policy_named(job.policy, this.scenario, job.params)


def read(out: Path, case: str) -> Reports:
    """By policy and seed, what there is of a scenario."""
    found: Reports = {}
    for path in sorted((out / case).glob("*/*.json")):
        found.setdefault(path.parent.name, {})[int(path.stem)] = json.loads(path.read_text())
    return found


def flaps(plans: Iterable[Mapping[str, Any]]) -> int:
    """How often t went one way and back within `FLAP_S`, whatever links that are down force."""
    by_cluster: dict[str, list[tuple[float, int]]] = {}
    for row in plans:
        if row["threshold_tokens"] is not None:
            steps = by_cluster.setdefault(row["cluster"], [])
            steps.append((row["at_s"], row["threshold_tokens"]))
    n = 0
    for steps in by_cluster.values():
        moves = [
            (at_s, after > before)
            for (_, before), (at_s, after) in pairwise(steps)
            if abs(after / before - 1.0) >= FLAP_RATIO
        ]
        n += sum(up != was_up and b - a <= FLAP_S for (a, was_up), (b, up) in pairwise(moves))
    return n


def most_in_an_hour(plans: Sequence[Mapping[str, Any]]) -> int:
    """Changes in the busiest hour; the first plan of each cluster is none."""
    times = [row["at_s"] for row in plans if row["at_s"] > 0.0]
    return max((sum(t <= u < t + 3600.0 for u in times) for t in times), default=0)


def table(out: Path, cases: Sequence[Case]) -> Iterator[str]:
    """Markdown, one row a scenario, of what there is."""
    yield (
        "| scenario | seeds | served well by oracle | adaptive / oracle | best other, its goodput "
        "less adaptive's | P90 TTFT / oracle's | changes of t, roles | most in an hour | flaps |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for case in cases:
        reports = read(out, case.name)
        if "adaptive" in reports:
            yield _row(case, reports)


def _row(case: Case, reports: Reports) -> str:
    adaptive = reports["adaptive"]
    cells = [case.name, str(len(adaptive)), "", "", "", ""]
    if "oracle" in reports:
        against = compare({"adaptive": adaptive, "oracle": reports["oracle"]}, baseline="oracle")[
            "metrics"
        ]
        served = against["good_fraction"]["policies"]["oracle"]["mean"]
        cells[2] = f"{100 * served:.1f} %"
        cells[3] = _ratio(against["goodput_rps"]["policies"]["adaptive"]["ratio"])
        cells[5] = _ratio(against["ttft_p90_s"]["policies"]["adaptive"]["ratio"])
    others = {name: runs for name, runs in reports.items() if name != "oracle"}
    metric = compare(others, baseline="adaptive")["metrics"]["goodput_rps"]["policies"]
    rivals = [(row["mean"], name) for name, row in metric.items() if name != "adaptive"]
    if rivals:
        name = max(rivals)[1]
        row = metric[name]
        says = {"better": "**above**", "worse": "below", "unclear": "level", None: ""}[row["says"]]
        cells[4] = f"{name} {_signed(row['difference'])} {says}"
    changes = [report["plan_changes"] for report in adaptive.values()]
    mean_t, mean_roles = (
        sum(each[what] for each in changes) / len(changes) for what in ("threshold", "roles")
    )
    plans = [report["plans"] for report in adaptive.values()]
    n_flaps = interval([float(flaps(each)) for each in plans]).mean
    cells += [
        f"{mean_t:.1f}, {mean_roles:.1f}",
        str(max(map(most_in_an_hour, plans))),
        f"{n_flaps:.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


def _ratio(row: Mapping[str, Any] | None) -> str:
    if row is None or row["mean"] is None:
        return ""
    return f"{row['mean']:.3f}{_within(row)}"


def _signed(row: Mapping[str, Any]) -> str:
    return "" if row["mean"] is None else f"{row['mean']:+.3f}{_within(row)}"


def _within(row: Mapping[str, Any]) -> str:
    found = Interval(row["n"], row["mean"], row["low"], row["high"])
    return "" if found.low is None else f" [{found.low:.3f}, {found.high:.3f}]"


def means(out: Path, cases: Sequence[Case]) -> Iterator[str]:
    """Goodput, and P90 TTFT in seconds, of every policy: what lies behind the table."""
    yield "| scenario | " + " | ".join(POLICIES) + " |"
    yield "|---" * (len(POLICIES) + 1) + "|"
    for case in cases:
        reports = read(out, case.name)
        if not reports:
            continue
        metrics = compare(reports)["metrics"]
        cells = [case.name]
        for policy in POLICIES:
            goodput = metrics["goodput_rps"]["policies"].get(policy, {}).get("mean")
            p90_s = metrics["ttft_p90_s"]["policies"].get(policy, {}).get("mean")
            known = goodput is not None and p90_s is not None
            cells.append(f"{goodput:.3f}, {p90_s:.1f}" if known else "")
        yield "| " + " | ".join(cells) + " |"


def write(out: Path) -> None:
    """Both tables, of all scenarios there are runs of, into their blocks of docs/results.md."""
    tables = {"control-quality": table(out, CASES), "control-quality-means": means(out, CASES)}
    for name, lines in tables.items():
        held = RESULTS.read_text()
        found = block(held, name)
        text = "\n".join(lines)
        RESULTS.write_text(held[: found.start(2)] + text + "\n" + held[found.end(2) :])


def jobs(args: argparse.Namespace, cases: Sequence[Case], policies: Sequence[str]) -> list[Job]:
    """Everything that is not there yet; seeds one after the other, so that all scenarios grow."""
    again = [] if args.again is None else args.again.split(",")
    params = _params(args.set)
    found = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for case in cases:
            trace = args.trace if case.traced else None
            for policy in policies:
                job = Job(case.name, policy, seed, args.out, trace, params)
                if policy in again or not job.path.exists():
                    found.append(job)
    return found


def _params(settings: Sequence[str]) -> Params:
    """The defaults, active, with `knob=value` changes; a value is JSON."""
    params = Params(mode="active")
    for setting in settings:
        knob, _, value = setting.partition("=")
        params = replace(params, **{knob: json.loads(value)})
    return params


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--scenarios", help="names, separated by commas; all without")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--trace", type=Path, help="the Mooncake conversation trace")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", help="policies whose runs are made anew")
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE")
    parser.add_argument("--write", action="store_true", help=f"into {RESULTS.name}")
    args = parser.parse_args()
    cases = list(chosen(None if args.scenarios is None else args.scenarios.split(",")))
    if args.trace is None:
        print(*(f"without --trace: no {c.name}" for c in cases if c.traced), sep="\n")
        cases = [case for case in cases if not case.traced]
    left = jobs(args, cases, args.policies.split(","))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.jobs, mp_context=spawn) as pool:
        for n, (job, took_s) in enumerate(pool.map(work, left), start=1):
            print(f"{n}/{len(left)} {job.case} {job.policy} seed {job.seed}: {took_s:.1f} s CPU")
    print(*table(args.out, cases), "", *means(args.out, cases), sep="\n")
    if args.write:
        write(args.out)


if __name__ == "__main__":
    main()
