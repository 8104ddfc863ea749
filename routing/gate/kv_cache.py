"""What the engines of a place hold by their own KV events, as keys of the gate. No input or output.

A message may tell of a whole cache, and to forget an engine is as much work. So this is done in
steps, each a `next` of an iterator, and streams have their turn between them. Of what concerns one
engine the next thing begins when the last is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec
import xxhash

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

MAX_BLOCKS = 65_536
"""Engine blocks remembered of one engine, some 63 MB. What it stores beyond them is not learnt."""

_KEYS_AT_ONCE = 256
"""How much is done in a step: about a millisecond's worth."""
_TOKENS_A_KEY = 16
"""To hash so many tokens is as much work as to enter a key."""
_PREFIX_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
_STATE_KIND = "mamba"
_N_FRAMES = 3


class PlaceCache:
    """What the engines of one place hold together, kept in step with the place's index.

    A key is held as long as a block of any engine holds it. When the index is cleared, what the
    engines hold is entered again: who holds nothing any more says so. Until it is, `is_behind` is
    set.
    """

    def __init__(self, index: PrefixIndex) -> None:
        self.is_behind = asyncio.Event()
        self._to_enter: list[bytes] = []
        self._index = index
        self._n_holders: dict[bytes, int] = {}
        self._n_states: dict[bytes, int] = {}
        index.holders = self

    def __len__(self) -> int:
        return len(self._n_holders)

    def __contains__(self, key: bytes) -> bool:
        return key in self._n_holders

    def hold(
        self, keys: Sequence[bytes], *, new: Iterable[bytes], after: Iterable[bytes]
    ) -> Iterator[None]:
        """Consecutive keys of one chain are in use; a further block holds each of `new`. `after`
        are the keys before them, backwards. In steps."""
        for piece in _pieces(new):
            for key in piece:
                self._n_holders[key] = self._n_holders.get(key, 0) + 1
            yield from _rest(piece)
        # Backwards, so that prefixes are the last to leave again.
        for piece in _pieces(reversed(keys)):
            self._index.adopt(piece[::-1], state_at_end=False)
            yield from _rest(piece)
        for piece in _pieces(after):
            self._index.refresh(piece)
            yield from _rest(piece)

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
        self._to_enter = list(self._n_holders)
        self.is_behind.set()

    def catch_up(self) -> Iterator[None]:
        """Enters what is still held of what was when the index was cleared. In steps."""
        while self._to_enter:
            # Backwards, as above.
            for key in reversed(self._to_enter[-_KEYS_AT_ONCE:]):
                if key in self._n_holders:
                    self._index.adopt((key,), state_at_end=key in self._n_states)
            del self._to_enter[-_KEYS_AT_ONCE:]
            yield
        self.is_behind.clear()


def _pieces(keys: Iterable[bytes]) -> Iterator[Chain]:
    """As many at a time as a step may take."""
    left = iter(keys)
    while piece := tuple(islice(left, _KEYS_AT_ONCE)):
        yield piece


def _rest(piece: Chain) -> Iterator[None]:
    """Ends the step after a whole piece; less than that needs no step of its own."""
    if len(piece) == _KEYS_AT_ONCE:
        yield


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

    hasher: xxhash.xxh3_64
    n_tokens: int
    keys: Chain = ()
    previous: _Block | None = None
    has_state: bool = False


