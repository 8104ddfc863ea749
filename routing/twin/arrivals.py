"""When requests arrive: steady, bursty, or by a curve.

A process is a renewal process of rate 1 on its own clock, put on the clock of the run by the
inverse of the expected number of arrivals, C(t) = integral of the rate: arrival n is where C(t) is
the n-th partial sum of the gaps. With exponential gaps that is exactly the Poisson process of that
rate (the time-change theorem), with none thrown away as thinning would. So the n-th gap stays the
same when the rate changes, and two runs at two rates see the same randomness.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np

from routing.core.model.curves import Array

Stretch = tuple[float, float, float]
"""Seconds, and the rate (requests/s) at its beginning and its end; linear between."""


class Pattern(Protocol):
    """`cv` is the coefficient of variation of the gaps at a constant rate: 1 is Poisson."""

    @property
    def cv(self) -> float: ...

    def stretches(self, rng: np.random.Generator) -> Iterator[Stretch]:
        """The rate from time 0 on; it is 0 after the last."""
        ...

    def scaled(self, factor: float) -> Pattern:
        """The same pattern with `factor` times the rate."""
        ...


@dataclass(frozen=True)
class Steady:
    """A constant rate: Poisson, bursty with gamma gaps (cv > 1), evenly spaced (cv = 0)."""

    rate_rps: float
    cv: float = 1.0

    def stretches(self, rng: np.random.Generator) -> Iterator[Stretch]:
        yield math.inf, self.rate_rps, self.rate_rps

    def scaled(self, factor: float) -> Steady:
        return replace(self, rate_rps=self.rate_rps * factor)


@dataclass(frozen=True)
class Switching:
    """A Markov-modulated Poisson process of two states, each left after an exponential time.

    `rates_rps` and `mean_s` are those of the two. It begins in equilibrium.
    """

    rates_rps: tuple[float, float]
    mean_s: tuple[float, float]
    cv: float = 1.0

    @classmethod
    def bursts(cls, mean_rps: float, factor: float, *, on_s: float, off_s: float) -> Switching:
        """Bursts with `factor` times the rate between them, `mean_rps` in the long run."""
        off_rps = mean_rps * (on_s + off_s) / (factor * on_s + off_s)
        return cls((factor * off_rps, off_rps), (on_s, off_s))

    @property
    def mean_rps(self) -> float:
        (a, b), (a_s, b_s) = self.rates_rps, self.mean_s
        return (a * a_s + b * b_s) / (a_s + b_s)

    def stretches(self, rng: np.random.Generator) -> Iterator[Stretch]:
        state = int(rng.random() >= self.mean_s[0] / sum(self.mean_s))
        while True:
            rate = self.rates_rps[state]
            yield self.mean_s[state] * rng.standard_exponential(), rate, rate
            state = 1 - state

    def scaled(self, factor: float) -> Switching:
        a, b = self.rates_rps
        return replace(self, rates_rps=(a * factor, b * factor))


@dataclass(frozen=True)
class Curve:
    """A rate through `points` (at_s, requests/s), linear between; two at one time are a step.

    Before the first and after the last the rate is theirs. With `period_s` it repeats from time 0,
    and joins its last point to the first of the next period.
    """

    points: tuple[tuple[float, float], ...]
    period_s: float | None = None
    cv: float = 1.0

    def stretches(self, rng: np.random.Generator) -> Iterator[Stretch]:
        points = self.points
        if self.period_s is None:
            yield from _between(((0.0, points[0][1]), *points))
            yield math.inf, points[-1][1], points[-1][1]
            return
        # Between the last point and the first of the next period lies time 0 of that period.
        (first_s, first), (last_s, last) = points[0], points[-1]
        gap_s = first_s + self.period_s - last_s
        turn = first if gap_s == 0 else last + (first - last) * (self.period_s - last_s) / gap_s
        lap = tuple(_between(((0.0, turn), *points, (self.period_s, turn))))
        while True:
            yield from lap

    def scaled(self, factor: float) -> Curve:
        return replace(self, points=tuple((at_s, rate * factor) for at_s, rate in self.points))


def _between(points: tuple[tuple[float, float], ...]) -> Iterator[Stretch]:
    for (start_s, start), (end_s, end) in pairwise(points):
        if end_s > start_s:
            yield end_s - start_s, start, end


def arrival_times(
    pattern: Pattern, *, gaps: np.random.Generator, rates: np.random.Generator, n: int
) -> Iterator[Array]:
    """Ascending times (s) in arrays of `n`; the last one, if the arrivals ever end, is shorter.

    All of them together do not depend on `n`.
    """
    clock = _Clock(pattern.stretches(rates))
    count = 0.0
    while True:
        counts = _unit_gaps(pattern.cv, gaps, n)
        # Carried in front, so that the sums are the ones of a single array to the last bit.
        counts[0] += count
        np.cumsum(counts, out=counts)
        count = float(counts[-1])
        at_s = clock.at(counts)
        if len(at_s):
            yield at_s
        if len(at_s) < n:
            return


def _unit_gaps(cv: float, rng: np.random.Generator, n: int) -> Array:
    """Gaps of mean 1, shape (n,): gamma of shape 1 / cv^2."""
    if cv == 0:
        return np.ones(n)
    if cv == 1:
        return rng.standard_exponential(n)
    shape = 1.0 / (cv * cv)
    return rng.standard_gamma(shape, n) / shape


class _Clock:
    """C^-1: when so many arrivals are expected. Asked with ascending counts only."""

    def __init__(self, stretches: Iterator[Stretch]) -> None:
        self._stretches = stretches
        self._end_s = self._end_count = 0.0
        # Start, count before it, rate there, slope, count at its end; those not yet passed.
        self._known: list[tuple[float, float, float, float, float]] = []

    def at(self, counts: Array) -> Array:
        """Times of `counts` (n,), fewer where the rate is 0 for good before they are reached."""
        most = float(counts[-1])
        while self._end_count < most and self._end_s < math.inf:
            stretch = next(self._stretches, None)
            if stretch is None:
                break
            self._append(*stretch)
        reached = counts if most <= self._end_count else counts[counts <= self._end_count]
        if not len(reached):
            return reached
        start_s, before, rate, slope, ends = np.array(self._known).T
        # The first that reaches the count: never one whose rate is 0 throughout.
        i = np.searchsorted(ends, reached)
        self._known = self._known[int(i[-1]) :]
        more, rate = reached - before[i], rate[i]
        # rate s + slope s^2 / 2 = more, in the form that holds for a slope of 0 as well.
        speed = rate + np.sqrt(np.maximum(rate * rate + 2.0 * slope[i] * more, 0.0))
        at_s: Array = start_s[i] + 2.0 * more / np.where(speed > 0.0, speed, 1.0)
        return at_s

    def _append(self, length_s: float, first: float, last: float) -> None:
        start_s, before = self._end_s, self._end_count
        slope = 0.0 if math.isinf(length_s) else (last - first) / length_s
        if first > 0 or last > 0:
            self._end_count += length_s * (first + last) / 2.0
        self._end_s += length_s
        self._known.append((start_s, before, first, slope, self._end_count))
