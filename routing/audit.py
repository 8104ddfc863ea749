"""Who changed what: the only writer of Action. `commands` calls it once for each change."""

from __future__ import annotations

import getpass
import os
from typing import Any

from routing.models import Action

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
) -> Action:
    """One row; call it in the transaction of the change, so neither exists without the other."""
    return Action.objects.create(
        actor=actor,
        via=via,
        verb=verb,
        fleet=fleet,
        target=target,
        before=before,
        after=after,
        reason=reason,
    )


def shell_user() -> str:
    """The actor of a command: whoever is at the shell, which in a container may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
