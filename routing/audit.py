"""Who changed what: the only writer of Action. `commands` calls it once for each change.

The database keeps rows as they are and seals them in a chain (migration 0006); `verify` checks it.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.db import connection

from routing import request_ids
from routing.approvals import gate
from routing.core import unseen
from routing.models import Action, ActionSeal
from routing.refusals import Refused

MOST_WRONG: Final = 20
PEOPLE: Final = ("ui", "rest", "command")
"""Doors at which somebody types a reason."""
SYSTEM = "system"
"""The actor of what time does by itself, such as a hold that expires."""


def record(
    *,
    actor: str,
    via: str,
    verb: str,
    target: str,
    fleet: str = "",
    before: Any = None,
    after: Any = None,
    reason: str = "",
    measured: Mapping[str, float] | None = None,
) -> Action:
    """One row; call it in the transaction of the change, so neither exists without the other.

    `measured` is how far it reaches where before and after do not tell. Raises
    `gate.NeedsApproval`, which is to take the change back, and Refused where a person's reason
    holds what nobody sees.
    """
    if via in PEOPLE:
        seen("reason", reason)
    after = gate.note(
        verb=verb,
        fleet=fleet,
        target=target,
        before=before,
        after=after,
        measured=measured or {},
        via=via,
    )
    return Action.objects.create(
        actor=actor,
        via=via,
        verb=verb,
        fleet=fleet,
        target=target,
        before=before,
        after=after,
        reason=reason,
        request_id=request_ids.current(),
    )


def seen(field: str, value: str) -> None:
    """Raises Refused where a text holds characters that nobody sees or that turn it round."""
    if found := unseen.in_sentence(value):
        raise Refused(
            field, value, f"holds {found}, which nobody sees or which turns text round: remove it"
        )


@dataclass(frozen=True)
class Verified:
    """What a look at the whole audit found. `head` is the newest seal, in hex; `wrong` are ids of
    actions that are not what was sealed, are gone, or were never sealed."""

    n: int
    head: str
    wrong: tuple[int, ...]
    knows: bool = True


def verify(head: str = "") -> Verified:
    """Whether the audit is as it was written. `knows`: whether it holds the seal `head`, which
    somebody noted before; without that one, missing newest rows cannot be told."""
    with connection.cursor() as cursor:
        cursor.execute(_WRONG, {"most": MOST_WRONG})
        wrong = tuple(row[0] for row in cursor.fetchall())
        cursor.execute("SELECT count(*) FROM routing_action")
        n = cursor.fetchone()[0]
    newest = ActionSeal.objects.order_by("-id").first()
    knows = not head or ActionSeal.objects.filter(digest=bytes.fromhex(head)).exists()
    return Verified(n, bytes(newest.digest).hex() if newest else "", wrong, knows)


_WRONG = """
    SELECT action FROM (
        SELECT seal.action, kept.id IS NOT NULL AND seal.digest = sha256(
            coalesce(lag(seal.digest) OVER (ORDER BY seal.id), ''::bytea)
            || convert_to(routing_action_text(kept), 'UTF8')
        ) AS is_right
        FROM routing_actionseal seal LEFT JOIN routing_action kept ON kept.id = seal.action
    ) sealed WHERE NOT is_right
    UNION ALL
    SELECT id FROM routing_action kept WHERE NOT EXISTS (
        SELECT 1 FROM routing_actionseal seal WHERE seal.action = kept.id
    )
    ORDER BY 1 LIMIT %(most)s
"""


def shell_user() -> str:
    """The actor of a command: whoever is at the shell, which in a container may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
