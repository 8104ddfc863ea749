"""Two dampers of one path: the breaker, for transfers that fail, and hold-down, for flapping.

A link may be up by its counters while every transfer over it fails, for days (field report D4). So
transfers are counted, and the path is closed to traffic, *open* in a breaker's words, in the tick
that finds at least `LEAST_FAILED` of them failed and their share at the path's limit. Then:

    open       for HOLD_S, doubled for every opening in a row, at most LONGEST_HOLD_S
    half open  a probe: little traffic (`carried`), judged by the transfers counted meanwhile.
               PROBE_LEAST_FAILED failures at the limit open it again; PROBE_S with PROBE_LEAST
               transfers below the limit close it; without transfers the probe goes on
    closed     after FORGIVEN_S the doubling starts anew

A person may close it at any time (`breaker_reset_at_s`), and maintenance holds it open for as long
as it lasts (`maintenance_until_s`): afterwards the probe decides.

Failures right after a pause are of another kind (D2: the first transfers after idling fail, later
ones do not): within `IDLE_GRACE_S` of the first traffic after a pause of `IDLE_GAP_S` they are an
event and open nothing.

Hold-down: a link that failed and came back is used again after the clear time, doubled for each
failure in a row, at most `LONGEST_HOLD_S`; in a row means within `FORGIVEN_S` (D10). That damping
is for links that can be done without. While requests queue for want of one that had lasted, it is
tried again sooner (`down_hold_s`).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from routing.core.hysteresis import wait_until
from routing.core.types import LinkMemory, LinkObservation

FAILURE_LIMIT_RATIO = 0.2
"""Of transfers; a path's `failure_limit_ratio` overrides it. With 1 % failing as a matter of
course, 4 of 20 fail once in 23,000 counts, and 3 of 15, which is where it is easiest, once in
2,400: 20 hours of half minutes. A path with such habits needs a limit of its own."""
LEAST_FAILED = 3
HOLD_S = 60.0
"""Longer than the half minute that transfers are counted over: a probe is judged by its own."""
LONGEST_HOLD_S = 900.0
LEAST_HOLD_S = 2.0
"""A tick: the first reading shows that it is up, the next that it stayed."""
PROBE_S = 30.0
PROBE_LEAST = 3
PROBE_LEAST_FAILED = 2
"""One is not enough: the first transfer after the pause may fail for that reason alone."""
FORGIVEN_S = 1800.0
IDLE_GAP_S = 5.0
"""So little idling was enough for Mooncake's TCP transport to reject transfers (D2)."""
IDLE_GRACE_S = 30.0
IDLE_GBPS = 0.01
"""Keep-alives and acknowledgements are no traffic."""
_MOST_DOUBLINGS = 10


def judged(
    memory: LinkMemory, seen: LinkObservation, limit_ratio: float, now_s: float
) -> LinkMemory:
    """The memory after the transfers that `seen` counted; `limit_ratio` is how many may fail."""
    n_failed, share = failures(seen)
    over = share >= limit_ratio
    since_s = now_s if memory.breaker_at_s is None else min(memory.breaker_at_s, now_s)
    reset_s = seen.breaker_reset_at_s
    if in_maintenance(seen, now_s):
        return memory if memory.breaker == "open" else _into(memory, "open", now_s)
    if memory.breaker != "closed" and reset_s is not None and since_s <= reset_s <= now_s:
        return dataclasses.replace(_into(memory, "closed", now_s), n_openings=0)
    if memory.breaker == "open":
        ends_s = wait_until(since_s, open_s(memory), now_s)
        return _into(memory, "half_open", now_s) if now_s >= ends_s else memory
    if memory.breaker == "half_open":
        if over and n_failed >= PROBE_LEAST_FAILED:
            return _opened(memory, now_s)
        enough = not over and (seen.transfers or 0.0) >= PROBE_LEAST
        return _into(memory, "closed", now_s) if enough and now_s - since_s >= PROBE_S else memory
    if memory.n_openings and now_s - since_s >= FORGIVEN_S:
        memory = dataclasses.replace(memory, n_openings=0)
    if over and n_failed >= LEAST_FAILED and not resuming(memory, now_s):
        return _opened(memory, now_s)
    return memory


