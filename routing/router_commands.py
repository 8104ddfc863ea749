"""What people and automation may do about a router that is not as it should be, or a plan.

As in `commands`: each validates, writes in one transaction with one audit row, announces after the
commit. Nobody decides on what they have not seen (`if_version`), and a request that is sent twice
under one `key` is done once: the second is answered with the first result.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass

from django.db import transaction

from routing import commands, delivery, managed, repeats
from routing.approvals.asking import proposable
from routing.commands import Refused, Stale
from routing.models import Decision, Fleet, Hold, ManagedRouter, RouterState
from routing.windows import refusing


@dataclass(frozen=True)
class Done:
    """A router after a command. `repeated`: the key was known, and nothing was done again."""

    router: ManagedRouter
    repeated: bool = False


@proposable
def adopt(
    *,
    fleet: str,
    router_id: int,
    if_version: int,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
    key: str = "",
) -> Done:
    """What the router lists is what it should list from now on."""
    return _once(
        "router.adopt",
        fleet,
        router_id,
        if_version,
        key,
        now,
        lambda row: managed.adopt(row, actor=actor, via=via, reason=reason, key=key, now=now),
        actor,
        reason,
    )


@proposable
def override(
    *,
    fleet: str,
    router_id: int,
    if_version: int,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
    key: str = "",
) -> Done:
    """Have the router list again what it should: within floors and budget, step by step."""
    return _once(
        "router.override",
        fleet,
        router_id,
        if_version,
        key,
        now,
        lambda row: managed.begin_override(
            row, actor=actor, via=via, reason=reason, key=key, now=now
        ),
        actor,
        reason,
    )


def cancel(
    *, fleet: str, router_id: int, actor: str, via: str, reason: str, now: datetime.datetime
) -> ManagedRouter:
    """Stop what is being done to a router; what was done stays."""
    _reason(reason)
    with transaction.atomic():
        row = _row(fleet, router_id)
        _may(lambda: managed.cancel_operation(row, actor=actor, via=via, reason=reason, now=now))
    return row


@proposable
def set_on_drift(
    *,
    fleet: str,
    router_id: int,
    on_drift: str,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> ManagedRouter:
    """What is done about drift by itself: `show` it, or `override` it."""
    if on_drift not in managed.ON_DRIFT:
        raise Refused("on_drift", on_drift, f"must be one of {', '.join(managed.ON_DRIFT)}")
    _reason(reason)
    with transaction.atomic():
        row = _row(fleet, router_id)
        if row.on_drift != on_drift:
            refusing.allowed(fleet, "people", actor=actor, now=now)
            managed.set_on_drift(row, on_drift, actor=actor, via=via, reason=reason, now=now)
    return row


def _once(
    verb: str,
    fleet: str,
    router_id: int,
    if_version: int,
    key: str,
    now: datetime.datetime,
    act: Callable[[ManagedRouter], None],
    actor: str,
    reason: str,
) -> Done:
    _reason(reason)
    with transaction.atomic():
        row = _row(fleet, router_id)
        target = str(row)[:300]
        known = repeats.done(fleet, key, verb, target, now, actor=actor, reason=reason)
        if known is not None:
            return Done(row, repeated=True)
        refusing.allowed(fleet, "people", actor=actor, now=now)
        if row.version != if_version:
            raise Stale(if_version, row.version, of="router")
        _may(lambda: act(row))
    return Done(row)


def _row(fleet: str, router_id: int) -> ManagedRouter:
    row = managed.lock(fleet, router_id)
    if row is None:
        raise Refused("router", router_id, "no such router")
    return row


def _may(act: Callable[[], None]) -> None:
    try:
        act()
    except managed.NotNow as exc:
        raise Refused("router", None, str(exc)) from None


def _reason(reason: str) -> None:
    if not reason.strip():
        raise Refused("reason", reason, "must not be empty")
    if len(reason) > 500:
        raise Refused("reason", reason, "must have at most 500 characters")


@proposable
def adopt_gate(*, router: str, actor: str, via: str, reason: str, now: datetime.datetime) -> Hold:
    """Hold in the gate's whole cluster what a person set on the gate itself, and end it there.

    As long as it would have lasted on the gate.
    """
    _reason(reason)
    with transaction.atomic():
        state = _overridden(router)
        found = state.override
        until = datetime.datetime.fromtimestamp(found["until_s"], datetime.UTC)
        hold = commands.place_hold(
            fleet=state.fleet_id,
            cluster=state.cluster,
            mode=found["mode"],
            threshold_tokens=found["threshold_tokens"],
            owner=actor,
            expires_at=min(until, now + commands.MAX_HOLD),
            actor=actor,
            via=via,
            reason=f"As set on {router} by {found['by']}: {reason}"[:500],
            now=now,
        )
        delivery.release_override(
            state, actor=actor, via=via, reason=f"held in {state.cluster} instead"
        )
    return hold


def release_gate(
    *, router: str, actor: str, via: str, reason: str, now: datetime.datetime
) -> RouterState:
    """Have a gate end what a person set on it: it is told with the next contact."""
    _reason(reason)
    with transaction.atomic():
        state = _overridden(router)
        delivery.release_override(state, actor=actor, via=via, reason=reason)
    return state


def _overridden(router: str) -> RouterState:
    state = RouterState.objects.select_for_update().filter(router=router).first()
    if state is None or state.override is None:
        raise Refused("router", router, "is not overridden")
    return state


@proposable
def roll_back(
    *,
    decision_id: int,
    owner: str,
    expires_at: datetime.datetime,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> list[Hold]:
    """Hold each PD cluster at the mode and t of an earlier plan: all of them, or none.

    Roles are not moved back; the next tick adopts the holds under a new version.
    """
    commands.text("reason", reason, commands.MAX_ROLL_BACK_REASON)
    decision = Decision.objects.filter(pk=decision_id).first()
    if decision is None:
        raise Refused("decision", decision_id, "no such decision")
    if decision.version is None:
        raise Refused("decision", decision_id, "was advice, never pushed: no gate ran this plan")
    target = f"plan {decision.epoch}.{decision.version}"
    with transaction.atomic():
        # One after the other, and before the policy's row, as everywhere.
        Fleet.objects.select_for_update(no_key=True).get(pk=decision.fleet_id)
        return [
            commands.place_hold(
                fleet=decision.fleet_id,
                cluster=cluster,
                mode=plan["mode"],
                threshold_tokens=plan["threshold_tokens"],
                owner=owner,
                expires_at=expires_at,
                reason=f"Roll back to {target}: {reason}",
                now=now,
                goes_back=True,
                actor=actor,
                via=via,
            )
            for cluster, plan in decision.plan["clusters"].items()
        ]
