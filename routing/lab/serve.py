"""The ports of a lab process: one per engine, one per upstream, one for people and agents (admin).

Admin: `GET /links`, `PUT /links/{A->B} {"gbps": x}`, `GET /engines`, `GET /truth?records=N`, and
under `/clusters/{PD}` the control surface of that cluster's stack (`routing.lab.control`).
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from aiohttp import web

from routing.lab.config import StackConfig
from routing.lab.control import add_worker_routes
from routing.lab.engine import Engine, RoleRefused
from routing.lab.errors import LabError, convert
from routing.lab.fleet import LabFleet
from routing.lab.halves import HalfEngine, Handoffs, add_sglang_routes
from routing.lab.kv_events import Publishers
from routing.lab.link import Link
from routing.lab.openai import MAX_BODY_BYTES, add_openai_routes, error
from routing.lab.pd import Upstream


class _Capacity(msgspec.Struct, forbid_unknown_fields=True):
    gbps: Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]


class _NewRole(msgspec.Struct):
    new_role: str


async def start(fleet: LabFleet, config: StackConfig, closing: AsyncExitStack) -> dict[str, Any]:
    """Open every port; they close with `closing`. The ready document, `{"ready": true, ...}`."""
    ports = config.ports
    urls: dict[str, str] = {}
    handoffs = Handoffs()
    for engine in fleet.engines.values():
        app = engine_app(engine, config, handoffs)
        urls[engine.id] = await open_port(
            app, config.host, ports.engines.get(engine.id, 0), closing
        )
    kv_events = open_publishers(fleet, config, closing) if config.kv_events else {}
    upstreams: dict[str, dict[str, Any]] = {}
    for cluster, stack in fleet.stacks.items():
        local = upstream_app(stack.upstream(None), config)
        remote = {name: upstream_app(stack.upstream(name), config) for name in stack.remotes}
        wanted = ports.remote.get(cluster, {})
        upstreams[cluster] = {
            "local": await open_port(local, config.host, ports.local.get(cluster, 0), closing),
            "remote": {
                name: await open_port(app, config.host, wanted.get(name, 0), closing)
                for name, app in remote.items()
            },
        }
    engines = EngineList(fleet, urls, kv_events)
    admin = await open_port(admin_app(fleet, engines), config.host, ports.admin, closing)
    for cluster, document in upstreams.items():
        document["control"] = f"{admin}/clusters/{quote(cluster, safe='')}"
    document = {"ready": True, "admin": admin, "upstreams": upstreams}
    document["engines"] = engines.document()
    if len(upstreams) == 1:
        document |= next(iter(upstreams.values()))
    return document


def open_publishers(
    fleet: LabFleet, config: StackConfig, closing: AsyncExitStack
) -> dict[str, str]:
    """Where each engine publishes KV events, by its id. Raises LabError."""
    publishers = Publishers(config.host, closing)
    endpoints: dict[str, str] = {}
    for engine in fleet.engines.values():
        publisher, endpoints[engine.id] = publishers.open(
            config.ports.kv_events.get(engine.id, 0), block_tokens=config.block_tokens
        )
        engine.cache.listeners.append(publisher)
    return endpoints


async def open_port(app: web.Application, host: str, port: int, closing: AsyncExitStack) -> str:
    """Serve `app`; its URL. A client that goes away cancels its handler. Raises LabError."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    closing.push_async_callback(runner.cleanup)
    try:
        await web.TCPSite(runner, host, port, backlog=1024).start()
    except OSError as exc:
        raise LabError(f"cannot listen: {exc.strerror}", field=f"port {host}", value=port) from None
    return f"http://{host}:{runner.addresses[0][1]}"


