"""Quantiles of a histogram, and when it does not know them.

In its open last bucket a histogram knows only that something was larger than its largest bound.
A quantile that lies there is said to be *above* it: the bound is no estimate of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Quantile:
    """`value` is None without observations. `is_above`: it is larger than `value`, how much larger
    nobody knows."""

    value: float | None
    is_above: bool = False


def quantile(edges: Sequence[float], counts: Sequence[float], share: float) -> Quantile:
    """The value below which `share` of the observations lie, linear inside a bucket.

    `edges` ascending upper bounds, shape (n,); `counts` per bucket, shape (n + 1,), the last above
    the last edge. The first bucket begins at zero.
    """
    n = sum(counts)
    if n <= 0 or not edges:
        return Quantile(None)
    target, seen, low = share * n, 0.0, 0.0
    for edge, count in zip(edges, counts, strict=False):
        if count > 0 and seen + count >= target:
            return Quantile(low + (edge - low) * max(target - seen, 0.0) / count)
        seen, low = seen + count, edge
    return Quantile(edges[-1], is_above=True)
