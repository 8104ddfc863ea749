"""From any engine's `/metrics` to the signals the product speaks of.

What an engine calls its numbers is data (`engines/*.toml`); `series` finds them and `folding`
folds ranks and label sets. One text may carry several families: an engine, the server around it,
caches and GPUs beside it. They are read together, the engine first. Of every signal this says what
it is: a `value`; `idle`, a successful read of no observations; or `missing`, with the reason.
Zero, idle and missing are three different facts, and nothing here turns one into another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from telemetry.engine_maps import ENDS, LAYERS, MAPS, EngineMap, SignalMap
from telemetry.exposition import Exposition
from telemetry.folding import Reader, by_stage, together
from telemetry.signals import NOT_EXPOSED, Signal, missing
from telemetry.wire import InstanceSignals, LinkSignals, RouterSignals

MAX_UNMATCHED = 1000
MAX_REMEMBERED_NAMES = 5000
"""Texts with more names than any real exporter has are not remembered."""


@dataclass(frozen=True)
class Canonical:
    """What one text says. `epoch_s` is the start of the process behind it, 0 when unknown.

    `recognised`: at least one series carries a name of this family, so the text is its own and a
    missing signal is a fact about the engine. `addons` are the other families it was read with.
    `unmatched` are the names, sorted, that none of them knows: the first of `n_unmatched`.
    """

    engine: str
    kind: str
    engine_version: str
    epoch_s: float
    signals: Mapping[str, Signal]
    warnings: tuple[str, ...]
    recognised: bool = True
    addons: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()
    n_unmatched: int = 0
    n_series: int = 0
    n_bad_lines: int = 0

    def to_json(self) -> dict[str, Any]:
        """The object `manage.py canonical --json` prints."""
        return {
            "engine": self.engine,
            "kind": self.kind,
            "engine_version": self.engine_version,
            "addons": list(self.addons),
            "epoch_s": self.epoch_s,
            "signals": {name: signal.to_json() for name, signal in self.signals.items()},
            "unmatched": list(self.unmatched),
            "n_unmatched": self.n_unmatched,
            "n_series": self.n_series,
            "n_bad_lines": self.n_bad_lines,
            "warnings": list(self.warnings),
        }


def detect(exposition: Exposition, kind: str | None = None) -> str | None:
    """The family (of `kind`, if given) that a text is of; None when it is of none we know.

    A name that only one family has settles it, and without one a text is not of that family. Else
    an engine comes before the server around it and before what stands beside it, and of two
    engines the one with more of its names there.
    """
    present = _present(frozenset(exposition.samples), kind)
    return present[0] if present else None


# Whole names: a prefix alone proves nothing, `vllm_router_*` is not vLLM.
_PROOF: Mapping[str, frozenset[str]] = {
    engine: frozenset(
        prefix + base + end
        for prefix in engine_map.prefixes
        for name in engine_map.series_names()
        for base in {name, name.removesuffix("_sum").removesuffix("_count")}
        for end in ENDS
    ).union(engine_map.only_here)
    for engine, engine_map in MAPS.items()
}
# A start time is any process' own: known, but no proof.
_KNOWN: Mapping[str, frozenset[str]] = {
    engine: names.union(MAPS[engine].start_time) for engine, names in _PROOF.items()
}


def _present(names: frozenset[str], kind: str | None) -> tuple[str, ...]:
    """The families with series in the text, the one it is of first."""
    remembered = _ranked if len(names) <= MAX_REMEMBERED_NAMES else _ranked.__wrapped__
    return remembered(names, kind)


# The names of one exporter hardly ever change from scrape to scrape.
@lru_cache(maxsize=64)
def _ranked(names: frozenset[str], kind: str | None) -> tuple[str, ...]:
    ranked = []
    for engine, engine_map in MAPS.items():
        if kind not in (None, engine_map.kind):
            continue
        certain = not names.isdisjoint(engine_map.only_here)
        score = len(_PROOF[engine] & names)
        if certain or (score and not engine_map.only_here):
            ranked.append((not certain, LAYERS.index(engine_map.layer), -score, engine))
    return tuple(engine for *_, engine in sorted(ranked))


def canonicalise(
    exposition: Exposition,
    engine: str = "auto",
    *,
    kind: str | None = None,
    version: str = "",
    n_ranks: int | None = None,
) -> Canonical:
    """The canonical signals of a parsed text, read as `engine`: a key of MAPS, or `auto`.

    `kind`, `instance`, `router` or `host`, is what `auto` may find. `version`, where the text does
    not state it, chooses between meanings of a name that changed. With fewer data-parallel ranks
    than `n_ranks` in the text the engine's signals are missing: partial.
    """
    names = frozenset(exposition.samples)
    present = _present(names, kind if engine == "auto" else MAPS[engine].kind)
    if engine == "auto" and not present:
        return _unknown(exposition)
    main = MAPS[present[0] if engine == "auto" else engine]
    addons, others = _beside(main, present)
    reader = Reader(main, exposition, version=version)
    signals = reader.signals()
    if n_ranks is not None:
        reader.only_whole(signals, n_ranks)
    warnings, epoch_s = [*exposition.warnings, *reader.warnings], reader.epoch_s()
    if others:
        warnings.append(f"read as {main.engine}: series of {', '.join(others)} are left alone")
    for addon in addons:
        beside = Reader(MAPS[addon], exposition)
        _fill(signals, beside.signals(), MAPS[addon])
        warnings += beside.warnings
        epoch_s = epoch_s or beside.epoch_s()
    _name_the_rest(signals, main)
    unmatched = _unmatched(names, (main.engine, *addons))
    return Canonical(
        engine=main.engine,
        kind=main.kind,
        engine_version=reader.version,
        epoch_s=epoch_s,
        signals=signals,
        warnings=tuple(warnings),
        recognised=main.engine in present,
        addons=tuple(addons),
        unmatched=unmatched[:MAX_UNMATCHED],
        n_unmatched=len(unmatched),
        n_series=sum(map(len, exposition.samples.values())),
        n_bad_lines=exposition.n_bad_lines,
    )


def _unknown(exposition: Exposition) -> Canonical:
    warning = f"no series of a known engine ({', '.join(MAPS)}) in this text"
    unmatched = _unmatched(frozenset(exposition.samples), ())
    return Canonical(
        engine="unknown",
        kind="instance",
        engine_version="",
        epoch_s=0.0,
        signals={},
        warnings=(*exposition.warnings, warning),
        recognised=False,
        unmatched=unmatched[:MAX_UNMATCHED],
        n_unmatched=len(unmatched),
        n_series=sum(map(len, exposition.samples.values())),
        n_bad_lines=exposition.n_bad_lines,
    )


def _beside(main: EngineMap, present: Sequence[str]) -> tuple[list[str], list[str]]:
    """The families to read as well, and those that would be a second engine."""
    addons: list[str] = []
    others: list[str] = []
    for name in present:
        if name == main.engine or MAPS[name].kind != main.kind:
            continue
        lower = LAYERS.index(MAPS[name].layer) > LAYERS.index(main.layer)
        (addons if lower or MAPS[name].layer == "addon" else others).append(name)
    return addons, others


def _fill(signals: dict[str, Signal], more: Mapping[str, Signal], addon: EngineMap) -> None:
    """What the addon says where nobody said anything; a queue in front of the engine is added."""
    for name, signal in more.items():
        known = signals.get(name)
        if known is None or (not known.exposed and signal.exposed):
            signals[name] = signal
        elif (
            name in addon.signals
            and addon.signals[name].adds
            and known.state == signal.state == "value"
        ):
            signals[name] = together(known, signal)
            signals[f"{name}_by_stage"] = by_stage(signals[name])


_SPOKEN_OF: Mapping[tuple[str, str], SignalMap] = {
    (engine_map.kind, name): signal_map
    for engine_map in MAPS.values()
    for name, signal_map in engine_map.signals.items()
}
_SIGNALS_OF: Mapping[str, tuple[str, ...]] = {
    "instance": InstanceSignals.__struct_fields__,
    "router": RouterSignals.__struct_fields__,
    "host": LinkSignals.__struct_fields__,
}


def _name_the_rest(signals: dict[str, Signal], main: EngineMap) -> None:
    """Signals that no map of this text speaks of are missing too, and say so."""
    for name in _SIGNALS_OF[main.kind]:
        # Rates are made of two readings.
        spoken_of = _SPOKEN_OF.get((main.kind, name.removesuffix("_by_stage")))
        if name not in signals and spoken_of is not None:
            reason = main.lacks.get(name, NOT_EXPOSED)
            labelled = bool(spoken_of.by) or name.endswith("_by_stage")
            signals[name] = missing(spoken_of.kind, spoken_of.unit, reason, labelled=labelled)


def _unmatched(names: frozenset[str], engines: tuple[str, ...]) -> tuple[str, ...]:
    """Names of metrics that none of the maps knows, sorted; the series of one metric once."""
    remembered = _rest if len(names) <= MAX_REMEMBERED_NAMES else _rest.__wrapped__
    return remembered(names, engines)


@lru_cache(maxsize=64)
def _rest(names: frozenset[str], engines: tuple[str, ...]) -> tuple[str, ...]:
    known = frozenset[str]().union(*(_KNOWN[engine] for engine in engines))
    ignored = tuple(start for engine in engines for start in MAPS[engine].ignore)
    rest = (name for name in names - known if not name.startswith(ignored))
    return tuple(sorted({_metric(name, names) for name in rest}))


def _metric(sample_name: str, names: frozenset[str]) -> str:
    """The metric a sample belongs to: buckets, sum and count of a histogram are one."""
    for end in ENDS[1:]:
        name = sample_name.removesuffix(end)
        if name != sample_name and sum(name + other in names for other in ENDS[1:]) > 1:
            return name
    return sample_name


def to_instance_signals(canonical: Canonical) -> InstanceSignals:
    """What a batch carries of an engine; rates are the agent's to add."""
    return InstanceSignals(**_on_wire(canonical, InstanceSignals.__struct_fields__))


def to_router_signals(canonical: Canonical) -> RouterSignals:
    """What a batch carries of a gate or another router; rates are the agent's to add."""
    return RouterSignals(**_on_wire(canonical, RouterSignals.__struct_fields__))


def to_link_signals(canonical: Canonical, device: str) -> LinkSignals:
    """What a batch carries of a link, from a host's exporter: one device, never a sum of several.

    Counters that a host has only once (segments) are the host's.
    """
    found: dict[str, Any] = {}
    for name in LinkSignals.__struct_fields__:
        signal = canonical.signals.get(name)
        if signal is not None and signal.state != "missing":
            found[name] = signal.by.get(device) if signal.labelled else signal.value
    return LinkSignals(**found)


def plan_of(canonical: Canonical) -> tuple[int | None, int | None]:
    """(epoch, version) of the plan a gate runs; None where it never had one."""
    epoch, version = (
        signal.value if (signal := canonical.signals.get(name)) else None
        for name in ("plan_epoch", "plan_version")
    )
    if epoch is None or version is None:
        return None, None
    return int(epoch), int(version)


def _on_wire(canonical: Canonical, fields: Sequence[str]) -> dict[str, Any]:
    return {name: canonical.signals[name].on_wire() for name in fields if name in canonical.signals}
