"""Prefixes that count on the other side and are moved: what upstreams, clients and metrics see."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from tests.gate.peers import (
    RunningGate,
    Upstream,
    exact_usage,
    gate_config,
    gate_running,
    plan,
    under_way,
    until,
)

TO_LOCAL, TO_REMOTE = "prfaas->pd", "pd->prfaas"
BOTH = {TO_LOCAL: 0, TO_REMOTE: 0}


def ids(n: int, *, first: int = 0) -> list[int]:
    return list(range(first, first + n))


def told(response: Any, name: str) -> str | None:
    value: str | None = response.headers.get(f"X-PrfaaS-{name}")
    return value


async def held(gate: RunningGate, prompt: list[int], *, side: str, version: int) -> None:
    """Leaves the prompt in one side's cache."""
    await gate.run_plan(plan(1, version, mode=f"always_{side}", threshold_tokens=None))
    response, _ = await gate.complete(prompt)
    assert told(response, "Side") == side


@pytest.fixture
async def warm(gate: RunningGate) -> RunningGate:
    """The paper's example: of 30,000 tokens local holds about 10K, the remote about 25K."""
    await held(gate, ids(25_600), side="remote", version=1)
    await held(gate, ids(10_240), side="local", version=2)
    return gate


def abundant(version: int, **entry: Any) -> dict[str, Any]:
    return plan(
        1, version, **{"threshold_tokens": 19_400, "cache_mode": "abundant", "moves": BOTH, **entry}
    )


async def judged_sum(gate: RunningGate, source: str = "tokenised", side: str = "judged") -> float:
    metrics = await gate.metrics()
    labels = f'{{side="{side}",source="{source}",modality="text"}}'
    return metrics[f"prfaas_gate_uncached_tokens_sum{labels}"]


async def test_scarce_computes_where_the_longer_prefix_is_not(
    warm: RunningGate, remote: Upstream
) -> None:
    await warm.run_plan(abundant(9, cache_mode="scarce"))
    before = await judged_sum(warm)
    response, _ = await warm.complete(ids(30_000))
    assert (told(response, "Side"), told(response, "Reason")) == ("remote", "Long")
    assert told(response, "Uncached-Remote-Tokens") == "4400"
    assert told(response, "Judged-Tokens") == "19760"
    assert told(response, "Move-Tokens") is None
    assert "X-PrfaaS-Move" not in remote.headers[-1]
    assert await judged_sum(warm) - before == 19_760
    # Of the prompt that warmed local, and of this one, what only the remote held: what moves would
    # bring is known before the plan allows any.
    movable = (await warm.metrics())["prfaas_gate_movable_tokens_total"]
    assert movable == 10_240 + (25_600 - 10_240)


async def test_abundant_moves_the_longer_prefix_and_computes_the_rest(
    warm: RunningGate, local: Upstream
) -> None:
    await warm.run_plan(abundant(9))
    before = await judged_sum(warm), await judged_sum(warm, side="local")
    local.answer_headers = {"X-PrfaaS-Moved-Tokens": "15360"}
    response, _ = await warm.complete(ids(30_000))
    assert (told(response, "Side"), told(response, "Reason")) == ("local", "Short")
    assert told(response, "Uncached-Tokens") == "19760"
    assert told(response, "Judged-Tokens") == "4400"
    assert told(response, "Move-Tokens") == "25600"
    assert told(response, "Moved-Tokens") == "15360"
    assert local.headers[-1]["X-PrfaaS-Move"] == "prfaas->pd; tokens=25600"
    metrics = await warm.metrics()
    assert metrics[f'prfaas_gate_moves_total{{link="{TO_LOCAL}"}}'] == 1
    assert metrics[f'prfaas_gate_move_tokens_total{{link="{TO_LOCAL}"}}'] == 25_600 - 10_240
    assert metrics[f'prfaas_gate_moves_total{{link="{TO_REMOTE}"}}'] == 0
    after = await judged_sum(warm), await judged_sum(warm, side="local")
    assert (after[0] - before[0], after[1] - before[1]) == (4400, 19_760)
    # Local has the whole prompt now: nothing moves twice.
    response, _ = await warm.complete(ids(30_000))
    assert told(response, "Uncached-Tokens") == "304"
    assert told(response, "Move-Tokens") is None
    assert "X-PrfaaS-Move" not in local.headers[-1]


