"""How many bytes of KV cache a prompt ships.

    S_kv(l) = state_bytes + bytes_per_token * l        [bytes, l in uncached tokens]

`bytes_per_token` is what the full-attention layers grow by, `state_bytes` the fixed-size state of
the linear or sliding-window layers, which every transfer carries once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

BITS_PER_BYTE = 8.0
BITS_PER_GIGABIT = 1e9


@dataclass(frozen=True)
class KvModel:
    """The two numbers that size a model's KV cache."""

    bytes_per_token: float
    state_bytes: float

    def kv_bytes(self, tokens: ArrayLike) -> NDArray[np.float64]:
        """Bytes that prompts of `tokens` uncached tokens ship; same shape as `tokens`."""
        return self.state_bytes + self.bytes_per_token * np.asarray(tokens, dtype=np.float64)


def bytes_per_s(gbps: float) -> float:
    """Bytes per second that `gbps` (10^9 bit/s) carries."""
    return gbps * BITS_PER_GIGABIT / BITS_PER_BYTE


def gbps(rate_bytes_per_s: float) -> float:
    """Gbps (10^9 bit/s) of a byte rate."""
    return rate_bytes_per_s * BITS_PER_BYTE / BITS_PER_GIGABIT
