"""What a router shows against what it should list: differences, whose they are, what undoes them.

Pure. `lists` are `{base URL of an engine: {"role", "status"}}`, as rows of ManagedRouter keep them.
An instance that starts or fails is no drift: nobody changed the list. One that a make takes off its
list to cordon it counts as cordoned there.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from routing.adapters.surface import Actual, Capabilities, Role

List = Mapping[str, Mapping[str, Any]]
Kind = Literal["missing", "extra", "role", "cordoned", "opened"]
State = Literal[
    "sync", "drifted", "applying", "pending_restart", "read_only", "unreachable", "unread"
]
LATE_THRESHOLD = ("roll", "restart", "patch")
"""Capabilities of routers that take another t only by a restart or by somebody else's hand."""
WRITER = "other_writer"
"""The fact in which an adapter names who else changes this router."""
STARTED = "started_at_s"
"""The fact in which an adapter says when the router's process began."""


@dataclass(frozen=True)
class Difference:
    """One instance that is not listed as it should be; `words` is a sentence without a subject."""

    url: str
    kind: Kind
    words: str


@dataclass(frozen=True)
class Judged:
    """How a router stands after one more reading."""

    state: State
    findings: tuple[str, ...] = ()
    cause: Literal["", "restart", "change"] = ""
    other_writer: str = ""
    n_drifted: int = 0


@dataclass(frozen=True)
class Step:
    """One thing to ask of a router; `role` is None for a cordon."""

    url: str
    role: Role | None

    @property
    def words(self) -> str:
        return f"list {self.url} as {self.role}" if self.role else f"cordon {self.url}"


def listed(actual: Actual) -> dict[str, dict[str, Any]]:
    """The instances that a reading shows, as rows keep them."""
    return {
        url: {
            "role": worker.role,
            "status": worker.status,
            "requests": worker.requests,
            "key": worker.key,
        }
        for url, worker in sorted(actual.workers.items())
    }


def wanted(seen: List) -> dict[str, dict[str, Any]]:
    """A list that was seen as one that is desired from now on."""
    return {
        url: {
            "role": entry["role"],
            "status": "draining" if entry["status"] == "draining" else "ready",
        }
        for url, entry in seen.items()
    }


