"""How far what comes true may lie from what was predicted by chance alone, as a band around it.

A plan is judged by few requests. Of n that arrive independently, a share p of them is counted as

    p +- Z sqrt(p (1 - p) / n)

and what is made of their work, with c the coefficient of variation of one request's, as

    x (1 +- Z sqrt((1 + c^2) / n))

A value inside its band is no evidence against the prediction; one outside has another cause.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from routing.core.types import LengthHistogram

Z = 2.0
"""Standard deviations: nineteen values of twenty lie inside."""


@dataclass(frozen=True)
class Band:
    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def of_share(predicted: float, n: float) -> Band | None:
    """Of a share counted over `n` requests; None where none were counted."""
    if n <= 0.0 or not 0.0 <= predicted <= 1.0:
        return None
    half = Z * math.sqrt(predicted * (1.0 - predicted) / n)
    return Band(max(predicted - half, 0.0), min(predicted + half, 1.0))


def of_work(predicted: float, n: float, variation: float) -> Band | None:
    """Of an amount of work done for `n` requests that differ by `variation`."""
    if n <= 0.0 or predicted < 0.0:
        return None
    half = predicted * Z * math.sqrt((1.0 + variation**2) / n)
    return Band(max(predicted - half, 0.0), predicted + half)


def variation(lengths: LengthHistogram) -> float:
    """The standard deviation of lengths over their mean, buckets at their middles; 0 of none."""
    middles, low = [], 0.0
    for edge in lengths.edges:
        middles.append((low + edge) / 2.0)
        low = edge
    middles.append(low)
    total = math.fsum(lengths.counts)
    if total <= 0.0:
        return 0.0
    mean = math.fsum(m * c for m, c in zip(middles, lengths.counts, strict=True)) / total
    if mean <= 0.0:
        return 0.0
    squares = math.fsum((m - mean) ** 2 * c for m, c in zip(middles, lengths.counts, strict=True))
    return math.sqrt(squares / total) / mean
