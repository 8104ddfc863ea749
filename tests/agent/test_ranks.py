"""An engine of several data-parallel ranks of which fewer tell: part of its numbers is none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from telemetry import canonical, exposition
from telemetry.agent import config
from telemetry.agent.instances import Instance
from telemetry.agent.sources import EngineSource
from telemetry.strict_toml import TomlError


def told(*ranks: int, label: str = "engine", more: str = "") -> str:
    """Two running on each of these ranks, forty waiting on the second, a histogram of the first."""
    lines = ["process_start_time_seconds 1.79595e9"]
    for rank in ranks:
        at = f'{{{label}="{rank}"}}'
        lines += [
            f"vllm:num_requests_running{at} 2",
            f"vllm:num_requests_waiting{at} {40 if rank == 1 else 0}",
            f"vllm:prompt_tokens_total{at} 100",
        ]
    return "\n".join(lines) + f"\n{more}"


def read(text: str, n_ranks: int | None, engine: str = "auto") -> canonical.Canonical:
    return canonical.canonicalise(exposition.parse(text), engine, n_ranks=n_ranks)


def test_fewer_ranks_than_expected_are_part_of_the_numbers_and_so_none() -> None:
    """S-02: one of two ranks, the one with an empty queue, must not look like an idle engine."""
    whole = read(told(1, 0), 2)
    assert (whole.signals["requests_waiting"].value, whole.warnings) == (40.0, ())
    part = read(told(0), 2)
    for name in ("requests_waiting", "requests_running", "prompt_tokens_total"):
        signal = part.signals[name]
        assert (signal.state, signal.value) == ("missing", None)
        assert signal.reason == "partial: 1 of 2 ranks told (0)"
    assert part.signals["ttft_seconds"].reason == "not exposed"
    assert part.warnings == ("partial: 1 of 2 ranks told (0)",)
    sent = canonical.to_instance_signals(part)
    assert (sent.requests_waiting, sent.prompt_tokens_total) == (None, None)
    assert part.recognised
    # Who does not say how many there are gets the sum of what is told.
    assert read(told(0), None).signals["requests_waiting"].value == 0.0


def test_seven_of_eight_ranks_that_left_are_a_partial_engine_where_eight_are_expected() -> None:
    """S-21: sums without them where nobody says eight, no sums where somebody does."""
    assert read(told(*range(8)), 8).signals["requests_running"].value == 16.0
    assert read(told(5), None).signals["requests_running"].value == 2.0
    assert read(told(5), 8).signals["requests_running"].reason == "partial: 1 of 8 ranks told (5)"


def test_more_ranks_are_counted_and_told_of() -> None:
    found = read(told(0, 1, 2), 2)
    assert found.signals["requests_running"].value == 6.0
    assert found.warnings == ("3 ranks are told, of 2 that are expected",)


def test_a_text_without_rank_labels_is_one_rank() -> None:
    text = "vllm:num_requests_running 3\n"
    assert read(text, 1).signals["requests_running"].value == 3.0
    assert read(text, 2).signals["requests_running"].reason == "partial: 1 of 2 ranks told"


def test_a_family_that_tells_no_ranks_apart_says_so() -> None:
    found = read("tgi_queue_size 3\n", 2)
    assert found.signals["requests_waiting"].value == 3.0
    assert found.warnings == ("ranks=2: TGI does not tell ranks apart",)


def test_what_stands_beside_the_engine_stays() -> None:
    found = read(told(0, more='DCGM_FI_DEV_POWER_USAGE{gpu="0"} 250\n'), 2)
    assert found.signals["gpu_power_w"].value == 250.0
    assert found.signals["requests_running"].state == "missing"


def test_tensor_ranks_are_no_data_parallel_ranks() -> None:
    lines = [
        f'sglang:num_queue_reqs{{dp_rank="{dp}",tp_rank="{tp}"}} {10 * dp}\n'
        for dp in (0, 1)
        for tp in (0, 1)
    ]
    assert read("".join(lines), 2).signals["requests_waiting"].value == 10.0
    part = read("".join(lines[:2]), 2).signals["requests_waiting"]
    assert part.reason == "partial: 1 of 2 ranks told (0)"


async def test_an_agent_sees_a_rank_leave_and_come_back(engine: Any) -> None:
    entry = Instance(id="f/pd/x", role="decode", url=f"{engine.url}/metrics", ranks=2)
    async with aiohttp.ClientSession() as session:
        source = EngineSource(
            entry, session=session, timeout_s=2.0, max_series=1000, clock=lambda: 1.8e9
        )
        seen = []
        for text in (told(0, 1), told(0, 1), told(0), told(0), told(1, 0)):
            engine.pages["/metrics"] = text
            sample = await source.read()
            seen.append((sample.state, sample.signals.requests_waiting, source.warnings))
    partial = ("ok", None, ("partial: 1 of 2 ranks told (0)",))
    well = ("ok", 40.0, ())
    assert seen == [well, well, partial, partial, well]


def test_ranks_are_configured_for_one_instance_and_for_those_that_are_found(
    tmp_path: Path,
) -> None:
    (tmp_path / "agent.toml").write_text(TOML)
    found = config.load(tmp_path / "agent.toml")
    assert (found.instances[0].ranks, found.discover[0].ranks) == (8, 2)
    for key, value in (("instances", 0), ("instances", 1025), ("discover", 0)):
        was = "ranks = 8" if key == "instances" else "ranks = 2"
        (tmp_path / "agent.toml").write_text(TOML.replace(was, f"ranks = {value}"))
        wanted = re.escape(f"{key}[0].ranks={value}: must be in 1..1024")
        with pytest.raises(TomlError, match=wanted):
            config.load(tmp_path / "agent.toml")


TOML = """
agent = "a"
console_url = "http://c"
spool_dir = "s"
[[instances]]
id = "f/pd/x"
role = "both"
url = "http://h:8000/metrics"
ranks = 8
[[discover]]
source = "file"
path = "targets.json"
id = "f/pd/{name}"
role = "both"
ranks = 2
"""
