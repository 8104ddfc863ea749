"""Which sources a batch is about, in which order: what stays the same from one batch to the next.

An agent sends the same few sources every second, so their names are stored once, as a layout, and
a batch refers to it. Everything here that is constant is checked once a layout, not once a batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import msgspec

from telemetry import wire

KINDS: Final = ("instance", "link", "router")
"""The kinds of source, in the order of their numbers in the tables."""

MOMENT_S: Final = 2.0
"""How far apart the readings of one batch may be taken and still be one moment."""

Facts = tuple[Any, ...]

_FACT_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "instance": ("id", "role", "engine", "engine_version", "group"),
    "link": ("id", "measured_layer"),
    "router": ("id", "kind"),
}
_entries: Final = {kind: attrgetter(f"{kind}s") for kind in KINDS}
_facts: Final = {kind: attrgetter(*names) for kind, names in _FACT_NAMES.items()}


@dataclass(frozen=True)
class Layout:
    """The sources of one kind of batch of one agent. `facts` by kind, one tuple a source."""

    agent: str
    instance: tuple[Facts, ...]
    link: tuple[Facts, ...]
    router: tuple[Facts, ...]

    def facts(self, kind: str) -> tuple[Facts, ...]:
        """The constant facts of every source of `kind`, in the order of the batch's entries."""
        found: tuple[Facts, ...] = getattr(self, kind)
        return found

    def paths(self, kind: str) -> list[str]:
        """Their ids."""
        return [facts[0] for facts in self.facts(kind)]

    def sources(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(kind, facts by name) of every source."""
        for kind in KINDS:
            for facts in self.facts(kind):
                yield kind, named(kind, facts)

    def encode(self) -> bytes:
        """The layout as msgpack, the same bytes for the same layout."""
        return msgspec.msgpack.encode([self.agent, self.instance, self.link, self.router])

    @property
    def digest(self) -> bytes:
        """SHA-256 of its bytes: its identity in every process."""
        return hashlib.sha256(self.encode()).digest()


Key = tuple[str, tuple[Facts, ...], tuple[Facts, ...], tuple[Facts, ...]]


def key_of(batch: wire.Batch) -> Key:
    """What tells the layout of a batch from others, cheap to make and to look up."""
    return (
        batch.agent,
        tuple(map(_facts["instance"], batch.instances)),
        tuple(map(_facts["link"], batch.links)),
        tuple(map(_facts["router"], batch.routers)),
    )


def of(key: Key) -> Layout:
    """The layout with this key."""
    return Layout(*key)


def decode(encoded: bytes) -> Layout:
    """The layout that `Layout.encode` wrote."""
    agent, *kinds = msgspec.msgpack.decode(encoded)
    instance, link, router = (tuple(tuple(facts) for facts in kind) for kind in kinds)
    return Layout(agent, instance, link, router)


def samples(batch: wire.Batch, kind: str) -> list[Any]:
    """The entries of `kind` in a batch."""
    found: list[Any] = _entries[kind](batch)
    return found


_at_s: Final = attrgetter("at_s")
_id: Final = attrgetter("id")


def times(batch: wire.Batch) -> list[float]:
    """When each of its entries was read, epoch seconds."""
    return [*map(_at_s, batch.instances), *map(_at_s, batch.links), *map(_at_s, batch.routers)]


def single_ticks(batch: wire.Batch) -> list[tuple[wire.Batch, float]]:
    """A batch with several moments as batches of one moment each, in order of time.

    With each comes when its last entry was read, epoch seconds.

    One moment has each source once, all read within MOMENT_S: readers then find the readings of a
    time by the time of their batch.
    """
    at_s = times(batch)
    if not at_s or (max(at_s) - min(at_s) <= MOMENT_S and not _has_twice(batch)):
        return [(batch, max(at_s, default=batch.sent_at_s))]
    entries = [(s.at_s, f"{kind}s", s) for kind in KINDS for s in samples(batch, kind)]
    moments: list[dict[str, list[Any]]] = []
    latest_s: list[float] = []
    began_s, seen = float("-inf"), set[tuple[str, str]]()
    for at_s, name, sample in sorted(entries, key=lambda entry: entry[0]):
        if at_s - began_s > MOMENT_S or (name, sample.id) in seen:
            moments.append({f"{kind}s": [] for kind in KINDS})
            latest_s.append(at_s)
            began_s, seen = at_s, set()
        seen.add((name, sample.id))
        moments[-1][name].append(sample)
        latest_s[-1] = at_s
    ticks = [msgspec.structs.replace(batch, **moment) for moment in moments]
    return list(zip(ticks, latest_s, strict=True))


def _has_twice(batch: wire.Batch) -> bool:
    """Is there a source with two readings?"""
    return any(
        len(set(map(_id, entries))) < len(entries)
        for entries in (batch.instances, batch.links, batch.routers)
    )


def named(kind: str, facts: Facts) -> dict[str, Any]:
    """The facts of one source by name."""
    return dict(zip(_FACT_NAMES[kind], facts, strict=True))
