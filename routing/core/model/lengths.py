"""Distributions of uncached prompt lengths, and expectations over them.

Every distribution answers three questions, from which all the model needs follows exactly
(`Below`, curves.py):

    F(x) = P(L <= x)            M(x) = E[L; L <= x] = E[L * 1{L <= x}]      [x, M in tokens]
    Q(x) = E[L^2; L <= x]                                                   [tokens^2]
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from routing.core.model.curves import Array, Curve, Moments
from routing.core.types import LengthHistogram

_FIRST_BUCKET_FROM = 1.0
"""Tokens where the first bucket starts: log-uniform from 0 is not defined, and no prompt that has
to be prefilled is shorter than one token."""
_LAST_BUCKET_RATIO = 1.1
"""The open bucket above the last edge is taken to reach this much further."""


_SQRT_2 = math.sqrt(2.0)
_LEAST_WEIGHT, _MAX_PLAUSIBLE = 1e-6, 1e12


class Lengths(Protocol):
    """A distribution of uncached lengths. The last axis of an answer is that of `x`."""

    def at(self, x: float) -> Moments:
        """F, M and Q at one length: what the three below say of many."""
        ...

    def cdf(self, x: ArrayLike) -> Array:
        """F(x) = P(L <= x)."""
        ...

    def tokens_below(self, x: ArrayLike) -> Array:
        """M(x) = E[L; L <= x] in tokens (not divided by F)."""
        ...

    def squares_below(self, x: ArrayLike) -> Array:
        """Q(x) = E[L^2; L <= x] in tokens^2 (not divided by F)."""
        ...


@dataclass(frozen=True)
class LogNormalLengths:
    """ln L is normal(`mu`, `sigma`), truncated to [`min_tokens`, `max_tokens`]."""

    mu: float
    sigma: float
    min_tokens: float
    max_tokens: float

    def _scores(self, x: ArrayLike) -> Array:
        clipped = np.clip(np.asarray(x, dtype=np.float64), self.min_tokens, self.max_tokens)
        scores: Array = (np.log(clipped) - self.mu) / self.sigma
        return scores

    @cached_property
    def mass(self) -> float:
        """What the truncation keeps of the untruncated distribution; 0 if it keeps nothing."""
        low, high = self._scores([self.min_tokens, self.max_tokens])
        return float(normal_cdf(high) - normal_cdf(low))

    @cached_property
    def _lowest(self) -> tuple[tuple[float, float], ...]:
        """Per moment n: its untruncated value over `mass`, and Phi at `min_tokens`."""
        z = (math.log(self.min_tokens) - self.mu) / self.sigma
        return tuple(
            (
                math.exp(n * self.mu + (n * self.sigma) ** 2 / 2.0) / self.mass,
                0.5 + 0.5 * math.erf((z - n * self.sigma) / _SQRT_2),
            )
            for n in range(3)
        )

    def at(self, x: float) -> Moments:
        sigma = self.sigma
        z = (math.log(min(max(x, self.min_tokens), self.max_tokens)) - self.mu) / sigma
        (whole0, low0), (whole1, low1), (whole2, low2) = self._lowest
        erf = math.erf
        return (
            whole0 * (0.5 + 0.5 * erf(z / _SQRT_2) - low0),
            whole1 * (0.5 + 0.5 * erf((z - sigma) / _SQRT_2) - low1),
            whole2 * (0.5 + 0.5 * erf((z - 2.0 * sigma) / _SQRT_2) - low2),
        )

    def cdf(self, x: ArrayLike) -> Array:
        low = normal_cdf(self._scores(self.min_tokens))
        below: Array = (normal_cdf(self._scores(x)) - low) / self.mass
        return below

    def tokens_below(self, x: ArrayLike) -> Array:
        return self._moment_below(x, 1)

    def squares_below(self, x: ArrayLike) -> Array:
        return self._moment_below(x, 2)

    def _moment_below(self, x: ArrayLike, n: int) -> Array:
        # Partial moment of a log-normal: e^(n mu + n^2 sigma^2 / 2) * Phi(z - n sigma).
        whole = math.exp(n * self.mu + (n * self.sigma) ** 2 / 2.0)
        low = normal_cdf(self._scores(self.min_tokens) - n * self.sigma)
        below: Array = whole * (normal_cdf(self._scores(x) - n * self.sigma) - low) / self.mass
        return below


@dataclass(frozen=True)
class BucketLengths:
    """Weights per bucket, log-uniform inside each bucket.

    `edges` shape (n + 1,) ascending and positive; `weights` shape (n,), summing to 1 for a
    distribution.
    """

    edges: Array
    weights: Array

    @cached_property
    def _sums(self) -> tuple[list[float], list[float], list[list[float]]]:
        """Edges, each bucket's weight per ln tokens, and F, M and Q at every edge."""
        edges: list[float] = self.edges.tolist()
        density = (self.weights / np.diff(np.log(self.edges))).tolist()
        parts = [
            self.weights.tolist(),
            (np.asarray(density) * np.diff(self.edges)).tolist(),
            (np.asarray(density) * np.diff(self.edges**2) / 2.0).tolist(),
        ]
        return edges, density, [list(accumulate(part, initial=0.0)) for part in parts]

    def at(self, x: float) -> Moments:
        edges, density, (mass, tokens, squares) = self._sums
        i = bisect_left(edges, x) - 1
        if i < 0:
            return 0.0, 0.0, 0.0
        if i >= len(density):
            return mass[-1], tokens[-1], squares[-1]
        low, share = edges[i], density[i]
        return (
            mass[i] + share * math.log(x / low),
            tokens[i] + share * (x - low),
            squares[i] + share * (x * x - low * low) / 2.0,
        )

    def cdf(self, x: ArrayLike) -> Array:
        return self._moment_below(x, 0)

    def tokens_below(self, x: ArrayLike) -> Array:
        return self._moment_below(x, 1)

    def squares_below(self, x: ArrayLike) -> Array:
        return self._moment_below(x, 2)

    def _moment_below(self, x: ArrayLike, n: int) -> Array:
        _, density, sums = self._sums
        points = np.clip(np.asarray(x, dtype=np.float64), self.edges[0], self.edges[-1])
        bucket = np.clip(np.searchsorted(self.edges, points) - 1, 0, len(density) - 1)
        low = self.edges[bucket]
        inside = np.log(points / low) if n == 0 else (points**n - low**n) / n
        below: Array = np.asarray(sums[n])[bucket] + np.asarray(density)[bucket] * inside
        return below


