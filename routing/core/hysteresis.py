"""The dampers: small rules that say when a change may happen and how large it may be.

Each answers with a time or a number, so a verdict can say what it waits for and until when. Roles
will use the same rules with other numbers.
"""

from __future__ import annotations

import math

HOUR_S = 3600.0


def wait_until(since_s: float | None, wait_s: float, now_s: float) -> float:
    """When something that began at `since_s` has lasted `wait_s`; never begun = now.

    A start in the future means that the clock was set back: the wait then counts from now.
    """
    return now_s if since_s is None else min(since_s, now_s) + wait_s


SMALLEST_STEP_BASE = 128.0
"""Steps below this count as from here: no factor leads away from a threshold of 0."""


def step_limited(current: float, wanted: float, factor: float) -> int:
    """`wanted` as a whole number, at most `factor` times above or below `current`."""
    base = max(current, SMALLEST_STEP_BASE)
    # Rounded towards the present value, or rounding itself would step over the limit.
    if wanted >= current:
        return round(min(wanted, max(math.floor(base * factor), current)))
    return round(max(wanted, math.ceil(current / factor)))


def within_the_hour(changes_s: tuple[float, ...], now_s: float) -> tuple[float, ...]:
    """The changes of the last hour; ones in the future (a clock set back) count as just made."""
    return tuple(min(at, now_s) for at in changes_s if at > now_s - HOUR_S)


def free_at(changes_s: tuple[float, ...], limit: int, now_s: float) -> float:
    """When one more change is allowed: now, or once enough of `changes_s` are an hour old."""
    recent = sorted(within_the_hour(changes_s, now_s))
    if len(recent) < limit:
        return now_s
    if limit <= 0:
        return now_s + HOUR_S
    return recent[len(recent) - limit] + HOUR_S
