"""History as it leaves: what of it, how often, and what happens while nobody takes it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from telemetry import wire
from telemetry.doors import forward as module
from telemetry.doors import remote_write
from telemetry.doors.forward import Forwarder, values_of
from tests.telemetry.batches import batch, instance, link, router

T0_S = 1_795_955_300.0


def values(sample: module.Sample) -> dict[tuple[str, ...], float]:
    """Values by name and by what stands beside the sample's own labels."""
    return {
        (v.name, *(v.labels[k] for k in ("key", "le") if k in v.labels)): v.value
        for v in values_of(sample)
    }


def test_an_instance_is_series_of_its_signals() -> None:
    sample = instance(
        "f/pd/d0",
        T0_S,
        signals={
            "requests_running": 2.0,
            "requests_waiting_by_stage": {"capacity": 3.0},
            "ttft_seconds": wire.Histogram(edges=[0.1, 1.0], counts=[1.0, 2.0, 3.0], sum=9.0),
        },
    )
    assert values(sample) == {
        ("prfaas_instance_up",): 1.0,
        ("prfaas_instance_requests_running",): 2.0,
        ("prfaas_instance_requests_waiting_by_stage", "capacity"): 3.0,
        ("prfaas_instance_ttft_seconds_bucket", "0.1"): 1.0,
        ("prfaas_instance_ttft_seconds_bucket", "1.0"): 3.0,
        ("prfaas_instance_ttft_seconds_bucket", "+Inf"): 6.0,
        ("prfaas_instance_ttft_seconds_sum",): 9.0,
        ("prfaas_instance_ttft_seconds_count",): 6.0,
    }
    first = next(values_of(sample))
    assert first.labels == {
        "fleet": "f", "cluster": "pd", "instance": "d0", "role": "decode", "engine": "vllm",
    }  # fmt: skip
    assert first.at_ms == round(T0_S * 1000)


def test_a_failed_reading_is_down_and_nothing_else() -> None:
    sample = instance("f/pd/d0", T0_S, state="failed", error="no", signals={})
    assert values(sample) == {("prfaas_instance_up",): 0.0}


def test_routers_and_links_are_series_likewise() -> None:
    gate = router(
        "f/pd/gw", T0_S, plan_epoch=1, plan_version=7, signals={"requests_total": {"local|A": 2.0}}
    )
    assert values(gate) == {
        ("prfaas_router_up",): 1.0,
        ("prfaas_router_plan_epoch",): 1.0,
        ("prfaas_router_plan_version",): 7.0,
        ("prfaas_router_requests_total", "local|A"): 2.0,
    }
    wan = link("p->pd", T0_S, tx_gbps=3.0, congestion_control="bbr")
    assert values(wan) == {("prfaas_link_up",): 1.0, ("prfaas_link_tx_gbps",): 3.0}
    assert next(values_of(wan)).labels == {"link": "p->pd", "layer": "lab"}


@dataclass
class History:
    """Takes remote-write, unless `status` says otherwise."""

    status: int = 204
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    async def write(self, request: web.Request) -> web.Response:
        self.headers.append(dict(request.headers))
        if self.status >= 300:
            return web.Response(status=self.status, headers={"Retry-After": "0"}, text="full")
        self.bodies.append(await request.read())
        return web.Response(status=self.status)

    def times(self) -> list[float]:
        """When each value was read, after T0_S."""
        return [
            point.at_ms / 1000 - T0_S
            for body in self.bodies
            for series in remote_write.decode_v1(remote_write.unsnap(body, 10**7)).series
            for point in series.points
        ]


@pytest.fixture
async def there() -> AsyncIterator[History]:
    history = History()
    app = web.Application(client_max_size=10**8)
    app.add_routes([web.post("/api/v1/write", history.write)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    history.url = f"http://127.0.0.1:{port}/api/v1/write"
    yield history
    await runner.cleanup()


def forwarder(history: History, **more: int) -> Forwarder:
    return Forwarder(
        history.url,
        headers={"X-Scope-OrgID": "t"},
        clock=lambda: T0_S,
        rng=random.Random(1),
        **more,
    )


def failed(at_s: float, path: str = "f/pd/d0") -> wire.Batch:
    """The smallest batch: one value."""
    return batch("a", instance(path, T0_S + at_s, state="failed", error="no", signals={}))


async def emptied(sender: Forwarder) -> None:
    while sender.n_queued:
        await asyncio.sleep(0.01)
    await sender.stop()


async def test_one_value_in_ten_seconds_goes_out_in_the_order_of_time(there: History) -> None:
    sender = forwarder(there)
    for at_s in (0.0, 1.0, 9.0, 10.5, 30.0, 12.0, 31.0, 40.0):
        sender.put([failed(at_s)])
    sender.start()
    await emptied(sender)
    assert there.times() == pytest.approx([0.0, 10.5, 30.0, 40.0])
    assert there.headers[0]["X-Scope-OrgID"] == "t"
    assert there.headers[0]["X-Prometheus-Remote-Write-Version"] == "0.1.0"
    assert there.headers[0]["Content-Encoding"] == "snappy"


async def test_a_source_that_is_gone_is_no_value(there: History) -> None:
    sender = forwarder(there)
    sender.put([batch("a", instance("f/pd/d0", T0_S, state="gone", signals={}))])
    assert sender.n_queued == 0


@pytest.mark.parametrize("status", [500, 503, 429])
async def test_while_history_is_away_values_wait(there: History, status: int) -> None:
    there.status = status
    sender = forwarder(there)
    sender.start()
    for i in range(3):
        sender.put([failed(10.0 * i)])
    while len(there.headers) < 3:
        await asyncio.sleep(0.01)
    there.status = 204
    await emptied(sender)
    assert there.times() == [0.0, 10.0, 20.0]


async def test_values_that_will_never_be_taken_do_not_stand_in_the_way(there: History) -> None:
    there.status = 400
    sender = forwarder(there)
    sender.start()
    sender.put([failed(0.0)])
    while not there.headers:
        await asyncio.sleep(0.01)
    there.status = 204
    sender.put([failed(10.0)])
    await emptied(sender)
    assert there.times() == [10.0]


async def test_what_waits_is_bounded_and_the_oldest_go_first(there: History) -> None:
    sender = forwarder(there, max_queued=3)
    for i in range(5):
        sender.put([failed(10.0 * i)])
    assert (sender.n_queued, sender.n_dropped) == (3, 2)
    sender.start()
    await emptied(sender)
    assert there.times() == [20.0, 30.0, 40.0]


async def test_a_request_is_bounded(there: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PER_POST", 4)
    sender = forwarder(there)
    sender.put([failed(0.0, f"f/pd/d{i}") for i in range(10)])
    sender.start()
    await emptied(sender)
    assert (len(there.bodies), len(there.times())) == (3, 10)


async def test_stopping_does_not_wait_for_who_is_away(there: History) -> None:
    there.status = 503
    sender = forwarder(there)
    sender.start()
    sender.put([failed(0.0)])
    while not there.headers:
        await asyncio.sleep(0.01)
    await asyncio.wait_for(sender.stop(), 5.0)
    assert there.times() == []
