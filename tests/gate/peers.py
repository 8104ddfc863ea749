"""Real HTTP peers for the gate's tests: an OpenAI-style upstream and a console with plans."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from routing.gate.app import Gate
from routing.gate.settings import GateConfig
from routing.gate.tls import load_trust

TOKEN = "pf_test_secret"


async def until(claim: Callable[[], Any], *, timeout_s: float = 20.0) -> Any:
    """Waits for a condition; its value, or an assertion error if it never comes."""
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        if value := claim():
            return value
        await asyncio.sleep(0.01)
    raise AssertionError(f"never came true: {claim}")


@asynccontextmanager
async def serving(
    app: web.Application, *, port: int = 0, ssl_context: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """A real server on the loopback; yields its base URL."""
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.2)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=ssl_context).start()
        scheme = "http" if ssl_context is None else "https"
        yield f"{scheme}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Upstream:
    """Answers like an engine. `usage` says what it counted; None leaves usage out.

    `stream` is the exact bytes of a streamed answer without the usage event, in the pieces in which
    they are sent, `pause_s` apart. `open` holds answers back while cleared; `stall_after` stops
    inside a stream.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.headers: list[Any] = []
        self.n_cancelled = 0
        self.healthy = True
        self.status = 200
        self.usage: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda _: None
        self.stream: list[bytes] = [
            b'data: {"choices":[{"text":"a","index":0}]}\n\n',
            b'data: {"choices":[{"text":"b","index":0}],"x":1.50}\n\n',
        ]
        self.answer = b'{"id":"x", "choices":[{"text":"ab"}] }'
        self.answer_headers: dict[str, str] = {}
        self.open = asyncio.Event()
        self.open.set()
        self.stall_after: int | None = None
        self.break_after: int | None = None
        self.pause_s = 0.0
        self.url = ""

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/completions", self._generate)
        app.router.add_post("/v1/chat/completions", self._generate)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        return app

    @asynccontextmanager
    async def running(self, *, port: int = 0) -> AsyncIterator[Upstream]:
        async with serving(self.app(), port=port) as url:
            self.url = url
            yield self

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m"}]})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except asyncio.CancelledError:
            self.n_cancelled += 1
            raise

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw)
        self.requests.append(body)
        self.bodies.append(raw)
        self.headers.append(request.headers.copy())
        await self.open.wait()
        if self.status != 200:
            return web.Response(
                status=self.status, body=b'{"error": "engine says no"}', headers={"X-Engine": "e1"}
            )
        usage = self.usage(body)
        if not body.get("stream"):
            whole = self.answer
            if usage is not None:
                whole = whole[:-1] + b', "usage": ' + json.dumps(usage).encode() + b"}"
            return web.Response(
                body=whole, content_type="application/json", headers=self.answer_headers
            )
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", **self.answer_headers}
        )
        await response.prepare(request)
        await self._send_stream(request, response, body, usage)
        return response

    async def _send_stream(
        self,
        request: web.Request,
        response: web.StreamResponse,
        body: dict[str, Any],
        usage: dict[str, Any] | None,
    ) -> None:
        for i, piece in enumerate(self.stream):
            if i == self.stall_after:
                await asyncio.Event().wait()
            if i == self.break_after and request.transport is not None:
                request.transport.abort()
                return
            await response.write(piece)
            await asyncio.sleep(self.pause_s)
        if usage is not None and (body.get("stream_options") or {}).get("include_usage"):
            await response.write(
                b"data: "
                + json.dumps({"id": "u", "choices": [], "usage": usage}).encode()
                + b"\n\n"
            )
        await response.write(b"data: [DONE]\n\n")


def exact_usage(cached: int | None = None) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """An engine that counts token ids one by one and text by words."""

    def usage(body: dict[str, Any]) -> dict[str, Any]:
        prompt = body.get("prompt") or " ".join(str(m["content"]) for m in body["messages"])
        count = len(prompt) if isinstance(prompt, list) else len(prompt.split())
        out: dict[str, Any] = {"prompt_tokens": count, "completion_tokens": 2}
        if cached is not None:
            out["prompt_tokens_details"] = {"cached_tokens": min(cached, count)}
        return out

    return usage


def plan(
    epoch: int = 1, version: int = 1, *, cluster: str = "pd", fleet: str = "F", **entry: Any
) -> dict[str, Any]:
    """A plan document for one PD cluster; default: threshold 1000, everything remote to prfaas."""
    values = {"mode": "threshold", "threshold_tokens": 1000, "remote": {"prfaas": 1.0}, **entry}
    return {
        "fleet": fleet,
        "epoch": epoch,
        "version": version,
        "issued_at_s": 1.7e9,
        "reason": "Optimal",
        "clusters": {
            cluster: {
                "cache_mode": "scarce",
                "n_prefill": 3,
                "n_decode": 5,
                "band": None,
                **values,
            }
        },
    }


