"""One chart of a fleet: 1 signal x 500 instances x 300 points over an hour, by HTTP. Run by hand.

    .venv/bin/python -m tests.bench.query_cost [--systems ours,prom,vm] [--repeats 3]

The kit's data set (500 instances x 20 signals x 1,800 readings two seconds apart, 18 M values) is
loaded into each system; then p50 of 9 queries in a row to the last byte, `--repeats` times in turn,
with the server's CPU and the bytes of the answer, and the bytes each value takes at rest: ours all
telemetry tables with indexes and TOAST after compaction and vacuum (roll-ups included, the landing
zone, which holds minutes, apart), Prometheus its block, VictoriaMetrics its data and index after a
merge. Prometheus and VictoriaMetrics are loaded and asked by the kit's `qload.py` and `qrun.py`;
the cache of answers of VictoriaMetrics is off.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import tempfile
import time
import urllib.parse
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import ingest_fleet, ingest_kit, server_tree
from tests.bench.backfill import backfill
from tests.bench.console_up import Console
from tests.bench.ingest_kit import Kit

N_INSTANCES, N_READINGS, STEP_S = 500, 1800, 2.0
BINS_S = {"roll-up": 10.0, "raw": 12.0}
"""10 s come from the roll-ups, 12 s, which make 300 points, from raw readings."""
N_CALLS = 9
_PER_AGENT = 10
SIGNAL = "kv_cache_usage_ratio"


def series_path(signal: str, *, start_s: float, end_s: float, bin_s: float) -> str:
    """The request for every instance of the fleet."""
    query = {
        "kind": "instance",
        "signal": signal,
        "prefix": f"{ingest_fleet.FLEET}/",
        "start_s": start_s,
        "end_s": end_s,
        "bin_s": bin_s,
    }
    return f"/api/v1/telemetry/series?{urllib.parse.urlencode(query)}"


def checked(body: bytes, values: np.ndarray) -> tuple[int, int]:
    """(series, points) of an answer. `values` (n_readings, n_instances) are what was sent.

    Raises SystemExit if an instance is absent or a mean over the hour is not that of its readings.
    """
    answer = json.loads(body)
    series = answer["series"]
    for n in range(N_INSTANCES):
        points = [point for point in series[ingest_fleet.path(n)] if point is not None]
        sent = values[:, n]
        if abs(statistics.fmean(points) - sent.mean()) > 0.02 * max(1.0, float(np.ptp(sent))):
            raise SystemExit(
                f"{ingest_fleet.path(n)}: mean {statistics.fmean(points)}, sent {sent.mean()}"
            )
    return len(series), len(answer["t"])


class Ours:
    """A console with the hour in it, compacted."""

    def __init__(self, console: Console, kit: Kit) -> None:
        self._console, self._data = console, np.load(kit.folder / "out" / "q.npy")
        self._start_s = json.loads((kit.folder / "out" / "q.t0").read_text()) / 1000.0
        self.rest = backfill(
            console,
            self._data,
            start_s=self._start_s,
            step_s=STEP_S,
            per_agent=_PER_AGENT,
            readings_a_post=20,
        )
        self._token = console.token("bench-read", "read")

    def ask(self, bin_s: float) -> dict[str, Any]:
        """p50 of a row of queries; the answer is checked once against what was sent."""
        path = series_path(
            SIGNAL,
            start_s=self._start_s,
            end_s=self._start_s + N_READINGS * STEP_S,
            bin_s=bin_s,
        )
        client = http.client.HTTPConnection("127.0.0.1", self._console.port, timeout=120)
        headers = {"Authorization": f"Bearer {self._token}", "Connection": "close"}
        took_ms, cpu_ms, body = [], [], b""
        for _ in range(N_CALLS + 1):
            before = server_tree.look(self._console.pid)
            began_s = time.perf_counter()
            # A new connection a call, as the kit asks the others.
            client.request("GET", path, headers=headers)
            answer = client.getresponse()
            body = answer.read()
            took_ms.append((time.perf_counter() - began_s) * 1e3)
            used_s = server_tree.look(self._console.pid).total_cpu_s - before.total_cpu_s
            cpu_ms.append(used_s * 1e3)
            if answer.status != 200:
                return {"error": f"{answer.status}: {body[:200].decode(errors='replace')}"}
        column = ingest_fleet.SIGNALS.index(SIGNAL)
        shape = checked(body, self._data[:, :, column])
        return {**timings(took_ms[1:], cpu_ms[1:], len(body)), "shape": shape}


def timings(took_ms: list[float], cpu_ms: list[float], n_bytes: int) -> dict[str, Any]:
    return {
        "p50_ms": round(statistics.median(took_ms), 1),
        "min": round(min(took_ms), 1),
        "max": round(max(took_ms), 1),
        "cpu_ms": round(statistics.fmean(cpu_ms), 1),
        "bytes": n_bytes,
    }


def others_at_rest(result: dict[str, Any]) -> float:
    """Bytes a value of what the kit found on disk."""
    if "block_B" in result:
        return float(result["block_B"])
    return float(result["data_B"] + result["index_B"])


def prepare(kit: Kit, age_min: float) -> None:
    """Make the data set; its hour ended at least `age_min` ago."""
    kit.run("qload.py", "gen")
    start = kit.folder / "out" / "q.t0"
    start.write_text(json.dumps(json.loads(start.read_text()) - int(age_min) * 60_000))


def table(rows: list[dict[str, Any]], rest: dict[str, Any]) -> str:
    lines = ["system  query   p50 ms (of each time)   CPU ms   bytes"]
    for system, query in dict.fromkeys((row["system"], row["query"]) for row in rows):
        found = [row for row in rows if (row["system"], row["query"]) == (system, query)]
        if "error" in found[0]:
            lines.append(f"{system:<7} {query:<7} {found[0]['error']}")
            continue
        p50s = [row["p50_ms"] for row in found]
        cpu_ms = statistics.median(row["cpu_ms"] for row in found)
        cells = f"{statistics.median(p50s):6.1f} ({min(p50s):.1f} to {max(p50s):.1f})"
        lines.append(f"{system:<7} {query:<7} {cells:<23} {cpu_ms:6.1f}  {found[0]['bytes']:>8}")
    for system, found in rest.items():
        lines.append(f"{system:<7} bytes a value at rest: {found['bytes_per_value']:.3f}")
    return "\n".join(lines)


def measure(
    args: argparse.Namespace, kit: Kit, console: Console | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of all queries and what is at rest, by system."""
    rest: dict[str, Any] = {}
    ours = None
    if console is not None:
        ours = Ours(console, kit)
        rest["ours"] = ours.rest
    for system in {"prom", "vm"} & set(args.systems.split(",")):
        kit.run("qload.py", system)
        result = kit.result(f"qload_{system}")
        rest[system] = {"bytes_per_value": round(others_at_rest(result), 3)}
    print(json.dumps(rest), flush=True)
    rows = []
    for _ in range(args.repeats):
        for system in args.systems.split(","):
            if ours is not None and system == "ours":
                answers = {query: ours.ask(bin_s) for query, bin_s in BINS_S.items()}
            else:
                kit.run("qrun.py", system)
                answers = kit.result(f"qrun_{system}")
                answers.pop("mem")
            for query, found in answers.items():
                rows.append({"system": system, "query": query, **found})
                print(json.dumps(rows[-1]), flush=True)
    return rows, rest


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ingest_kit.add_arguments(parser)
    parser.add_argument("--systems", default="ours,prom,vm")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--age-min", type=float, default=40.0, help="minutes since the end of the hour, at least"
    )
    parser.add_argument("--out", type=Path, help="JSON lines are appended to this file")
    args = parser.parse_args()
    print(f"load average {os.getloadavg()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="query-", dir="/tmp") as name:
        folder = Path(name)
        kit = Kit(args.kit.resolve(), args.kit_venv, folder)
        prepare(kit, args.age_min)
        if "ours" in args.systems.split(","):
            with Console(folder / "state") as console:
                rows, rest = measure(args, kit, console)
        else:
            rows, rest = measure(args, kit, None)
    if args.out is not None:
        with args.out.open("a") as out:
            for row in [*rows, {"at_rest": rest}]:
                print(json.dumps(row), file=out)
    print(table(rows, rest))


if __name__ == "__main__":
    main()
