"""The one error of this package, and numbers as kernels write them."""

from __future__ import annotations

MAX_COUNTER = 2**64 - 1
"""No kernel counter is wider; a longer number is not a reading."""


class HostError(ValueError):
    """A counter that cannot be read; says of what and what stood there."""


def count(text: str, what: str) -> int:
    """A whole number of 0..2^64-1. Raises HostError naming `what`."""
    # str.isdigit also takes digits of other scripts, and int() underscores and blanks.
    if not (text.isascii() and text.isdigit() and len(text) <= 20) or int(text) > MAX_COUNTER:
        raise HostError(f"{what}: {text[:40]!r} is not a counter")
    return int(text)
