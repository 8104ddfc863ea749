"""What changed between two readings of one source, as rates beside the raw totals.

Pure: readings in, signals out. A rate is absent, never zero, when the previous reading is missing,
the clock did not move forward, or nothing happened that a ratio could be made of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from telemetry import counters
from telemetry.wire import InstanceSignals, LinkSignals, RouterSignals

S = TypeVar("S")
BITS_PER_GBIT = 1e9
# Process start times are exact for one process; a second tells two processes apart.
_SAME_PROCESS_S = 1.0


@dataclass(frozen=True)
class Reading(Generic[S]):
    """One successful reading. `epoch_s` 0: the start of the process behind it is unknown."""

    at_s: float
    signals: S
    epoch_s: float = 0.0
    cache_hits: float | None = None
    cache_queries: float | None = None


def instance(
    previous: Reading[InstanceSignals] | None, current: Reading[InstanceSignals]
) -> InstanceSignals:
    """Tokens per second, and the cache hit ratio of the interval instead of the lifetime's."""
    signals = current.signals
    if current.cache_queries is not None:
        # Only the interval's ratio goes out: the lifetime's would hide every change of it.
        signals = msgspec.structs.replace(signals, prefix_cache_hit_ratio=None)
    if previous is None:
        return signals
    elapsed_s, restarted = _step(previous, current)
    hits = counters.increase(previous.cache_hits, current.cache_hits, restarted=restarted)
    queries = counters.increase(previous.cache_queries, current.cache_queries, restarted=restarted)
    return msgspec.structs.replace(
        signals,
        prompt_tokens_per_s=counters.rate(
            previous.signals.prompt_tokens_total,
            signals.prompt_tokens_total,
            elapsed_s=elapsed_s,
            restarted=restarted,
        ),
        generation_tokens_per_s=counters.rate(
            previous.signals.generation_tokens_total,
            signals.generation_tokens_total,
            elapsed_s=elapsed_s,
            restarted=restarted,
        ),
        prefix_cache_hit_ratio=(
            signals.prefix_cache_hit_ratio if queries is None else _ratio(hits, queries)
        ),
    )


def router(
    previous: Reading[RouterSignals] | None, current: Reading[RouterSignals]
) -> RouterSignals:
    """Arrivals per second over all sides and reasons."""
    if previous is None:
        return current.signals
    elapsed_s, restarted = _step(previous, current)
    gains = counters.keyed_increases(
        previous.signals.requests_total, current.signals.requests_total, restarted=restarted
    )
    if gains is None or not elapsed_s > 0.0:
        return current.signals
    return msgspec.structs.replace(
        current.signals, requests_per_s=math.fsum(gains.values()) / elapsed_s
    )


def link(previous: Reading[LinkSignals] | None, current: Reading[LinkSignals]) -> LinkSignals:
    """Gbps each way and the retransmitted share of the segments sent in the interval."""
    if previous is None:
        return current.signals
    was, now = previous.signals, current.signals
    elapsed_s, restarted = _step(previous, current)

    def gbps(was_bytes: float | None, now_bytes: float | None) -> float | None:
        per_s = counters.rate(was_bytes, now_bytes, elapsed_s=elapsed_s, restarted=restarted)
        return None if per_s is None else per_s * 8 / BITS_PER_GBIT

    return msgspec.structs.replace(
        now,
        tx_gbps=gbps(was.tx_bytes_total, now.tx_bytes_total),
        rx_gbps=gbps(was.rx_bytes_total, now.rx_bytes_total),
        retransmit_ratio=_ratio(
            counters.increase(
                was.segments_retransmitted_total,
                now.segments_retransmitted_total,
                restarted=restarted,
            ),
            counters.increase(
                was.segments_sent_total, now.segments_sent_total, restarted=restarted
            ),
        ),
    )


def _step(previous: Reading[S], current: Reading[S]) -> tuple[float, bool]:
    """(seconds between the readings, whether another process answered the second)."""
    known = previous.epoch_s > 0.0 and current.epoch_s > 0.0
    restarted = known and abs(current.epoch_s - previous.epoch_s) > _SAME_PROCESS_S
    return current.at_s - previous.at_s, restarted


def _ratio(part: float | None, whole: float | None) -> float | None:
    # Two counters are not read at one instant, so a part may run ahead of its whole by a little.
    return min(part / whole, 1.0) if part is not None and whole else None
