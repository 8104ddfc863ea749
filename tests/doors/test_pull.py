"""Pulling from a Prometheus: what is asked, what comes of it, and a real one."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from telemetry import store, wire
from telemetry.doors import mapping, pull
from telemetry.doors.promql import Series
from tests import servers
from tests.doors.programs import asked, needs_prometheus, page, prometheus, until
from tests.doors.sending import PATH, T0_S, TARGET
from tests.doors.texts import ENGINE, RULES
from tests.telemetry.batches import unique

ROOT = Path(__file__).resolve().parents[2]


def rules(text: str) -> mapping.Rules:
    return mapping.of(Path("x"), msgspec.toml.decode(text, type=mapping.RulesFile))


class Answers:
    """A client with these series, raw samples as Prometheus gives them."""

    def __init__(self) -> None:
        self.series: list[Series] = []
        self.asked: list[str] = []

    def query(self, promql: str, *, at_s: float) -> list[Series]:
        self.asked.append(promql)
        return self.series


def test_a_question_is_a_rule_and_the_names_its_maps_know() -> None:
    text = (
        RULES
        + """
        [[rules]]
        match = { job = "go" }
        kind = "drop"
        [[rules]]
        kind = "link"
        match = { job = "node" }
        id = "a->b"
        interface = "eth0"
        measured_layer = "x"
        """
    )
    engine, link = pull.questions(rules(text))
    assert engine.endswith(',job=~"vllm"}')
    assert "|vllm:.+|" in engine
    assert "sglang" not in engine
    assert link == '{__name__=~"up|node_(network|netstat|bonding|boot)_.+",job=~"node"}'


def test_each_scrape_is_a_sample_once() -> None:
    client, now_s = Answers(), T0_S
    puller = pull.Puller(client, rules(RULES), clock=lambda: now_s)  # type: ignore[arg-type]
    labels = {"__name__": "vllm:num_requests_running", **TARGET}
    client.series = [Series(labels, [(T0_S - 5.0, 1.0), (T0_S - 2.0, 2.0)])]
    first = puller.pull()
    assert [(s.id, s.at_s - T0_S) for s in first] == [(PATH, -5.0), (PATH, -2.0)]
    now_s = T0_S + 5.0
    assert puller.pull() == []
    client.series = [Series(labels, [(T0_S - 2.0, 2.0), (T0_S + 3.0, None)])]
    [last] = puller.pull()
    assert isinstance(last, wire.InstanceSample)
    assert (last.at_s - T0_S, last.signals.requests_running) == (3.0, None)
    assert [question.rpartition("[")[2] for question in client.asked] == ["75s]", "20s]", "15s]"]


def test_a_series_that_is_silent_for_a_minute_is_gone() -> None:
    client, now_s = Answers(), T0_S
    puller = pull.Puller(client, rules(RULES), clock=lambda: now_s)  # type: ignore[arg-type]
    name = {"__name__": "vllm:num_requests_running", **TARGET}
    both = [Series({**name, "engine": engine}, [(T0_S, 2.0)]) for engine in "01"]
    client.series = both
    assert puller.pull()[0].signals.requests_running == 4.0  # type: ignore[union-attr]
    now_s = T0_S + 70.0
    client.series = [both[0]._replace(points=[(now_s, 2.0)])]
    assert puller.pull()[0].signals.requests_running == 2.0  # type: ignore[union-attr]


def run(*more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "telemetry.doors.pull", *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )


def test_bad_input_is_exit_code_2_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "doors.toml").write_text("rules = []")
    asked_for = ["--prometheus", "http://127.0.0.1:1", "--console", "http://127.0.0.1:1"]
    files = ["--rules", str(tmp_path / "doors.toml"), "--token-file", str(tmp_path / "none")]
    done = run(*asked_for, *files)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{tmp_path / 'doors.toml'}: rules=0: must be 1..200 rules\n"
    (tmp_path / "doors.toml").write_text(RULES)
    done = run(*asked_for, *files)
    assert done.returncode == 2
    assert done.stderr == f"--token-file {tmp_path / 'none'}: No such file or directory\n"
    (tmp_path / "none").write_text("pf_x")
    done = run(*asked_for, *files, "--once", "--spool-dir", str(tmp_path / "spool"))
    assert done.returncode == 1
    assert "refused" in done.stderr


@needs_prometheus
@pytest.mark.timeout(180)
def test_a_real_prometheus_is_pulled(console: servers.Server, token: str, tmp_path: Path) -> None:
    fleet = unique("pull")
    (tmp_path / "doors.toml").write_text(RULES)
    (tmp_path / "token").write_text(token)
    with page(tmp_path / "engine", ENGINE) as port:
        config = f"""
global: {{scrape_interval: 500ms, scrape_timeout: 400ms}}
scrape_configs:
- job_name: vllm
  static_configs:
  - targets: ["127.0.0.1:{port}"]
    labels: {{fleet: "{fleet}", cluster: pd, role: prefill}}
"""
        with prometheus(tmp_path / "p", config) as url:
            until(lambda: asked(url, "count_over_time(up[10s]) >= 2"))
            done = run(
                *("--prometheus", url, "--console", f"http://{console.host}"),
                *("--rules", str(tmp_path / "doors.toml")),
                *("--token-file", str(tmp_path / "token")),
                *("--spool-dir", str(tmp_path / "spool"), "--once"),
            )
    assert done.returncode == 0, done.stderr
    [reading] = store.latest("instance", prefix=f"{fleet}/", now_s=time.time())
    assert (reading.path, reading.role) == (f"{fleet}/pd/127.0.0.1:{port}", "prefill")
    assert (reading.state, reading.signals.requests_running) == ("ok", 7.0)
    assert reading.signals.prompt_tokens_per_s == pytest.approx(0.0)
