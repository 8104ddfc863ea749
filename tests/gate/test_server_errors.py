"""Answers of 500 and above: who serves the request then, and what is thought of who gave them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gate.peers import RunningGate, Upstream, gate_config, gate_running, plan, until
from tests.lab.serving import lab
from tests.lab.small import BLOCK_TOKENS

N_BLOCKS = 2


def prompt(n: int) -> list[int]:
    """The n-th prompt above the plan's threshold; they have nothing in common."""
    return list(range(n * 10_000, n * 10_000 + N_BLOCKS * 512))


@pytest.fixture
async def unprobed(local: Upstream, remote: Upstream) -> AsyncIterator[RunningGate]:
    """A gate that learns from requests alone."""
    config = gate_config(local.url, {"prfaas": remote.url}, health_interval_s=600.0)
    async with gate_running(config) as gate:
        await gate.run_plan(plan(threshold_tokens=1000))
        yield gate


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_remote_does_not_serve_local_serves(
    unprobed: RunningGate, local: Upstream, remote: Upstream, stream: bool
) -> None:
    remote.status = 503
    for n in range(2):
        response, body = await unprobed.complete(prompt(n), stream=stream)
        assert response.status == 200, body
        assert response.headers["X-PrfaaS-Side"] == "local"
        assert response.headers["X-PrfaaS-Reason"] == "RemoteDown"
        assert "X-Engine" not in response.headers, "nothing of the remote's answer is passed on"
    assert (len(remote.requests), len(local.requests)) == (1, 2), "one 503 is its own word"
    gate = unprobed.gate
    assert gate.remotes["prfaas"].upstreams[0].health.state == "down"
    assert gate.remotes["prfaas"].upstreams[0].health.error == "answered 503"
    assert len(gate.remotes["prfaas"].upstreams[0].index) == 0, "it computed nothing"
    assert len(gate.local.upstreams[0].index) == 2 * N_BLOCKS
    metrics = await unprobed.metrics()
    assert metrics["prfaas_gate_fallbacks_total"] == 1
    assert metrics['prfaas_gate_errors_total{side="remote"}'] == 1
    assert metrics['prfaas_gate_results_total{side="remote",result="server_error"}'] == 1
    assert metrics['prfaas_gate_results_total{side="local",result="ok"}'] == 2
    assert metrics['prfaas_gate_in_flight{side="remote"}'] == 0


async def test_any_other_server_error_counts_from_the_second_in_a_row(
    unprobed: RunningGate, local: Upstream, remote: Upstream
) -> None:
    health = unprobed.gate.remotes["prfaas"].upstreams[0].health
    for n, (status, state) in enumerate(((500, "up"), (200, "up"), (502, "up"), (500, "down"))):
        remote.status = status
        response, _ = await unprobed.complete(prompt(n))
        assert (response.status, health.state) == (200, state)
    assert (len(remote.requests), len(local.requests)) == (4, 3)


@pytest.mark.parametrize("status", [400, 429])
async def test_what_a_remote_says_of_the_request_itself_is_passed_on(
    unprobed: RunningGate, local: Upstream, remote: Upstream, status: int
) -> None:
    remote.status = status
    for _ in range(3):
        response, _ = await unprobed.complete(prompt(0))
        assert (response.status, response.headers["X-PrfaaS-Side"]) == (status, "remote")
    assert local.requests == []
    assert unprobed.gate.remotes["prfaas"].upstreams[0].health.state == "up"


async def test_if_local_fails_too_its_answer_is_the_answer(
    unprobed: RunningGate, local: Upstream, remote: Upstream
) -> None:
    remote.status, local.status = 503, 500
    response, body = await unprobed.complete(prompt(0))
    assert (response.status, body) == (500, b'{"error": "engine says no"}')
    assert response.headers["X-PrfaaS-Upstream"] == "local"
    assert (len(remote.requests), len(local.requests)) == (1, 1)


async def test_a_trial_that_is_answered_with_an_error_costs_nothing_and_closes_again(
    unprobed: RunningGate, local: Upstream, remote: Upstream
) -> None:
    upstream = unprobed.gate.remotes["prfaas"].upstreams[0]
    for n, status in enumerate((503, 500)):
        remote.status = status
        upstream.failed("refused", refused=True, now_s=unprobed.gate.now_s())
        upstream.probe_answered(now_s=unprobed.gate.now_s())
        assert upstream.health.state == "half_open"
        response, _ = await unprobed.complete(prompt(n))
        assert (response.status, upstream.health.state) == (200, "down")
    assert (len(remote.requests), len(local.requests)) == (2, 2)


async def test_a_sick_local_gives_its_short_requests_away(
    unprobed: RunningGate, local: Upstream, remote: Upstream
) -> None:
    """It takes two in a row: one 503 may be a moment of overload."""
    local.status = 503
    for _ in range(2):
        response, _ = await unprobed.complete([1])
        assert (response.status, response.headers["X-PrfaaS-Side"]) == (503, "local")
    response, _ = await unprobed.complete([1])
    assert (response.status, response.headers["X-PrfaaS-Reason"]) == (200, "LocalDown")
    local.status = 200
    unprobed.gate.local.upstreams[0].probe_answered(now_s=unprobed.gate.now_s())
    response, _ = await unprobed.complete([1])
    assert (response.status, response.headers["X-PrfaaS-Side"]) == (200, "local")
    assert unprobed.gate.local.upstreams[0].health.state == "up"


async def test_a_link_that_goes_down_under_load_fails_no_request(tmp_path: Path) -> None:
    """One request waits for its KV on the link, one comes before any probe, and then others."""
    async with lab(tmp_path, gbps=0.001) as stack:
        config = gate_config(
            stack.local,
            {"far": stack.far},
            router="small/pd/g1",
            block_tokens=BLOCK_TOKENS,
            health_interval_s=600.0,
        )
        async with gate_running(config) as gate:
            await gate.run_plan(plan(fleet="small", remote={"far": 1.0}, threshold_tokens=30))
            far, link = gate.gate.remotes["far"].upstreams[0], stack.fleet.links["far->pd"]

            async def reason(n: int) -> str:
                ids = list(range(n * 1_000, n * 1_000 + 40))
                response, body = await gate.complete(ids, max_tokens=2, stream=True)
                assert response.status == 200, body
                return response.headers["X-PrfaaS-Reason"]

            waiting = asyncio.create_task(reason(0))
            await until(lambda: link.read().connections)
            link.set_capacity(0.0)
            assert [await reason(n) for n in range(1, 5)] == ["RemoteDown"] * 4
            metrics = await gate.metrics()
            assert metrics["prfaas_gate_fallbacks_total"] == 1, "one was sent there in vain"
            link.set_capacity(100.0)
            assert await waiting == "Long"
            assert far.health.state == "down", "what was sent before tells nothing of now"
            far.probe_answered(now_s=gate.gate.now_s())
            assert (await reason(5), far.health.state) == ("Long", "up")
