"""A fleet's telemetry at full scale on this machine: agents, browsers, minutes. Run by hand.

    .venv/bin/python -m tests.bench.scale [--agents 1000] [--sockets 50] [--minutes 10]

Agents of 8 instances with 20 signals each post once a second (`scale_agents`), browsers watch
(`scale_sockets`), all of it beside the console on the same cores. Found is: whether every value
that was acknowledged is stored, and every one sent acknowledged; PSS of each part every 5 s and its
slope, the first fifth left out; CPU by part; freshness, from the reading at the agent to the whole
frame at a socket.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from tests.bench import ingest_kit, server_tree
from tests.bench.console_up import Console, bytes_at_rest, stored_values, versions
from tests.bench.ingest_fleet import FLEET, SIGNALS
from tests.bench.ingest_kit import Kit

ROOT = Path(__file__).parents[2]
PER_AGENT = 8
_LEAD_S = 12.0
_MEMORY_EVERY_S = 5.0
_SCENARIO = """
[fleet]
name = "{fleet}"
slo = {{ tokens_per_s = 40.0, ttft_s = 10.0 }}
[model]
bytes_per_token = 17280
state_bytes = 182347366
[profiles.h200]
prefill = [[1024, 0.44], [8192, 0.72], [27486, 1.63265], [62410, 3.51], [131072, 7.40]]
decode = {{ batch = 20, step_s = 0.025 }}
[[clusters]]
name = "prfaas"
kind = "prefill"
profile = "h200"
instances = 4
{clusters}
"""
_CLUSTER = """
[[clusters]]
name = "pd-{i}"
kind = "pd"
profile = "h200"
instances = {n}
[[links]]
from = "prfaas"
to = "pd-{i}"
gbps = 100.0
rtt_ms = 5.0
[[workloads]]
cluster = "pd-{i}"
rate_rps = {rate}
output_tokens = 1024
lengths = {{ kind = "lognormal", mu = 9.90, sigma = 1.00, min = 128, max = 131072 }}
"""
N_CLUSTERS = 5


def scenario(n_instances: int) -> str:
    """A fleet with the clusters that `ingest_fleet` names, in which the loop only looks."""
    n = n_instances // N_CLUSTERS
    clusters = "".join(_CLUSTER.format(i=i, n=n, rate=n * 0.2) for i in range(N_CLUSTERS))
    return _SCENARIO.format(fleet=FLEET, clusters=clusters)


def slopes(usages: list[server_tree.Usage]) -> dict[str, dict[str, float]]:
    """Of each part and of all: PSS in MB at first and last, and its slope in MB an hour."""
    steady = usages[len(usages) // 5 :]
    at_s = np.array([usage.at_s for usage in steady])
    found = {}
    for part in sorted({part for usage in steady for part in usage.pss_bytes} | {"all"}):
        mb = np.array(
            [
                (usage.total_pss_bytes if part == "all" else usage.pss_bytes.get(part, 0)) / 1e6
                for usage in steady
            ]
        )
        per_s = np.polyfit(at_s - at_s[0], mb, 1)[0] if len(mb) > 1 else 0.0
        found[part] = {
            "first_mb": round(float(mb[0]), 1),
            "last_mb": round(float(mb[-1]), 1),
            "most_mb": round(float(mb.max()), 1),
            "mb_per_hour": round(float(per_s) * 3600.0, 1),
        }
    return found


def tick_ms(database: psycopg.Connection[Any]) -> dict[str, float]:
    """What the decision loop's passes took, the first few left out, and how many there were."""
    rows = database.execute("SELECT duration_ms FROM routing_tick ORDER BY seq OFFSET 5").fetchall()
    took = np.array([row[0] for row in rows])
    if not took.size:
        return {"n": 0}
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {"n": len(took)} | {k: round(float(np.quantile(took, q)), 1) for k, q in shares.items()}


