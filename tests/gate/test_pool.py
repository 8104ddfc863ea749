"""Which of several stacks of a place takes a request, and what is told of each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from routing.gate.pool import FRESH_S
from tests.gate.peers import RunningGate, Upstream, gate_config, gate_running, plan, until
from tests.gate.test_count import parsed


@pytest.fixture
async def stacks() -> AsyncIterator[list[Upstream]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Upstream().running()) for _ in range(3)]


@pytest.fixture
async def several(stacks: list[Upstream]) -> AsyncIterator[RunningGate]:
    """A gate with three stacks of its own cluster, that learns from requests alone."""
    config = gate_config([upstream.url for upstream in stacks], health_interval_s=600.0)
    async with gate_running(config) as gate:
        yield gate


def ids(seed: int, n: int = 2048) -> list[int]:
    return list(range(seed * 100_000, seed * 100_000 + n))


async def test_requests_with_nothing_in_common_are_shared_evenly(
    several: RunningGate, stacks: list[Upstream]
) -> None:
    for upstream in stacks:
        upstream.open.clear()
    tasks = []
    for n in range(9):
        tasks.append(asyncio.create_task(several.complete(ids(n))))
        await until(lambda: sum(len(u.requests) for u in stacks) == len(tasks))
    assert [len(u.requests) for u in stacks] == [3, 3, 3]
    metrics = await several.metrics()
    assert metrics['prfaas_gate_in_flight{side="local"}'] == 9
    for upstream in stacks:
        name = upstream.url.removeprefix("http://")
        series = f'prfaas_gate_upstream_in_flight{{side="local",upstream="{name}"}}'
        assert metrics[series] == 3
        upstream.open.set()
    for response, _ in await asyncio.gather(*tasks):
        assert response.status == 200


async def test_a_session_stays_where_its_prefix_is_held(several: RunningGate) -> None:
    homes: dict[int, str] = {}
    for turn in range(1, 4):
        for session in range(6):
            response, _ = await several.complete(ids(session, 2048 * turn))
            home = homes.setdefault(session, response.headers["X-PrfaaS-Upstream"])
            assert response.headers["X-PrfaaS-Upstream"] == home
            assert response.headers["X-PrfaaS-Uncached-Tokens"] == "2048"
    assert sorted(Counter(homes.values()).values()) == [2, 2, 2]


async def test_a_session_leaves_when_waiting_costs_more_than_computing_anew(
    several: RunningGate, stacks: list[Upstream]
) -> None:
    response, _ = await several.complete(ids(0, 4096))
    home = response.headers["X-PrfaaS-Upstream"]
    busy = next(u for u in several.gate.local.upstreams if u.name == home)
    busy.in_flight = 2  # 3 * 2048 against 1 * 6144: as good, and the other got nothing longer
    response, _ = await several.complete(ids(0, 6144))
    assert response.headers["X-PrfaaS-Upstream"] != home
    busy.in_flight = 0


async def test_what_was_measured_decides_while_it_is_fresh(several: RunningGate) -> None:
    """The slow one holds the prefix; the quick one computes all of it sooner."""
    slow, quick, third = several.gate.local.upstreams
    now_s = several.gate.now_s()
    for upstream, seconds_a_token in ((slow, 0.1), (quick, 0.001), (third, 0.2)):
        pending = upstream.wait.sent(tokens=2000, now_s=now_s - 2000 * seconds_a_token)
        upstream.wait.first_byte(pending, now_s=now_s)
        upstream.last_sent_s = now_s
    response, _ = await several.complete(ids(1))
    assert response.headers["X-PrfaaS-Upstream"] == quick.name
    quick.last_sent_s = now_s - FRESH_S - 1.0
    reading = several.gate.proxy._measurer.read(parsed(prompt=ids(1, 4096), model="m"))
    at_s = several.gate.now_s()
    assert several.gate.local.pick(reading, now_s=at_s) is quick, "it holds half of it"
    assert several.gate.local.pick(reading, now_s=at_s, without=[quick]) is slow


async def test_who_does_not_take_requests_is_passed_over_and_tried_last(
    several: RunningGate, stacks: list[Upstream]
) -> None:
    first, second, third = several.gate.local.upstreams
    now_s = several.gate.now_s()
    first.failed("gone", refused=True, now_s=now_s)
    for _ in range(second.breaker.config.failures):
        second.breaker.failed("answered 500", trial=False, now_s=now_s)
    for n in range(3):
        response, _ = await several.complete(ids(n))
        assert response.headers["X-PrfaaS-Upstream"] == third.name
    error = several.gate.ack().error
    assert error is not None
    assert f"{first.name} is down: using the others" in error
    assert f"{second.name} is cut off (open: 5 failures in a row" in error
    third.failed("gone", refused=True, now_s=now_s)
    assert not several.gate.local.is_reachable(now_s)
    response, _ = await several.complete(ids(9))
    assert response.status == 200, "for want of anybody else"


async def test_each_stack_has_a_cache_of_its_own_that_gates_tell_by_name(
    several: RunningGate,
) -> None:
    names = [upstream.name for upstream in several.gate.local.upstreams]
    assert list(several.gate.places()) == [f"pd/{name}" for name in names]
    await several.complete(ids(0))
    assert sorted(len(index) for index in several.gate.places().values()) == [0, 0, 4]


async def test_a_remote_of_several_stacks_is_one_place_of_the_plan(
    local: Upstream, stacks: list[Upstream]
) -> None:
    config = gate_config(local.url, {"prfaas": [u.url for u in stacks]})
    async with gate_running(config) as gate:
        await gate.run_plan(plan(threshold_tokens=0, max_remote_in_flight=2))
        for n in range(6):
            response, _ = await gate.complete(ids(n))
            assert response.headers["X-PrfaaS-Side"] == "remote"
        assert [len(u.requests) for u in stacks] == [2, 2, 2]
        for upstream in stacks:
            upstream.open.clear()
        sent = [asyncio.create_task(gate.complete(ids(10 + n))) for n in range(2)]
        await until(lambda: sum(len(u.requests) for u in stacks) == 8)
        response, _ = await gate.complete(ids(20))
        assert response.headers["X-PrfaaS-Reason"] == "RemoteLimit", "over all of its stacks"
        for upstream in stacks:
            upstream.open.set()
        await asyncio.gather(*sent)
        metrics = await gate.metrics()
        assert sum(v for k, v in metrics.items() if k.startswith("prfaas_gate_upstream_up")) == 4