def engine_app(engine: Engine, config: StackConfig, handoffs: Handoffs) -> web.Application:
    """An engine by itself: OpenAI API, `/metrics`, `GET /v1/loads`, `POST /pd_role_switch`."""
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    if config.pd_api == "sglang":
        add_sglang_routes(app, engine, model_name=config.model_name)
    add_openai_routes(
        app,
        HalfEngine(engine, handoffs, config.scenario.kv, config.pd_api),
        model_name=config.model_name,
        block_tokens=config.block_tokens,
        trouble=lambda: None,
        as_vllm=config.pd_api != "sglang",
    )

    async def metrics(request: web.Request) -> web.Response:
        text = engine.metrics_text()
        return web.Response(text=text, content_type="text/plain", charset="utf-8")

    async def loads(request: web.Request) -> web.Response:
        load = engine.load()
        return web.json_response(
            {
                # KV that still leaves keeps an engine from being idle as much as computing does.
                "num_running_reqs": load.running + load.shipping,
                "num_waiting_reqs": load.waiting_prefill + load.waiting_kv + load.waiting_slot,
                "disagg_mode": engine.role,
                "epoch_s": engine.started_s,
            }
        )

    async def switch(request: web.Request) -> web.Response:
        try:
            wanted = msgspec.json.decode(await request.read(), type=_NewRole)
        except msgspec.MsgspecError as exc:
            return error(400, str(exc), "BadRequestError", "new_role")
        old_role, status, message = engine.role, 200, "switched"
        try:
            engine.switch_role(wanted.new_role)
        except RoleRefused as exc:
            status, message = (409 if exc.busy else 400), str(exc)
        return web.json_response(
            {
                "success": status == 200,
                "message": message,
                "old_role": old_role,
                "new_role": engine.role,
            },
            status=status,
        )

    app.router.add_get("/metrics", metrics)
    app.router.add_get("/v1/loads", loads)
    app.router.add_post("/pd_role_switch", switch)
    return app


def upstream_app(upstream: Upstream, config: StackConfig) -> web.Application:
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    add_openai_routes(
        app,
        upstream,
        model_name=config.model_name,
        block_tokens=config.block_tokens,
        trouble=upstream.trouble,
    )
    return app


@dataclass(frozen=True)
class EngineList:
    """The engines and where each is found, by id: its own API, and its KV events if it has any."""

    fleet: LabFleet
    urls: dict[str, str]
    kv_events: dict[str, str]

    def document(self) -> list[dict[str, str]]:
        listed = []
        for engine in self.fleet.engines.values():
            entry = {"id": engine.id, "role": engine.role, "url": self.urls[engine.id]}
            if engine.id in self.kv_events:
                entry["kv_events"] = self.kv_events[engine.id]
            listed.append(entry)
        return listed


def link_document(link: Link) -> dict[str, Any]:
    """A reading; nothing flows back on an emulated link but acknowledgements, so rx stays 0."""
    return {"at_s": time.time(), "rx_bytes_total": 0, **asdict(link.read())}


def admin_app(fleet: LabFleet, listed: EngineList) -> web.Application:
    async def links(request: web.Request) -> web.Response:
        return web.json_response({id: link_document(link) for id, link in fleet.links.items()})

    async def set_link(request: web.Request) -> web.Response:
        id = request.match_info["id"]
        if id not in fleet.links:
            return error(404, f"no link {id!r}; there are {', '.join(fleet.links)}", "NotFound")
        try:
            wanted = convert(_json(await request.read()), _Capacity, source="")
        except LabError as exc:
            return error(422, str(exc), "BadRequestError", exc.field)
        fleet.links[id].set_capacity(wanted.gbps)
        return web.json_response(link_document(fleet.links[id]))

    async def engines(request: web.Request) -> web.Response:
        return web.json_response(listed.document())

    async def truth(request: web.Request) -> web.Response:
        records = request.query.get("records", "100")
        if not records.isdecimal():
            return error(422, f"records must be a count, got {records!r}", "BadRequestError")
        return web.json_response(fleet.truth.document(int(records)))

    async def health(request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.router.add_get("/links", links)
    app.router.add_put("/links/{id}", set_link)
    app.router.add_get("/engines", engines)
    app.router.add_get("/truth", truth)
    app.router.add_get("/health", health)
    add_worker_routes(app, fleet.stacks, listed.urls)
    return app


def _json(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise LabError(f"the body is not valid JSON: {exc}") from None
