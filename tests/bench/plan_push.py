"""How long a decision takes to be applied by hundreds of gates, and by the rest when some are dead.

    python -m tests.bench.plan_push [--clients 500] [--gates 4] [--dead 20] [--pushes 10]

A console of `manage.py up`, `--gates` real gate processes, and the gate's own plan clients in one
process (`tests.live.many_clients`), all on this machine. Each push is a hold placed over REST: the
tick adopts it, the console sends it, each gate acks the version it runs. Timed is from the
decision's `created_at`, which is when its tick began, to `applied_at` of each delivery, and to when
the client itself ran it. Then `--dead` clients are cut off, half of them in a black hole, half
refused, the pushes go on, and when they are back the time until all have converged is taken.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import tomli_w

from console.demo import SCENARIO
from tests.bench import server_tree
from tests.bench.console_up import ROOT, Console
from tests.bench.gate_overhead import percentile
from tests.live.many_clients import Clients

FLEET = "prfaas-1t"
_PATIENCE_S = 60.0
_APART_S = 4.0
"""Ticks are 2 s apart and pushes at least as far."""
_SILENT_S = 20.0
"""After which the console says that a router is not heard of: it acks every 5 s."""
_DELIVERIES = """
SELECT d.version, extract(epoch from d.created_at)::float8, r.router, r.state,
       extract(epoch from r.applied_at)::float8
