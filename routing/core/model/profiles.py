"""How long one instance needs: prefill seconds by uncached length, decode steps by batch.

Prefill is a curve in pieces of a + b l + c l^2: straight between measured knots, or one fitted
piece. Beyond the measured range the end piece goes on, and is marked extrapolated. Tokens behind a
cached prefix also attend to it, which costs time for each pair of an uncached and a cached token:

    T(l, k) = T(l) + d l k                                  [s; l uncached, k cached tokens]

Decode holds one step time up to its batch cap:

    Theta_decode of one instance = batch / (step_s * output_tokens)          [requests/s]
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from routing.core.model.curves import Array, Curve

MAX_PROMPT_TOKENS = 1_048_576.0
"""The longest prompt a profile has to make sense for: the longest context of any served model, and
the last edge of the wire's length histograms."""


class ProfileError(ValueError):
    """A profile that no hardware can have; the text says which number and why."""


@dataclass(frozen=True)
class PrefillProfile:
    """Prefill seconds of one instance. `through` and `fitted` build it from what was measured.

    `curve`: seconds by uncached tokens. `range_tokens`: the shortest and longest length measured,
    None where nobody said. `pair_s`: d above, seconds per uncached token and cached token; 0 where
    no prefix was measured.
    """

    curve: Curve
    range_tokens: tuple[float, float] | None
    pair_s: float = 0.0

    @classmethod
    def through(cls, tokens: Sequence[float], seconds: Sequence[float]) -> PrefillProfile:
        """Straight lines through the knots `tokens`, `seconds`, shape (k,), k >= 2.

        Raises ProfileError."""
        if len(tokens) < 2 or len(tokens) != len(seconds):
            raise ProfileError("needs at least two [tokens, seconds] knots")
        if min(tokens) <= 0 or min(seconds) <= 0:
            raise ProfileError("tokens and seconds must be above zero")
        if any(b <= a for a, b in itertools.pairwise(tokens)):
            raise ProfileError("tokens must rise from knot to knot")
        if any(b < a for a, b in itertools.pairwise(seconds)):
            raise ProfileError("seconds must not fall from knot to knot")
        slopes = np.diff(seconds) / np.diff(tokens)
        starts = np.asarray(seconds[:-1]) - slopes * np.asarray(tokens[:-1])
        # A line that reaches zero before an empty prompt would make short prompts free.
        if starts[0] < 0:
            raise ProfileError(f"the first slope extrapolates to {starts[0]:.3g} s at 0 tokens")
        curve = Curve(
            tuple(map(float, tokens[1:-1])),
            tuple(starts.tolist()),
            tuple(slopes.tolist()),
            (0.0,) * len(slopes),
        )
        return cls(curve, (float(tokens[0]), float(tokens[-1])))

    @classmethod
    def fitted(
        cls,
        constant_s: float,
        linear_s: float,
        square_s: float,
        *,
        range_tokens: tuple[float, float] | None = None,
    ) -> PrefillProfile:
        """a + b l + c l^2 with a, b, c the three numbers in s per token^0, ^1 and ^2.

        Each is the cost of something (a pass, a token, a pair of tokens), so none can be negative:
        the curve would be below zero, or fall, at some length from 1 to MAX_PROMPT_TOKENS, or at
        the next refit. Raises ProfileError naming which.
        """
        for name, value in (("a", constant_s), ("b", linear_s), ("c", square_s)):
            if not 0.0 <= value < np.inf:
                raise ProfileError(f"{name} = {value:.4g} s is no cost: it must be at least 0")
        if linear_s == 0.0 and square_s == 0.0:
            raise ProfileError("b and c are both 0: a longer prompt would take no longer")
        if range_tokens is not None and not 0.0 < range_tokens[0] < range_tokens[1] < np.inf:
            raise ProfileError("the range must rise from above 0 tokens")
        return cls(Curve((), (constant_s,), (linear_s,), (square_s,)), range_tokens)

    def behind_prefix(self, points: Sequence[tuple[float, float, float]]) -> PrefillProfile:
        """The same with d from measured (cached tokens, uncached tokens, seconds), least squares.

        Raises ProfileError where the points say that a cached prefix saves time.
        """
        if not points:
            raise ProfileError("needs at least one [cached, uncached, seconds] point")
        cached, uncached, seconds = np.asarray(points, dtype=np.float64).T
        if min(cached.min(), uncached.min(), seconds.min()) <= 0:
            raise ProfileError("cached tokens, uncached tokens and seconds must be above zero")
        pairs, more_s = cached * uncached, seconds - self.curve.value(uncached)
        pair_s = float(pairs @ more_s / (pairs @ pairs))
        if pair_s < 0:
            worst = int(np.argmin(more_s))
            raise ProfileError(
                f"{uncached[worst]:g} tokens behind {cached[worst]:g} cached ones take "
                f"{seconds[worst]:.4g} s, less than the {seconds[worst] - more_s[worst]:.4g} s "
                "they take alone"
            )
        return replace(self, pair_s=pair_s)

    @property
    def least_s_per_token(self) -> float:
        """Seconds that one more token costs where it costs least; 0 cached."""
        # No piece bends down, so a piece is flattest where it starts.
        return float(self.curve.slope(np.nextafter([1.0, *self.curve.breaks], np.inf)).min())

    def prefill_s(self, tokens: ArrayLike, cached_tokens: ArrayLike = 0.0) -> Array:
        """Seconds to prefill `tokens` uncached tokens behind `cached_tokens`; shape of both."""
        behind = np.asarray(tokens, dtype=np.float64) * np.asarray(cached_tokens, dtype=np.float64)
        seconds: Array = self.curve.value(tokens) + self.pair_s * behind
        return seconds

    def extrapolated(self, tokens: ArrayLike) -> NDArray[np.bool_]:
        """True where `tokens` lies outside the measured range: everywhere, if there is none."""
        lengths = np.asarray(tokens, dtype=np.float64)
        if self.range_tokens is None:
            return np.ones_like(lengths, dtype=np.bool_)
        return (lengths < self.range_tokens[0]) | (lengths > self.range_tokens[1])


@dataclass(frozen=True)
class DecodeProfile:
    """Decode of one instance: up to `batch` requests, each gets a token every `step_s` seconds.

    `extrapolated`: the two come from a table (decode_table.py), from beyond what it measured.
    """

    batch: float
    step_s: float
    extrapolated: bool = False

    def requests_per_s(self, output_tokens: float) -> float:
        """Requests of `output_tokens` tokens that one instance finishes a second."""
        return self.batch / (self.step_s * output_tokens)


@dataclass(frozen=True)
class Profile:
    """What one instance of a kind of hardware does. `facts` say how it was measured."""

    name: str
    prefill: PrefillProfile
    decode: DecodeProfile
    facts: dict[str, str | float]