async def test_a_prefix_of_local_goes_with_what_is_computed_remotely(
    gate: RunningGate, remote: Upstream
) -> None:
    await held(gate, ids(5120), side="local", version=1)
    await gate.run_plan(abundant(9, threshold_tokens=1000, moves={TO_REMOTE: 5120}))
    response, _ = await gate.complete(ids(8192))
    assert (told(response, "Side"), told(response, "Judged-Tokens")) == ("remote", "3072")
    assert remote.headers[-1]["X-PrfaaS-Move"] == "pd->prfaas; tokens=5120"
    assert (await gate.metrics())[f'prfaas_gate_moves_total{{link="{TO_REMOTE}"}}'] == 1
    response, _ = await gate.complete(ids(5119) + ids(3000, first=10**6))
    assert told(response, "Side") == "remote"
    assert "X-PrfaaS-Move" not in remote.headers[-1], "the remote holds it by now"


@pytest.mark.parametrize(
    "entry",
    [{"moves": {}}, {"moves": {TO_LOCAL: 15_361}}, {"moves": {TO_REMOTE: 0}}],
    ids=["no link", "too little", "another link"],
)
async def test_what_is_not_worth_its_transfer_does_not_count(
    warm: RunningGate, entry: dict[str, Any]
) -> None:
    await warm.run_plan(abundant(9, **entry))
    response, _ = await warm.complete(ids(30_000))
    assert (told(response, "Side"), told(response, "Judged-Tokens")) == ("remote", "19760")


async def test_nothing_is_moved_from_a_remote_that_is_not_well(
    warm: RunningGate, local: Upstream, remote: Upstream
) -> None:
    await warm.run_plan(abundant(9))
    remote.healthy = False
    upstream = warm.gate.remotes["prfaas"].upstreams[0]
    await until(lambda: upstream.health.state == "down")
    response, _ = await warm.complete(ids(30_000))
    assert (told(response, "Side"), told(response, "Reason")) == ("local", "RemoteDown")
    assert told(response, "Judged-Tokens") == "19760"
    assert "X-PrfaaS-Move" not in local.headers[-1]


async def test_a_remote_that_does_not_answer_moves_nothing_on_the_way_back(
    gate: RunningGate, local: Upstream
) -> None:
    await held(gate, ids(5120), side="local", version=1)
    await gate.run_plan(abundant(9, threshold_tokens=0))
    gate.gate.remotes["prfaas"].upstreams[0].url = "http://127.0.0.1:9"  # nobody listens there
    response, _ = await gate.complete(ids(8192))
    assert (told(response, "Side"), told(response, "Reason")) == ("local", "RemoteDown")
    assert told(response, "Move-Tokens") is None
    assert "X-PrfaaS-Move" not in local.headers[-1]


async def test_a_prefix_that_is_still_being_prefilled_is_not_moved(
    gate: RunningGate, local: Upstream, remote: Upstream
) -> None:
    await gate.run_plan(abundant(1, threshold_tokens=5000))
    remote.open.clear()
    async with under_way(gate, ids(8192)):
        await until(lambda: remote.requests)
        response, _ = await gate.complete(ids(4000))
        assert told(response, "Side") == "local"
        assert "X-PrfaaS-Move" not in local.headers[-1]
        remote.open.set()
    await gate.complete(ids(8200))
    assert local.headers[-1]["X-PrfaaS-Move"] == "prfaas->pd; tokens=8192"


async def test_clients_and_other_plans_cannot_ask_for_a_move(
    gate: RunningGate, local: Upstream, remote: Upstream
) -> None:
    headers = {"x-prfaas-move": "prfaas->pd; tokens=999999"}
    for version, mode in enumerate(("always_local", "always_remote"), 1):
        await gate.run_plan(plan(1, version, mode=mode, threshold_tokens=None))
        body = {"prompt": ids(2000)}
        url = gate.url + "/v1/completions"
        async with gate.client.post(url, json=body, headers=headers) as response:
            assert response.status == 200
    assert "X-PrfaaS-Move" not in local.headers[-1]
    assert "X-PrfaaS-Move" not in remote.headers[-1]


async def test_a_batch_has_no_first_tokens_to_move(gate: RunningGate, local: Upstream) -> None:
    await held(gate, ids(5120), side="remote", version=1)
    await gate.run_plan(abundant(9))
    await gate.complete([ids(5120), ids(5120)])
    assert "X-PrfaaS-Move" not in local.headers[-1]


