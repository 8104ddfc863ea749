"""How long one instance needs: prefill seconds by uncached length, decode steps by batch.

Prefill is linear between measured knots and keeps the first and last slope beyond them, where it is
an extrapolation and is marked so. Decode holds one step time up to its batch cap:

    Theta_decode of one instance = batch / (step_s * output_tokens)          [requests/s]
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray


class ProfileError(ValueError):
    """A profile that no hardware can have; the text says which knot and why."""


@dataclass(frozen=True)
class PrefillProfile:
    """Prefill seconds of one instance: `tokens` and `seconds` are the knots, shape (k,), k >= 2."""

    tokens: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) < 2 or len(self.tokens) != len(self.seconds):
            raise ProfileError("needs at least two [tokens, seconds] knots")
        if min(self.tokens) <= 0 or min(self.seconds) <= 0:
            raise ProfileError("tokens and seconds must be above zero")
        if any(b <= a for a, b in zip(self.tokens, self.tokens[1:], strict=False)):
            raise ProfileError("tokens must rise from knot to knot")
        if any(b < a for a, b in zip(self.seconds, self.seconds[1:], strict=False)):
            raise ProfileError("seconds must not fall from knot to knot")
        # A line that reaches zero before an empty prompt would make short prompts free.
        if self.intercepts[0] < 0:
            raise ProfileError(
                f"the first slope extrapolates to {self.intercepts[0]:.3g} s at 0 tokens"
            )

    @cached_property
    def slopes(self) -> NDArray[np.float64]:
        """Seconds per token between knots, shape (k - 1,)."""
        rise: NDArray[np.float64] = np.diff(self.seconds) / np.diff(self.tokens)
        return rise

    @cached_property
    def intercepts(self) -> NDArray[np.float64]:
        """Seconds at 0 tokens of each piece's line, shape (k - 1,)."""
        line: NDArray[np.float64] = np.asarray(self.seconds[:-1]) - self.slopes * self.tokens[:-1]
        return line

    @property
    def least_s_per_token(self) -> float:
        """Seconds that one more token costs where it costs least."""
        return float(self.slopes.min())

    @property
    def breaks(self) -> tuple[float, ...]:
        """Lengths where the slope changes, shape (k - 2,): the inner knots."""
        return self.tokens[1:-1]

    def prefill_s(self, tokens: ArrayLike) -> NDArray[np.float64]:
        """Seconds to prefill `tokens` uncached tokens; same shape as `tokens`."""
        lengths = np.asarray(tokens, dtype=np.float64)
        piece = np.searchsorted(np.asarray(self.breaks), lengths)
        seconds: NDArray[np.float64] = self.intercepts[piece] + self.slopes[piece] * lengths
        return seconds

    def extrapolated(self, tokens: ArrayLike) -> NDArray[np.bool_]:
        """True where `tokens` lies outside the measured knots."""
        lengths = np.asarray(tokens, dtype=np.float64)
        return (lengths < self.tokens[0]) | (lengths > self.tokens[-1])


@dataclass(frozen=True)
class DecodeProfile:
    """Decode of one instance: up to `batch` requests, each gets a token every `step_s` seconds."""

    batch: float
    step_s: float

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