FROM routing_delivery r JOIN routing_decision d ON d.id = r.decision_id WHERE d.version >= %s
"""


class Rest:
    """The console's REST of one fleet."""

    def __init__(self, url: str, secret: str) -> None:
        self._url, self._secret = f"{url}/api/v1/fleets/{FLEET}", secret

    def ask(self, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self._secret}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._url}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def hold(self, threshold_tokens: int) -> None:
        """Hold the fleet at `threshold_tokens`, in place of what it is held at."""
        for hold in self.ask("/holds?open=true")["results"]:
            self.ask(f"/holds/{hold['id']}/release", {"reason": "the next push"})
        expires_at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        values = {"mode": "threshold", "threshold_tokens": threshold_tokens, "owner": "bench"}
        self.ask("/holds", values | {"expires_at": expires_at, "reason": "bench"})

    def routers(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        while len(page := self.ask(f"/routers?limit=200&offset={len(rows)}")["results"]):
            rows += page
        return rows


class Bench:
    """One console with its gates and clients, and what is known of each push."""

    def __init__(self, console: Console, rest: Rest, clients: Clients, gates: list[str]) -> None:
        self.console, self.rest, self.clients, self.gates = console, rest, clients, gates
        self.everybody = {*clients.names, *gates}
        self._next_t = 4_000
        self._database = console.database()

    def wait_running(self, who: set[str], *, since_s: float | None = None) -> float:
        """Seconds until the newest plan is applied by all of them."""
        began_s = time.time() if since_s is None else since_s
        while time.time() < began_s + _PATIENCE_S:
            newest = self.newest()
            if who <= {row[2] for row in self._rows(newest) if row[3] == "applied"}:
                return time.time() - began_s
            time.sleep(0.05)
        states = {row[2]: row[3] for row in self._rows(self.newest())}
        missing = {name: states.get(name) for name in who if states.get(name) != "applied"}
        said = self.clients.tell("report")
        about = {
            name: (state, said["running"].get(name), said["contact"].get(name))
            for name, state in list(missing.items())[:5]
        }
        raise SystemExit(
            f"{len(missing)} of {len(who)} never applied plan {self.newest()}: {about} say the"
            f" console, what runs there and the client itself; ended: {said['ended']}"
        )

    def newest(self) -> int:
        """The version of the newest plan, 0 before the first."""
        query = "SELECT coalesce(max(version), 0) FROM routing_decision"
        row = self._database.execute(query).fetchone()
        assert row is not None
        return int(row[0])

    def push(self, n: int, who: set[str]) -> dict[str, Any]:
        """`n` pushes one after another, each until all of `who` applied it; their times."""
        first = self.newest() + 1
        before, began_s = server_tree.look(self.console.pid), time.time()
        for _ in range(n):
            version = self.newest()
            self._next_t += 100
            self.rest.hold(self._next_t)
            while self.newest() == version:
                time.sleep(0.02)
            self.wait_running(who)
            time.sleep(_APART_S)
        after = server_tree.look(self.console.pid)
        rows = [row for row in self._rows(first) if row[0] < first + n]
        created_s = {row[0]: row[1] for row in rows}
        ran_s = self.clients.tell("report")["ran_s"]
        took_s = time.time() - began_s
        return {
            "pushes": n,
            "applied_s": _quantiles([r[4] - r[1] for r in rows if r[2] in who]),
            "gates_applied_s": _quantiles([r[4] - r[1] for r in rows if r[2] in self.gates]),
            "ran_s": _quantiles(
                [
                    at_s - created_s[int(version)]
                    for version, by_name in ran_s.items()
                    if int(version) in created_s
                    for name, at_s in by_name.items()
                    if name in who
                ]
            ),
            "last_applied_s": [
                round(max(r[4] - r[1] for r in rows if r[0] == v and r[2] in who), 3)
                for v in sorted(created_s)
            ],
            "cores": {
                part: round(cpu_s / took_s, 3)
                for part, cpu_s in server_tree.used(before, after).items()
            },
        }

    def shown_dead(self, dead: set[str]) -> dict[str, Any]:
        """What REST says of the dead ones, and of how many others it says the same."""
        routers = {row["router"]: row for row in self.rest.routers()}
        silent = {
            n for n, r in routers.items() if any("not been heard" in f for f in r["findings"])
        }
        newest = self.rest.ask("/decisions?limit=1")["results"][0]
        decision = self.rest.ask(f"/decisions/{newest['id']}")
        waiting = {r["router"]: r["state"] for r in decision["delivery"]["routers"]}
        return {
            "silent": len(silent & dead),
            "silent_but_alive": len(silent - dead),
            "state": decision["delivery"]["state"],
            "dead_states": sorted({waiting.get(name, "not expected") for name in dead}),
            "others": sorted({waiting[name] for name in waiting.keys() - dead}),
        }

    def decisions_page(self) -> dict[str, Any]:
        """What a page of decisions costs with so many deliveries each."""
        began_s = time.perf_counter()
        found = self.rest.ask("/decisions?limit=50")
        took_s = time.perf_counter() - began_s
        rows = sum(decision["delivery"]["n_routers"] for decision in found["results"])
        return {"deliveries": rows, "s": round(took_s, 3), "bytes": len(json.dumps(found))}

    def _rows(self, since_version: int) -> list[tuple[Any, ...]]:
        return self._database.execute(_DELIVERIES, [since_version]).fetchall()


def _quantiles(values: list[float]) -> dict[str, float]:
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {"n": len(values)} | {k: round(percentile(values, q), 3) for k, q in shares.items()}


def start_gate(stack: ExitStack, folder: Path, console: Console, token_file: Path, i: int) -> str:
    """A gate process; its router id."""
    router = f"{FLEET}/pd/gw-{i}"
    path = folder / f"gate-{i}.toml"
    path.write_text(
        f'router = "{router}"\nport = 0\nconsole_url = "{console.url}"\n'
        f'token_file = "{token_file}"\nplan_file = "gate-{i}.plan.json"\n'
        '[upstreams.local]\nurl = "http://127.0.0.1:9"\n'
        '[upstreams.remote.prfaas]\nurl = "http://127.0.0.1:9"\n'
    )
    log = stack.enter_context((folder / f"gate-{i}.log").open("w"))
    gate = subprocess.Popen(
        [sys.executable, "-m", "routing.gate", "--config", str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    stack.callback(gate.communicate)
    stack.callback(gate.kill)
    assert gate.stdout is not None
    if not json.loads(gate.stdout.readline() or "{}").get("ready"):
        raise SystemExit(f"gate {i} did not start: {(folder / f'gate-{i}.log').read_text()}")
    return router


def run(args: argparse.Namespace, folder: Path, stack: ExitStack) -> dict[str, Any]:
    console = stack.enter_context(Console(folder / "state"))
    scenario = folder / "fleet.toml"
    scenario.write_text(tomli_w.dumps(tomllib.loads(SCENARIO.read_text())))
    console.manage("fleet", "apply", str(scenario), "--mode", "active")
    token_file = folder / "token"
    token_file.write_text(console.token("gates", "router"))
    scopes = ("--scope", "read", "--scope", "operate")
    issued = console.manage("token", "issue", "bench", *scopes, "--json")
    rest = Rest(console.url, json.loads(issued)["secret"])
    gates = [start_gate(stack, folder, console, token_file, i) for i in range(args.gates)]
    began_s = time.time()
    clients = stack.enter_context(
        Clients(
            url=console.url,
            fleet=FLEET,
            n=args.clients,
            behind=args.dead,
            token_file=token_file,
            log=folder / "clients.log",
        )
    )
    bench = Bench(console, rest, clients, gates)
    found: dict[str, Any] = {"clients": args.clients, "gates": args.gates, "dead": args.dead}
    found["all_joined_s"] = round(bench.wait_running(bench.everybody, since_s=began_s), 2)
    before = server_tree.look(console.pid)
    time.sleep(10.0)
    idle = server_tree.used(before, server_tree.look(console.pid))
    found["idle_cores"] = {part: round(cpu_s / 10.0, 3) for part, cpu_s in idle.items()}
    found["all_alive"] = bench.push(args.pushes, bench.everybody)
    if args.dead:
        dead = set(clients.behind)
        clients.tell("shut")
        time.sleep(_SILENT_S)
        bench.push(1, bench.everybody - dead)
        found["shown"] = bench.shown_dead(dead)
        found["some_dead"] = bench.push(args.pushes, bench.everybody - dead)
        clients.tell("open")
        found["converged_s"] = round(bench.wait_running(bench.everybody), 2)
    found["decisions_page"] = bench.decisions_page()
    found["load_average"] = os.getloadavg()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--gates", type=int, default=4, help="real gate processes")
    parser.add_argument("--dead", type=int, default=20, help="of the clients, cut off later")
    parser.add_argument("--pushes", type=int, default=10, help="in each part")
    args = parser.parse_args()
    print(f"load average {os.getloadavg()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="push-", dir="/tmp") as name, ExitStack() as stack:
        found = run(args, Path(name), stack)
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