async def test_what_did_not_come_is_not_believed_of_its_source_any_more(
    warm: RunningGate, local: Upstream
) -> None:
    """The remote had evicted all but 11,264 tokens: the engine's report says so."""
    await warm.run_plan(abundant(9))
    local.usage = exact_usage(cached=11_264)
    local.answer_headers = {"X-PrfaaS-Moved-Tokens": "1024"}
    await warm.complete(ids(30_000))
    index = warm.gate.remotes["prfaas"].upstreams[0].index
    assert len(index) == 22
    await warm.run_plan(abundant(10))
    response, _ = await warm.complete(ids(25_600) + ids(4000, first=10**6))
    assert told(response, "Uncached-Remote-Tokens") == str(25_600 + 4000 - 11_264)


@pytest.mark.parametrize(
    ("moved", "cached"),
    [("15360", 25_600), ("0", 10_240), (None, 10_240)],
    ids=["came whole", "link down", "stack that says nothing"],
)
async def test_what_may_be_there_is_still_believed(
    warm: RunningGate, local: Upstream, moved: str | None, cached: int
) -> None:
    await warm.run_plan(abundant(9))
    local.usage = exact_usage(cached=cached)
    local.answer_headers = {} if moved is None else {"X-PrfaaS-Moved-Tokens": moved}
    await warm.complete(ids(30_000))
    assert len(warm.gate.remotes["prfaas"].upstreams[0].index) == 50


async def test_the_candidate_by_turn_is_the_remote_whose_prefix_counts(
    local: Upstream, remote: Upstream
) -> None:
    async with Upstream().running() as other:
        config = gate_config(local.url, {"a": remote.url, "b": other.url})
        async with gate_running(config) as gate:
            one = {"mode": "always_remote", "threshold_tokens": None}
            await gate.run_plan(plan(1, 1, remote={"b": 1.0}, **one))
            await gate.complete(ids(5120))
            moves = {"a->pd": 0, "b->pd": 0}
            for version, weights in enumerate(({"a": 1.0}, {"b": 1.0}), 2):
                await gate.run_plan(
                    abundant(version, threshold_tokens=10_000, moves=moves, remote=weights)
                )
                response, _ = await gate.complete(ids(5121))
                if version == 2:
                    assert told(response, "Move-Tokens") is None
                    gate.gate.local.upstreams[0].index.clear()
            assert local.headers[-1]["X-PrfaaS-Move"] == "b->pd; tokens=5120"
            metrics = await gate.metrics()
            assert metrics['prfaas_gate_moves_total{link="b->pd"}'] == 1
            assert metrics['prfaas_gate_moves_total{link="pd->a"}'] == 0


async def test_judged_at_completion_is_what_the_engine_had_of_the_judged_prefix(
    gate: RunningGate, local: Upstream, remote: Upstream
) -> None:
    text = "".join(f"{i:07d} " for i in range(4096))  # 32 KiB: 16 blocks, 8,192 tokens by estimate
    await gate.run_plan(plan(1, 1, mode="always_remote", threshold_tokens=None))
    await gate.complete(text)
    await gate.run_plan(abundant(2, threshold_tokens=1000))
    # The engine counts 10,000 tokens and found 9,000 of them, after the move.
    local.usage = lambda _: {
        "prompt_tokens": 10_000,
        "prompt_tokens_details": {"cached_tokens": 9_000},
    }
    response, _ = await gate.complete(text + "and so on", stream=True)
    asked = int(told(response, "Move-Tokens") or 0)
    assert 8192 < asked < 8800, "an estimate is asked for with a margin"
    assert local.headers[-1]["X-PrfaaS-Move"] == f"prfaas->pd; tokens={asked}"
    assert await judged_sum(gate, "usage") == 1000
    assert await judged_sum(gate, "usage", side="local") == 10_000, "not there before the move"


@pytest.mark.parametrize("cached", [None, 150])
async def test_in_scarce_judged_is_local_by_every_source(
    gate: RunningGate, local: Upstream, remote: Upstream, cached: int | None
) -> None:
    local.usage = remote.usage = exact_usage(cached=cached)
    await gate.run_plan(plan(1, 1, threshold_tokens=300))
    for prompt in (
        "some words " * 100,
        "many words " * 400,
        ids(700),
        ids(200),
        "some words " * 90,
    ):
        await gate.complete(prompt, stream=True)
    metrics = await gate.metrics()

    def series(side: str) -> dict[str, float]:
        start = "prfaas_gate_uncached_tokens_"
        return {
            name.replace(side, "?"): value
            for name, value in metrics.items()
            if name.startswith(start) and f'side="{side}"' in name
        }

    assert series("judged") == series("local")
    assert sum(series("judged").values()) > 0


