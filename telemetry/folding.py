"""Folds the series of a signal into it.

Everything of the engine is in the alias map; everything here is arithmetic over label sets: sums
for counts, capacity-weighted means (with the maximum) for ratios, buckets added where the bounds
agree. A sum with one unusable part is missing: half a queue is not a queue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from telemetry import buckets
from telemetry.engine_maps import EngineMap, Ratio, SignalMap, Stages
from telemetry.exposition import Exposition, Sample
from telemetry.series import Family, Found, Series, Unusable, number_of, usable
from telemetry.signals import NOT_EXPOSED, Signal, missing
from telemetry.wire import Histogram

MAX_KEYS = 64
"""Label combinations of one signal; more is a fault of the exporter, not a measurement."""
MAX_KEY_CHARS = 120


class Reader:
    """One text read with one alias map; `warnings` grows as signals are read."""

    def __init__(self, engine_map: EngineMap, exposition: Exposition, *, version: str = "") -> None:
        self._map, self._samples = engine_map, exposition.samples
        self.warnings: list[str] = []
        # First without: the version itself stands in a series.
        self._series = Series(engine_map, exposition, warn=self.warnings.append)
        self.version = version or self._stated_version()
        if self.version:
            self._series = Series(
                engine_map, exposition, version=self.version, warn=self.warnings.append
            )

    def signals(self) -> dict[str, Signal]:
        """Every signal of the map, the missing ones included."""
        signals: dict[str, Signal] = {}
        for name, signal_map in self._map.signals.items():
            signals[name] = self._signal(name, signal_map)
            if signal_map.stages:
                signals[f"{name}_by_stage"] = by_stage(signals[name])
        return signals

    def only_whole(self, signals: dict[str, Signal], n_ranks: int) -> None:
        """Of an engine of `n_ranks` data-parallel ranks: where fewer tell their numbers, what is
        there is part of the engine's, and is missing with that reason."""
        told = self._ranks_told()
        if told is None:
            self.warnings.append(f"ranks={n_ranks}: {self._map.title} does not tell ranks apart")
        elif len(told) > n_ranks:
            self.warnings.append(f"{len(told)} ranks are told, of {n_ranks} that are expected")
        elif len(told) < n_ranks:
            which = f" ({', '.join(sorted(told)[:8])})" if any(told) else ""
            reason = f"partial: {len(told)} of {n_ranks} ranks told{which}"
            self.warnings.append(reason)
            for name, signal in signals.items():
                if signal.state != "missing":
                    signals[name] = missing(
                        signal.kind,
                        signal.unit,
                        reason,
                        source=signal.source,
                        labelled=signal.labelled,
                    )

    def _ranks_told(self) -> set[str] | None:
        """Ranks with a gauge, which each of them has from its start; None: it knows none."""
        label = self._map.rank_label
        if label is None:
            return None
        gauges = (one for one in self._map.signals.values() if one.kind == "gauge")
        names = {source.name for one in gauges for names in one.lists() for source in names}
        return {
            sample.labels.get(label, "")
            for prefix in self._map.prefixes
            for name in names
            for sample in self._samples.get(prefix + name, ())
        }

    def _signal(self, name: str, signal_map: SignalMap) -> Signal:
        read: Callable[[SignalMap], Signal | None]
        if signal_map.kind == "histogram":
            read = self._labelled_histogram if signal_map.by else self._histogram
        elif signal_map.by:
            read = self._labelled
        elif signal_map.stages:
            read = self._queue
        else:
            read = self._scalar
        kind, unit, labelled = signal_map.kind, signal_map.unit, bool(signal_map.by)
        try:
            self._check_trust(signal_map)
            signal = read(signal_map)
        except Unusable as exc:
            self.warnings.append(f"{name}: {exc.reason}")
            return missing(kind, unit, exc.reason, source=exc.source, labelled=labelled)
        if signal is None:
            reason = self._map.lacks.get(name, NOT_EXPOSED)
            return missing(kind, unit, reason, labelled=labelled)
        return signal

    def _scalar(self, signal_map: SignalMap) -> Signal | None:
        lifetime = self._first_ratio(signal_map, lifetime=True)
        if lifetime is not None:
            return lifetime
        found = self._series.find(signal_map.names)
        also = [more for entry in signal_map.also if (more := self._series.find((entry,)))]
        if found is None and not also:
            return self._first_ratio(signal_map, lifetime=False)
        sources = [found, *also] if found is not None else also
        is_ratio = signal_map.unit == "ratio"
        values = [value for each in sources for value in each.values(ratio=is_ratio)]
        samples = [sample for each in sources for sample in each.samples]
        values, factors = self._times(signal_map, samples, values)
        if signal_map.times and not factors:
            return None
        weights = self._weights(signal_map, samples)
        return Signal(
            signal_map.kind,
            signal_map.unit,
            "value",
            value=_aggregate(signal_map.aggregate, values, weights),
            maximum=max(values) if signal_map.aggregate == "mean" else None,
            by=self._by_rank(samples, values),
            source=(*(each.source for each in sources), *factors),
        )

    def _times(
        self, signal_map: SignalMap, samples: Sequence[Sample], values: list[float]
    ) -> tuple[list[float], tuple[str, ...]]:
        """Each value times the factor of its rank, or the one factor there is."""
        found = self._series.find(signal_map.times)
        if found is None:
            return values, ()
        factors = found.values()
        by_labels = {_by_value(s): f for s, f in zip(found.samples, factors, strict=True)}
        only = factors[0] if len(set(factors)) == 1 else None
        out = []
        for sample, value in zip(samples, values, strict=True):
            factor = by_labels.get(_by_value(sample), only)
            if factor is None:
                raise Unusable(f"{found.source}: no factor for each series", (found.source,))
            out.append(value * factor)
        return out, (found.source,)

    def _first_ratio(self, signal_map: SignalMap, *, lifetime: bool) -> Signal | None:
        for ratio in signal_map.ratios:
            if ratio.lifetime is lifetime:
                signal = self._ratio(signal_map, ratio)
                if signal is not None:
                    return signal
        return None

    def _ratio(self, signal_map: SignalMap, ratio: Ratio) -> Signal | None:
        """Of all ranks together, which weighs each by its own whole."""
        part = self._series.find(ratio.part)
        whole = self._series.find(ratio.whole or ratio.rest)
        if part is None or whole is None:
            return None
        source = (part.source, whole.source)
        parts, wholes = part.values(), whole.values()
        top, bottom = math.fsum(parts), math.fsum(wholes)
        if ratio.rest:
            bottom += top
        if top > bottom:
            raise Unusable(f"{part.source} {top:g} is more than {whole.source} {bottom:g}", source)
        if not ratio.lifetime and not bottom:
            raise Unusable(f"{whole.source} is 0: there is nothing to be full", source)
        return Signal(
            signal_map.kind,
            signal_map.unit,
            "value" if bottom else "idle",
            value=top / bottom if bottom else None,
            maximum=None if ratio.lifetime else _highest(part, whole, bool(ratio.rest)),
            sum=top if ratio.lifetime else None,
            count=bottom if ratio.lifetime else None,
            source=source,
        )

    def _labelled(self, signal_map: SignalMap) -> Signal | None:
        found = self._series.find(signal_map.names)
        if found is None:
            return None
        by: dict[str, float] = {}
        for key, group in self._group(signal_map, found.samples, found.source).items():
            try:
                values = [usable(found.source, found.scaled(sample.value)) for sample in group]
            except Unusable as exc:
                if not signal_map.each:
                    raise
                self.warnings.append(f"{found.source} {key} is left out: {exc.reason}")
                continue
            by[key] = _aggregate(signal_map.aggregate, values, None)
        if not by:
            raise Unusable(f"{found.source}: no usable series", (found.source,))
        return Signal(
            signal_map.kind,
            signal_map.unit,
            "value",
            value=_aggregate(signal_map.aggregate, list(by.values()), None),
            labelled=True,
            by=by,
            source=(found.source,),
        )

    def _queue(self, signal_map: SignalMap) -> Signal | None:
        """The effective queue: every waiting request once, split into the stages it waits in."""
        sources: list[str] = []
        total = None
        found = self._series.find(signal_map.names)
        if found is not None:
            total = math.fsum(found.values())
            sources.append(found.source)
        within: dict[str, float] = {}
        outside: dict[str, float] = {}
        second: list[tuple[Stages, dict[str, float]]] = []
        for stages in signal_map.stages:
            values = self._stage_values(stages, sources)
            if stages.inside:
                second.append((stages, values))
            else:
                (outside if stages.outside else within).update(values)
        inner: dict[str, float] = {}
        for stages, values in second:
            for stage, value in values.items():
                _take(outside if stages.outside else within, stages.inside, value)
                (outside if stages.outside else inner)[stage] = value
        if total is None and not within and not outside and not inner:
            return None
        # One exporter counts all of these under one lock, so they agree; where they do not, the
        # larger queue is the safe one to act on.
        waiting = max(total or 0.0, math.fsum([*within.values(), *inner.values()]))
        by = {**within, **inner}
        if by or outside:
            rest = waiting - math.fsum(by.values())
            if rest > 0.0:
                by["other" if by else "waiting"] = rest
        by.update(outside)
        return Signal(
            signal_map.kind,
            signal_map.unit,
            "value",
            value=waiting + math.fsum(outside.values()),
            by=by,
            source=tuple(sources),
        )

    def _stage_values(self, stages: Stages, sources: list[str]) -> dict[str, float]:
        found = self._series.find(stages.sources())
        if found is None:
            if not stages.required:
                return {}
            shown = tuple(name for name in self._samples if name in self._queue_names())
            if not shown:
                return {}
            names = " or ".join(source.name for source in stages.sources())
            raise Unusable(f"{names} is not exposed: the rest would pass for the queue", shown)
        out: dict[str, float] = {}
        for sample, value in zip(found.samples, found.values(), strict=True):
            stage = stages.stage or stages.prefix + sample.labels.get(stages.label, "unlabelled")
            out[stage] = out.get(stage, 0.0) + value
        if len(out) > MAX_KEYS:
            raise Unusable(f"more than {MAX_KEYS} stages", (found.source,))
        sources.append(found.source)
        return out

    def _queue_names(self) -> set[str]:
        return {
            prefix + source.name
            for prefix in self._map.prefixes
            for signal_map in self._map.signals.values()
            for stages in signal_map.stages
            for source in stages.sources()
        }

    def _histogram(self, signal_map: SignalMap) -> Signal | None:
        families = [
            family
            for names in (signal_map.names, *((entry,) for entry in signal_map.also))
            if (family := self._series.family(names)) is not None
        ]
        if not families:
            return self._counted(signal_map)
        # Of several families each has one unit; they are added in the signal's.
        folded = buckets.add(
            [buckets.fold(*each.parts, times=each.times, per=each.per) for each in families]
        )
        source = tuple(name for each in families for name in each.source)
        if folded.problem is not None:
            raise Unusable(f"{families[0].name}: {folded.problem}", source)
        return _histogram_signal(signal_map, folded, source)

    def _counted(self, signal_map: SignalMap) -> Signal | None:
        """A histogram of one bucket, from a counter of amounts and one of observations."""
        sums, counts = self._series.find(signal_map.sums), self._series.find(signal_map.counts)
        if sums is None or counts is None:
            return None
        total, count = math.fsum(sums.values()), math.fsum(counts.values())
        folded = buckets.Folded(
            sum=total, count=count, histogram=Histogram(edges=[], counts=[count], sum=total)
        )
        return _histogram_signal(signal_map, folded, (sums.source, counts.source))

    def _labelled_histogram(self, signal_map: SignalMap) -> Signal | None:
        family = self._series.family(signal_map.names)
        if family is None:
            return None
        groups = self._histograms(signal_map, family)
        if not groups:
            raise Unusable(f"{family.name}: no usable histogram", family.source)
        counts = {key: histogram.count for key, histogram in groups.items()}
        return Signal(
            "histogram",
            signal_map.unit,
            "value" if any(counts.values()) else "idle",
            labelled=True,
            by=counts,
            groups=groups,
            source=family.source,
        )

    def _histograms(self, signal_map: SignalMap, family: Family) -> dict[str, Histogram]:
        grouped = [self._group(signal_map, part, family.name) for part in family.parts]
        groups: dict[str, Histogram] = {}
        for key in sorted({key for group in grouped for key in group}):
            parts = [group.get(key, []) for group in grouped]
            folded = buckets.fold(*parts, times=family.times, per=family.per)
            if folded.histogram is None:
                problem = folded.problem or "no _sum is exposed"
                self.warnings.append(f"{family.name} {key}: {problem}")
            else:
                groups[key] = folded.histogram
        return groups

    def _check_trust(self, signal_map: SignalMap) -> None:
        distrust = signal_map.distrust
        if distrust is None:
            return
        for prefix in self._map.prefixes:
            for sample in self._samples.get(prefix + distrust.name, ()):
                if sample.labels.get(distrust.label) == distrust.value and (
                    distrust.present or sample.value > 0.0
                ):
                    raise Unusable(distrust.reason, (prefix + distrust.name,))

    def _group(
        self, signal_map: SignalMap, samples: Sequence[Sample], source: str
    ) -> dict[str, list[Sample]]:
        groups: dict[str, list[Sample]] = {}
        for sample in samples:
            parts = [
                label[1:] if label.startswith("=") else sample.labels.get(label, "")
                for label in signal_map.by
                if label in sample.labels or label not in signal_map.optional
            ]
            if not all(parts):
                raise Unusable(f"{source}: a series lacks one of {signal_map.by}", (source,))
            distinct = [part for i, part in enumerate(parts) if i == 0 or part != parts[i - 1]]
            key = signal_map.separator.join(distinct)[:MAX_KEY_CHARS]
            if signal_map.keys:
                if key not in signal_map.keys:
                    continue
                key = signal_map.keys[key]
            groups.setdefault(key, []).append(sample)
        if len(groups) > MAX_KEYS:
            raise Unusable(f"{source}: more than {MAX_KEYS} label combinations", (source,))
        return groups

    def _by_rank(self, samples: Sequence[Sample], values: Sequence[float]) -> dict[str, float]:
        label = self._map.rank_label
        if label is None or not 1 < len(samples) <= MAX_KEYS:
            return {}
        out: dict[str, float] = {}
        for sample, value in zip(samples, values, strict=True):
            rank = f"{label}={sample.labels.get(label, '')}"[:MAX_KEY_CHARS]
            out[rank] = out.get(rank, 0.0) + value
        # Several series of one rank were added up, which is wrong for a mean: no split then.
        return out if len(out) == len(samples) else {}

    def _weights(self, signal_map: SignalMap, samples: Sequence[Sample]) -> list[float] | None:
        """Capacity of each rank for a weighted mean; None when not every rank states it."""
        rank, weight = self._map.rank_label, signal_map.weight
        if weight is None or rank is None or len(samples) < 2:
            return None
        by_rank = {
            info.labels.get(rank): _capacity(info, weight.labels)
            for info in self._series.info(weight.name)
        }
        weights = [by_rank.get(sample.labels.get(rank), 0.0) for sample in samples]
        return weights if all(weights) else None

    def _stated_version(self) -> str:
        """What an info series says, empty when none does."""
        info = self._map.version_info
        if info is None:
            return ""
        for sample in self._series.info(info.name):
            version = sample.labels.get(info.label, "")
            # It goes into columns and pages, so it must be a plain short word.
            return version[:60] if version.isascii() and version.isprintable() else ""
        return ""

    def epoch_s(self) -> float:
        """Start of the process behind the text, 0 when unknown."""
        starts = [
            sample.value for name in self._map.start_time for sample in self._samples.get(name, ())
        ]
        return max((start for start in starts if 1e9 <= start < 1e10), default=0.0)


