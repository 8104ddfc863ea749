"""The gate put together: upstreams, plan, request path, `/healthz` and `/metrics`."""

from __future__ import annotations

import asyncio
import importlib.metadata
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from routing.core.placement.rule import Side
from routing.gate.cache_map import CacheMap
from routing.gate.config import GateConfig, UpstreamConfig
from routing.gate.count import Counter, Tokenizer
from routing.gate.kv_events import KvEvents
from routing.gate.metrics import SIDES, Metrics
from routing.gate.plan import Ack
from routing.gate.plan_client import PlanBoard, PlanClient
from routing.gate.prefix import PrefixIndex
from routing.gate.prompt import BYTES_PER_ID, salt_of
from routing.gate.proxy import Proxy
from routing.gate.upstream import KEEPALIVE_S, Upstream

_DISTRIBUTION = "prfaas-console"
_CANCEL_S = 1.0
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _version() -> str:
    try:
        return importlib.metadata.version(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


class Gate:
    """One gate. Made inside a running event loop; `started_at_s` is epoch seconds.

    `now_s` is a monotonic clock, `rng` spreads probes and retries.
    """

    def __init__(
        self,
        config: GateConfig,
        *,
        tokenizer: Tokenizer | None,
        started_at_s: float,
        now_s: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self.config = config
        self.metrics = Metrics()
        self._now_s, self._rng = now_s, rng
        self._tasks: list[asyncio.Task[None]] = []
        self._upstream_session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=config.connect_timeout_s, sock_read=config.read_timeout_s
            ),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._console_session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=config.console_timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self.local = self._upstream("local", "local", config.upstreams.local)
        self.remotes = {
            name: self._upstream(name, "remote", remote)
            for name, remote in config.upstreams.remote.items()
        }
        self.board = PlanBoard(
            fleet=config.fleet,
            cluster=config.cluster,
            file=Path(config.plan_file) if config.plan_file else None,
        )
        self.client = PlanClient(
            config,
            self.board,
            session=self._console_session,
            ack=self.ack,
            caches=CacheMap(
                router=config.router,
                places=self.places(),
                block_bytes=config.block_tokens * BYTES_PER_ID,
                metrics=self.metrics,
                rng=rng,
                now_s=now_s,
            ),
            rng=rng,
        )
        self.kv_events = KvEvents(
            self._publishers(),
            salt=salt_of("completions", config.kv_events_model, ""),
            block_tokens=config.block_tokens,
            metrics=self.metrics,
        )
        self.proxy = Proxy(
            cluster=config.cluster,
            local=self.local,
            remotes=self.remotes,
            plan=lambda: self.board.state,
            counter=Counter(tokenizer=tokenizer, media_part_tokens=config.media_part_tokens),
            metrics=self.metrics,
            block_tokens=config.block_tokens,
            now_s=now_s,
        )
        self.metrics.info.set(config.router, config.cluster, config.fleet, _version(), to=1)
        self.metrics.start_time_s.set(to=started_at_s)
        for name in self.remotes:
            for link in (f"{name}->{config.cluster}", f"{config.cluster}->{name}"):
                self.metrics.moves.add(link, by=0)
                self.metrics.move_tokens.add(link, by=0)

    def _upstream(self, name: str, side: Side, config: UpstreamConfig) -> Upstream:
        return Upstream(
            name,
            side,
            config,
            block_tokens=self.config.block_tokens,
            session=self._upstream_session,
            now_s=self._now_s(),
        )

    @property
    def upstreams(self) -> tuple[Upstream, ...]:
        return (self.local, *self.remotes.values())

    def places(self) -> dict[str, PrefixIndex]:
        """Whose cache is where: the cluster that computes at each upstream, and its index."""
        return {
            self.config.cluster: self.local.index,
            **{name: remote.index for name, remote in self.remotes.items()},
        }

    def _publishers(self) -> dict[str, tuple[PrefixIndex, tuple[str, ...]]]:
        """Of each place: its index, and where its engines publish KV events."""
        upstreams = self.config.upstreams
        publishers = {self.config.cluster: (self.local.index, upstreams.local.kv_events)}
        for name, remote in self.remotes.items():
            publishers[name] = (remote.index, upstreams.remote[name].kv_events)
        return publishers

    def application(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=self.config.max_body_bytes)
        app.router.add_post("/v1/completions", self.proxy.completions)
        app.router.add_post("/v1/chat/completions", self.proxy.chat_completions)
        app.router.add_get("/v1/models", self.proxy.models)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/metrics", self._metrics)
        return app

    def runner(self) -> web.AppRunner:
        """The server: a client that leaves takes its request out of the engine."""
        return web.AppRunner(
            self.application(),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=_CANCEL_S,
        )

    def start(self) -> None:
        """Loads the last plan, then keeps in touch with the console and watches the upstreams."""
        self.board.load()
        self._tasks = [asyncio.create_task(self._watch(upstream)) for upstream in self.upstreams]
        if self.config.console_url is not None:
            self._tasks.append(asyncio.create_task(self.client.run()))
        if self.kv_events.places:
            self._tasks.append(asyncio.create_task(self.kv_events.run()))

    async def close(self) -> None:
        """Ends background work and closes every connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._upstream_session.close()
        await self._console_session.close()

    def ack(self) -> Ack:
        """What this gate runs, and what keeps it from running it fully."""
        return self.board.state.ack(self.config.router, notes=self._notes())

    def _notes(self) -> tuple[str, ...]:
        notes = []
        for upstream in self.upstreams:
            if upstream.health.state != "up":
                other = "local" if upstream.side == "remote" else "remote, where the plan allows"
                notes.append(f"{upstream.name} is {upstream.health.state}: using {other}")
        running = self.board.state.running
        unknown = sorted(set(running.rule.remote) - set(self.remotes)) if running else []
        notes += [f"the plan names remote {name!r}, which has no upstream here" for name in unknown]
        if self.board.file_error is not None:
            notes.append(self.board.file_error)
        return tuple(notes)

    async def _watch(self, upstream: Upstream) -> None:
        """Probes one upstream for ever, spread so that many gates do not probe at once."""
        interval_s = self.config.health_interval_s
        await asyncio.sleep(interval_s * self._rng.uniform(0.0, 0.5))
        while True:
            try:
                error = await upstream.probe(timeout_s=max(interval_s, 1.0))
                if error is None:
                    upstream.probe_answered(now_s=self._now_s())
                else:
                    upstream.failed(error, refused=False, now_s=self._now_s())
            except ConnectionRefusedError as exc:
                upstream.failed(str(exc), refused=True, now_s=self._now_s())
            await asyncio.sleep(interval_s * self._rng.uniform(0.75, 1.25))

    async def _healthz(self, request: web.Request) -> web.Response:
        """200 while the gate serves, 503 while it stops; the body says how well it can."""
        ack = self.ack()
        running = self.board.state.running
        body: dict[str, Any] = {
            "ok": not self.proxy.draining,
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
                "origin": self.board.origin,
            },
            "console": {"contact": self.client.contact, "error": self.client.error},
            "upstreams": {
                upstream.name: {
                    "side": upstream.side,
                    "state": upstream.health.state,
                    "since_s": round(self._now_s() - upstream.health.since_s, 3),
                    "error": upstream.health.error,
                    "in_flight": upstream.in_flight,
                }
                for upstream in self.upstreams
            },
        }
        return web.Response(
            status=503 if self.proxy.draining else 200,
            body=msgspec.json.encode(body),
            content_type="application/json",
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        metrics = self.metrics
        running = self.board.state.running
        if running is not None:
            metrics.plan_epoch.set(to=running.epoch)
            metrics.plan_version.set(to=running.version)
        for side in SIDES:
            in_flight = sum(u.in_flight for u in self.upstreams if u.side == side)
            metrics.in_flight.set(side, to=in_flight)
        for upstream in self.upstreams:
            labels = (upstream.side, upstream.name)
            metrics.upstream_up.set(*labels, to=upstream.health.state == "up")
            metrics.prefix_blocks.set(*labels, to=len(upstream.index))
            metrics.prefix_credit.set(*labels, to=upstream.index.credit)
        self.kv_events.measure()
        return web.Response(body=metrics.render().encode(), headers={"Content-Type": _METRICS_TYPE})
