"""Forget a fleet and all that is its own: what it was told, what it decided, how it fared.

The audit stays, and so do readings until their retention. Gates keep the plan they run until it
expires, and then serve everything locally.
"""

from __future__ import annotations

import datetime
from typing import Final

from django.db import connection, transaction

from routing import audit, token_commands
from routing.commands import Refused
from routing.models import Decision, Fleet, Rebalance, Tick
from telemetry.models import ApiToken

_OPEN: Final = ("open", "aborting")
_HISTORY: Final = (
    "DELETE FROM routing_delivery USING routing_decision d"
    " WHERE decision_id = d.id AND d.fleet_id = %s",
    "DELETE FROM routing_effectcheck USING routing_decision d"
    " WHERE decision_id = d.id AND d.fleet_id = %s",
    "DELETE FROM routing_rolemove USING routing_rebalance r"
    " WHERE rebalance_id = r.id AND r.fleet_id = %s",
    "DELETE FROM routing_rebalance WHERE fleet_id = %s",
    "DELETE FROM routing_decision WHERE fleet_id = %s",
    "DELETE FROM routing_tick WHERE fleet_id = %s",
)
"""By statement: there may be a million ticks, and none need be read to go."""


def has_history(fleet: str) -> bool:
    """Whether its loop ever looked or decided."""
    found = Tick.objects.filter(fleet=fleet).exists()
    return found or Decision.objects.filter(fleet=fleet).exists()


def why_not(fleet: str, *, confirmed: bool) -> str:
    """Why it may not go now; empty where it may."""
    if Rebalance.objects.filter(fleet=fleet, state__in=_OPEN).exists():
        return "cannot be deleted while instances change roles: cancel the rebalance first"
    if has_history(fleet) and not confirmed:
        return "has history that would be lost: confirm its deletion by its name"
    return ""


def remove(*, fleet: str, actor: str, via: str, reason: str, now: datetime.datetime) -> None:
    """Delete a fleet with its policy, holds, plans and ticks; its tokens are revoked. One
    transaction. Ask `why_not` first. Raises Refused."""
    with transaction.atomic():
        row = Fleet.objects.select_for_update().filter(pk=fleet).first()
        if row is None:
            raise Refused("fleet", fleet, "no such fleet")
        refused = why_not(fleet, confirmed=True)
        if refused:
            raise Refused("fleet", fleet, refused)
        for token in ApiToken.objects.filter(fleet=fleet, revoked_at=None):
            token_commands.revoke_token(
                token_id=token.pk, actor=actor, via=via, reason="its fleet is deleted", now=now
            )
        audit.record(
            actor=actor,
            via=via,
            verb="fleet.delete",
            fleet=fleet,
            target=fleet,
            before={
                "scenario": row.scenario,
                "mode": row.policy.mode,
                "knobs": row.policy.knobs,
                "epoch": row.epoch,
            },
            reason=reason,
        )
        with connection.cursor() as cursor:
            for statement in _HISTORY:
                cursor.execute(statement, [fleet])
        row.delete()
