"""The paper's table out of the twin: service times where nothing queues, rates where all is full.

The whole of it, with longer runs, is docs/results.md (`python -m tests.bench.twin_paper table`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.bench import twin_paper as paper
from tests.bench.twin_paper import HOMOGENEOUS, NAIVE, PRFAAS
from tests.test_docs import block

SYSTEMS = {system.name: system for system in paper.paper_systems()}


@cache
def full(name: str) -> dict[str, Any]:
    return paper.measured(paper.full(SYSTEMS[name], duration_s=8_000.0, warmup_s=2_000.0))


@pytest.mark.parametrize("name", [PRFAAS, HOMOGENEOUS, NAIVE])
def test_at_light_load_the_first_token_takes_what_the_paper_says(name: str) -> None:
    # 0.2 requests/s are a tenth of the least fleet: hardly one finds all instances busy.
    report = paper.measured(paper.light(SYSTEMS[name], rate_rps=0.2, duration_s=100_000.0))
    mean_s, p90_s = paper.SERVICE[name]
    assert report["requests"] == pytest.approx(20_000, rel=0.03)
    assert report["ttft_s"]["mean"] == pytest.approx(mean_s, rel=0.03)
    assert report["ttft_s"]["p90"] == pytest.approx(p90_s, rel=0.03)
    assert report["stages_s"]["queue"]["mean"] < 0.005
    assert report["stages_s"]["decode_wait"]["mean"] == 0.0


@pytest.mark.parametrize("name", [PRFAAS, HOMOGENEOUS, NAIVE])
def test_full_up_it_carries_what_the_exact_method_says(name: str) -> None:
    assert full(name)["unfinished"] > 1000, "it is offered more than it carries"
    assert full(name)["throughput_rps"] == pytest.approx(paper.EXACT_RPS[name], rel=0.02)


def test_the_ratios_are_the_papers() -> None:
    rps = {name: full(name)["throughput_rps"] for name in SYSTEMS}
    assert rps[PRFAAS] / rps[HOMOGENEOUS] == pytest.approx(1.55, rel=0.02)
    assert rps[NAIVE] / rps[HOMOGENEOUS] == pytest.approx(1.16, rel=0.02)


def test_the_plans_are_the_papers() -> None:
    assert [system.plan for system in SYSTEMS.values()] == ["19,400, 3/5", "-, 9/3", "-, 0/8"]
    assert paper.equal_cost().plan == "-, 12/4"


def test_the_systems_in_the_results_are_the_planners() -> None:
    held = block(paper.RESULTS.read_text(), "queueing-systems").group(2)
    assert held.strip() == paper.systems_table(), "run: python -m tests.bench.twin_paper queueing"
