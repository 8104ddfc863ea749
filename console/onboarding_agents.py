"""Agents as their batches, their reports and what was refused of them show them. Pure.

Whoever is refused is there: an agent whose clock runs ahead, or whose batches are too large, is
said to be that, and never to be down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.utils.translation import gettext as _

from console import figures
from console.context import BAD, FORGOTTEN_AFTER_S, GOOD, STALE_AFTER_S, WARN, Mark
from console.onboarding_rows import utc
from telemetry.wire import AgentReport

CLOCK_OFF_S: Final = 5.0
"""A clock further off than this is wrong: transit and the Date header's whole seconds are less."""
STARTING_S: Final = 20.0
"""The CPU time of an agent younger than this is that of its start, not its cost."""
REFUSED_LATELY_S: Final = 120.0
"""A batch refused so lately is a trouble of now."""


@dataclass(frozen=True)
class RefusedRow:
    """One kind of refused batch. `whose` is the agent, else the token's name, else empty."""

    agent: str
    token: str
    whose: str
    status: int
    field: str
    error: str
    count: int
    first_s: float
    last_s: float
    is_recent: bool

    @property
    def is_clock(self) -> bool:
        """A sample of the future: the agent's clock, not its data (S-17)."""
        return self.status == 422 and self.field.endswith("at_s") and "clock" in self.error

    @property
    def last_at(self) -> datetime | None:
        return utc(self.last_s)

    @property
    def first_at(self) -> datetime | None:
        return utc(self.first_s)


@dataclass(frozen=True)
class AgentRow:
    """One agent, judged. `skew_s` is its clock less ours; `last_s` None: nothing was stored."""

    name: str
    state: str
    mark: Mark
    last_s: float | None = None
    skew_s: float | None = None
    report: AgentReport | None = None
    told_s: float | None = None
    n_sources: int = 0
    refused: tuple[RefusedRow, ...] = ()

    @property
    def n_refused(self) -> int:
        return sum(row.count for row in self.refused)

    @property
    def in_trouble(self) -> bool:
        return self.state in ("refused", "clock", "silent", "drops", "never")

    @property
    def last_at(self) -> datetime | None:
        return utc(self.last_s)

    @property
    def clock(self) -> str:
        """How far its clock is off, in words; a second is not more than can be measured."""
        if self.skew_s is None:
            return figures.NONE
        return _("in step") if abs(self.skew_s) <= 1.0 else clock_words(self.skew_s)

    @property
    def cpu_ratio(self) -> float | None:
        """Its CPU time over its life, in cores; None where it does not say, or is just starting."""
        report = self.report
        if report is None or report.cpu_s is None or report.started_s is None:
            return None
        lived_s = (self.told_s or 0.0) - report.started_s
        return report.cpu_s / lived_s if lived_s >= STARTING_S else None


@dataclass(frozen=True)
class Known:
    """What the database knows of one agent."""

    last_s: float
    skew_s: float


@dataclass(frozen=True)
class ToldBy:
    """An agent's report and when it came."""

    report: AgentReport
    at_s: float


def agent_rows(
    known: Mapping[str, Known],
    reports: Mapping[str, ToldBy],
    refused: Iterable[RefusedRow],
    n_sources: Mapping[str, int],
    *,
    now_s: float,
) -> list[AgentRow]:
    """Agents by name, also those of which every batch was refused; not those gone for a day."""
    by_agent: dict[str, list[RefusedRow]] = {}
    for row in refused:
        if row.agent:
            by_agent.setdefault(row.agent, []).append(row)
    found = []
    for name in sorted({*known, *by_agent}):
        seen, told = known.get(name), reports.get(name)
        mine = tuple(by_agent.get(name, ()))
        last_s = seen.last_s if seen else None
        newest_s = max([last_s or 0.0, *(row.last_s for row in mine)])
        if now_s - newest_s > FORGOTTEN_AFTER_S:
            continue
        skew_s = _skew_s(seen, told)
        state, mark = _agent_state(last_s, skew_s, told, mine, now_s)
        found.append(
            AgentRow(
                name=name,
                state=state,
                mark=mark,
                last_s=last_s,
                skew_s=skew_s,
                report=told.report if told else None,
                told_s=told.at_s if told else None,
                n_sources=n_sources.get(name, 0),
                refused=mine,
            )
        )
    return found


def _skew_s(seen: Known | None, told: ToldBy | None) -> float | None:
    # Two estimates, one from either end. A wait on the way adds to one of them: the smaller is
    # the nearer one.
    estimates = [seen.skew_s] if seen else []
    if told is not None and told.report.skew_s is not None:
        estimates.append(told.report.skew_s)
    return min(estimates, key=abs, default=None)


def _agent_state(
    last_s: float | None,
    skew_s: float | None,
    told: ToldBy | None,
    refused: Sequence[RefusedRow],
    now_s: float,
) -> tuple[str, Mark]:
    # Whoever is refused is there: its silence has this cause, and it is not down (S-14, S-17).
    recent = [row for row in refused if row.is_recent]
    if any(row.is_clock for row in recent):
        return "clock", Mark(*BAD, _("its clock is ahead: its batches are refused"))
    if recent:
        return "refused", Mark(
            *BAD, _("its batches are refused: %(status)s") % {"status": recent[0].status}
        )
    if last_s is None:
        return "never", Mark(*WARN, _("nothing of it was ever stored"))
    if now_s - last_s > STALE_AFTER_S:
        return "silent", Mark(
            *WARN, _("silent since %(last_s)s") % {"last_s": figures.clock(last_s)}
        )
    if skew_s is not None and abs(skew_s) > CLOCK_OFF_S:
        return "clock", Mark(*WARN, _("its clock is %(skew_s)s") % {"skew_s": clock_words(skew_s)})
    if told is not None and told.report.n_dropped_batches:
        return "drops", Mark(*WARN, _("it dropped readings"))
    if told is not None and told.report.n_spooled_batches > 10:
        return "late", Mark("info", "wait", _("it is catching up"))
    return "fresh", Mark(*GOOD, _("fresh"))


def clock_words(skew_s: float) -> str:
    """`12 s ahead` or `3 min behind`."""
    words = _("%(span)s ahead") if skew_s > 0 else _("%(span)s behind")
    return words % {"span": figures.duration(abs(skew_s))}
