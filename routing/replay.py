"""Stored ticks decided again, by the very `decide` that runs live.

`verify` gives each tick its own stored inputs: the verdict must be the stored one, field by field.
`replay` changes knobs and carries plan and memory forward along its own line, over observations as
they were recorded. Engines and traffic in these follow the plan that was lived, so what the other
plan would have brought about is not in them: that is the twin's question, not this one.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from routing.as_of import Told
from routing.core.decide import decide
from routing.core.jsonable import from_jsonable, to_jsonable
from routing.core.types import Memory, Plan, Verdict
from routing.models import Fleet, Tick
from routing.recorded import Span, Stored, Tally, ticks_of
from routing.replay_lines import Line, Writer, brief

MOST_DIFFERENCES = 20
"""Told one by one; beyond it they are only counted."""


@dataclass(frozen=True)
class Difference:
    """The first field, by path, in which a verdict decided again is not the stored one."""

    seq: int
    at_s: float
    field: str
    stored: Any
    replayed: Any
    follows: bool


@dataclass(frozen=True)
class Verified:
    """`n_equal` of the ticks decided again gave the stored verdict, `n_different` did not."""

    span: Span
    n_equal: int
    n_different: int
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class Divergence:
    """The first tick after which the two lines did not run the same plan."""

    seq: int
    at_s: float
    lived_reason: str
    lived_message: str
    replayed_reason: str
    replayed_message: str
    lived: dict[str, dict[str, Any]]
    replayed: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Replayed:
    """The lived line beside the one with `knobs` changed; `were` are their values at the start."""

    span: Span
    knobs: dict[str, Any]
    were: dict[str, Any]
    lived: Line
    replayed: Line
    n_other_plan: int
    first_divergence: Divergence | None


def verify(fleet: Fleet, since: datetime.datetime, until: datetime.datetime) -> Verified:
    """Every tick of [since, until) decided again on its own inputs. Raises NothingStored."""
    told, tally = Told(fleet, since), Tally()
    n_equal, n_different = 0, 0
    differences: list[Difference] = []
    for stored in tally.readable(ticks_of(fleet, told, since, until)):
        if stored.issued:
            tally.n_issued += 1
            continue
        if tally.is_other_formula(stored.tick.verdict.get("formula")):
            continue
        found = difference(stored.tick.verdict, to_jsonable(_again(stored, told)))
        if found is None:
            n_equal += 1
            continue
        n_different += 1
        if len(differences) < MOST_DIFFERENCES:
            path, was, now = found
            seq, at_s = stored.tick.seq, stored.tick.at.timestamp()
            differences.append(Difference(seq, at_s, path, was, now, stored.follows))
    return Verified(tally.span(), n_equal, n_different, tuple(differences))


def replay(
    fleet: Fleet, since: datetime.datetime, until: datetime.datetime, changed: Mapping[str, Any]
) -> Replayed:
    """[since, until) with the `changed` knobs, carried forward from the plan and memory it began
    with. Raises NothingStored, KnobError."""
    told, tally = Told(fleet, since), Tally()
    lived, other = Writer(), Writer()
    plan: Plan | None = None
    memory = Memory()
    n_other_plan, first = 0, None
    for stored in tally.readable(ticks_of(fleet, told, since, until)):
        tick = stored.tick
        if plan is None:
            plan, memory = stored.plan, stored.memory
            lived.start = other.start = brief(plan)
        adopted = stored.adopted
        lived_plan = adopted or stored.plan
        if stored.issued:
            # Not the core's to decide: both lines get it.
            tally.n_issued += 1
            plan = lived_plan
            memory = dataclasses.replace(memory, last_change_s=tick.at.timestamp())
            for line in (lived, other):
                line.issued(tick, plan)
            continue
        params = told.params(at=tick.at, read_at=stored.read_at, mode=tick.mode, changed=changed)
        verdict = decide(stored.observation, plan, memory, params, stored.scenario)
        tally.is_other_formula(tick.verdict.get("formula"))
        lived.seen(tick, tick.verdict, lived_plan, pushed=adopted is not None)
        pushed = verdict.action == "adopt" and tick.mode == "active"
        if pushed:
            plan = _as_stored(Plan, dataclasses.replace(verdict.plan, version=plan.version + 1))
        memory = _as_stored(Memory, verdict.memory)
        other.seen(tick, to_jsonable(verdict), plan, pushed=pushed)
        if plan.clusters != lived_plan.clusters:
            n_other_plan += 1
            first = first or _divergence(tick, verdict, lived_plan, plan)
    span = tally.span()
    start = datetime.datetime.fromtimestamp(span.first_s, datetime.UTC)
    were = told.knobs_at(start)
    return Replayed(
        span=span,
        knobs=dict(changed),
        were={name: were[name] for name in changed},
        lived=lived.line(),
        replayed=other.line(),
        n_other_plan=n_other_plan,
        first_divergence=first,
    )


def difference(stored: Any, replayed: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """The first place, by its path, where two plain values differ, and what stands in either.

    An absent key is not a key with null: it stands as "absent".
    """
    if isinstance(stored, dict) and isinstance(replayed, dict):
        for key in sorted(stored.keys() | replayed.keys()):
            where = f"{path}.{key}" if path else key
            if key not in stored or key not in replayed:
                return where, stored.get(key, "absent"), replayed.get(key, "absent")
            found = difference(stored[key], replayed[key], where)
            if found is not None:
                return found
        return None
    both = isinstance(stored, list) and isinstance(replayed, list)
    if both and len(stored) == len(replayed):
        for i, (was, now) in enumerate(zip(stored, replayed, strict=True)):
            found = difference(was, now, f"{path}[{i}]")
            if found is not None:
                return found
        return None
    return None if stored == replayed else (path, stored, replayed)


def _again(stored: Stored, told: Told) -> Verdict:
    """Decided on its own inputs. What people changed between its first moment and its last may have
    been read or not: both are tried."""
    tick = stored.tick
    early = told.params(at=tick.at, mode=tick.mode)
    verdict = decide(stored.observation, stored.plan, stored.memory, early, stored.scenario)
    late = told.params(at=tick.at, read_at=stored.read_at, mode=tick.mode)
    if late == early or difference(tick.verdict, to_jsonable(verdict)) is None:
        return verdict
    return decide(stored.observation, stored.plan, stored.memory, late, stored.scenario)


def _as_stored(kind: type[Any], value: Any) -> Any:
    """The value as it comes back from the database, which sorts keys by length, then by bytes."""
    return from_jsonable(kind, _sorted(to_jsonable(value)))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
        return {key: _sorted(value[key]) for key in keys}
    return [_sorted(each) for each in value] if isinstance(value, list) else value


def _divergence(tick: Tick, verdict: Verdict, lived: Plan, replayed: Plan) -> Divergence:
    return Divergence(
        seq=tick.seq,
        at_s=tick.at.timestamp(),
        lived_reason=tick.reason,
        lived_message=tick.verdict["message"],
        replayed_reason=verdict.reason,
        replayed_message=verdict.message,
        lived=brief(lived),
        replayed=brief(replayed),
    )
