"""A person closes the breaker of a link: kept as the audit row of the change, read by each tick.

The breaker itself lives in the loop's memory (`core.breaker`), where only a tick may write. So a
reset is a time, and the next tick finds that it came after the breaker opened.
"""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

from routing import audit, fleets
from routing.approvals.asking import proposable
from routing.commands import Refused
from routing.core.links.breaker import FORGIVEN_S
from routing.core.types import Observation
from routing.models import Action, Fleet
from routing.windows import in_force, refusing

_VERB = "breaker.reset"


@proposable
def reset(
    *, fleet: Fleet, link: str, actor: str, via: str, reason: str, now: datetime.datetime
) -> None:
    """Close the link's breaker with the next tick, and forget that it ever opened."""
    if link not in [known.id for known in fleets.scenario_of(fleet).links]:
        raise Refused("link", link, "no such link in the fleet's scenario")
    refusing.allowed(fleet.pk, "people", actor=actor, now=now)
    until = in_force.worked_on_until(fleet.pk, link, now)
    if until is not None:
        raise Refused("link", link, f"it is in maintenance until {until:%F %H:%M} UTC")
    audit.record(
        actor=actor,
        via=via,
        verb=_VERB,
        fleet=fleet.pk,
        target=link,
        before={"breaker": breaker_of(fleet, link)},
        after={"breaker": "closed", "at_s": now.timestamp()},
        reason=reason,
    )


def breaker_of(fleet: Fleet, link: str) -> str | None:
    """As the newest tick left it; None where it never looked."""
    memory = fleets.memory_after(fleets.newest_tick(fleet)).links.get(link)
    return None if memory is None else memory.breaker


def with_resets(observation: Observation, fleet: Fleet) -> Observation:
    """The observation, knowing when a person last closed each breaker."""
    since = datetime.datetime.fromtimestamp(observation.now_s - FORGIVEN_S, datetime.UTC)
    rows: Any = Action.objects.filter(fleet=fleet.pk, verb=_VERB, at__gt=since).order_by("at")
    resets = {row.target: float(row.after["at_s"]) for row in rows}
    links = {
        name: dataclasses.replace(seen, breaker_reset_at_s=resets.get(name))
        for name, seen in observation.links.items()
    }
    return dataclasses.replace(observation, links=links)
