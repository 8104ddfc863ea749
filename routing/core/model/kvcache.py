"""How many bytes of KV cache a prompt ships.

    S_kv(l) = state_bytes + bytes_per_token * l + sum over windows of min(l, w) * b_w
                                                       [bytes, l in uncached tokens]

`bytes_per_token` is what the full-attention layers grow by, `state_bytes` the fixed-size state of
the linear layers, which every transfer carries once. A sliding window grows by b_w bytes a token
until it holds w tokens, then it ships its newest w.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from routing.core.model.curves import Curve

BITS_PER_BYTE = 8.0
BITS_PER_GIGABIT = 1e9


@dataclass(frozen=True)
class KvWindow:
    """Layers that keep the last `window_tokens` tokens, `bytes_per_token` each (all layers)."""

    window_tokens: int
    bytes_per_token: float


@dataclass(frozen=True)
class KvModel:
    """The numbers that size a model's KV cache."""

    bytes_per_token: float
    state_bytes: float
    windows: tuple[KvWindow, ...] = ()

    @cached_property
    def curve(self) -> Curve:
        """Bytes against uncached tokens, one straight piece between any two windows' ends."""
        ends = sorted({window.window_tokens for window in self.windows})
        constant, linear = [], []
        for end in [0, *ends]:
            full = [w for w in self.windows if w.window_tokens <= end]
            filling = [w for w in self.windows if w.window_tokens > end]
            constant.append(
                self.state_bytes + sum(w.window_tokens * w.bytes_per_token for w in full)
            )
            linear.append(self.bytes_per_token + sum(w.bytes_per_token for w in filling))
        return Curve(
            breaks=tuple(float(end) for end in ends),
            constant=tuple(constant),
            linear=tuple(linear),
            square=(0.0,) * len(linear),
        )

    def kv_bytes(self, tokens: ArrayLike) -> NDArray[np.float64]:
        """Bytes that prompts of `tokens` uncached tokens ship; same shape as `tokens`."""
        return self.curve.value(tokens)


def bytes_per_s(gbps: float) -> float:
    """Bytes per second that `gbps` (10^9 bit/s) carries."""
    return gbps * BITS_PER_GIGABIT / BITS_PER_BYTE


def gbps(rate_bytes_per_s: float) -> float:
    """Gbps (10^9 bit/s) of a byte rate."""
    return rate_bytes_per_s * BITS_PER_BYTE / BITS_PER_GIGABIT
