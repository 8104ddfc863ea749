"""Real HTTP peers of the agent on loopback: a console, engines and gates that tests can break."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from telemetry import wire
from telemetry.agent import app, ship
from tests.agent.site import Site

Responder = Callable[[wire.Batch], web.Response | None]


class Peer(abc.ABC):
    """One aiohttp server that can be stopped and started again on the port it had."""

    def __init__(self) -> None:
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @abc.abstractmethod
    def routes(self) -> list[web.RouteDef]:
        """What this peer answers."""

    async def start(self) -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.add_routes(self.routes())
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None


@dataclass
class Console(Peer):
    """Takes batches like the real one: a key is stored once, a repeated key is acknowledged."""

    batches: list[wire.Batch] = field(default_factory=list)
    """Stored, in the order they came."""
    offers: list[wire.Batch] = field(default_factory=list)
    """Every POST, refused and repeated ones too."""
    tokens: list[str] = field(default_factory=list)
    encodings: list[str] = field(default_factory=list)
    respond: Responder | None = None
    """Answers instead of storing when it returns a response."""

    def __post_init__(self) -> None:
        super().__init__()

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/api/v1/ingest", self._ingest)]

    async def _ingest(self, request: web.Request) -> web.Response:
        batch = wire.decode(await request.read(), request.content_type)
        self.offers.append(batch)
        self.tokens.append(request.headers.get("Authorization", ""))
        self.encodings.append(request.headers.get("Content-Encoding", ""))
        answer = self.respond(batch) if self.respond else None
        if answer is not None:
            return answer
        if (batch.boot, batch.seq) not in {(b.boot, b.seq) for b in self.batches}:
            self.batches.append(batch)
        return web.json_response({"acked_seq": batch.seq})

    def seqs(self) -> list[int]:
        return [batch.seq for batch in self.batches]


@dataclass
class Metrics(Peer):
    """An engine, a gate or a lab: answers GET with `pages[path]`."""

    pages: dict[str, str] = field(default_factory=dict)
    status: int = 200
    hang: bool = False
    hang_up: bool = False
    n_gets: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/{path:.*}", self._get)]

    async def _get(self, request: web.Request) -> web.Response:
        self.n_gets += 1
        if self.hang:
            await asyncio.sleep(3600)
        if self.hang_up and request.transport is not None:
            request.transport.close()
        if request.path not in self.pages:
            return web.Response(status=404)
        return web.Response(text=self.pages[request.path], status=self.status)


@pytest.fixture
async def console() -> AsyncIterator[Console]:
    peer = Console()
    await peer.start()
    yield peer
    await peer.stop()


@pytest.fixture
async def engine() -> AsyncIterator[Metrics]:
    peer = Metrics(pages={"/metrics": VLLM_TEXT})
    await peer.start()
    yield peer
    await peer.stop()


@pytest.fixture
async def gate() -> AsyncIterator[Metrics]:
    peer = Metrics(pages={"/metrics": GATE_TEXT})
    await peer.start()
    yield peer
    await peer.stop()


@pytest.fixture
def site(tmp_path: Path, console: Any, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(ship, "LONGEST_RETRY_S", 0.05)
    monkeypatch.setattr(app, "SYNC_S", 0.0)
    return Site(tmp_path, console.url)


@pytest.fixture
def eventually() -> Callable[[Callable[[], Any]], Awaitable[None]]:
    async def wait(condition: Callable[[], Any]) -> None:
        """Until the condition holds; the test's own timeout is the limit."""
        while not condition():
            await asyncio.sleep(0.01)

    return wait


@pytest.fixture
def vllm_text() -> str:
    return VLLM_TEXT


@pytest.fixture
def gate_text() -> str:
    return GATE_TEXT


