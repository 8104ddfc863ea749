"""CPU-seconds a million values: our ingest beside Prometheus and VictoriaMetrics. Run by hand.

    .venv/bin/python -m tests.bench.ingest_cost [--systems ours,prom_scrape,prom_rw,vm_rw] [--k 8]

The rules are the kit's: CPU-seconds of the whole server tree (of ours everything `manage.py up`
starts), not wall time; each system in turn, `--repeats` times, medians. 8,000 instances of 20
signals; a POST carries `--k` of them. *steady*: every agent one POST a second. *closed*: the next
POST as soon as the answer is there. The first two ticks, in which series are made, are not counted.

*all-in* adds what a server does with the data afterwards, made to happen at once. Prometheus: its
head becomes a block; VictoriaMetrics: flush and merge; what the idle server uses in that time
(measured before the load) is taken off. Ours: chunks, both roll-ups, vacuum and checkpoint,
measured once at the start (`after_cost`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import ingest_kit, server_tree
from tests.bench.backfill import backfill
from tests.bench.console_up import Console, stored_values, versions
from tests.bench.gate_overhead import free_port
from tests.bench.ingest_fleet import SIGNALS
from tests.bench.ingest_kit import Kit, Other

N_INSTANCES = 8000
N_WARM_TICKS = 2
_IDLE_S = 5.0
_SCRAPE_WARM_S = 8.0
_QUIET_LIMIT_S = 120.0
_QUIET_SLACK = 0.05


@dataclass(frozen=True)
class Setup:
    """What is asked for."""

    kit: Kit
    folder: Path
    k: int
    mode: str
    ticks: int
    body: str
    after: dict[str, float]

    @property
    def n_agents(self) -> int:
        return N_INSTANCES // self.k

    @property
    def n_values(self) -> int:
        """Of the counted ticks."""
        return self.ticks * N_INSTANCES * len(SIGNALS)

    @property
    def n_sent(self) -> int:
        """Of all ticks."""
        return (self.ticks + N_WARM_TICKS) * N_INSTANCES * len(SIGNALS)

    def load(self, url: str, pid: int, **options: object) -> dict[str, Any]:
        """The kit's load on a server; its result."""
        # Samples of a series must reach the others in order: few connections, as the kit does it.
        conns = self.n_agents if "body" in options else 16
        return self.kit.load(
            url,
            name="load",
            agents=self.n_agents,
            k=self.k,
            ticks=self.ticks,
            warm=N_WARM_TICKS,
            mode=self.mode,
            conns=conns,
            pids=pid,
            **options,
        )


def idle(pid: int) -> float:
    """CPU-seconds a second of a server with nothing to do."""
    before = server_tree.look(pid)
    time.sleep(_IDLE_S)
    after = server_tree.look(pid)
    return (after.total_cpu_s - before.total_cpu_s) / (after.at_s - before.at_s)


def settle(pid: int, idle_cpu_per_s: float, work: Callable[[], object]) -> dict[str, Any]:
    """Run `work`, wait until the server is quiet; CPU-seconds beyond idling, by part."""
    before = server_tree.look(pid)
    work()
    server_tree.until_quiet(
        pid, idle_cpu_per_s=idle_cpu_per_s, slack_cpu_per_s=_QUIET_SLACK, limit_s=_QUIET_LIMIT_S
    )
    after = server_tree.look(pid)
    parts = server_tree.used(before, after)
    seconds = after.at_s - before.at_s
    return {
        "settle_s": round(seconds, 1),
        "settle_cpu_s": round(max(0.0, sum(parts.values()) - idle_cpu_per_s * seconds), 3),
        "settle_parts": {part: round(cpu_s, 2) for part, cpu_s in parts.items() if cpu_s > 0.0},
    }


def figures(setup: Setup, cpu_s: float, settled: dict[str, Any], **more: object) -> dict[str, Any]:
    """One run as it is written down."""
    millions = setup.n_values / 1e6
    all_in = cpu_s + settled["settle_cpu_s"] * setup.n_values / setup.n_sent
    return {
        "mode": setup.mode,
        "k": setup.k,
        "values": setup.n_values,
        "cpu_s_per_M": round(cpu_s / millions, 3),
        "all_in_cpu_s_per_M": round(all_in / millions, 3),
        **settled,
        **more,
    }


def loaded(result: dict[str, Any]) -> dict[str, Any]:
    """What is kept of the kit's result."""
    names = ("codes", "wall", "p50", "p99", "max", "body_bytes", "values_per_s", "mem", "all_cpu")
    kept = {name: result[name] for name in (*names, "sender_cpu", "pressure")}
    refused = {code: n for code, n in result["codes"].items() if not code.startswith("2")}
    if refused:
        print(f"NOT ALL ACCEPTED: {refused} {result['err'][:2]}", flush=True)
    return kept


