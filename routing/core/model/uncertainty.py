"""How well a window of requests knows its lengths, and the thresholds that are best in spite of it.

With n effective requests the share of a bucket is uncertain like Dirichlet(n q), so every quantity
of the model is a random variable; `draws` takes a fixed sample of it (no dice: the normal scores
are constants, so equal windows give equal answers and nearby windows nearby ones).

The loss around the best t is lopsided: a t too high overloads slow local prefill about three times
as steeply as one too low wastes remote capacity. So the t to choose is not the best t of the mean
window but the one of greatest expected log headroom,

    t* = argmax_t  E_q [ ln h(t; q) ]          h = capacity of the tightest stage / demand

A change to it is *significant* when over the draws g = ln h(t*) - ln h(t) has a mean of at least
`LEAST_LOG_GAIN` and of `RISE_SD` (t up) or `FALL_SD` (t down) of its standard deviations.

Two steps sharpen the window first. Requests that decay out of it are kept in a second, slower
decay (`smooth`, `together`), so a request of age u weighs

    w(u) = a exp(-u / T) + (1 - a) exp(-u / tau),     a = T / (T - tau)

and n is (sum w)^2 / sum w^2; that memory starts anew when the mean of ln L moved too far to be the
same traffic. And `outlook` pulls the empirical shares q towards the log-normal f that fits them, by
the James-Stein weight

    w = min(1, nu / X2),   X2 = 4 n sum_b (sqrt q_b - sqrt f_b)^2

with nu the number of buckets with n f >= 1, less 3 for what the fit uses up,

so lengths that look log-normal profit from the curve and any other shape is left as measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from routing.core.model.curves import Array
from routing.core.model.lengths import BucketLengths, bucket_edges, normal_cdf
from routing.core.types import LengthHistogram

N_DRAWS = 96
RISE_SD, FALL_SD = 1.5, 0.5
"""A rise has to be surer than a fall: it is the side on which an error is dear."""
LEAST_LOG_GAIN = 0.005
WINDOW_TAU_S, MEMORY_TAU_S = 300.0, 600.0
DRIFT_SD = 3.5
_FIT_STEPS = 8
_CERTAIN = 1e7
"""Requests at which nothing is left to doubt."""


@dataclass(frozen=True)
class Outlook:
    """A distribution of lengths with its uncertainty: `edges` (n + 1,), `mean` (n,) shares, of
    `n_effective` requests. `fit` is what `mean` is shrunk towards, by `weight`; None: by nothing.
    """

    edges: Array
    mean: Array
    shares: Array
    n_effective: float
    fit: _Fit | None = None
    weight: float = 0.0

    def for_certain(self) -> Outlook:
        """The same, its mean taken for what it is."""
        return Outlook(self.edges, self.mean, self.mean, _CERTAIN)

    @cached_property
    def lengths(self) -> BucketLengths:
        return BucketLengths(self.edges, self.mean)

    @cached_property
    def draws(self) -> Array:
        """Shares in every draw, (N_DRAWS, n)."""
        raw = _dirichlet(self.n_effective * self.shares)
        if self.fit is None:
            return raw
        drawn: Array = (1 - self.weight) * raw + self.weight * self.fit.of_draws(raw)
        return drawn


def smooth(
    window: LengthHistogram, memory: LengthHistogram | None, *, elapsed_s: float
) -> LengthHistogram:
    """What has left the window since memory began, `elapsed_s` after the last call.

    Starts anew where the window is on other edges or is no longer the same traffic.
    """
    counts = np.asarray(window.counts, dtype=np.float64)
    kept, age_s = np.zeros(len(counts)), 0.0
    same = memory is not None and memory.edges == window.edges and elapsed_s >= 0
    if memory is not None and same and not _drifted(window, memory):
        kept = np.asarray(memory.counts) * math.exp(-elapsed_s / MEMORY_TAU_S)
        kept = kept + counts * -math.expm1(-elapsed_s / WINDOW_TAU_S)
        age_s = memory.oldest_s + elapsed_s
    weight = float(kept.sum())
    return LengthHistogram(
        edges=window.edges,
        counts=tuple(float(f"{count:.9g}") for count in kept),
        n_effective=weight,
        n_seen=window.n_seen,
        oldest_s=age_s,
    )


def together(window: LengthHistogram, memory: LengthHistogram | None) -> LengthHistogram:
    """The window and what memory kept of the requests before it."""
    if memory is None or memory.edges != window.edges:
        return window
    counts = np.asarray(window.counts) + np.asarray(memory.counts)
    age_s = max(memory.oldest_s, 1.0)
    n = float(counts.sum()) * _requests_per_weight(age_s)
    return LengthHistogram(
        edges=window.edges,
        counts=tuple(counts.tolist()),
        n_effective=max(window.n_effective, min(n, window.n_seen)),
        n_seen=window.n_seen,
        oldest_s=memory.oldest_s,
    )


def _requests_per_weight(age_s: float) -> float:
    """(sum w)^2 / sum w^2 per sum w, for w(u) = a exp(-u/T) + (1 - a) exp(-u/tau) up to `age_s`."""
    slow, fast = MEMORY_TAU_S, WINDOW_TAU_S
    a = slow / (slow - fast)

    def integral(tau_s: float) -> float:
        return tau_s * -math.expm1(-age_s / tau_s)

    once = a * integral(slow) + (1 - a) * integral(fast)
    mixed = integral(1.0 / (1.0 / slow + 1.0 / fast))
    twice = a * a * integral(slow / 2) + 2 * a * (1 - a) * mixed + (1 - a) ** 2 * integral(fast / 2)
    return once / twice


def _drifted(window: LengthHistogram, memory: LengthHistogram) -> bool:
    """Whether the mean of ln L moved by more than `DRIFT_SD` standard errors."""
    if memory.n_effective < 1.0:
        return False
    centre = _centres(bucket_edges(window))
    now, then = (np.asarray(h.counts) / sum(h.counts) for h in (window, memory))
    means = float(now @ centre), float(then @ centre)
    variance = float(now @ centre**2) - means[0] ** 2
    error = math.sqrt(max(variance, 1e-6) * (1 / window.n_effective + 1 / memory.n_effective))
    return abs(means[0] - means[1]) > DRIFT_SD * error


def _centres(edges: Array) -> Array:
    """Middle of each bucket in ln tokens, shape (n,)."""
    middle: Array = 0.5 * (np.log(edges[1:]) + np.log(edges[:-1]))
    return middle


def _distance(a: Array, b: Array, n: float) -> float:
    """4 n sum (sqrt a - sqrt b)^2, chi-square-like and safe in empty buckets."""
    return float(4.0 * n * np.sum((np.sqrt(a) - np.sqrt(b)) ** 2))


def outlook(histogram: LengthHistogram) -> Outlook:
    """What a usable histogram tells, shrunk towards its log-normal."""
    shares = np.asarray(histogram.counts, dtype=np.float64)
    shares = shares / shares.sum()
    edges, n = bucket_edges(histogram), min(max(histogram.n_effective, 1.0), _CERTAIN)
    if np.count_nonzero(shares) < 4:
        return Outlook(edges, shares, shares, n)
    fit = _Fit(edges, shares)
    nu = max(1, int(np.count_nonzero(n * fit.shares >= 1.0)) - 3)
    weight = min(1.0, nu / max(_distance(shares, fit.shares, n), 1e-9))
    return Outlook(edges, (1 - weight) * shares + weight * fit.shares, shares, n, fit, weight)


@lru_cache(maxsize=16)
def _scores(n: int) -> Array:
    return np.random.Generator(np.random.PCG64(20_260_416)).standard_normal((N_DRAWS, n))


def _dirichlet(alpha: Array) -> Array:
    """Draws of Dirichlet(alpha), shape (N_DRAWS, n), smooth in alpha.

    Gamma(a) is a (1 - 1/(9a) + z / (3 sqrt a))^3 for normal z (Wilson and Hilferty, 1931).
    """
    a = np.maximum(alpha, 1e-9)
    gamma = a * np.maximum(0.0, 1.0 - 1.0 / (9.0 * a) + _scores(len(a)) / (3.0 * np.sqrt(a))) ** 3
    # Far below one request the cube is all tail: an empty bucket stays empty.
    gamma = np.where(alpha < 0.05, alpha, gamma)
    total: Array = gamma.sum(axis=1, keepdims=True)
    return np.asarray(gamma / np.maximum(total, 1e-300))


class _Fit:
    """The log-normal that fits observed `shares` (n,), and those that fit draws around them.

    Truncated to the buckets that hold anything; its mu and sigma give the observed mean and
    standard deviation of ln L. A draw's fit moves by what its own moments moved.
    """

    def __init__(self, edges: Array, observed: Array) -> None:
        self._centre, self._log_edges = _centres(edges), np.log(edges)
        held = np.nonzero(observed)[0]
        self._inside = np.zeros(len(observed))
        self._inside[held[0] : held[-1] + 1] = 1.0
        self._mean, self._deviation = self._moments(observed[None, :])
        mu, sigma = self._mean, self._deviation
        for _ in range(_FIT_STEPS):
            fitted_mean, fitted_deviation = self._moments(self._curve(mu, sigma))
            mu = mu + (self._mean - fitted_mean)
            sigma = sigma * np.clip(self._deviation / fitted_deviation, 0.8, 1.25)
        self._mu, self._sigma = mu, sigma
        self.shares: Array = self._curve(mu, sigma)[0]

    def of_draws(self, draws: Array) -> Array:
        """The fits of draws (N_DRAWS, n), same shape."""
        means, deviations = self._moments(draws)
        sigma = self._sigma * deviations / self._deviation
        return self._curve(self._mu + means - self._mean, sigma)

    def _curve(self, mu: Array, sigma: Array) -> Array:
        z = (self._log_edges - mu[:, None]) / sigma[:, None]
        mass = np.maximum(np.diff(normal_cdf(z), axis=-1) * self._inside, 1e-300)
        return np.asarray(mass / mass.sum(axis=-1, keepdims=True))

    def _moments(self, rows: Array) -> tuple[Array, Array]:
        mean = rows @ self._centre
        return mean, np.sqrt(np.maximum(rows @ self._centre**2 - mean**2, 1e-6))
