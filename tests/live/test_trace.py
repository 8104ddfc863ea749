"""Ten minutes of the Mooncake conversation trace through one gate, every decision recomputed.

The trace's own `hash_ids` say which prompts share prefixes, so reuse and the side of each request
can be computed without asking the gate, the engines or the load generator.
"""

from __future__ import annotations

import gzip
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.live.harness import Demo, free_port, say

TRACE = Path(__file__).parents[2] / "../shared/data/traces/mooncake_conversation_trace.jsonl.gz"
BLOCK_TOKENS = 512
REPLAY_S = 600
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


class Side:
    """An unbounded prefix cache of full blocks, as the trace defines them."""

    def __init__(self) -> None:
        self.blocks: set[int] = set()

    def cached_tokens(self, row: dict[str, Any]) -> int:
        n_full = row["input_length"] // BLOCK_TOKENS
        held = 0
        for block in row["hash_ids"][:n_full]:
            if block not in self.blocks:
                break
            held += 1
        # At least one token is always computed, or there would be nothing to sample from.
        return min(held * BLOCK_TOKENS, (row["input_length"] - 1) // BLOCK_TOKENS * BLOCK_TOKENS)

    def prefilled(self, row: dict[str, Any]) -> None:
        self.blocks.update(row["hash_ids"][: row["input_length"] // BLOCK_TOKENS])


@pytest.mark.skipif(not TRACE.exists(), reason="the trace is not beside this checkout")
def test_every_request_goes_where_the_rule_recomputed_from_the_trace_sends_it(
    state: Path,
) -> None:
    with gzip.open(TRACE, "rt") as lines:
        trace = [json.loads(line) for line in lines]
    options = {"n_gates": 1, "cache": "cluster", "prompt": "ids", "trace": TRACE.resolve()}
    options |= {"roles": "fixed", "cache_mode": "scarce"}
    with Demo(state, free_port(), threshold_tokens=8000, **options) as demo:
        time.sleep(REPLAY_S + 90)
        records = demo.requests()
        decisions = demo.all("/decisions")
    thresholds = {
        f"{d['epoch']}.{d['version']}": d["changes"]["pd"]["threshold_tokens"][1]
        for d in decisions
        if d["kind"] == "adopted"
    }

    sides = {"local": Side(), "remote": Side()}
    estimated = recomputed = prompt_tokens = 0
    exceptions: Counter[str] = Counter()
    wrong: list[dict[str, Any]] = []
    in_slice = [r for r in records if trace[r["row"] - 1]["timestamp"] < REPLAY_S * 1000]
    for record in sorted(in_slice, key=lambda r: r["at_s"]):
        row = trace[record["row"] - 1]
        uncached = {n: row["input_length"] - s.cached_tokens(row) for n, s in sides.items()}
        plan = record["plan"]
        expected = "remote" if uncached["local"] > thresholds.get(plan, float("inf")) else "local"
        if record["reason"] not in ("Long", "Short"):
            exceptions[record["reason"]] += 1
        elif (record["side"], record["uncached_tokens"]) != (expected, uncached["local"]):
            wrong.append({k: record[k] for k in ("row", "side", "reason", "uncached_tokens")})
        at_gate = {
            "local": record["uncached_tokens"],
            "remote": record["gate"]["uncached_remote_tokens"],
        }
        estimated += row["input_length"] - at_gate[record["side"]]
        recomputed += row["input_length"] - uncached[record["side"]]
        prompt_tokens += row["input_length"]
        sides[record["side"]].prefilled(row)

    say(
        "trace",
        requests=len(in_slice),
        failed=sum(r["status"] != 200 for r in in_slice),
        reuse_recomputed=recomputed / prompt_tokens,
        reuse_estimated=estimated / prompt_tokens,
        plans=thresholds,
        sides=Counter(r["side"] for r in in_slice),
        exceptions=exceptions,
        wrong=wrong[:20],
        n_wrong=len(wrong),
    )
    assert len(in_slice) > 1500
    assert estimated / prompt_tokens == pytest.approx(recomputed / prompt_tokens, abs=0.02)
    assert not wrong
