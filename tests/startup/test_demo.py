"""What the demo writes is what its parts read, and `manage.py lab` reaches each of them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from console import demo
from console.embedded import die_with_parent
from routing.core.model.planner import plan_scenario
from routing.core.scenario.document import Scenario, parse_scenario
from routing.gate.config import load_config as load_gate
from routing.lab.config import load_config as load_stack
from routing.lab.load import LoadConfig, parse_args, source_of
from telemetry.agent.config import load as load_agent
from tests.startup.test_up import ROOT, wait_until

TOKENS = {"gate": "g", "agent": "a"}


def written(state: Path, *words: str) -> tuple[Path, Scenario, list[str]]:
    """(folder of the files, the scenario, the names of the processes) of these options."""
    options = demo.parse_options(words)
    path = demo.write_scenario(state, options)
    programs = demo.programs({}, state, options, TOKENS, "http://127.0.0.1:8000")
    scenario = parse_scenario(tomllib.loads(path.read_text()))
    return state / "demo", scenario, [program.name for program in programs]


def loads(folder: Path) -> list[LoadConfig]:
    return [parse_args(["--config", str(path)]) for path in sorted(folder.glob("load*.toml"))]


def test_one_cluster_keeps_its_names(tmp_path: Path) -> None:
    folder, scenario, names = written(tmp_path, "n_prefill=6", "linear_state=exact")
    assert names == ["lab", "gw-1", "gw-2", "ag-prfaas", "ag-pd", "load"]
    [prfaas, pd] = scenario.clusters
    assert (pd.start.n_prefill, pd.start.threshold_tokens) == (6, 4000)  # type: ignore[union-attr]
    admin = demo.places(tmp_path)["admin"]
    assert ([r.url for r in pd.routers], prfaas.routers) == ([f"{admin}/clusters/pd"], ())
    assert [link.id for link in scenario.links] == ["prfaas->pd"]

    stack, gate = load_stack(folder / "stack.toml"), load_gate(folder / "gw-1.toml")
    assert stack.linear_state == gate.upstreams.local[0].linear_state == "exact"
    agent = load_agent(folder / "agent-pd.toml")
    assert [i.role for i in agent.instances] == ["prefill"] * 6 + ["decode"] * 2
    assert all(i.role_url == i.url.replace("/metrics", "/v1/loads") for i in agent.instances)
    assert [link.id for link in load_agent(folder / "agent-prfaas.toml").links] == ["prfaas->pd"]
    [load] = loads(folder)
    assert source_of(load).rate_rps == 2.5  # type: ignore[union-attr]


def test_two_clusters_share_one_prfaas_cluster(tmp_path: Path) -> None:
    folder, scenario, names = written(tmp_path, "n_pd=2", "link_back_gbps=50")
    assert names == [
        *("lab", "gw-a-1", "gw-a-2", "gw-b-1", "gw-b-2"),
        *("ag-prfaas", "ag-pd-a", "ag-pd-b", "load-a", "load-b"),
    ]
    assert {(link.id, link.gbps) for link in scenario.links} == {
        *(("prfaas->pd-a", 100.0), ("prfaas->pd-b", 100.0)),
        *(("pd-a->prfaas", 50.0), ("pd-b->prfaas", 50.0)),
    }
    plan = plan_scenario(scenario)
    assert 1.15 <= plan["headroom"] <= 1.3
    assert len({c["threshold_tokens"] for c in plan["clusters"].values()}) == 2

    stack = load_stack(folder / "stack.toml")
    assert stack.clusters == ("pd-a", "pd-b")
    reported: list[str] = []
    for cluster in scenario.clusters:
        agent = load_agent(folder / f"agent-{cluster.name}.toml")
        assert len(agent.instances) == cluster.instances
        assert all(link.id.startswith(f"{cluster.name}->") for link in agent.links)
        reported += [link.id for link in agent.links]
    assert sorted(reported) == sorted(link.id for link in scenario.links)
    ports = demo.places(tmp_path)
    for name in ("gw-a-1", "gw-a-2", "gw-b-1", "gw-b-2"):
        gate, suffix = load_gate(folder / f"{name}.toml"), name[2:4]
        assert gate.router == f"prfaas-1t/pd{suffix}/{name}"
        assert gate.upstreams.local[0].url == ports[f"local{suffix}"]
        assert gate.upstreams.remote["prfaas"][0].url == ports[f"remote{suffix}"]
    configs = loads(folder)
    assert [config.cluster for config in configs] == ["pd-a", "pd-b"]
    assert sum(source_of(config).rate_rps for config in configs) == 3.6  # type: ignore[union-attr]
    assert len({config.seed for config in configs}) == 2


def test_ports_stay_and_knobs_are_what_is_not_automatic(tmp_path: Path) -> None:
    written(tmp_path)
    before = demo.places(tmp_path)
    written(tmp_path)
    assert demo.places(tmp_path) == before
    assert demo.knobs(demo.parse_options([])) == {}
    fixed = demo.parse_options(["roles=fixed", "cache_mode=abundant"])
    assert demo.knobs(fixed) == {"roles_mode": "fixed", "cache_mode": "abundant"}


def test_a_replay_ends_and_is_not_begun_again(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}')
    options = demo.parse_options([f"trace={trace}", "speed=2"])
    demo.write_scenario(tmp_path, options)
    *others, load = demo.programs({}, tmp_path, options, TOKENS, "http://127.0.0.1:8000")
    assert all(program.restart for program in others)
    assert not load.restart
    [config] = loads(tmp_path / "demo")
    assert (config.trace, config.speed) == (str(trace), 2.0)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["n_pd=3"], "n_pd='3'"),
        (["link_back_gbps=-1"], "link_back_gbps='-1'"),
        (["roles=free"], "roles='free': must be one of auto, fixed"),
        (["n_pd=2", f"trace={__file__}"], "with n_pd=1 only"),
    ],
)
def test_an_option_that_cannot_be_meant_is_named(words: list[str], why: str) -> None:
    with pytest.raises(demo.OptionError) as caught:
        demo.parse_options(words)
    assert why in str(caught.value)


@pytest.fixture
def running_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The two real load generators of two clusters, sending nothing yet, in front of no gate."""
    folder, _, _ = written(tmp_path, "n_pd=2")
    monkeypatch.setenv("CONSOLE_STATE_DIR", str(tmp_path))
    processes = []
    for name in ("load-a", "load-b"):
        command = [sys.executable, "-m", "routing.lab.load", "--config"]
        command += [str(folder / f"{name}.toml"), "--rate-rps", "0"]
        with (tmp_path / f"{name}.log").open("w") as log:
            processes.append(
                subprocess.Popen(
                    command,
                    cwd=ROOT,
                    stdout=log,
                    stderr=log,
                    preexec_fn=die_with_parent(9),
                )
            )
    logs = [tmp_path / f"{name}.log" for name in ("load-a", "load-b")]
    wait_until(
        lambda: all('"ready"' in log.read_text() for log in logs), timeout_s=40, what="both answer"
    )
    yield tmp_path
    for process in processes:
        process.kill()
        process.wait()


def lab(*words: str) -> Any:
    out = io.StringIO()
    call_command("lab", *words, stdout=out)
    return json.loads(out.getvalue())


def test_mix_and_rate_reach_the_load_of_the_named_cluster(running_loads: Path) -> None:
    def log(name: str) -> str:
        return (running_loads / f"{name}.log").read_text()

    assert lab("mix", "9.2", "0.5", "--cluster", "pd-b")["requests"] == 0
    assert "mu=9.2" in log("load-b")
    assert "mu=9.2" not in log("load-a")
    lab("rate", "0.001", "--cluster", "pd-a")
    assert "/rate 0.001" in log("load-a")
    assert "/rate" not in log("load-b")
    with pytest.raises(CommandError, match="--cluster None: give one of pd-a, pd-b"):
        call_command("lab", "mix", "9.2", "0.5")
    with pytest.raises(CommandError, match="--cluster pd-c: give one of pd-a, pd-b"):
        call_command("lab", "rate", "1", "--cluster", "pd-c")
