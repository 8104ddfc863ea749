"""Cumulative `le` buckets of an exposition as one histogram of per-bucket counts.

    counts[i] = cumulative(edges[i]) - cumulative(edges[i - 1])
    counts[n] = total - cumulative(edges[n - 1])

Ranks of one engine are added bucket by bucket, only where all of them use the same bounds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import lt, sub

from telemetry.exposition import Sample
from telemetry.wire import Histogram

MAX_EDGES = 1024
MAX_BOUND_CHARS = 40
MAX_VALUE = 1e24
"""Beyond every counter this product reads, and far from where sums of floats overflow."""


@dataclass(frozen=True)
class Folded:
    """What the series of one histogram add up to; `problem` set means none of it is usable.

    `buckets` are the cumulative counts as exposed, by the text of their bound. `histogram` is None
    where no `_sum` was exposed, since a histogram on the wire carries one.
    """

    sum: float | None = None
    count: float | None = None
    buckets: tuple[tuple[str, float], ...] = ()
    histogram: Histogram | None = None
    problem: str | None = None


def fold(
    buckets: Sequence[Sample],
    sums: Sequence[Sample],
    counts: Sequence[Sample],
    *,
    times: float = 1.0,
    per: float = 1.0,
) -> Folded:
    """One histogram from its `_bucket`, `_sum` and `_count` series over all ranks.

    Bounds and sum are multiplied by `times / per`, from the exporter's unit to the signal's.
    """
    values = [sample.value for sample in buckets]
    if not all(map(_usable, (values, [s.value for s in sums], [s.value for s in counts]))):
        return Folded(problem="a value is NaN or out of range")
    total = math.fsum(sample.value for sample in sums) * times / per if sums else None
    count = math.fsum(sample.value for sample in counts) if counts else None
    if total is not None and total < 0.0:
        return Folded(problem="the sum is negative")
    if count is not None and count < 0.0:
        return Folded(problem="the count is negative")
    layout = _layout(tuple([sample.labels.get("le") for sample in buckets]), times, per)
    if layout is not None:
        return _fold(*layout, values, total, count)
    cumulative: dict[float, float] = {}
    seen: Counter[float] = Counter()
    for sample in buckets:
        bound = _bound(sample.labels.get("le"))
        if bound is None:
            return Folded(problem=f"le={sample.labels.get('le')!r} is not a bound")
        bound = bound * times / per
        cumulative[bound] = cumulative.get(bound, 0.0) + sample.value
        seen[bound] += 1
    if len(set(seen.values())) > 1:
        return Folded(problem="ranks expose different bucket bounds")
    if len(cumulative) > MAX_EDGES:
        return Folded(problem=f"more than {MAX_EDGES} buckets")
    bounds = sorted(cumulative)
    texts = [_text(bound) for bound in bounds]
    return _fold(bounds, texts, [cumulative[bound] for bound in bounds], total, count)


def _usable(values: Sequence[float]) -> bool:
    # A NaN hides from min and max, but not from a sum.
    return not values or (
        max(values) <= MAX_VALUE and min(values) >= -MAX_VALUE and not math.isnan(sum(values))
    )


# One rank exposes the same bounds in the same order at every scrape.
@lru_cache(maxsize=1024)
def _layout(
    written: tuple[str | None, ...], times: float, per: float
) -> tuple[list[float], list[str]] | None:
    """(bounds, their texts) where each is one, ascending, and there once; None for any other."""
    read = [_bound(text) for text in written]
    bounds = [bound * times / per for bound in read if bound is not None]
    ascending = all(map(lt, bounds, bounds[1:]))
    if len(bounds) != len(written) or not ascending or len(bounds) > MAX_EDGES:
        return None
    return bounds, [_text(bound) for bound in bounds]


def add(folded: Sequence[Folded]) -> Folded:
    """Several histograms of one thing as one: the same bounds, or none of it is usable."""
    first, *others = folded
    if not others:
        return first
    problem = next((each.problem for each in folded if each.problem is not None), None)
    if problem is not None:
        return Folded(problem=problem)
    if any([b for b, _ in each.buckets] != [b for b, _ in first.buckets] for each in others):
        return Folded(problem="its parts have different bucket bounds")
    histograms = [each.histogram for each in folded if each.histogram is not None]
    total = None if any(each.sum is None for each in folded) else _sum(each.sum for each in folded)
    whole = None
    if len(histograms) == len(folded):
        columns = zip(*(each.counts for each in histograms), strict=True)
        whole = Histogram(
            edges=histograms[0].edges,
            counts=[math.fsum(column) for column in columns],
            sum=math.fsum(each.sum for each in histograms),
        )
    return Folded(
        sum=total,
        count=_sum(each.count for each in folded),
        buckets=tuple(
            (bound, math.fsum(each.buckets[i][1] for each in folded))
            for i, (bound, _) in enumerate(first.buckets)
        ),
        histogram=whole,
    )


def _sum(values: Iterable[float | None]) -> float:
    return math.fsum(value for value in values if value is not None)


def _fold(
    bounds: Sequence[float],
    texts: Sequence[str],
    cumulative: Sequence[float],
    total: float | None,
    count: float | None,
) -> Folded:
    """`cumulative` counts at ascending `bounds`, all three of one length."""
    exposed = tuple(zip(texts, cumulative, strict=True))
    edges, levels = list(bounds), list(cumulative)
    if edges and edges[-1] == math.inf:
        # The +Inf bucket and _count are the same number; a scrape taken in the middle of an
        # observation may differ by one, and then the buckets agree with each other.
        count = levels.pop()
        edges.pop()
    if count is None:
        return Folded(problem="neither a +Inf bucket nor a _count is exposed")
    levels.append(count)
    counts = list(map(sub, levels, [0.0, *levels]))
    if min(counts) < 0.0:
        return Folded(problem="cumulative bucket counts fall")
    histogram = Histogram(edges=edges, counts=counts, sum=total) if total is not None else None
    return Folded(sum=total, count=count, buckets=exposed, histogram=histogram)


def _bound(text: str | None) -> float | None:
    """An upper bound; negative ones do not occur in what we read (times, tokens, bytes)."""
    return _read_bound(text) if text is not None and len(text) <= MAX_BOUND_CHARS else None


# Bounds are the same at every scrape.
@lru_cache(maxsize=4096)
def _read_bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return bound if bound >= 0.0 else None


@lru_cache(maxsize=4096)
def _text(bound: float) -> str:
    return "+Inf" if bound == math.inf else repr(bound)
