"""What a rebalance does next, from what routers and engines show now. Pure: no clock, no I/O.

    next_act    the next act of the instances that move now: one, or the members of a group

It answers from what is there, not from what was done before, so a worker that takes over after a
crash comes to the same act as the one that died. What has to move at all: `rebalance_plan`.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from routing.adapters.surface import Listed, Role
from routing.models import RoleMove
from routing.rebalance_looks import Look

IDLE_PROOF = datetime.timedelta(seconds=1)
HELD = ("cordon", "drain", "switch", "verify")
"""Steps in which an instance has to stay out of work."""


@dataclass(frozen=True)
class Wait:
    """Nothing to do before something else happens: what, in a sentence that holds no time."""

    sentence: str
    requests: int | None = None
    idle: bool = False


@dataclass(frozen=True)
class Cordon:
    """No new requests for the instance at one router."""

    router: str


@dataclass(frozen=True)
class ListAs:
    """The instance is listed in that role, ready, at one router."""

    router: str
    role: Role


@dataclass(frozen=True)
class Switch:
    """Ask the engine for its new role."""

    role: Role


@dataclass(frozen=True)
class Canary:
    """One small completion through that router."""

    router: str


@dataclass(frozen=True)
class Go:
    """The move's next step."""

    step: str


@dataclass(frozen=True)
class Abort:
    """Give up: what the rebalance ends as, and why."""

    ends_as: str
    reason: str


Effect = Cordon | ListAs | Switch | Canary
Act = Wait | Effect | Go | Abort


@dataclass(frozen=True)
class Around:
    """What the next act depends on besides the instance itself.

    `serving`: routers a canary can be sent through. `gates_behind`: gates that run an older plan.
    `has_labels`: engines have no role of their own.
    """

    now: datetime.datetime
    drain_timeout_s: float
    serving: tuple[str, ...] = ()
    gates_behind: tuple[str, ...] = ()
    has_labels: bool = False


def next_act(
    moves: Sequence[RoleMove], looks: Sequence[Look], around: Around
) -> list[tuple[RoleMove, Act]]:
    """One effect or an Abort of one of them, or what all wait for, or a step that all go to.

    Members of a group go to a step together. One that has to wait keeps the others from being
    switched, and from nothing that takes work away.
    """
    settles = any(look.requests for look in looks) and all(
        overdue(move, around.now, around.drain_timeout_s) and look.engine.role == move.to_role
        for move, look in zip(moves, looks, strict=True)
    )
    acts: list[tuple[RoleMove, Act]] = []
    for move, look in zip(moves, looks, strict=True):
        if move.step == "restore":
            acts.append((move, _restore(move, look, around, settles=settles)))
        else:
            acts.append((move, _advance(move, look, around)))
    ranks = _RESTORING if moves[0].step == "restore" else _ADVANCING
    first = min((act for _, act in acts), key=lambda act: ranks.index(_kind(act)))
    if isinstance(first, Go):
        return acts
    if isinstance(first, Wait) or _kind(first) == "back":
        waiting = (Wait, Go)
        return [(move, act) for move, act in acts if isinstance(act, waiting)]
    return [next((move, act) for move, act in acts if act is first)]


_BACK = Go("drain")
"""From `switch`: work came after all. Whoever is ready to go on goes back with it."""
_ADVANCING = ("Abort", "Cordon", "ListAs", "back", "Wait", "Switch", "Canary", "Go")
_RESTORING = ("Abort", "Cordon", "Switch", "Wait", "ListAs", "Go")
"""What comes first of the members' acts. Restored, a group serves again when all have the role."""


def _kind(act: Act) -> str:
    return "back" if act == _BACK else type(act).__name__


def _advance(move: RoleMove, look: Look, around: Around) -> Act:
    if move.step == "verify":
        return _verify(move, look, around)
    to_role = role_of(move.to_role)
    if move.step == "uncordon":
        return _list_everywhere(move, look, to_role, around) or Go("done")
    if move.step == "switch" and look.engine.role == to_role:
        return Go("verify")
    # Only work left is a reason: a worker that was away for long may find the instance idle.
    if look.requests and overdue(move, around.now, around.drain_timeout_s):
        return Abort(
            "failed",
            f"{move.instance} did not drain within {around.drain_timeout_s:g} s: "
            f"{_requests(look.requests)} left",
        )
    for url, listed in look.at.items():
        if not _is_out(listed):
            return Cordon(url)
    if move.step == "cordon":
        return Go("drain")
    if look.requests:
        if move.step == "switch":
            return _BACK
        return Wait(f"{move.instance} still has {_requests(look.requests)}.", look.requests)
    if move.step == "switch":
        return Go("verify") if around.has_labels else Switch(to_role)
    if move.idle_since is not None and around.now - move.idle_since >= IDLE_PROOF:
        return Go("switch")
    return Wait(f"{move.instance} is idle; a second look has to find the same.", 0, idle=True)