def ours(setup: Setup) -> dict[str, Any]:
    """The whole console, from nothing; every value must be in the database afterwards."""
    with Console(setup.folder / "state") as console, console.database() as database:
        tokens = setup.kit.folder / "tokens"
        # One key for all: it is looked up by its hash for every request, however many there are.
        tokens.write_text(f"{console.token('bench', 'ingest')}\n" * setup.n_agents)
        tokens.chmod(0o600)
        idle_cpu_per_s = idle(console.pid)
        with server_tree.Watch(console.pid, period_s=0.2) as watch:
            url = f"{console.url}/api/v1/ingest"
            result = setup.load(url, console.pid, body=setup.body, tokens=tokens)
            ended_s = (setup.kit.folder / "out" / "load.json").stat().st_mtime
        # The kit counts from before its connections are made until a second after the last answer.
        began_s = ended_s - result["wall"] - 1.3
        parts = server_tree.used(watch.at(began_s), watch.at(ended_s))
        n_stored = stored_values(database)
        if n_stored != setup.n_sent:
            print(f"VALUES LOST: {n_stored} stored of {setup.n_sent}", flush=True)
        per_million = result["server_cpu"] / setup.n_values * 1e6
        after = sum(setup.after.values())
        return {
            "mode": setup.mode,
            "k": setup.k,
            "values": setup.n_values,
            "cpu_s_per_M": round(per_million, 3),
            "all_in_cpu_s_per_M": round(per_million + after, 3),
            "after_cpu_s_per_M": setup.after,
            "stored": n_stored == setup.n_sent,
            "parts_cpu_s": {
                name: round(cpu_s, 2) for name, cpu_s in parts.items() if cpu_s > 0.005
            },
            "idle_cpu_per_s": round(idle_cpu_per_s, 3),
            "version": versions(database),
            **loaded(result),
        }


_READINGS = """
import sys, numpy, fleet
made = fleet.Fleet(int(sys.argv[1]), int(sys.argv[2]))
numpy.save("out/readings.npy", numpy.stack([made.step() for _ in range(int(sys.argv[3]))]))
"""


