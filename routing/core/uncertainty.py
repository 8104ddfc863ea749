"""How well a window of requests knows its lengths, and the thresholds that are best in spite of it.

With n effective requests the share of a bucket is uncertain like Dirichlet(n q), so every quantity
of the model is a random variable; `draws` takes a fixed sample of it (no dice: the normal scores
are constants, so equal windows give equal answers and nearby windows nearby ones).

The loss around the best t is lopsided: a t too high overloads slow local prefill about three times
as steeply as one too low wastes remote capacity. So the t to choose is not the best t of the mean
window but the one of greatest expected log headroom,

    t* = argmax_t  E_q [ ln h(t; q) ]          h = capacity of the tightest stage / demand

and a change to it is *significant* when the mean of ln h(t*) - ln h(t) over draws is at least
`SIGNIFICANT_SD` of its standard deviations.

Two steps sharpen the window first. `smooth` averages it over the last `SMOOTHING_S` (windows that
overlap still differ), unless the newest one is too far off to be the same traffic. `shrunk` pulls
the empirical shares towards the log-normal that fits them, by the James-Stein weight

    w = min(W_MAX, nu / X2),   X2 = 4 n sum_b (sqrt q_b - sqrt f_b)^2,   nu = buckets with n f >= 1

so lengths that look log-normal profit from the curve and any other shape is left as measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from routing.core.lengths import Array, BucketLengths, bucket_edges, normal_cdf
from routing.core.types import LengthHistogram

N_DRAWS = 96
SIGNIFICANT_SD = 1.0
SMOOTHING_S = 300.0
DRIFT_LIMIT = 3.0
"""A window is other traffic when its X2 against the average is this many times its mean."""
W_MAX = 0.8
_WINDOW_TAU_S = 300.0
_FIT_STEPS = 8


@dataclass(frozen=True)
class Outlook:
    """A distribution of lengths with its uncertainty: `edges` (n + 1,), `draws` (N_DRAWS, n)."""

    edges: Array
    mean: Array
    draws: Array

    @property
    def lengths(self) -> BucketLengths:
        return BucketLengths(self.edges, self.mean)

    @property
    def buckets(self) -> BucketLengths:
        """Each bucket alone, so that work of every draw is `draws @ work of buckets`."""
        return BucketLengths(self.edges, np.eye(len(self.mean)))


def smooth(
    new: LengthHistogram, old: LengthHistogram | None, *, elapsed_s: float
) -> LengthHistogram:
    """The running average of windows. `counts` sum to `n_effective`, `oldest_s` is its age.

    The first window, one on other edges, or one of other traffic starts the average anew.
    """
    shares = np.asarray(new.counts) / sum(new.counts)
    age_s = elapsed_s if old is None else old.oldest_s + elapsed_s
    n = new.n_effective
    if old is None or old.edges != new.edges or elapsed_s < 0 or _drifted(shares, old, n):
        age_s = 0.0
    else:
        # 1 / age at first: a plain mean until the average is as long as its time constant.
        gain = max(-math.expm1(-elapsed_s / SMOOTHING_S), elapsed_s / max(age_s, elapsed_s, 1e-9))
        before = np.asarray(old.counts) / sum(old.counts)
        shares = before + min(1.0, gain) * (shares - before)
        # The two filters in a row know n (1 + SMOOTHING_S / tau) requests when both are full.
        full = 1.0 + SMOOTHING_S / _WINDOW_TAU_S * min(1.0, age_s / SMOOTHING_S)
        n = max(n, min(n * full, 0.9 * new.n_seen))
    counts = tuple(float(f"{n * share:.6g}") for share in shares)
    return LengthHistogram(new.edges, counts, n, new.n_seen, age_s)


def _drifted(shares: Array, old: LengthHistogram, n: float) -> bool:
    before = np.asarray(old.counts) / sum(old.counts)
    nu = max(1, int(np.count_nonzero(n * before >= 1.0)))
    return bool(_distance(shares, before, n) > DRIFT_LIMIT * nu)


def _distance(a: Array, b: Array, n: float) -> float:
    """4 n sum (sqrt a - sqrt b)^2, chi-square-like and safe in empty buckets."""
    return float(4.0 * n * np.sum((np.sqrt(a) - np.sqrt(b)) ** 2))


def outlook(histogram: LengthHistogram) -> Outlook:
    """Shares and draws of a usable histogram, shrunk towards its log-normal."""
    shares = np.asarray(histogram.counts, dtype=np.float64)
    shares = shares / shares.sum()
    edges, n = bucket_edges(histogram), min(max(histogram.n_effective, 1.0), 1e7)
    raw = _dirichlet(n * shares)
    if np.count_nonzero(shares) < 4:
        return Outlook(edges, shares, raw)
    fit, fits = _log_normal(edges, shares, raw)
    nu = max(1, int(np.count_nonzero(n * fit >= 1.0)) - 3)
    weight = min(W_MAX, nu / max(_distance(shares, fit, n), 1e-9))
    return Outlook(edges, (1 - weight) * shares + weight * fit, (1 - weight) * raw + weight * fits)


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


def _log_normal(edges: Array, shares: Array, draws: Array) -> tuple[Array, Array]:
    """Shares of the log-normal that fits, (n,), and of the one that fits each draw.

    Truncated to the buckets that hold anything; its mu and sigma give the observed mean and
    standard deviation of ln L. A draw's fit moves by what its own moments moved.
    """
    centre = 0.5 * (np.log(edges[1:]) + np.log(edges[:-1]))  # (n,)
    held = np.nonzero(shares)[0]
    inside = np.zeros(len(shares))
    inside[held[0] : held[-1] + 1] = 1.0

    def curve(mu: Array, sigma: Array) -> Array:
        z = (np.log(edges) - mu[:, None]) / sigma[:, None]
        mass = np.maximum(np.diff(normal_cdf(z), axis=-1) * inside, 1e-300)
        return np.asarray(mass / mass.sum(axis=-1, keepdims=True))

    def moments(rows: Array) -> tuple[Array, Array]:
        mean = rows @ centre
        return mean, np.sqrt(np.maximum(rows @ centre**2 - mean**2, 1e-6))

    mean, deviation = moments(shares[None, :])
    mu, sigma = mean, deviation
    for _ in range(_FIT_STEPS):
        fitted_mean, fitted_deviation = moments(curve(mu, sigma))
        mu = mu + (mean - fitted_mean)
        sigma = sigma * np.clip(deviation / fitted_deviation, 0.8, 1.25)
    means, deviations = moments(draws)
    return curve(mu, sigma)[0], curve(mu + means - mean, sigma * deviations / deviation)
