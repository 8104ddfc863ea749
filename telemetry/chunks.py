"""Some minutes of one layout's readings of one kind, as columns; and the readings again.

A chunk is lossless but for what `columns` says of numbers with many decimals and for times, which
are kept to the microsecond. Its columns can be read one by one: a chart touches two of thirty.
"""

from __future__ import annotations

import itertools
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from telemetry import columns, layouts, wire
from telemetry.columns import Matrix

AT: Final = "@at"
RECEIVED: Final = "@received"
EPOCH: Final = "@epoch"
STATE: Final = "@state"
ERROR: Final = "@error"
_PLAN: Final = ("plan_epoch", "plan_version")
MICRO: Final = 1e6

SPAN_S: Final = 3600.0
"""The longest time one chunk reaches over, late readings included: readers look so far back."""

Shape = Literal["number", "labelled", "histogram", "labelled_histogram", "text"]
Ticks = npt.NDArray[np.intp]

_SIGNALS: Final[Mapping[str, type]] = {
    "instance": wire.InstanceSignals,
    "link": wire.LinkSignals,
    "router": wire.RouterSignals,
}
_SAMPLES: Final[Mapping[str, type]] = {
    "instance": wire.InstanceSample,
    "link": wire.LinkSample,
    "router": wire.RouterSample,
}


def _shape(hint: Any) -> Shape:
    [kind] = [arm for arm in typing.get_args(hint) if arm is not type(None)]
    if kind is wire.Histogram:
        return "histogram"
    if typing.get_origin(kind) is dict:
        inner = typing.get_args(kind)[1]
        return "labelled_histogram" if inner is wire.Histogram else "labelled"
    return "text" if kind is str else "number"


SHAPES: Final[Mapping[str, Mapping[str, Shape]]] = {
    kind: {name: _shape(hint) for name, hint in typing.get_type_hints(signals).items()}
    for kind, signals in _SIGNALS.items()
}
"""What each signal of each kind is made of."""

_NUMBERS: Final = {
    kind: tuple(name for name, shape in shapes.items() if shape == "number")
    for kind, shapes in SHAPES.items()
}
_numbers: Final = {kind: attrgetter(*names) for kind, names in _NUMBERS.items()}
_others: Final = {
    kind: tuple((name, shape) for name, shape in shapes.items() if shape != "number")
    for kind, shapes in SHAPES.items()
}
_OTHERS: Final = {kind: tuple(name for name, _ in others) for kind, others in _others.items()}
_shaped: Final = {kind: attrgetter(*names) for kind, names in _OTHERS.items()}
_SAID: Final = {
    "instance": ("at_s", "signals", "state", "error", "epoch_s"),
    "link": ("at_s", "signals", "state", "error"),
    "router": ("at_s", "signals", "state", "error", "epoch_s", *_PLAN),
}
_said: Final = {kind: attrgetter(*names) for kind, names in _SAID.items()}


def is_counter(name: str) -> bool:
    """Does this signal only ever rise, until its process begins anew?"""
    return name.endswith("_total")


@dataclass(frozen=True, slots=True)
class Told:
    """What one batch said of its sources of one kind: `numbers` has shape (n_sources, n_numbers),
    NaN where there is none; of all else those columns in which anything stands."""

    at_s: Sequence[float]
    numbers: Matrix
    others: Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """One stored batch as chunks need it. A thousand batches as they were would not fit into the
    processor's caches, and take twice the time for that."""

    received_s: float
    key: tuple[str, int, int]
    told: Mapping[str, Told]

    @classmethod
    def of(cls, batch: wire.Batch, received_s: float) -> Row:
        """The row of a batch that came in at `received_s`."""
        told = {
            kind: _told(kind, samples)
            for kind in layouts.KINDS
            if (samples := layouts.samples(batch, kind))
        }
        return cls(received_s, (batch.agent, batch.boot, batch.seq), told)

    @property
    def times(self) -> list[float]:
        """When its readings were taken, epoch seconds."""
        return [at_s for told in self.told.values() for at_s in told.at_s]


