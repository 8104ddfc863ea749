"""What a fleet would do with other numbers: its scenario, changed, through the core, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from routing import commands, fleets, knobs
from routing.core.jsonable import from_jsonable
from routing.core.scenario.document import Cluster, Scenario
from routing.core.scenario.tables import ScenarioError, is_number
from routing.core.types import Observation, PdObservation
from routing.core.what_if import changes
from routing.core.what_if.answer import what_if
from routing.core.what_if.cheapest import MOST_INSTANCES
from routing.models import Fleet

MOST = "most_instances"
_LEAST, _GREATEST = 1.0, 10.0
"""Headroom that a cheapest fleet can be asked to have; as the policy's `headroom_target`."""


@dataclass(frozen=True)
class Asked:
    """What is asked: changed `numbers` by name (`core.what_if.changes`), the PD `cluster` to look
    from, and what the cheapest fleet must have and may use."""

    numbers: Mapping[str, Any] = field(default_factory=dict)
    cluster: str | None = None
    least_headroom: Any = None
    most_instances: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Recorded:
    """What the newest tick saw of the PD clusters, and when; nothing before the first."""

    at_s: float | None
    pd: Mapping[str, PdObservation]


def from_query(query: Mapping[str, str]) -> Asked:
    """What an address asks: `cluster`, `least_headroom`, PLACE.most_instances and numbers, each
    with its value as text."""
    numbers, most = {}, {}
    for name, text in query.items():
        place, _, kind = name.rpartition(".")
        if kind == MOST and place:
            most[place] = _value(text)
        elif name not in ("cluster", "least_headroom"):
            numbers[name] = _value(text)
    least = query.get("least_headroom")
    return Asked(numbers, query.get("cluster"), None if least is None else _value(least), most)


def _value(text: str) -> Any:
    """A number where the text is one, whole where it is whole; else the text, to be refused."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def recorded(fleet: Fleet) -> Recorded:
    tick = fleets.newest_tick(fleet)
    if tick is None:
        return Recorded(None, {})
    try:
        seen = from_jsonable(Observation, tick.observed)
    except (KeyError, TypeError):  # of another release
        return Recorded(None, {})
    return Recorded(seen.now_s, seen.pd)


def answer(fleet: Fleet, asked: Asked) -> dict[str, Any]:
    """The core's answer, with what was changed, the plan in force and what is recorded.

    Raises commands.Refused naming the field and the value that cannot be meant.
    """
    saw = recorded(fleet)
    decision = fleets.newest_adopted(fleet)
    try:
        before = fleets.scenario_of(fleet)
        scenario = changes.changed(
            fleet.scenario, asked.numbers, {name: pd.lengths for name, pd in saw.pd.items()}
        )
        found = what_if(
            scenario,
            cluster=asked.cluster,
            running=fleets.plan_of(decision).clusters if decision else {},
            least_headroom=_least_headroom(fleet, asked.least_headroom),
            most=_most(before, asked.most_instances),
        )
    except ScenarioError as exc:
        raise commands.Refused(exc.field, exc.value, exc.message) from None
    was = {number.name: number.value for number in changes.numbers_of(before)}
    return {
        "fleet": fleet.name,
        "plan": f"{decision.epoch}.{decision.version}" if decision else None,
        "changed": {
            name: {"scenario": was.get(name), "asked": value}
            for name, value in asked.numbers.items()
            if value != was.get(name, changes.SCENARIO)
        },
        "recorded": {"at_s": saw.at_s, "clusters": {n: _seen(pd) for n, pd in saw.pd.items()}},
        **found,
    }


def _seen(pd: PdObservation) -> dict[str, Any]:
    return {
        "demand_rps": pd.demand_rps,
        "n_requests": None if pd.lengths is None else pd.lengths.n_effective,
    }


def _least_headroom(fleet: Fleet, asked: Any) -> float:
    if asked is None:
        return float(knobs.effective(fleet.policy.knobs)["headroom_target"])
    if not is_number(asked) or not _LEAST <= asked <= _GREATEST:
        message = f"must be a number in {_LEAST:g}..{_GREATEST:g}"
        raise commands.Refused("least_headroom", asked, message)
    return float(asked)


def most_of(cluster: Cluster) -> int:
    """Instances up to which the cheapest fleet is sought where nothing is said."""
    return min(2 * cluster.instances, MOST_INSTANCES)


def _most(scenario: Scenario, asked: Mapping[str, Any]) -> dict[str, int]:
    most = {cluster.name: most_of(cluster) for cluster in scenario.clusters}
    for name, value in asked.items():
        field = f"{name}.{MOST}"
        if name not in most:
            message = f"is no cluster of this fleet, which has {', '.join(most)}"
            raise commands.Refused(field, value, message)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MOST_INSTANCES:
            message = f"must be a whole number in 1..{MOST_INSTANCES}"
            raise commands.Refused(field, value, message)
    return most | asked
