"""What a fleet's loop was told at a moment of the past: its scenario, its knobs, its holds.

Ticks keep what they saw and said, not what people wanted then. That is found backwards from what
holds now: the first change after a moment says in the audit what it replaced.
"""

from __future__ import annotations

import bisect
import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from routing import fleets, knobs
from routing.core.scenario.document import Scenario
from routing.core.types import Params
from routing.models import Action, Fleet, Hold, Policy


@dataclass(frozen=True)
class _Past:
    """`values[i]` held until `ended[i]`, ascending; after the last of them `now` does."""

    ended: tuple[datetime.datetime, ...]
    values: tuple[dict[str, Any], ...]
    now: dict[str, Any]

    def at(self, moment: datetime.datetime) -> dict[str, Any]:
        i = bisect.bisect_right(self.ended, moment)
        return self.values[i] if i < len(self.values) else self.now


class Told:
    """The past of one fleet's scenario and policy from `since` on. Reads the audit once."""

    def __init__(self, fleet: Fleet, since: datetime.datetime) -> None:
        self._fleet = fleet
        changes = Action.objects.filter(fleet=fleet.pk, at__gt=since, before__isnull=False)
        rows = list(
            changes.filter(verb__in=("policy.change", "fleet.update"))
            .order_by("at", "id")
            .values_list("at", "before")
        )
        self._scenarios = _past(rows, "scenario", fleet.scenario)
        self._knobs = _past(rows, "knobs", fleet.policy.knobs)
        self._holds = list(Hold.objects.filter(fleet=fleet, expires_at__gt=since).order_by("id"))

    def scenario(self, at: datetime.datetime) -> Scenario:
        """Raises ScenarioError where this release no longer accepts it."""
        return fleets.scenario_of(Fleet(pk=self._fleet.pk, scenario=self._scenarios.at(at)))

    def params(
        self,
        *,
        at: datetime.datetime,
        mode: str,
        read_at: datetime.datetime | None = None,
        changed: Mapping[str, Any] | None = None,
    ) -> Params:
        """As a tick of `at` in `mode` read them, with the `changed` knobs instead.

        `read_at`: when it read, should that be later than `at`. Raises KnobError.
        """
        read_at = read_at or at
        kept = self._knobs.at(read_at) | dict(changed or {})
        holds = [
            hold
            for hold in self._holds
            if hold.created_at <= read_at
            and hold.expires_at > at
            and (hold.released_at is None or hold.released_at > read_at)
        ]
        return fleets.params_of(Policy(fleet=self._fleet, mode=mode, knobs=kept), holds)

    def knobs_at(self, at: datetime.datetime) -> dict[str, Any]:
        """Every knob's value then."""
        return knobs.effective(self._knobs.at(at))


def _past(
    rows: list[tuple[datetime.datetime, dict[str, Any]]], key: str, now: dict[str, Any]
) -> _Past:
    kept = [(at, before[key]) for at, before in rows if key in before]
    return _Past(tuple(at for at, _ in kept), tuple(value for _, value in kept), now)