async def test_the_state_of_a_hybrid_model_is_found_only_where_it_was_left(
    local: Upstream, remote: Upstream
) -> None:
    for linear_state, uncached in (("none", "952"), ("exact", "3000")):
        config = gate_config(local.url, {"prfaas": remote.url}, linear_state=linear_state)
        async with gate_running(config) as gate:
            await gate.complete(ids(4000))
            response, _ = await gate.complete(ids(2048) + ids(952, first=10**6))
            assert told(response, "Uncached-Tokens") == uncached
            response, _ = await gate.complete(ids(4000) + ids(1000, first=10**7))
            assert told(response, "Uncached-Tokens") == str(5000 - 3584)


async def test_places_are_the_clusters_whose_engines_compute(gate: RunningGate) -> None:
    places = gate.gate.places()
    assert set(places) == {"pd", "prfaas"}
    await held(gate, ids(1024), side="remote", version=1)
    assert (len(places["pd"]), len(places["prfaas"])) == (0, 2)
    places["prfaas"].adopt([b"12345678"], state_at_end=False)
    metrics = await gate.metrics()
    assert metrics['prfaas_gate_prefix_index_blocks{side="remote",upstream="prfaas"}'] == 3


async def test_in_the_band_a_request_goes_where_less_is_pending(
    gate: RunningGate, local: Upstream, remote: Upstream
) -> None:
    """Both sides answered once; then local has one of ours pending, and the next goes remote."""
    await gate.run_plan(plan(1, 1, threshold_tokens=1000, band=[500, 2000]))
    for n in (400, 3000):
        await gate.complete(ids(n, first=n * 1000), stream=True)
    local.open.clear()
    async with under_way(gate, ids(400, first=10**7), stream=True):
        await until(lambda: len(local.requests) == 2)
        await until(lambda: _expects(gate, "local") > 10 * _expects(gate, "remote"))
        response, _ = await gate.complete(ids(600, first=10**8), stream=True)
        assert (told(response, "Side"), told(response, "Reason")) == ("remote", "BandRemote")
        local.open.set()
    remote.open.clear()
    async with under_way(gate, ids(3000, first=10**9), stream=True):
        await until(lambda: _expects(gate, "remote") > 10 * _expects(gate, "local"))
        response, _ = await gate.complete(ids(1500, first=2 * 10**9), stream=True)
        assert (told(response, "Side"), told(response, "Reason")) == ("local", "BandLocal")
        remote.open.set()
    metrics = await gate.metrics()
    assert metrics['prfaas_gate_requests_total{side="local",reason="BandLocal"}'] == 1
    assert [u.wait.n_pending for u in gate.gate.upstreams] == [0, 0]


@pytest.mark.parametrize("how", ["refused", "broken", "left"])
async def test_a_request_that_fails_is_not_pending_for_ever(
    gate: RunningGate, local: Upstream, how: str
) -> None:
    wait = gate.gate.local.upstreams[0].wait
    if how == "refused":
        local.status = 500
        await gate.complete(ids(10), stream=True)
    elif how == "broken":
        local.break_after = 0
        with pytest.raises(aiohttp.ClientError):
            await gate.complete(ids(10), stream=True)
    else:
        local.open.clear()
        task = asyncio.create_task(gate.complete(ids(10), stream=True))
        await until(lambda: wait.n_pending == 1)
        task.cancel()
    await until(lambda: wait.n_pending == 0)
    assert wait.expected_s(tokens=10, now_s=0.0) is None


def _expects(gate: RunningGate, side: str) -> float:
    upstream = (gate.gate.local if side == "local" else gate.gate.remotes["prfaas"]).upstreams[0]
    got = upstream.wait.expected_s(tokens=1000, now_s=gate.gate.now_s())
    assert got is not None
    return got


async def test_before_anything_was_answered_t_decides_in_the_band(
    gate: RunningGate, local: Upstream
) -> None:
    await gate.run_plan(plan(1, 1, threshold_tokens=1000, band=[500, 2000]))
    response, _ = await gate.complete(ids(1001))
    assert told(response, "Reason") == "Long"
    response, _ = await gate.complete(ids(600, first=10**6))
    assert told(response, "Reason") == "Short"
    # Answers that are no streams come when decoding ends: they tell nothing of a prefill.
    assert gate.gate.local.upstreams[0].wait.expected_s(tokens=1, now_s=0.0) is None
