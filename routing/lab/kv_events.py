"""KV events of the emulated engines, on the wire as vLLM 0.32 has them.

A message on an engine's ZeroMQ PUB socket is three frames: topic (empty), the engine's own number
of it (8 bytes, big endian, from 0), and a msgpack array `[ts, events, data_parallel_rank]` whose
events are maps with a `type`. Only blocks of token ids are told: of text the lab has no ids. Group
0 is full attention; a state of linear layers is a block of group 1.

A subscriber that reads slowly loses messages and sees that by their numbers; the lab never waits.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from itertools import count

import msgspec

from routing.lab.cache import Change
from routing.lab.errors import LabError

try:
    import zmq
except ImportError:
    zmq = None  # type: ignore[assignment]

_MAX_QUEUED_MESSAGES = 10_000
_ATTENTION, _LINEAR = 0, 1
_KINDS = ("full_attention", "mamba")


class _Stored(msgspec.Struct, tag="BlockStored", kw_only=True):
    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: None = None
    medium: str = "GPU"
    lora_name: None = None
    extra_keys: list[None]
    group_idx: int
    kv_cache_spec_kind: str


class _Removed(msgspec.Struct, tag="BlockRemoved"):
    block_hashes: list[bytes]
    group_idx: int
    medium: str = "GPU"


class _Cleared(msgspec.Struct, tag="AllBlocksCleared"):
    pass


_Event = _Stored | _Removed | _Cleared


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[_Event]
    data_parallel_rank: int = 0


class Publisher:
    """Tells what one engine's prefix cache stores and drops; a listener of that cache."""

    def __init__(self, socket: zmq.Socket[bytes], *, block_tokens: int) -> None:
        self._socket, self._block_tokens = socket, block_tokens
        self._numbers = count()
        self._told: set[bytes] = set()
        self._encoder = msgspec.msgpack.Encoder()

    def changed(self, change: Change) -> None:
        events: list[_Event] = []
        if change.prompt.ids is not None:
            events += [self._stored(change, run, _ATTENTION) for run in change.stored]
            if change.state_at is not None:
                at = range(change.state_at, change.state_at + 1)
                events.append(self._stored(change, at, _LINEAR))
            self._told.update(*(change.prompt.blocks[r.start : r.stop] for r in change.stored))
        removed = [(block, state) for block, state in change.removed if block in self._told]
        self._told.difference_update(block for block, _ in removed)
        for group, hashes in (
            (_LINEAR, [block for block, had_state in removed if had_state]),
            (_ATTENTION, [block for block, _ in removed]),
        ):
            if hashes:
                events.append(_Removed(hashes, group))
        if events:
            self._send(events)

    def cleared(self) -> None:
        self._told.clear()
        self._send([_Cleared()])

    def _stored(self, change: Change, run: range, group: int) -> _Stored:
        blocks, ids, size = change.prompt.blocks, change.prompt.ids, self._block_tokens
        assert ids is not None
        return _Stored(
            block_hashes=list(blocks[run.start : run.stop]),
            parent_block_hash=blocks[run.start - 1] if run.start else None,
            token_ids=ids[run.start * size : run.stop * size].tolist(),
            block_size=size,
            extra_keys=[None] * len(run),
            group_idx=group,
            kv_cache_spec_kind=_KINDS[group],
        )

    def _send(self, events: list[_Event]) -> None:
        payload = self._encoder.encode(_Batch(time.time(), events))
        number = next(self._numbers).to_bytes(8, "big")
        self._socket.send_multipart((b"", number, payload), flags=zmq.NOBLOCK)


class Publishers:
    """The PUB sockets of a lab process; they close with `closing`. Raises LabError."""

    def __init__(self, host: str, closing: AsyncExitStack) -> None:
        if zmq is None:
            raise LabError(
                "needs the `pyzmq` package: install prfaas-console[kv-events]", field="kv_events"
            )
        self._host, self._context = host, zmq.Context()
        closing.callback(self._context.destroy, linger=0)

    def open(self, port: int, *, block_tokens: int) -> tuple[Publisher, str]:
        """A publisher on `port` (0: any) and its endpoint, `tcp://HOST:PORT`. Raises LabError."""
        socket = self._context.socket(zmq.PUB)
        socket.set(zmq.SNDHWM, _MAX_QUEUED_MESSAGES)
        try:
            socket.bind(f"tcp://{self._host}:{port or '*'}")
        except zmq.ZMQError as exc:
            socket.close()
            raise LabError(
                f"cannot listen: {exc.strerror}", field=f"port {self._host}", value=port
            ) from None
        endpoint = socket.get_string(zmq.LAST_ENDPOINT)
        return Publisher(socket, block_tokens=block_tokens), endpoint
