"""The one gate: what the audit is told of a change is judged, before it can be committed.

Every change of people, scripts and jobs is recorded once, in its own transaction
(`audit.record`), so nothing goes around this. A command that people call runs under `watching`,
which adds up what it records; at its end `Watch.settle` raises NeedsApproval where that is beyond
the fleet's limits, and the transaction takes everything back. A change that nobody watches is
judged by itself, and refused. The loop's own (`via` scheduler) has its own bounds and passes.

An approved command runs again under `approved`: then it must record what it recorded when it was
asked for, from the same state, and reach no further.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from routing.approvals.limits import (
    FIGURES,
    LOOSENED,
    Beyond,
    Limits,
    Reach,
    beyond,
    reach_of,
    read_limits,
    total,
    words,
)
from routing.approvals.models import ApprovalLimits
from routing.core.scenario.tables import ScenarioError
from routing.models import Decision, Policy, RouterState
from routing.refusals import Outdated, Refused

EXEMPT: Final = "scheduler"
_HOLDS: Final = ("hold.place", "hold.extend")


@dataclass(frozen=True)
class Change:
    """One audited change of a command, and how far it reaches."""

    verb: str
    fleet: str
    target: str
    before: Any
    after: Any
    reach: Reach


@dataclass(frozen=True)
class Asked:
    """All that a command would change, how far that reaches, which limits it passes, and what else
    it was decided on."""

    changes: tuple[Change, ...]
    reach: Reach
    beyond: tuple[Beyond, ...]
    seen: Mapping[str, Any]

    @property
    def fleet(self) -> str:
        """The fleet that it changes; empty for several."""
        fleets = {change.fleet for change in self.changes}
        return fleets.pop() if len(fleets) == 1 else ""


class NeedsApproval(Refused):
    """It reaches too far for one person; nothing was changed."""

    code = "needs_approval"

    def __init__(self, asked: Asked) -> None:
        super().__init__(
            "approval", None, f"needs a second person: {'; '.join(words(asked.beyond))}"
        )
        self.asked = asked


@dataclass(frozen=True)
class Said:
    """What a proposal said: the changes that were recorded, how far they reach, what they were
    decided on."""

    changes: list[dict[str, Any]]
    reach: Reach
    seen: Mapping[str, Any]


@dataclass(frozen=True)
class Approval:
    """Who answers for a command besides who asked. `said` is what it must still be; None where it
    was approved to be done again and again, as a job is."""

    proposal: int
    approved_by: str
    said: Said | None


@dataclass
class Watch:
    """What one command has recorded so far."""

    via: str
    approval: Approval | None = None
    changes: list[Change] = field(default_factory=list)

    def settle(self) -> None:
        """Raises NeedsApproval, or Outdated where an approved command is not what it was."""
        asked = _asked(self.changes)
        if self.approval is not None:
            if self.approval.said is not None:
                _as_it_was(asked, self.approval.proposal, self.approval.said)
        elif asked.beyond and self.via != EXEMPT:
            raise NeedsApproval(asked)


_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)
_approval: ContextVar[Approval | None] = ContextVar("approval", default=None)


def is_watching() -> bool:
    """Whether a larger command runs, of which this one is a part."""
    return _watch.get() is not None


@contextlib.contextmanager
def watching(via: str) -> Iterator[Watch]:
    """Adds up what is recorded until it ends."""
    watch = Watch(via, _approval.get())
    token = _watch.set(watch)
    try:
        yield watch
    finally:
        _watch.reset(token)


@contextlib.contextmanager
def approved(approval: Approval | None) -> Iterator[None]:
    """The next command is carried out with this approval, if any."""
    token = _approval.set(approval)
    try:
        yield
    finally:
        _approval.reset(token)


def note(
    *,
    verb: str,
    fleet: str,
    target: str,
    before: Any,
    after: Any,
    measured: Mapping[str, float],
    via: str,
) -> Any:
    """What `after` is, once the change was noted; an approved one says by whom. Raises
    NeedsApproval for what nobody watches."""
    if via == EXEMPT:
        return after
    change = _change(verb, fleet, target, before, after, measured)
    watch = _watch.get()
    if watch is None:
        asked = _asked([change])
        if asked.beyond:
            raise NeedsApproval(asked)
        return after
    watch.changes.append(change)
    if watch.approval is None or not isinstance(after, dict | None):
        return after
    by = {"proposal": watch.approval.proposal, "approved_by": watch.approval.approved_by}
    return {**(after or {}), **by}


@dataclass(frozen=True)
class Would:
    """A change that a page would offer: what the audit would be told of it."""

    verb: str
    before: Any
    after: Any
    measured: Mapping[str, float] = field(default_factory=dict)


def needed(fleet: str, *changes: Would) -> tuple[Beyond, ...]:
    """Which limits they would go beyond together; a page asks before it offers them."""
    return _asked(
        [_change(each.verb, fleet, "", each.before, each.after, each.measured) for each in changes]
    ).beyond


def limits_of(fleet: str) -> Limits:
    """The fleet's limits; none where none were set."""
    row = ApprovalLimits.objects.filter(pk=fleet).first()
    return Limits() if row is None else read_limits(row.limits)