def _verify(move: RoleMove, look: Look, around: Around) -> Act:
    """At one router first: what turns out not to serve was open to one alone."""
    if not around.has_labels and look.engine.role != move.to_role:
        return Abort("failed", f"{move.instance} went back to {look.engine.role} after its switch")
    url = opens_first(look, around.serving)
    if url is None:
        return Abort("failed", f"no router lists {move.instance} any more")
    act = _list_at(move, look, url, role_of(move.to_role), around)
    if act is not None:
        return act
    if url in around.serving and not has_served(move):
        return Canary(url)
    if around.gates_behind:
        return Wait(f"Not every gate runs the plan yet: {', '.join(around.gates_behind)}.")
    return Go("uncordon")


def _restore(move: RoleMove, look: Look, around: Around, *, settles: bool) -> Act:
    """The old role again, at the engine and at every router that had it, at once where one can be
    reached. `settles`: it cannot be emptied in time, and keeps the new one."""
    role = role_of(move.from_role)
    is_back = look.engine.role in (None, role)
    if settles and not is_back:
        role = role_of(move.to_role)
    else:
        for url, listed in look.at.items():
            in_new_role = listed is not None and listed.role == move.to_role
            if not _is_out(listed) and (in_new_role or not is_back):
                return Cordon(url)
        if not is_back:
            if look.requests:
                return Wait(
                    f"{move.instance} still has {_requests(look.requests)}, and is "
                    f"{look.engine.role} until they are done.",
                    look.requests,
                )
            return Switch(role)
    for url, listed in look.at.items():
        # One that is listed right and not healthy is its router's concern, or its engine's.
        if listed is None or listed.status == "draining" or listed.role != role:
            return ListAs(url, role)
    return Go("restored" if role == move.from_role else "done")


def opens_first(look: Look, serving: tuple[str, ...]) -> str | None:
    """The router that lists the instance in its new role before all others: one that can prove it
    serves, if there is one."""
    return next((url for url in serving if url in look.at), next(iter(look.at), None))


def has_served(move: RoleMove) -> bool:
    """Has a request gone through the router that opened it first?"""
    return bool(move.evidence.get("canary", {}).get("ok"))


def proven(move: RoleMove, look: Look, around: Around) -> bool:
    """Would the move be opened everywhere, were it not for gates that are late?"""
    if move.step != "verify":
        return False
    return isinstance(_verify(move, look, replace(around, gates_behind=())), Go)


def overdue(move: RoleMove, now: datetime.datetime, drain_timeout_s: float) -> bool:
    """Has it been under way, not yet switched, for longer than a drain may take? What comes after
    the switch has as long for each step."""
    since = move.started_at if move.step in ("cordon", "drain", "switch") else move.step_since
    return (now - since).total_seconds() > drain_timeout_s


def _list_everywhere(move: RoleMove, look: Look, role: Role, around: Around) -> Act | None:
    acts = [_list_at(move, look, url, role, around) for url in look.at]
    found = [act for act in acts if act is not None]
    return min(found, key=lambda act: isinstance(act, Wait), default=None)


def _list_at(
    move: RoleMove, look: Look, url: str, role: Role, around: Around
) -> ListAs | Wait | Abort | None:
    listed = look.at[url]
    if listed is None or listed.role != role or listed.status == "draining":
        return ListAs(url, role)
    if listed.status == "ready":
        return None
    sentence = f"{url} lists {move.instance} as {role}, and it is {listed.status}"
    return (
        Abort("failed", sentence)
        if overdue(move, around.now, around.drain_timeout_s)
        else Wait(f"{sentence}.")
    )


def _is_out(listed: Listed | None) -> bool:
    return listed is None or listed.status == "draining"


def role_of(word: str) -> Role:
    """A role as it is stored."""
    found: Literal["prefill", "decode"] = "prefill" if word == "prefill" else "decode"
    return found


def _requests(n: int) -> str:
    return f"{n} request{'' if n == 1 else 's'}"
