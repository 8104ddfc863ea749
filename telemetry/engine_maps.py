"""Which series of an engine family mean which canonical signal: `engines/*.toml`, checked.

One file a family, so that a renamed metric is one word in one file. An unknown key is an error:
a misspelt `names` must not turn into a signal that is silently "not exposed" for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from telemetry import strict_toml

FOLDER = Path(__file__).parent / "engines"
Kind = Literal["gauge", "counter", "histogram"]


class Stages(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One gauge that splits a queue by a label.

    Without `inside` its values are parts of the queue. With it they are a second look at requests
    already counted under those parts, from which they are taken out, in that order.
    """

    name: str
    label: str
    prefix: str = ""
    inside: tuple[str, ...] = ()


class Weight(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Where a ratio's capacity weight is written: a label of an info series, the first given."""

    name: str
    labels: tuple[str, ...]


class Distrust(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A signal is missing, for `reason`, while this series shows more than zero."""

    name: str
    label: str
    value: str
    reason: str


class Label(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A label of an info series that carries a fact, such as a version."""

    name: str
    label: str


class SignalMap(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """How one canonical signal is read. `names` come without prefix, the preferred one first.

    Series are folded by `aggregate` within each combination of the labels `by`, whose values,
    joined by `separator` (equal neighbours once), become the keys of a labelled signal; a label
    that is also `optional` is left out of the key where a version does not know it. `hits` over
    `queries` is a ratio made of two counters, preferred over `names`.
    """

    kind: Kind
    unit: str
    names: tuple[str, ...] = ()
    aggregate: Literal["sum", "mean", "max", "min"] = "sum"
    by: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    separator: str = "|"
    hits: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()
    stages: tuple[Stages, ...] = ()
    weight: Weight | None = None
    distrust: Distrust | None = None


class EngineMap(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One engine family.

    `start_time` are whole series names whose value is the process' start (epoch seconds);
    `version_path` is an HTTP path beside `/metrics` that answers `{"version": …}`.
    """

    engine: str
    kind: Literal["instance", "router"]
    prefixes: tuple[str, ...]
    signals: dict[str, SignalMap]
    start_time: tuple[str, ...] = ()
    rank_label: str | None = None
    version_info: Label | None = None
    version_path: str | None = None

    def series_names(self) -> set[str]:
        """Every name this map knows, without prefix."""
        names = {self.version_info.name} if self.version_info else set()
        for signal in self.signals.values():
            names.update(signal.names, signal.hits, signal.queries)
            names.update(stages.name for stages in signal.stages)
        return names


def load(path: Path) -> EngineMap:
    """The map in one file. Raises strict_toml.TomlError."""
    document = strict_toml.document(path)
    signals = document.get("signals")
    # One by one first: an error then names the signal it is in.
    for name, table in (signals if isinstance(signals, dict) else {}).items():
        strict_toml.convert(path, table, SignalMap, at=f"signals.{name}")
    return strict_toml.convert(path, document, EngineMap)


MAPS: Mapping[str, EngineMap] = {
    engine_map.engine: engine_map for engine_map in map(load, sorted(FOLDER.glob("*.toml")))
}
"""The shipped families by engine name."""
