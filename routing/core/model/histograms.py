"""Request lengths counted by many gates, on whatever buckets: added up, decayed, read as one.

A `Tally` keeps counts on the very bounds they were counted on, so adding tallies loses nothing: it
is addition bound by bound, whatever the order and grouping, and gates with the same bounds add up
to a histogram on those. Counts of an interval of age u weigh

    w(u) = exp(-u / tau)          n_effective = (sum w)^2 / sum w^2     over requests

Only reading a tally (`Tally.read`) has to agree on bounds: those of all gates if they are the
same, else `TOKEN_EDGES`. Buckets wider than `COARSE_RATIO` are cut into narrow ones there. Counts
get onto such bounds by a monotone cubic (PCHIP: Fritsch and Butland, 1984) through the cumulative
counts against ln tokens. It passes through every count that is known, so no request is lost or made
up; it never falls, so none is negative; and it bends where log-uniform buckets have corners. What
that is worth on recorded traces: docs/algorithms.md, Lengths.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import PchipInterpolator

from routing.core.model.curves import Array
from routing.core.model.lengths import bucket_edges
from routing.core.placement.token_edges import TOKEN_EDGES
from routing.core.types import LengthHistogram, LengthShift

Edges = tuple[float, ...]

COARSE_RATIO = 1.5
"""Buckets wider than this are cut up. Engines' round bounds are 2 to 2.5 apart, and the last of
TOKEN_EDGES is x8 wide; within x1.5 log-uniform is as good as a curve."""
_CUT_RATIO = 1.1
_CUT_TOKENS = float(TOKEN_EDGES[0]), float(TOKEN_EDGES[-1])
"""Shorter prompts are too little work for their shares to need a shape, no model takes longer."""
_LEAST_TOKENS = 1.0
_MOST_REQUESTS = 1e12
"""More than any gate serves between two readings: a counter gone wrong, which says nothing."""


@dataclass(frozen=True)
class Counted:
    """Requests of one interval by length, `age_s` ago in its middle.

    `edges` shape (n,): upper bounds in tokens, ascending; `counts` shape (n + 1,), the last above
    `edges[-1]`.
    """

    age_s: float
    edges: Edges
    counts: Sequence[float]


@dataclass(frozen=True)
class Tally:
    """Weighted counts by the bounds they were counted on: `counts[edges]` has shape
    (len(edges) + 1,).

    `weight` and `weight_squared` are sums of w and w^2 over requests, `oldest_s` the greatest age.
    """

    counts: Mapping[Edges, Array]
    weight: float = 0.0
    weight_squared: float = 0.0
    oldest_s: float = 0.0

    def read(self, *, n_seen: float) -> LengthHistogram | None:
        """All of it as one histogram, of `n_seen` requests ever seen; None where nothing is."""
        if not self.weight_squared > 0.0:
            return None
        edges, counts = self._on_one_set()
        return LengthHistogram(
            edges=edges,
            # So many digits are far below one request, and short in the tick's row.
            counts=tuple(np.round(counts, 6).tolist()),
            n_effective=self.weight * self.weight / self.weight_squared,
            n_seen=n_seen,
            oldest_s=self.oldest_s,
        )

    def _on_one_set(self) -> tuple[Edges, Array]:
        edges = next(iter(self.counts)) if len(self.counts) == 1 else TOKEN_EDGES
        onto = finer(edges)
        if [edges] == list(self.counts) == [onto]:
            return edges, self.counts[edges]
        each = [spread(counted_on, held, onto) for counted_on, held in self.counts.items()]
        return onto, np.sum(each, axis=0)


def tally(parts: Iterable[Counted], *, tau_s: float) -> Tally:
    """Everything that was counted, decayed with time constant `tau_s`. Ages below 0 count as 0.

    What says nothing of lengths is left out: no bound above one token, or counts beyond belief.
    """
    rows: dict[Edges, list[Sequence[float]]] = {}
    weights: dict[Edges, list[float]] = {}
    weight = weight_squared = oldest_s = 0.0
    for part in filter(_tells_lengths, parts):
        w = math.exp(-max(part.age_s, 0.0) / tau_s)
        rows.setdefault(part.edges, []).append(part.counts)
        weights.setdefault(part.edges, []).append(w)
        n = math.fsum(part.counts)
        weight, weight_squared = weight + w * n, weight_squared + w * w * n
        oldest_s = max(oldest_s, part.age_s)
    counts = {
        edges: (np.asarray(weights[edges])[:, None] * np.asarray(rows[edges])).sum(axis=0)
        for edges in rows
    }
    return Tally(counts, weight, weight_squared, oldest_s)


def _tells_lengths(part: Counted) -> bool:
    return bool(
        part.edges
        and part.edges[-1] > _LEAST_TOKENS
        and min(part.counts) >= 0.0
        and math.fsum(part.counts) <= _MOST_REQUESTS
    )


def merge(tallies: Iterable[Tally]) -> Tally:
    """What several gates counted together."""
    counts: dict[Edges, Array] = {}
    weight = weight_squared = oldest_s = 0.0
    for each in tallies:
        for edges, held in each.counts.items():
            counts[edges] = counts[edges] + held if edges in counts else held
        weight, weight_squared = weight + each.weight, weight_squared + each.weight_squared
        oldest_s = max(oldest_s, each.oldest_s)
    return Tally(counts, weight, weight_squared, oldest_s)


@functools.lru_cache(maxsize=64)
def finer(edges: Edges) -> Edges:
    """The bounds above 0, every bucket wider than `COARSE_RATIO` cut into steps of at most x1.1."""
    found = {
        *(edge for edge in edges if edge > 0.0),
        *(cut for cut in _CUT_TOKENS if cut < edges[-1]),
    }
    for low, high in itertools.pairwise(sorted(found)):
        within = _CUT_TOKENS[0] <= low and high <= _CUT_TOKENS[1]
        if within and high > COARSE_RATIO * low:
            n = math.ceil(math.log(high / low) / math.log(_CUT_RATIO))
            found.update(float(round(low * (high / low) ** (i / n))) for i in range(1, n))
    return tuple(sorted(found))


def spread(edges: Edges, counts: Sequence[float] | Array, onto: Edges) -> Array:
    """Counts on `edges`, (len(edges) + 1,), as counts on `onto`, (len(onto) + 1,): the same sum."""
    held = np.asarray(counts, dtype=np.float64)
    # Bounds at or below one token tell nothing apart: every prompt has a token to compute.
    first = int(np.searchsorted(edges, _LEAST_TOKENS, side="right"))
    held = np.concatenate([[held[: first + 1].sum()], held[first + 1 :]])
    bounds = bucket_edges(LengthHistogram(edges[first:], tuple(held), 1.0, 1.0))
    cumulative, ln = np.concatenate([[0.0], np.cumsum(held)]), np.log(bounds)
    apart = np.append(np.diff(ln) > 0.0, True)  # bounds may differ by less than their logarithms
    with np.errstate(over="ignore"):  # beside a bucket of next to nothing the slope is 0
        curve = PchipInterpolator(ln[apart], cumulative[apart])
    below = curve(np.log(np.clip(onto, bounds[0], bounds[-1])))
    # Rounding only: the curve itself neither falls nor leaves its ends.
    below = np.maximum.accumulate(np.clip(below, 0.0, cumulative[-1]))
    return np.diff(below, prepend=0.0, append=cumulative[-1])


def shifts(parts: Sequence[Counted], spans_s: Sequence[float]) -> tuple[LengthShift, ...]:
    """The last `spans_s` seconds against what came before them, where both hold requests.

    Ages count undecayed: what is asked is whether these are requests of the same kind.
    """
    rows: dict[Edges, list[Counted]] = {}
    for part in filter(_tells_lengths, parts):
        rows.setdefault(part.edges, []).append(part)
    if not rows:
        return ()
    age, n, ln, square = np.concatenate([_moments(*group) for group in rows.items()], axis=1)
    found = []
    for span_s in spans_s:
        now, then = age <= span_s, age > span_s
        n_now, n_then = float(n[now].sum()), float(n[then].sum())
        if n_now > 0 and n_then > 0:
            mean_now, mean_then = float(ln[now].sum()) / n_now, float(ln[then].sum()) / n_then
            squares = float(square.sum()) - n_now * mean_now**2 - n_then * mean_then**2
            sd = math.sqrt(max(squares, 0.0) / (n_now + n_then))
            found.append(LengthShift(span_s, n_now, mean_now, n_then, mean_then, sd))
    return tuple(found)


def _moments(edges: Edges, parts: Sequence[Counted]) -> Array:
    """Of each part its age, its requests, and the sums of their ln and of its square; (4, n)."""
    counts, ln = np.asarray([part.counts for part in parts], dtype=np.float64), _ln_middles(edges)
    # Plain sums: a product of this size wakes every core that the linear algebra may use.
    of_ln = counts * ln
    age = [part.age_s for part in parts]
    return np.array([age, counts.sum(axis=1), of_ln.sum(axis=1), (of_ln * ln).sum(axis=1)])


@functools.lru_cache(maxsize=64)
def _ln_middles(edges: Edges) -> Array:
    """Middle of each bucket in ln tokens: the first from half its bound, the last at its own."""
    ln = np.log(np.maximum(edges, _LEAST_TOKENS))
    below = np.append(math.log(max(edges[0] / 2, _LEAST_TOKENS)), ln[:-1])
    return np.append((ln + below) / 2, ln[-1])
