"""From any engine's `/metrics` to the signals the product speaks of.

What an engine calls its numbers is data (`engines/*.toml`); `series` finds them and folds ranks
and label sets. Of every signal this says what it is: a `value`; `idle`, a successful read of no
observations; or `missing`, with the reason. Zero, idle and missing are three different facts, and
nothing here turns one into another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from telemetry.engine_maps import MAPS
from telemetry.exposition import Exposition
from telemetry.series import Reader
from telemetry.signals import Signal
from telemetry.wire import InstanceSignals, RouterSignals


@dataclass(frozen=True)
class Canonical:
    """What one text says. `epoch_s` is the start of the process behind it, 0 when unknown.

    `recognised`: at least one series carries a name of this family, so the text is its own and a
    missing signal is a fact about the engine.
    """

    engine: str
    kind: str
    engine_version: str
    epoch_s: float
    signals: Mapping[str, Signal]
    warnings: tuple[str, ...]
    recognised: bool = True

    def to_json(self) -> dict[str, Any]:
        """The object `manage.py canonical --json` prints."""
        return {
            "engine": self.engine,
            "engine_version": self.engine_version,
            "epoch_s": self.epoch_s,
            "signals": {name: signal.to_json() for name, signal in self.signals.items()},
            "warnings": list(self.warnings),
        }


def detect(exposition: Exposition, kind: str | None = None) -> str | None:
    """The family (of `kind`, if given) most of whose names are in the text; None when none is."""
    scores = {
        name: _score(name, exposition)
        for name, engine_map in MAPS.items()
        if kind in (None, engine_map.kind)
    }
    best = max(scores, key=lambda name: scores[name])
    return best if scores[best] else None


# Whole names: a prefix alone proves nothing, `vllm_router_*` is not vLLM.
_KNOWN: Mapping[str, frozenset[str]] = {
    engine: frozenset(
        prefix + name + end
        for prefix in engine_map.prefixes
        for name in engine_map.series_names()
        for end in ("", "_bucket", "_count", "_sum")
    )
    for engine, engine_map in MAPS.items()
}


def _score(engine: str, exposition: Exposition) -> int:
    """How many of a family's series are there."""
    return len(_KNOWN[engine] & exposition.samples.keys())


def canonicalise(
    exposition: Exposition, engine: str = "auto", *, kind: str | None = None
) -> Canonical:
    """The canonical signals of a parsed text, read as `engine`: a key of MAPS, or `auto`.

    `kind`, `instance` or `router`, is what `auto` may find.
    """
    family = detect(exposition, kind) if engine == "auto" else engine
    if family is None:
        warning = f"no series of a known engine ({', '.join(MAPS)}) in this text"
        warnings = (*exposition.warnings, warning)
        return Canonical("unknown", "instance", "", 0.0, {}, warnings, recognised=False)
    reader = Reader(MAPS[family], exposition)
    return Canonical(
        engine=family,
        kind=MAPS[family].kind,
        engine_version=reader.version(),
        epoch_s=reader.epoch_s(),
        signals=reader.signals(),
        warnings=tuple(reader.warnings),
        recognised=_score(family, exposition) > 0,
    )


def to_instance_signals(canonical: Canonical) -> InstanceSignals:
    """What a batch carries of an engine; rates are the agent's to add."""
    return InstanceSignals(**_on_wire(canonical, InstanceSignals.__struct_fields__))


def to_router_signals(canonical: Canonical) -> RouterSignals:
    """What a batch carries of a gate; rates are the agent's to add."""
    return RouterSignals(**_on_wire(canonical, RouterSignals.__struct_fields__))


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
