"""The gate put together: places and their upstreams, plan and override, request path, pages."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import aiohttp
from aiohttp import web

from routing.core.placement.rule import Side
from routing.gate.access import Access
from routing.gate.access_log import AccessLog
from routing.gate.admission import Admission
from routing.gate.cache_map import CacheMap, place_names
from routing.gate.config import ConfigError
from routing.gate.count import Counter, Tokenizer
from routing.gate.kv_events import KvEvents
from routing.gate.metrics import Metrics
from routing.gate.override import OverrideKeeper
from routing.gate.override_door import FILE_SUFFIX, SOCKET_SUFFIX, OverrideDoor
from routing.gate.plan import Ack
from routing.gate.plan_client import PlanBoard, PlanClient
from routing.gate.pool import Pool
from routing.gate.prefix import PrefixIndex
from routing.gate.prompt import BYTES_PER_ID, salt_of
from routing.gate.proxy import Proxy
from routing.gate.rules import Rules
from routing.gate.settings import (
    STALE_UNTIL_RESTART,
    GateConfig,
    UpstreamConfig,
    upstream_names,
)
from routing.gate.status import Status
from routing.gate.tls import Trust
from routing.gate.upstream import KEEPALIVE_S, Upstream

_DISTRIBUTION = "prfaas-console"
_CANCEL_S = 1.0

log = logging.getLogger(__name__)


def _version() -> str:
    try:
        return importlib.metadata.version(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


class Gate:
    """One gate. Made inside a running event loop; `started_at_s` is epoch seconds.

    `trust` is what `load_trust` read of the certificates that `config` names. `now_s` is a
    monotonic clock, `epoch_s` tells epoch seconds, `rng` spreads probes and retries.
    """

    def __init__(
        self,
        config: GateConfig,
        *,
        trust: Trust,
        tokenizer: Tokenizer | None,
        started_at_s: float,
        now_s: Callable[[], float],
        epoch_s: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self.config = config
        self.metrics = Metrics()
        self.now_s = now_s
        self.reload_error: str | None = None
        self._epoch_s, self._rng = epoch_s, rng
        self._watching: dict[Upstream, asyncio.Task[None]] = {}
        self._client_task: asyncio.Task[None] | None = None
        self._events_task: asyncio.Task[None] | None = None
        self._access_task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._is_started = False
        # Timeouts are each request's own, so that a reload can change them.
        self._upstream_session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._console_session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=config.console_timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self.local = Pool("local", "local", self._stacks("local", config, trust, {}))
        self.remotes = {
            name: Pool(name, "remote", self._stacks(name, config, trust, {}))
            for name in config.upstreams.remote
        }
        self.board = PlanBoard(
            fleet=config.fleet,
            cluster=config.cluster,
            file=Path(config.plan_file) if config.plan_file else None,
        )
        self.keeper = OverrideKeeper(config.beside_plan_file(FILE_SUFFIX), epoch_s=epoch_s)
        door = config.beside_plan_file(SOCKET_SUFFIX)
        self._door = None if door is None else OverrideDoor(door, self.keeper)
        self._caches = CacheMap(
            router=config.router,
            places=self.places(),
            block_bytes=config.block_tokens * BYTES_PER_ID,
            metrics=self.metrics,
            rng=rng,
            now_s=now_s,
        )
        self.client = PlanClient(
            config,
            self.board,
            session=self._console_session,
            ack=self.ack,
            caches=self._caches,
            release=self._release,
            trust=trust.console,
            rng=rng,
        )
        self.kv_events = self._listener_of_events()
        self._rules = Rules(
            lambda: self.board.state,
            self.keeper,
            remotes=self.remotes,
            max_remote_in_flight=config.limits.remote_in_flight,
        )
        self.proxy = Proxy(
            cluster=config.cluster,
            local=self.local,
            remotes=self.remotes,
            rules=self._rules,
            counter=Counter(
                tokenizer=tokenizer,
                media_part_tokens=config.media_part_tokens,
                template=config.chat_template,
            ),
            metrics=self.metrics,
            block_tokens=config.block_tokens,
            retries_per_side=config.retries_per_side,
            admission=self._admission(config, None),
            access=self._access(config, None),
            now_s=now_s,
        )
        self.metrics.info.set(config.router, config.cluster, config.fleet, _version(), to=1)
        self.metrics.start_time_s.set(to=started_at_s)
        self._start_links()

    @property
    def pools(self) -> tuple[Pool, ...]:
        return (self.local, *self.remotes.values())

    @property
    def upstreams(self) -> tuple[Upstream, ...]:
        return tuple(upstream for pool in self.pools for upstream in pool.upstreams)

    def application(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=self.config.max_body_bytes)
        app.router.add_post("/v1/completions", self.proxy.completions)
        app.router.add_post("/v1/chat/completions", self.proxy.chat_completions)
        app.router.add_get("/v1/models", self.proxy.models)
        Status(self).add_routes(app.router)
        return app

    def runner(self) -> web.AppRunner:
        """The server: a client that leaves takes its request out of the engine."""
        return web.AppRunner(
            self.application(),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=_CANCEL_S,
        )

    async def start(self) -> None:
        """Loads the last plan and the override, then keeps in touch with the console and watches
        the upstreams."""
        self._is_started = True
        self.board.load()
        self.keeper.load()
        if self._door is not None:
            await self._door.open()
        self._watch_upstreams()
        self._restart_client()
        self._restart_events()
        self._restart_access_log()

    async def close(self) -> None:
        """Ends background work and closes every connection."""
        self._is_started = False
        tasks = [self._client_task, self._events_task, self._access_task, *self._watching.values()]
        for task in tasks:
            self._end(task)
        await asyncio.gather(*self._ending, return_exceptions=True)
        if self._door is not None:
            await self._door.close()
        await self._upstream_session.close()
        await self._console_session.close()

    def ack(self) -> Ack:
        """What this gate runs, and what keeps it from running it fully."""
        return self.board.state.ack(
            self.config.router, override=self.keeper.current(), notes=self._notes()
        )

    def reload(self, config: GateConfig, *, trust: Trust, file: Path) -> None:
        """Takes other settings while requests go on: no stream notices. Raises ConfigError, and
        then nothing has changed."""
        before = self.config
        for key in STALE_UNTIL_RESTART:
            value = getattr(config, key)
            if value != getattr(before, key):
                raise ConfigError(
                    f"taken at the start only, restart the gate (it was {getattr(before, key)!r})",
                    file=file,
                    key=key,
                    value=value,
                )
        known = {(u.place, u.url): u for u in self.upstreams}
        self.config = config
        self.local.upstreams = self._stacks("local", config, trust, known)
        pools = {
            name: self.remotes.get(name) or Pool(name, "remote", ())
            for name in config.upstreams.remote
        }
        for name, pool in pools.items():
            pool.upstreams = self._stacks(name, config, trust, known)
        self.remotes.clear()
        self.remotes.update(pools)
        self._caches.set_places(self.places())
        self._rules.configure(
            remotes=self.remotes, max_remote_in_flight=config.limits.remote_in_flight
        )
        self.proxy.retries_per_side = config.retries_per_side
        self.proxy.admission = self._admission(config, self.proxy.admission)
        self.proxy.access = self._access(config, self.proxy.access)
        self.client.configure(config, trust=trust.console)
        self.metrics.forget_upstreams()
        self._start_links()
        if self._is_started:
            self._watch_upstreams()
            if (before.console_url, before.token) != (config.console_url, config.token):
                self._restart_client()
            self._restart_events()
            self._restart_access_log()

    def _stacks(
        self,
        place: str,
        config: GateConfig,
        trust: Trust,
        known: Mapping[tuple[str, str], Upstream],
    ) -> tuple[Upstream, ...]:
        """The upstreams of a place. One of the same url and cache is the same as before."""
        side: Side = "local" if place == "local" else "remote"
        stacks = config.upstreams.local if side == "local" else config.upstreams.remote[place]
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=config.connect_timeout_s, sock_read=config.read_timeout_s
        )
        found = []
        for name, stack in zip(upstream_names(place, stacks), stacks, strict=True):
            upstream = known.get((place, stack.url.rstrip("/")))
            whom = trust.upstreams[place, stack.url]
            if upstream is not None and _has_same_cache(upstream.config, stack):
                upstream.configure(name, stack, breaker=config.breaker, timeout=timeout, trust=whom)
            else:
                upstream = Upstream(
                    name,
                    place,
                    side,
                    stack,
                    breaker=config.breaker,
                    block_tokens=config.block_tokens,
                    session=self._upstream_session,
                    timeout=timeout,
                    trust=whom,
                    now_s=self.now_s(),
                )
            found.append(upstream)
        return tuple(found)

    def _caches_of(self) -> list[tuple[str, Upstream]]:
        """Each upstream with the name of its cache's place."""
        found = []
        for pool in self.pools:
            cluster = self.config.cluster if pool.side == "local" else pool.name
            names = place_names(cluster, [upstream.name for upstream in pool.upstreams])
            found += list(zip(names, pool.upstreams, strict=True))
        return found

    def places(self) -> dict[str, PrefixIndex]:
        """Whose cache is where: the cluster that computes (and the stack, where it has several)."""
        return {name: upstream.index for name, upstream in self._caches_of()}

    def _publishers(self) -> dict[str, tuple[PrefixIndex, tuple[str, ...]]]:
        """Of each place of caches: its index, and where its engines publish KV events."""
        return {name: (up.index, up.config.kv_events) for name, up in self._caches_of()}

    def _listener_of_events(self) -> KvEvents:
        self._heard = self._publishers()
        return KvEvents(
            self._heard,
            salt=salt_of("completions", self.config.kv_events_model, ""),
            block_tokens=self.config.block_tokens,
            metrics=self.metrics,
        )

    def _admission(self, config: GateConfig, before: Admission | None) -> Admission | None:
        """None where nothing is bounded, so that nothing is paid for it. Once there is one it
        stays: requests that it let in will leave it."""
        limits, tenants = config.limits, config.tenants
        if before is not None:
            before.configure(limits, tenants)
            return before
        if limits.in_flight is None and limits.local_in_flight is None and tenants is None:
            return None
        return Admission(limits, tenants, now_s=self.now_s)

    def _access(self, config: GateConfig, before: Access | None) -> Access | None:
        """A log that was open begins its file anew: requests under way will still write to it."""
        if config.access_log is None:
            return None
        file = Path(config.access_log.file)
        header = config.tenants.header if config.tenants else None
        if before is not None:
            before.tenant_header = header
            before.log.reopen(file)
            return before
        return Access(
            AccessLog(file), tenant_header=header, epoch_s=self._epoch_s, now_s=self.now_s
        )

    def _start_links(self) -> None:
        for name in self.remotes:
            self.metrics.start_link(f"{name}->{self.config.cluster}")
            self.metrics.start_link(f"{self.config.cluster}->{name}")

    def _release(self, override_id: str) -> None:
        self.keeper.release("the console", only=override_id)

    def _notes(self) -> tuple[str, ...]:
        notes = []
        for pool in self.pools:
            for upstream in pool.upstreams:
                if (problem := upstream.problem(self.now_s())) is not None:
                    notes.append(f"{upstream.name} is {problem}: using {_instead(pool)}")
        running = self.board.state.running
        unknown = sorted(set(running.rule.remote) - set(self.remotes)) if running else []
        notes += [f"the plan names remote {name!r}, which has no upstream here" for name in unknown]
        notes += [note for note in (self.board.file_error, self.reload_error) if note is not None]
        return tuple(notes)

    def _end(self, task: asyncio.Task[None] | None) -> None:
        """Asks it to end: `close` waits for what it still has to write."""
        if task is not None:
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _watch_upstreams(self) -> None:
        for upstream in self._watching.keys() - set(self.upstreams):
            self._end(self._watching.pop(upstream))
        for upstream in self.upstreams:
            if upstream not in self._watching:
                self._watching[upstream] = asyncio.create_task(self._watch(upstream))

    def _restart_client(self) -> None:
        self._end(self._client_task)
        self._client_task = None
        if self.config.console_url is not None:
            self._client_task = asyncio.create_task(self.client.run())
        else:
            self.client.contact = "off"

    def _restart_events(self) -> None:
        """Listens anew only where it is told of other engines: to listen anew is to forget."""
        if self._publishers() != self._heard:
            self._end(self._events_task)
            self._events_task = None
            for upstream in self.upstreams:
                upstream.index.holders = None
            self.kv_events = self._listener_of_events()
        if self.kv_events.places and self._events_task is None:
            self._events_task = asyncio.create_task(self.kv_events.run())

    def _restart_access_log(self) -> None:
        if self.proxy.access is None:
            self._end(self._access_task)
            self._access_task = None
        elif self._access_task is None:
            self._access_task = asyncio.create_task(self.proxy.access.log.run())

    async def _watch(self, upstream: Upstream) -> None:
        """Probes one upstream for ever, spread so that many gates do not probe at once."""
        await asyncio.sleep(self.config.health_interval_s * self._rng.uniform(0.0, 0.5))
        while True:
            interval_s = self.config.health_interval_s
            try:
                error = await upstream.probe(timeout_s=max(interval_s, 1.0))
                if error is None:
                    upstream.probe_answered(now_s=self.now_s())
                else:
                    upstream.failed(error, refused=False, now_s=self.now_s())
            except ConnectionRefusedError as exc:
                upstream.failed(str(exc), refused=True, now_s=self.now_s())
            await asyncio.sleep(interval_s * self._rng.uniform(0.75, 1.25))


def _has_same_cache(before: UpstreamConfig, after: UpstreamConfig) -> bool:
    """Whether what is known of its cache still holds."""
    return (before.cache_capacity_tokens, before.linear_state) == (
        after.cache_capacity_tokens,
        after.linear_state,
    )


def _instead(pool: Pool) -> str:
    if any(upstream.is_up for upstream in pool.upstreams):
        return "the others"
    return "local" if pool.side == "remote" else "remote, where the plan allows"
