"""A checked batch on its way to the tables.

A batch waits up to a tenth of a second for its commit, with a hundred others. Their readings as
Python's objects would push each other out of the processor's caches: reading a batch and keeping it
costs twice what reading it and forgetting it does. So all that the tables want is taken out of it
at once, and what is kept are its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from telemetry import bodies, layouts, wire

BatchKey = tuple[str, int, int]

_MAX_KEYS: Final = 100_000
_keys: Final[dict[layouts.Key, layouts.Key]] = {}
"""One object for each layout: an agent names the same sources every second."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A row of the landing zone: its layout, when it was read, and its bytes (`bodies.pack`)."""

    layout: layouts.Key
    at_s: float
    body: bytes


@dataclass(frozen=True, slots=True)
class Arrival:
    """What the tables keep of a batch that came in at `received_s`; `body` is all of it."""

    agent: str
    boot: int
    seq: int
    sent_at_s: float
    report: wire.AgentReport | None
    received_s: float
    body: bytes
    ticks: tuple[Tick, ...]

    @classmethod
    def of(cls, batch: wire.Batch, *, received_s: float, encoded: bytes | None = None) -> Arrival:
        """`encoded` are the batch's msgpack bytes, where they are at hand."""
        body = bodies.pack(wire.encode(batch) if encoded is None else encoded)
        ticks = tuple(
            Tick(
                _one(layouts.key_of(tick)),
                at_s,
                body if tick is batch else bodies.pack(wire.encode(tick)),
            )
            for tick, at_s in layouts.single_ticks(batch)
        )
        return cls(
            batch.agent,
            batch.boot,
            batch.seq,
            batch.sent_at_s,
            batch.report,
            received_s,
            body,
            ticks,
        )

    @property
    def key(self) -> BatchKey:
        return (self.agent, self.boot, self.seq)

    @property
    def batch(self) -> wire.Batch:
        """Read again."""
        return bodies.unpack(self.body)


def _one(key: layouts.Key) -> layouts.Key:
    if len(_keys) >= _MAX_KEYS:
        _keys.clear()
    return _keys.setdefault(key, key)
