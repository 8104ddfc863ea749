"""What a rebalance does next, from what stacks and engines show now. Pure: no clock, no I/O.

    preflight   may the roles of this cluster become the target's at all?
    plan        which instances are to move, from a fresh look at all of them
    advance     the next act for the instance that moves
    restore     the next act for an instance whose move was given up

Each answers from what is there, not from what was done before, so a worker that takes over after a
crash comes to the same act as the one that died.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from routing.core.scenario.document import Cluster
from routing.models import Rebalance, RoleMove
from routing.workers import Load, Worker

LEASE_S = 30.0
"""A drain is renewed each second; a console that is away for this long frees the capacity."""
IDLE_PROOF = datetime.timedelta(seconds=1)
DRAIN: dict[str, Any] = {"status": "draining", "lease_s": LEASE_S}
READY: dict[str, Any] = {"status": "ready"}
HELD = ("cordon", "drain", "switch", "verify")
"""Steps in which an instance has to stay drained."""


@dataclass(frozen=True)
class Look:
    """One instance as every stack (by control URL) and its engine show it at one moment."""

    workers: dict[str, Worker]
    load: Load

    @property
    def requests(self) -> int:
        """What is still on it: each stack knows of its own requests, the engine of all."""
        return max(sum(w.requests for w in self.workers.values()), self.load.requests)

    @property
    def cordoned(self) -> bool:
        return all(worker.status == "draining" for worker in self.workers.values())


@dataclass(frozen=True)
class Wait:
    """Nothing to do before something else happens: what, in a sentence that holds no time."""

    sentence: str
    requests: int | None = None
    idle: bool = False


@dataclass(frozen=True)
class Put:
    """One change of the instance at one stack."""

    control_url: str
    change: dict[str, Any]


@dataclass(frozen=True)
class Switch:
    """Ask the engine for its new role."""

    role: str


@dataclass(frozen=True)
class Go:
    """The move's next step."""

    step: str


@dataclass(frozen=True)
class Abort:
    """Give up: what the rebalance ends as, and why."""

    ends_as: str
    reason: str


@dataclass(frozen=True)
class Done:
    """The cluster has the target's roles; `but` goes on with who could not be asked."""

    but: str = ""


@dataclass(frozen=True)
class PlannedMove:
    instance: str
    url: str
    from_role: str
    to_role: str


Act = Wait | Put | Switch | Go | Abort


def preflight(wanted: Rebalance, cluster: Cluster | None) -> Abort | None:
    """What the scenario alone refuses: a pinned cluster, a floor, the budget."""
    name, to = wanted.cluster, (wanted.to_n_prefill, wanted.to_n_decode)
    if cluster is None or cluster.kind != "pd":
        return Abort("failed", f"the scenario has no PD cluster {name}")
    for fact in ("pinned", "drained"):
        if getattr(cluster, fact):
            return Abort("cancelled", f"{name} is {fact} in the scenario: its roles stay")
    if not cluster.control_urls:
        return Abort("failed", f"{name} has no control_urls in the scenario: nothing to move with")
    if sum(to) > cluster.instances:
        return Abort(
            "failed", f"{to[0]} + {to[1]} is more than the {cluster.instances} instances of {name}"
        )
    for role, count, floor in zip(
        ("prefill", "decode"), to, (cluster.min_prefill, cluster.min_decode), strict=True
    ):
        if count < floor:
            return Abort("failed", f"{count} {role} is below min_{role} = {floor} of {name}")
    return None


def plan(
    wanted: Rebalance,
    cluster: Cluster,
    listings: dict[str, dict[str, Worker]],
    loads: dict[str, Load],
    silent: dict[str, str],
) -> list[PlannedMove] | Wait | Abort | Done:
    """The moves from what is there to the target, the one that begins first.

    `listings` by control URL and instance, `loads` by instance. What an engine says is its role;
    an instance that a stack lists under another one is listed right first. `silent` are instances
    whose engine cannot be asked, and why: they stay what they are listed as, and nothing rests on
    them. A target may count them or leave them out.
    """
    wrong = _disagreement(wanted, cluster, listings)
    if wrong is not None:
        return Abort("failed", wrong)
    looks = {
        id: Look({url: workers[id] for url, workers in listings.items()}, load)
        for id, load in loads.items()
    }
    target = {"prefill": wanted.to_n_prefill, "decode": wanted.to_n_decode}
    listed, n_target = len(looks) + len(silent), sum(target.values())
    if n_target not in (listed, len(looks)):
        return Abort(
            "failed",
            f"the stacks of {wanted.cluster} list {listed} instances, the target is "
            f"{target['prefill']} + {target['decode']}{_but(silent)}",
        )
    if not looks:
        return Wait(f"Nobody can say which roles there are{_but(silent)}.")
    for id, look in sorted(looks.items()):
        if not all(worker.status == "ready" for worker in look.workers.values()):
            return Wait(f"{id} is drained by somebody else; one instance at a time is out.")
    stay = {"prefill": 0, "decode": 0}
    if n_target == listed:
        first = next(iter(listings.values()))
        for id in silent:
            stay[first[id].worker_type] += 1
    moves, enough = _moves(cluster, looks, target, stay)
    if moves:
        return moves
    return Done(_but(silent)) if enough else Wait(f"No instance can be spared{_but(silent)}.")