def in_maintenance(seen: LinkObservation | None, now_s: float) -> bool:
    """Do people keep traffic off the link? Its breaker stands open meanwhile, and probes after."""
    until_s = None if seen is None else seen.maintenance_until_s
    return until_s is not None and now_s < until_s


def failures(seen: LinkObservation) -> tuple[float, float]:
    """(transfers that failed, their share); (0, 0) where nobody counted them."""
    count, share = seen.transfers, seen.transfers_failed_ratio
    if count is None or share is None or not (0.0 < count < math.inf and share >= 0.0):
        return 0.0, 0.0
    # A count of whole transfers: what arithmetic made of 3 is 3.
    return round(count * min(share, 1.0), 6), min(share, 1.0)


def with_traffic(
    memory: LinkMemory, tx_gbps: float | None, transfers: float | None, now_s: float
) -> LinkMemory:
    """The memory after a look at whether anything is sent; None is not measured."""
    sends, carries = (tx_gbps or 0.0) > IDLE_GBPS, (transfers or 0.0) > 0.0
    if not sends and not carries:
        if tx_gbps is None and transfers is None:
            return memory
        since_s = now_s if memory.quiet_since_s is None else min(memory.quiet_since_s, now_s)
        return dataclasses.replace(memory, quiet_since_s=since_s)
    paused = memory.quiet_since_s is not None and now_s - memory.quiet_since_s >= IDLE_GAP_S
    return dataclasses.replace(
        memory, quiet_since_s=None, resumed_at_s=now_s if paused else memory.resumed_at_s
    )


def resuming(memory: LinkMemory, now_s: float) -> bool:
    """Is this the first traffic after a pause?"""
    return memory.resumed_at_s is not None and 0.0 <= now_s - memory.resumed_at_s < IDLE_GRACE_S


def went_down(memory: LinkMemory, now_s: float) -> LinkMemory:
    """One more failure of the link, unless it is down already."""
    if memory.trouble == "down":
        return memory
    lasted_s = None if memory.up_at_s is None else now_s - memory.up_at_s
    forgiven = lasted_s is None or lasted_s >= FORGIVEN_S
    n_downs = 1 if forgiven else memory.n_downs + 1
    return dataclasses.replace(memory, n_downs=n_downs, lasted_s=lasted_s)


def down_hold_s(memory: LinkMemory, first_s: float) -> float:
    """How long a link has to be up again before it is used.

    One that is `needed` and lasted for longer than `first_s` the last time is waited for shorter,
    by the square of how much longer, and no longer than it was down: waiting then costs more than
    another failure.
    """
    lasted_s = math.inf if memory.lasted_s is None else memory.lasted_s
    if memory.needed and lasted_s >= first_s:
        least_s = min(LEAST_HOLD_S, first_s)
        return max(min(first_s * (first_s / lasted_s) ** 2, _down_s(memory)), least_s)
    return hold_s(memory.n_downs, first_s)


def _down_s(memory: LinkMemory) -> float:
    """How long the present failure lasted; infinite while it is not over."""
    if memory.since_s is None or memory.clear_since_s is None:
        return math.inf
    return memory.clear_since_s - memory.since_s


def hold_s(n_in_a_row: int, first_s: float) -> float:
    """How long to stay away after the `n_in_a_row`-th failure: `first_s` doubled, with a cap."""
    doublings = min(max(n_in_a_row - 1, 0), _MOST_DOUBLINGS)
    return min(first_s * 2.0**doublings, max(LONGEST_HOLD_S, first_s))


def open_s(memory: LinkMemory) -> float:
    """How long an open breaker stays so. No failure opened the one of a link in maintenance: when
    that is over the probe begins."""
    return hold_s(memory.n_openings, HOLD_S) if memory.n_openings else 0.0


def _opened(memory: LinkMemory, now_s: float) -> LinkMemory:
    return dataclasses.replace(_into(memory, "open", now_s), n_openings=memory.n_openings + 1)


def _into(
    memory: LinkMemory, state: Literal["closed", "open", "half_open"], now_s: float
) -> LinkMemory:
    return dataclasses.replace(memory, breaker=state, breaker_at_s=now_s)
