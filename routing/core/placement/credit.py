"""How far what a gate believes of a side's prefix caches lately came true: pure.

A gate knows what it sent to a side, not to which of its instances. Prompts that are spread over
instances with a cache each find less than the side as a whole holds; with prefix caching off they
find nothing. So claims are scaled by their share, by blocks, that engines confirmed.
"""

from __future__ import annotations

_DECAY = 0.97
_PRIOR_BLOCKS = 16.0
"""Blocks' worth of good faith a side starts with."""


class Credit:
    """Of one side. `ratio` is exactly 1 while all claims come true."""

    def __init__(self) -> None:
        self._confirmed = self._claimed = _PRIOR_BLOCKS

    @property
    def ratio(self) -> float:
        """Share of recent claims that came true, 0..1."""
        return self._confirmed / self._claimed

    def claimed(self, n_blocks: float, *, confirmed: float) -> None:
        """A prompt was believed to have `n_blocks` cached, and had `confirmed` of these."""
        self._confirmed = self._confirmed * _DECAY + confirmed
        self._claimed = self._claimed * _DECAY + n_blocks
