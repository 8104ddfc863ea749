"""How a recording of the lab becomes a run of the twin, on one made by hand."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from console import demo
from routing.core.types import ClusterPlan
from tests.live import fidelity, twin_of_lab
from tests.live.twin_of_lab import LabRun

BEGAN_S = 1_000_000.0
SHORT, LONG = 10_224, 27_486
"""Knots of the demo's profiles: 1.829 s on an H20, 1.63265 s on an H200."""
PLAN = ClusterPlan("threshold", 20_000, 3, 5, {"prfaas": 1.0})
KV_BYTES = 182_347_366 + 17_280 * LONG


def recorded(*requests: tuple[float, int, str, str, float]) -> LabRun:
    """Of (at_s, prompt tokens, plan, side, TTFT): far apart, so that none waits for another."""
    rows, truth = [], {}
    for i, (at_s, tokens, plan, side, ttft_s) in enumerate(requests):
        rows.append(
            {
                "id": str(i), "at_s": BEGAN_S + at_s, "row": i + 1, "prompt_tokens": tokens,
                "output_tokens": 11, "plan": plan, "ttft_s": ttft_s, "total_s": ttft_s + 0.25,
            }
        )  # fmt: skip
        truth[str(i)] = {
            "side": side, "prompt_tokens": tokens, "cached_tokens": 0,
            "stages_s": {"queue": 0.0, "prefill": ttft_s, "transfer": 0.0, "decode_wait": 0.0},
        }  # fmt: skip
    n_remote = sum(record["side"] == "remote" for record in truth.values())
    return LabRun(
        scenario=tomllib.loads(demo.SCENARIO.read_text()),
        stack={"cache_scope": "instance", "cache_capacity_tokens": 2_097_152},
        knobs={"roles_mode": "fixed"},
        requests=rows,
        truth=truth,
        plans={"1.1": {"pd": PLAN}},
        link_bytes=n_remote * KV_BYTES,
        n_gates=1,
    )


LAB = recorded(
    (0.0, LONG, "none", "local", 4.265),
    (10.0, SHORT, "1.1", "local", 1.829),
    (20.0, LONG, "1.1", "remote", 1.640),
    (40.0, SHORT, "1.1", "local", 1.829),
)


def test_plans_run_in_the_twin_when_gates_ran_them() -> None:
    found = twin_of_lab.of_twin(LAB)
    assert found.remote_share == 0.25
    assert found.link_bytes == KV_BYTES
    # 60 layers over 100 Gbps: the last one takes 0.9 ms, and half of the 5 ms there and back.
    assert found.ttft_mean_s == pytest.approx(
        (4.265 + 1.829 + 1.63265 + 0.0034 + 1.829) / 4, abs=1e-4
    )
    assert found.throughput_rps == pytest.approx(3 / 40)


def test_a_twin_that_is_like_the_lab_is_within_its_limits() -> None:
    lab, twin = twin_of_lab.of_lab(LAB), twin_of_lab.of_twin(LAB)
    assert twin_of_lab.beyond(lab, twin) == []
    text = fidelity.table({fidelity.LIVE: lab, fidelity.SCRIPTED: twin})
    assert "| lab | 0.075 req/s | 2.391 s |" in text
    assert "| off by | +0.0% | -0.0% |" in text


@pytest.mark.parametrize(
    ("figure", "wrong"),
    [
        ("throughput_rps", 0.0775),
        ("ttft_mean_s", 2.8),
        ("ttft_p90_s", 2.0),
        ("remote_share", 0.28),
        ("link_bytes", 1.04 * KV_BYTES),
    ],
)
def test_a_twin_that_is_not_is_named_by_its_figure(figure: str, wrong: float) -> None:
    lab = twin_of_lab.of_lab(LAB)
    off: dict[str, Any] = {figure: wrong}
    assert twin_of_lab.beyond(lab, replace(lab, **off)) == [figure]


def test_what_a_prompt_shares_with_an_earlier_one_is_cached_in_the_twin() -> None:
    lab = replace(
        recorded(
            (0.0, SHORT, "1.1", "local", 1.829),
            (10.0, SHORT, "1.1", "local", 0.1),
            (40.0, SHORT, "1.1", "local", 1.829),
        ),
        blocks={1: range(19), 2: (*range(10), *range(100, 109)), 3: range(200, 219)},
    )
    found = twin_of_lab.of_twin(lab)
    assert found.cached_ratio == pytest.approx(10 * 512 / (3 * SHORT))
