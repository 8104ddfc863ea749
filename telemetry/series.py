"""Finds the series of a signal in one text and folds them into it.

Everything of the engine is in the alias map; everything here is arithmetic over label sets: sums
for counts, capacity-weighted means (with the maximum) for ratios, buckets added where the bounds
agree. A sum with one unusable part is missing: half a queue is not a queue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from telemetry import buckets
from telemetry.engine_maps import EngineMap, SignalMap
from telemetry.exposition import Exposition, Sample
from telemetry.signals import Signal
from telemetry.wire import Histogram

NOT_EXPOSED = "not exposed"
MAX_KEYS = 64
"""Label combinations of one signal; more is a fault of the exporter, not a measurement."""
MAX_KEY_CHARS = 120
# Floating point may put a full cache at 1.0000001.
_RATIO_SLACK = 1e-6


class _Missing(Exception):
    """Why a signal has no value; also a warning unless it simply is not there."""

    def __init__(self, reason: str, source: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.reason, self.source = reason, source


class Reader:
    """One text read with one alias map; `warnings` grows as signals are read."""

    def __init__(self, engine_map: EngineMap, exposition: Exposition) -> None:
        self._map = engine_map
        self._samples = exposition.samples
        self.warnings = list(exposition.warnings)

    def signals(self) -> dict[str, Signal]:
        """Every signal of the map, the missing ones included."""
        signals: dict[str, Signal] = {}
        for name, signal_map in self._map.signals.items():
            signals[name] = self._signal(name, signal_map)
            if signal_map.stages:
                signals[f"{name}_by_stage"] = _by_stage(signals[name])
        return signals

    def _signal(self, name: str, signal_map: SignalMap) -> Signal:
        read: Callable[[SignalMap], Signal]
        if signal_map.kind == "histogram":
            read = self._labelled_histogram if signal_map.by else self._histogram
        elif signal_map.by:
            read = self._labelled
        elif signal_map.stages:
            read = self._queue
        else:
            read = self._scalar
        try:
            if signal_map.distrust is not None:
                self._check_trust(signal_map)
            return read(signal_map)
        except _Missing as exc:
            if exc.reason != NOT_EXPOSED:
                self.warnings.append(f"{name}: {exc.reason}")
            return Signal(
                signal_map.kind,
                signal_map.unit,
                "missing",
                source=exc.source,
                reason=exc.reason,
                labelled=bool(signal_map.by),
            )

    def _scalar(self, signal_map: SignalMap) -> Signal:
        if signal_map.hits:
            try:
                return self._hit_ratio(signal_map)
            except _Missing as exc:
                if exc.reason != NOT_EXPOSED:
                    raise
        source, samples = self._find(signal_map.names)
        values = _values(source, samples, ratio=signal_map.unit == "ratio")
        weights = self._weights(signal_map, samples)
        return Signal(
            signal_map.kind,
            signal_map.unit,
            "value",
            value=_aggregate(signal_map.aggregate, values, weights),
            maximum=max(values) if signal_map.aggregate == "mean" else None,
            by=self._by_rank(samples, values),
            source=(source,),
        )

    def _hit_ratio(self, signal_map: SignalMap) -> Signal:
        """Hits over queries since the engine started: `sum` hits, `count` queries."""
        hits_source, hit_samples = self._find(signal_map.hits)
        queries_source, query_samples = self._find(signal_map.queries)
        source = (hits_source, queries_source)
        hits = math.fsum(_values(hits_source, hit_samples))
        queries = math.fsum(_values(queries_source, query_samples))
        if hits > queries:
            raise _Missing(f"more hits ({hits:g}) than queries ({queries:g})", source)
        return Signal(
            signal_map.kind,
            signal_map.unit,
            "value" if queries else "idle",
            value=hits / queries if queries else None,
            sum=hits,
            count=queries,
            source=source,
        )

    def _labelled(self, signal_map: SignalMap) -> Signal:
        source, samples = self._find(signal_map.names)
        by = {
            key: _aggregate(signal_map.aggregate, _values(source, group), None)
            for key, group in self._group(signal_map, samples, source).items()
        }
        return Signal(
            signal_map.kind,
            signal_map.unit,
            "value",
            value=_aggregate(signal_map.aggregate, list(by.values()), None),
            labelled=True,
            by=by,
            source=(source,),
        )

    def _queue(self, signal_map: SignalMap) -> Signal:
        """The effective queue: every waiting request once, split into the stages it waits in."""
        sources: list[str] = []
        total = self._optional(signal_map.names, sources)
        parts: dict[str, float] = {}
        for stages in (entry for entry in signal_map.stages if not entry.inside):
            parts.update(self._stage_values(stages.name, stages.label, stages.prefix, sources))
        inner: dict[str, float] = {}
        for stages in (entry for entry in signal_map.stages if entry.inside):
            values = self._stage_values(stages.name, stages.label, stages.prefix, sources)
            for stage, value in values.items():
                _take(parts, stages.inside, value)
                inner[stage] = value
        if total is None and not parts and not inner:
            raise _Missing(NOT_EXPOSED)
        # One exporter counts all of these under one lock, so they agree; where they do not, the
        # larger queue is the safe one to act on.
        waiting = max(total or 0.0, math.fsum([*parts.values(), *inner.values()]))
        by = {**parts, **inner}
        if by and (rest := waiting - math.fsum(by.values())) > 0.0:
            by["other"] = rest
        return Signal(
            signal_map.kind,
            signal_map.unit,
            "value",
            value=waiting,
            by=by,
            source=tuple(sources),
        )

    def _stage_values(
        self, name: str, label: str, prefix: str, sources: list[str]
    ) -> dict[str, float]:
        try:
            source, samples = self._find((name,))
        except _Missing:
            return {}
        out: dict[str, float] = {}
        for sample, value in zip(samples, _values(source, samples), strict=True):
            stage = prefix + sample.labels.get(label, "unlabelled")
            out[stage] = out.get(stage, 0.0) + value
        if len(out) > MAX_KEYS:
            raise _Missing(f"more than {MAX_KEYS} stages", (source,))
        sources.append(source)
        return out

    def _optional(self, names: Sequence[str], sources: list[str]) -> float | None:
        try:
            source, samples = self._find(names)
        except _Missing:
            return None
        sources.append(source)
        return math.fsum(_values(source, samples))

    def _histogram(self, signal_map: SignalMap) -> Signal:
        family, parts = self._find_family(signal_map)
        folded = buckets.fold(*parts)
        source = tuple(family + end for end in _ENDS if family + end in self._samples)
        if folded.problem is not None:
            raise _Missing(f"{family}: {folded.problem}", source)
        return Signal(
            "histogram",
            signal_map.unit,
            "value" if folded.count or folded.sum else "idle",
            sum=folded.sum,
            count=folded.count,
            buckets=folded.buckets,
            histogram=folded.histogram,
            source=source,
        )

    def _labelled_histogram(self, signal_map: SignalMap) -> Signal:
        family, parts = self._find_family(signal_map)
        grouped = [self._group(signal_map, part, family) for part in parts]
        groups: dict[str, Histogram] = {}
        for key in sorted({key for group in grouped for key in group}):
            folded = buckets.fold(*(group.get(key, []) for group in grouped))
            if folded.histogram is None:
                problem = folded.problem or "no _sum is exposed"
                self.warnings.append(f"{family} {key}: {problem}")
            else:
                groups[key] = folded.histogram
        source = tuple(family + end for end in _ENDS if family + end in self._samples)
        if not groups:
            raise _Missing(f"{family}: no usable histogram", source)
        counts = {key: histogram.count for key, histogram in groups.items()}
        return Signal(
            "histogram",
            signal_map.unit,
            "value" if any(counts.values()) else "idle",
            labelled=True,
            by=counts,
            groups=groups,
            source=source,
        )

    def _check_trust(self, signal_map: SignalMap) -> None:
        distrust = signal_map.distrust
        assert distrust is not None
        for prefix in self._map.prefixes:
            for sample in self._samples.get(prefix + distrust.name, ()):
                if sample.labels.get(distrust.label) == distrust.value and sample.value > 0.0:
                    raise _Missing(distrust.reason, (prefix + distrust.name,))

    def _find(self, names: Sequence[str]) -> tuple[str, list[Sample]]:
        """The first of `names` that is exposed, whichever prefix it has."""
        for name in names:
            for prefix in self._map.prefixes:
                samples = self._samples.get(prefix + name)
                if samples:
                    return prefix + name, self._once(prefix + name, samples)
        raise _Missing(NOT_EXPOSED)

    def _find_family(self, signal_map: SignalMap) -> tuple[str, list[list[Sample]]]:
        """The first exposed histogram family and its bucket, sum and count series."""
        for name in signal_map.names:
            for prefix in self._map.prefixes:
                family = prefix + name
                parts = [self._once(family, self._samples.get(family + end, [])) for end in _ENDS]
                if any(parts):
                    return family, parts
        raise _Missing(NOT_EXPOSED)

    def _once(self, name: str, samples: list[Sample]) -> list[Sample]:
        """Each series once: a series exposed twice must not count twice."""
        if len({id(sample.labels) for sample in samples}) == len(samples):
            return samples
        self.warnings.append(f"{name}: the same series appears more than once, the first counts")
        # The parser gives equal series one labels object.
        return list({id(sample.labels): sample for sample in reversed(samples)}.values())[::-1]

    def _group(
        self, signal_map: SignalMap, samples: Sequence[Sample], source: str
    ) -> dict[str, list[Sample]]:
        groups: dict[str, list[Sample]] = {}
        for sample in samples:
            parts = [
                sample.labels.get(label, "")
                for label in signal_map.by
                if label in sample.labels or label not in signal_map.optional
            ]
            if not all(parts):
                raise _Missing(f"{source}: a series lacks one of {signal_map.by}", (source,))
            distinct = [part for i, part in enumerate(parts) if i == 0 or part != parts[i - 1]]
            key = signal_map.separator.join(distinct)[:MAX_KEY_CHARS]
            groups.setdefault(key, []).append(sample)
        if len(groups) > MAX_KEYS:
            raise _Missing(f"{source}: more than {MAX_KEYS} label combinations", (source,))
        return groups

    def _by_rank(self, samples: Sequence[Sample], values: Sequence[float]) -> dict[str, float]:
        label = self._map.rank_label
        if label is None or not 1 < len(samples) <= MAX_KEYS:
            return {}
        out: dict[str, float] = {}
        for sample, value in zip(samples, values, strict=True):
            rank = f"{label}={sample.labels.get(label, '')}"
            out[rank] = out.get(rank, 0.0) + value
        # Several series of one rank were added up, which is wrong for a mean: no split then.
        return out if len(out) == len(samples) else {}

    def _weights(self, signal_map: SignalMap, samples: Sequence[Sample]) -> list[float] | None:
        """Capacity of each rank for a weighted mean; None when not every rank states it."""
        rank, weight = self._map.rank_label, signal_map.weight
        if weight is None or rank is None or len(samples) < 2:
            return None
        try:
            _, infos = self._find((weight.name,))
        except _Missing:
            return None
        by_rank = {info.labels.get(rank): _capacity(info, weight.labels) for info in infos}
        weights = [by_rank.get(sample.labels.get(rank), 0.0) for sample in samples]
        return weights if all(weights) else None

    def version(self) -> str:
        """What an info series says, empty when none does."""
        info = self._map.version_info
        if info is None:
            return ""
        for prefix in self._map.prefixes:
            for sample in self._samples.get(prefix + info.name, ()):
                return sample.labels.get(info.label, "")[:MAX_KEY_CHARS]
        return ""

    def epoch_s(self) -> float:
        """Start of the process behind the text, 0 when unknown."""
        starts = [
            sample.value for name in self._map.start_time for sample in self._samples.get(name, ())
        ]
        return max((start for start in starts if 1e9 <= start < 1e10), default=0.0)


_ENDS = ("_bucket", "_sum", "_count")


def _values(source: str, samples: Sequence[Sample], *, ratio: bool = False) -> list[float]:
    """The samples' values, all of them usable. Raises _Missing: part of a sum is no sum."""
    values = [sample.value for sample in samples]
    for value in values:
        if math.isnan(value):
            raise _Missing(f"{source} is NaN", (source,))
        if not 0.0 <= value <= buckets.MAX_VALUE:
            raise _Missing(f"{source}={value:g} is no measurement", (source,))
        if ratio and value > 1.0 + _RATIO_SLACK:
            raise _Missing(f"{source}={value:g} is not in 0..1", (source,))
    return [min(value, 1.0) for value in values] if ratio else values


