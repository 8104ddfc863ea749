"""S-64: what is explained is what a real gate does, on a grid of lengths and cached tokens."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from routing.core.placement.explain import Request, explain
from routing.core.types import ClusterPlan
from tests.gate.peers import RunningGate, plan

BLOCK = 512
T = 2 * BLOCK
LENGTHS = (0, 1, BLOCK - 1, BLOCK, T - 1, T, T + 1, 5 * BLOCK + 7)
CACHED_BLOCKS = ((0, 0), (1, 0), (0, 1), (1, 3), (3, 1), (4, 4))
MOVES = {"prfaas->pd": BLOCK, "pd->prfaas": 2 * BLOCK}
PLANS: dict[str, dict[str, Any]] = {
    "scarce": {"threshold_tokens": T},
    "abundant": {"threshold_tokens": T, "cache_mode": "abundant", "moves": MOVES},
    "t = 0": {"threshold_tokens": 0},
    "nothing may go remote": {"threshold_tokens": T, "max_remote_in_flight": 0},
    "always_remote": {
        "mode": "always_remote", "threshold_tokens": None, "cache_mode": "abundant", "moves": MOVES,
    },
    "always_local": {"mode": "always_local", "threshold_tokens": None},
}  # fmt: skip
ELSEWHERE = 10**6
"""Prompts of different points begin with different tokens."""


def points() -> list[tuple[list[int], int, int]]:
    """Prompt, tokens of it that local holds, tokens that the remote holds."""
    found = []
    for i, (length, blocks) in enumerate(itertools.product(LENGTHS, CACHED_BLOCKS)):
        prompt = list(range(i * ELSEWHERE, i * ELSEWHERE + length))
        local, remote = (min(n, length // BLOCK) * BLOCK for n in blocks)
        found.append((prompt, local, remote))
    return found


@pytest.mark.parametrize("name", PLANS)
async def test_what_is_explained_is_what_the_gate_does(gate: RunningGate, name: str) -> None:
    entry = {"mode": "threshold", **PLANS[name]}
    under = ClusterPlan(n_prefill=3, n_decode=5, remote={"prfaas": 1.0}, **entry)
    grid = points()
    for version, (side, held) in enumerate((("local", 1), ("remote", 2)), start=1):
        await gate.run_plan(plan(1, version, mode=f"always_{side}", threshold_tokens=None))
        for point in grid:
            if point[held]:
                await gate.complete(point[0][: point[held]])
    await gate.run_plan(plan(1, 3, **entry))
    sides = set()
    for prompt, local, remote in grid:
        response, _ = await gate.complete(prompt)
        told = response.headers
        found = explain(
            Request(len(prompt), {"local": local, "remote": remote}), under, cluster="pd"
        )
        said = (told["X-PrfaaS-Side"], told["X-PrfaaS-Reason"], told["X-PrfaaS-Judged-Tokens"])
        assert said == (found.side, found.reason, str(found.uncached_tokens)), (prompt[:1], found)
        assert told["X-PrfaaS-Uncached-Tokens"] == str(len(prompt) - local)
        assert told["X-PrfaaS-Uncached-Remote-Tokens"] == str(len(prompt) - remote)
        moved = found.longer_prefix is not None and found.longer_prefix.moved
        assert moved == ("X-PrfaaS-Move-Tokens" in told), (len(prompt), local, remote, found)
        sides.add((found.side, moved))
    if name == "abundant":
        assert sides == {("local", False), ("local", True), ("remote", False), ("remote", True)}