def bucket_edges(histogram: LengthHistogram) -> Array:
    """Both ends of every bucket, shape (len(counts) + 1,)."""
    first, last = histogram.edges[0], histogram.edges[-1]
    start = min(_FIRST_BUCKET_FROM, 0.5 * first)
    return np.array([start, *histogram.edges, last * _LAST_BUCKET_RATIO])


def from_histogram(histogram: LengthHistogram) -> BucketLengths:
    """The observed distribution. The histogram must have weight in it (`usable`)."""
    counts = np.asarray(histogram.counts, dtype=np.float64)
    return BucketLengths(bucket_edges(histogram), counts / counts.sum())


def usable(histogram: LengthHistogram | None) -> bool:
    """Whether a histogram says anything: ascending edges, no negative count, some weight."""
    if histogram is None or not histogram.edges:
        return False
    edges, counts = np.asarray(histogram.edges), np.asarray(histogram.counts)
    # Compared, not subtracted: finite edges may still differ by more than a float holds.
    return bool(
        len(counts) == len(edges) + 1
        and edges[0] > 0
        and edges[-1] <= _MAX_PLAUSIBLE
        and np.all(edges[1:] > edges[:-1])
        and np.all(counts >= 0)
        and np.all(counts <= _MAX_PLAUSIBLE)
        and counts.sum() > _LEAST_WEIGHT
        and 0 < histogram.n_effective <= _MAX_PLAUSIBLE
        and histogram.n_seen >= 0
    )


class Below:
    """t -> E[g(L); L <= t] of one curve over one distribution, in the curve's unit."""

    def __init__(self, lengths: Lengths, curve: Curve) -> None:
        self._lengths, self._breaks = lengths, curve.breaks
        self._bends = not curve.is_linear
        # In piece j the sum is base_j + a_j F(t) + b_j M(t) + c_j Q(t).
        self._pieces: list[tuple[float, float, float, float]] = []
        below = mass = tokens = squares = 0.0
        ends = map(lengths.at, (*curve.breaks, math.inf))
        for a, b, c, end in zip(curve.constant, curve.linear, curve.square, ends, strict=True):
            base = below - a * mass - b * tokens - c * squares
            self._pieces.append((base, a, b, c))
            mass, tokens, squares = end
            below = base + a * mass + b * tokens + c * squares
        self.whole = below

    def at(self, t: float, moments: Moments) -> float:
        """At one t, with F, M and Q there (`Lengths.at`)."""
        base, a, b, c = self._pieces[bisect_left(self._breaks, t)]
        mass, tokens, squares = moments
        return base + a * mass + b * tokens + c * squares

    def many(self, t: ArrayLike) -> Array:
        """At many t; same shape."""
        thresholds = np.asarray(t, dtype=np.float64)
        mass, tokens = self._lengths.cdf(thresholds), self._lengths.tokens_below(thresholds)
        squares = self._lengths.squares_below(thresholds) if self._bends else None
        return self.of_moments(thresholds, mass, tokens, squares)

    def of_moments(self, t: Array, mass: Array, tokens: Array, squares: Array | None) -> Array:
        """At many t, with F, M and, for a curve that bends, Q there."""
        piece = np.searchsorted(self._breaks, t)
        base, a, b, c = self._columns[:, piece]
        below: Array = base + a * mass + b * tokens
        return below if squares is None else below + c * squares

    @cached_property
    def _columns(self) -> Array:
        return np.array(self._pieces).T


def normal_cdf(z: ArrayLike) -> Array:
    """P(Z <= z) of a standard normal; same shape as `z`."""
    below: Array = np.asarray(ndtr(np.asarray(z, dtype=np.float64)))
    return below
