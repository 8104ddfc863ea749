"""Which series of an engine family mean which canonical signal: `engines/*.toml`, checked.

One file a family, so that a renamed metric is one word in one file. An unknown key is an error:
a misspelt `names` must not turn into a signal that is silently "not exposed" for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from telemetry import strict_toml
from telemetry.strict_toml import TomlError
from telemetry.wire import InstanceSignals, LinkSignals, RouterSignals

FOLDER = Path(__file__).parent / "engines"
Kind = Literal["gauge", "counter", "histogram"]
Layer = Literal["engine", "server", "addon"]
LAYERS: tuple[Layer, ...] = ("engine", "server", "addon")

UNITS: Mapping[str, tuple[str, float, float]] = {
    "ms": ("seconds", 1.0, 1e3),
    "us": ("seconds", 1.0, 1e6),
    "ns": ("seconds", 1.0, 1e9),
    "percent": ("ratio", 1.0, 100.0),
    "KiB": ("bytes", 2.0**10, 1.0),
    "MiB": ("bytes", 2.0**20, 1.0),
    "GiB": ("bytes", 2.0**30, 1.0),
    "MB": ("bytes", 1e6, 1.0),
    "GB": ("bytes", 1e9, 1.0),
    "mW": ("watts", 1.0, 1e3),
    "bytes_per_s": ("gbps", 8.0, 1e9),
}
"""Units an exporter may use -> (canonical unit, times, divided by). 1 Gbps is 10^9 bit/s."""
CANONICAL_UNITS = frozenset(
    {"", "seconds", "ratio", "bytes", "tokens", "requests", "watts", "celsius", "gbps"}
    | {"preemptions", "transfers", "segments"}
)
ENDS = ("", "_bucket", "_sum", "_count")
SIGNALS: Mapping[str, frozenset[str]] = {
    "instance": frozenset(InstanceSignals.__struct_fields__),
    "router": frozenset((*RouterSignals.__struct_fields__, "plan_epoch", "plan_version")),
    "host": frozenset(LinkSignals.__struct_fields__),
}
"""What a map may speak of: what a batch carries, and the plan a gate says it runs."""


class Source(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One name a signal goes by, without the family's prefix.

    `unit` is what the exporter counts in where that is not the signal's unit. `where` takes only
    the series with these label values ("" for a label that is not there). With `labels` the number
    is not the sample's value but the product of those labels' numbers (an info series). `since` and
    `until` are the versions it was seen in, both inclusive; they choose between entries of one name
    whose meaning changed.
    """

    name: str
    unit: str | None = None
    where: dict[str, str] = {}
    labels: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None

    def covers(self, version: str) -> bool:
        """Whether a version is in its range; an unknown version is in every range."""
        at = _version(version)
        if not at:
            return True
        return (self.since is None or at >= _version(self.since)) and (
            # 0.5 until "0.5" covers 0.5.4 as well.
            self.until is None or at[: len(_version(self.until))] <= _version(self.until)
        )


Names = tuple[Source, ...]
"""In a file an entry may be a plain string: the name, nothing else to say of it."""
_LISTS = ("names", "also", "times", "sums", "counts", "part", "whole", "rest")


