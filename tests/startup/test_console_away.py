"""The console stops under traffic: gates go on, nothing measured is lost, the loop resumes."""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from console import demo
from console.supervisor import Supervisor
from telemetry import layouts
from tests.startup.test_up import ROOT, Console, free_port, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.timeout(480)]

_new_prompts = itertools.count(0, 10_000)


@pytest.fixture
def state() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="away-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder / "state"
    shutil.rmtree(folder, ignore_errors=True)


def ask(gate_url: str, tokens: int) -> dict[str, str]:
    """One completion of a new prompt of `tokens` tokens; the gate's decision headers."""
    first = next(_new_prompts)  # prompts that share a prefix would be cached
    body = {"model": "m", "prompt": list(range(first, first + tokens)), "max_tokens": 2}
    request = urllib.request.Request(
        f"{gate_url}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200
        answer.read()
        return {k.lower(): v for k, v in answer.headers.items()}


def rows(state: Path, query: str) -> list[tuple[Any, ...]]:
    url = json.loads((state / "run" / "urls.json").read_text())["DATABASE_URL"]
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchall()


def readings(state: Path) -> dict[str, list[float]]:
    """By agent, when its stored batches were read, ascending."""
    found: dict[str, list[float]] = {}
    for facts, at_s in rows(
        state,
        "select facts, extract(epoch from at)::float8 from telemetry_landing"
        " join telemetry_layout layout on layout.id = layout_id order by at",
    ):
        found.setdefault(layouts.decode(bytes(facts)).agent, []).append(at_s)
    return found


def n_ticks(state: Path) -> int:
    return int(rows(state, "select count(*) from routing_tick")[0][0])


def test_gates_route_on_and_history_is_whole_afterwards(state: Path) -> None:
    port = free_port()
    console = Console(state, port)
    site = Supervisor(out=io.StringIO())
    try:
        console.wait_ready()
        env = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")}
        env["CONSOLE_STATE_DIR"] = str(state)
        options = demo.parse_options(["rate_rps=2", "threshold_tokens=4000"])
        scenario = demo.write_scenario(state, options)
        words = ["prepare", "--json", "--demo-scenario", str(scenario)]
        words += ["--demo-tokens", str(state / "demo")]
        prepared = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=ROOT,
            env=env,
            check=True,
            capture_output=True,
        )
        tokens = json.loads(prepared.stdout)["tokens"]
        site.start(demo.programs(env, state, options, tokens, f"http://127.0.0.1:{port}"))
        gate = demo.places(state)["gw-1"]

        def runs_plan() -> bool:
            return ask(gate, 100)["x-prfaas-reason"] != "NoPlan"

        wait_until(runs_plan, timeout_s=30, what="the gate runs a plan")
        wait_until(lambda: len(readings(state)) == 2, timeout_s=20, what="both agents report")
        plan = ask(gate, 100)["x-prfaas-plan"]
        ticks_before = n_ticks(state)

        console.process.send_signal(signal.SIGINT)
        assert console.process.wait(30) == 0
        for tokens_, side in ((3000, "local"), (5000, "remote"), (4000, "local"), (4001, "remote")):
            answer = ask(gate, tokens_)
            assert (answer["x-prfaas-side"], answer["x-prfaas-plan"]) == (side, plan)
        time.sleep(5)

        console = Console(state, port)
        console.wait_ready()
        wait_until(lambda: n_ticks(state) > ticks_before + 2, timeout_s=90, what="the loop resumes")

        def caught_up() -> bool:
            newest = [times[-1] for times in readings(state).values()]
            return len(newest) == 2 and time.time() - min(newest) < 5

        def whole() -> bool:
            """An agent reads every second: a longer pause would be a lost reading."""
            return all(
                after - before < 5
                for times in readings(state).values()
                for before, after in itertools.pairwise(times)
            )

        wait_until(caught_up, timeout_s=40, what="current readings arrive")
        wait_until(
            whole,
            timeout_s=60,
            what="every reading taken while the console was away is a committed row",
        )
        assert ask(gate, 100)["x-prfaas-plan"].startswith("1.")
    finally:
        site.stop()
        console.process.send_signal(signal.SIGINT)
        console.process.wait(30)
