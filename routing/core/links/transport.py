"""How many TCP connections a KV transfer should use over a path, and how fast all may send.

    connections = ceil( pacing / min(per_connection, 8 window / rtt) )     1 .. MOST_CONNECTIONS
    pacing      = PACING_RATIO * usable rate        (BURST_PACING_RATIO for a while after a burst)

One connection has at most a window of bytes on its way, so it carries window / rtt whatever the
link (bandwidth-delay product), and on most paths no more than `SINGLE_FLOW_GBPS`: one socket is one
core and often one policer. What the scenario's link says (`per_connection_gbps`, `window_bytes`) or
what was measured (`flows`) goes before these. Too many connections are as bad: measured from one
site, 32 and more collapsed.

Pacing keeps the queue in the sender: shaping before the path gave the most predictable transfers
(field report D6). It lies above the congestion limit, or a full link would never look full.
"""

from __future__ import annotations

import math

from routing.core.links import flows
from routing.core.scenario.document import Link, Scenario
from routing.core.types import LinkMemory, Transport

MOST_CONNECTIONS = 24
"""Under the 32 at which throughput collapsed over 30 ms of public internet (the sources of the
paper's readers); with 10 Gbps each enough for 240 Gbps."""
SINGLE_FLOW_GBPS = 10.0
"""25 Gbps instances stood at about 10 with one socket (D1)."""
WINDOW_BYTES = 3 * 2**20
"""Linux' default: the receiver offers half of the 6 MiB of `tcp_rmem`."""
PACING_RATIO = 0.95
BURST_PACING_RATIO = 0.7
BURST_KEPT_S = 600.0
"""As long as a learnt plateau: then full speed is tried again."""
_SIGNIFICANT = 3


def transport(
    link: Link, memory: LinkMemory, *, capacity_gbps: float, rtt_s: float | None, now_s: float
) -> Transport | None:
    """The hint for a link that carries `capacity_gbps`; None where it carries nothing.

    `rtt_s` is the RTT without queues, None where nobody knows it: then the window does not count.
    """
    if not 0.0 < capacity_gbps < math.inf:
        return None
    ratio = BURST_PACING_RATIO if burst_lately(memory, now_s) else PACING_RATIO
    pacing = ratio * capacity_gbps
    known = flows.per_connection_gbps(link, memory, now_s)
    each = SINGLE_FLOW_GBPS if known is None else known
    rtt = link.rtt_s if rtt_s is None else rtt_s
    if rtt is not None and rtt > 0.0:
        window = float(link.facts.get("window_bytes", WINDOW_BYTES))
        each = min(each, 8e-9 * window / rtt)
    wanted = math.ceil(min(pacing / each, MOST_CONNECTIONS)) if each > 0.0 else MOST_CONNECTIONS
    return Transport(connections=max(wanted, 1), pacing_gbps=_rounded(pacing))


def described(scenario: Scenario, cluster: str) -> dict[str, Transport]:
    """The hints for a PD cluster by its scenario alone, per PrfaaS cluster: before any reading."""
    prefill = {c.name for c in scenario.clusters if c.kind == "prefill"}
    hints = {
        link.source: transport(
            link, LinkMemory(), capacity_gbps=link.usable_gbps, rtt_s=None, now_s=0.0
        )
        for link in scenario.links
        if link.target == cluster and link.source in prefill
    }
    return {source: hint for source, hint in hints.items() if hint is not None}


def burst_lately(memory: LinkMemory, now_s: float) -> bool:
    return memory.burst_at_s is not None and now_s - memory.burst_at_s <= BURST_KEPT_S


def _rounded(gbps: float) -> float:
    return float(f"{gbps:.{_SIGNIFICANT}g}")