def _moves(
    cluster: Cluster, looks: dict[str, Look], target: dict[str, int], stay: dict[str, int]
) -> tuple[list[PlannedMove], bool]:
    """What may move now, and whether that is enough for the target.

    `stay` are instances of a role that nobody reaches: they count, and hold no floor.
    """
    moves, by_role = [], {"prefill": [], "decode": []}
    for id, look in sorted(looks.items()):
        role = look.load.disagg_mode
        if any(worker.worker_type != role for worker in look.workers.values()):
            moves.append(_planned(id, look, role))
        else:
            by_role[role].append((look.requests, id))
    enough = True
    floors = {"prefill": cluster.min_prefill, "decode": cluster.min_decode}
    for role, to_role in (("prefill", "decode"), ("decode", "prefill")):
        have = sum(look.load.disagg_mode == role for look in looks.values())
        surplus = max(have + stay[role] - target[role], 0)
        spare = max(have - floors[role], 0)
        enough = enough and surplus <= spare
        for _, id in sorted(by_role[role])[: min(surplus, spare)]:
            moves.append(_planned(id, looks[id], to_role))
    return moves, enough


def advance(
    move: RoleMove,
    look: Look,
    *,
    now: datetime.datetime,
    drain_timeout_s: float,
    gates_behind: Sequence[str],
) -> Act:
    """The next act of a move under way. `gates_behind`: gates that run an older plan."""
    if move.step == "verify":
        return _verify(move, look, gates_behind)
    if move.step == "uncordon":
        return _list_ready(look, move.to_role) or Go("done")
    if move.step == "switch" and look.load.disagg_mode == move.to_role:
        return Go("verify")
    # Only work left is a reason: a worker that was away for long may find the instance idle.
    if look.requests and overdue(move, now, drain_timeout_s):
        return Abort(
            "failed",
            f"{move.instance} did not drain within {drain_timeout_s:g} s: "
            f"{_requests(look.requests)} left",
        )
    for url, worker in look.workers.items():
        if worker.status != "draining":
            return Put(url, DRAIN)
    if move.step == "cordon":
        return Go("drain")
    if look.requests:
        if move.step == "switch":
            return Go("drain")
        return Wait(f"{move.instance} still has {_requests(look.requests)}.", look.requests)
    if move.step == "switch":
        return Switch(move.to_role)
    if move.idle_since is not None and now - move.idle_since >= IDLE_PROOF:
        return Go("switch")
    return Wait(f"{move.instance} is idle; a second look has to find the same.", 0, idle=True)


def overdue(move: RoleMove, now: datetime.datetime, drain_timeout_s: float) -> bool:
    """Has the move been under way, not yet switched, for longer than a drain may take?"""
    return (now - move.started_at).total_seconds() > drain_timeout_s


def proven(move: RoleMove, look: Look) -> bool:
    """Has the engine the new role, and does every stack list it so?"""
    roles = {look.load.disagg_mode, *(worker.worker_type for worker in look.workers.values())}
    return roles == {move.to_role}


def restore(move: RoleMove, look: Look) -> Act:
    """The next act of a move given up: the old role where that takes nothing from anybody."""
    role: str = look.load.disagg_mode
    if role != move.from_role and look.cordoned and not look.requests:
        return Switch(move.from_role)
    return _list_ready(look, role) or Go("restored" if role == move.from_role else "done")


def _verify(move: RoleMove, look: Look, gates_behind: Sequence[str]) -> Act:
    if look.load.disagg_mode != move.to_role:
        return Abort(
            "failed", f"{move.instance} went back to {look.load.disagg_mode} after its switch"
        )
    listed = _list_as(look, move.to_role)
    if listed is not None:
        return listed
    if gates_behind:
        return Wait(f"Not every gate runs the plan yet: {', '.join(gates_behind)}.")
    return Go("uncordon")


def _list_as(look: Look, role: str) -> Put | None:
    """A stack that lists another role is told, which it takes of a draining worker only."""
    for url, worker in look.workers.items():
        if worker.worker_type != role:
            return Put(url, {"worker_type": role} if worker.status == "draining" else DRAIN)
    return None


def _list_ready(look: Look, role: str) -> Put | None:
    listed = _list_as(look, role)
    if listed is not None:
        return listed
    for url, worker in look.workers.items():
        if worker.status != "ready":
            return Put(url, READY)
    return None


def _planned(id: str, look: Look, to_role: str) -> PlannedMove:
    from_role = "decode" if to_role == "prefill" else "prefill"
    return PlannedMove(id, next(iter(look.workers.values())).url, from_role, to_role)


def _disagreement(
    wanted: Rebalance, cluster: Cluster, listings: dict[str, dict[str, Worker]]
) -> str | None:
    """Why these stacks cannot be of one cluster, if so."""
    (first_url, first), *others = listings.items()
    if not first:
        return f"{first_url} lists no instance of {wanted.fleet_id}/{wanted.cluster}"
    if len(first) > cluster.instances:
        return f"{first_url} lists {len(first)} instances, the scenario has {cluster.instances}"
    for url, workers in others:
        for id in sorted(first.keys() ^ workers.keys()):
            has, lacks = (first_url, url) if id in first else (url, first_url)
            return f"{has} lists {id} and {lacks} does not"
        for id in sorted(first):
            if first[id].url.rstrip("/") != workers[id].url.rstrip("/"):
                return f"{first_url} lists {id} at {first[id].url} and {url} at {workers[id].url}"
    return None


def _but(silent: dict[str, str]) -> str:
    if not silent:
        return ""
    return "; not reached: " + ", ".join(f"{id} ({why})" for id, why in sorted(silent.items()))


def _requests(n: int) -> str:
    return f"{n} request{'' if n == 1 else 's'}"
