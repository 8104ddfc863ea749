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
import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from routing.gate.kv_wire import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    Event,
    decode,
)
from routing.gate.metrics import Metrics
from routing.gate.prefix import Chain, PrefixIndex, new_hasher
from routing.gate.prompt import BYTES_PER_ID, pack_ids

try:
    import zmq
    import zmq.asyncio
    from zmq.utils.monitor import recv_monitor_message
except ImportError:
    zmq = None  # type: ignore[assignment]

AVAILABLE = zmq is not None
"""Whether the package that hears events is installed."""
MAX_BLOCKS = 65_536
"""Engine blocks remembered of one engine, some 45 MB. What it stores beyond them is not learnt."""

_MAX_MESSAGE_BYTES = 32 * 1024 * 1024
_RECEIVE_QUEUE = 4_096
_RECONNECT_MS = (200, 5_000)
_HEARTBEAT_MS = 5_000
"""How often a silent engine is asked whether it lives; three unanswered are a lost connection."""
_PREFIX_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
_STATE_KIND = "mamba"
_N_FRAMES = 3

log = logging.getLogger(__name__)


class PlaceCache:
    """What the engines of one place hold together, kept in step with the place's index.

    A key is held as long as a block of any engine holds it. When the index is cleared, what the
    engines hold is entered again: who holds nothing any more says so.
    """

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._n_holders: dict[bytes, int] = {}
        self._n_states: dict[bytes, int] = {}
        index.holders = self

    def __len__(self) -> int:
        return len(self._n_holders)

    def __contains__(self, key: bytes) -> bool:
        return key in self._n_holders

    def hold(self, keys: Chain, *, new: Iterable[bytes], after: Iterable[bytes]) -> None:
        """Consecutive keys of one chain are in use; a further block holds each of `new`. `after`
        are the keys before them, backwards."""
        for key in new:
            self._n_holders[key] = self._n_holders.get(key, 0) + 1
        self._index.adopt(keys, state_at_end=False)
        self._index.refresh(after)

    def release(self, keys: Iterable[bytes]) -> None:
        """A block that held these is gone."""
        self._index.lost(tuple(k for k in keys if _one_less(self._n_holders, k)), n_held=0)

    def hold_state(self, key: bytes) -> None:
        """A state of linear layers was kept at the end of the key's block."""
        self._n_states[key] = self._n_states.get(key, 0) + 1
        self._index.adopt((key,), state_at_end=True)

    def release_state(self, key: bytes) -> None:
        if _one_less(self._n_states, key):
            self._index.lost_state(key)

    def cleared(self) -> None:
        # Backwards, so that prefixes are the last to leave again.
        for key in reversed(self._n_holders):
            self._index.adopt((key,), state_at_end=key in self._n_states)


def _one_less(counts: dict[bytes, int], key: bytes) -> bool:
    """Whether it was the last."""
    n = counts.pop(key, 0)
    if n > 1:
        counts[key] = n - 1
    return n == 1


@dataclass(slots=True)
class _Block:
    """An engine block: the hash state and length of the prefix it ends, the gate keys whose last
    token is in it, and the block with the keys before those."""

    hasher: hashlib.blake2b
    n_tokens: int
    keys: Chain = ()
    previous: _Block | None = None
    has_state: bool = False