def as_rows(changes: tuple[Change, ...]) -> list[dict[str, Any]]:
    """Changes as a proposal keeps them."""
    return [
        {
            "verb": change.verb,
            "fleet": change.fleet,
            "target": change.target,
            "before": change.before,
            "after": change.after,
        }
        for change in changes
    ]


def _change(
    verb: str, fleet: str, target: str, before: Any, after: Any, measured: Mapping[str, float]
) -> Change:
    try:
        reach = reach_of(verb, before, after, measured)
    except ScenarioError as exc:  # limits of another release
        raise Refused(exc.field, exc.value, exc.message) from None
    return Change(verb, fleet, target, before, after, reach)


def _asked(changes: list[Change]) -> Asked:
    """The whole of it, judged fleet by fleet. Fleets that nothing is limited in cost one query."""
    passed: list[Beyond] = []
    seen: dict[str, Any] = {}
    reaches = []
    for fleet in dict.fromkeys(change.fleet for change in changes):
        mine = [change for change in changes if change.fleet == fleet]
        if not any(change.reach.kinds or change.reach.figures for change in mine):
            continue
        limits, reach = _limits_before(fleet, mine), total(change.reach for change in mine)
        if limits.is_empty and LOOSENED not in reach.kinds:
            continue
        modes = _plan_modes(fleet) if any(change.verb in _HOLDS for change in mine) else {}
        if "gates_switched" in limits.most:
            reach = total([reach, *(_switched(fleet, each, modes) for each in mine)])
        reaches.append(reach)
        passed += beyond(limits, reach)
        version = Policy.objects.filter(fleet=fleet).values_list("version", flat=True).first()
        seen[fleet] = {"policy_version": version, "modes": modes}
    return Asked(tuple(changes), total(reaches), tuple(passed), seen)


def _limits_before(fleet: str, changes: list[Change]) -> Limits:
    """The fleet's limits as they stood before these changes: by what a command tightens itself it
    is not judged, or no site could be made again from its own document by one person. What it
    loosens needs a second person in any case."""
    for change in changes:
        if change.verb.startswith("approval_limits."):
            return read_limits((change.before or {}).get("limits", {}))
    return limits_of(fleet)


def _switched(fleet: str, change: Change, modes: Mapping[str, str]) -> Reach:
    """Gates of the clusters that a hold gives another plan mode than they have."""
    if change.verb != "hold.place":
        return Reach()
    where, mode = change.after["cluster"], change.after["mode"]
    others = [c for c, now in modes.items() if now != mode and where in ("", c)]
    n_gates = RouterState.objects.filter(fleet=fleet, cluster__in=others).count() if others else 0
    return Reach(figures={"gates_switched": float(n_gates)})


def _plan_modes(fleet: str) -> dict[str, str]:
    """The mode of each cluster in the plan in force."""
    newest = (
        Decision.objects.filter(fleet=fleet, version__isnull=False)
        .order_by("-epoch", "-version")
        .values_list("plan", flat=True)
        .first()
    )
    return {} if newest is None else {c: plan["mode"] for c, plan in newest["clusters"].items()}


def _as_it_was(asked: Asked, proposal: int, said: Said) -> None:
    """Raises Outdated where the command would do something else than was approved."""
    was = [(change["verb"], change["before"]) for change in said.changes]
    now = [(change.verb, _plain(change.before)) for change in asked.changes]
    if was != now or said.seen != _plain(asked.seen):
        raise Outdated("proposal", proposal, "something else changed since; look again")
    for name in FIGURES:
        known, value = said.reach.figures.get(name), asked.reach.figures.get(name)
        if value is not None and (known is None or value > known + 1e-9):
            raise Outdated("proposal", proposal, f"it reaches further now ({name}); look again")


def _plain(value: Any) -> Any:
    """As it comes back from the database."""
    return json.loads(json.dumps(value))
