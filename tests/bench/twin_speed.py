"""How many requests a CPU-second the twin simulates, beside vllm-sr-sim. By hand.

    python -m tests.bench.twin_speed --peer VENV [--trace FILE] [--rounds 5] [--requests 1000000]

VENV has `pip install vllm-sr-sim`; FILE is Mooncake's conversation trace. A part whose input is not
given is left out with a line that says so. Prints the tables of README.md, in this order:

* processes as a whole, in turn (ours, theirs, ours, ...), start and end included: user and system
  time of each as the operating system accounts for it;
* simulations inside a warm process: its CPU time from the first arrival drawn to the report;
* the largest memory of processes that simulate more and more requests.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from routing.simulating import Options, run_of
from routing.trace_files import read_trace
from routing.twin.fleet import Run, simulate
from routing.twin.trace_workload import trace_workload
from routing.twin.traces import Trace
from tests.core.cases import demo_document

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "../shared/data/traces/mooncake_conversation_trace.jsonl.gz"
RATES_RPS = {"log-normal": 2.53, "sessions": 2.55, "Mooncake": 2.8}
"""80 % of what the fleet can do under the paper's policy."""
CACHE = {"capacity_tokens": 5_772_800}
"""Of each cluster: 11,275 blocks of 512."""
SESSIONS = {
    "kind": "sessions",
    "turns": 4.0,
    "think_s": 60.0,
    "shared_tokens": 2048,
    "growth_tokens": {"kind": "lognormal", "mu": 8.0, "sigma": 1.0, "min": 128, "max": 32_768},
}
PEER_FLEETS = {"8 + 4": 1.45, "1 + 1": 0.2}
"""Its instances (short, long), and how much faster time passes there: the load of ours."""
MEMORY_REQUESTS = (100_000, 1_000_000, 5_000_000)


def document(workload: str) -> dict[str, Any]:
    """The case study with everything on: queues, link, slots, caches."""
    found = demo_document() | {"cache": CACHE}
    return found | {"arrivals": SESSIONS} if workload == "sessions" else found


# Processes as a whole


@dataclass(frozen=True)
class Measured:
    """A process that has ended: user and system time, largest memory, what it printed."""

    cpu_s: float
    most_mb: float
    printed: str


@dataclass(frozen=True)
class Process:
    """A command to measure; `requests_and_busy` reads what it printed."""

    name: str
    argv: Sequence[str]
    requests_and_busy: Callable[[str], tuple[int, Mapping[str, float]]]


def measure(argv: Sequence[str]) -> Measured:
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen(argv, cwd=ROOT, stdout=out, env=os.environ | {"COLUMNS": "100"})
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        printed = out.read()
    if child.returncode:
        raise SystemExit(f"{' '.join(argv)}: ended with {child.returncode}\n{printed}")
    return Measured(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, printed)


def processes(peer: Path | None, n: int, folder: Path) -> list[Process]:
    found = [ours(workload, n, folder) for workload in ("log-normal", "sessions")]
    if peer is None:
        print("vllm-sr-sim left out: no --peer")
        return found
    python, requests = str(peer / "bin/python"), folder / "requests.npz"
    write_requests(requests, n)
    script = str(Path(__file__).parent / "peer_fleet.py")
    for shape, speed in PEER_FLEETS.items():
        n_short, n_long = shape.split(" + ")
        argv = (python, script, str(requests), n_short, n_long, str(speed))
        found.append(Process(f"vllm-sr-sim, same requests, {shape}", argv, _of_script))
    where = "import fleet_sim; print(fleet_sim.__path__[0])"
    package = subprocess.check_output([python, "-c", where], text=True).strip()
    argv = (
        *(str(peer / "bin/vllm-sr-sim"), "simulate", "--cdf", f"{package}/data/lmsys_cdf.json"),
        *("--b-short", "2048", "--n-s", "2", "--n-l", "3", "--lam", "240", "--n-req", str(n)),
        *("--out", str(folder / "peer.json")),
    )
    found.append(
        Process(
            "vllm-sr-sim, its LMSYS lengths, 2 + 3",
            argv,
            lambda _: _of_command(json.loads((folder / "peer.json").read_text())),
        )
    )
    return found


def ours(workload: str, n: int, folder: Path) -> Process:
    path = folder / f"{workload}.toml"
    path.write_text(tomli_w.dumps(document(workload)))
    rate = RATES_RPS[workload]
    argv = (sys.executable, "manage.py", "simulate", str(path), "--rate", str(rate))
    argv += ("--duration", str(n / rate), "--json")
    return Process(f"the twin, {workload}", argv, _of_twin)


def write_requests(path: Path, n: int) -> None:
    """The very requests that our process draws."""
    rate = RATES_RPS["log-normal"]
    run = run_of(document("log-normal"), Options(rate_rps=rate, duration_s=n / rate))
    pieces = list(run.workload.pieces(run.seed))
    names = ("at_s", "prompt_tokens", "output_tokens")
    columns = {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in names}
    np.savez(path, **columns)


def _of_twin(printed: str) -> tuple[int, Mapping[str, float]]:
    report = json.loads(printed)
    return report["requests"], {name: p["utilisation"] for name, p in report["pools"].items()}


def _of_script(printed: str) -> tuple[int, Mapping[str, float]]:
    found = json.loads(printed)
    return found["requests"], found["busy"]


def _of_command(found: dict[str, Any]) -> tuple[int, Mapping[str, float]]:
    busy = {name: found[f"{name}_util"] for name in ("short", "long")}
    return found["total_completed"], busy