def after_moves(desired: List, ended: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """`desired` with the role in which a move of roles left each instance it knows."""
    return {
        url: {"role": ended[url], "status": "ready"} if url in ended else dict(entry)
        for url, entry in desired.items()
    }


def differences(desired: List, seen: List, *, moving: Collection[str]) -> tuple[Difference, ...]:
    """Where `seen` is not `desired`, but for instances that a rebalance has in its hands."""
    found = []
    for url in sorted(desired.keys() | seen.keys()):
        if url not in moving:
            one = _difference(url, desired.get(url), seen.get(url))
            if one is not None:
                found.append(one)
    return tuple(found)


def _difference(
    url: str, want: Mapping[str, Any] | None, seen: Mapping[str, Any] | None
) -> Difference | None:
    if want is None:
        assert seen is not None, "a URL is in one of the two lists"
        if seen["status"] == "draining":
            return None  # all that can be done about it where it cannot be taken off the list
        role = seen["role"] or "an instance without a role"
        return Difference(url, "extra", f"lists {url} as {role}, which is not desired")
    if want["status"] == "draining":
        # Whatever role it has there, it takes no request in it.
        if seen is None or seen["status"] == "draining":
            return None
        return Difference(url, "opened", f"sends requests to {url}, which should be drained")
    if seen is None:
        return Difference(url, "missing", f"does not list {url}, desired as {want['role']}")
    if want["role"] is not None and seen["role"] != want["role"]:
        return Difference(url, "role", f"lists {url} as {seen['role']}, not {want['role']}")
    if seen["status"] == "draining":
        return Difference(url, "cordoned", f"sends nothing new to {url}, which should take it")
    return None


def judge(
    found: tuple[Difference, ...],
    *,
    can: Capabilities,
    facts: Mapping[str, Any],
    was_away: bool,
    facts_before: Mapping[str, Any],
    before: Judged,
    moving: bool,
    operating: bool,
    pending: str,
) -> Judged:
    """How the router stands, `before` being how it stood at the reading before.

    What differs at the first reading after a silence, or in a process that began since, came with a
    restart; all else is a change that this console did not make. Once it is there at two readings
    in a row somebody else writes here, and is named. While an operation is under way, what differs
    is what it has not done yet. `pending` says what waits for a restart.
    """
    marked = facts.get(WRITER)
    writer = str(marked)[:300] if marked else ""
    notes = (f"its list is also written by {writer}",) if writer else ()
    if found and operating:
        left = (*(one.words for one in found), *notes)
        return dataclasses.replace(before, state="applying", findings=left)
    if not found:
        state: State = "sync"
        if moving or operating:
            state = "applying"
        elif pending:
            state, notes = "pending_restart", (pending, *notes)
        elif can.roles == "none":
            state = "read_only"
        if can.why and (can.roles == "none" or not can.is_readable):
            notes = (can.why, *notes)
        return Judged(state, notes, other_writer=writer)
    began = _began_anew(facts_before, facts)
    cause = before.cause if before.n_drifted else ("restart" if was_away or began else "change")
    n_drifted = before.n_drifted + 1
    said = [one.words for one in found]
    if cause == "restart":
        said.append("it came back with another list than it had: it restarted with an old one")
    elif n_drifted >= 2 and not writer:
        writer = "a person or program unknown"
        said.append("this was not done from here, and it stays: somebody else writes to it")
    if can.roles == "none":
        said.append(can.why or "it cannot be changed from here")
    return Judged("drifted", (*said, *notes), cause, writer, n_drifted)


def _began_anew(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    was, is_ = before.get(STARTED), now.get(STARTED)
    return was is not None and is_ is not None and was != is_


@dataclass(frozen=True)
class Around:
    """What is around the routers of a fleet, for who looks at many of them: the role that each
    engine told of itself, by path, and by cluster the URLs that a rebalance has in its hands."""

    told: Mapping[str, str]
    moving: Mapping[str, set[str]]


@dataclass(frozen=True)
class Limits:
    """What an override must keep: the fewest ready instances of each role, and all there are.

    `own` are the cluster's engines, of those that a router lists (a stack also lists remote ones);
    empty: all of them.
    """

    min_prefill: int
    min_decode: int
    instances: int
    own: frozenset[str] = frozenset()

    def least(self, role: str) -> int:
        return {"prefill": self.min_prefill, "decode": self.min_decode}.get(role, 0)


def override(
    desired: List,
    seen: List,
    *,
    moving: Collection[str],
    limits: Limits,
    engines: Mapping[str, str],
) -> tuple[Step, ...] | str:
    """What makes a router list what is desired, additions first; or why that must not be done.

    `engines` are the roles engines themselves report, by URL: a router never lists one as what it
    is not. At no step does a role have fewer ready instances than its floor, or than it has now.
    """
    found = differences(desired, seen, moving=moving)
    order: dict[Kind, int] = {"missing": 0, "cordoned": 0, "role": 1, "opened": 2, "extra": 3}
    steps = []
    for one in sorted(found, key=lambda one: order[one.kind]):
        cordon = one.kind in ("opened", "extra")
        role = None if cordon else desired[one.url]["role"]
        runs = engines.get(one.url)
        if role is not None and runs is not None and runs != role:
            return (
                f"{one.url} is desired as {role} and its engine runs {runs}: that takes a move of "
                "roles, or adopting what is there"
            )
        if not cordon and role is None:
            return f"{one.url} is desired without a role, which no router can be told"
        steps.append(Step(one.url, role))
    refused = _breaks(steps, seen, limits)
    return refused or tuple(steps)


def _breaks(steps: list[Step], seen: List, limits: Limits) -> str:
    """Which limit the steps would break on the way, empty if none."""

    def counts(url: str) -> bool:
        return not limits.own or url in limits.own

    ready = {url: e["role"] for url, e in seen.items() if e["status"] == "ready"}
    now = {url: role for url, role in ready.items() if counts(url)}
    listed_now = {url for url in seen if counts(url)}
    n_listed = len(listed_now)
    began = Counter(now.values())
    for step in filter(lambda step: counts(step.url), steps):
        if step.role is None:
            now.pop(step.url, None)
            listed_now.discard(step.url)
        else:
            now[step.url] = step.role
            listed_now.add(step.url)
        left = Counter(now.values())
        for role in ("prefill", "decode"):
            least = min(limits.least(role), began[role])
            if left[role] < least:
                return f"to {step.words} leaves {left[role]} ready {role}, below {least}"
    if len(listed_now) > max(limits.instances, n_listed):
        return f"that would list {len(listed_now)} instances of {limits.instances} there are"
    return ""