def together(engine: Signal, addon: Signal) -> Signal:
    """A queue and what waits in front of it, each with its own stages."""
    assert engine.value is not None
    assert addon.value is not None
    by = dict(engine.by) or {"engine": engine.value}
    for stage, value in (addon.by or {"server": addon.value}).items():
        by[stage] = by.get(stage, 0.0) + value
    source = (*engine.source, *addon.source)
    return replace(engine, value=engine.value + addon.value, by=by, source=source)


def by_stage(queue: Signal) -> Signal:
    """The same queue as a labelled signal, missing when no stage is exposed."""
    if queue.state == "missing" or not queue.by:
        reason = queue.reason or NOT_EXPOSED
        source = queue.source if queue.state == "missing" else ()
        return missing(queue.kind, queue.unit, reason, source=source, labelled=True)
    return replace(queue, labelled=True)


def _histogram_signal(
    signal_map: SignalMap, folded: buckets.Folded, source: tuple[str, ...]
) -> Signal:
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


def _aggregate(how: str, values: Sequence[float], weights: Sequence[float] | None) -> float:
    if how == "mean":
        w = weights if weights is not None else [1.0] * len(values)
        mean = math.fsum(x * y for x, y in zip(values, w, strict=True)) / math.fsum(w)
        return min(mean, max(values))
    if how == "sum":
        return math.fsum(values)
    return max(values) if how == "max" else min(values)