def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One console from nothing, one load; what came of it."""
    kit = Kit(args.kit.resolve(), args.kit_venv, folder)
    seconds = round(args.minutes * 60)
    with Console(folder / "state") as console, console.database() as database:
        fleet_file = folder / "bench.toml"
        fleet_file.write_text(scenario(args.agents * PER_AGENT))
        console.manage("fleet", "apply", str(fleet_file), "--mode", args.mode)
        token_file = folder / "token"
        token_file.write_text(console.token("bench", "ingest"))
        token_file.chmod(0o600)
        start_s = time.time() + _LEAD_S
        when = ["--seconds", str(seconds), "--start-at", str(start_s)]
        agents = subprocess.Popen(
            [
                *(str(kit.python), "-m", "scale_agents", "--url", console.url, *when),
                *("--token-file", str(token_file), "--agents", str(args.agents)),
                *("--out", str(folder / "agents.json")),
            ],
            cwd=kit.folder,
            env=kit.env,
        )
        sockets = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.bench.scale_sockets", "--url", console.url, *when),
                *("--fleets", FLEET, "--n", str(args.sockets)),
                *("--instances", str(args.agents * PER_AGENT)),
                *("--out", str(folder / "sockets.json")),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            text=True,
        )
        try:
            assert sockets.stdin is not None
            sockets.stdin.write("\n".join(console.login))
            sockets.stdin.close()
            time.sleep(max(0.0, start_s - time.time()))
            before = server_tree.look(console.pid)
            watch = server_tree.Watch(console.pid, period_s=_MEMORY_EVERY_S, memory=True)
            with watch:
                # As the sender does: no longer than a minute for the last answers.
                agents.wait(seconds + 90.0)
                after = server_tree.look(console.pid)
                sockets.wait(60.0)
        finally:
            for child in (agents, sockets):
                with contextlib.suppress(OSError):
                    child.kill()
                child.wait()
        sent = json.loads((folder / "agents.json").read_text())
        seen = json.loads((folder / "sockets.json").read_text())
        per_post = PER_AGENT * len(SIGNALS)
        n_acked, n_stored = sent["codes"].get("200", 0) * per_post, stored_values(database)
        parts = server_tree.used(before, after)
        took_s = after.at_s - before.at_s
        return {
            "agents": args.agents,
            "minutes": args.minutes,
            "values_sent": sent["sent"] * per_post,
            "values_acked": n_acked,
            "values_stored": n_stored,
            "nothing_lost": sent["sent"] * per_post == n_acked == n_stored,
            "sender": sent,
            "sockets": seen,
            "cores": {part: round(cpu_s / took_s, 3) for part, cpu_s in parts.items()},
            "cpu_s_per_M": round(sum(parts.values()) / max(1, n_acked) * 1e6, 3),
            "memory": slopes(watch.usages),
            "tick_ms": tick_ms(database),
            "bytes": bytes_at_rest(database),
            "version": versions(database),
            "load_average": os.getloadavg(),
        }


def summary(found: dict[str, Any]) -> str:
    sockets, sender, memory = found["sockets"], found["sender"], found["memory"]
    lines = [
        f"{found['agents']} agents x {PER_AGENT} x {len(SIGNALS)}, {found['minutes']:g} min: "
        f"sent {found['values_sent']}, acknowledged {found['values_acked']}, "
        f"stored {found['values_stored']}: "
        + ("nothing lost" if found["nothing_lost"] else "NOT ALL THERE"),
        f"answers {sender['codes']}, p50 {sender['ack_p50_ms']} ms, p99 {sender['ack_p99_ms']} ms; "
        f"sender late by p99 {sender['late_p99_ms']} ms",
        f"{sockets['sockets']} sockets ({sockets['ended_early']} ended early): freshness "
        f"p50 {sockets['fresh_p50_s']} s, p99 {sockets['fresh_p99_s']} s, "
        f"max {sockets['fresh_max_s']} s; frames of {sockets['frame_bytes']} bytes, "
        f"gap p99 {sockets['frame_gap_p99_s']} s",
        f"ticks of the loop {found['tick_ms']} ms",
        f"cores {found['cores']}, {found['cpu_s_per_M']} CPU-s a million values",
    ]
    for part, one in memory.items():
        lines.append(
            f"  {part:<9} {one['first_mb']:>8} -> {one['last_mb']:>8} MB, "
            f"at most {one['most_mb']}, {one['mb_per_hour']:+.1f} MB an hour"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ingest_kit.add_arguments(parser)
    parser.add_argument("--agents", type=int, default=1000, help="100, 1000, 3000")
    parser.add_argument("--sockets", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--mode", default="advisory", help="of the fleet's decision loop")
    parser.add_argument("--out", type=Path, help="a JSON line is appended to this file")
    args = parser.parse_args()
    print(f"load average {os.getloadavg()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="scale-", dir="/tmp") as name:
        found = run(args, Path(name))
    if args.out is not None:
        with args.out.open("a") as out:
            print(json.dumps(found), file=out)
    print(json.dumps(found))
    print(summary(found))


if __name__ == "__main__":
    main()