def compare(rounds: int, compared: Sequence[Process]) -> None:
    """Every process once a round, each round beginning with another one."""
    results: dict[str, list[Measured]] = {process.name: [] for process in compared}
    facts = {}
    for i in range(rounds):
        for process in (*compared[i % len(compared) :], *compared[: i % len(compared)]):
            measured = measure(process.argv)
            results[process.name].append(measured)
            print(f"{i + 1}/{rounds} {process.name}: {measured.cpu_s:.1f} s", file=sys.stderr)
            facts[process.name] = process.requests_and_busy(measured.printed)
    print("\n| process | requests | busy | CPU s | requests/CPU-s: best | median | memory |")
    print("|---|---|---|---|---|---|---|")
    for name, each in results.items():
        n, busy = facts[name]
        cpu_s = [measured.cpu_s for measured in each]
        loads = ", ".join(f"{pool} {share:.0%}" for pool, share in busy.items())
        print(
            f"| {name} | {n:,} | {loads} | {statistics.median(cpu_s):.1f} | {n / min(cpu_s):,.0f} "
            f"| {n / statistics.median(cpu_s):,.0f} | {max(m.most_mb for m in each):,.0f} MB |"
        )
    first, *others = results
    for other in others:
        ratios = [
            facts[first][0] / a.cpu_s / (facts[other][0] / b.cpu_s)
            for a, b in zip(results[first], results[other], strict=True)
        ]
        print(
            f"\n{first} / {other}, round by round: "
            f"median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}",
            end="",
        )
    print()


# Inside a process


def run_for(workload: str, n: int, trace: Path) -> Run:
    """A run of about `n` requests."""
    rate = RATES_RPS[workload]
    options = Options(rate_rps=rate, duration_s=n / rate)
    if workload != "Mooncake":
        return run_of(document(workload), options)
    recorded = read_trace(trace)
    assert isinstance(recorded, Trace)
    run = run_of(document(workload), options, recorded=recorded)
    # A lap finds in the caches what the trace itself brings, not what the lap before left.
    laps = trace_workload(
        run.scenario, recorded, rate_rps=rate, laps="fresh", duration_s=run.duration_s
    )
    return dataclasses.replace(run, workload=laps)


def inside(workload: str, n: int, trace: Path, repeats: int) -> dict[str, Any]:
    """What a child reports: CPU seconds of each repeat after a first one that is not counted."""
    if repeats:
        simulate(run_for(workload, 50_000, trace))
    run = run_for(workload, n, trace)
    before_mb = most_mb()
    cpu_s = []
    for _ in range(max(1, repeats)):
        began = time.process_time()
        report = simulate(run)
        cpu_s.append(time.process_time() - began)
    return {
        "requests": report.requests,
        "cpu_s": cpu_s,
        "busy": {name: pool["utilisation"] for name, pool in report.pools.items()},
        "cached": 1.0 - report.tokens["computed"] / report.tokens["prompt"],
        "before_mb": before_mb,
        "most_mb": most_mb(),
    }


def most_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(workload: str, n: int, trace: Path, repeats: int) -> dict[str, Any]:
    argv = (sys.executable, "-m", "tests.bench.twin_speed", "--trace", str(trace))
    argv += ("--inside", workload, "--requests", str(n), "--rounds", str(repeats))
    found: dict[str, Any] = json.loads(measure(argv).printed)
    return found


def warm(workloads: Sequence[str], n: int, trace: Path, repeats: int) -> None:
    print("\n| warm process | requests | busy | prompts cached | requests/CPU-s: best | median |")
    print("|---|---|---|---|---|---|")
    for workload in workloads:
        found = child(workload, n, trace, repeats)
        n_requests, cpu_s = found["requests"], found["cpu_s"]
        loads = ", ".join(f"{pool} {share:.0%}" for pool, share in found["busy"].items())
        print(
            f"| {workload} | {n_requests:,} | {loads} | {found['cached']:.0%} "
            f"| {n_requests / min(cpu_s):,.0f} | {n_requests / statistics.median(cpu_s):,.0f} |"
        )


def memory(workloads: Sequence[str], trace: Path) -> None:
    print("\n| largest memory | before | " + " | ".join(f"{n:,}" for n in MEMORY_REQUESTS) + " |")
    print("|---|---|" + "---|" * len(MEMORY_REQUESTS))
    for workload in workloads:
        found = [child(workload, n, trace, 0) for n in MEMORY_REQUESTS]
        cells = [found[0]["before_mb"], *(each["most_mb"] for each in found)]
        print(f"| {workload} | " + " | ".join(f"{mb:.0f} MB" for mb in cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", type=Path, metavar="VENV", help="where vllm-sr-sim is installed")
    parser.add_argument("--trace", type=Path, metavar="FILE", default=TRACE)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--inside", metavar="WORKLOAD", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    n, trace, rounds = asked.requests, asked.trace, asked.rounds
    if asked.inside:
        print(json.dumps(inside(asked.inside, n, trace, rounds)))
        return
    workloads = ["log-normal", "sessions"]
    if trace.exists():
        workloads.append("Mooncake")
    else:
        print(f"Mooncake left out: there is no {trace}")
    if "processes" in asked.parts:
        with tempfile.TemporaryDirectory() as folder:
            compare(rounds, processes(asked.peer, n, Path(folder)))
    if "warm" in asked.parts:
        warm(workloads, n, trace, rounds)
    if "memory" in asked.parts:
        memory([workload for workload in workloads if workload != "sessions"], trace)


PARTS = ("processes", "warm", "memory")

if __name__ == "__main__":
    main()
