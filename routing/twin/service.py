"""How long an instance prefills a prompt."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from routing.core.model.profiles import PrefillProfile
from routing.twin.settings import Engine


@dataclass(frozen=True)
class Service:
    """Seconds by the profile, and what chunks add to it."""

    profile: PrefillProfile
    engine: Engine

    def seconds(self, tokens: int, cached_tokens: int = 0) -> float:
        """For so many uncached tokens behind a cached prefix."""
        found = self.profile.curve.at(tokens) + self.profile.pair_s * tokens * cached_tokens
        chunk = self.engine.chunk_tokens
        if chunk is not None:
            found += self.engine.chunk_s * (math.ceil(tokens / chunk) - 1)
        return found

    def many(self, tokens: NDArray[np.int64]) -> list[float]:
        """As `seconds`, for prompts of which nothing is cached."""
        found = self.profile.prefill_s(tokens)
        chunk = self.engine.chunk_tokens
        if chunk is not None:
            found = found + self.engine.chunk_s * (np.ceil(tokens / chunk) - 1)
        each: list[float] = found.tolist()
        return each
