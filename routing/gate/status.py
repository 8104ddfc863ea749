"""What a gate says of itself: `/healthz`, `/metrics`, `/transport`, and that there is no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from routing.gate.errors import error
from routing.gate.metrics import SIDES

if TYPE_CHECKING:
    from routing.gate.app import Gate

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Status:
    """The pages of one gate."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Enters the pages; the last one takes whatever no route before it took."""
        router.add_get("/healthz", self.healthz)
        router.add_get("/metrics", self.metrics)
        router.add_get("/transport", self.transport)
        known = {resource.canonical for resource in router.resources()}

        async def nothing_else(request: web.Request) -> web.Response:
            if request.path in known:
                message = f"{request.path} does not take {request.method}"
                return error(405, "method_not_allowed", message)
            return error(404, "not_found", f"a gate has no {request.path}")

        router.add_route("*", "/{path:.*}", nothing_else)

    async def healthz(self, request: web.Request) -> web.Response:
        """200 while the gate serves, 503 while it stops; the body says how well it can."""
        gate = self._gate
        ack, now_s = gate.ack(), gate.now_s()
        running = gate.board.state.running
        body: dict[str, Any] = {
            "ok": not gate.proxy.draining,
            "router": ack.router,
            "state": ack.state,
            "error": ack.error,
            "plan": running
            and {
                "epoch": running.epoch,
                "version": running.version,
                "mode": running.rule.mode,
                "threshold_tokens": running.rule.threshold_tokens,
                "band": running.rule.band,
                "cache_mode": running.rule.cache_mode,
                "origin": gate.board.origin,
            },
            "override": gate.keeper.current(),
            "console": {"contact": gate.client.contact, "error": gate.client.error},
            "reload": gate.reload_error,
            "upstreams": {
                upstream.name: {
                    "side": upstream.side,
                    "state": upstream.health.state,
                    "since_s": round(now_s - upstream.health.since_s, 3),
                    "error": upstream.health.error,
                    "breaker": upstream.breaker.state(now_s),
                    "breaker_reason": upstream.breaker.reason,
                    "in_flight": upstream.in_flight,
                }
                for upstream in gate.upstreams
            },
        }
        return _json(body, status=503 if gate.proxy.draining else 200)

    async def transport(self, request: web.Request) -> web.Response:
        """The plan's hints for who ships KV: by link into this gate's cluster."""
        gate = self._gate
        running = gate.board.state.running
        hints = running.transport if running else {}
        links = {f"{name}->{gate.config.cluster}": hint for name, hint in hints.items()}
        return _json({"plan": running and running.name, "links": links})

    async def metrics(self, request: web.Request) -> web.Response:
        """The page that agents scrape."""
        gate, metrics = self._gate, self._gate.metrics
        now_s, running, override = gate.now_s(), gate.board.state.running, gate.keeper.current()
        if running is not None:
            metrics.plan_epoch.set(to=running.epoch)
            metrics.plan_version.set(to=running.version)
        for side in SIDES:
            in_flight = sum(pool.in_flight for pool in gate.pools if pool.side == side)
            metrics.in_flight.set(side, to=in_flight)
        for upstream in gate.upstreams:
            labels = (upstream.side, upstream.name)
            metrics.upstream_up.set(*labels, to=upstream.is_up)
            metrics.upstream_in_flight.set(*labels, to=upstream.in_flight)
            metrics.show_breaker(
                *labels, state=upstream.breaker.state(now_s), n_opens=upstream.breaker.n_opens
            )
            metrics.prefix_blocks.set(*labels, to=len(upstream.index))
            metrics.prefix_credit.set(*labels, to=upstream.index.credit)
        metrics.show_override(override)
        admission, access = gate.proxy.admission, gate.proxy.access
        if admission is not None:
            metrics.waiting.set(to=admission.all.n_waiting + admission.local.n_waiting)
            metrics.tenants.set(to=len(admission.tenants or ()))
        if access is not None:
            metrics.access_log_dropped.set(to=access.log.n_dropped)
        metrics.read_timeout_s.set(to=gate.config.read_timeout_s)
        gate.kv_events.measure()
        return web.Response(body=metrics.render().encode(), headers={"Content-Type": _METRICS_TYPE})


def _json(body: dict[str, Any], *, status: int = 200) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode(body), content_type="application/json"
    )
