"""What the gate adds to TTFT, beside vllm-router in the same run. Run by hand.

    .venv/bin/python -m tests.bench.gate_overhead --router-venv DIR [--shape flood] [--runs 7]

`DIR` is a virtual environment with vllm-router (README.md says how); without it only direct and
gate are measured. An engine whose first token comes after 30 ms, 64 concurrent streams, prompts of
2 KB and 100 KB; the gate hashes, counts, asks for usage and keeps metrics. Engine, gate, router and
load are processes of their own; in each run the order of the three is drawn anew. Printed are
medians over the runs, and the CPU time a request costs the gate and the router.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import uvloop

from tests.bench.wire import FIRST_TOKEN_S, Sent, load, serve_engine

ROOT = Path(__file__).parents[2]
_READY_S = 60.0
_TEXT_BYTES = 1 << 20


@dataclass(frozen=True)
class Shape:
    """How the engine answers and how long a stream rests between requests, at most `pause_s`."""

    n_tokens: int
    gap_s: float
    pause_s: float


SHAPES = {
    # Streams that go on for a while: about 85 requests and 2,700 events a second.
    "steady": Shape(n_tokens=32, gap_s=0.020, pause_s=0.1),
    # Short streams without rest: about 900 requests and 8,000 events a second.
    "flood": Shape(n_tokens=8, gap_s=0.005, pause_s=0.0),
}


@dataclass(frozen=True)
class Target:
    """Where requests go; `pid` of the process in between, None when there is none."""

    name: str
    url: str
    pid: int | None = None


@dataclass(frozen=True)
class Series:
    """One target under one load."""

    p50_ms: float
    p99_ms: float
    cpu_ms: float
    requests_per_s: float


class Bodies:
    """Request bodies of English-like text that share a quarter of it with each other."""

    def __init__(self, rng: random.Random) -> None:
        words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(1, 9))) for _ in range(2000)]
        text = " ".join(rng.choices(words, k=_TEXT_BYTES // 4))
        self.text = "\n".join(text[at : at + 80] for at in range(0, _TEXT_BYTES, 80))
        self._rng = rng

    def make(self, size_bytes: int, n: int) -> list[bytes]:
        head = self.text[: size_bytes // 4]
        n_own = size_bytes - len(head)
        starts = (self._rng.randrange(len(self.text) - n_own) for _ in range(n))
        return [
            json.dumps(
                {
                    "model": "m",
                    "prompt": head + self.text[start : start + n_own],
                    "max_tokens": 32,
                    "temperature": 0.7,
                    "stream": True,
                }
            ).encode()
            for start in starts
        ]


class Processes:
    """What the bench starts, ended with it."""

    def __init__(self, stack: ExitStack, pin: list[str]) -> None:
        self._stack, self._pin = stack, pin

    def start(
        self, command: list[str], *, core: int, root: Path = ROOT, stdout: int | TextIO
    ) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            ["taskset", "-c", self._pin[core], *command],
            cwd=root,
            text=True,
            stdout=stdout,
            stderr=None if stdout == subprocess.PIPE else subprocess.STDOUT,
        )
        self._stack.callback(child.wait)
        self._stack.callback(child.terminate)
        return child

    def python(self, *args: str, core: int, root: Path = ROOT) -> tuple[str, int]:
        """A child of the checkout `root` that prints its address as one JSON line."""
        command = [sys.executable, "-m", *args]
        child = self.start(command, core=core, root=root, stdout=subprocess.PIPE)
        assert child.stdout is not None
        url: str = json.loads(child.stdout.readline())["url"]
        return url, child.pid

    def router(self, venv: Path, engine: str, log: Path) -> Target:
        """vllm-router in its plain mode: one worker, the cheapest policy, no log line a request."""
        port, metrics_port = free_port(), free_port()
        command = [str(venv / "bin" / "vllm-router"), "--worker-urls", engine]
        command += ["--policy", "round_robin", "--log-level", "warning"]
        command += ["--worker-startup-check-interval", "1"]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
        child = self.start(command, core=0, stdout=self._stack.enter_context(log.open("w")))
        url = f"http://127.0.0.1:{port}"
        give_up_s = time.monotonic() + _READY_S
        while True:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=1).close()
                return Target("router", url, child.pid)
            except (urllib.error.URLError, TimeoutError) as exc:
                if child.poll() is not None or time.monotonic() > give_up_s:
                    raise SystemExit(f"vllm-router did not start: {log.read_text()}") from exc
                time.sleep(0.2)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


BOUNDED = """
[limits]
in_flight = 10000
local_in_flight = 10000
[tenants]
in_flight = 10000
rps = 1e6
[access_log]
file = "access.jsonl"
"""


def gate_config(folder: Path, engine: str, tokenizer: Path | None, *, more: str = "") -> Path:
    """A gate with a plan: 2 KB stay local, 100 KB go remote. Both sides are the same engine."""
    plan = {
        "fleet": "F",
        "epoch": 1,
        "version": 1,
        "issued_at_s": time.time(),
        "reason": "Optimal",
        "clusters": {
            "pd": {
                "mode": "threshold",
                "threshold_tokens": 4000,
                "cache_mode": "scarce",
                "remote": {"prfaas": 1.0},
                "band": [4000, 4000],
            }
        },
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    lines = ['router = "F/pd/gate"', "port = 0", 'plan_file = "plan.json"']
    if tokenizer is not None:
        lines.append(f'tokenizer_file = "{tokenizer}"')
    lines += ["[upstreams.local]", f'url = "{engine}"']
    lines += ["[upstreams.remote.prfaas]", f'url = "{engine}"']
    path = folder / ("bounded.toml" if more else "gate.toml")
    path.write_text("\n".join(lines) + "\n" + more)
    return path


def cpu_s(pid: int) -> float:
    """User and system time a process has used, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def run_series(
    target: Target, shape: Shape, bodies: list[bytes], *, n_streams: int, rng: random.Random
) -> Series:
    """One series; every answer must be whole.

    The first request of each stream is not counted: between series idle connections are dropped,
    and setting up all of them at once is not what a gate in service does all day.
    """
    stream_s = FIRST_TOKEN_S + shape.n_tokens * shape.gap_s
    starts_s = [rng.uniform(0.0, stream_s) for _ in range(n_streams)]
    pauses_s = [rng.uniform(0.0, shape.pause_s) for _ in bodies]
    before_s = cpu_s(target.pid) if target.pid else 0.0
    began_s = time.perf_counter()
    sent: list[Sent] = await load(target.url, bodies, starts_s=starts_s, pauses_s=pauses_s)
    took_s = time.perf_counter() - began_s
    used_s = cpu_s(target.pid) - before_s if target.pid else 0.0
    wrong = [one for one in sent if one.n_events != shape.n_tokens + 1]
    if wrong:
        raise SystemExit(f"{target.name}: {len(wrong)} answers were not whole, e.g. {wrong[0]}")
    ttft_ms = [one.ttft_s * 1e3 for one in sent if one.n_before]
    return Series(
        percentile(ttft_ms, 0.5),
        percentile(ttft_ms, 0.99),
        used_s / len(bodies) * 1e3,
        len(bodies) / took_s,
    )


