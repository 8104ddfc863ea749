"""A real agent process in front of the real console, which is killed and comes back."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from telemetry import tokens
from tests import servers
from tests.telemetry.rows import bodies_of, n_samples, sql

ROOT = Path(__file__).parents[2]
INTERVAL_S = 0.1


def _until(condition: Callable[[], Any]) -> None:
    while not condition():
        time.sleep(0.05)


@pytest.mark.fault
def test_everything_read_while_the_console_was_dead_is_stored_once(
    landing_zone: None, tmp_path: Path, vllm_text: str
) -> None:
    page = tmp_path / "engine"
    page.mkdir()
    (page / "metrics").write_text(vllm_text)
    engine = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"],
        cwd=page,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    console = servers.start(tmp_path / "console.log")
    agent = None
    try:
        assert engine.stdout is not None
        engine_port = engine.stdout.readline().split(" port ")[1].split()[0]
        head = {
            "agent": "real-agent",
            "console_url": f"http://{console.host}",
            "token": tokens.issue("agent", ["ingest"], "", "tests")[1],
            "spool_dir": "spool",
            "interval_s": INTERVAL_S,
        }
        instance = {
            "id": "real/pd/p0",
            "role": "prefill",
            "url": f"http://127.0.0.1:{engine_port}/metrics",
        }
        lines = [f"{key} = {json.dumps(value)}" for key, value in head.items()]
        lines += ["[[instances]]", *(f"{k} = {json.dumps(v)}" for k, v in instance.items())]
        (tmp_path / "agent.toml").write_text("\n".join(lines))
        command = [sys.executable, "-m", "telemetry.agent"]
        agent = subprocess.Popen(
            [*command, "--config", str(tmp_path / "agent.toml")],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        _until(lambda: n_samples("instance", "real/pd/p0") >= 3)
        console.kill()
        assert agent.stderr is not None
        _until(lambda: "console away" in agent.stderr.readline())
        spool = tmp_path / "spool"
        _until(lambda: sum(path.stat().st_size for path in spool.glob("*.segment")) > 20_000)
        console = servers.start(tmp_path / "console.log", port=console.port)
        _until(lambda: "console back" in agent.stderr.readline())
        agent.send_signal(signal.SIGTERM)
        assert agent.wait() == 0
        subprocess.run(
            [*command, "--config", str(tmp_path / "agent.toml"), "--once"],
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        _until(lambda: _pending(spool) == 0)
    finally:
        for process in (engine, agent):
            if process is not None:
                process.kill()
                process.communicate()
        console.stop()
    seqs = [seq for (seq,) in sql("SELECT seq FROM telemetry_batch ORDER BY seq")]
    assert len(set(seqs)) == len(seqs)
    # What was read while it was dead comes several rounds in a batch, under the key of the last.
    assert max(seqs) > len(seqs)
    # A round in which the engine was slow has no reading; a group that was lost is 32 rounds. The
    # last reading is that of the agent that was started anew.
    times = [sample.at_s for sample in bodies_of("instance", "real/pd/p0")]
    assert len(set(times)) == len(times) == n_samples("instance", "real/pd/p0")
    assert max(after - was for was, after in itertools.pairwise(times[:-1])) < 20 * INTERVAL_S
    [(boots,)] = sql("SELECT count(DISTINCT boot) FROM telemetry_batch")
    assert boots == 1


def _pending(spool: Path) -> int:
    return sum(path.stat().st_size for path in spool.glob("*.segment"))
