"""How long prompts and answers are: a fixed number, or a log-normal cut off at both ends."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from statistics import NormalDist
from typing import Any, Protocol

from routing.lab.errors import LabError


class Lengths(Protocol):
    """Token counts, at least 1."""

    def draw(self, random: Random) -> int: ...


@dataclass(frozen=True)
class FixedLengths:
    tokens: int

    def draw(self, random: Random) -> int:
        return self.tokens


@dataclass(frozen=True)
class LogNormalLengths:
    """exp(N(mu, sigma)) given that it is within min .. max tokens; one uniform number a draw."""

    mu: float
    sigma: float
    min: int
    max: int

    def draw(self, random: Random) -> int:
        normal = NormalDist(self.mu, self.sigma)
        low, high = normal.cdf(math.log(self.min)), normal.cdf(math.log(self.max))
        u = min(max(low + (high - low) * random.random(), 1e-15), 1.0 - 1e-15)
        return min(max(round(math.exp(normal.inv_cdf(u))), self.min), self.max)


_KEYS = {"kind", "mu", "sigma", "min", "max"}


def parse_lengths(value: Any, *, field: str, source: str) -> Lengths:
    """A number of tokens, or `{ kind = "lognormal", mu, sigma, min, max }`. Raises LabError."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise LabError("must be at least 1", source=source, field=field, value=value)
        return FixedLengths(value)
    if not isinstance(value, dict) or value.get("kind") != "lognormal" or set(value) - _KEYS:
        raise LabError(
            'must be a number of tokens or { kind = "lognormal", mu, sigma, min, max }',
            source=source,
            field=field,
            value=value,
        )
    numbers: dict[str, float] = {}
    for key in ("mu", "sigma", "min", "max"):
        number = value.get(key)
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise LabError("must be a number", source=source, field=f"{field}.{key}", value=number)
        numbers[key] = number
    return lognormal(**numbers, field=field, source=source)


def lognormal(
    mu: float, sigma: float, min: float, max: float, *, field: str, source: str
) -> LogNormalLengths:
    """Checked parameters. Raises LabError, also where practically nothing lies in min .. max."""
    if not math.isfinite(mu) or not 0.0 < sigma < math.inf:
        raise LabError(
            "needs a finite mu and sigma > 0", source=source, field=field, value=(mu, sigma)
        )
    if not 1 <= min <= max < math.inf:
        raise LabError("needs 1 <= min <= max", source=source, field=field, value=(min, max))
    normal = NormalDist(mu, sigma)
    if normal.cdf(math.log(max)) - normal.cdf(math.log(min)) < 1e-9 and min != max:
        raise LabError(
            "has nothing between min and max", source=source, field=field, value=(min, max)
        )
    return LogNormalLengths(mu, sigma, int(min), int(max))