def after_cost(kit: Kit, folder: Path, k: int) -> dict[str, float]:
    """CPU-seconds a million values of what follows ingest, by step.

    Chunks are made each two minutes of all that landed, so what a pass costs however little it
    finds is shared by the fleet: they are measured on two such passes over the whole fleet, landed
    as in life, a reading a POST. Roll-ups are made by ten minutes and by the hour: measured on two
    whole hours of a fiftieth of the fleet, as a load of seconds would be charged for all of them.
    """
    fleet = _after(kit, folder / "fleet", N_INSTANCES // k, k, n_readings=240, readings_a_post=1)
    hours = _after(kit, folder / "hours", 160 // k, k, n_readings=7200, readings_a_post=20)
    return {
        "chunks": fleet["cpu_s_per_M"]["chunks"],
        "rollups": hours["cpu_s_per_M"]["rollups"],
        "vacuum": max(made["cpu_s_per_M"]["vacuum"] for made in (fleet, hours)),
    }


def _after(
    kit: Kit, folder: Path, n_agents: int, k: int, *, n_readings: int, readings_a_post: int
) -> dict[str, Any]:
    kit.run("-c", _READINGS, n_agents, k, n_readings)
    data = np.load(kit.folder / "out" / "readings.npy")
    start_s = (time.time() // 7200.0 - 1.0) * 7200.0  # a whole span of both roll-ups
    with Console(folder) as console:
        return backfill(
            console,
            data,
            start_s=start_s,
            step_s=1.0,
            per_agent=k,
            readings_a_post=readings_a_post,
        )


def prom_rw(setup: Setup) -> dict[str, Any]:
    """Prometheus by remote-write 1.0."""
    with setup.kit.server("prom", "cost_prom") as server:
        idle_cpu_per_s = idle(server.pid)
        url = f"http://127.0.0.1:{server.port}/api/v1/write"
        result = setup.load(url, server.pid, shape="prom")
        stored = server.counted("prometheus_tsdb_head_samples_appended_total")
        settled = settle(server.pid, idle_cpu_per_s, lambda: to_block(server))
        return figures(
            setup,
            result["server_cpu"],
            settled,
            stored=stored >= setup.n_sent,
            version=server.version,
            **loaded(result),
        )


def to_block(server: Other) -> None:
    """What Prometheus does every two hours: its head becomes a block."""
    server.get("/api/v1/admin/tsdb/snapshot", b"")


def vm_rw(setup: Setup) -> dict[str, Any]:
    """VictoriaMetrics by remote-write 1.0."""
    with setup.kit.server("vm", "cost_vm") as server:
        idle_cpu_per_s = idle(server.pid)
        url = f"http://127.0.0.1:{server.port}/api/v1/write"
        result = setup.load(url, server.pid, shape="prom")
        stored = server.counted("vm_rows_inserted_total")

        def work() -> None:
            server.get("/internal/force_flush")
            server.get("/internal/force_merge")

        settled = settle(server.pid, idle_cpu_per_s, work)
        return figures(
            setup,
            result["server_cpu"],
            settled,
            stored=stored >= setup.n_sent,
            version=server.version,
            **loaded(result),
        )


def prom_scrape(setup: Setup) -> dict[str, Any]:
    """Prometheus scraping 1,000 pages of 160 series every second, for `ticks` seconds."""
    port = free_port()
    targets = "".join(
        f"  - targets: ['127.0.0.1:{port}']\n    labels: {{__metrics_path__: /a/{n}}}\n"
        for n in range(1000)
    )
    config = (
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n"
        f"- job_name: vllm\n  honor_labels: true\n  static_configs:\n{targets}"
    )
    with (
        setup.kit.child("scrape_target.py", port, 12),
        setup.kit.server("prom", "cost_scrape", conf=config) as server,
    ):
        time.sleep(_SCRAPE_WARM_S)
        counter = "prometheus_tsdb_head_samples_appended_total"
        n_before, before = server.counted(counter), server_tree.look(server.pid)
        time.sleep(setup.ticks)
        n_after, after = server.counted(counter), server_tree.look(server.pid)
        cpu_s = after.total_cpu_s - before.total_cpu_s
        n_values = n_after - n_before
        # It goes on scraping while the head becomes a block: only the difference is that work.
        scraping_per_s = cpu_s / (after.at_s - before.at_s)
        settled = settle(server.pid, scraping_per_s, lambda: to_block(server))
        per_million = cpu_s / n_values * 1e6
        extra = settled["settle_cpu_s"] / server.counted(counter) * 1e6
        return {
            "mode": "scrape",
            "k": 8,
            "values": int(n_values),
            "cpu_s_per_M": round(per_million, 3),
            "all_in_cpu_s_per_M": round(per_million + extra, 3),
            **settled,
            "stored": n_values >= 0.98 * setup.n_values,
            "values_per_s": round(n_values / (after.at_s - before.at_s)),
            "version": server.version,
        }


SYSTEMS: dict[str, Callable[[Setup], dict[str, Any]]] = {
    "ours": ours,
    "prom_scrape": prom_scrape,
    "prom_rw": prom_rw,
    "vm_rw": vm_rw,
}


def table(rows: list[dict[str, Any]]) -> str:
    """Medians (least to most) of each system, and how many times ours each is."""
    by_system = defaultdict(list)
    for row in rows:
        by_system[row["system"]].append(row)
    lines = ["system        load: CPU-s a million values   all-in                all-in / ours  n"]
    base = [row["all_in_cpu_s_per_M"] for row in by_system.get("ours", [])]
    for system, found in by_system.items():
        cells = []
        for name in ("cpu_s_per_M", "all_in_cpu_s_per_M"):
            values = [row[name] for row in found]
            cells.append(
                f"{statistics.median(values):6.3f} ({min(values):.3f} to {max(values):.3f})"
            )
        all_in = statistics.median(row["all_in_cpu_s_per_M"] for row in found)
        times = f"{all_in / statistics.median(base):.2f}" if base else "-"
        lines.append(f"{system:<12}  {cells[0]:<28}  {cells[1]:<24}  {times:>6}  {len(found)}")
    for row in by_system.get("ours", []):
        lines.append(f"  ours by part, CPU-s: {row['parts_cpu_s']}")
        lines.append(f"  then, CPU-s a million values: {row['after_cpu_s_per_M']}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ingest_kit.add_arguments(parser)
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--k", type=int, default=8, choices=(8, 64), help="instances a POST")
    parser.add_argument("--mode", default="steady", choices=("steady", "closed"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ticks", type=int, default=20, help="counted seconds, or rounds")
    parser.add_argument("--body", default="ingest_fleet:body", help="MODULE:FUNCTION of our bodies")
    parser.add_argument("--load-only", action="store_true", help="ours without what follows")
    parser.add_argument("--out", type=Path, help="JSON lines are appended to this file")
    args = parser.parse_args()
    unknown = set(args.systems.split(",")) - SYSTEMS.keys()
    if unknown:
        parser.error(f"--systems: {', '.join(sorted(unknown))} not among {', '.join(SYSTEMS)}")
    print(f"load average {os.getloadavg()}", flush=True)
    after: dict[str, float] = {}
    if "ours" in args.systems.split(",") and not args.load_only:
        with tempfile.TemporaryDirectory(prefix="ingest-", dir="/tmp") as folder:
            kit = Kit(args.kit.resolve(), args.kit_venv, Path(folder))
            after = after_cost(kit, Path(folder), args.k)
        print(json.dumps({"after": after}), flush=True)
    rows: list[dict[str, Any]] = []
    for repeat in range(args.repeats):
        for system in args.systems.split(","):
            with tempfile.TemporaryDirectory(prefix="ingest-", dir="/tmp") as folder:
                kit = Kit(args.kit.resolve(), args.kit_venv, Path(folder))
                setup = Setup(
                    kit=kit,
                    folder=Path(folder),
                    k=args.k,
                    mode=args.mode,
                    ticks=args.ticks,
                    body=args.body,
                    after=after,
                )
                row = {"system": system, "repeat": repeat, **SYSTEMS[system](setup)}
            rows.append(row)
            print(json.dumps(row), flush=True)
            if args.out is not None:
                with args.out.open("a") as out:
                    print(json.dumps(row), file=out)
    print(table(rows))


if __name__ == "__main__":
    main()
