"""Distributions of uncached prompt lengths, and expectations over them.

Every distribution answers two questions, from which all the model needs follows exactly:

    F(x) = P(L <= x)            M(x) = E[L; L <= x] = E[L * 1{L <= x}]      [x, M in tokens]

For a line a + b*l on a piece (u, v], E[a + b*L; u < L <= v] = a (F(v) - F(u)) + b (M(v) - M(u)), so
the mean of a piecewise linear profile below t is a sum over its pieces (`mean_seconds_below`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from routing.core.profiles import PrefillProfile
from routing.core.types import LengthHistogram

Array = NDArray[np.float64]

_FIRST_BUCKET_FROM = 1.0
"""Tokens where the first bucket starts: log-uniform from 0 is not defined, and no prompt that has
to be prefilled is shorter than one token."""
_LAST_BUCKET_RATIO = 1.1
"""The open bucket above the last edge is taken to reach this much further."""


_LEAST_WEIGHT, _MAX_PLAUSIBLE = 1e-6, 1e12


class Lengths(Protocol):
    """A distribution of uncached lengths. The last axis of an answer is that of `x`."""

    def cdf(self, x: ArrayLike) -> Array:
        """F(x) = P(L <= x)."""
        ...

    def tokens_below(self, x: ArrayLike) -> Array:
        """M(x) = E[L; L <= x] in tokens (not divided by F)."""
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

    def cdf(self, x: ArrayLike) -> Array:
        low = normal_cdf(self._scores(self.min_tokens))
        below: Array = (normal_cdf(self._scores(x)) - low) / self.mass
        return below

    def tokens_below(self, x: ArrayLike) -> Array:
        # Partial expectation of a log-normal: e^(mu + sigma^2/2) * Phi(z - sigma).
        whole = math.exp(self.mu + self.sigma**2 / 2.0)
        low = normal_cdf(self._scores(self.min_tokens) - self.sigma)
        below: Array = whole * (normal_cdf(self._scores(x) - self.sigma) - low) / self.mass
        return below


@dataclass(frozen=True)
class BucketLengths:
    """Weights per bucket, log-uniform inside each bucket.

    `edges` shape (n + 1,) ascending and positive; `weights` shape (..., n), each row summing to 1.
    Leading axes of `weights` are kept: answers have shape (..., len(x)).
    """

    edges: Array
    weights: Array

    def cdf(self, x: ArrayLike) -> Array:
        low, ratio, clipped = self._clipped(x)
        inside: Array = np.log(clipped / low) / ratio
        return self.weights @ inside

    def tokens_below(self, x: ArrayLike) -> Array:
        low, ratio, clipped = self._clipped(x)
        inside: Array = (clipped - low) / ratio
        return self.weights @ inside

    def _clipped(self, x: ArrayLike) -> tuple[Array, Array, Array]:
        points = np.atleast_1d(np.asarray(x, dtype=np.float64))
        low, high = self.edges[:-1, None], self.edges[1:, None]  # (n, 1)
        return low, np.log(high / low), np.clip(points, low, high)  # (n, len(x))


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


def mean_seconds_below(lengths: Lengths, profile: PrefillProfile, t: ArrayLike) -> Array:
    """E[T(L); L <= t] in seconds per arriving request; shape of `lengths.cdf(t)`."""
    thresholds = np.asarray(t, dtype=np.float64)
    breaks = np.asarray(profile.breaks)
    # F and M only rise, so their value at min(t, break) is the smaller of their values.
    mass = _pieces(lengths.cdf(thresholds), lengths.cdf(breaks))
    tokens = _pieces(lengths.tokens_below(thresholds), lengths.tokens_below(breaks))
    below: Array = mass @ profile.intercepts + tokens @ profile.slopes
    return below


def _pieces(at_t: Array, at_breaks: Array) -> Array:
    """What lies below t in each piece of a profile; (..., g) and (..., k) -> (..., g, k + 1)."""
    capped = np.minimum(at_t[..., :, None], at_breaks[..., None, :])
    zero = np.zeros_like(at_t)[..., None]
    ends = np.concatenate([zero, capped, at_t[..., None]], axis=-1)
    return np.diff(ends, axis=-1)


_erf = np.vectorize(math.erf, otypes=[np.float64])


def normal_cdf(z: ArrayLike) -> Array:
    """P(Z <= z) of a standard normal; same shape as `z`."""
    below: Array = 0.5 * (1.0 + _erf(np.asarray(z) / math.sqrt(2.0)))
    return below
