"""Functions of prompt length in pieces of a + b l + c l^2, and their exact means.

Prefill time and KV size are such functions. Over a distribution of lengths that answers

    F(x) = P(L <= x)      M(x) = E[L; L <= x]      Q(x) = E[L^2; L <= x]

the mean of a curve below t is a sum over its pieces (u, v]:

    E[g(L); L <= t] = sum  a (F(v) - F(u)) + b (M(v) - M(u)) + c (Q(v) - Q(u)),   v capped at t
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


Moments = tuple[float, float, float]
"""F, M and Q of a distribution of lengths at one length."""


@dataclass(frozen=True)
class Curve:
    """`breaks` shape (k,), ascending: where pieces meet. `constant`, `linear` and `square` shape
    (k + 1,): the coefficients of each piece, in units of the value per token^0, ^1 and ^2."""

    breaks: tuple[float, ...]
    constant: tuple[float, ...]
    linear: tuple[float, ...]
    square: tuple[float, ...]

    @cached_property
    def is_linear(self) -> bool:
        """Whether no piece bends, so that E[L^2] is not needed."""
        return not any(self.square)

    def at(self, tokens: float) -> float:
        """The curve at one length."""
        piece = bisect_left(self.breaks, tokens)
        return self.constant[piece] + tokens * (self.linear[piece] + tokens * self.square[piece])

    def value(self, tokens: ArrayLike) -> Array:
        """The curve at `tokens`; same shape. A break belongs to the piece before it."""
        at = np.asarray(tokens, dtype=np.float64)
        piece = np.searchsorted(np.asarray(self.breaks), at)
        a, b, c = (np.asarray(each)[piece] for each in (self.constant, self.linear, self.square))
        values: Array = a + at * (b + at * c)
        return values

    def slope(self, tokens: ArrayLike) -> Array:
        """The derivative at `tokens`, per token; same shape."""
        at = np.asarray(tokens, dtype=np.float64)
        piece = np.searchsorted(np.asarray(self.breaks), at)
        slopes: Array = np.asarray(self.linear)[piece] + 2.0 * at * np.asarray(self.square)[piece]
        return slopes
