"""A request that is sent twice under one key is done once; the audit remembers what it did."""

from __future__ import annotations

import datetime
from typing import Any

from routing.commands import Refused
from routing.models import Action

KEPT = datetime.timedelta(days=1)
MAX_KEY = 100


def done(
    fleet: str,
    key: str,
    verb: str,
    target: str,
    now: datetime.datetime,
    *,
    actor: str,
    reason: str,
    asked: Any = None,
) -> Action | None:
    """What was done under this key in the last day; None for a new key, or none.

    Ask under the lock that the doing takes, and record the key as `after["key"]` and what was
    `asked` besides the reason, if anything, as `after["asked"]`. Raises Refused for a key that
    stands for something else, or was somebody else's: they would be told that it was done.
    """
    if not key:
        return None
    if len(key) > MAX_KEY:
        raise Refused("key", key, f"must have at most {MAX_KEY} characters")
    known = Action.objects.filter(at__gt=now - KEPT, fleet=fleet, after__key=key).first()
    if known is not None and (known.verb, known.target) != (verb, target):
        raise Refused("key", key, f"was used for {known.verb} of {known.target}")
    if known is not None and known.actor != actor:
        raise Refused("key", key, f"was used by {known.actor}")
    if known is not None and (known.reason, known.after.get("asked")) != (reason, asked):
        raise Refused("key", key, f"was used for another {verb}, asked in other words")
    return known
