"""What passes through unchanged, what happens when an upstream or a client breaks off."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import AbstractAsyncContextManager

import aiohttp
import pytest
from aiohttp import web
from multidict import CIMultiDict

from routing.gate.upstream import end_to_end
from tests.gate.peers import (
    RunningGate,
    Upstream,
    exact_usage,
    gate_config,
    gate_running,
    plan,
    serving,
    under_way,
    until,
)

STREAM = [
    b": hello\n\n",
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}],"n":1.50}\n\n',
    'data: {"choices":[{"delta":{"content":"é \\"usage\\" 漢"}}]}\r\n\r\n'.encode(),
    b'event: x\nid: 3\ndata: {"choices":[\ndata: {"delta":{}}]}\n\nda',
    b'ta: {"choices":[{"finish_reason":"stop"}]}\n\n',
]
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("reports", [False, True])
async def test_a_stream_is_byte_exact_but_for_the_usage_nobody_asked_for(
    gate: RunningGate, local: Upstream, chat: bool, asks: bool, reports: bool
) -> None:
    local.stream = STREAM
    local.usage = exact_usage(cached=1) if reports else (lambda _: None)
    fields = {"stream": True} | ({"stream_options": {"include_usage": True}} if asks else {})
    prompt = [{"role": "user", "content": "two words"}] if chat else [1, 2, 3]
    response, body = await gate.complete(prompt, chat=chat, **fields)
    assert response.content_type == "text/event-stream"
    extra = body.removeprefix(b"".join(STREAM)).removesuffix(DONE)
    assert b"".join(STREAM) + extra + DONE == body
    assert (b'"usage"' in extra) == (asks and reports)
    if not (asks and reports):
        assert extra == b""
    assert local.requests[0]["stream_options"] == {"include_usage": True}
    if reports:
        metrics = await gate.metrics()
        assert metrics['prfaas_gate_engine_cached_tokens_total{side="local"}'] == 1


async def test_events_reach_the_client_as_they_are_made(gate: RunningGate, local: Upstream) -> None:
    local.stall_after = 2
    async with gate.client.post(
        gate.url + "/v1/completions", json={"prompt": "a", "stream": True}
    ) as response:
        first = await response.content.readexactly(len(b"".join(local.stream[:2])))
        assert first == b"".join(local.stream[:2])
        assert (await gate.metrics())['prfaas_gate_ttft_seconds_count{side="local"}'] == 1


async def test_the_request_reaches_the_engine_as_it_was_written(
    gate: RunningGate, local: Upstream
) -> None:
    body = b'{ "prompt": "a\\u00e9",  "temperature": 0.10, "seed": 12345678901234567890 }'
    headers = {
        "Content-Type": "application/json",
        "Authorization": "Bearer client-key",
        "X-Request-ID": "r-1",
        "Connection": "keep-alive, X-Hop",
        "X-Hop": "only to the gate",
    }
    url = gate.url + "/v1/completions?x=1%2F2"
    async with gate.client.post(url, data=body, headers=headers) as response:
        assert await response.read() == local.answer
        assert response.headers["Content-Length"] == str(len(local.answer))
    assert local.bodies == [body]
    sent = local.headers[0]
    assert sent["Authorization"] == "Bearer client-key"
    assert sent["X-Request-ID"] == "r-1"
    assert "X-Hop" not in sent
    assert "Accept-Encoding" not in sent, "answers must stay readable"


def test_headers_of_one_hop_may_be_named_in_several_lines() -> None:
    headers = CIMultiDict(
        [("Connection", "close"), ("connection", "X-Hop, X-More"), ("X-Hop", "1"), ("X-More", "2")]
    )
    headers["X-Other"] = "3"
    assert dict(end_to_end(headers, drop=frozenset())) == {"X-Other": "3"}


async def test_a_compressed_request_is_read_and_sent_on_plain(
    gate: RunningGate, local: Upstream
) -> None:
    async with gate.client.post(
        gate.url + "/v1/completions", json={"prompt": [1, 2]}, compress="gzip"
    ) as response:
        assert response.headers["X-PrfaaS-Prompt-Tokens"] == "2"
    assert local.requests == [{"prompt": [1, 2]}]


async def test_a_large_prompt_passes(gate: RunningGate, local: Upstream) -> None:
    body = json.dumps({"prompt": "x" * 3_000_000}).encode()
    async with gate.client.post(gate.url + "/v1/completions", data=io.BytesIO(body)) as response:
        assert response.status == 200
        assert response.headers["X-PrfaaS-Prompt-Tokens"] == "750000"
    assert local.bodies == [body]


async def test_models_are_those_of_local(gate: RunningGate) -> None:
    async with gate.client.get(gate.url + "/v1/models") as response:
        assert await response.json() == {"object": "list", "data": [{"id": "m"}]}


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
async def test_errors_of_an_engine_pass_through_and_are_counted(
    local: Upstream, status: int
) -> None:
    local.status = status
    async with gate_running(gate_config(local.url, health_interval_s=600.0)) as gate:
        for stream in (False, True):
            response, body = await gate.complete([1], stream=stream)
            assert (response.status, body) == (status, b'{"error": "engine says no"}')
            assert response.headers["X-Engine"] == "e1"
            assert response.headers["X-PrfaaS-Side"] == "local"
        metrics = await gate.metrics()
        assert metrics['prfaas_gate_errors_total{side="local"}'] == (2 if status >= 500 else 0)
        result = "server_error" if status >= 500 else "client_error"
        assert metrics[f'prfaas_gate_results_total{{side="local",result="{result}"}}'] == 2
        assert gate.gate.local.upstreams[0].health.state == ("down" if status >= 500 else "up")


async def test_an_engine_that_refused_a_prompt_did_not_cache_it(
    gate: RunningGate, local: Upstream
) -> None:
    local.status = 400
    await gate.complete(list(range(1024)))
    local.status = 200
    response, _ = await gate.complete(list(range(1024)))
    assert response.headers["X-PrfaaS-Uncached-Tokens"] == "1024"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe"])
async def test_a_body_that_is_no_json_object_is_refused_unsent(
    gate: RunningGate, local: Upstream, body: bytes
) -> None:
    async with gate.client.post(gate.url + "/v1/completions", data=body) as response:
        assert response.status == 400
        error = (await response.json())["error"]
        assert error["code"] == "invalid_json"
        assert "JSON object" in error["message"]
    assert local.requests == []
    assert (await gate.metrics())["prfaas_gate_invalid_total"] == 1


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_body_that_is_not_what_its_encoding_says_is_refused_unsent(
    gate: RunningGate, local: Upstream, encoding: str
) -> None:
    async with gate.client.post(
        gate.url + "/v1/completions", data=b"plain", headers={"Content-Encoding": encoding}
    ) as response:
        assert response.status == 400
        assert (await response.json())["error"]["code"] == "invalid_body"
    assert local.requests == []
    assert (await gate.metrics())["prfaas_gate_invalid_total"] == 1


async def test_a_body_above_the_limit_is_refused(local: Upstream) -> None:
    async with gate_running(gate_config(local.url, max_body_bytes=1000)) as gate:
        response, body = await gate.complete("x" * 2000)
        assert response.status == 413
        assert json.loads(body)["error"]["code"] == "too_large"
        assert local.requests == []


async def test_a_client_that_leaves_takes_its_request_out_of_the_engine(
    gate: RunningGate, local: Upstream
) -> None:
    local.stall_after = 1
    response = await gate.client.post(
        gate.url + "/v1/completions", json={"prompt": "a", "stream": True}
    )
    await response.content.readany()
    response.close()
    await until(lambda: local.n_cancelled == 1)
    await until(lambda: gate.gate.local.upstreams[0].in_flight == 0)
    metrics = await gate.metrics()
    assert metrics['prfaas_gate_results_total{side="local",result="cancelled"}'] == 1
    assert metrics['prfaas_gate_errors_total{side="local"}'] == 0


async def test_so_does_one_that_leaves_before_the_first_byte(
    gate: RunningGate, local: Upstream
) -> None:
    local.open.clear()
    task = asyncio.create_task(gate.complete(list(range(1024))))
    await until(lambda: local.requests)
    task.cancel()
    await until(lambda: local.n_cancelled == 1)
    await until(lambda: gate.gate.local.upstreams[0].in_flight == 0)
    assert len(gate.gate.local.upstreams[0].index) == 0, "nobody knows whether it was prefilled"


async def test_a_slow_client_slows_the_upstream_and_nothing_piles_up(
    gate: RunningGate, local: Upstream
) -> None:
    piece = b"data: " + b"x" * 65536 + b"\n\n"
    n_sent = 0

    class Counting(list[bytes]):
        def __iter__(self) -> object:  # type: ignore[override]
            nonlocal n_sent
            for _ in range(2000):
                n_sent += 1
                yield piece

    local.stream = Counting()
    response = await gate.client.post(
        gate.url + "/v1/completions", json={"prompt": "a", "stream": True}
    )
    await until(lambda: n_sent > 10)
    settled = -1
    while settled != n_sent:
        settled = n_sent
        await asyncio.sleep(0.2)
    assert settled < 1000, "the upstream waits for the client"
    response.close()
    await until(lambda: local.n_cancelled == 1)


async def test_half_an_answer_never_looks_whole(gate: RunningGate, local: Upstream) -> None:
    local.break_after = 1
    with pytest.raises(aiohttp.ClientPayloadError):
        await gate.complete("a", stream=True)
    await until(lambda: gate.gate.local.upstreams[0].in_flight == 0)
    metrics = await gate.metrics()
    assert metrics['prfaas_gate_errors_total{side="local"}'] == 1
    assert metrics['prfaas_gate_results_total{side="local",result="failed"}'] == 1


async def test_many_streams_broken_at_once_are_one_line(
    gate: RunningGate, local: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    local.break_after = 1
    for _ in range(5):
        with pytest.raises(aiohttp.ClientPayloadError):
            await gate.complete("a", stream=True)
    assert sum("broke off" in line for line in caplog.messages) == 1
    gate.gate.local.upstreams[0].broke_off("again", now_s=gate.gate.now_s() + 60.0)
    assert caplog.messages[-1] == "local broke off an answer (5 since it was last said): again"


async def test_after_the_first_byte_nothing_is_retried(
    gate: RunningGate, local: Upstream, remote: Upstream
) -> None:
    await gate.run_plan(plan(threshold_tokens=0))
    remote.break_after = 1
    with pytest.raises(aiohttp.ClientPayloadError):
        await gate.complete("a", stream=True)
    assert local.requests == []


async def test_a_remote_that_is_gone_costs_no_request(local: Upstream) -> None:
    async with Upstream().running() as remote:
        url = remote.url
    async with gate_running(
        gate_config(local.url, {"prfaas": url}, health_interval_s=600.0)
    ) as gate:
        await gate.run_plan(plan(threshold_tokens=0))
        for want_fallbacks in (1, 1):
            response, _ = await gate.complete(list(range(600)))
            assert response.status == 200
            assert response.headers["X-PrfaaS-Side"] == "local"
            assert response.headers["X-PrfaaS-Reason"] == "RemoteDown"
            assert (await gate.metrics())["prfaas_gate_fallbacks_total"] == want_fallbacks
        metrics = await gate.metrics()
        assert metrics['prfaas_gate_requests_total{side="remote",reason="Long"}'] == 1
        assert metrics['prfaas_gate_requests_total{side="local",reason="RemoteDown"}'] == 1
        assert metrics['prfaas_gate_upstream_up{side="remote",upstream="prfaas"}'] == 0
        assert metrics['prfaas_gate_upstream_up{side="local",upstream="local"}'] == 1
        health = await gate.health()
        assert health["upstreams"]["prfaas"]["state"] == "down"
        assert gate.gate.ack().error == "prfaas is down: using local"
        assert gate.gate.ack().state == "running"


async def test_a_remote_that_drops_every_connection_is_served_by_local(local: Upstream) -> None:
    async with dropping() as url, gate_running(gate_config(local.url, {"prfaas": url})) as gate:
        await gate.run_plan(plan(threshold_tokens=0))
        response, _ = await gate.complete([1, 2])
        assert (response.status, response.headers["X-PrfaaS-Reason"]) == (200, "RemoteDown")


async def test_a_kept_alive_connection_that_just_closed_costs_no_request() -> None:
    """Servers drop idle connections; being hit by that says nothing about the upstream."""
    n_connections = 0

    async def one_answer_a_connection(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        nonlocal n_connections
        n_connections += 1
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await reader.read(1)  # the next request arrives on it, and it closes
        writer.close()

    server = await asyncio.start_server(one_answer_a_connection, "127.0.0.1", 0)
    async with server:
        url = "http://127.0.0.1:{1}".format(*server.sockets[0].getsockname())
        async with gate_running(gate_config(url, health_interval_s=600.0)) as gate:
            for n in (1, 2, 3):
                response, body = await gate.complete([1])
                assert (response.status, body) == (200, b"{}")
                assert n_connections == n
            assert (await gate.metrics())['prfaas_gate_errors_total{side="local"}'] == 0


async def test_probes_find_a_dead_remote_without_traffic_and_see_it_return(
    local: Upstream,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with Upstream().running() as first:
        config = gate_config(local.url, {"prfaas": first.url})
        async with gate_running(config) as gate:
            await gate.run_plan(plan(threshold_tokens=0))
            port = first.port
            health = gate.gate.remotes["prfaas"].upstreams[0].health
            await gate.complete(list(range(1024)))
            first.healthy = False
            await until(lambda: health.state == "down")
            response, _ = await gate.complete([1])
            assert response.headers["X-PrfaaS-Reason"] == "RemoteDown"
            first.healthy = True
            await until(lambda: health.state == "up")
            assert len(gate.gate.remotes["prfaas"].upstreams[0].index) == 2, "it only was slow"
            assert caplog.messages[-1] == "prfaas is up again"
    async with gate_running(config) as gate:
        await gate.run_plan(plan(threshold_tokens=0))
        health = gate.gate.remotes["prfaas"].upstreams[0].health
        await until(lambda: health.state == "down")
        async with Upstream().running(port=port) as second:
            await until(lambda: health.state == "up")
            response, _ = await gate.complete([1])
            assert response.headers["X-PrfaaS-Side"] == "remote"
            assert len(second.requests) == 1


async def test_a_process_that_was_gone_took_its_cache_along(local: Upstream) -> None:
    async with Upstream().running() as first:
        port = first.port
        config = gate_config(local.url, {"prfaas": first.url})
        running = gate_running(config)
        gate = await running.__aenter__()
        await gate.run_plan(plan(threshold_tokens=0))
        await gate.complete(list(range(1024)))
        upstream = gate.gate.remotes["prfaas"].upstreams[0]
        assert len(upstream.index) == 2
    try:
        await until(lambda: upstream.health.state == "down")
        async with Upstream().running(port=port):
            await until(lambda: upstream.health.state == "up")
            assert len(upstream.index) == 0
    finally:
        await running.__aexit__(None, None, None)


async def test_local_down_short_requests_go_where_they_are_served(remote: Upstream) -> None:
    async with Upstream().running() as gone:
        url = gone.url
    async with gate_running(gate_config(url, {"prfaas": remote.url})) as gate:
        await gate.run_plan(plan(threshold_tokens=1000))
        await until(lambda: gate.gate.local.upstreams[0].health.state == "down")
        response, _ = await gate.complete([1])
        assert response.headers["X-PrfaaS-Reason"] == "LocalDown"
        assert len(remote.requests) == 1


async def test_nobody_there_is_a_clear_502(local: Upstream) -> None:
    async with Upstream().running() as gone:
        url = gone.url
    async with gate_running(gate_config(url)) as gate:
        response, body = await gate.complete([1])
        assert response.status == 502
        assert json.loads(body)["error"]["code"] == "upstream_unavailable"
        assert response.headers["X-PrfaaS-Side"] == "local"
        async with gate.client.get(gate.url + "/v1/models") as models:
            assert models.status == 502


async def test_a_silent_upstream_is_a_504_and_not_asked_twice(local: Upstream) -> None:
    local.open.clear()
    async with gate_running(gate_config(local.url, read_timeout_s=0.2)) as gate:
        response, body = await gate.complete([1])
        assert response.status == 504
        assert json.loads(body)["error"]["code"] == "upstream_timeout"
        assert len(local.requests) == 1


async def test_a_silent_remote_keeps_its_request(local: Upstream, remote: Upstream) -> None:
    """It took the request and may be computing it: doing the work twice would not be faster."""
    remote.open.clear()
    config = gate_config(local.url, {"prfaas": remote.url}, read_timeout_s=0.2)
    async with gate_running(config) as gate:
        await gate.run_plan(plan(threshold_tokens=0))
        response, _ = await gate.complete([1])
        assert response.status == 504
        assert response.headers["X-PrfaaS-Side"] == "remote"
        assert local.requests == []


async def test_a_gate_that_stops_finishes_its_streams_and_takes_no_new_ones(
    gate: RunningGate, local: Upstream
) -> None:
    local.open.clear()
    async with under_way(gate, stream=True):
        await until(lambda: local.requests)
        gate.gate.proxy.draining = True
        response, _ = await gate.complete([1])
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
        async with gate.client.get(gate.url + "/healthz") as health:
            assert health.status == 503
        assert (await gate.metrics())["prfaas_gate_refused_total"] == 1
        assert not gate.gate.proxy.idle.is_set()
        local.open.set()
    await until(gate.gate.proxy.idle.is_set)


def dropping() -> AbstractAsyncContextManager[str]:
    """A server that takes every request and closes the connection on it."""

    async def alive(request: web.Request) -> web.Response:
        return web.Response()

    async def drop(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    app = web.Application()
    app.router.add_route("POST", "/{path:.*}", drop)
    app.router.add_get("/health", alive)
    return serving(app)