class Stages(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Where some of the waiting requests wait.

    Either one gauge split by a `label`, whose values become the stages (after `prefix`), or gauges
    of one `stage`, under the first of `names` that is exposed. The requests are part of the
    signal's own total, unless `outside`. With `inside` they are a second look at requests already
    counted under those stages, from which they are taken out, in that order. Without a
    `required` stage there is no queue: the rest of it would pass for the whole.
    """

    name: str = ""
    names: Names = ()
    label: str = ""
    stage: str = ""
    prefix: str = ""
    inside: tuple[str, ...] = ()
    outside: bool = False
    required: bool = False

    def sources(self) -> Names:
        """The names to look under."""
        return (Source(name=self.name),) if self.name else self.names


class Ratio(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """`part` over `whole`, or over `part` plus `rest`. `lifetime`: of counters since the start."""

    part: Names
    whole: Names = ()
    rest: Names = ()
    lifetime: bool = False


class Weight(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Where a ratio's capacity weight is written: a label of an info series, the first given.

    Without `labels` it is the value of the series.
    """

    name: str
    labels: tuple[str, ...] = ()


class Distrust(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A signal is missing, for `reason`, while this series shows more than zero.

    `present`: while it is there at all.
    """

    name: str
    label: str
    value: str
    reason: str
    present: bool = False


class Label(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A label of an info series that carries a fact, such as a version."""

    name: str
    label: str


class SignalMap(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How one canonical signal is read. `names` come without prefix, the preferred one first.

    Series are folded by `aggregate` within each combination of the labels `by`, whose values,
    joined by `separator` (equal neighbours once), become the keys of a labelled signal; a label
    that is also `optional` is left out of the key where a version does not know it, and `=word`
    is that word. `keys` renames the values of a single label and leaves the others out. `each`:
    keys are measurements of their own (devices), so a bad one is left out instead of spoiling all.

    `also` are further series added where they are exposed; `times` is a factor. The first of
    `ratios` that is exposed stands in for `names`, and one of a lifetime is preferred over them. A
    histogram without buckets may be made of two counters, `sums` and `counts`. `adds`: what an
    add-on counts is not in the engine's number.
    """

    kind: Kind
    unit: str
    names: Names = ()
    also: Names = ()
    times: Names = ()
    sums: Names = ()
    counts: Names = ()
    ratios: tuple[Ratio, ...] = ()
    aggregate: Literal["sum", "mean", "max", "min"] = "sum"
    by: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    separator: str = "|"
    keys: dict[str, str] = {}
    each: bool = False
    stages: tuple[Stages, ...] = ()
    weight: Weight | None = None
    distrust: Distrust | None = None
    adds: bool = False
    note: str = ""

    def lists(self) -> Iterator[Names]:
        """Every list of names there is in it."""
        yield from (self.names, self.also, self.times, self.sums, self.counts)
        for ratio in self.ratios:
            yield from (ratio.part, ratio.whole, ratio.rest)
        for stages in self.stages:
            yield stages.sources()


class EngineMap(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One family of exporters.

    `layer`: what an `engine` says of itself comes first, what a `server` around it or an `addon`
    beside it says fills what is missing. `start_time` are whole series names whose value is the
    process' start (epoch seconds); `version_path` is an HTTP path beside `/metrics` that answers
    `{"version": …}`. Series that differ only in the labels `copies` are one measurement told by
    several ranks. `only_here` are whole names that settle that a text is of this family, which it
    is not without one of them; `knows` are further names of it that mean no signal. `ignore` are
    beginnings of names that are nobody's business here. Numbers of `blank_from` and above are the
    exporter's word for "not supported". `lacks` says why a signal cannot be had.
    """

    engine: str
    title: str
    versions: str
    kind: Literal["instance", "router", "host"]
    layer: Layer = "engine"
    prefixes: tuple[str, ...]
    signals: dict[str, SignalMap]
    start_time: tuple[str, ...] = ()
    rank_label: str | None = None
    copies: tuple[str, ...] = ()
    version_info: Label | None = None
    version_path: str | None = None
    only_here: tuple[str, ...] = ()
    knows: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    blank_from: float | None = None
    lacks: dict[str, str] = {}

    def series_names(self) -> set[str]:
        """Every name this map knows, without prefix."""
        names = {self.version_info.name} if self.version_info else set()
        for signal in self.signals.values():
            names.update(source.name for some in signal.lists() for source in some)
            names.update(entry.name for entry in (signal.weight, signal.distrust) if entry)
        return names | set(self.knows)


def load(path: Path) -> EngineMap:
    """The map in one file. Raises strict_toml.TomlError."""
    document = _spelled_out(strict_toml.document(path))
    signals = document.get("signals")
    # One by one first: an error then names the signal it is in.
    for name, table in (signals if isinstance(signals, dict) else {}).items():
        signal = strict_toml.convert(path, table, SignalMap, at=f"signals.{name}")
        for key, value, why in _problems(signal):
            raise TomlError(path, f"signals.{name}.{key}", value, why)
    engine_map = strict_toml.convert(path, document, EngineMap)
    for name in (*engine_map.signals, *engine_map.lacks):
        if name not in SIGNALS[engine_map.kind]:
            why = f"is no signal of a {engine_map.kind}"
            raise TomlError(path, "signals" if name in engine_map.signals else "lacks", name, why)
    return engine_map


def _spelled_out(table: Any) -> Any:
    """The same document with `{ name = … }` for each plain name in a list of names."""
    if isinstance(table, list):
        return [_spelled_out(entry) for entry in table]
    if not isinstance(table, dict):
        return table
    return {
        key: [{"name": name} if isinstance(name, str) else name for name in value]
        if key in _LISTS and isinstance(value, list)
        else _spelled_out(value)
        for key, value in table.items()
    }


def _problems(signal: SignalMap) -> Iterator[tuple[str, object, str]]:
    """(key, value, why) of whatever the types cannot say."""
    if signal.unit not in CANONICAL_UNITS:
        known = ", ".join(sorted(CANONICAL_UNITS - {""}))
        yield "unit", signal.unit, f"a signal is in one of {known}"
    for names in signal.lists():
        for source in names:
            unit = source.unit
            if unit is not None and (unit not in UNITS or UNITS[unit][0] != signal.unit):
                yield f"{source.name}.unit", unit, f"does not convert to {signal.unit!r}"
            for version in (source.since, source.until):
                if version is not None and not _version(version):
                    yield source.name, version, "a version begins with a number"
    for stages in signal.stages:
        if bool(stages.label) == bool(stages.stage) or bool(stages.name) == bool(stages.names):
            yield "stages", stages.name, "give name or names, and label or stage, one of each"
    for ratio in signal.ratios:
        if bool(ratio.whole) == bool(ratio.rest):
            part = [source.name for source in ratio.part]
            yield "ratios", part, "give whole or rest, one of them"


def _version(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: 0.5.10.post1 is (0, 5, 10)."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match[1].split(".")[:4]) if match else ()


MAPS: Mapping[str, EngineMap] = {
    engine_map.engine: engine_map for engine_map in map(load, sorted(FOLDER.glob("*.toml")))
}
"""The shipped families by engine name."""
