"""What a link is now, in one word with its signs, and what follows from it.

| label | meaning | what it does |
|---|---|---|
| `clear` | room, nothing lost | nothing |
| `near_limit` | close to a limit of the path | no prefix is moved over it |
| `congested` | at a limit (`congestion`) | t rises at once and never falls |
| `flow_limited` | connections limit transfers, not the link (`flows`) | more connections; t stays |
| `burst` | many senders meet for moments (`flows`) | pacing, fewer at once; t stays |
| `down` | reported down, or its breaker is open (`breaker`) | nothing is sent over it |
| `unknown` | not read | nothing that relies on it changes |

Only `congested` and `down` move t. Each directed link is judged by its own readings and limits.

Between the on limits and `OFF_FACTOR` of them a link keeps the state it has, and only
`congestion_clear_s` without a pause below the off limits ends congestion: a signal that swings
around its limit does not flap. A link that failed comes back after the same time, doubled for each
failure in a row. Telemetry that is missing or stale never counts as clear.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Final, Literal

from routing.core.hysteresis import wait_until
from routing.core.links import billing, breaker, congestion, flows
from routing.core.links.transport import transport
from routing.core.scenario.document import Link
from routing.core.types import LinkLabel, LinkMemory, LinkObservation, Params, Transport

FORBIDS: Final[dict[LinkLabel, str]] = {
    "clear": "",
    "near_limit": "moving prefixes over it",
    "congested": "lowering t",
    "flow_limited": "moving t as for congestion",
    "burst": "moving t as for congestion",
    "down": "sending over it",
    "unknown": "any change that relies on its room",
}
ASKS: Final[dict[LinkLabel, str]] = {
    "clear": "",
    "near_limit": "",
    "congested": "a higher t",
    "flow_limited": "more connections a transfer",
    "burst": "paced senders and fewer remote requests in flight",
    "down": "local prefill",
    "unknown": "a reading",
}
NEW_LINK = LinkMemory()
IN_MAINTENANCE: Final = "it is in maintenance"
"""The signs of a link whose breaker people hold open."""


@dataclass(frozen=True)
class LinkView:
    """One link as this tick sees it.

    `capacity_gbps` is what it carries, `planned_gbps` what plans may use of that (`billing`). Until
    `maintenance_until_s` people keep traffic off it.
    """

    id: str
    memory: LinkMemory
    base_rtt_s: float | None
    capacity_gbps: float
    known: bool
    planned_gbps: float
    transport: Transport | None = None
    maintenance_until_s: float | None = None

    @property
    def label(self) -> LinkLabel:
        return self.memory.label

    @property
    def signs(self) -> str:
        """In words, what speaks for the label just now."""
        return self.memory.signs

    @property
    def events(self) -> tuple[str, ...]:
        """What happened and moves nothing: first transfers after a pause that failed, another
        transport, a speed that cannot be, the breaker."""
        return self.memory.events

    @property
    def down(self) -> bool:
        return self.memory.trouble == "down" or self.memory.breaker == "open"

    @property
    def failing(self) -> bool:
        """Up by its counters, and its breaker is open."""
        stands_open = self.memory.breaker == "open" and self.memory.trouble != "down"
        return stands_open and self.maintenance_until_s is None

    @property
    def congested(self) -> bool:
        return self.memory.trouble == "congested"

    @property
    def probing(self) -> bool:
        """The breaker is half open: little traffic shows whether transfers succeed again."""
        return not self.down and self.memory.breaker == "half_open"

    @property
    def wants_transport(self) -> bool:
        """Its transport hint would cure what it has: not to be kept for the next plan."""
        return self.label in ("flow_limited", "burst")

    @property
    def forbids(self) -> str:
        return FORBIDS[self.label]

    @property
    def asks(self) -> str:
        return ASKS[self.label]

    def clear_at_s(self, params: Params, now_s: float) -> float:
        """The earliest time at which the present trouble can be over."""
        ends_s = now_s
        if self.memory.trouble != "none":
            ends_s = wait_until(
                now_s if self.memory.clear_since_s is None else self.memory.clear_since_s,
                _hold_s(self.memory, params),
                now_s,
            )
        if self.memory.breaker == "open":
            open_s = breaker.open_s(self.memory)
            ends_s = max(ends_s, wait_until(self.memory.breaker_at_s, open_s, now_s))
        return max(ends_s, self.maintenance_until_s or ends_s)


def view(
    link: Link,
    seen: LinkObservation | None,
    memory: LinkMemory,
    base_rtt_s: float | None,
    *,
    now_s: float,
    params: Params,
    needed: bool = False,
) -> LinkView:
    """The link's state after this tick's reading, which may be missing. Never raises for data.

    `needed`: requests queue at the far end for want of it.
    """
    memory = dataclasses.replace(memory, needed=needed)
    most = congestion.most_gbps(link, seen)
    fresh = seen is not None and (seen.age_s is None or seen.age_s <= params.stale_after_s)
    tx = congestion.tx_of(seen, most) if fresh else None
    events = []
    if fresh and seen is not None and tx is None and congestion.tx_of(seen, math.inf) is not None:
        events.append(f"it reports {seen.tx_gbps:.3g} Gbps sent, more than it can carry: not used")
    if seen is not None:
        memory, more = _transfers(link, seen, memory, tx, now_s)
        events += more
    judged = _judged(link, seen, memory, tx, base_rtt_s, now_s=now_s, params=params)
    memory, label, signs = judged.memory, judged.label, judged.signs
    if label not in ("down", "congested", "unknown") and seen is not None and tx is not None:
        memory, label, signs, more = _slowed(link, seen, judged, tx, most, now_s, params)
        events += more
    maintained = breaker.in_maintenance(seen, now_s)
    if maintained:
        label, signs = "down", IN_MAINTENANCE
    elif memory.breaker == "open" and memory.trouble != "down":
        label, signs = "down", "its breaker is open: too many transfers failed"
    cap = link.facts.get("p95_cap_gbps")
    bills = billing.observed(memory.billing, tx, cap, now_s)
    memory = dataclasses.replace(
        memory, billing=bills, label=label, signs=signs, events=tuple(events)
    )
    if memory.trouble == "none" and seen is not None and tx is not None:
        base_rtt_s = congestion.crept(base_rtt_s, seen.rtt_s)
    capacity = judged.capacity
    return LinkView(
        id=link.id,
        memory=memory,
        base_rtt_s=base_rtt_s,
        capacity_gbps=capacity,
        known=judged.known,
        planned_gbps=billing.planned_gbps(link, capacity, billing.burst_left_s(bills, now_s)),
        transport=transport(link, memory, capacity_gbps=capacity, rtt_s=base_rtt_s, now_s=now_s),
        maintenance_until_s=seen.maintenance_until_s if seen is not None and maintained else None,
    )


@dataclass(frozen=True)
class _Judged:
    """What readings say of congestion; `strain`: loss or RTT above the path's limits, in words."""

    memory: LinkMemory
    capacity: float
    known: bool
    label: LinkLabel
    signs: str = ""
    strain: str = ""


