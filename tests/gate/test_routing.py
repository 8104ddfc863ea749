"""Which upstream a real request reaches, and what the gate says about it."""

from __future__ import annotations

from typing import Any

import msgspec
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


def ids(n: int, *, first: int = 0) -> list[int]:
    return list(range(first, first + n))


def uncached(side: str, source: str, *, of: str = "sum", modality: str = "text") -> str:
    """The series of a histogram of uncached tokens."""
    labels = f'side="{side}",source="{source}",modality="{modality}"'
    return f"prfaas_gate_uncached_tokens_{of}{{{labels}}}"


BOUNDARIES = [
    # t, tokens, side, reason
    (1000, 999, "local", "Short"),
    (1000, 1000, "local", "Short"),
    (1000, 1001, "remote", "Long"),
    (0, 1, "remote", "Long"),
    (0, 0, "local", "Short"),
    (100, 101, "remote", "Long"),  # below one block of 512: no exception
    (100, 100, "local", "Short"),
]


@pytest.mark.parametrize(("t", "tokens", "side", "reason"), BOUNDARIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_threshold_is_exact_on_token_ids(
    gate: RunningGate,
    local: Upstream,
    remote: Upstream,
    t: int,
    tokens: int,
    side: str,
    reason: str,
    stream: bool,
) -> None:
    """S-36, with tokenised lengths."""
    await gate.run_plan(plan(3, 7, threshold_tokens=t))
    response, _ = await gate.complete(ids(tokens), stream=stream)
    assert response.status == 200
    assert response.headers["X-PrfaaS-Side"] == side
    assert response.headers["X-PrfaaS-Upstream"] == ("local" if side == "local" else "prfaas")
    assert response.headers["X-PrfaaS-Reason"] == reason
    assert response.headers["X-PrfaaS-Plan"] == "3.7"
    assert response.headers["X-PrfaaS-Prompt-Tokens"] == str(tokens)
    assert response.headers["X-PrfaaS-Uncached-Tokens"] == str(tokens)
    assert response.headers["X-PrfaaS-Length-Source"] == "tokenised"
    assert (len(local.requests), len(remote.requests)) == ((1, 0) if side == "local" else (0, 1))
    assert (await gate.metrics())[
        f'prfaas_gate_requests_total{{side="{side}",reason="{reason}"}}'
    ] == 1


async def test_without_a_plan_everything_stays_local_and_says_so(
    gate: RunningGate, local: Upstream, remote: Upstream
) -> None:
    response, _ = await gate.complete(ids(100_000))
    assert (response.headers["X-PrfaaS-Side"], response.headers["X-PrfaaS-Reason"]) == (
        "local",
        "NoPlan",
    )
    assert response.headers["X-PrfaaS-Plan"] == "none"
    assert (await gate.health())["state"] == "no_plan"
    metrics = await gate.metrics()
    assert metrics['prfaas_gate_requests_total{side="local",reason="NoPlan"}'] == 1
    assert "prfaas_gate_plan_version" not in metrics


async def test_only_uncached_tokens_count(gate: RunningGate, local: Upstream) -> None:
    """S-37: 10,000 tokens of which about 8,000 are cached stay; so does the long second turn."""
    await gate.run_plan(plan(mode="always_local", threshold_tokens=None))
    await gate.complete(ids(8192))
    await gate.complete(ids(59_392))
    await gate.run_plan(plan(1, 2, threshold_tokens=4000))
    response, _ = await gate.complete(ids(8192) + ids(1808, first=10**6))
    assert response.headers["X-PrfaaS-Reason"] == "Short"
    assert response.headers["X-PrfaaS-Prompt-Tokens"] == "10000"
    assert response.headers["X-PrfaaS-Uncached-Tokens"] == "1808"
    assert response.headers["X-PrfaaS-Uncached-Remote-Tokens"] == "10000"
    response, _ = await gate.complete(ids(60_392))
    assert response.headers["X-PrfaaS-Side"] == "local"
    assert response.headers["X-PrfaaS-Uncached-Tokens"] == "1000"
    response, _ = await gate.complete(ids(4001, first=10**7))
    assert response.headers["X-PrfaaS-Side"] == "remote"


async def test_caches_are_judged_separately(
    gate: RunningGate, local: Upstream, remote: Upstream
) -> None:
    """What the remote holds does not make a prompt short: nothing moves between the caches."""
    await gate.run_plan(plan(threshold_tokens=1000))
    for _ in range(2):
        response, _ = await gate.complete(ids(2048))
        assert response.headers["X-PrfaaS-Side"] == "remote"
        assert response.headers["X-PrfaaS-Uncached-Tokens"] == "2048"
    assert response.headers["X-PrfaaS-Uncached-Remote-Tokens"] == "0"


async def test_text_and_chat_prefixes_match_too(gate: RunningGate, local: Upstream) -> None:
    await gate.run_plan(plan(mode="always_local", threshold_tokens=None))
    text = "".join(f"{i:07d} " for i in range(2048))  # 16 KiB: 8 blocks of 2048 bytes
    await gate.complete(text)
    response, _ = await gate.complete(text + "and then")
    assert response.headers["X-PrfaaS-Length-Source"] == "estimated"
    assert response.headers["X-PrfaaS-Prompt-Tokens"] == "4098"
    assert response.headers["X-PrfaaS-Uncached-Tokens"] == "2"
    first = [{"role": "user", "content": text}]
    for messages in (first, [*first, {"role": "user", "content": "again"}]):
        response, _ = await gate.complete(messages, chat=True)
    assert int(response.headers["X-PrfaaS-Uncached-Tokens"]) < 520


async def test_usage_calibrates_the_next_estimate(gate: RunningGate, local: Upstream) -> None:
    local.usage = exact_usage()
    prompt = "seven b " * 1000
    before, _ = await gate.complete(prompt)
    after, _ = await gate.complete(prompt, stream=True)
    assert before.headers["X-PrfaaS-Prompt-Tokens"] == "2000"
    assert after.headers["X-PrfaaS-Prompt-Tokens"] == "2000"  # words: 2 in 8 bytes
    prompt = "fifteen-letters " * 1000
    for _ in range(3):
        after, _ = await gate.complete(prompt, stream=True)
    assert after.headers["X-PrfaaS-Prompt-Tokens"] == "1000"


async def test_the_engines_report_corrects_the_index(gate: RunningGate, local: Upstream) -> None:
    local.usage = exact_usage(cached=0)
    await gate.complete(ids(1024) + ids(512, first=5000))
    await gate.complete(ids(1024) + ids(512, first=9000))
    response, _ = await gate.complete(ids(1024) + ids(512, first=5000))
    # Whatever continued from the blocks the engine did not have is not believed any more.
    index = gate.gate.local.upstreams[0].index
    assert index.credit < 1.0
    assert int(response.headers["X-PrfaaS-Uncached-Tokens"]) > 512
    metrics = await gate.metrics()
    assert metrics['prfaas_gate_engine_cached_tokens_total{side="local"}'] == 0
    assert metrics['prfaas_gate_engine_prompt_tokens_total{side="local"}'] == 3 * 1536
    assert metrics['prfaas_gate_prefix_credit_ratio{side="local",upstream="local"}'] < 1


async def test_weights_share_between_remotes(local: Upstream, remote: Upstream) -> None:
    async with Upstream().running() as other:
        config = gate_config(local.url, {"a": remote.url, "b": other.url})
        async with gate_running(config) as gate:
            await gate.run_plan(plan(threshold_tokens=0, remote={"a": 3.0, "b": 1.0, "gone": 9.0}))
            for i in range(8):
                await gate.complete(ids(10, first=i))
            assert (len(remote.requests), len(other.requests)) == (6, 2)
            note = (await gate.health())["error"]
            assert note == "the plan names remote 'gone', which has no upstream here"
            await gate.run_plan(plan(1, 2, threshold_tokens=0, remote={"a": 0.0, "gone": 1.0}))
            response, _ = await gate.complete(ids(10))
            assert response.headers["X-PrfaaS-Reason"] == "NoRemote"


async def test_the_limit_on_remote_requests_in_flight(
    gate: RunningGate, local: Upstream, remote: Upstream
) -> None:
    await gate.run_plan(plan(threshold_tokens=0, max_remote_in_flight=1))
    remote.open.clear()
    async with under_way(gate):
        await until(lambda: remote.requests)
        assert (await gate.metrics())['prfaas_gate_in_flight{side="remote"}'] == 1
        response, _ = await gate.complete([2])
        assert response.headers["X-PrfaaS-Reason"] == "RemoteLimit"
        remote.open.set()
    await until(lambda: gate.gate.remotes["prfaas"].upstreams[0].in_flight == 0)
    response, _ = await gate.complete([3])
    assert response.headers["X-PrfaaS-Reason"] == "Long"


async def test_both_sides_of_every_request_are_counted_once_per_source(
    gate: RunningGate, local: Upstream
) -> None:
    local.usage = exact_usage(cached=0)

    async def counts() -> dict[tuple[str, str], float]:
        metrics = await gate.metrics()
        return {
            (side, source): metrics[uncached(side, source, of="count")]
            for side in ("local", "remote")
            for source in ("tokenised", "usage", "estimated")
        }

    def want(tokenised: int, usage: int, estimated: int) -> dict[tuple[str, str], float]:
        each = {"tokenised": tokenised, "usage": usage, "estimated": estimated}
        return {(side, s): n for side in ("local", "remote") for s, n in each.items()}

    assert await counts() == want(0, 0, 0)
    await gate.complete(ids(700))
    assert await counts() == want(1, 0, 0), "exact at arrival: not again when usage comes"
    await gate.complete("some words " * 100, stream=True)
    assert await counts() == want(1, 1, 1)
    local.usage = lambda _: None
    await gate.complete("some words " * 100, stream=True)
    assert await counts() == want(1, 1, 2), "no usage: only the estimate"
    metrics = await gate.metrics()
    assert metrics[uncached("local", "tokenised")] == 700
    assert metrics[uncached("remote", "usage")] == 200
    everything = uncached("local", "tokenised", of="bucket").replace("}", ',le="+Inf"}')
    assert metrics[everything] == 1


async def test_prompts_with_media_are_counted_apart(gate: RunningGate, local: Upstream) -> None:
    """Their length is a guess until the engine counts it; then it is as good as any other."""
    local.usage = lambda _: {"prompt_tokens": 1500, "completion_tokens": 1}
    image = {"type": "image_url", "image_url": {"url": "http://x/y"}}
    await gate.complete([{"role": "user", "content": [image]}], chat=True)
    metrics = await gate.metrics()
    for side in ("local", "remote", "judged"):
        assert metrics[uncached(side, "usage", modality="media")] == 1500
        assert metrics[uncached(side, "estimated", of="count", modality="media")] == 1
        assert metrics[uncached(side, "usage", of="count")] == 0
        assert metrics[uncached(side, "estimated", of="count")] == 0


async def test_the_engines_cached_tokens_are_the_truth_of_its_side(
    gate: RunningGate, local: Upstream
) -> None:
    local.usage = exact_usage(cached=150)
    await gate.complete("some words " * 100, stream=True)
    metrics = await gate.metrics()
    assert metrics[uncached("local", "usage")] == 50
    assert metrics[uncached("remote", "usage")] == 200


async def test_a_decode_engine_that_counts_received_kv_as_cached_is_not_believed(
    local: Upstream,
) -> None:
    local.usage = exact_usage(cached=10**6)
    config = gate_config(local.url)
    distrusted = msgspec.structs.replace(config.upstreams.local[0], trust_cached_tokens=False)
    upstreams = msgspec.structs.replace(config.upstreams, local=(distrusted,))
    async with gate_running(msgspec.structs.replace(config, upstreams=upstreams)) as gate:
        await gate.complete("some words " * 100, stream=True)
        metrics = await gate.metrics()
        assert metrics[uncached("local", "usage")] == 200
        assert metrics['prfaas_gate_engine_prompt_tokens_total{side="local"}'] == 0


async def test_arrivals_are_counted_before_any_answer(gate: RunningGate, local: Upstream) -> None:
    local.open.clear()
    async with under_way(gate):
        await until(lambda: local.requests)
        metrics = await gate.metrics()
        assert metrics['prfaas_gate_requests_total{side="local",reason="NoPlan"}'] == 1
        assert metrics["prfaas_gate_prompt_tokens_total"] == 1
        local.open.set()


UNMEASURED: list[dict[str, Any]] = [{}, {"prompt": None}, {"prompt": [-1]}, {"prompt": {"a": 1}}]


@pytest.mark.parametrize("body", UNMEASURED)
async def test_what_cannot_be_measured_stays_local(
    gate: RunningGate, local: Upstream, body: dict[str, Any]
) -> None:
    await gate.run_plan(plan(threshold_tokens=0))
    async with gate.client.post(gate.url + "/v1/completions", json=body) as response:
        assert response.headers["X-PrfaaS-Reason"] == "Unmeasured"
        assert "X-PrfaaS-Prompt-Tokens" not in response.headers
    assert len(local.requests) == 1


async def test_the_index_of_an_upstream_is_bounded_by_its_capacity(local: Upstream) -> None:
    config = gate_config(local.url, capacity=2048)
    async with gate_running(config) as gate:
        for i in range(10):
            await gate.complete(ids(1024, first=i * 10_000))
        metrics = await gate.metrics()
        assert metrics['prfaas_gate_prefix_index_blocks{side="local",upstream="local"}'] == 4
        response, _ = await gate.complete(ids(1024, first=90_000))
        assert response.headers["X-PrfaaS-Uncached-Tokens"] == "0"
        response, _ = await gate.complete(ids(1024, first=10_000))
        assert response.headers["X-PrfaaS-Uncached-Tokens"] == "1024"


@pytest.mark.parametrize(
    ("threshold", "length", "side"),
    [
        (1000, 999, "local"),
        (1000, 1000, "local"),
        (1000, 1001, "remote"),
        (100, 101, "remote"),
        (0, 1, "remote"),
        (0, 511, "remote"),
    ],
)
@pytest.mark.parametrize("n_stacks", [1, 2])
async def test_the_threshold_is_exact_through_the_whole_gate(
    local: Upstream, remote: Upstream, threshold: int, length: int, side: str, n_stacks: int
) -> None:
    """S-36: L = t - 1, t, t + 1; t = 0; L below one block, which is no exception."""
    async with Upstream().running() as second, Upstream().running() as third:
        near, far = [local.url, second.url][:n_stacks], [remote.url, third.url][:n_stacks]
        async with gate_running(gate_config(near, {"prfaas": far})) as gate:
            await gate.run_plan(plan(threshold_tokens=threshold))
            response, _ = await gate.complete(list(range(length)))
            assert response.headers["X-PrfaaS-Side"] == side
            assert response.headers["X-PrfaaS-Judged-Tokens"] == str(length)


async def test_a_prompt_all_cached_stays_local_even_at_a_threshold_of_zero(
    local: Upstream, remote: Upstream
) -> None:
    """S-36: nothing is left to compute, and remote is for more than t."""
    async with gate_running(gate_config(local.url, {"prfaas": remote.url})) as gate:
        await gate.complete(list(range(1024)))
        await gate.run_plan(plan(threshold_tokens=0))
        response, _ = await gate.complete(list(range(1024)))
        assert response.headers["X-PrfaaS-Uncached-Tokens"] == "0"
        assert response.headers["X-PrfaaS-Side"] == "local"
        response, _ = await gate.complete(list(range(1025)))
        assert response.headers["X-PrfaaS-Side"] == "remote"
