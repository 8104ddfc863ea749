"""What has to move for a cluster to have the roles that a plan wants. Pure: no clock, no I/O.

refused     what the scenario alone refuses: a pinned cluster, a floor, the budget
unable      what the routers refuse: one that cannot change roles, or cannot be read back
plan        which instances are to move, from a fresh look at all of them, and what that means
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from routing.adapters.engines import Engine
from routing.adapters.surface import Capabilities, Listed
from routing.core.scenario.document import Cluster
from routing.models import Rebalance
from routing.rebalance import PlannedMove
from routing.rebalance_looks import Look, Routers
from routing.rebalance_steps import Abort, Wait

_ROLES = ("prefill", "decode")
_MOVABLE = ("live", "replace")


@dataclass(frozen=True)
class Done:
    """The cluster has the target's roles; `but` goes on with who could not be asked."""

    but: str = ""


@dataclass(frozen=True)
class Planned:
    """Units in the order they move, and every instance as it was seen when they were chosen."""

    units: list[list[PlannedMove]]
    looks: dict[str, Look]

    @property
    def moves(self) -> list[PlannedMove]:
        return [move for unit in self.units for move in unit]


@dataclass(frozen=True)
class _Unit:
    """Instances that move together; `name` is empty for one alone."""

    name: str
    role: str
    ids: tuple[str, ...]
    requests: int


def refused(wanted: Rebalance, cluster: Cluster | None) -> Abort | None:
    """What the scenario alone refuses: a pinned cluster, a floor, the budget."""
    name = wanted.cluster
    if cluster is None or cluster.kind != "pd":
        return Abort("failed", f"the scenario has no PD cluster {name}")
    if not cluster.routers:
        return Abort("failed", f"{name} has no routers in the scenario: nothing to move with")
    if cluster.follows_planner:
        return Abort("failed", f"the planner of a router of {name} decides its roles, nobody else")
    return beyond(cluster, (wanted.to_n_prefill, wanted.to_n_decode))


def beyond(cluster: Cluster, to: tuple[int, int]) -> Abort | None:
    """Why a PD cluster must not have so many prefill and decode instances, whoever wants it."""
    name = cluster.name
    for fact in ("pinned", "drained"):
        if getattr(cluster, fact):
            return Abort("cancelled", f"{name} is {fact} in the scenario: its roles stay")
    if sum(to) > cluster.instances:
        return Abort(
            "failed", f"{to[0]} + {to[1]} is more than the {cluster.instances} instances of {name}"
        )
    for role, count, floor in zip(
        _ROLES, to, (cluster.min_prefill, cluster.min_decode), strict=True
    ):
        if count < floor:
            return Abort("failed", f"{count} {role} is below min_{role} = {floor} of {name}")
    return None


def unable(routers: Routers) -> Abort | None:
    """A router of the cluster whose roles nobody can change, or cannot see changed, refuses all:
    it would go on with the old roles. In its own words."""
    for read in routers.reads:
        if read.can is None:
            continue
        who = f"{read.site.kind} {routers.named(read.site.url)}"
        if not read.can.is_readable and read.site.url not in routers.serving():
            return Abort(
                "failed",
                f"{who} does not show what it lists, and takes no canary that would prove it"
                f"{_why(read.can)}",
            )
        if read.can.roles not in _MOVABLE:
            how = "takes roles only by an object that others apply"
            if read.can.roles == "none":
                how = "takes no change of roles"
            return Abort("failed", f"{who} {how}{_why(read.can)}")
    return None


