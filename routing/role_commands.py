"""What people may do about the roles of a PD cluster: ask for others, give a move up.

Roles that a person asks for are a hold of roles: the next tick adopts a plan with them and opens
the move of instances, t stays the loop's, and until the hold ends nobody moves them back. A move
that does not get there ends its hold: what cannot be had is not asked for again.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from routing import audit, commands, fleets, rebalance, repeats
from routing.approvals.asking import proposable
from routing.commands import Outdated, Refused
from routing.core.jsonable import from_jsonable
from routing.core.types import Observation
from routing.models import Action, Decision, Fleet, Hold, Policy, Rebalance, Tick
from routing.rebalance_plan import beyond
from routing.windows import in_force, refusing

Roles = tuple[int, int]
"""Instances that prefill and that decode."""
SPENT = ("failed", "expired", "cancelled")
"""Ends of a move whose hold ends with it."""


class RolesMoved(Outdated):
    """The roles are not those that the person decided on; `current` is what they are now."""

    def __init__(self, expected: Roles, current: Roles) -> None:
        super().__init__(
            "expected_roles",
            list(expected),
            f"the cluster has {words(current)} now; look at it again",
        )
        self.current = current


@dataclass(frozen=True)
class Asked:
    """Roles that were asked for. `repeated`: the key was known, and nothing was done again."""

    hold: Hold
    repeated: bool = False


def words(roles: Roles) -> str:
    return f"{roles[0]} prefill and {roles[1]} decode"


@dataclass(frozen=True)
class Seen:
    """What is known of a fleet's roles: the newest tick, and the plan in force."""

    tick: Tick | None
    running: Decision | None

    @classmethod
    def of(cls, fleet: Fleet) -> Seen:
        return cls(fleets.newest_tick(fleet), fleets.newest_adopted(fleet))

    @property
    def observation(self) -> Observation | None:
        """What the tick saw; nothing before the first, or from another release."""
        try:
            return None if self.tick is None else from_jsonable(Observation, self.tick.observed)
        except (KeyError, TypeError):
            return None

    def roles(self, cluster: str) -> Roles | None:
        """What the tick saw of the cluster, else what the plan asks of it."""
        seen = {} if self.tick is None else self.tick.observed.get("pd", {}).get(cluster, {})
        if seen.get("n_prefill") and seen.get("n_decode"):
            return int(seen["n_prefill"]), int(seen["n_decode"])
        planned = {} if self.running is None else self.running.plan["clusters"].get(cluster, {})
        return (planned["n_prefill"], planned["n_decode"]) if planned else None


def why_not(
    policy: Policy, cluster: str, to: Roles, seen: Seen, now: datetime.datetime, *, actor: str
) -> list[tuple[str, str]]:
    """Every reason that forbids the actor the roles now: the field meant, and words."""
    name, found = cluster, fleets.scenario_of(policy.fleet).cluster(cluster)
    if found is None or found.kind != "pd":
        return [("cluster", f"the scenario has no PD cluster {name}")]
    said: list[tuple[str, str]] = []
    if policy.mode != "active":
        said.append(("fleet", f"the fleet is {policy.mode}: no plan is pushed that could ask it"))
    if not found.routers:
        said.append(("cluster", f"{name} has no routers in the scenario: nothing to move with"))
    if found.follows_planner:
        said.append(("cluster", f"the planner of a router of {name} decides its roles"))
    if (limit := beyond(found, to)) is not None:
        said.append(("n_prefill", limit.reason))
    frozen = in_force.forbids(policy.fleet_id, ("roles", "people"), actor=actor, now=now)
    if frozen is not None:
        said.append(("fleet", f"the fleet is {frozen.text}"))
    said += [("cluster", text) for text in _in_hand(policy, cluster, actor, now)]
    present = seen.roles(cluster)
    if present is None or seen.running is None:
        said.append(("cluster", f"{name} has no plan yet: nothing says which roles it has"))
    elif to == present:
        said.append(("n_prefill", f"{name} has {words(to)} already"))
    elif sum(to) != sum(present):
        said.append(("n_prefill", f"{sum(to)} instances are asked for, {name} has {sum(present)}"))
    return said


def _in_hand(policy: Policy, cluster: str, actor: str, now: datetime.datetime) -> list[str]:
    """Who else has the cluster's roles in hand. The actor's own hold gives way to another."""
    said = []
    moving = Rebalance.objects.filter(
        fleet=policy.fleet, cluster=cluster, state__in=rebalance.ACTIVE
    ).first()
    if moving is not None:
        said.append(
            f"instances of {cluster} are being moved to {moving.to_n_prefill} prefill and "
            f"{moving.to_n_decode} decode, asked for by {moving.requested_by}; cancel that first"
        )
    said += [
        f"{hold.owner} holds the roles of {cluster} until {hold.expires_at:%F %H:%M} UTC; "
        "release that first"
        for hold in held(policy.fleet, cluster, now)
        if hold.owner != actor
    ]
    return said