def _aggregate(how: str, values: Sequence[float], weights: Sequence[float] | None) -> float:
    if how == "mean":
        w = weights if weights is not None else [1.0] * len(values)
        mean = math.fsum(x * y for x, y in zip(values, w, strict=True)) / math.fsum(w)
        return min(mean, max(values))
    if how == "sum":
        return math.fsum(values)
    return max(values) if how == "max" else min(values)


def _capacity(info: Sample, labels: Sequence[str]) -> float:
    for label in labels:
        try:
            capacity = float(info.labels.get(label, ""))
        except ValueError:
            continue
        if 0.0 < capacity < math.inf:
            return capacity
    return 0.0


def _take(parts: dict[str, float], names: Sequence[str], amount: float) -> None:
    """Take `amount` requests out of the named parts, in their order, as far as they go."""
    for name in names:
        taken = min(parts.get(name, 0.0), amount)
        if taken:
            parts[name] -= taken
            amount -= taken


def _by_stage(queue: Signal) -> Signal:
    """The same queue as a labelled signal, missing when no stage is exposed."""
    if queue.state == "missing" or not queue.by:
        reason = queue.reason or NOT_EXPOSED
        return replace(queue, state="missing", value=None, by={}, labelled=True, reason=reason)
    return replace(queue, labelled=True)
