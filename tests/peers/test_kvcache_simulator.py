"""The twin's prefix cache against `kvcache-simulator` (PyPI, KVCache.AI), token by token.

Its model of a model sets only how many blocks fit in a GiB: 131,072 bytes a token make sixteen
blocks of 512 tokens.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.twin import mooncake

MODEL, BLOCKS_PER_GIB = "llama-3.1-8b", 16


@pytest.fixture(scope="module")
def peer() -> str:
    found = os.environ.get("KVCACHE_SIMULATOR") or shutil.which("kvcache-simulator")
    if found is None:
        pytest.skip("kvcache-simulator is not installed (set KVCACHE_SIMULATOR to its path)")
    return found


def hits_of(peer: str, trace: Path, capacities: list[int]) -> dict[int, mooncake.Hits]:
    """What the peer's LRU serves in the last half of a trace, by capacity in blocks."""
    budgets = ",".join(repr(capacity / BLOCKS_PER_GIB) for capacity in capacities)
    command = [peer, "run", "--trace", str(trace), "--model", MODEL, "--budgets-gib", budgets]
    command += ["--kv-precision", "bf16_fp16", "--block-size", str(mooncake.BLOCK_TOKENS)]
    command += ["--policies", "lru", "--backend", "python", "--format", "json", "--no-progress"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert run.returncode == 0, run.stderr
    return {
        point["cacheBlocks"]: mooncake.Hits(
            point["results"]["lru"]["hitTokens"], point["results"]["lru"]["totalTokens"]
        )
        for point in json.loads(run.stdout)["points"]
    }


def agree(peer: str, trace: Path, capacities: list[int]) -> dict[int, mooncake.Hits]:
    prompts = mooncake.read(trace)
    ours = {each: mooncake.last_half(prompts, capacity_blocks=each) for each in capacities}
    assert hits_of(peer, trace, capacities) == ours
    return ours


def test_they_agree_on_mooncake(peer: str) -> None:
    if not mooncake.TRACE.exists():
        pytest.skip("the trace is not beside this checkout")
    ours = agree(peer, mooncake.TRACE, [2_000, 11_275, 40_000])
    assert ours[11_275].hit_tokens / ours[11_275].tokens == pytest.approx(0.233, abs=5e-4)


def test_they_agree_on_sessions_that_branch(peer: str, tmp_path: Path) -> None:
    rng = random.Random(11)
    sessions: list[list[int]] = [[] for _ in range(12)]
    n_ids, rows = 0, []
    for _ in range(1_500):
        i = rng.randrange(len(sessions))
        # Back to an earlier turn at times, so that prompts leave each other within a run of blocks.
        kept = sessions[i][: rng.choice([rng.randrange(40), 40])]
        n_new = rng.randrange(1, 9)
        sessions[i] = [*kept, *range(n_ids, n_ids + n_new)]
        n_ids += n_new
        tokens = len(sessions[i]) * mooncake.BLOCK_TOKENS - rng.randrange(mooncake.BLOCK_TOKENS)
        rows.append({"input_length": tokens, "hash_ids": sessions[i]})
    trace = tmp_path / "sessions.jsonl.gz"
    with gzip.open(trace, "wt") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)
    ours = agree(peer, trace, [50, 170, 400])
    assert 0 < ours[50].hit_tokens < ours[170].hit_tokens < ours[400].hit_tokens