def held(fleet: Fleet, cluster: str, now: datetime.datetime) -> list[Hold]:
    """Holds of the cluster's roles in force: one at most."""
    holds = commands.open_holds(fleet, now)
    return [hold for hold in holds if hold.n_prefill is not None and hold.cluster == cluster]


@proposable
def move_roles(
    *,
    fleet: str,
    cluster: str,
    to: Roles,
    expected: Roles,
    expires_at: datetime.datetime,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
    key: str = "",
) -> Asked:
    """Ask for other roles of one cluster, and hold them until `expires_at`. It ends early where the
    move of instances does not get there.

    `expected` are the roles its reader saw. Raises RolesMoved where they are others by now, Refused
    where they cannot be had.
    """
    commands.text("reason", reason, 500)
    commands.check_expiry(expires_at, now)
    target = f"roles of {cluster}"[:300]
    asked = {"to": list(to), "expected": list(expected), "expires_at_s": expires_at.timestamp()}
    with transaction.atomic():
        # The fleet's row before its policy's, and after a tick that is under way.
        row = Fleet.objects.select_for_update(no_key=True).filter(pk=fleet).first()
        if row is None:
            raise Refused("fleet", fleet, "no such fleet")
        known = repeats.done(
            fleet, key, "roles.move", target, now, actor=actor, reason=reason, asked=asked
        )
        if known is not None:
            return Asked(_placed(known), repeated=True)
        policy = commands.locked_policy(fleet)
        refusing.allowed(fleet, "roles", "people", actor=actor, now=now)
        seen = Seen.of(row)
        present = seen.roles(cluster)
        if present is not None and present != expected:
            raise RolesMoved(expected, present)
        for field, text in why_not(policy, cluster, to, seen, now, actor=actor):
            raise Refused(field, to[0] if field == "n_prefill" else cluster, text)
        for earlier in held(row, cluster, now):
            commands.release_hold(
                hold_id=earlier.pk,
                actor=actor,
                via=via,
                reason=f"asked for {words(to)} instead",
                now=now,
            )
        hold = Hold(
            fleet=row,
            cluster=cluster,
            mode="",
            n_prefill=to[0],
            n_decode=to[1],
            owner=actor,
            reason=reason,
            created_at=now,
            expires_at=expires_at,
        )
        commands.write_hold(hold, policy, now)
        audit.record(
            actor=actor,
            via=via,
            verb="roles.move",
            fleet=fleet,
            target=target,
            before={"n_prefill": expected[0], "n_decode": expected[1]},
            after={
                "n_prefill": to[0],
                "n_decode": to[1],
                "expires_at_s": expires_at.timestamp(),
                "hold": hold.pk,
                **({"key": key, "asked": asked} if key else {}),
            },
            reason=reason,
            measured=commands.lasts(now, expires_at),
        )
    return Asked(hold)


def _placed(known: Action) -> Hold:
    done: Any = known.after
    return Hold.objects.get(pk=done["hold"])


def end_spent(*, fleet: Fleet, now: datetime.datetime) -> list[Hold]:
    """End the holds whose move of roles came to nothing: the roles are the loop's again."""
    spent = Rebalance.objects.filter(
        fleet=fleet, hold__released_at=None, hold__isnull=False, state__in=SPENT
    )
    ended = []
    for row in spent.select_related("hold__fleet__policy").order_by("id"):
        hold = row.hold
        if hold is not None and commands.end_hold(
            hold, "hold.end", f"its move of roles is {row.state}: {row.reason}", now=now
        ):
            ended.append(hold)
    return ended


def cancel_rebalance(
    *,
    fleet: str,
    rebalance_id: int,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> Rebalance:
    """Give up a move of roles: the instance under way gets its old role back, the others stay.

    A person's own hold of the roles ends with the move.
    """
    if len(reason) > 500:
        raise Refused("reason", reason, "must have at most 500 characters")
    found = Rebalance.objects.filter(fleet_id=fleet, pk=rebalance_id).first()
    if found is None:
        raise Refused("rebalance", rebalance_id, "no such rebalance")
    try:
        return rebalance.cancel(found, actor=actor, via=via, reason=reason, now=now)
    except rebalance.NotOpen as exc:
        raise Refused("rebalance", rebalance_id, str(exc)) from None
