"""How much prefix caches of different sizes serve: by hand, and as the Mooncake trace has it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from routing.core.scenario.tables import ScenarioError
from routing.trace_files import read_trace
from routing.twin.cache_budget import budget_curve, geometric_capacities
from routing.twin.requests import Blocks
from routing.twin.trace_rows import TraceError
from routing.twin.traces import Trace
from tests.twin import mooncake

TURNS: list[Blocks] = [(0, 1, 2), (3, 4), (0, 1, 2), (3, 4), (0, 1, 5), (3, 4)]
"""Two conversations of blocks of 10 tokens, in turns: six distinct blocks."""


def trace(blocks: list[Blocks] | None, *, spare_tokens: int = 0) -> Trace:
    """Each prompt has `spare_tokens` beyond its full blocks."""
    n = 6 if blocks is None else len(blocks)
    lengths = [5] * n if blocks is None else [10 * len(each) + spare_tokens for each in blocks]
    return Trace(
        source="small.jsonl",
        at_s=np.arange(float(n)),
        prompt_tokens=np.array(lengths, dtype=np.int64),
        output_tokens=np.ones(n, dtype=np.int64),
        blocks=blocks,
        block_tokens=None if blocks is None else 10,
        n_ids=0 if blocks is None else 1 + max((max(each) for each in blocks if each), default=-1),
    )


# Counted are the last three: 20, 30 and 20 tokens, of which 20, 20 and 20 are there to be had.
# A cache of 2 blocks holds all of the newest prompt at most, and that is never the next one's.
# Of 3: what is left of (0, 1, 2) beside (3, 4) is its first block, and of (3, 4) beside three none.
# Of 4: (0, 1) beside (3, 4), and of (3, 4) beside three its first block.
TABLE = [(5.0, 0), (20.0, 0), (30.0, 10), (39.0, 10), (40.0, 40), (50.0, 60), (60.0, 60)]


@pytest.mark.parametrize(("capacity_tokens", "hit_tokens"), TABLE)
def test_the_last_half_is_counted_in_full_blocks(capacity_tokens: float, hit_tokens: int) -> None:
    found = budget_curve(trace(TURNS), [capacity_tokens], exact_state=False)
    assert found.points[0].capacity_tokens == capacity_tokens
    assert found.points[0].hit_ratio == pytest.approx(hit_tokens / 70)
    assert found.unbounded_ratio == pytest.approx(60 / 70)
    assert (found.working_set_tokens, found.n_used, found.n_counted) == (60, 6, 3)
    assert found.mean_prompt_tokens == pytest.approx(70 / 3)


def test_a_linear_state_serves_whole_earlier_prompts_only() -> None:
    """(0, 1, 5) shares two blocks with (0, 1, 2), whose state stands after the third."""
    found = budget_curve(trace(TURNS), [60.0], exact_state=True)
    assert found.points[0].hit_ratio == found.unbounded_ratio == pytest.approx(40 / 70)


def test_tokens_beyond_the_last_full_block_are_never_served() -> None:
    found = budget_curve(trace(TURNS, spare_tokens=9), [60.0], exact_state=False)
    assert found.points[0].hit_ratio == pytest.approx(60 / 97)


def test_of_a_long_trace_the_beginning_is_looked_at() -> None:
    found = budget_curve(trace(TURNS), [60.0], exact_state=False, most_requests=4)
    assert (found.n_requests, found.n_used, found.n_counted) == (6, 4, 2)
    assert found.points[0].hit_ratio == 1.0
    assert found.working_set_tokens == 50


def test_sizes_rise_evenly_up_to_where_nothing_is_forgotten() -> None:
    long = trace([range(4000 * i, 4000 * (i + 1)) for i in range(2)])
    sizes = geometric_capacities(long, 4)
    assert sizes == (80.0, 800.0, 8000.0, 80_000.0)
    assert geometric_capacities(trace(TURNS)) == (10.0, 20.0, 30.0, 40.0, 50.0, 60.0), "no doubles"


@pytest.mark.parametrize("without", [trace(None), trace([(), ()], spare_tokens=5)])
def test_a_trace_without_prefixes_is_refused_by_name(without: Trace) -> None:
    with pytest.raises(TraceError, match=r"small\.jsonl: has no full blocks"):
        budget_curve(without, [512.0], exact_state=False)
    with pytest.raises(TraceError, match=r"small\.jsonl: has no full blocks"):
        geometric_capacities(without)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_a_capacity_that_cannot_be_meant_is_refused_by_its_value(wrong: float) -> None:
    with pytest.raises(ScenarioError, match="positive number of tokens") as caught:
        budget_curve(trace(TURNS), [512.0, wrong], exact_state=False)
    assert caught.value.field == "capacities_tokens"
    assert caught.value.value is wrong


def test_on_mooncake_more_memory_serves_more_up_to_what_comes_back() -> None:
    if not mooncake.TRACE.exists():
        pytest.skip("the trace is not beside this checkout")
    whole = read_trace(mooncake.TRACE)
    sizes = geometric_capacities(whole)
    size_11_275 = 11_275.0 * mooncake.BLOCK_TOKENS
    found = budget_curve(whole, [*sizes, size_11_275], exact_state=False)
    assert found.points[-1].hit_ratio == pytest.approx(0.2378, abs=5e-5)
    curve = [point.hit_ratio for point in found.points[:-1]]
    assert len(curve) == 12
    assert curve == sorted(curve)
    assert curve[-1] == found.unbounded_ratio == pytest.approx(0.3978, abs=5e-5)
