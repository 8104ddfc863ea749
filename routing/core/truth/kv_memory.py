"""KV memory that is held for nothing, and KV that is freed before anybody fetched it.

Both are of the lease: how long a prefill engine keeps KV that a decode engine was told to fetch.
Longer than the lease with nothing to do is a leak (`core.leaks`). A router that waits longer than
the lease lets requests fail for which KV was there: they are counted as expired by the engine, and
look like a bad link (vllm-project/vllm#55854).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from routing.core.leaks import LEASE_S, Leak
from routing.core.truth.finding import Clear, Figure, Finding, Grade, Outcome, Unknown, named

LEAK, LEASE = "LeakSuspected", "LeaseShorterThanTimeout"
MOST_SINGLE = 5
"""So many leaking instances are a finding each; more are one finding."""


@dataclass(frozen=True)
class Pool:
    """The instances of a cluster: those suspected of a leak, those that do not tell enough
    (running, waiting and used KV memory), and how many there are."""

    subject: str
    n: int
    leaks: Sequence[Leak]
    untold: Sequence[str]


def leaks(seen: Pool) -> list[Outcome]:
    if seen.n == 0:
        return []
    found: list[Outcome] = [_leak(leak) for leak in seen.leaks[:MOST_SINGLE]]
    if len(seen.leaks) > MOST_SINGLE:
        rest = [leak.instance.rpartition("/")[2] for leak in seen.leaks[MOST_SINGLE:]]
        first = _leak(seen.leaks[MOST_SINGLE])
        found.append(
            Finding(
                LEAK,
                seen.subject,
                "bad",
                f"{len(rest)} more instances ({named(rest)}) run nothing and hold KV memory",
                first.evidence,
                first.next_step,
                first.since_s,
                first.longer,
            )
        )
    if seen.untold:
        names = named(path.rpartition("/")[2] for path in seen.untold)
        found.append(
            Unknown(
                LEAK,
                seen.subject,
                f"{len(seen.untold)} of {seen.n} instances ({names}) do not tell running and "
                "waiting requests and used KV memory, or were not read lately",
                "See on the onboarding page what is missing of each",
            )
        )
    if not found:
        found.append(Clear(LEAK, seen.subject, "no instance holds KV memory for nothing"))
    return found


def _leak(leak: Leak) -> Finding:
    return Finding(
        name=LEAK,
        subject=leak.instance,
        severity="bad",
        sentence="It runs nothing, nothing waits, and it holds KV memory for longer than any lease",
        evidence=(
            Figure("KV memory in use", leak.kv_usage_ratio, "ratio", "measured"),
            Figure("requests running and waiting", 0.0, "requests", "measured"),
            Figure("lease of KV that waits to be fetched", leak.lease_s, "s", "assumed"),
        ),
        next_step="Drain and restart the instance; adding instances would only add leaks. Before, "
        "keep its log: look for requests that were aborted while their KV was in transfer",
        since_s=leak.since_s,
        longer=True,
    )


@dataclass(frozen=True)
class Lease:
    """KV leases of a cluster's prefill engines in the window.

    `expired` are requests whose KV was freed before it was fetched, None where no engine counts
    them. `timeout_s` is the longest that a router or gate in front waits, None where none tells;
    `lease_s` what an engine told, None where none does.
    """

    subject: str
    since_s: float
    expired: float | None
    failed: float | None
    timeout_s: float | None
    lease_s: float | None
    who: str = "gate"


def lease(seen: Lease) -> Outcome:
    """Expired KV is proof. Where it can expire, a longer timeout is the cause in waiting."""
    lease_s, grade = _lease(seen)
    too_long = seen.timeout_s is not None and seen.timeout_s > lease_s
    if not seen.expired and not (too_long and seen.expired is not None):
        return _no_finding(seen)
    evidence = (
        Figure("requests whose KV expired unfetched", seen.expired, "requests", "measured"),
        Figure("transfers that failed", seen.failed, "transfers", "measured"),
        Figure("lease of the engines", lease_s, "s", grade),
        Figure(f"longest wait of the {seen.who}", seen.timeout_s, "s", "measured"),
    )
    if seen.expired:
        return Finding(
            LEASE,
            seen.subject,
            "bad",
            "Prefill engines free KV before decode fetched it: requests wait longer than the lease",
            evidence,
            "Raise the lease above the longest wait for decode (vLLM: "
            "VLLM_NIXL_ABORT_REQUEST_TIMEOUT, in seconds, on every prefill engine), or lower the "
            "router's timeout below it; if requests queue for decode, add decode instances first. "
            "Do not read these failures as a bad link",
            seen.since_s,
            longer=True,
        )
    return Finding(
        LEASE,
        seen.subject,
        "warn" if grade == "measured" else "info",
        f"The {seen.who} waits longer than prefill engines keep KV: a request that is late then "
        "fails although its KV had been there",
        evidence,
        f"Set the timeout below {lease_s:g} s (a gate: read_timeout_s), or raise the lease above "
        f"{seen.timeout_s:g} s (vLLM: VLLM_NIXL_ABORT_REQUEST_TIMEOUT on every prefill engine)",
    )


def _no_finding(seen: Lease) -> Outcome:
    if seen.expired is None:
        waits = "" if seen.timeout_s is None else f" (the {seen.who} waits {seen.timeout_s:g} s)"
        return Unknown(
            LEASE,
            seen.subject,
            f"no prefill engine tells how long it keeps KV or counts what expired{waits}",
            "Read prefill engines that count it (vLLM with NIXL from 0.32: "
            "nixl_num_kv_expired_reqs_total)",
        )
    return Clear(LEASE, seen.subject, "no KV expired before it was fetched")


def _lease(seen: Lease) -> tuple[float, Grade]:
    return (LEASE_S, "assumed") if seen.lease_s is None else (seen.lease_s, "measured")
