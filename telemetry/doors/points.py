"""Samples as every door speaks of them."""

from __future__ import annotations

from typing import NamedTuple

Labels = tuple[tuple[str, str], ...]
"""Names and values in the order they came."""


class Point(NamedTuple):
    """One sample. `value` None: the marker that says the series ended here.

    `start_ms` is since when a counter counts, 0 where that is not said.
    """

    value: float | None
    at_ms: int
    start_ms: int = 0