def plan(
    wanted: Rebalance,
    routers: Routers,
    engines: Mapping[str, Engine],
    silent: Mapping[str, str],
) -> Planned | Wait | Abort | Done:
    """The moves from what is there to the target, the one that begins first.

    `engines` by instance. What an engine says is its role; an instance that a router lists under
    another one is listed right first. `silent` are instances whose engine cannot be asked, and why:
    they stay what they are listed as, and nothing rests on them. A target may count them or leave
    them out.
    """
    wrong = _disagreement(wanted, routers) or _mixed(routers, engines)
    if wrong is not None:
        return Abort("failed", wrong)
    listings = routers.listings()
    looks = {id: _look(id, routers, listings, engine) for id, engine in engines.items()}
    target = {"prefill": wanted.to_n_prefill, "decode": wanted.to_n_decode}
    listed, n_target = len(looks) + len(silent), sum(target.values())
    if n_target not in (listed, len(looks)):
        return Abort(
            "failed",
            f"the routers of {wanted.cluster} list {listed} instances, the target is "
            f"{target['prefill']} + {target['decode']}{_but(silent)}",
        )
    if not looks:
        return Wait(f"Nobody can say which roles there are{_but(silent)}.")
    for id, look in sorted(looks.items()):
        if look.role is None:
            return Abort("failed", f"no router lists {id} as prefill or decode")
        if any(at is not None and at.status == "draining" for at in look.at.values()):
            return Wait(f"{id} is drained by somebody else; one instance at a time is out.")
    stay = {"prefill": 0, "decode": 0}
    if n_target == listed:
        for id in silent:
            role = next((at[id].role for at in listings.values() if id in at), None)
            if role is not None:
                stay[role] += 1
    return _chosen(wanted, routers, looks, target, stay, silent)


def _chosen(
    wanted: Rebalance,
    routers: Routers,
    looks: dict[str, Look],
    target: dict[str, int],
    stay: dict[str, int],
    silent: Mapping[str, str],
) -> Planned | Wait | Abort | Done:
    """What may move now. `stay` are instances of a role that nobody reaches: they count, and hold
    no floor."""
    cluster = routers.cluster
    units: list[list[PlannedMove]] = []
    by_role: dict[str, list[_Unit]] = {"prefill": [], "decode": []}
    mislisted = {
        id
        for id, look in looks.items()
        if any(at is not None and at.role != look.role for at in look.at.values())
    }
    for id in sorted(mislisted):
        units.append([_planned(routers, looks[id], str(looks[id].role))])
    for unit in _units(routers, looks):
        if not mislisted & set(unit.ids):
            by_role[unit.role].append(unit)
    enough, kept = True, ""
    floors = {"prefill": cluster.min_prefill, "decode": cluster.min_decode}
    for role, to_role in (("prefill", "decode"), ("decode", "prefill")):
        have = sum(look.role == role for look in looks.values())
        surplus = max(have + stay[role] - target[role], 0)
        if surplus and surplus not in _sums(_sizes(routers, role, looks, silent)):
            return Abort(
                "failed",
                f"no whole groups of {cluster.name} leave {target[role]} {role} of "
                f"{have + stay[role]}{_but(silent)}",
            )
        spare = max(have - floors[role], 0)
        free = []
        for unit in by_role[role]:
            last_at = _last_at(routers, unit)
            if last_at is None:
                free.append(unit)
            elif surplus:
                kept = kept or f"; {', '.join(unit.ids)} is the last ready {role} of {last_at}"
        moved = _least_loaded(free, min(surplus, spare))
        enough = enough and sum(len(unit.ids) for unit in moved) == surplus
        for unit in moved:
            units.append([_planned(routers, looks[id], to_role, unit.name) for id in unit.ids])
    if units:
        return Planned(units, looks)
    if enough:
        return Done(_but(silent))
    return Wait(f"No instance can be spared{kept}{_but(silent)}.")


def _units(routers: Routers, looks: Mapping[str, Look]) -> list[_Unit]:
    """Groups whose members are all seen, and everybody who is in none."""
    found, grouped = [], set()
    for name, ids in _groups(routers).items():
        grouped |= set(ids)
        if all(id in looks for id in ids):
            role = str(looks[ids[0]].role)
            found.append(_Unit(name, role, ids, sum(looks[id].requests for id in ids)))
    for id, look in sorted(looks.items()):
        if id not in grouped:
            found.append(_Unit("", str(look.role), (id,), look.requests))
    return found


def _groups(routers: Routers) -> dict[str, tuple[str, ...]]:
    own = f"{routers.fleet}/{routers.cluster.name}/"
    return {
        name: tuple(f"{own}{member}" for member in members)
        for name, members in routers.cluster.groups.items()
    }


