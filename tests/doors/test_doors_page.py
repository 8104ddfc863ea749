"""docs/doors.md shows files that can be used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from telemetry.doors import mapping, otlp, receiver, remote_write
from telemetry.doors.intake import Intake
from telemetry.engine_maps import MAPS

PAGE = (Path(__file__).resolve().parents[2] / "docs/doors.md").read_text()


def block(language: str, start: str) -> str:
    [found] = [
        text
        for text in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
        if text.startswith(start)
    ]
    return str(found)


def test_the_example_of_rules_places_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "doors.toml").write_text(block("toml", "# doors.toml"))
    rules = mapping.load(tmp_path / "doors.toml")
    labels = {"job": "vllm", "cluster": "pd", "instance": "e0", "pd_role": "decode"}
    place = rules.place(labels)
    assert place is not None
    assert (place.id, place.role) == ("prfaas-1t/pd/e0", "decode")
    link = rules.place({"job": "node", "instance": "gw-p:9100"})
    assert link is not None
    assert (link.id, link.interface) == ("prfaas->pd", "bond0")
    assert rules.place({"__name__": "go_threads"}) is None
    assert Intake(rules).n_series == 0


@pytest.mark.parametrize(
    "name",
    [
        *(
            f"{prefix}x"
            for engine_map in MAPS.values()
            for prefix in engine_map.prefixes
            if prefix not in ("", "node_")
        ),
        "node_network_transmit_bytes_total",
        "node_netstat_Tcp_OutSegs",
        "node_bonding_active",
        "up",
        *(name for engine_map in MAPS.values() for name in engine_map.start_time),
    ],
)
def test_the_example_of_prometheus_keeps_what_the_maps_know(name: str) -> None:
    [entry] = yaml.safe_load(block("yaml", "# prometheus.yml"))["remote_write"]
    [keep] = entry["write_relabel_configs"]
    assert re.fullmatch(keep["regex"], name)
    assert not re.fullmatch(keep["regex"], "go_goroutines")


def test_the_page_names_the_paths_and_the_limits() -> None:
    for path in receiver.PATHS:
        assert f"`POST {path}`" in PAGE
    for number in (
        remote_write.MAX_SERIES,
        remote_write.MAX_SAMPLES,
        remote_write.MAX_LABELS,
        remote_write.MAX_SERIES_CHARS,
    ):
        assert f"{number:,}" in PAGE
    assert otlp.MAX_JSON_BYTES == otlp.MAX_METRIC_BYTES == 1024 * 1024
