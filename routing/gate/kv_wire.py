"""KV events as vLLM puts them on the wire: msgpack, an array or a map, as its version has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

BlockHash = int | bytes
GroupIdx = Annotated[int, msgspec.Meta(ge=0, le=1023)]


class BlockStored(msgspec.Struct, frozen=True, tag="BlockStored"):
    """Consecutive blocks of one sequence; `parent_block_hash` None: they start it.

    `extra_keys` are per block what else than tokens went into its hash.
    """

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[Annotated[int, msgspec.Meta(ge=0, lt=2**32)]]
    block_size: Annotated[int, msgspec.Meta(ge=1)]
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: GroupIdx | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None


class BlockRemoved(msgspec.Struct, frozen=True, tag="BlockRemoved"):
    """Blocks that left."""

    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: GroupIdx | None = None
    locality: str | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag="AllBlocksCleared"):
    """The cache is empty."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


# Until 2026 vLLM wrote events as arrays with the tag first, since then as maps with it as `type`.
class _StoredArray(BlockStored, frozen=True, array_like=True, tag="BlockStored"):
    pass


class _RemovedArray(BlockRemoved, frozen=True, array_like=True, tag="BlockRemoved"):
    pass


class _ClearedArray(AllBlocksCleared, frozen=True, array_like=True, tag="AllBlocksCleared"):
    pass


class _Batch(msgspec.Struct, frozen=True):
    ts: float
    events: list[msgspec.Raw]


class _BatchArray(_Batch, frozen=True, array_like=True):
    pass


_batch_map = msgspec.msgpack.Decoder(_Batch)
_batch_array = msgspec.msgpack.Decoder(_BatchArray)
_event_map = msgspec.msgpack.Decoder(Event)
_event_array = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray)


def decode(payload: bytes) -> Iterator[Event | None]:
    """The events of one message, each decoded when it is asked for; None: it makes no sense.

    Raises msgspec.MsgspecError or RecursionError at once when the message as a whole makes none.
    """
    batch = (_batch_map if _is_map(payload) else _batch_array).decode(payload)
    return map(_event, batch.events)


def _event(raw: msgspec.Raw) -> Event | None:
    try:
        event: Event = (_event_map if _is_map(raw) else _event_array).decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return event


def _is_map(packed: bytes | msgspec.Raw) -> bool:
    first = bytes(memoryview(packed)[:1])
    return b"\x80" <= first <= b"\x8f" or first in (b"\xde", b"\xdf")
