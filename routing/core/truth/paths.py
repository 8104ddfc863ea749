"""What the loop already found of links (`core.links`), as findings: S-41 and S-43."""

from __future__ import annotations

from routing.core.links.breaker import FAILURE_LIMIT_RATIO, failures
from routing.core.scenario.document import Link
from routing.core.truth.finding import Clear, Figure, Finding, Outcome, Unknown
from routing.core.types import LinkMemory, LinkObservation

FLOW, FAILURES = "FlowLimited", "TransferFailures"


def flow(link: Link, seen: LinkObservation | None, memory: LinkMemory) -> Outcome:
    """Connections limit transfers, the link has room: more of them help, another t does not."""
    if memory.label == "unknown" or seen is None or seen.tx_gbps is None:
        return Unknown(
            FLOW,
            link.id,
            "the link is not read, so whether its connections limit it is unknown",
            "Give the agent of the sending site a [[links]] entry for it (docs/links.md)",
        )
    if memory.label != "flow_limited":
        if seen.connections is None and seen.transfer_s is None:
            return Unknown(
                FLOW,
                link.id,
                "neither connections nor the time of transfers are measured",
                'Use source = "peer" for the link (docs/links.md), or read the sending engines\' '
                "kv_transfer_seconds",
            )
        return Clear(FLOW, link.id, "its connections do not hold it back")
    capacity = seen.capacity_gbps
    used = seen.tx_gbps / capacity if capacity else None
    wanted = int(max((seen.connections or 1.0) * 2, 8))
    return Finding(
        name=FLOW,
        subject=link.id,
        severity="warn",
        sentence="Connections hold transfers back while the link has room; t stays as it is",
        evidence=(
            Figure("use of the link", used, "ratio", "measured"),
            Figure("retransmits", seen.retransmit_ratio, "ratio", "measured"),
            Figure("connections", seen.connections, "", "measured"),
            Figure("a transfer's mean speed", _transfer_gbps(seen), "gbps", "measured"),
            Figure("what one connection carries", memory.per_connection_gbps, "gbps", "inferred"),
            Figure("signs", memory.signs, "", "inferred"),
        ),
        next_step=f"Use more connections a transfer, {wanted} to begin with: the plan's transport "
        "hint carries the number (docs/contracts.md); give it to the engines' transport, with UCX "
        "over TCP as UCX_MAX_RNDV_LANES. Do not raise t for it",
        since_s=memory.flow_since_s,
    )


def transfers(link: Link, seen: LinkObservation | None, memory: LinkMemory) -> Outcome:
    """The breaker, or transfers that fail below its limit."""
    n_failed, ratio = (0.0, 0.0) if seen is None else failures(seen)
    limit = float(link.facts.get("failure_limit_ratio", FAILURE_LIMIT_RATIO))
    if seen is not None and seen.maintenance_until_s is not None:
        return Clear(FAILURES, link.id, "it is in maintenance: nothing is sent over it")
    if memory.breaker == "closed" and (seen is None or seen.transfers is None):
        return Unknown(
            FAILURES,
            link.id,
            "nobody counts transfers over it: neither a gate whose only far side it leads to, nor "
            "engines whose only PD cluster it serves",
            "Read the gates of the receiving cluster, or the sending engines",
        )
    if memory.breaker == "closed" and n_failed < 1.0:
        return Clear(FAILURES, link.id, "no transfer failed lately, its breaker is closed")
    sentence, severity = {
        "closed": ("KV transfers fail over a link that is up", "warn"),
        "open": ("So many KV transfers failed that nothing is sent over the link", "bad"),
        "half_open": (
            "Its breaker is half open: a few requests show whether transfers work",
            "warn",
        ),
    }[memory.breaker]
    return Finding(
        name=FAILURES,
        subject=link.id,
        severity="bad" if severity == "bad" else "warn",
        sentence=sentence,
        evidence=(
            Figure(
                "transfers lately",
                None if seen is None else seen.transfers,
                "transfers",
                "measured",
            ),
            Figure(
                "of these failed", ratio if seen and seen.transfers else None, "ratio", "measured"
            ),
            Figure("limit of the path", limit, "ratio", "assumed"),
            Figure("breaker", memory.breaker.replace("_", " "), "", "inferred"),
            Figure("openings in a row", float(memory.n_openings), "", "measured"),
        ),
        next_step="Look at the log of a sending and of a receiving engine for the transfer error "
        "(UCX, NIXL, Mooncake), and ping the receiving host over the path itself. When it works "
        "again, page Fleet, Links, Reset breaker; else it probes by itself",
        since_s=memory.breaker_at_s if memory.breaker != "closed" else None,
    )


def _transfer_gbps(seen: LinkObservation) -> float | None:
    if not seen.transfer_s or seen.transfer_bytes is None:
        return None
    return 8e-9 * seen.transfer_bytes / seen.transfer_s
