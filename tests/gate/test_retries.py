"""A request that an upstream failed is tried again on another one, before the first byte only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from routing.gate.upstream import Attempt
from tests.gate.peers import RunningGate, Upstream, gate_config, gate_running, plan, until

OFTEN = {"failures": 3, "open_s": 5.0, "max_open_s": 60.0}


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
async def far() -> AsyncIterator[list[Upstream]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Upstream().running()) for _ in range(3)]


@pytest.fixture
async def near() -> AsyncIterator[list[Upstream]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Upstream().running()) for _ in range(3)]


@pytest.fixture
async def gate(near: list[Upstream], far: list[Upstream]) -> AsyncIterator[RunningGate]:
    """Two stacks on each side (the third is for who wants more), everything remote."""
    config = gate_config(
        [u.url for u in near[:2]], {"prfaas": [u.url for u in far[:2]]}, health_interval_s=600.0
    )
    async with gate_running(config) as running:
        await running.run_plan(plan(threshold_tokens=0))
        yield running


def n_asked(stacks: list[Upstream]) -> list[int]:
    return [len(upstream.requests) for upstream in stacks]


@pytest.mark.parametrize("stream", [False, True])
async def test_another_of_the_same_side_first(
    gate: RunningGate, near: list[Upstream], far: list[Upstream], stream: bool
) -> None:
    far[0].status = 503
    response, body = await gate.complete([1, 2], stream=stream)
    assert (response.status, response.headers["X-PrfaaS-Reason"]) == (200, "Long")
    assert response.headers["X-PrfaaS-Upstream"] == far[1].url.removeprefix("http://")
    assert b"engine says no" not in body
    assert (n_asked(far), n_asked(near)) == ([1, 1, 0], [0, 0, 0])
    metrics = await gate.metrics()
    assert metrics['prfaas_gate_retries_total{side="remote"}'] == 1
    assert metrics["prfaas_gate_fallbacks_total"] == 0
    assert metrics['prfaas_gate_requests_total{side="remote",reason="Long"}'] == 1, "it came once"


async def test_then_local_and_another_of_local(
    gate: RunningGate, near: list[Upstream], far: list[Upstream]
) -> None:
    for upstream in (*far, near[0]):
        upstream.status = 500
    response, _ = await gate.complete([1, 2])
    assert (response.status, response.headers["X-PrfaaS-Reason"]) == (200, "RemoteDown")
    assert (n_asked(far), n_asked(near)) == ([1, 1, 0], [1, 1, 0])
    metrics = await gate.metrics()
    assert metrics["prfaas_gate_fallbacks_total"] == 1
    assert metrics['prfaas_gate_retries_total{side="local"}'] == 1


async def test_the_last_answer_is_the_answer_and_nobody_is_asked_twice(
    gate: RunningGate, near: list[Upstream], far: list[Upstream]
) -> None:
    for upstream in (*far, *near):
        upstream.status = 500
    response, body = await gate.complete([1, 2])
    assert (response.status, body) == (500, b'{"error": "engine says no"}')
    assert (n_asked(far), n_asked(near)) == ([1, 1, 0], [1, 1, 0])


async def test_however_many_there_are_a_request_is_tried_so_often(near: list[Upstream]) -> None:
    for upstream in near:
        upstream.status = 500
    for retries in (0, 1, 2):
        config = gate_config(
            [u.url for u in near], health_interval_s=600.0, retries_per_side=retries
        )
        async with gate_running(config) as gate:
            before = sum(n_asked(near))
            response, _ = await gate.complete([1])
            assert (response.status, sum(n_asked(near)) - before) == (500, retries + 1)


async def test_one_that_is_thought_to_be_down_is_tried_before_a_request_is_given_up(
    gate: RunningGate, near: list[Upstream], far: list[Upstream]
) -> None:
    for upstream in (*far, near[0]):
        upstream.status = 500
    slow = gate.gate.local.upstreams[1]
    for _ in range(2):
        slow.failed("health did not answer in time", refused=False, now_s=gate.gate.now_s())
    assert slow.health.state == "down"
    response, _ = await gate.complete([1, 2])
    assert (response.status, slow.health.state) == (200, "up"), "and is found well"
    assert (n_asked(far), n_asked(near)) == ([1, 1, 0], [1, 1, 0])


async def test_nobody_listens_at_one_of_them(near: list[Upstream]) -> None:
    async with Upstream().running() as gone:
        url = gone.url
    async with gate_running(gate_config([url, near[0].url], health_interval_s=600.0)) as gate:
        for _ in range(4):
            response, _ = await gate.complete([1])
            assert response.status == 200
            async with gate.client.get(gate.url + "/v1/models") as models:
                assert models.status == 200


@pytest.mark.parametrize("whole", [False, True])
async def test_never_after_the_first_byte(
    gate: RunningGate, near: list[Upstream], far: list[Upstream], whole: bool
) -> None:
    """Headers are bytes too: an answer that began is the client's."""
    far[0].break_after = 0 if whole else 1
    with pytest.raises(aiohttp.ClientPayloadError):
        await gate.complete([1, 2], stream=True)
    assert (n_asked(far), n_asked(near)) == ([1, 0, 0], [0, 0, 0])


