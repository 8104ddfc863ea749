"""Signals over all sources: who tells what is wanted, and what is told that nobody knows. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from django.utils.translation import gettext as _

from console.context import BAD, GOOD, OFF, WARN, Mark
from console.onboarding_rows import SourceRow
from console.wanted import WANTED, Wanted
from telemetry.wire import AgentReport

UNMATCHED_KIND: Final = "unmatched"
"""A door's report has what no rule matched as a source of this kind (`telemetry.doors`)."""


@dataclass(frozen=True)
class SignalRow:
    """How many of the sources that should tell a signal do, and the commonest reason why not."""

    want: Wanted
    n_wanted: int
    n_found: int
    why: str = ""
    example: str = ""

    @property
    def mark(self) -> Mark:
        if self.n_found == self.n_wanted:
            return Mark(*GOOD, _("told by all"))
        tone = (BAD if self.n_found == 0 else WARN) if self.want.decides else OFF
        return Mark(
            *tone,
            _("told by none")
            if self.n_found == 0
            else _("not by %(n_lacking)s") % {"n_lacking": self.n_lacking},
        )

    @property
    def n_lacking(self) -> int:
        return self.n_wanted - self.n_found


@dataclass(frozen=True)
class StrangerRow:
    """Names of series no map knows, by engine: in how many sources, and one of them."""

    engine: str
    series: str
    n_sources: int
    example: str


def signal_rows(rows: Iterable[SourceRow]) -> list[SignalRow]:
    """Every wanted signal, over the sources of which is known what they expose: silent ones too,
    for silence is another trouble than a signal that is not there."""
    # Those that are alike share their tuples (`SourceRow`): how often each of these is there first.
    n_alike: Counter[tuple[int, int]] = Counter()
    first: dict[tuple[int, int], SourceRow] = {}
    for row in rows:
        if row.wanted and row.read is not None and row.read.state == "ok":
            alike = (id(row.wanted), id(row.lacks))
            n_alike[alike] += 1
            first.setdefault(alike, row)
    n_wanted: Counter[Wanted] = Counter()
    why: dict[Wanted, Counter[str]] = {}
    example: dict[tuple[Wanted, str], str] = {}
    for alike, row in first.items():
        n_wanted.update(dict.fromkeys(row.wanted, n_alike[alike]))
        for lack in row.lacks:
            why.setdefault(lack.want, Counter())[lack.why] += n_alike[alike]
            example.setdefault((lack.want, lack.why), row.path)
    commonest = {want: reasons.most_common(1)[0][0] for want, reasons in why.items()}
    return [
        SignalRow(
            want=want,
            n_wanted=n_wanted[want],
            n_found=n_wanted[want] - sum(why[want].values()) if want in why else n_wanted[want],
            why=commonest.get(want, ""),
            example=example[want, commonest[want]] if want in commonest else "",
        )
        for want in WANTED
        if n_wanted[want]
    ]


def stranger_rows(
    rows: Iterable[SourceRow], reports: Mapping[str, AgentReport]
) -> list[StrangerRow]:
    """Series that no map knows, and those no rule of a door matched; of most sources first."""
    told = [
        (row.engine or _("unknown"), row.path, row.report) for row in rows if row.report is not None
    ]
    for agent, report in reports.items():
        unmatched = (source for source in report.sources if source.kind == UNMATCHED_KIND)
        told += [(_("no rule"), f"{agent}, {source.id}", source) for source in unmatched]
    # Most sources tell one of a few lists (`telemetry.reports` shares them): count those first.
    alike: dict[tuple[str, int], tuple[list[str], list[str]]] = {}
    for engine, place, source in told:
        if source.unmatched:
            key = (engine, id(source.unmatched))
            alike.setdefault(key, (source.unmatched, []))[1].append(place)
    seen: Counter[tuple[str, str]] = Counter()
    example: dict[tuple[str, str], str] = {}
    for (engine, _names), (names, places) in alike.items():
        for series in names:
            seen[engine, series] += len(places)
            example.setdefault((engine, series), places[0])
    ordered = sorted(seen.items(), key=lambda item: (-item[1], item[0]))
    return [
        StrangerRow(engine, series, n, example[engine, series]) for (engine, series), n in ordered
    ]