def _sizes(
    routers: Routers, role: str, looks: Mapping[str, Look], silent: Mapping[str, str]
) -> list[int]:
    """How many instances each unit of the role has, be it seen now or not."""
    groups, grouped, sizes = _groups(routers), set(), []
    for ids in groups.values():
        grouped |= set(ids)
        roles = {looks[id].role for id in ids if id in looks}
        if role in roles or not roles:
            sizes.append(len(ids))
    alone = [id for id, look in looks.items() if look.role == role and id not in grouped]
    return sizes + [1] * (len(alone) + sum(id not in grouped for id in silent))


def _sums(sizes: Sequence[int]) -> set[int]:
    sums = {0}
    for size in sizes:
        sums |= {each + size for each in sums}
    return sums


def _last_at(routers: Routers, unit: _Unit) -> str | None:
    """A router that would have no ready instance of the role left."""
    for url, listed in routers.listings().items():
        ready = {id for id, at in listed.items() if (at.role, at.status) == (unit.role, "ready")}
        if ready and ready <= set(unit.ids):
            return routers.named(url)
    return None


def _least_loaded(units: Sequence[_Unit], n: int) -> list[_Unit]:
    """Units of at most `n` instances together: of those that have most instances the ones with the
    fewest requests, least loaded first."""
    best: dict[int, tuple[int, tuple[_Unit, ...]]] = {0: (0, ())}
    for unit in sorted(units, key=lambda unit: (unit.requests, unit.ids)):
        for size in sorted(best, reverse=True):
            load, chosen = best[size]
            grown = size + len(unit.ids)
            if grown <= n and (grown not in best or load + unit.requests < best[grown][0]):
                best[grown] = (load + unit.requests, (*chosen, unit))
    return sorted(best[max(best)][1], key=lambda unit: (unit.requests, unit.ids))


def _look(
    id: str, routers: Routers, listings: Mapping[str, Mapping[str, Listed]], engine: Engine
) -> Look:
    at: dict[str, Listed | None] = {
        url: listed[id] for url, listed in listings.items() if id in listed
    }
    return Look(id, routers.urls[id], at, engine)


def _planned(routers: Routers, look: Look, to_role: str, unit: str = "") -> PlannedMove:
    return PlannedMove(
        instance=look.id,
        url=look.url,
        from_role="decode" if to_role == "prefill" else "prefill",
        to_role=to_role,
        unit=unit,
        routers=shown(routers, look.at),
    )


def shown(routers: Routers, at: Mapping[str, Listed | None]) -> dict[str, dict[str, Any]]:
    """How routers, by URL, show an instance, as it is stored; `out` where it is listed no more."""
    found = {}
    for url, listed in at.items():
        name = {"name": routers.read_of(url).site.name}
        if listed is None:
            found[url] = {**name, "role": None, "status": "out", "requests": None}
        else:
            facts = {"role": listed.role, "status": listed.status, "requests": listed.requests}
            found[url] = {**name, **facts}
    return found


def _disagreement(wanted: Rebalance, routers: Routers) -> str | None:
    """Why these routers cannot be of one cluster, if so. Stacks list all of it; others may list a
    part."""
    listings, cluster = routers.listings(), routers.cluster
    ids = {id for listed in listings.values() for id in listed}
    where = ", ".join(listings)
    if not ids:
        return f"{where} lists no instance of {wanted.fleet_id}/{wanted.cluster}"
    if len(ids) > cluster.instances:
        return f"{where} lists {len(ids)} instances, the scenario has {cluster.instances}"
    first_url, *others = routers.stacks() or [""]
    for url in others:
        for id in sorted(listings[first_url].keys() ^ listings[url].keys()):
            has, lacks = (first_url, url) if id in listings[first_url] else (url, first_url)
            return f"{has} lists {id} and {lacks} does not"
    return None


def _mixed(routers: Routers, engines: Mapping[str, Engine]) -> str | None:
    """A group whose members have different roles, which no move of it can mend."""
    for name, ids in _groups(routers).items():
        roles = {id: engines[id].role for id in ids if id in engines}
        if len(set(roles.values())) > 1:
            said = ", ".join(f"{id} {role}" for id, role in roles.items())
            return f"group {name} of {routers.cluster.name} has two roles: {said}"
    return None


def _why(can: Capabilities) -> str:
    return f": {can.why}" if can.why else ""


def _but(silent: Mapping[str, str]) -> str:
    if not silent:
        return ""
    return "; not reached: " + ", ".join(f"{id} ({why})" for id, why in sorted(silent.items()))
