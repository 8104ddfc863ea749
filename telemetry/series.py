"""Finds the series of one alias map in one text.

What a name, a prefix, a label or a version has to do with it is settled here, so that `folding`
is arithmetic on what was found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from telemetry import buckets
from telemetry.engine_maps import ENDS, UNITS, EngineMap, Names, Source
from telemetry.exposition import Exposition, Sample

# Floating point may put a full cache at 1.0000001.
_RATIO_SLACK = 1e-6
_UNITLESS = ("", 1.0, 1.0)


class Unusable(Exception):
    """Why a signal has no value although there are series of it."""

    def __init__(self, reason: str, source: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.reason, self.source = reason, source


@dataclass(frozen=True)
class Found:
    """The series under one name. `times` and `per` turn the exporter's unit into the signal's."""

    source: str
    samples: Sequence[Sample]
    numbers: Sequence[float]
    times: float
    per: float

    def values(self, *, ratio: bool = False) -> list[float]:
        """One value a series, all of them usable. Raises Unusable: part of a sum is no sum."""
        return [usable(self.source, self.scaled(number), ratio=ratio) for number in self.numbers]

    def scaled(self, number: float) -> float:
        """A number of the exporter in the signal's unit."""
        return number * self.times / self.per


@dataclass(frozen=True)
class Family:
    """A histogram's bucket, sum and count series under one name."""

    name: str
    parts: tuple[Sequence[Sample], Sequence[Sample], Sequence[Sample]]
    source: tuple[str, ...]
    times: float
    per: float


def usable(source: str, value: float, *, ratio: bool = False) -> float:
    """The value, if it can be a measurement: everything we read is a size or a count."""
    if math.isnan(value):
        raise Unusable(f"{source} is NaN", (source,))
    if not 0.0 <= value <= buckets.MAX_VALUE:
        raise Unusable(f"{source}={value:g} is no measurement", (source,))
    if not ratio:
        return value
    if value > 1.0 + _RATIO_SLACK:
        raise Unusable(f"{source}={value:g} is not in 0..1", (source,))
    return min(value, 1.0)


class Series:
    """The series of one text under the names of one map. `warn` hears of odd ones."""

    def __init__(
        self,
        engine_map: EngineMap,
        exposition: Exposition,
        *,
        version: str = "",
        warn: Callable[[str], None],
    ) -> None:
        self._map, self._samples = engine_map, exposition.samples
        self._version, self._warn = version, warn

    def find(self, names: Names) -> Found | None:
        """The first of `names` that is exposed, whichever prefix it has."""
        for source in self._current(names):
            for prefix in self._map.prefixes:
                name = prefix + source.name
                found = self._found(name, source)
                if found is not None:
                    return found
        return None

    def _found(self, name: str, source: Source) -> Found | None:
        samples = _where(self._samples.get(name, ()), source.where)
        if self._map.blank_from is not None:
            samples = [sample for sample in samples if not sample.value >= self._map.blank_from]
        if not samples:
            return None
        samples = self._once(name, samples)
        numbers: list[float] = [sample.value for sample in samples]
        if source.labels:
            told = [_product(sample, source.labels) for sample in samples]
            numbers = [number for number in told if number is not None]
            if len(numbers) < len(samples):
                return None
        _, times, per = UNITS[source.unit] if source.unit is not None else _UNITLESS
        return Found(name, samples, numbers, times, per)

    def family(self, names: Names) -> Family | None:
        """The first exposed histogram of `names`."""
        for source in self._current(names):
            for prefix in self._map.prefixes:
                family = self._family(prefix + source.name, source)
                if family is not None:
                    return family
        return None

    def _family(self, name: str, source: Source) -> Family | None:
        series: list[tuple[str, list[Sample]]] = []
        for end in ENDS[1:]:
            samples = _where(self._samples.get(name + end, ()), source.where)
            series.append((name + end, self._once(name, samples) if samples else []))
        if not series[0][1]:
            # Some write the buckets without their ending; a bound tells them from a gauge.
            bare = _where(self._samples.get(name, ()), source.where)
            series[0] = (name, [sample for sample in bare if "le" in sample.labels])
        if not any(samples for _, samples in series):
            return None
        _, times, per = UNITS[source.unit] if source.unit is not None else _UNITLESS
        names = tuple(name for name, samples in series if samples)
        return Family(name, (series[0][1], series[1][1], series[2][1]), names, times, per)

    def info(self, name: str) -> Sequence[Sample]:
        """The series of one name behind the first prefix that has it."""
        for prefix in self._map.prefixes:
            samples = self._samples.get(prefix + name)
            if samples:
                return samples
        return ()

    def _current(self, names: Names) -> Sequence[Source]:
        """Without the entries whose name means something else in this version."""
        if not self._version:
            return names
        n_of: dict[str, int] = {}
        for source in names:
            n_of[source.name] = n_of.get(source.name, 0) + 1
        return [s for s in names if n_of[s.name] == 1 or s.covers(self._version)]

    def _once(self, name: str, samples: list[Sample]) -> list[Sample]:
        """Each series once: a series exposed twice, or by two ranks, must not count twice."""
        if len(samples) == 1:
            return samples
        if len({id(sample.labels) for sample in samples}) < len(samples):
            self._warn(f"{name}: the same series appears more than once, the first counts")
            # The parser gives equal series one labels object.
            samples = list({id(s.labels): s for s in reversed(samples)}.values())[::-1]
        return self._first_copies(samples) if self._map.copies else samples

    def _first_copies(self, samples: list[Sample]) -> list[Sample]:
        """Of series that differ only in the labels `copies`, the lowest rank's."""
        copies = self._map.copies
        ranks = {_ranks(sample.labels, copies) for sample in samples}
        if len(ranks) == 1:
            return samples
        kept: dict[frozenset[tuple[str, str]], Sample] = {}
        for sample in sorted(samples, key=lambda s: _ranks(s.labels, copies)):
            rest = frozenset(item for item in sample.labels.items() if item[0] not in copies)
            kept.setdefault(rest, sample)
        return list(kept.values())


def _ranks(labels: Mapping[str, str], copies: Sequence[str]) -> tuple[tuple[int, str], ...]:
    # By length first, so that rank 10 comes behind rank 9.
    return tuple((len(labels.get(copy, "")), labels.get(copy, "")) for copy in copies)


def _where(samples: Sequence[Sample], where: Mapping[str, str]) -> list[Sample]:
    if not where:
        return samples if isinstance(samples, list) else list(samples)
    # A label that is not there is an empty one, as everywhere in this format.
    return [
        s for s in samples if all(s.labels.get(key, "") == value for key, value in where.items())
    ]


def number_of(text: str | None) -> float | None:
    """A positive number in a label, None where there is none."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0.0 < number < math.inf else None


def _product(sample: Sample, labels: Sequence[str]) -> float | None:
    product = 1.0
    for label in labels:
        factor = number_of(sample.labels.get(label))
        if factor is None:
            return None
        product *= factor
    return product