def _highest(part: Found, whole: Found, is_rest: bool) -> float | None:
    """The fullest of the ranks, where each states both."""
    wholes = {_by_value(s): v for s, v in zip(whole.samples, whole.values(), strict=True)}
    highest = None
    for sample, value in zip(part.samples, part.values(), strict=True):
        bottom = wholes.get(_by_value(sample))
        if bottom is None:
            return None
        bottom += value if is_rest else 0.0
        ratio = value / bottom if bottom else 0.0
        highest = ratio if highest is None else max(highest, ratio)
    return None if highest is None else min(highest, 1.0)


def _by_value(sample: Sample) -> frozenset[tuple[str, str]]:
    """What two series of one rank have in common, whatever their names."""
    return frozenset(sample.labels.items())


def _capacity(info: Sample, labels: Sequence[str]) -> float:
    if not labels:
        return info.value if 0.0 < info.value < math.inf else 0.0
    return next((n for label in labels if (n := number_of(info.labels.get(label)))), 0.0)


def _take(parts: dict[str, float], names: Sequence[str], amount: float) -> None:
    """Take `amount` requests out of the named parts, in their order, as far as they go."""
    for name in names:
        taken = min(parts.get(name, 0.0), amount)
        if taken:
            parts[name] -= taken
            amount -= taken
