"""Cumulative `le` buckets of an exposition as one histogram of per-bucket counts.

    counts[i] = cumulative(edges[i]) - cumulative(edges[i - 1])
    counts[n] = total - cumulative(edges[n - 1])

Ranks of one engine are added bucket by bucket, only where all of them use the same bounds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from telemetry.exposition import Sample
from telemetry.wire import Histogram

MAX_EDGES = 1024
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


def fold(buckets: Sequence[Sample], sums: Sequence[Sample], counts: Sequence[Sample]) -> Folded:
    """One histogram from its `_bucket`, `_sum` and `_count` series over all ranks."""
    if not all(abs(sample.value) <= MAX_VALUE for sample in (*buckets, *sums, *counts)):
        return Folded(problem="a value is NaN or out of range")
    total = math.fsum(sample.value for sample in sums) if sums else None
    count = math.fsum(sample.value for sample in counts) if counts else None
    if total is not None and total < 0.0:
        return Folded(problem="the sum is negative")
    if count is not None and count < 0.0:
        return Folded(problem="the count is negative")
    cumulative: dict[float, float] = {}
    seen: Counter[float] = Counter()
    for sample in buckets:
        bound = _bound(sample.labels.get("le"))
        if bound is None:
            return Folded(problem=f"le={sample.labels.get('le')!r} is not a bound")
        cumulative[bound] = cumulative.get(bound, 0.0) + sample.value
        seen[bound] += 1
    if len(set(seen.values())) > 1:
        return Folded(problem="ranks expose different bucket bounds")
    if len(cumulative) > MAX_EDGES:
        return Folded(problem=f"more than {MAX_EDGES} buckets")
    return _fold(sorted(cumulative.items()), total, count)


def _fold(
    cumulative: list[tuple[float, float]], total: float | None, count: float | None
) -> Folded:
    exposed = tuple((_text(bound), value) for bound, value in cumulative)
    if cumulative and cumulative[-1][0] == math.inf:
        # The +Inf bucket and _count are the same number; a scrape taken in the middle of an
        # observation may differ by one, and then the buckets agree with each other.
        count = cumulative.pop()[1]
    if count is None:
        return Folded(problem="neither a +Inf bucket nor a _count is exposed")
    counts, below = [], 0.0
    for _, value in [*cumulative, (math.inf, count)]:
        if value < below:
            return Folded(problem="cumulative bucket counts fall")
        counts.append(value - below)
        below = value
    edges = [bound for bound, _ in cumulative]
    histogram = Histogram(edges=edges, counts=counts, sum=total) if total is not None else None
    return Folded(sum=total, count=count, buckets=exposed, histogram=histogram)


def _bound(text: str | None) -> float | None:
    """An upper bound; negative ones do not occur in what we read (times, tokens, bytes)."""
    try:
        bound = float(text or "")
    except ValueError:
        return None
    return bound if bound >= 0.0 else None


def _text(bound: float) -> str:
    return "+Inf" if bound == math.inf else repr(bound)