async def measure(
    targets: list[Target],
    shape: Shape,
    *,
    sizes_bytes: list[int],
    n_streams: int,
    runs: int,
    n_requests: int,
    seed: int,
) -> None:
    """The same load for every target in turn, `runs` times; prints the medians."""
    rng = random.Random(seed)
    bodies = Bodies(rng)
    found: dict[tuple[int, str], list[Series]] = {}
    for size_bytes in sizes_bytes:  # connections, learned ratios and caches as in service
        for target in targets:
            sent = bodies.make(size_bytes, 2 * n_streams)
            await run_series(target, shape, sent, n_streams=n_streams, rng=rng)
    for _ in range(runs):
        for size_bytes in sizes_bytes:
            for target in rng.sample(targets, len(targets)):
                sent = bodies.make(size_bytes, n_streams + n_requests)
                series = await run_series(target, shape, sent, n_streams=n_streams, rng=rng)
                found.setdefault((size_bytes, target.name), []).append(series)
    for size_bytes in sizes_bytes:
        for target in targets:
            print(row(size_bytes, target.name, found[size_bytes, target.name]))
        if (size_bytes, "router") in found:
            print(ratio(size_bytes, found[size_bytes, "gate"], found[size_bytes, "router"]))


def median(series: list[Series], name: str) -> float:
    return statistics.median(getattr(one, name) for one in series)