class Console:
    """Hands out the plan over a socket and over GET, and remembers every ack.

    `told` is whatever else gates say on the socket. `release` is the override it ends for those
    that poll.
    """

    def __init__(self, document: dict[str, Any] | None = None) -> None:
        self.document = document
        self.acks: list[dict[str, Any]] = []
        self.told: list[dict[str, Any]] = []
        self.gets: list[tuple[Any, int]] = []
        self.sockets: set[web.WebSocketResponse] = set()
        self.socket_allowed = True
        self.release: str | None = None
        self.n_handshakes = 0
        self.url = ""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/ws/plan", self._socket)
        app.router.add_get("/api/v1/fleets/{fleet}/plan", self._get)
        return app

    @asynccontextmanager
    async def running(self, *, port: int = 0) -> AsyncIterator[Console]:
        async with serving(self.app(), port=port) as url:
            self.url = url
            yield self
            for socket in list(self.sockets):
                await socket.close()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def last_ack(self) -> dict[str, Any]:
        return self.acks[-1] if self.acks else {}

    async def push(self, document: dict[str, Any]) -> None:
        """What the console does on a new decision."""
        self.document = document
        for socket in list(self.sockets):
            await socket.send_str(json.dumps(document))

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        self.n_handshakes += 1
        if not self.socket_allowed:
            return web.Response(status=503)
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.Response(status=403)
        assert request.query["fleet"] == "F"
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.sockets.add(socket)
        try:
            if self.document is not None:
                await socket.send_str(json.dumps(self.document))
            async for message in socket:
                said = json.loads(message.data)
                (self.told if "type" in said else self.acks).append(said)
        finally:
            self.sockets.discard(socket)
        return socket

    async def _get(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.Response(status=403)
        status, body = 404, b""
        if self.document is not None:
            etag = f'"{self.document["epoch"]}.{self.document["version"]}"'
            same = request.headers.get("If-None-Match") == etag
            status, body = (304, b"") if same else (200, json.dumps(self.document).encode())
        self.gets.append((request.headers.copy(), status))
        headers = {} if self.release is None else {"X-Release-Override": self.release}
        return web.Response(status=status, body=body, headers=headers)


@asynccontextmanager
async def all_running(upstreams: list[Upstream]) -> AsyncIterator[list[Upstream]]:
    """Each on a port of its own."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(upstream.running()) for upstream in upstreams]


class RunningGate:
    """The gate under test, in this process, behind a real socket."""

    def __init__(self, gate: Gate, url: str, client: aiohttp.ClientSession) -> None:
        self.gate, self.url, self.client = gate, url, client

    async def run_plan(self, document: dict[str, Any]) -> None:
        """Gives it a plan as if a console had."""
        await self.gate.board.receive(json.dumps(document).encode())
        assert self.gate.board.state.refusal is None

    async def complete(
        self, prompt: Any, *, chat: bool = False, **fields: Any
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """One request, read to its end."""
        body = {"model": "m", **fields}
        body |= {"messages": prompt} if chat else {"prompt": prompt}
        path = "/v1/chat/completions" if chat else "/v1/completions"
        async with self.client.post(self.url + path, json=body) as response:
            return response, await response.read()

    async def metrics(self) -> dict[str, float]:
        """The metrics page as series -> value."""
        async with self.client.get(self.url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    async def health(self) -> dict[str, Any]:
        async with self.client.get(self.url + "/healthz") as response:
            document: dict[str, Any] = await response.json()
            return document


def gate_config(
    local: str | list[str],
    remotes: dict[str, str | list[str]] | None = None,
    *,
    capacity: Any = "infinite",
    linear_state: str = "none",
    **settings: Any,
) -> GateConfig:
    """A configuration with quick intervals, so that tests wait for events and not for clocks.

    Each side is one url, or those of several stacks.
    """
    side = {"cache_capacity_tokens": capacity, "linear_state": linear_state}

    def stacks(urls: str | list[str]) -> list[dict[str, Any]]:
        return [{"url": url, **side} for url in ([urls] if isinstance(urls, str) else urls)]

    quick = {
        "router": "F/pd/g1",
        "port": 0,
        "health_interval_s": 0.05,
        "ack_interval_s": 0.05,
        "poll_interval_s": 0.05,
    }
    upstreams = {
        "local": stacks(local),
        "remote": {name: stacks(urls) for name, urls in (remotes or {}).items()},
    }
    return msgspec.convert({**quick, "upstreams": upstreams, **settings}, GateConfig)


@asynccontextmanager
async def gate_running(
    config: GateConfig,
    *,
    tokenizer: Any = None,
    now_s: Callable[[], float] = time.monotonic,
    epoch_s: Callable[[], float] = time.time,
    client_ssl: Any = True,
) -> AsyncIterator[RunningGate]:
    """The real application on a free port, with its background work."""
    trust = load_trust(config, Path("gate.toml"))
    gate = Gate(
        config,
        trust=trust,
        tokenizer=tokenizer,
        started_at_s=1.7e9,
        now_s=now_s,
        epoch_s=epoch_s,
        rng=random.Random(1),
    )
    runner = gate.runner()
    await runner.setup()
    connector = aiohttp.TCPConnector(limit=0, ssl=client_ssl)
    async with aiohttp.ClientSession(connector=connector) as client:
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=trust.listener).start()
            await gate.start()
            scheme = "http" if trust.listener is None else "https"
            yield RunningGate(gate, f"{scheme}://127.0.0.1:{runner.addresses[0][1]}", client)
        finally:
            await runner.cleanup()
            await gate.close()


@asynccontextmanager
async def under_way(gate: RunningGate, prompt: Any = (1,), **fields: Any) -> AsyncIterator[None]:
    """A request that is sent before the block and must have been answered well after it."""
    task = asyncio.create_task(gate.complete(list(prompt), **fields))
    yield
    response, _ = await task
    assert response.status == 200


def token_file(folder: Path) -> str:
    """A token file as an operator would leave it."""
    path = folder / "token"
    path.write_text(TOKEN + "\n")
    return str(path)
