"""The gate's moves and its index against the lab's stack: both ends of one contract, over HTTP."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from routing.gate.prefix import chain_of
from routing.gate.prompt import BYTES_PER_ID, parse_body, parse_prompt
from tests.gate.peers import RunningGate, gate_config, gate_running, plan
from tests.lab.serving import Served, lab
from tests.lab.small import BLOCK_TOKENS, MB


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Served]:
    async with lab(tmp_path) as served:
        yield served


@pytest.fixture
async def gate(stack: Served) -> AsyncIterator[RunningGate]:
    config = gate_config(
        stack.local, {"far": stack.far}, router="small/pd/g1", block_tokens=BLOCK_TOKENS
    )
    async with gate_running(config) as running:
        yield running


def by(version: int, **entry: Any) -> dict[str, Any]:
    return plan(1, version, fleet="small", remote={"far": 1.0}, **entry)


async def answered(gate: RunningGate, n_tokens: int) -> dict[str, str]:
    response, body = await gate.complete(list(range(n_tokens)), max_tokens=3, stream=True)
    assert response.status == 200, body
    return {k.removeprefix("X-PrfaaS-"): v for k, v in response.headers.items()}


async def test_the_stack_moves_what_the_gate_asks_for(stack: Served, gate: RunningGate) -> None:
    await gate.run_plan(by(1, mode="always_remote", threshold_tokens=None))
    await answered(gate, 42)
    await gate.run_plan(by(2, threshold_tokens=30, cache_mode="abundant", moves={"far->pd": 8}))
    before = stack.fleet.truth.document(0)["kv_shipped_bytes_total"]
    said = await answered(gate, 63)
    assert (said["Side"], said["Reason"], said["Judged-Tokens"]) == ("local", "Short", "23")
    assert (said["Move-Tokens"], said["Moved-Tokens"]) == ("40", "40")
    await stack.settled()
    truth = stack.fleet.truth.document(0)
    assert truth["kv_moved_bytes_by_link"] == {"far->pd": 40 * MB + 20 * MB}
    assert truth["kv_shipped_bytes_total"] == before, "computed where it is decoded"
    # Both ends agree on what was cached, so nothing is doubted and nothing moves again.
    assert [u.index.credit for u in gate.gate.upstreams] == [1.0, 1.0]
    said = await answered(gate, 63)
    assert (said["Uncached-Tokens"], said.get("Move-Tokens")) == ("3", None)


@pytest.mark.parametrize("linear_state", ["none", "exact"])
async def test_gate_and_engines_agree_on_every_prefix(tmp_path: Path, linear_state: str) -> None:
    """Random conversations that branch, on either side and with moves between them."""
    rng = random.Random(3)
    extra = f'linear_state = "{linear_state}"\ncache_scope = "cluster"'
    async with lab(tmp_path, extra=extra) as stack:
        config = gate_config(
            stack.local,
            {"far": stack.far},
            router="small/pd/g1",
            block_tokens=BLOCK_TOKENS,
            linear_state=linear_state,
        )
        async with gate_running(config) as gate:
            n_hits = n_moves = 0
            for version in range(1, 120):
                entry: dict[str, Any] = {"mode": f"always_{rng.choice(('local', 'remote'))}"}
                if rng.random() < 0.5:
                    entry = {"threshold_tokens": 15, "cache_mode": "abundant"}
                    entry["moves"] = {"far->pd": 4}
                await gate.run_plan(by(version, **{"threshold_tokens": None, **entry}))
                # Five tokens a turn, one of two: ends within blocks, never at the end of one.
                turns = [rng.choice((0, 100)) for _ in range(rng.choice((1, 2, 3, 5, 6, 7)))]
                prompt = [turn + i for turn in turns for i in range(5)]
                response, body = await gate.complete(prompt, max_tokens=1)
                assert response.status == 200
                cached = json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"]
                said = response.headers
                side = "" if said["X-PrfaaS-Side"] == "local" else "Remote-"
                uncached = int(said[f"X-PrfaaS-Uncached-{side}Tokens"])
                if "X-PrfaaS-Move-Tokens" in said:
                    n_moves += 1
                    assert cached == int(said["X-PrfaaS-Move-Tokens"]) > len(prompt) - uncached
                else:
                    assert cached == len(prompt) - uncached
                n_hits += cached > 0
            assert n_hits > 20
            assert n_moves > 5
            assert [u.index.credit for u in gate.gate.upstreams] == [1.0, 1.0]


async def test_what_the_stack_no_longer_holds_is_computed_and_not_believed_any_more(
    stack: Served, gate: RunningGate
) -> None:
    await gate.run_plan(by(1, mode="always_remote", threshold_tokens=None))
    await answered(gate, 22)
    # Another gate tells of more, and the engines there have lost that since.
    told = parse_prompt(
        "completions", parse_body(json.dumps({"model": "m", "prompt": list(range(40))}).encode())
    )
    assert told is not None
    chain = chain_of(told.pieces[0], salt=told.salt, block_bytes=BLOCK_TOKENS * BYTES_PER_ID)
    remote = gate.gate.places()["far"]
    remote.adopt(chain, state_at_end=True)
    assert len(remote) == 10
    await gate.run_plan(by(2, threshold_tokens=30, cache_mode="abundant", moves={"far->pd": 8}))
    said = await answered(gate, 63)
    assert (said["Side"], said["Move-Tokens"], said["Moved-Tokens"]) == ("local", "40", "20")
    assert len(remote) == 5
