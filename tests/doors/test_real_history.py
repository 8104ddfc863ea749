"""History goes out to real receivers and is read back from them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from telemetry import wire
from telemetry.doors import history
from telemetry.doors.forward import Forwarder
from telemetry.doors.promql import Client, QueryFailed
from tests.doors import programs
from tests.telemetry.batches import batch, instance, link, router

pytestmark = pytest.mark.timeout(180)

NOW_S = float(int(time.time()) // 60 * 60 - 60)
"""A minute's beginning, so that bins of the test are the bins of the answer."""
N = 12


@pytest.fixture(params=["prometheus", "victoria-metrics"])
def receiver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "prometheus":
        if programs.PROMETHEUS is None:
            pytest.skip("prometheus is not installed")
        with programs.prometheus(tmp_path / "p", "", "--web.enable-remote-write-receiver") as url:
            yield url
        return
    if programs.VICTORIA is None:
        pytest.skip("victoria-metrics is not installed")
    with programs.victoria(tmp_path / "v") as url:
        yield url


def batches() -> list[wire.Batch]:
    """Two minutes of one engine, one gate and one link, a reading each 5 s."""
    out = []
    for i in range(2 * N):
        at_s = NOW_S - 10 * N + 5 * i
        engine = instance(
            "f/pd/d.0",
            at_s,
            signals={
                "requests_running": float(i),
                "prompt_tokens_total": 100.0 * i,
                "ttft_seconds": wire.Histogram(edges=[0.1, 1.0], counts=[i, i, 0.0], sum=0.5 * i),
            },
        )
        gate = router(
            "f/pd/gw",
            at_s,
            plan_epoch=1,
            plan_version=7,
            signals={"requests_total": {"local|A": 2.0 * i, "local|B": i, "remote|A": 5.0}},
        )
        wan = link("p->pd", at_s, tx_gbps=1.0 + i, rtt_s=0.01)
        out.append(batch("a", engine, gate, wan, seq=i + 1))
    return out


async def forward(url: str) -> Forwarder:
    forwarder = Forwarder(url + "/api/v1/write", headers={}, clock=time.time, rng=random.Random(1))
    for each in batches():
        forwarder.put([each])
    forwarder.start()
    while forwarder.n_queued:
        await asyncio.sleep(0.02)
    await forwarder.stop()
    return forwarder


def test_what_is_forwarded_can_be_read_back(receiver: str) -> None:
    forwarder = asyncio.run(forward(receiver))
    assert forwarder.n_dropped == 0
    client = Client(receiver)

    def read(kind: str, field: str, path: str, bin_s: float = 10.0) -> list[float | None]:
        found = history.series(
            client,
            kind,
            field,
            paths=[path, "f/pd/none" if kind != "link" else "x->y"],
            since_s=NOW_S - 10 * N,
            until_s=NOW_S,
            bin_s=bin_s,
        )
        assert found["bin_s"] == bin_s
        assert found["t"][:2] == [NOW_S - 10 * N, NOW_S - 10 * N + bin_s]
        others = [row for name, row in found["series"].items() if name != path]
        assert all(value is None for row in others for value in row)
        row: list[float | None] = found["series"][path]
        return row

    def settled() -> bool:
        return None not in read("link", "rtt_s", "p->pd")

    programs.until(settled)
    # One reading in ten seconds: the even ones.
    assert read("instance", "requests_running", "f/pd/d.0") == [2.0 * i for i in range(N)]
    assert read("instance", "requests_running", "f/pd/d.0", 20.0) == [
        1.0 + 4.0 * i for i in range(N // 2)
    ]
    assert read("instance", "prompt_tokens_total", "f/pd/d.0", 20.0) == [
        200.0 + 400.0 * i for i in range(N // 2)
    ]
    [plan] = client.query("prfaas_router_plan_version", at_s=NOW_S - 5)
    assert plan.points[0][1] == 7.0
    [local] = client.query('prfaas_router_requests_total{key="local|A"}', at_s=NOW_S - 5)
    assert local.points[0][1] == 4.0 * (N - 1)
    assert read("link", "tx_gbps", "p->pd") == [1.0 + 2 * i for i in range(N)]
    [count] = client.query(
        'prfaas_instance_ttft_seconds_bucket{instance="d.0",le="1.0"}', at_s=NOW_S - 5
    )
    assert count.points[0][1] == 44.0
    assert (count.labels["role"], count.labels["engine"]) == ("decode", "vllm")


def test_an_error_of_the_receiver_is_told(receiver: str) -> None:
    with pytest.raises(QueryFailed, match="HTTP 4"):
        Client(receiver).query("prfaas_instance_up{", at_s=NOW_S)
