"""Who is let in, who waits, who is told to come again."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from routing.gate.admission import MAX_TENANTS, NOBODY, Refused, Slots, TenantBounds, tenant_of
from routing.gate.settings import Tenants
from tests.gate.peers import RunningGate, Upstream, gate_config, gate_running, plan, until


async def waiting(slots: Slots, n: int) -> list[asyncio.Task[bool]]:
    tasks = [asyncio.create_task(slots.take("gate")) for _ in range(n)]
    await asyncio.sleep(0)
    return tasks


async def test_those_above_the_limit_wait_in_turn_and_one_above_the_queue_is_refused() -> None:
    slots = Slots(2, queue=2, queue_s=60.0)
    await slots.take("gate")
    await slots.take("gate")
    first, second = await waiting(slots, 2)
    assert slots.n_waiting == 2
    with pytest.raises(Refused) as refused:
        await slots.take("this gate")
    assert (refused.value.status, refused.value.reason) == (503, "queue_full")
    assert refused.value.headers == {"Retry-After": "1"}
    slots.give()
    await first
    assert not second.done()
    slots.give()
    await second
    assert (slots.n_taken, slots.n_waiting) == (2, 0)


async def test_nobody_overtakes_those_who_wait() -> None:
    slots = Slots(1, queue=5, queue_s=60.0)
    await slots.take("gate")
    [first] = await waiting(slots, 1)
    slots.give()  # it is the waiting one's now, though that has not run yet
    [late] = await waiting(slots, 1)
    await first
    assert not late.done()
    slots.give()
    await late


async def test_a_wait_has_an_end() -> None:
    slots = Slots(1, queue=1, queue_s=0.01)
    await slots.take("gate")
    with pytest.raises(Refused) as refused:
        await slots.take("gate")
    assert (refused.value.status, refused.value.reason) == (503, "queue_timeout")
    assert slots.n_waiting == 0
    slots.give()
    await slots.take("gate")


async def test_one_that_leaves_the_queue_costs_no_slot() -> None:
    slots = Slots(1, queue=5, queue_s=60.0)
    await slots.take("gate")
    gone, too_late, stays = await waiting(slots, 3)
    gone.cancel()
    slots.give()
    too_late.cancel()  # in the moment in which it was let in
    await stays
    assert (slots.n_taken, slots.n_waiting) == (1, 0)


async def test_a_wider_limit_lets_those_in_who_wait_and_a_narrower_one_throws_nobody_out() -> None:
    slots = Slots(1, queue=5, queue_s=60.0)
    await slots.take("gate")
    tasks = await waiting(slots, 3)
    slots.resize(3, queue=5, queue_s=60.0)
    await asyncio.gather(*tasks[:2])
    assert not tasks[2].done()
    slots.resize(1, queue=5, queue_s=60.0)
    slots.give()
    slots.give()
    await asyncio.sleep(0)
    assert (slots.n_taken, tasks[2].done()) == (1, False)
    slots.resize(None, queue=0, queue_s=60.0)
    await tasks[2]


def test_a_tenant_is_a_hash_and_the_key_is_nowhere() -> None:
    named = tenant_of({"Authorization": "Bearer sk-secret"}, None)
    assert named == tenant_of({"Authorization": "bearer  sk-secret "}, None)
    assert named != tenant_of({"Authorization": "Bearer sk-other"}, None)
    assert len(named) == 12
    assert "secret" not in named
    for headers in ({}, {"Authorization": "Basic abc"}, {"Authorization": "Bearer "}):
        assert tenant_of(headers, None) == NOBODY
    assert tenant_of({"X-Team": "a", "Authorization": "Bearer b"}, "X-Team") == tenant_of(
        {"X-Team": "a"}, "X-Team"
    )


def refusal(bounds: TenantBounds, name: str, now_s: float) -> str | None:
    try:
        bounds.enter(name, now_s)
    except Refused as exc:
        return f"{exc.reason} {exc.headers['Retry-After']}"
    return None


def test_each_tenant_has_its_own_bucket_and_it_refills() -> None:
    bounds = TenantBounds(Tenants(rps=0.5, burst=2.0))
    assert [refusal(bounds, "a", 0.0) for _ in range(3)] == [None, None, "tenant_rate 2"]
    assert refusal(bounds, "b", 0.0) is None
    assert refusal(bounds, "a", 1.0) == "tenant_rate 1"
    assert refusal(bounds, "a", 2.0) is None
    assert [refusal(bounds, "a", 1e6) for _ in range(3)] == [None, None, "tenant_rate 2"]


def test_in_flight_is_bounded_by_tenant() -> None:
    bounds = TenantBounds(Tenants(in_flight=2))
    assert [refusal(bounds, "a", 0.0) for _ in range(3)] == [None, None, "tenant_in_flight 1"]
    bounds.leave("a")
    assert refusal(bounds, "a", 0.0) is None


def test_tenants_are_remembered_up_to_a_number_and_busy_ones_always() -> None:
    bounds = TenantBounds(Tenants(in_flight=1))
    bounds.enter("busy", 0.0)
    for n in range(MAX_TENANTS + 10):
        bounds.enter(str(n), 0.0)
        bounds.leave(str(n))
    assert len(bounds) == MAX_TENANTS
    assert refusal(bounds, "busy", 0.0) == "tenant_in_flight 1"


async def sent(gate: RunningGate, n: int, **headers: str) -> list[asyncio.Task[Any]]:
    """`n` requests that are under way; each ends as (status, error code, Retry-After)."""

    async def one() -> tuple[int, str | None, str | None]:
        async with gate.client.post(
            gate.url + "/v1/completions", json={"prompt": [1, 2]}, headers=headers
        ) as response:
            body = json.loads(await response.read())
            error = body.get("error", {})
            assert error.keys() <= {"message", "type", "param", "code"}
            return response.status, error.get("code"), response.headers.get("Retry-After")

    return [asyncio.create_task(one()) for _ in range(n)]


async def test_a_gate_that_is_full_queues_and_then_says_when_to_come_again(
    local: Upstream,
) -> None:
    local.open.clear()
    config = gate_config(local.url, limits={"in_flight": 2, "queue": 1, "queue_s": 60.0})
    async with gate_running(config) as gate:
        inside = await sent(gate, 2)
        await until(lambda: len(local.requests) == 2)
        queued = await sent(gate, 1)
        await until(lambda: gate.gate.proxy.admission.all.n_waiting)  # type: ignore[union-attr]
        [refused] = await sent(gate, 1)
        assert await refused == (503, "queue_full", "1")
        assert (await gate.metrics())["prfaas_gate_waiting"] == 1, "its pages are always served"
        local.open.set()
        for task in (*inside, *queued):
            assert await task == (200, None, None)
        metrics = await gate.metrics()
        assert metrics["prfaas_gate_refused_total"] == 1
        assert metrics['prfaas_gate_refusals_total{reason="queue_full"}'] == 1
        assert metrics['prfaas_gate_requests_total{side="local",reason="NoPlan"}'] == 3
        assert metrics["prfaas_gate_waiting"] == 0


async def test_local_alone_can_be_bounded_and_remote_goes_on(
    local: Upstream, remote: Upstream
) -> None:
    local.open.clear()
    config = gate_config(
        local.url, {"prfaas": remote.url}, limits={"local_in_flight": 1, "queue_s": 0.01}
    )
    async with gate_running(config) as gate:
        await gate.run_plan(plan(threshold_tokens=5))
        [inside] = await sent(gate, 1)
        await until(lambda: len(local.requests) == 1)
        [refused] = await sent(gate, 1)
        assert await refused == (503, "queue_full", "1")
        response, _ = await gate.complete(list(range(10)))
        assert (response.status, response.headers["X-PrfaaS-Side"]) == (200, "remote")
        local.open.set()
        assert (await inside)[0] == 200
        metrics = await gate.metrics()
        assert metrics['prfaas_gate_requests_total{side="local",reason="Short"}'] == 2
        assert metrics["prfaas_gate_refused_total"] == 0, "arrivals are counted once"
        assert metrics['prfaas_gate_refusals_total{reason="queue_full"}'] == 1


@pytest.mark.parametrize(("own", "planned"), [(1, None), (1, 5), (5, 1)])
async def test_the_gate_may_bound_remote_below_the_plan(
    local: Upstream, remote: Upstream, own: int, planned: int | None
) -> None:
    remote.open.clear()
    config = gate_config(local.url, {"prfaas": remote.url}, limits={"remote_in_flight": own})
    async with gate_running(config) as gate:
        await gate.run_plan(plan(threshold_tokens=0, max_remote_in_flight=planned))
        [inside] = await sent(gate, 1)
        await until(lambda: remote.requests)
        response, _ = await gate.complete([1, 2])
        assert response.headers["X-PrfaaS-Reason"] == "RemoteLimit"
        remote.open.set()
        assert (await inside)[0] == 200


async def test_one_tenant_at_its_bound_leaves_the_others_alone(local: Upstream) -> None:
    local.open.clear()
    config = gate_config(local.url, tenants={"in_flight": 1})
    async with gate_running(config) as gate:
        [a] = await sent(gate, 1, Authorization="Bearer a")
        await until(lambda: len(local.requests) == 1)
        [more] = await sent(gate, 1, Authorization="Bearer a")
        assert await more == (429, "tenant_in_flight", "1")
        [b] = await sent(gate, 1, Authorization="Bearer b")
        [nobody] = await sent(gate, 1)
        await until(lambda: len(local.requests) == 3)
        local.open.set()
        assert [(await task)[0] for task in (a, b, nobody)] == [200, 200, 200]
        [again] = await sent(gate, 1, Authorization="Bearer a")
        assert (await again)[0] == 200
        metrics = await gate.metrics()
        assert metrics["prfaas_gate_tenants"] == 3
        assert metrics['prfaas_gate_refusals_total{reason="tenant_in_flight"}'] == 1
        assert metrics["prfaas_gate_refused_total"] == 0, "it is nobody's demand"


async def test_a_client_that_leaves_gives_back_all_it_held(local: Upstream) -> None:
    local.open.clear()
    config = gate_config(
        local.url,
        limits={"in_flight": 1, "local_in_flight": 1, "queue": 5},
        tenants={"header": "X-Team", "in_flight": 2},
    )
    async with gate_running(config) as gate:
        tasks = await sent(gate, 2, **{"X-Team": "a"})
        await until(lambda: local.requests)
        await until(lambda: gate.gate.proxy.admission.all.n_waiting)  # type: ignore[union-attr]
        for task in tasks:
            task.cancel()
        await until(gate.gate.proxy.idle.is_set)
        local.open.set()
        for _ in range(3):
            [task] = await sent(gate, 1, **{"X-Team": "a"})
            assert (await task)[0] == 200


async def test_who_waited_goes_to_a_stack_that_takes_requests_now(
    local: Upstream, remote: Upstream
) -> None:
    """All that wait would else go where the one before them was not, whatever became of that."""
    local.open.clear()
    config = gate_config(
        [local.url, remote.url],
        limits={"local_in_flight": 1, "queue": 5, "queue_s": 60.0},
        health_interval_s=600.0,
    )
    async with gate_running(config) as gate:
        tasks = await sent(gate, 1)
        await until(lambda: local.requests)
        admission = gate.gate.proxy.admission
        assert admission is not None
        tasks += await sent(gate, 2)
        await until(lambda: admission.local.n_waiting == 2)
        gate.gate.local.upstreams[1].failed("gone", refused=True, now_s=gate.gate.now_s())
        local.open.set()
        assert [(await task)[0] for task in tasks] == [200, 200, 200]
        assert (len(local.requests), len(remote.requests)) == (3, 0)
