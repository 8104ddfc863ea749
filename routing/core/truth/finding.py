"""What a truth check says: a finding, that all is well, or that it could not be made and why.

A check that lacks a signal is *unknown*. It is never taken for well: a page that shows no finding
because nothing was measured would lie the loudest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["bad", "warn", "info"]
Grade = Literal["measured", "inferred", "assumed"]

CHECKS: Final[dict[str, str]] = {
    "FakeDisaggregation": "Prefill is claimed to run apart, and decode computes the prompts itself",
    "PrerequisiteMissing": "Something that a decision relies on is switched off or contradicted",
    "LeaseShorterThanTimeout": "KV may expire on the prefill engine before it was fetched",
    "NoEffect": "A change of t was pushed and the remote share did not follow",
    "LeakSuspected": "An instance runs nothing and holds KV memory",
    "RoleNotReady": "A pool is listed, and some or none of it takes requests",
    "ThresholdMeansOther": "A router's threshold is another rule than the plan's",
    "RouterMisleads": "A router does not hold what it says, as its adapter knows",
    "FlowLimited": "Connections limit transfers, not the link",
    "TransferFailures": "KV transfers fail over a link that is up",
    "SplitOffPrediction": "The remote share is not what the running t should give",
}
"""What each check finds, in the order in which pages show them."""
GRADES: Final[dict[str, str]] = {
    "measured": "read from the source itself",
    "inferred": "follows from what was read, by a rule that is named",
    "assumed": "a default or what a document says; nobody told it",
}
SEVERITIES: Final[tuple[Severity, ...]] = ("bad", "warn", "info")
MOST_NAMED = 3
"""So many of a kind are named in evidence; the rest is counted."""


@dataclass(frozen=True)
class Figure:
    """One figure of the evidence. `unit` is one of `UNITS`; `value` None: it was not measured."""

    what: str
    value: float | str | None
    unit: str
    grade: Grade


UNITS: Final = ("", "ratio", "s", "tokens", "requests", "bytes", "gbps", "transfers", "instances")


@dataclass(frozen=True)
class Finding:
    """`sentence` is steady while the facts are: numbers that move stand in `evidence`.

    `subject` is the path of an instance or router, `F/C` of a cluster, or a link's id. `since_s` is
    when it was first so; `longer`: as far back as was looked, so it may be older. `next_step` is an
    exact step: a command, a setting with its value, or where to click.
    """

    name: str
    subject: str
    severity: Severity
    sentence: str
    evidence: tuple[Figure, ...]
    next_step: str
    since_s: float | None = None
    longer: bool = False


@dataclass(frozen=True)
class Unknown:
    """A check that could not be made: `why`, and what to do so that it can."""

    name: str
    subject: str
    why: str
    next_step: str


@dataclass(frozen=True)
class Clear:
    """A check that was made and found nothing; `what` says on which figures."""

    name: str
    subject: str
    what: str


Outcome = Finding | Unknown | Clear


@dataclass(frozen=True)
class Report:
    """Every check of a fleet, made at `at_s`: what was found, what is unknown, what is clear."""

    at_s: float
    findings: tuple[Finding, ...]
    unknown: tuple[Unknown, ...]
    clear: tuple[Clear, ...]

    @property
    def worst(self) -> Severity | None:
        """The gravest severity among the findings; None without any."""
        return self.findings[0].severity if self.findings else None

    def count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)


def report(outcomes: Iterable[Outcome], *, at_s: float) -> Report:
    """The outcomes in one order: the gravest first, then as `CHECKS` has them, by subject."""
    every = sorted(outcomes, key=_place)
    return Report(
        at_s=at_s,
        findings=tuple(each for each in every if isinstance(each, Finding)),
        unknown=tuple(each for each in every if isinstance(each, Unknown)),
        clear=tuple(each for each in every if isinstance(each, Clear)),
    )


def _place(outcome: Outcome) -> tuple[int, int, str]:
    grave = SEVERITIES.index(outcome.severity) if isinstance(outcome, Finding) else 0
    return grave, list(CHECKS).index(outcome.name), outcome.subject


def named(names: Iterable[str], most: int = MOST_NAMED) -> str:
    """`a, b, c and 4 more`."""
    every = list(names)
    rest = len(every) - most
    return ", ".join(every[:most]) + (f" and {rest} more" if rest > 0 else "")
