"""What engines themselves say of their prefix caches: KV events in vLLM's format, over ZeroMQ.

Each engine publishes which blocks it stored and dropped. The events carry hashes of the engine's
own and the blocks' token ids; from the ids the gate makes its own keys (`routing.gate.prefix`), as
if the prompt had come through it. So it learns what other gates and clients put into a cache, and
what left it. Blocks of engine and gate need not be of one size: a key counts as held with the
engine block that its last token is in.

Events name neither endpoint nor model, so keys are made for completions by token ids (or by a
tokenizer) of one model without `cache_salt`; all else the gate's own placements serve, as without
events. An engine whose events may have been missed (a gap in its numbers, a lost connection) is
forgotten: a hint that may be wrong is worth less than none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from routing.gate.kv_cache import EngineCache, PlaceCache
from routing.gate.metrics import Metrics
from routing.gate.prefix import PrefixIndex

try:
    import zmq
    import zmq.asyncio
    from zmq.utils.monitor import recv_monitor_message
except ImportError:
    zmq = None  # type: ignore[assignment]

AVAILABLE = zmq is not None
"""Whether the package that hears events is installed."""

_MAX_MESSAGE_BYTES = 32 * 1024 * 1024
_RECEIVE_QUEUE = 4_096
_RECONNECT_MS = (200, 5_000)
_HEARTBEAT_MS = 5_000
"""How often a silent engine is asked whether it lives; three unanswered are a lost connection."""

log = logging.getLogger(__name__)


@dataclass
class Source:
    """One engine's publisher, and whether it is connected."""

    endpoint: str
    cache: EngineCache
    connected: bool = False
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def take(self, steps: Iterator[None]) -> None:
        """Does what its cache has to, after all that came before, with pauses for streams."""
        async with self.turn:
            await _with_pauses(steps)


@dataclass
class _Listened:
    place: PlaceCache
    sources: list[Source] = field(default_factory=list)


class KvEvents:
    """Listens to the engines of each place that publishes. `places`: index and endpoints by name.

    Made inside a running event loop; `run` listens until it is cancelled.
    """

    def __init__(
        self,
        places: Mapping[str, tuple[PrefixIndex, Sequence[str]]],
        *,
        salt: bytes,
        block_tokens: int,
        metrics: Metrics,
    ) -> None:
        self._metrics = metrics
        self.places: dict[str, _Listened] = {}
        for name, (index, endpoints) in places.items():
            if not endpoints:
                continue
            listened = self.places[name] = _Listened(PlaceCache(index))
            for endpoint in endpoints:
                cache = EngineCache(
                    listened.place,
                    salt=salt,
                    block_tokens=block_tokens,
                    exact_state=index.exact_state,
                    metrics=metrics,
                    label=name,
                )
                listened.sources.append(Source(endpoint, cache))
            metrics.start_kv_events(name)

    async def run(self) -> None:
        """Connects to every engine, again and again where it has to."""
        context = zmq.asyncio.Context()
        sources = [source for listened in self.places.values() for source in listened.sources]
        try:
            async with asyncio.TaskGroup() as tasks:
                for listened in self.places.values():
                    tasks.create_task(_keep_up(listened.place))
                for source in sources:
                    tasks.create_task(_listen(context, source))
        finally:
            context.destroy(linger=0)

    def measure(self) -> None:
        """Brings the gauges up to date."""
        for name, listened in self.places.items():
            self._metrics.kv_event_keys.set(name, to=len(listened.place))
            n_connected = sum(source.connected for source in listened.sources)
            self._metrics.kv_event_engines.set(name, "connected", to=n_connected)
            n_lost = len(listened.sources) - n_connected
            self._metrics.kv_event_engines.set(name, "not_connected", to=n_lost)


async def _with_pauses(steps: Iterator[None]) -> None:
    for _ in steps:
        await asyncio.sleep(0)


async def _keep_up(place: PlaceCache) -> None:
    while True:
        await place.is_behind.wait()
        await _with_pauses(place.catch_up())


async def _listen(context: zmq.asyncio.Context, source: Source) -> None:
    with context.socket(zmq.SUB) as socket:
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.RCVHWM, _RECEIVE_QUEUE)
        socket.set(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
        socket.set(zmq.RECONNECT_IVL, _RECONNECT_MS[0])
        socket.set(zmq.RECONNECT_IVL_MAX, _RECONNECT_MS[1])
        socket.set(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.set(zmq.HEARTBEAT_TIMEOUT, 3 * _HEARTBEAT_MS)
        socket.subscribe(b"")
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        socket.connect(source.endpoint)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_watch(monitor, source))
                tasks.create_task(_receive(socket, source))
        finally:
            socket.disable_monitor()


async def _receive(socket: zmq.asyncio.Socket, source: Source) -> None:
    while True:
        await source.take(source.cache.receive(await socket.recv_multipart()))
        # Messages that are there already come without a pause; streams have their turn between.
        await asyncio.sleep(0)


async def _watch(monitor: zmq.asyncio.Socket, source: Source) -> None:
    while True:
        seen = await recv_monitor_message(monitor)
        source.connected = seen["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
        if not source.connected:
            log.info("KV events of %s: connection lost, its cache is forgotten", source.endpoint)
            await source.take(source.cache.forget())