def _judged(
    link: Link,
    seen: LinkObservation | None,
    memory: LinkMemory,
    tx: float | None,
    base_rtt_s: float | None,
    *,
    now_s: float,
    params: Params,
) -> _Judged:
    reported = congestion.reported_gbps(seen)
    if reported == 0.0:
        memory = _trouble(breaker.went_down(memory, now_s), "down", now_s)
        return _Judged(memory, link.usable_gbps, True, "down", "it is down")
    capacity = link.usable_gbps if reported is None else min(link.usable_gbps, reported)
    if seen is None or tx is None:
        # A reading that failed says nothing of the link: it is not seen, which is not down.
        memory = dataclasses.replace(memory, clear_since_s=None, tx_gbps=())
        label: LinkLabel = "unknown" if memory.trouble == "none" else memory.trouble
        effective = congestion.effective(capacity, memory, now_s)
        return _Judged(memory, effective, False, label, "it is not read")
    memory = congestion.with_reading(
        memory, tx, capacity, read_at_s=now_s - max(seen.age_s or 0.0, 0.0)
    )
    limits = congestion.limits_of(link, params)
    if memory.trouble == "congested":
        limits = limits.lower()
    full = congestion.full(tx, capacity, limits)
    strain = congestion.strained(seen, base_rtt_s, limits)
    flat = congestion.flat_at(memory.tx_gbps, capacity)
    saturated = f"it stands at {flat:.3g} Gbps and {strain}" if strain and flat is not None else ""
    if saturated and not full:
        peak = max(tx, congestion.plateau(memory, now_s) or 0.0)
        memory = dataclasses.replace(memory, plateau_gbps=peak, plateau_at_s=now_s)
    effective = congestion.effective(capacity, memory, now_s)
    signs = full or saturated
    if memory.trouble == "down":
        # Up again, and busy with what had stalled: only being up for long enough ends "down".
        memory = _cleared(memory, params, now_s)
    elif memory.trouble == "congested" and not signs:
        memory = _cleared(memory, params, now_s)
    if signs and memory.trouble != "down":
        memory = _trouble(memory, "congested", now_s)
    if memory.trouble == "down":
        signs = f"it is up for less than {_hold_s(memory, params):g} s"
    elif memory.trouble == "congested" and not signs:
        signs = f"it is clear for less than {_hold_s(memory, params):g} s"
    label = "clear" if memory.trouble == "none" else memory.trouble
    return _Judged(memory, effective, True, label, signs, strain)