class EngineCache:
    """What one engine holds by its events, as keys of the gate. Pure but for `metrics`.

    `receive` and `forget` work in steps, and one has to be finished before the next begins.
    """

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
        self._n_done = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def receive(self, frames: Sequence[bytes]) -> Iterator[None]:
        """A message: topic, number (8 bytes, big endian), events."""
        if len(frames) != _N_FRAMES:
            self._drop("invalid")
            return
        yield from self._number(int.from_bytes(frames[1], "big"))
        try:
            events = decode(frames[2])
        except (msgspec.MsgspecError, RecursionError):
            # Whatever it said is missed.
            self._drop("invalid")
            yield from self._forget_blocks()
            return
        for event in events:
            yield from self._take(event)
            if self._is_step_done(1):
                yield

    def forget(self) -> Iterator[None]:
        """The engine may have said what was not heard: nothing is known of it."""
        self._last_seq = None
        yield from self._forget_blocks()

    def _is_step_done(self, n_keys: int) -> bool:
        """Asked after so much work; it may span events, so that many small ones are steps too."""
        self._n_done += n_keys
        if self._n_done < _KEYS_AT_ONCE:
            return False
        self._n_done = 0
        return True

    def _number(self, seq: int) -> Iterator[None]:
        last_seq, self._last_seq = self._last_seq, seq
        if last_seq is not None and seq != last_seq + 1:
            self._metrics.kv_event_gaps.add(self._label)
            yield from self._forget_blocks()

    def _take(self, event: Event | None) -> Iterator[None]:
        match event:
            case BlockStored():
                self._metrics.kv_events.add(self._label, "stored")
                yield from self._stored(event)
            case BlockRemoved():
                self._metrics.kv_events.add(self._label, "removed")
                yield from self._removed(event)
            case AllBlocksCleared():
                self._metrics.kv_events.add(self._label, "cleared")
                yield from self._forget_blocks()
            case None:
                self._drop("invalid")

    def _stored(self, event: BlockStored) -> Iterator[None]:
        n_blocks = len(event.block_hashes)
        if event.kv_cache_spec_kind is not None and event.group_idx is not None:
            self._kinds[event.group_idx] = event.kv_cache_spec_kind
        kind = event.kv_cache_spec_kind or self._kind_of(event.group_idx)
        if not _is_in_memory(event) or event.lora_name is not None or event.lora_id is not None:
            self._drop("other", n_blocks)
        elif kind == _STATE_KIND and self._exact_state:
            yield from self._kept_states(event.block_hashes)
        elif kind not in _PREFIX_KINDS:
            self._drop("other", n_blocks)
        elif len(event.token_ids) != n_blocks * event.block_size:
            self._drop("invalid", n_blocks)
        elif event.parent_block_hash is None:
            yield from self._enter(event, self._root)
        elif (parent := self._blocks.get(event.parent_block_hash)) is not None:
            yield from self._enter(event, parent)
        else:
            self._drop("unknown_parent", n_blocks)

    def _enter(self, event: BlockStored, parent: _Block) -> Iterator[None]:
        size = event.block_size
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
                ids = pack_ids(event.token_ids[i * size : (i + 1) * size])
                block = self._after(parent, memoryview(ids))
                self._blocks[hash_] = block
                new.extend(block.keys)
                fresh.append(hash_)
            keys.extend(block.keys)
            parent = block
            if self._is_step_done(1 + size // _TOKENS_A_KEY):
                yield
        if keys:
            yield from self._place.hold(keys, new=new, after=_keys_up_to(before))
        yield from self._match_states(fresh)

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
            keys.append(hasher.digest())
            done = until
        hasher.update(ids[done:])
        return _Block(hasher, n_tokens, tuple(keys), parent if parent.keys else parent.previous)

    def _removed(self, event: BlockRemoved) -> Iterator[None]:
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
            if self._is_step_done(1):
                yield

    def _kept_states(self, hashes: list[BlockHash]) -> Iterator[None]:
        # The blocks themselves may be told later, in the events of another group.
        for hash_ in hashes:
            if len(self._states) < self._max_blocks:
                self._states.add(hash_)
        yield from self._match_states(hashes)

    def _match_states(self, hashes: Iterable[BlockHash]) -> Iterator[None]:
        """The index knows a state only at the end of a block of the gate's."""
        for hash_ in hashes:
            block = self._blocks.get(hash_) if hash_ in self._states else None
            if block is None or block.has_state or block.n_tokens % self._block_tokens:
                continue
            block.has_state = True
            self._place.hold_state(block.keys[-1])
            if self._is_step_done(1):
                yield

    def _drop_state(self, block: _Block | None) -> None:
        if block is not None and block.has_state:
            block.has_state = False
            self._place.release_state(block.keys[-1])

    def _forget_blocks(self) -> Iterator[None]:
        while self._blocks:
            _, block = self._blocks.popitem()
            if block.keys:
                self._drop_state(block)
                self._place.release(block.keys)
            if self._is_step_done(1):
                yield
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