def _told(kind: str, samples: Sequence[Any]) -> Told:
    # Attributes of all readings at once: this is most of what a compaction does.
    said = dict(zip(_SAID[kind], zip(*map(_said[kind], samples), strict=True), strict=True))
    signals = said.pop("signals")
    at_s = said.pop("at_s")
    if said["state"].count("ok") == len(samples):
        del said["state"]
    shaped = zip(*map(_shaped[kind], signals), strict=True)
    said.update(zip(_OTHERS[kind], shaped, strict=True))
    return Told(
        at_s,
        np.array(list(map(_numbers[kind], signals)), dtype=np.float64),
        {name: column for name, column in said.items() if column.count(None) < len(column)},
    )


@dataclass(frozen=True)
class Chunk:
    """Readings of `n_ticks` batches of one layout; `columns` by name, those that are not empty."""

    kind: str
    n_ticks: int
    n_sources: int
    at_min_s: float
    at_max_s: float
    columns: Mapping[str, bytes]


def build(kind: str, rows: Sequence[Row]) -> Chunk | None:
    """The readings of `kind` in batches of one layout, ascending by time; None without any."""
    told = [row.told[kind] for row in rows if kind in row.told]
    if not told:
        return None
    n_ticks, n_sources = len(told), len(told[0].at_s)
    at = np.rint(np.array([one.at_s for one in told]) * MICRO)
    received = np.rint(np.array([[row.received_s] for row in rows if kind in row.told]) * MICRO)
    others = {
        name: _column(name, told, n_sources)
        for name in dict.fromkeys(name for one in told for name in one.others)
    }
    found = {
        AT: columns.encode(at, exact=True),
        RECEIVED: columns.encode(received, exact=True),
        **_process(kind, others, n_ticks, n_sources),
    }
    numbers = np.ascontiguousarray(np.stack([one.numbers for one in told]).transpose(2, 0, 1))
    for name, matrix in zip(_NUMBERS[kind], numbers, strict=True):
        found[name] = columns.encode(matrix, exact=is_counter(name))
    for name, shape in _others[kind]:
        if name in others:
            found[name] = _ENCODERS[shape](others[name], n_ticks, n_sources)
    return Chunk(
        kind=kind,
        n_ticks=n_ticks,
        n_sources=n_sources,
        at_min_s=float(at.min()) / MICRO,
        at_max_s=float(at.max()) / MICRO,
        columns={name: column for name, column in found.items() if column},
    )


def times(chunk: Chunk) -> Matrix:
    """When each source was read, epoch seconds, shape (n_ticks, n_sources)."""
    return columns.decode(chunk.columns[AT], chunk.n_ticks, chunk.n_sources) / MICRO


def numbers(chunk: Chunk, name: str) -> Matrix:
    """One plain signal, shape (n_ticks, n_sources), NaN where it was not measured."""
    return columns.decode(chunk.columns.get(name, b""), chunk.n_ticks, chunk.n_sources)


def samples(
    chunk: Chunk, facts: Sequence[layouts.Facts], places: Sequence[tuple[int, int]]
) -> list[tuple[float, Any]]:
    """(received_s, sample) of each (tick, source) of `places`; `facts` are the layout's."""
    received = columns.decode(chunk.columns[RECEIVED], chunk.n_ticks, 1)[:, 0] / MICRO
    at_s = times(chunk)
    epochs = numbers(chunk, EPOCH)
    plans = [numbers(chunk, f"@{name}") for name in _PLAN]
    states = columns.decode_objects(chunk.columns.get(STATE, b"")) or {}
    errors = columns.decode_objects(chunk.columns.get(ERROR, b"")) or {}
    signals = _signals(chunk, places)
    out = []
    for (tick, source), said in zip(places, signals, strict=True):
        place = tick * chunk.n_sources + source
        more: dict[str, Any] = {"state": states.get(place, "ok"), "error": errors.get(place)}
        if chunk.kind != "link":
            more["epoch_s"] = float(epochs[tick, source])
        if chunk.kind == "router":
            for name, matrix in zip(_PLAN, plans, strict=True):
                number = matrix[tick, source]
                more[name] = None if np.isnan(number) else int(number)
        constant = layouts.named(chunk.kind, facts[source])
        sample = _SAMPLES[chunk.kind](
            **constant, **more, at_s=float(at_s[tick, source]), signals=said
        )
        out.append((float(received[tick]), sample))
    return out