def _slowed(
    link: Link,
    seen: LinkObservation,
    judged: _Judged,
    tx: float,
    most: float,
    now_s: float,
    params: Params,
) -> tuple[LinkMemory, LinkLabel, str, list[str]]:
    """(memory, label, signs, events) of a link without trouble: what else slows it."""
    memory, capacity = judged.memory, judged.capacity
    limits = congestion.limits_of(link, params)
    gbps, odd = flows.transfer_gbps(seen, most)
    events = [odd] if odd else []
    if tx < flows.LOW_UTILISATION * capacity:
        memory, changed = flows.usual(memory, seen, gbps)
        events += [f"its transport changed: {changed}"] if changed else []
    flow = flows.limited(
        link,
        seen,
        memory,
        tx=tx,
        capacity=capacity,
        gbps=gbps,
        retransmit_limit=limits.retransmit_ratio,
        now_s=now_s,
    )
    memory = flows.with_flow(link, memory, bool(flow), gbps=gbps, now_s=now_s)
    burst = flows.bursting(seen, tx, congestion.losing(seen, limits))
    near = congestion.full(tx, capacity, limits.lower())
    if burst:
        memory = dataclasses.replace(memory, burst_at_s=now_s)
        return memory, "burst", burst, events
    if flow:
        return memory, "flow_limited", flow, events
    if near or judged.strain:
        return memory, "near_limit", near or f"it {judged.strain}", events
    return memory, "clear", "", events


def _transfers(
    link: Link, seen: LinkObservation, memory: LinkMemory, tx: float | None, now_s: float
) -> tuple[LinkMemory, list[str]]:
    """(the memory with its breaker, what happened): the transfers that ended lately."""
    memory = breaker.with_traffic(memory, tx, seen.transfers, now_s)
    limit = float(link.facts.get("failure_limit_ratio", breaker.FAILURE_LIMIT_RATIO))
    was, memory = memory.breaker, breaker.judged(memory, seen, limit, now_s)
    n_failed, share = breaker.failures(seen)
    if memory.breaker == "open" and was != "open" and breaker.in_maintenance(seen, now_s):
        return memory, ["maintenance began: its breaker is held open"]
    if memory.breaker == "open" and was != "open":
        return memory, [f"its breaker opened: {share:.0%} of {seen.transfers:.0f} transfers failed"]
    if memory.breaker != was:
        text = "closed" if memory.breaker == "closed" else "is half open: a few requests probe it"
        return memory, [f"its breaker {text}"]
    if memory.breaker == "closed" and n_failed >= 1.0 and breaker.resuming(memory, now_s):
        return memory, [f"first transfers after a pause failed: {n_failed:.0f}"]
    return memory, []


def _hold_s(memory: LinkMemory, params: Params) -> float:
    """How long the present trouble has to be over before it counts as over."""
    if memory.trouble == "down":
        return breaker.down_hold_s(memory, params.congestion_clear_s)
    return params.congestion_clear_s


def _trouble(memory: LinkMemory, kind: Literal["congested", "down"], now_s: float) -> LinkMemory:
    begun = memory.since_s if memory.trouble == kind else now_s
    return dataclasses.replace(memory, trouble=kind, since_s=begun, clear_since_s=None)


def _cleared(memory: LinkMemory, params: Params, now_s: float) -> LinkMemory:
    since = now_s if memory.clear_since_s is None else min(memory.clear_since_s, now_s)
    if now_s - since >= _hold_s(memory, params):
        return dataclasses.replace(
            memory,
            trouble="none",
            since_s=None,
            clear_since_s=None,
            cleared_at_s=now_s,
            up_at_s=now_s if memory.trouble == "down" else memory.up_at_s,
        )
    return dataclasses.replace(memory, clear_since_s=since)
