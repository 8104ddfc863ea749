"""The `lengths` tables of a scenario: a distribution of prompt or output lengths."""

from __future__ import annotations

import math

import numpy as np

from routing.core.model.lengths import BucketLengths, Lengths, LogNormalLengths
from routing.core.scenario.tables import Table

_MOST_MU, _MOST_SIGMA = 50.0, 10.0
"""Of ln tokens. Recorded traffic has 0.5 to 2; beyond this the moments leave what a float holds."""
_LENGTHS = {
    "lognormal": ("kind", "mu", "sigma", "min", "max"),
    "empirical": ("kind", "buckets", "file", "column"),
}


def read_lengths(anything: Table) -> Lengths:
    kind = anything.one_of("kind", tuple(_LENGTHS))
    table = Table(anything.data, anything.path, known=_LENGTHS[kind])
    if kind == "empirical":
        if "file" in table.data:
            raise table.error(
                "file",
                "is read where the scenario file is read; here it must be "
                "buckets = [[upper_tokens, weight], ...]",
            )
        return _buckets(table)
    low, high = table.number("min", low=0), table.number("max", low=0)
    if high <= low:
        raise table.error("max", "must be above min")
    mu, sigma = table.number("mu", low=-math.inf), table.number("sigma", low=0)
    if abs(mu) > _MOST_MU:
        raise table.error("mu", f"must be at most {_MOST_MU:g}: it is the ln of tokens")
    if sigma > _MOST_SIGMA:
        message = f"must be at most {_MOST_SIGMA:g}: lengths would differ by more than e^{sigma:g}"
        raise table.error("sigma", message)
    lengths = LogNormalLengths(mu, sigma, low, high)
    if not 0 < lengths.mass < math.inf:
        raise table.error("mu", "puts no prompt between min and max")
    return lengths


def _buckets(table: Table) -> BucketLengths:
    rows = table.pairs("buckets")
    edges = np.array([1.0, *(edge for edge, _ in rows)])
    weights = np.array([weight for _, weight in rows])
    if not rows or np.any(np.diff(edges) <= 0):
        raise table.error("buckets", "upper edges must rise from above 1 token")
    if np.any(weights < 0) or weights.sum() <= 0:
        raise table.error("buckets", "weights must not be negative and must not all be 0")
    return BucketLengths(edges, weights / weights.sum())
