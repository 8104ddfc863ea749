"""Is a link down, congested or clear, and how much does it really carry?

Signs of congestion, any of which is enough:

* utilisation tx / capacity is at or above `congestion_utilisation_ratio`;
* saturation below that: retransmits at or above `congestion_retransmit_ratio`, or an RTT of
  `RTT_INFLATION` times the base, while tx stays flat over the last readings taken at one promised
  capacity. Traffic of whole KV caches is bursty, so tx that stands still is tx at a ceiling.

Between the on limits and `OFF_FACTOR` of them a link keeps the state it has, and only
`congestion_clear_s` without a pause below the off limits ends congestion: a signal that swings
around its limit does not flap. Telemetry that is missing or stale never counts as clear.

Effective capacity is the least of the scenario's, the reported one, and the plateau at which the
link was last seen saturated. The plateau is the *highest* tx of the episode, since sending less is
no sign of carrying less, and is forgotten after `PLATEAU_KEPT_S`: a forgotten plateau is a probe.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from routing.core.hysteresis import wait_until
from routing.core.scenario import Link
from routing.core.types import LinkMemory, LinkObservation, Params

OFF_FACTOR = 0.9
RTT_INFLATION = 2.0
RTT_NOISE_S = 0.005
"""An RTT this little above its base is jitter, whatever the ratio."""
RTT_CREEP_PER_S = 5e-5
"""The base RTT may rise 0.3 % a minute, so a longer route becomes the base within hours."""
FLAT_RATIO = 0.05
N_FLAT_READINGS = 4
SAME_READING_S = 0.1
PLATEAU_KEPT_S = 600.0
MAX_PLAUSIBLE_GBPS = 1e6
NEW_LINK = LinkMemory()


@dataclass(frozen=True)
class LinkView:
    """One link as this tick sees it; `signs` says in words what spoke of congestion just now."""

    id: str
    memory: LinkMemory
    base_rtt_s: float | None
    capacity_gbps: float
    known: bool
    signs: str = ""

    @property
    def down(self) -> bool:
        return self.memory.trouble == "down"

    @property
    def congested(self) -> bool:
        return self.memory.trouble == "congested"

    def clear_at_s(self, params: Params, now_s: float) -> float:
        """The earliest time at which the present trouble can be over."""
        since = self.memory.clear_since_s
        return wait_until(now_s if since is None else since, params.congestion_clear_s, now_s)


def view(
    link: Link,
    seen: LinkObservation | None,
    memory: LinkMemory,
    base_rtt_s: float | None,
    *,
    now_s: float,
    params: Params,
) -> LinkView:
    """The link's state after this tick's reading, which may be missing."""
    reported = _plausible(seen.capacity_gbps if seen else None)
    if reported == 0.0:
        capacity = link.usable_gbps
        memory = _trouble(memory, "down", now_s)
        return LinkView(link.id, memory, base_rtt_s, capacity, known=True, signs="it is down")
    capacity = min(link.usable_gbps, reported) if reported is not None else link.usable_gbps
    # A reading that failed says nothing of the link: it is not seen, which is not down.
    tx = _tx(seen)
    fresh = seen is not None and (seen.age_s is None or seen.age_s <= params.stale_after_s)
    if seen is None or tx is None or not fresh:
        memory = dataclasses.replace(memory, clear_since_s=None, tx_gbps=())
        return LinkView(link.id, memory, base_rtt_s, _effective(capacity, memory, now_s), False)
    memory = _with_reading(memory, tx, capacity, read_at_s=now_s - (seen.age_s or 0.0))
    limits = params
    if memory.trouble == "congested":
        # What ends congestion is further down than what starts it.
        limits = dataclasses.replace(
            params,
            congestion_utilisation_ratio=OFF_FACTOR * params.congestion_utilisation_ratio,
            congestion_retransmit_ratio=OFF_FACTOR * params.congestion_retransmit_ratio,
        )
    full = _utilisation(tx, capacity, limits)
    saturated = _saturation(seen, base_rtt_s, memory.tx_gbps, limits)
    if saturated and not full:
        peak = max(tx, _plateau(memory, now_s) or 0.0)
        memory = dataclasses.replace(memory, plateau_gbps=peak, plateau_at_s=now_s)
    effective = _effective(capacity, memory, now_s)
    signs = full or saturated
    if memory.trouble == "down":
        # Up again, and busy with what had stalled: only being up for long enough ends "down".
        memory = _cleared(memory, params, now_s)
    elif memory.trouble == "congested" and not signs:
        memory = _cleared(memory, params, now_s)
    if signs and memory.trouble != "down":
        memory = _trouble(memory, "congested", now_s)
    if memory.trouble == "none":
        base_rtt_s = _base_rtt(base_rtt_s, seen.rtt_s)
    return LinkView(link.id, memory, base_rtt_s, effective, known=True, signs=signs)


def _with_reading(
    memory: LinkMemory, tx: float, capacity: float, *, read_at_s: float
) -> LinkMemory:
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


def _plausible(gbps: float | None) -> float | None:
    return gbps if gbps is not None and 0.0 <= gbps <= MAX_PLAUSIBLE_GBPS else None


def _tx(seen: LinkObservation | None) -> float | None:
    if seen is None or seen.state in ("missing", "failed"):
        return None
    return _plausible(0.0 if seen.tx_gbps is None and seen.state == "idle" else seen.tx_gbps)


def _utilisation(tx: float, capacity: float, params: Params) -> str:
    if capacity > 0 and tx >= params.congestion_utilisation_ratio * capacity:
        return f"it sends {tx:.3g} of {capacity:.3g} Gbps"
    return ""


def _saturation(
    seen: LinkObservation, base_rtt_s: float | None, readings: tuple[float, ...], params: Params
) -> str:
    """Words for a link that meets a ceiling below its promised capacity, empty if it does not."""
    peak = max(readings)
    if len(readings) < N_FLAT_READINGS or peak <= 0 or peak - min(readings) > FLAT_RATIO * peak:
        return ""
    lost = seen.retransmit_ratio
    if lost is not None and lost >= params.congestion_retransmit_ratio:
        return f"it stands at {peak:.3g} Gbps and sends {lost:.1%} of segments again"
    rtt = seen.rtt_s
    if rtt is not None and base_rtt_s is not None:
        inflated = max(RTT_INFLATION * base_rtt_s, base_rtt_s + RTT_NOISE_S)
        if rtt >= inflated:
            return f"it stands at {peak:.3g} Gbps with an RTT of {1e3 * rtt:.3g} ms"
    return ""


def _base_rtt(base_s: float | None, rtt_s: float | None) -> float | None:
    if rtt_s is None or rtt_s <= 0:
        return base_s
    return rtt_s if base_s is None else min(rtt_s, base_s * (1.0 + 2.0 * RTT_CREEP_PER_S))


def _plateau(memory: LinkMemory, now_s: float) -> float | None:
    at = memory.plateau_at_s
    return memory.plateau_gbps if at is not None and now_s - at <= PLATEAU_KEPT_S else None


def _effective(capacity: float, memory: LinkMemory, now_s: float) -> float:
    plateau = _plateau(memory, now_s)
    return capacity if plateau is None else min(capacity, plateau)


def _trouble(memory: LinkMemory, kind: Literal["congested", "down"], now_s: float) -> LinkMemory:
    begun = memory.since_s if memory.trouble == kind else now_s
    return dataclasses.replace(memory, trouble=kind, since_s=begun, clear_since_s=None)


def _cleared(memory: LinkMemory, params: Params, now_s: float) -> LinkMemory:
    since = now_s if memory.clear_since_s is None else min(memory.clear_since_s, now_s)
    if now_s - since >= params.congestion_clear_s:
        return dataclasses.replace(
            memory, trouble="none", since_s=None, clear_since_s=None, cleared_at_s=now_s
        )
    return dataclasses.replace(memory, clear_since_s=since)
