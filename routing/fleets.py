"""Reading a fleet: its scenario, what people want of it, the plan it is asked to run."""

from __future__ import annotations

import datetime
import functools
import json
from pathlib import Path

from django.db.models import QuerySet

from routing import commands, knobs
from routing.core.jsonable import from_jsonable
from routing.core.scenario.document import Scenario, parse_scenario
from routing.core.scenario.profile_files import FileError
from routing.core.scenario.tables import ScenarioError
from routing.core.types import HeldPlan, Memory, Params, Plan
from routing.models import Decision, Fleet, Hold, Policy, Tick
from routing.scenario_files import read_document


def apply_file(
    path: Path, *, mode: str | None, actor: str, via: str, now: datetime.datetime
) -> Fleet:
    """Make or update the fleet a scenario file describes. Raises commands.Refused."""
    try:
        scenario = read_document(path)
    except FileError as exc:
        raise commands.Refused(str(path), None, str(exc)) from None
    except ScenarioError as exc:
        raise commands.Refused(exc.field, exc.value, exc.message) from None
    return commands.create_fleet(
        scenario=scenario,
        mode=mode,
        actor=actor,
        via=via,
        reason=f"applied {path.name}",
        now=now,
    )


def scenario_of(fleet: Fleet) -> Scenario:
    """The parsed scenario. Raises ScenarioError if an upgrade no longer accepts what is stored."""
    return _parsed(json.dumps(fleet.scenario))


@functools.lru_cache(maxsize=64)
def _parsed(document: str) -> Scenario:
    # Building interpolated profiles costs more than comparing a few kilobytes of text.
    return parse_scenario(json.loads(document))


def params_of(policy: Policy, holds: list[Hold]) -> Params:
    """Policy and holds as the core reads them. Raises KnobError on a knob that cannot be meant."""
    held = tuple(
        HeldPlan(
            cluster=hold.cluster or None,
            mode=hold.mode or None,
            threshold_tokens=hold.threshold_tokens,
            owner=hold.owner,
            reason=hold.reason,
            expires_at_s=hold.expires_at.timestamp(),
            n_prefill=hold.n_prefill,
            n_decode=hold.n_decode,
        )
        for hold in holds
    )
    return Params(mode=policy.mode, holds=held, **knobs.checked(policy.knobs))


def adopted(fleet: Fleet) -> QuerySet[Decision]:
    """The plans of the fleet's epoch, the one in force first."""
    found = Decision.objects.filter(fleet=fleet, epoch=fleet.epoch, version__isnull=False)
    return found.order_by("-version")


def newest_adopted(fleet: Fleet) -> Decision | None:
    """The plan in force: the newest adopted decision of the fleet's epoch."""
    return adopted(fleet).first()


def newest_of_any_epoch(fleet: Fleet) -> Decision | None:
    """The newest adopted decision there ever was."""
    adopted = Decision.objects.filter(fleet=fleet, version__isnull=False)
    return adopted.order_by("-epoch", "-version").first()


def newest_tick(fleet: Fleet) -> Tick | None:
    return Tick.objects.filter(fleet=fleet).order_by("-seq").first()


def plan_of(decision: Decision) -> Plan:
    return from_jsonable(Plan, decision.plan)


def memory_after(tick: Tick | None) -> Memory:
    """What the dampers remember. Nothing before the first tick, or from another release."""
    try:
        return from_jsonable(Memory, tick.verdict["memory"]) if tick else Memory()
    except (KeyError, TypeError):
        return Memory()