def _column(name: str, told: Sequence[Told], n_sources: int) -> list[Any]:
    """Values of all ticks and sources, tick by tick."""
    absent = ["ok" if name == "state" else None] * n_sources
    return list(chain.from_iterable(one.others.get(name, absent) for one in told))


def _process(
    kind: str, others: Mapping[str, Sequence[Any]], n_ticks: int, n_sources: int
) -> dict[str, bytes]:
    """What is not a signal: states, errors, the start of processes, plans."""
    found = {}
    if "state" in others:
        states = {i: state for i, state in enumerate(others["state"]) if state != "ok"}
        found[STATE] = columns.encode_objects(states)
    if "error" in others:
        errors = {i: error for i, error in enumerate(others["error"]) if error is not None}
        found[ERROR] = columns.encode_objects(errors)
    counted = {EPOCH: "epoch_s"} if kind != "link" else {}
    if kind == "router":
        counted |= {f"@{name}": name for name in _PLAN}
    for column, name in counted.items():
        numbers = np.array(others.get(name, [None] * n_ticks * n_sources), dtype=np.float64)
        found[column] = columns.encode(numbers.reshape(n_ticks, n_sources), exact=True)
    return found


def _signals(chunk: Chunk, places: Sequence[tuple[int, int]]) -> list[Any]:
    """The signals struct of each place."""
    said: list[dict[str, Any]] = [{} for _ in places]
    for name, shape in SHAPES[chunk.kind].items():
        column = chunk.columns.get(name)
        if column is None:
            continue
        if shape == "number":
            matrix = columns.decode(column, chunk.n_ticks, chunk.n_sources)
            for out, (tick, source) in zip(said, places, strict=True):
                value = matrix[tick, source]
                if value == value:  # not NaN
                    out[name] = float(value)
        else:
            values = _DECODERS[shape](column, chunk.n_ticks, places)
            for out, value in zip(said, values, strict=True):
                if value is not None:
                    out[name] = value
    make = _SIGNALS[chunk.kind]
    return [make(**out) for out in said]


# Labelled signals: one slot for each (source, key) that occurs.


