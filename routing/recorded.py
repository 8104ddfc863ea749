"""Stored ticks as the loop met them: each with the plan, memory and scenario it began with."""

from __future__ import annotations

import dataclasses
import datetime
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from routing import fleets, scheduler
from routing.as_of import Told
from routing.core.jsonable import from_jsonable
from routing.core.scenario.document import Scenario
from routing.core.scenario.tables import ScenarioError
from routing.core.situation import FORMULA
from routing.core.types import Memory, Observation, Plan
from routing.models import Decision, Fleet, Tick

_AT_ONCE = 50
"""Rows held in memory: a tick of many clusters and links is some hundred kilobytes."""
_ISSUED = ("Initial", "EpochRaised")
"""Reasons of plans that the scheduler issued without asking the core."""


class NothingStored(ValueError):
    """No tick in the span; the message says where the stored ones are."""


@dataclass(frozen=True)
class Stored:
    """One tick, with what it began with. `follows`: the row before it is the tick before it."""

    tick: Tick
    scenario: Scenario
    observation: Observation
    plan: Plan
    memory: Memory
    follows: bool

    @property
    def read_at(self) -> datetime.datetime:
        """By when it had read policy and holds."""
        return self.tick.at + datetime.timedelta(milliseconds=self.tick.duration_ms)

    @property
    def issued(self) -> bool:
        return self.tick.action == "adopt" and self.tick.reason in _ISSUED

    @property
    def adopted(self) -> Plan | None:
        """The plan it pushed, if it did."""
        decision = pushed(self.tick)
        return None if decision is None else fleets.plan_of(decision)


@dataclass(frozen=True)
class Unreadable:
    """A tick that this release cannot decide again, and why."""

    tick: Tick
    why: str


@dataclass(frozen=True)
class Span:
    """The ticks gone over. `n_issued` were plans the core was not asked for, `unreadable` counts
    those that cannot be decided again by why, `other_formulas` verdicts of another than `formula`.
    """

    first_seq: int
    last_seq: int
    first_s: float
    last_s: float
    n_ticks: int
    n_issued: int
    unreadable: dict[str, int]
    other_formulas: dict[str, int]
    formula: str


@dataclass
class Tally:
    """Counts what was gone over."""

    first: Tick | None = None
    last: Tick | None = None
    n_ticks: int = 0
    n_issued: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)
    other_formulas: Counter[str] = field(default_factory=Counter)

    def readable(self, rows: Iterator[Stored | Unreadable]) -> Iterator[Stored]:
        for row in rows:
            self.first, self.last = self.first or row.tick, row.tick
            self.n_ticks += 1
            if isinstance(row, Unreadable):
                self.unreadable[row.why] += 1
            else:
                yield row

    def is_other_formula(self, formula: str | None) -> bool:
        """Counts a verdict of another formula than this release's."""
        if formula == FORMULA:
            return False
        self.other_formulas[formula or "none"] += 1
        return True

    def span(self) -> Span:
        if self.first is None or self.last is None:
            raise ValueError("a span of no ticks")
        return Span(
            first_seq=self.first.seq,
            last_seq=self.last.seq,
            first_s=self.first.at.timestamp(),
            last_s=self.last.at.timestamp(),
            n_ticks=self.n_ticks,
            n_issued=self.n_issued,
            unreadable=dict(self.unreadable),
            other_formulas=dict(self.other_formulas),
            formula=FORMULA,
        )


def ticks_of(
    fleet: Fleet, told: Told, since: datetime.datetime, until: datetime.datetime
) -> Iterator[Stored | Unreadable]:
    """The ticks of [since, until) by their number, one after the other from the database."""
    ticks = Tick.objects.filter(fleet=fleet)
    inside = ticks.filter(at__gte=since, at__lt=until)
    first, last = inside.order_by("seq").first(), inside.order_by("-seq").first()
    if first is None or last is None:
        raise NothingStored(_nothing(fleet))
    # By number, not by time: a clock that was set back must not take ticks out of a line.
    before = ticks.filter(seq__lt=first.seq).order_by("-seq").first()
    running = _running_before(fleet, first.seq)
    plan = None if running is None else fleets.plan_of(running)
    rows = ticks.filter(seq__gte=first.seq, seq__lte=last.seq).select_related("decision")
    for tick in rows.order_by("seq").iterator(chunk_size=_AT_ONCE):
        yield _read(fleet, told, tick, before, plan)
        decision = pushed(tick)
        if decision is not None:
            plan = fleets.plan_of(decision)
        before = tick


def _read(
    fleet: Fleet, told: Told, tick: Tick, before: Tick | None, plan: Plan | None
) -> Stored | Unreadable:
    try:
        scenario = told.scenario(tick.at)
        observation = from_jsonable(Observation, tick.observed)
    except ScenarioError as exc:
        return Unreadable(tick, f"its scenario is no longer accepted: {exc}")
    except (KeyError, TypeError) as exc:
        return Unreadable(tick, f"it was written by another release: {exc}")
    known = {c.name for c in scenario.clusters}
    if known != observation.pd.keys() | observation.prefill.keys():
        return Unreadable(tick, "it saw other clusters than the scenario names")
    seen = _in_order(observation, scenario)
    return Stored(
        tick=tick,
        scenario=scenario,
        observation=seen,
        plan=plan or scheduler.always_local(fleet, scenario, seen),
        memory=fleets.memory_after(before),
        follows=before is None or before.seq == tick.seq - 1,
    )


def _in_order(seen: Observation, scenario: Scenario) -> Observation:
    """As it was observed: the database keeps no order of keys, and sums depend on it."""
    names = [cluster.name for cluster in scenario.clusters]
    links = [link.id for link in scenario.links]
    return dataclasses.replace(
        seen,
        pd={name: seen.pd[name] for name in names if name in seen.pd},
        prefill={name: seen.prefill[name] for name in names if name in seen.prefill},
        links={name: seen.links[name] for name in links if name in seen.links},
    )


def _running_before(fleet: Fleet, seq: int) -> Decision | None:
    """The plan in force when tick `seq` began, whatever its epoch."""
    adopted = Decision.objects.filter(fleet=fleet, version__isnull=False, tick__seq__lt=seq)
    return adopted.order_by("-epoch", "-version").first()


def pushed(tick: Tick) -> Decision | None:
    """The decision a tick made, if gates were asked to run it."""
    decision: Decision | None = getattr(tick, "decision", None)
    return decision if decision is not None and decision.version is not None else None


def _nothing(fleet: Fleet) -> str:
    ticks = Tick.objects.filter(fleet=fleet).order_by("at")
    first, last = ticks.first(), ticks.last()
    if first is None or last is None:
        return "the loop has written no tick of this fleet yet"
    return (
        f"no tick is stored there; the stored ones are of {first.at:%F %T} to {last.at:%F %T} UTC"
    )
