"""What one request would take on either side: the same rule, with its threshold moved past it.

    local   move + T(L, C)                 remote   move + max( T(L, C), rtt + S_kv / bytes_per_s )

with `move` the seconds of a prefix that comes over first, L what the side has to compute behind the
C it holds, and the KV of a remote prefill sent layer by layer while it runs: the slower of the two
counts (arXiv:2604.15039, layer-wise pipelining), the tail of the last layer does not. No queue, no
decode admission: this is what the side takes when it stands idle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from routing.core.placement.explain import (
    NOW,
    UNPRICED,
    Costs,
    Moment,
    Placement,
    Request,
    Shipment,
    explain,
)
from routing.core.placement.rule import Side
from routing.core.types import ClusterPlan


@dataclass(frozen=True)
class Estimate:
    """One side's part in a request. `ttft_s` is None where a part of it is not known."""

    side: Side
    compute_tokens: int
    compute_s: float | None
    prefix: Shipment | None
    kv: Shipment | None
    ttft_s: float | None


def estimate(
    found: Placement,
    request: Request,
    plan: ClusterPlan | None,
    side: Side,
    *,
    cluster: str,
    moment: Moment = NOW,
    costs: Costs = UNPRICED,
) -> Estimate | None:
    """What `request`, placed as `found`, takes on `side`; None where it could not run there."""
    if found.side != side:
        if plan is None:
            return None
        forced = _sent(plan, request, side)
        found = explain(request, forced, cluster=cluster, moment=moment, costs=costs)
        if found.side != side:
            return None
    compute_s = found.compute_s[side]
    prefix = next((s for s in found.shipments if s.what == "prefix"), None)
    kv = next((s for s in found.shipments if s.what == "kv"), None)
    parts = (compute_s, *(None if s is None else s.seconds for s in (prefix, kv) if s is not None))
    ttft_s = None
    if compute_s is not None and None not in parts:
        shipped_s = kv.seconds if kv is not None and kv.seconds is not None else 0.0
        moved_s = prefix.seconds if prefix is not None and prefix.seconds is not None else 0.0
        ttft_s = moved_s + max(compute_s, shipped_s)
    return Estimate(side, found.compute_tokens[side], compute_s, prefix, kv, ttft_s)


def _sent(plan: ClusterPlan, request: Request, side: Side) -> ClusterPlan:
    """The plan that sends this request to `side`: every length is above -1, none above its own."""
    threshold = request.total_tokens if side == "local" else -1
    return replace(
        plan,
        mode="threshold",
        threshold_tokens=threshold,
        band=None,
        max_remote_in_flight=None,
    )