class EngineCache:
    """What one engine holds by its events, as keys of the gate. Pure but for `metrics`."""

    def __init__(
        self,
        place: PlaceCache,
        *,
        salt: bytes,
        block_tokens: int,
        exact_state: bool,
        metrics: Metrics,
        label: str,
        max_blocks: int = MAX_BLOCKS,
    ) -> None:
        self._place, self._block_tokens, self._max_blocks = place, block_tokens, max_blocks
        self._exact_state, self._metrics, self._label = exact_state, metrics, label
        self._root = _Block(new_hasher(salt), 0)
        self._blocks: dict[BlockHash, _Block] = {}
        self._states: set[BlockHash] = set()
        self._kinds: dict[int, str] = {}
        self._last_seq: int | None = None

    def __len__(self) -> int:
        return len(self._blocks)

    def receive(self, frames: Sequence[bytes]) -> None:
        """A message: topic, number (8 bytes, big endian), events."""
        if len(frames) != _N_FRAMES:
            self._drop("invalid")
            return
        self._number(int.from_bytes(frames[1], "big"))
        try:
            events, n_invalid = decode(frames[2])
        except (msgspec.MsgspecError, RecursionError):
            # Whatever it said is missed.
            self._drop("invalid")
            self._forget_blocks()
            return
        if n_invalid:
            self._drop("invalid", n_invalid)
        for event in events:
            self._take(event)

    def forget(self) -> None:
        """The engine may have said what was not heard: nothing is known of it."""
        self._last_seq = None
        self._forget_blocks()

    def _number(self, seq: int) -> None:
        if self._last_seq is not None and seq != self._last_seq + 1:
            self._metrics.kv_event_gaps.add(self._label)
            self._forget_blocks()
        self._last_seq = seq

    def _take(self, event: Event) -> None:
        match event:
            case BlockStored():
                self._metrics.kv_events.add(self._label, "stored")
                self._stored(event)
            case BlockRemoved():
                self._metrics.kv_events.add(self._label, "removed")
                self._removed(event)
            case AllBlocksCleared():
                self._metrics.kv_events.add(self._label, "cleared")
                self._forget_blocks()

    def _stored(self, event: BlockStored) -> None:
        n_blocks = len(event.block_hashes)
        if event.kv_cache_spec_kind is not None and event.group_idx is not None:
            self._kinds[event.group_idx] = event.kv_cache_spec_kind
        kind = event.kv_cache_spec_kind or self._kind_of(event.group_idx)
        if not _is_in_memory(event) or event.lora_name is not None or event.lora_id is not None:
            return self._drop("other", n_blocks)
        if kind == _STATE_KIND and self._exact_state:
            return self._kept_states(event.block_hashes)
        if kind not in _PREFIX_KINDS:
            return self._drop("other", n_blocks)
        if len(event.token_ids) != n_blocks * event.block_size:
            return self._drop("invalid", n_blocks)
        parent = self._root
        if event.parent_block_hash is not None:
            known = self._blocks.get(event.parent_block_hash)
            if known is None:
                return self._drop("unknown_parent", n_blocks)
            parent = known
        self._enter(event, parent)

    def _enter(self, event: BlockStored, parent: _Block) -> None:
        packed = memoryview(pack_ids(event.token_ids))
        block_bytes = event.block_size * BYTES_PER_ID
        before = parent
        keys: list[bytes] = []
        new: list[bytes] = []
        fresh: list[BlockHash] = []
        for i, hash_ in enumerate(event.block_hashes):
            block = self._blocks.get(hash_)
            if block is None:
                # Another salt, an image: none of it is a completion of plain tokens.
                if event.extra_keys and i < len(event.extra_keys) and event.extra_keys[i]:
                    self._drop("other", len(event.block_hashes) - i)
                    break
                if len(self._blocks) >= self._max_blocks:
                    self._drop("full", len(event.block_hashes) - i)
                    break
                block = self._after(parent, packed[i * block_bytes : (i + 1) * block_bytes])
                self._blocks[hash_] = block
                new.extend(block.keys)
                fresh.append(hash_)
            keys.extend(block.keys)
            parent = block
        if keys:
            self._place.hold(tuple(keys), new=new, after=_keys_up_to(before))
        self._match_states(hash_ for hash_ in fresh if hash_ in self._states)

    def _after(self, parent: _Block, ids: memoryview) -> _Block:
        hasher = parent.hasher.copy()
        n_tokens = parent.n_tokens + len(ids) // BYTES_PER_ID
        keys: list[bytes] = []
        done = 0
        # In the gate's blocks, which may end anywhere in this one.
        for end in range(
            (parent.n_tokens // self._block_tokens + 1) * self._block_tokens,
            n_tokens + 1,
            self._block_tokens,
        ):
            until = (end - parent.n_tokens) * BYTES_PER_ID
            hasher.update(ids[done:until])
            keys.append(hasher.copy().digest())
            done = until
        hasher.update(ids[done:])
        return _Block(hasher, n_tokens, tuple(keys), parent if parent.keys else parent.previous)

    def _removed(self, event: BlockRemoved) -> None:
        if not _is_in_memory(event):
            return
        kind = self._kind_of(event.group_idx)
        for hash_ in event.block_hashes:
            if kind == _STATE_KIND:
                self._states.discard(hash_)
                self._drop_state(self._blocks.get(hash_))
            elif kind in _PREFIX_KINDS and (block := self._blocks.pop(hash_, None)) is not None:
                self._drop_state(block)
                self._place.release(block.keys)
                block.previous = None  # what remains of its continuations keeps no chain alive

    def _kept_states(self, hashes: list[BlockHash]) -> None:
        # The blocks themselves may be told later, in the events of another group.
        for hash_ in hashes:
            if len(self._states) < self._max_blocks:
                self._states.add(hash_)
        self._match_states(hash_ for hash_ in hashes if hash_ in self._states)

    def _match_states(self, hashes: Iterable[BlockHash]) -> None:
        """The index knows a state only at the end of a block of the gate's."""
        for hash_ in hashes:
            block = self._blocks.get(hash_)
            if block is None or block.has_state or block.n_tokens % self._block_tokens:
                continue
            block.has_state = True
            self._place.hold_state(block.keys[-1])

    def _drop_state(self, block: _Block | None) -> None:
        if block is not None and block.has_state:
            block.has_state = False
            self._place.release_state(block.keys[-1])

    def _forget_blocks(self) -> None:
        for block in self._blocks.values():
            if block.keys:
                self._drop_state(block)
                self._place.release(block.keys)
        self._blocks.clear()
        self._states.clear()

    def _kind_of(self, group_idx: int | None) -> str:
        # Engines that tell no kind have one group, or list full attention first.
        return self._kinds.get(group_idx or 0, "full_attention" if not group_idx else "")

    def _drop(self, reason: str, n_blocks: int = 1) -> None:
        self._metrics.kv_events_dropped.add(self._label, reason, by=n_blocks)


def _keys_up_to(block: _Block) -> Iterator[bytes]:
    """Of the prefix it ends, backwards."""
    found: _Block | None = block
    while found is not None:
        yield from reversed(found.keys)
        found = found.previous


def _is_in_memory(event: BlockStored | BlockRemoved) -> bool:
    """As opposed to a block that was offloaded, or that another machine holds."""
    return event.medium in (None, "GPU") and event.locality in (None, "LOCAL")


@dataclass
class Source:
    """One engine's publisher, and whether it is connected."""

    endpoint: str
    cache: EngineCache
    connected: bool = False


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
        source.cache.receive(await socket.recv_multipart())
        # Messages that are there already come without a pause; streams have their turn between.
        await asyncio.sleep(0)


async def _watch(monitor: zmq.asyncio.Socket, source: Source) -> None:
    while True:
        seen = await recv_monitor_message(monitor)
        source.connected = seen["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
        if not source.connected:
            log.info("KV events of %s: connection lost, its cache is forgotten", source.endpoint)
            source.cache.forget()