# Two data-parallel ranks; the second has the longer queue and half the cache.
VLLM_TEXT = """\
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7959552631e+09
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="1",model_name="m"} 40.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"} 0.0
vllm:num_requests_waiting_by_reason{engine="1",model_name="m",reason="capacity"} 31.0
vllm:num_requests_waiting_by_reason{engine="1",model_name="m",reason="deferred"} 9.0
# TYPE vllm:num_requests_kv_fetch_by_stage gauge
vllm:num_requests_kv_fetch_by_stage{engine="1",model_name="m",stage="waiting_to_start"} 2.0
vllm:num_requests_kv_fetch_by_stage{engine="1",model_name="m",stage="in_progress"} 5.0
vllm:num_requests_kv_fetch_by_stage{engine="1",model_name="m",stage="completed_waiting"} 1.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.2
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.8
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{engine="0",kv_cache_size_tokens="2000",num_gpu_blocks="20"} 1.0
vllm:cache_config_info{engine="1",kv_cache_size_tokens="1000",num_gpu_blocks="10"} 1.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1000.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 234.0
# TYPE vllm:prompt_tokens_created gauge
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7959553e+09
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 1000.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_cache_hit"} 34.0
vllm:prompt_tokens_by_source_total{engine="1",model_name="m",source="local_compute"} 200.0
vllm:prompt_tokens_by_source_total{engine="1",model_name="m",source="external_kv_transfer"} 0.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 50.0
vllm:generation_tokens_total{engine="1",model_name="m"} 7.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 5.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 2.0
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 400.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 100.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="1.0",model_name="m"} 4.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 5.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="0.1",model_name="m"} 0.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="1.0",model_name="m"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="+Inf",model_name="m"} 1.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 5.0
vllm:time_to_first_token_seconds_count{engine="1",model_name="m"} 1.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 3.5
vllm:time_to_first_token_seconds_sum{engine="1",model_name="m"} 0.5
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.025",model_name="m"} 0.0
vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="m"} 0.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 0.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 0.0
# TYPE vllm:nixl_bytes_transferred histogram
vllm:nixl_bytes_transferred_count{engine="0",model_name="m"} 2.0
vllm:nixl_bytes_transferred_sum{engine="0",model_name="m"} 1.5e+06
vllm:nixl_bytes_transferred_sum{engine="1",model_name="m"} 5e+05
"""

GATE_TEXT = """\
prfaas_gate_info{router="f/pd/gate-0",cluster="pd",fleet="f",version="0.1.0"} 1
prfaas_gate_start_time_seconds 1795955263
prfaas_gate_plan_epoch 1
prfaas_gate_plan_version 42
prfaas_gate_requests_total{side="local",reason="BelowThreshold"} 70
prfaas_gate_requests_total{side="remote",reason="AboveThreshold"} 30
prfaas_gate_refused_total 2
prfaas_gate_errors_total{side="remote"} 1
prfaas_gate_uncached_tokens_bucket{side="local",source="usage",le="128"} 10
prfaas_gate_uncached_tokens_bucket{side="local",source="usage",le="140.8"} 15
prfaas_gate_uncached_tokens_bucket{side="local",source="usage",le="+Inf"} 20
prfaas_gate_uncached_tokens_sum{side="local",source="usage"} 100000
prfaas_gate_uncached_tokens_count{side="local",source="usage"} 20
prfaas_gate_uncached_tokens_bucket{side="remote",source="estimated",le="128"} 0
prfaas_gate_uncached_tokens_bucket{side="remote",source="estimated",le="140.8"} 1
prfaas_gate_uncached_tokens_bucket{side="remote",source="estimated",le="+Inf"} 1
prfaas_gate_uncached_tokens_sum{side="remote",source="estimated"} 130
prfaas_gate_uncached_tokens_count{side="remote",source="estimated"} 1
prfaas_gate_uncached_tokens_bucket{side="judged",source="usage",modality="media",le="128"} 1
prfaas_gate_uncached_tokens_bucket{side="judged",source="usage",modality="media",le="+Inf"} 3
prfaas_gate_uncached_tokens_sum{side="judged",source="usage",modality="media"} 4000
prfaas_gate_uncached_tokens_count{side="judged",source="usage",modality="media"} 3
prfaas_gate_prompt_tokens_total 500000
prfaas_gate_cached_tokens_total{side="local"} 1000
prfaas_gate_cached_tokens_total{side="remote"} 2000
prfaas_gate_ttft_seconds_bucket{side="local",le="1"} 3
prfaas_gate_ttft_seconds_bucket{side="local",le="+Inf"} 4
prfaas_gate_ttft_seconds_sum{side="local"} 4.5
prfaas_gate_ttft_seconds_count{side="local"} 4
prfaas_gate_in_flight{side="local"} 5
prfaas_gate_in_flight{side="remote"} 6
prfaas_gate_upstream_up{side="local",upstream="local"} 1
prfaas_gate_upstream_up{side="remote",upstream="prfaas"} 0
"""
