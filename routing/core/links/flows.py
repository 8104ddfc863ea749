"""What slows KV transfers although the link has room: too few connections, bursts, another path.

* **Flow-limited** (D1): the link is less than `LOW_UTILISATION` busy and loses nothing, yet its
  connections carry `NEAR_CAP` of what one can carry at most, or a transfer runs at less than
  1 / SLOW_FACTOR of (1 - u) capacity. That is what fair sharing gives a transfer on average on a
  link with utilisation u (M/G/1 processor sharing: E[T] = bytes / ((1 - u) capacity)). The
  cure is more connections; t would change nothing, and so it does not move.
* **Burst** (D7): more is lost than the path's limit while mean utilisation is moderate, tx moves,
  and `MANY_CONNECTIONS` or more are open: many senders meet for moments that a mean hides.
* **Transport changed** (D5): transfers of the same size run `STEP_FACTOR` times slower or faster
  than they used to, `N_ODD` readings in a row, on a link with room: TCP in place of RDMA, another
  interface. Told once, then the new speed is the usual one.
* **Implausible** (A15): a transfer faster than the link. It is told and not used.
"""

from __future__ import annotations

import dataclasses
import math

from routing.core.links.congestion import IMPLAUSIBLE_FACTOR, OFF_FACTOR
from routing.core.scenario.document import Link
from routing.core.types import LinkMemory, LinkObservation

LOW_UTILISATION = 0.5
NEAR_CAP = 0.8
SLOW_FACTOR = 4.0
"""Room for what honestly makes a transfer slower than its share: bursts, and KV that waits for the
prefill that computes it."""
MANY_CONNECTIONS = 32.0
"""From so many on throughput was seen to collapse on a long path (transport)."""
STEP_FACTOR = 3.0
SAME_BYTES_FACTOR = 1.5
N_ODD = 4
USUAL_WEIGHT = 0.05
"""Of one reading in the usual speed: some 20 readings make it."""
LEARNT_AFTER_S = 30.0
PER_CONNECTION_KEPT_S = 86_400.0
"""What one connection carries is a property of the path; once a day it is measured anew."""


def transfer_gbps(seen: LinkObservation, most: float) -> tuple[float | None, str]:
    """(mean speed of a transfer, words if it cannot be); None where not measured or impossible.

    `most` is what the link cannot exceed, `congestion.most_gbps`.
    """
    size, seconds = seen.transfer_bytes, seen.transfer_s
    if size is None or seconds is None or not (0.0 < size < math.inf and 0.0 < seconds < math.inf):
        return None, ""
    gbps = 8e-9 * size / seconds
    if gbps > most:
        said = f"engines claim {gbps:.3g} Gbps a transfer over {most / IMPLAUSIBLE_FACTOR:.3g} Gbps"
        return None, f"{said}: not used"
    return gbps, ""


def per_connection_gbps(link: Link, memory: LinkMemory, now_s: float) -> float | None:
    """What one connection carries at most: the path's own figure and what was seen, if any."""
    at_s = memory.per_connection_at_s
    seen = at_s is not None and now_s - at_s <= PER_CONNECTION_KEPT_S
    known = (link.facts.get("per_connection_gbps"), memory.per_connection_gbps if seen else None)
    return min((gbps for gbps in known if gbps is not None and gbps > 0), default=None)


def limited(
    link: Link,
    seen: LinkObservation,
    memory: LinkMemory,
    *,
    tx: float,
    capacity: float,
    gbps: float | None,
    retransmit_limit: float,
    now_s: float,
) -> str:
    """Words for transfers that their connections hold back; empty if they do not or it is unclear.

    `gbps` is a transfer's mean speed. Loss that is not measured is not known to be none: only what
    connections carry speaks then.
    """
    used = tx / capacity if capacity > 0 else math.inf
    lost = seen.retransmit_ratio
    if used >= LOW_UTILISATION or (lost is not None and lost >= OFF_FACTOR * retransmit_limit):
        return ""
    cap, n = per_connection_gbps(link, memory, now_s), seen.connections
    if cap is not None and n is not None and 1.0 <= n < math.inf and tx >= NEAR_CAP * n * cap:
        return f"its {n:.0f} connections carry {tx / n:.3g} Gbps each, {cap:.3g} is their limit"
    if gbps is not None and lost is not None and gbps * SLOW_FACTOR <= (1.0 - used) * capacity:
        return f"a transfer runs at {gbps:.3g} Gbps with {(1.0 - used) * capacity:.3g} Gbps free"
    return ""


def with_flow(
    link: Link, memory: LinkMemory, limited_now: bool, *, gbps: float | None, now_s: float
) -> LinkMemory:
    """The memory, which learns what one connection carries once that has been the limit a while.

    `gbps` is a transfer's mean speed, over the `connections` that the scenario says it uses.
    """
    if not limited_now:
        return dataclasses.replace(memory, flow_since_s=None)
    since_s = now_s if memory.flow_since_s is None else min(memory.flow_since_s, now_s)
    memory = dataclasses.replace(memory, flow_since_s=since_s)
    if now_s - since_s < LEARNT_AFTER_S or gbps is None or "connections" not in link.facts:
        return memory
    # Where a plan has raised the number since, dividing by the old one finds too much: the least
    # that was found counts.
    known = per_connection_gbps(link, memory, now_s)
    each = min(gbps / float(link.facts["connections"]), math.inf if known is None else known)
    return dataclasses.replace(memory, per_connection_gbps=each, per_connection_at_s=now_s)


def bursting(seen: LinkObservation, tx: float, loss: str) -> str:
    """Words for many senders that meet for moments; `loss`: that above the path's limit, in words.

    An RTT above its limit is no sign of them: a queue that stands, or a longer route, has one too.
    """
    n = seen.connections
    if not loss or n is None or not MANY_CONNECTIONS <= n < math.inf:
        return ""
    return f"it {loss}, with {n:.0f} connections and {tx:.3g} Gbps on average"


def usual(memory: LinkMemory, seen: LinkObservation, gbps: float | None) -> tuple[LinkMemory, str]:
    """(the memory with the usual speed of a transfer, words if that changed by a step)."""
    size = seen.transfer_bytes
    if gbps is None or size is None:
        return memory, ""
    was, was_size = memory.transfer_gbps, memory.transfer_bytes
    if not was or not was_size:
        return dataclasses.replace(memory, transfer_gbps=gbps, transfer_bytes=size, n_odd=0), ""
    same = max(size / was_size, was_size / size) <= SAME_BYTES_FACTOR
    if same and max(gbps / was, was / gbps) >= STEP_FACTOR:
        if memory.n_odd + 1 < N_ODD:
            return dataclasses.replace(memory, n_odd=memory.n_odd + 1), ""
        memory = dataclasses.replace(memory, transfer_gbps=gbps, transfer_bytes=size, n_odd=0)
        return memory, f"transfers of the same size went from {was:.3g} to {gbps:.3g} Gbps"
    return dataclasses.replace(
        memory,
        transfer_gbps=was + USUAL_WEIGHT * (gbps - was),
        transfer_bytes=was_size + USUAL_WEIGHT * (size - was_size),
        n_odd=0,
    ), ""
