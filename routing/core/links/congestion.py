"""Signs of congestion on one directed link, and what the link really carries.

Either of these is a sign:

* utilisation tx / capacity is at or above the path's limit;
* saturation below that: retransmits at or above the path's limit, or an RTT of `RTT_INFLATION`
  times the base (or the path's own limit), while tx stays flat over the last readings taken at one
  promised capacity, above `LEAST_CEILING_RATIO` of it. Traffic of whole KV caches is bursty, so tx
  that stands still is at a ceiling.

Limits belong to the path (field report D6): the scenario's link may give its own
`utilisation_limit_ratio`, `retransmit_limit_ratio` and `rtt_limit_ms`; the policy's hold elsewhere.

Effective capacity is the least of the scenario's, the reported one, and the plateau at which the
link was last seen saturated. The plateau is the *highest* tx of the episode, since sending less is
no sign of carrying less, and is forgotten after `PLATEAU_KEPT_S`: a forgotten plateau is a probe.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from routing.core.scenario.document import Link
from routing.core.types import LinkMemory, LinkObservation, Params

OFF_FACTOR = 0.9
"""Between the limits and this part of them a link keeps the state it has."""
RTT_INFLATION = 2.0
RTT_NOISE_S = 0.005
"""An RTT this little above its base is jitter, whatever the ratio."""
RTT_CREEP_PER_S = 5e-5
"""The base RTT may rise 0.3 % a minute, so a longer route becomes the base within hours."""
FLAT_RATIO = 0.05
N_FLAT_READINGS = 4
LEAST_CEILING_RATIO = 0.02
"""Of the promised capacity. Keep-alives stand still as well, at next to nothing: no ceiling, and a
plateau learnt from them would keep all traffic away from a link that is idle."""
SAME_READING_S = 0.1
PLATEAU_KEPT_S = 600.0
MAX_PLAUSIBLE_GBPS = 1e6
IMPLAUSIBLE_FACTOR = 1.25
"""A link cannot carry this much more than anybody says it can: the counter is wrong (D9, A10)."""


@dataclass(frozen=True)
class Limits:
    """What is too much on one path. `rtt_s` None: `RTT_INFLATION` times the base."""

    utilisation_ratio: float
    retransmit_ratio: float
    rtt_s: float | None

    def lower(self) -> Limits:
        """The limits that end a congestion, further down than those that start it."""
        return Limits(
            OFF_FACTOR * self.utilisation_ratio, OFF_FACTOR * self.retransmit_ratio, self.rtt_s
        )


def limits_of(link: Link, params: Params) -> Limits:
    """The path's own limits, the policy's where it has none."""
    rtt_ms = link.facts.get("rtt_limit_ms")
    return Limits(
        utilisation_ratio=link.facts.get(
            "utilisation_limit_ratio", params.congestion_utilisation_ratio
        ),
        retransmit_ratio=link.facts.get(
            "retransmit_limit_ratio", params.congestion_retransmit_ratio
        ),
        rtt_s=None if rtt_ms is None else rtt_ms / 1e3,
    )


def plausible(gbps: float | None, most_gbps: float = MAX_PLAUSIBLE_GBPS) -> float | None:
    """The rate if it can be one: finite, not negative, at most `most_gbps`."""
    return gbps if gbps is not None and 0.0 <= gbps <= most_gbps else None


def reported_gbps(seen: LinkObservation | None) -> float | None:
    return None if seen is None else plausible(seen.capacity_gbps)


def most_gbps(link: Link, seen: LinkObservation | None) -> float:
    """More than this the link cannot carry, whoever says so."""
    return IMPLAUSIBLE_FACTOR * max(link.gbps, reported_gbps(seen) or 0.0)


def tx_of(seen: LinkObservation | None, most: float) -> float | None:
    """What is sent now in Gbps; None where that was not read or cannot be."""
    if seen is None or seen.state in ("missing", "failed"):
        return None
    return plausible(0.0 if seen.tx_gbps is None and seen.state == "idle" else seen.tx_gbps, most)


def with_reading(memory: LinkMemory, tx: float, capacity: float, *, read_at_s: float) -> LinkMemory:
    """The memory with one more reading, unless it is the same reading met again."""
    if memory.capacity_gbps != capacity:
        # What the link passed under another capacity says nothing about this one.
        memory = dataclasses.replace(memory, tx_gbps=(), plateau_gbps=None, plateau_at_s=None)
    elif memory.read_at_s is not None and 0.0 <= read_at_s - memory.read_at_s < SAME_READING_S:
        return memory
    readings = (*memory.tx_gbps, tx)[-N_FLAT_READINGS:]
    return dataclasses.replace(
        memory, tx_gbps=readings, capacity_gbps=capacity, read_at_s=read_at_s
    )


def full(tx: float, capacity: float, limits: Limits) -> str:
    """Words for a link that sends all it can, empty if it does not.

    `tx` is a mean up to now. Where that is more than fits, the link carried more until lately: what
    wants to cross it is too much all the same.
    """
    if capacity <= 0 or tx < limits.utilisation_ratio * capacity:
        return ""
    sent, fits = f"{tx:.3g}", f"{capacity:.3g}"
    if tx > capacity and sent != fits:
        return f"it sent {sent} where {fits} Gbps fit"
    return f"it sends {sent} of {fits} Gbps"


def losing(seen: LinkObservation, limits: Limits) -> str:
    """Words for retransmits above the path's limit, empty if there are none."""
    lost = seen.retransmit_ratio
    if lost is None or not limits.retransmit_ratio <= lost <= 1.0:
        return ""
    return f"sends {lost:.2%} of segments again, {limits.retransmit_ratio:.2%} is its limit"


def strained(seen: LinkObservation, base_rtt_s: float | None, limits: Limits) -> str:
    """Words for retransmits or an RTT above the path's limit, empty if there are none."""
    if lost := losing(seen, limits):
        return lost
    rtt = seen.rtt_s
    limit_s = limits.rtt_s
    if limit_s is None and base_rtt_s is not None:
        limit_s = max(RTT_INFLATION * base_rtt_s, base_rtt_s + RTT_NOISE_S)
    if rtt is not None and limit_s is not None and rtt >= limit_s:
        return f"has an RTT of {1e3 * rtt:.3g} ms, {1e3 * limit_s:.3g} ms is its limit"
    return ""


def flat_at(readings: tuple[float, ...], capacity: float) -> float | None:
    """The rate in Gbps that tx stands still at; None while it moves, was read too rarely, or is
    next to nothing of `capacity`."""
    peak = max(readings, default=0.0)
    if len(readings) < N_FLAT_READINGS or peak - min(readings) > FLAT_RATIO * peak:
        return None
    return peak if peak >= LEAST_CEILING_RATIO * capacity and peak > 0.0 else None


def crept(base_s: float | None, rtt_s: float | None) -> float | None:
    """The base RTT after one more reading: it falls at once and rises slowly."""
    if rtt_s is None or not 0.0 < rtt_s < 3600.0:
        return base_s
    return rtt_s if base_s is None else min(rtt_s, base_s * (1.0 + 2.0 * RTT_CREEP_PER_S))


def plateau(memory: LinkMemory, now_s: float) -> float | None:
    at_s = memory.plateau_at_s
    return memory.plateau_gbps if at_s is not None and now_s - at_s <= PLATEAU_KEPT_S else None


def effective(capacity: float, memory: LinkMemory, now_s: float) -> float:
    learnt = plateau(memory, now_s)
    return capacity if learnt is None else min(capacity, learnt)
