"""What a freeze makes of a command that people, scripts or jobs ask for: it is refused."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Final

from routing.refusals import Refused
from routing.windows import in_force
from routing.windows.document import Of
from routing.windows.frozen import Frozen

_EAGERNESS: Final = ("paused", "advisory", "active")


class FrozenNow(Refused):
    """Nobody may change that now; `frozen` says which window forbids it, and until when."""

    def __init__(self, fleet: str, frozen: Frozen) -> None:
        super().__init__("fleet", fleet, f"{fleet} is {frozen.text}")
        self.frozen = frozen


def allowed(fleet: str, *kinds: Of, actor: str, now: datetime.datetime) -> None:
    """Raises FrozenNow where a freeze of one of these kinds is in force, and the actor does not
    override it."""
    found = in_force.forbids(fleet, kinds, actor=actor, now=now)
    if found is not None:
        raise FrozenNow(fleet, found)


def allowed_policy(
    fleet: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    *,
    actor: str,
    now: datetime.datetime,
) -> None:
    """The same for a policy's mode and knobs. A mode in which the loop only does less is never
    forbidden: that is the kill switch."""
    is_calmer = _EAGERNESS.index(after["mode"]) < _EAGERNESS.index(before["mode"])
    if before["knobs"] != after["knobs"] or not is_calmer:
        allowed(fleet, "people", actor=actor, now=now)
