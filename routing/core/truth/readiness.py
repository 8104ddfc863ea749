"""Which of a pool's instances take requests. A router that answers "healthy" says nothing of roles:
it stays healthy while its only prefill instance still loads (sgl-project/sglang#33740).

Asked of both: what routers list by role and status, and what the engines' own readings say. A pool
with nothing ready is a finding at once; one that is short is told after `GRACE_S`, since instances
start and drain in the normal course of things.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from routing.core.truth.finding import (
    Clear,
    Figure,
    Finding,
    Outcome,
    Severity,
    Unknown,
    named,
)

NAME = "RoleNotReady"
GRACE_S = 120.0


@dataclass(frozen=True)
class Member:
    """One instance of a pool; `since_s` is since when it has its status, where that is known.

    Of routers: `ready`, `draining`, `starting`, `failed`. Of engines: `ready`, `down`, and `unread`
    where nobody knows: its metrics fail or it is silent, and it may well serve.
    """

    instance: str
    status: str
    since_s: float | None = None

    @property
    def is_ready(self) -> bool:
        return self.status == "ready"

    def is_late(self, now_s: float) -> bool:
        """Not ready for longer than starting or draining takes; a router says `failed` late
        enough by itself."""
        if self.status in ("ready", "draining", "unread"):
            return False
        long_since = self.since_s is not None and now_s - self.since_s >= GRACE_S
        return self.status == "failed" or long_since


@dataclass(frozen=True)
class RolePool:
    """One role as `by` has it: a router, by its path, or the engines' own readings.

    `members` None: it could not be read. `expected` is how many the plan wants; None: no plan.
    `moving`: a rebalance is under way there, so that some are on their way.
    """

    subject: str
    role: str
    by: str
    members: tuple[Member, ...] | None
    expected: int | None = None
    moving: bool = False


def of_pool(seen: RolePool, now_s: float) -> Outcome:
    """At once where none is ready, after `GRACE_S` where some are not."""
    if seen.members is None:
        return Unknown(
            NAME,
            seen.subject,
            f"which {seen.role} instances are ready is not known by {seen.by}: nothing is read",
            "See on the fleet page since when it is silent",
        )
    ready = [member for member in seen.members if member.is_ready]
    others = [member for member in seen.members if not member.is_ready]
    if not seen.members and not seen.expected:
        return Clear(NAME, seen.subject, f"no {seen.role} instance is wanted by {seen.by}")
    unread = [member for member in others if member.status == "unread"]
    if not ready and unread:
        return Unknown(
            NAME,
            seen.subject,
            f"{len(unread)} of {len(seen.members)} {seen.role} instances are not read "
            f"({_names(unread)}), the others are not ready",
            "See on the fleet page what the agent says of them",
        )
    if not ready:
        return _finding(seen, ready, others, "bad", _none_ready(seen))
    late = [member for member in others if member.is_late(now_s)]
    if late and not seen.moving:
        text = f"{len(late)} of {len(seen.members)} {seen.role} instances take no requests"
        return _finding(seen, ready, late, "warn", f"{text} by {seen.by} ({_names(late)})")
    return Clear(NAME, seen.subject, f"{seen.role} takes requests by {seen.by}")


def _none_ready(seen: RolePool) -> str:
    if not seen.members:
        return f"No {seen.role} instance is listed by {seen.by}, and {seen.expected} are wanted"
    return f"No {seen.role} instance takes requests by {seen.by} ({_names(seen.members)})"


def _finding(
    seen: RolePool,
    ready: Sequence[Member],
    others: Sequence[Member],
    severity: Severity,
    sentence: str,
) -> Finding:
    since = [member.since_s for member in others if member.since_s is not None]
    # An empty pool is not ready since the last of it went; one that is short, since the first did.
    since_s = None if not since else max(since) if severity == "bad" else min(since)
    return Finding(
        name=NAME,
        subject=seen.subject,
        severity=severity,
        sentence=sentence,
        evidence=(
            Figure(
                f"{seen.role} instances listed", len(seen.members or ()), "instances", "measured"
            ),
            Figure("of these ready", len(ready), "instances", "measured"),
            Figure("wanted by the plan", seen.expected, "instances", "measured"),
            *(Figure(_short(m), m.status, "", "measured") for m in others[:3]),
        ),
        next_step="Look at the first of them: its log, and GET /health on the engine itself, not "
        "on the router. "
        + (
            f"Until one is ready the pool serves nothing: move one over on the fleet page, or set "
            f"a hold with mode always_local if {seen.role} of this cluster is what is missing"
            if severity == "bad"
            else "Take it out of the router, or restart it"
        ),
        since_s=since_s,
    )


def _names(members: Sequence[Member]) -> str:
    return named(f"{_short(member)} {member.status}" for member in members)


def _short(member: Member) -> str:
    return member.instance.rpartition("/")[2]
