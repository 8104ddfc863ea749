"""The findings page: what does not hold although it is claimed, and what nobody could check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from console import figures, kept, verdicts
from console.context import BAD, GOOD, OFF, WARN, Mark
from console.roles import readable
from routing.core.truth.finding import (
    CHECKS,
    GRADES,
    Clear,
    Figure,
    Finding,
    Report,
    Unknown,
    named,
)
from routing.models import Fleet, Tick

_MARKS: Final = {
    "bad": Mark(*BAD, _lazy("bad")),
    "warn": Mark(*WARN, _lazy("warning")),
    "info": Mark("info", "wait", _lazy("to know")),
}
MOST_ON_OVERVIEW: Final = 3
_MOST_SUBJECTS: Final = 8
MOST_OVER: Final = 4
"""Stages that the overview names for being over their capacity."""


@dataclass(frozen=True)
class Row:
    """A finding as it is shown. `evidence`: (what, value, exact value, grade)."""

    finding: Finding
    mark: Mark
    subject: str
    evidence: list[tuple[str, str, str, str]]


@readable
def page(request: HttpRequest, fleet: str) -> HttpResponse:
    """Every check of a fleet. Changes nothing."""
    found = get_object_or_404(Fleet.objects.select_related("policy"), pk=fleet)
    report = kept.report(found, now_s=timezone.now().timestamp())
    context = {
        "fleet": found,
        "report": report,
        "headline": headline(report),
        "rows": [_row(finding, fleet) for finding in report.findings],
        "unknown": _by_name(report.unknown, fleet),
        "clear": _by_name(report.clear, fleet),
        "grades": {name: gettext(help_) for name, help_ in GRADES.items()},
        "checks": {name: gettext(help_) for name, help_ in CHECKS.items()},
    }
    return render(request, "findings.html", context)


def summary(fleet: Fleet, tick: Tick | None) -> dict[str, Any]:
    """The same report as the overview shows it: a sentence and the gravest few.

    First comes what the newest tick shows to be over its capacity: the page shows its figures.
    """
    report = kept.report(fleet, now_s=timezone.now().timestamp())
    told = [finding for finding in report.findings if finding.severity != "info"]
    over = [] if tick is None else verdicts.over_capacity(tick.verdict)
    return {
        "over": "|".join(over),
        "over_words": _over_words(over),
        "over_mark": Mark(*BAD, _("over capacity")),
        "headline": headline(report, beside=bool(over)),
        "mark": mark(report),
        "rows": [_row(finding, fleet.pk) for finding in told[:MOST_ON_OVERVIEW]],
        "n_more": max(len(told) - MOST_ON_OVERVIEW, 0),
    }


def mark(report: Report) -> Mark:
    """The report in a word. What could not be checked is never good."""
    if report.worst in ("bad", "warn"):
        n = report.count("bad") + report.count("warn")
        tone = BAD if report.worst == "bad" else WARN
        return Mark(*tone, ngettext("%(n)s finding", "%(n)s findings", n) % {"n": n})
    if report.unknown:
        return Mark(*OFF, _("%(n)s not checked") % {"n": len(report.unknown)})
    return Mark(*GOOD, _("nothing found")) if report.clear else Mark(*OFF, _("nothing to check"))


def _over_words(stages: Sequence[str]) -> str:
    if not stages:
        return ""
    text = ngettext(
        "Over its capacity: %(names)s. More arrives than it carries, so queues grow.",
        "Over their capacity: %(names)s. More arrives than they carry, so queues grow.",
        len(stages),
    )
    shown = [verdicts.stage_name(name) for name in stages[:MOST_OVER]]
    rest = len(stages) - len(shown)
    return text % {"names": ", ".join(shown) + (_(" and %(n)d more") % {"n": rest} if rest else "")}


def headline(report: Report, *, beside: bool = False) -> str:
    """`1 bad finding, 2 warnings. 4 checks could not be made, 9 found nothing.`

    `beside`: something that is no check's is known to be wrong.
    """
    n_bad, n_warn = report.count("bad"), report.count("warn")
    found = []
    if n_bad:
        text = ngettext("%(n)s bad finding", "%(n)s bad findings", n_bad)
        found.append(text % {"n": n_bad})
    if n_warn:
        found.append(ngettext("%(n)s warning", "%(n)s warnings", n_warn) % {"n": n_warn})
    nothing = _("No check found anything else") if beside else _("No check found anything wrong")
    said = ", ".join(found) or nothing
    made = []
    if n := len(report.unknown):
        text = ngettext("%(n)s check could not be made", "%(n)s checks could not be made", n)
        made.append(text % {"n": n})
    if n := len(report.clear):
        made.append(ngettext("%(n)s found nothing", "%(n)s found nothing", n) % {"n": n})
    rest = ", ".join(made)
    return f"{said}. {rest}." if rest else f"{said}."


def _row(finding: Finding, fleet: str) -> Row:
    return Row(
        finding=finding,
        mark=_MARKS[finding.severity],
        subject=_subject(finding.subject, fleet),
        evidence=[
            (figure.what, value(figure), _exact(figure), figure.grade if _known(figure) else "")
            for figure in finding.evidence
        ],
    )


def _by_name(
    outcomes: Sequence[Unknown | Clear], fleet: str
) -> list[tuple[str, str, list[tuple[str, Unknown | Clear]]]]:
    """(name, what it finds, its (subjects, outcome) rows), in the order of `CHECKS`.

    Subjects of which the same is said are one row.
    """
    grouped: dict[str, dict[str, list[Unknown | Clear]]] = {}
    for outcome in outcomes:
        said = outcome.why if isinstance(outcome, Unknown) else outcome.what
        grouped.setdefault(outcome.name, {}).setdefault(said, []).append(outcome)
    return [
        (
            name,
            gettext(CHECKS[name]),
            [
                (named((_subject(one.subject, fleet) for one in same), _MOST_SUBJECTS), same[0])
                for same in rows.values()
            ],
        )
        for name, rows in grouped.items()
    ]


def _subject(subject: str, fleet: str) -> str:
    return subject.removeprefix(f"{fleet}/").replace("->", " → ")


def value(figure: Figure) -> str:
    """A figure with its unit; what was not measured says so."""
    if figure.value is None:
        return _("not measured")
    if isinstance(figure.value, str):
        return figure.value
    number = float(figure.value)
    plain = {
        "": figures.significant,
        "ratio": figures.percent,
        "s": figures.duration,
        "tokens": figures.tokens,
        "bytes": figures.size,
        "gbps": figures.gbps,
    }
    if figure.unit in plain:
        return plain[figure.unit](number)
    noun = figure.unit.removesuffix("s") if number == 1 else figure.unit
    return figures.with_unit(number, noun)


def _known(figure: Figure) -> bool:
    return figure.value is not None


def _exact(figure: Figure) -> str:
    if figure.value is None or isinstance(figure.value, str):
        return ""
    return figures.exact(float(figure.value))
