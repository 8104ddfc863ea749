"""Every signal of one reading as rows: value, unit, what is known of it; why, where nothing is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.utils.translation import gettext as _

from console import figures
from console.context import BAD, GOOD, OFF, WARN, Mark
from console.signal_words import SIGNALS
from telemetry import counters, store, wire
from telemetry.quantiles import Quantile, quantile

_SHARES: Final = ((0.5, "P50"), (0.9, "P90"), (0.99, "P99"))
MOST_KEYS: Final = 40
"""Of a labelled signal so many are shown, the largest."""


@dataclass(frozen=True)
class Row:
    """`parts` are the values by label of a signal that has labels, the largest first. `key` is how
    the signals page calls it, empty where that page does not draw it. `why` it is missing."""

    name: str
    meaning: str
    value: str
    title: str
    mark: Mark
    key: str = ""
    parts: tuple[tuple[str, str], ...] = ()
    n_more: int = 0
    why: str = ""


@dataclass(frozen=True)
class Rows:
    """Signals that were told, and those that were not."""

    told: tuple[Row, ...]
    missing: tuple[Row, ...]


def rows(
    reading: store.Reading,
    earlier: store.Reading | None = None,
    reasons: Mapping[str, str] | None = None,
) -> Rows:
    """In the order of the wire. `earlier` is a reading of up to a minute before: what histograms
    saw since. `reasons` are what the agent said of signals that it did not find."""
    states = store.signal_states(reading, earlier)
    told, missing = [], []
    for name, state in states.items():
        row = _row(reading, earlier, name, state, (reasons or {}).get(name, ""))
        (missing if state == "missing" else told).append(row)
    return Rows(tuple(told), tuple(missing))


def _row(
    reading: store.Reading, earlier: store.Reading | None, name: str, state: str, why: str
) -> Row:
    key = f"{reading.kind}.{name}"
    known = SIGNALS.get(key)
    value = getattr(reading.signals, name)
    is_same = earlier is not None and earlier.epoch_s == reading.epoch_s
    before = getattr(earlier.signals, name) if earlier is not None and is_same else None
    text, title = _written(name, value, before)
    parts = _parts(name, value, before)
    return Row(
        name=name,
        meaning=known.meaning if known else "",
        value=text,
        title=title,
        mark=_mark(state),
        key=key if known else "",
        parts=parts[:MOST_KEYS],
        n_more=max(len(parts) - MOST_KEYS, 0),
        why=why,
    )


def _mark(state: str) -> Mark:
    return {
        "value": Mark(*GOOD, _("measured")),
        "idle": Mark(*OFF, _("idle")),
        "missing": Mark(*WARN, _("not measured")),
        "failed": Mark(*BAD, _("read failed")),
    }[state]


def _written(name: str, value: Any, before: Any) -> tuple[str, str]:
    """A value, and its exact words for the hover; a labelled one is told by its parts."""
    if isinstance(value, wire.Histogram):
        return _histogram(name, value, before)
    if isinstance(value, dict):
        return "", ""
    if isinstance(value, str):
        return value, ""
    return number(name, value), figures.exact(value)


def _parts(name: str, value: Any, before: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        return ()
    earlier = before if isinstance(before, dict) else {}
    ranked = sorted(value.items(), key=lambda item: -_size(item[1]))
    return tuple((label, _written(name, part, earlier.get(label))[0]) for label, part in ranked)


def _size(value: Any) -> float:
    return float(value.count if isinstance(value, wire.Histogram) else value)


def _histogram(name: str, value: wire.Histogram, before: Any) -> tuple[str, str]:
    """What it saw since `before`; without that, how much it ever saw."""
    total = _("%(n)s observations in all") % {"n": figures.significant(value.count)}
    gained = counters.histogram_increase(before, value)
    if gained is None:
        return total, ""
    if gained.count == 0:
        return _("nothing in the last minute"), total
    shares = ", ".join(
        f"{label} {_quantile(name, quantile(gained.edges, gained.counts, share))}"
        for share, label in _SHARES
    )
    n = _("%(n)s in the last minute") % {"n": figures.significant(gained.count)}
    return f"{shares} ({n})", total


def _quantile(name: str, found: Quantile) -> str:
    return f"{'> ' if found.is_above else ''}{number(name, found.value)}"


def number(name: str, value: float | None) -> str:
    """A plain value with the unit that its name carries."""
    stem = name.removesuffix("_total")
    if stem.endswith("_per_s"):
        return figures.with_unit(value, f"{'req' if 'request' in stem else 'tok'}/s")
    for ending, write in _WRITERS:
        if stem.endswith(ending):
            return write(value)
    return figures.significant(value)


_WRITERS: Final[tuple[tuple[str, Any], ...]] = (
    ("_ratio", figures.percent),
    ("_gbps", figures.gbps),
    ("_bytes", figures.size),
    ("_tokens", figures.tokens),
    ("_seconds", figures.duration),
    ("_s", figures.duration),
    ("_w", lambda value: figures.with_unit(value, "W")),
    ("_celsius", lambda value: figures.with_unit(value, "°C")),
)
