"""The demo with engines that publish: stack and gates name the same ports."""

from __future__ import annotations

from pathlib import Path

from routing.gate.config import load_config as load_gate
from routing.lab.config import load_config as load_stack
from tests.startup.test_demo import written


def test_gates_hear_where_engines_publish(tmp_path: Path) -> None:
    folder, _, _ = written(tmp_path, "kv_events=on", "n_pd=2", "prompt=ids")
    stack = load_stack(folder / "stack.toml")
    assert stack.kv_events
    assert stack.ports.kv_events.keys() == stack.ports.engines.keys()
    assert not set(stack.ports.kv_events.values()) & set(stack.ports.engines.values())
    for cluster in ("pd-a", "pd-b"):
        upstreams = load_gate(folder / f"gw{cluster.removeprefix('pd')}-1.toml").upstreams
        for upstream, place in (
            (upstreams.local[0], cluster),
            (upstreams.remote["prfaas"][0], "prfaas"),
        ):
            assert sorted(upstream.kv_events) == sorted(
                f"tcp://127.0.0.1:{port}"
                for engine, port in stack.ports.kv_events.items()
                if engine.split("/")[1] == place
            )


def test_off_nobody_publishes_and_nobody_listens(tmp_path: Path) -> None:
    folder, _, _ = written(tmp_path)
    assert not load_stack(folder / "stack.toml").kv_events
    upstreams = load_gate(folder / "gw-1.toml").upstreams
    assert upstreams.local[0].kv_events == upstreams.remote["prfaas"][0].kv_events == ()