def _encode_labelled(values: Sequence[Any], n_ticks: int, n_sources: int) -> bytes:
    slots = sorted(
        {(i % n_sources, key) for i, by in enumerate(values) if by is not None for key in by}
    )
    matrix = np.full((n_ticks, len(slots)), np.nan)
    at = {slot: j for j, slot in enumerate(slots)}
    for i, by in enumerate(values):
        for key, value in (by or {}).items():
            matrix[i // n_sources, at[i % n_sources, key]] = value
    return msgspec.msgpack.encode([slots, columns.encode(matrix, exact=True)])


def _decode_labelled(
    column: bytes, n_ticks: int, places: Sequence[tuple[int, int]]
) -> list[dict[str, float] | None]:
    slots, packed = msgspec.msgpack.decode(column)
    matrix = columns.decode(packed, n_ticks, len(slots))
    by_source: dict[int, list[tuple[str, int]]] = {}
    for j, (source, key) in enumerate(slots):
        by_source.setdefault(source, []).append((key, j))
    out = []
    for tick, source in places:
        row = matrix[tick]
        found = {key: float(row[j]) for key, j in by_source.get(source, ()) if not np.isnan(row[j])}
        out.append(found or None)
    return out


# Histograms: one slot for each (source, key, edges) that occurs; the key is "" without labels.


def _encode_histograms(values: Sequence[Any], n_ticks: int, n_sources: int) -> bytes:
    labelled = [None if value is None else {"": value} for value in values]
    return _encode_labelled_histograms(labelled, n_ticks, n_sources)


def _encode_labelled_histograms(values: Sequence[Any], n_ticks: int, n_sources: int) -> bytes:
    slots: dict[Slot, list[tuple[int, wire.Histogram]]] = {}
    for i, by in enumerate(values):
        for key, histogram in (by or {}).items():
            slot = (i % n_sources, key, tuple(histogram.edges))
            slots.setdefault(slot, []).append((i // n_sources, histogram))
    ordered = sorted(slots)
    counts = np.full((n_ticks, sum(len(slot[2]) + 1 for slot in ordered)), np.nan)
    sums = np.full((n_ticks, len(ordered)), np.nan)
    first = 0
    for j, slot in enumerate(ordered):
        ticks = [tick for tick, _ in slots[slot]]
        last = first + len(slot[2]) + 1
        counts[ticks, first:last] = [histogram.counts for _, histogram in slots[slot]]
        sums[ticks, j] = [histogram.sum for _, histogram in slots[slot]]
        first = last
    return pack_histograms(ordered, counts, sums)


Slot = tuple[int, str, tuple[float, ...]]
"""(source, key, edges): the key is empty where the signal has no labels."""


def pack_histograms(slots: Sequence[Slot], counts: Matrix, sums: Matrix) -> bytes:
    """One column of histograms. `counts` has the buckets of all slots side by side."""
    edges = sorted({slot[2] for slot in slots})
    heads = [[source, key, edges.index(own)] for source, key, own in slots]
    return msgspec.msgpack.encode(
        [edges, heads, columns.encode(counts, exact=True), columns.encode(sums, exact=True)]
    )


@dataclass(frozen=True)
class Histograms:
    """All histograms of one column: one slot a (source, key, edges)."""

    slots: tuple[Slot, ...]
    counts: tuple[Matrix, ...]
    """Of each slot, shape (n_ticks, n_edges + 1), NaN where there was none."""
    sums: Matrix


def histograms(column: bytes, n_ticks: int) -> Histograms:
    """The cumulative histograms in a column."""
    edges, heads, packed_counts, packed_sums = msgspec.msgpack.decode(column)
    slots = tuple((source, key, tuple(edges[own])) for source, key, own in heads)
    widths = [len(slot[2]) + 1 for slot in slots]
    counts = columns.decode(packed_counts, n_ticks, sum(widths))
    ends = np.cumsum([0, *widths])
    return Histograms(
        slots,
        tuple(counts[:, a:b] for a, b in itertools.pairwise(ends)),
        columns.decode(packed_sums, n_ticks, len(slots)),
    )


def _decode_labelled_histograms(
    column: bytes, n_ticks: int, places: Sequence[tuple[int, int]]
) -> list[Any]:
    found = histograms(column, n_ticks)
    by_source: dict[int, list[int]] = {}
    for j, (source, _, _) in enumerate(found.slots):
        by_source.setdefault(source, []).append(j)
    out: list[Any] = []
    for tick, source in places:
        by = {}
        for j in by_source.get(source, ()):
            _, key, edges = found.slots[j]
            total = found.sums[tick, j]
            if total == total:  # not NaN
                counts = found.counts[j][tick].tolist()
                by[key] = wire.Histogram(list(edges), counts, float(total))
        out.append(by or None)
    return out


def _decode_histograms(column: bytes, n_ticks: int, places: Sequence[tuple[int, int]]) -> list[Any]:
    return [
        None if by is None else by[""]
        for by in _decode_labelled_histograms(column, n_ticks, places)
    ]


def _encode_texts(values: Sequence[Any], n_ticks: int, n_sources: int) -> bytes:
    return columns.encode_objects([n_sources, values])


def _decode_texts(
    column: bytes, n_ticks: int, places: Sequence[tuple[int, int]]
) -> list[str | None]:
    n_sources, values = columns.decode_objects(column)
    return [values[tick * n_sources + source] for tick, source in places]


_ENCODERS: Final = {
    "labelled": _encode_labelled,
    "histogram": _encode_histograms,
    "labelled_histogram": _encode_labelled_histograms,
    "text": _encode_texts,
}
_DECODERS: Final[Mapping[str, Any]] = {
    "labelled": _decode_labelled,
    "histogram": _decode_histograms,
    "labelled_histogram": _decode_labelled_histograms,
    "text": _decode_texts,
}