def row(size_bytes: int, name: str, series: list[Series]) -> str:
    p99 = sorted(one.p99_ms for one in series)
    return (
        f"{size_bytes:>7} B  {name:<7}  TTFT p50 {median(series, 'p50_ms'):6.2f} ms"
        f"  p99 {median(series, 'p99_ms'):6.2f} ms ({p99[0]:.2f} to {p99[-1]:.2f})"
        f"  CPU {median(series, 'cpu_ms'):5.2f} ms a request"
        f"  {median(series, 'requests_per_s'):6.1f} requests/s"
    )


def ratio(size_bytes: int, gate: list[Series], router: list[Series]) -> str:
    p50, p99, cpu = (
        median(gate, name) / median(router, name) for name in ("p50_ms", "p99_ms", "cpu_ms")
    )
    return f"{size_bytes:>7} B  gate / router: p50 {p50:.3f}  p99 {p99:.3f}  CPU {cpu:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--router-venv", type=Path, help="where vllm-router is installed")
    parser.add_argument("--shape", choices=SHAPES, default="steady")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2_000, 100_000], metavar="BYTES")
    parser.add_argument("--streams", type=int, default=64, help="at the same time")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--requests", type=int, default=640, help="counted in a series")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json for the gate")
    parser.add_argument(
        "--bounded",
        action="store_true",
        help="also a gate with limits, tenants and an access log, which the others are without",
    )
    parser.add_argument("--before", type=Path, help="another checkout, its gate measured as well")
    parser.add_argument(
        "--pin",
        nargs=2,
        default=["0", "1"],
        metavar=("BETWEEN", "ENDS"),
        help="cores of gate and router, and cores of engine and load, as 0 or 0,1",
    )
    parser.add_argument(
        "--realtime",
        action="store_true",
        help="run all of it before any other work of the machine (SCHED_FIFO, needs root)",
    )
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    if args.engine:
        uvloop.run(serve_engine(n_tokens=shape.n_tokens, gap_s=shape.gap_s))
        return
    print(f"load average before {os.getloadavg()}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        processes = Processes(stack, args.pin)
        os.sched_setaffinity(0, {int(core) for core in args.pin[1].split(",")})
        if args.realtime:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        engine, _ = processes.python(
            "tests.bench.gate_overhead", "--engine", "--shape", args.shape, core=1
        )
        config = gate_config(folder, engine, args.tokenizer and args.tokenizer.resolve())
        gate, gate_pid = processes.python("routing.gate", "--config", str(config), core=0)
        targets = [Target("direct", engine), Target("gate", gate, gate_pid)]
        if args.bounded:
            path = gate_config(folder, engine, None, more=BOUNDED)
            gate, gate_pid = processes.python("routing.gate", "--config", str(path), core=0)
            targets.append(Target("bounded", gate, gate_pid))
        if args.before is not None:
            gate, gate_pid = processes.python(
                "routing.gate", "--config", str(config), core=0, root=args.before
            )
            targets.append(Target("before", gate, gate_pid))
        if args.router_venv is not None:
            targets.append(processes.router(args.router_venv, engine, folder / "router.log"))
        uvloop.run(
            measure(
                targets,
                shape,
                sizes_bytes=args.sizes,
                n_streams=args.streams,
                runs=args.runs,
                n_requests=args.requests,
                seed=args.seed,
            )
        )
    print(f"load average after {os.getloadavg()}")


if __name__ == "__main__":
    main()