async def test_a_silent_one_keeps_its_request(near: list[Upstream]) -> None:
    near[0].open.clear()
    config = gate_config([u.url for u in near[:2]], read_timeout_s=0.2, health_interval_s=600.0)
    async with gate_running(config) as gate:
        response, _ = await gate.complete([1])
        assert (response.status, n_asked(near)) == (504, [1, 0, 0])


async def test_remote_is_off_while_its_breaker_is_open_and_one_request_closes_it(
    near: list[Upstream], far: list[Upstream]
) -> None:
    """S-43. Its health endpoint says all is well throughout."""
    clock, [remote, *_] = Clock(), far
    config = gate_config(
        near[0].url, {"prfaas": remote.url}, breaker=OFTEN, health_interval_s=600.0
    )
    async with gate_running(config, now_s=clock) as gate:
        upstream = gate.gate.remotes["prfaas"].upstreams[0]
        await gate.run_plan(plan(threshold_tokens=0))
        series = 'prfaas_gate_breaker_state{side="remote",upstream="prfaas",state="%s"}'

        async def reason() -> str:
            response, _ = await gate.complete([1, 2])
            assert response.status == 200, "no client sees any of it"
            return response.headers["X-PrfaaS-Reason"]

        remote.status = 500
        while upstream.breaker.is_closed:
            assert len(remote.requests) < 3
            await reason()
            for _ in range(2):
                upstream.probe_answered(now_s=clock())
        assert len(remote.requests) == 3
        for _ in range(3):
            upstream.probe_answered(now_s=clock())
        assert upstream.health.state == "up", "probes alone would have brought it back"
        assert [await reason() for _ in range(5)] == ["RemoteDown"] * 5
        assert len(remote.requests) == 3, "not one more was sent there"
        metrics = await gate.metrics()
        assert (metrics[series % "open"], metrics[series % "closed"]) == (1, 0)
        opens = 'prfaas_gate_breaker_opens_total{side="remote",upstream="prfaas"}'
        assert metrics[opens] == 1
        assert metrics['prfaas_gate_upstream_up{side="remote",upstream="prfaas"}'] == 0

        clock.now_s += 5.0
        assert (await gate.metrics())[series % "half_open"] == 1
        assert [await reason() for _ in range(3)] == ["RemoteDown"] * 3
        assert len(remote.requests) == 4, "one on trial, and it was served by local"
        for _ in range(3):
            upstream.probe_answered(now_s=clock())
        remote.status = 200
        clock.now_s += 9.0
        assert await reason() == "RemoteDown", "twice as long after a failed trial"
        clock.now_s += 1.0
        assert [await reason() for _ in range(3)] == ["Long"] * 3
        metrics = await gate.metrics()
        assert (metrics[series % "closed"], metrics[opens]) == (1, 2)
        assert (await gate.health())["upstreams"]["prfaas"]["breaker"] == "closed"


async def test_streams_that_break_off_open_it_too(near: list[Upstream]) -> None:
    near[0].break_after = 1
    config = gate_config(near[0].url, breaker=OFTEN, health_interval_s=600.0)
    async with gate_running(config) as gate:
        for _ in range(3):
            with pytest.raises(aiohttp.ClientPayloadError):
                await gate.complete([1], stream=True)
        health = await gate.health()
        assert health["upstreams"]["local"]["breaker"] == "open"
        assert "cut off (open: 3 failures in a row" in health["error"]
        near[0].break_after = None
        response, _ = await gate.complete([1], stream=True)
        assert response.status == 200, "local is tried for want of anybody else"


def answer(status: int) -> Any:
    return SimpleNamespace(status=status, headers={})


async def test_a_trial_tells_once(gate: RunningGate) -> None:
    """What breaks off after a trial was answered is one failure of many, not the trial's."""
    upstream = gate.gate.local.upstreams[0]
    breaker, now_s = upstream.breaker, 1e6
    pause_s, failures = breaker.config.open_s, breaker.config.failures
    for _ in range(failures):
        breaker.failed("x", trial=False, now_s=now_s)
    now_s += pause_s
    good = Attempt(upstream, (), compute_tokens=None, now_s=now_s)
    good.answered(answer(200), now_s=now_s)
    assert breaker.is_closed
    for _ in range(failures):
        breaker.failed("x", trial=False, now_s=now_s)
    good.failed("broke off", now_s=now_s + 1.0)
    good.end()
    assert (breaker.n_opens, breaker.state(now_s + pause_s)) == (2, "half_open")

    bad = Attempt(upstream, (), compute_tokens=None, now_s=now_s + pause_s)
    bad.answered(answer(500), now_s=now_s + pause_s)
    bad.failed("and broke off", now_s=now_s + pause_s)
    bad.end()
    assert (breaker.n_opens, breaker.state(now_s + 3.0 * pause_s)) == (3, "half_open")


async def test_a_trial_whose_client_hangs_up_makes_room_for_the_next(near: list[Upstream]) -> None:
    clock, [sick, well, _] = Clock(), near
    config = gate_config([sick.url, well.url], breaker=OFTEN, health_interval_s=600.0)
    async with gate_running(config, now_s=clock) as gate:
        breaker = gate.gate.local.upstreams[0].breaker
        for _ in range(3):
            breaker.failed("x", trial=False, now_s=clock())
        clock.now_s += 5.0
        well.open.clear()
        sick.open.clear()
        trial = asyncio.create_task(gate.complete([1]))
        await until(lambda: sick.requests)
        assert not breaker.admits(clock())
        trial.cancel()
        await until(lambda: breaker.admits(clock()))
