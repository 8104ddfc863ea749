"""How long requests are: uniform draws made token counts by the inverse of a distribution.

One draw makes one length, so the n-th request keeps its own whatever else changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from routing.core.model.curves import Array
from routing.core.model.lengths import BucketLengths, Lengths, LogNormalLengths, normal_cdf

Tokens = NDArray[np.int64]
Quantile = Callable[[Array], Array]


def quantile(lengths: Lengths) -> Quantile:
    """F^-1: draws in [0, 1) to tokens, not rounded; same shape."""
    if isinstance(lengths, LogNormalLengths):
        return lambda u: _lognormal(u, lengths, lengths.mu)
    if isinstance(lengths, BucketLengths):
        return _bucket_quantile(lengths)
    raise TypeError(f"no inverse of {type(lengths).__name__} is known")


def _lognormal(u: Array, lengths: LogNormalLengths, mu: Array | float) -> Array:
    """exp(mu + sigma Phi^-1(a + u (b - a))), a and b what Phi says of the two ends."""
    sigma = lengths.sigma
    low = normal_cdf((np.log(lengths.min_tokens) - mu) / sigma)
    high = normal_cdf((np.log(lengths.max_tokens) - mu) / sigma)
    scores = ndtri(low + u * (high - low))
    # Where nearly nothing of the normal is left, its inverse rounds to infinity.
    tokens: Array = np.clip(np.exp(mu + sigma * scores), lengths.min_tokens, lengths.max_tokens)
    return tokens


def _bucket_quantile(lengths: BucketLengths) -> Quantile:
    ends = np.cumsum(lengths.weights)
    ends /= ends[-1]
    starts = np.concatenate([[0.0], ends[:-1]])
    share = np.where(ends > starts, ends - starts, 1.0)
    low, ratio = np.log(lengths.edges[:-1]), np.diff(np.log(lengths.edges))

    def tokens(u: Array) -> Array:
        bucket = np.searchsorted(ends, u, side="right")
        found: Array = np.exp(low[bucket] + ratio[bucket] * (u - starts[bucket]) / share[bucket])
        return found

    return tokens


class TokensAt(Protocol):
    """Draws in [0, 1) and the times of their requests to whole tokens, at least 1; same shape."""

    def tokens(self, u: Array, at_s: Array) -> Tokens: ...


@dataclass(frozen=True)
class FixedTokens:
    """Always the same number, rounded."""

    n: float

    def tokens(self, u: Array, at_s: Array) -> Tokens:
        return np.full(len(u), max(1, round(self.n)), dtype=np.int64)


class DrawnTokens:
    """One distribution for all times."""

    def __init__(self, lengths: Lengths) -> None:
        self._quantile = quantile(lengths)

    def tokens(self, u: Array, at_s: Array) -> Tokens:
        return whole(self._quantile(u))


@dataclass(frozen=True)
class DriftingTokens:
    """Log-normal with a mu that follows `drift` (at_s, mu): linear between, steps where two
    stand at one time, constant outside."""

    lengths: LogNormalLengths
    drift: tuple[tuple[float, float], ...]

    def tokens(self, u: Array, at_s: Array) -> Tokens:
        times, mus = np.array(self.drift).T
        return whole(_lognormal(u, self.lengths, np.interp(at_s, times, mus)))


class SteppedTokens:
    """`each` from its `starts_s` on; the first also before."""

    def __init__(self, starts_s: tuple[float, ...], each: tuple[TokensAt, ...]) -> None:
        self._starts_s, self._each = np.array(starts_s), each

    def tokens(self, u: Array, at_s: Array) -> Tokens:
        which = np.maximum(np.searchsorted(self._starts_s, at_s, side="right") - 1, 0)
        found = np.empty(len(u), dtype=np.int64)
        for i in np.unique(which):
            at = which == i
            found[at] = self._each[i].tokens(u[at], at_s[at])
        return found


def whole(tokens: Array) -> Tokens:
    return np.maximum(np.rint(tokens), 1.0).astype(np.int64)
