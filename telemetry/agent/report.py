"""What the agent says of itself: for people, never for decisions.

It goes with a batch at the start, when something of it changed, and every half minute. Numbers that
always move (CPU, memory, reading times) are no change.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from telemetry import wire
from telemetry.agent.collector import Last
from telemetry.agent.scrape import Look
from telemetry.agent.sources import EngineSource, GateSource, Source

EVERY_S: Final = 30.0
AT_MOST_EVERY_S: Final = 5.0
"""A source that comes and goes each second is told so often at most."""
MAX_NAMES: Final = 200
MIN_NAMES: Final = 10
MAX_NAMES_IN_ALL: Final = 4000
"""Of series that no map knows: so many a source, fewer where there are many sources."""
MAX_NAME_CHARS: Final = 200
MAX_WARNINGS: Final = 20
MAX_WARNING_CHARS: Final = 500
NOT_EXPOSED: Final = "not exposed"
_STATM: Final = Path("/proc/self/statm")
_KINDS: Final[Mapping[type, str]] = {
    wire.InstanceSample: "instance",
    wire.RouterSample: "router",
    wire.LinkSample: "link",
}
_NOTHING: Final = Look()


def source_report(source: Source, last: Last, *, max_names: int) -> wire.SourceReport:
    """One source as it was read last; what it knows besides signals as it was last read whole."""
    sample = last.sample
    scrape = source.scrape if isinstance(source, EngineSource | GateSource) else None
    look = _NOTHING if scrape is None else scrape.look
    found, missing = [], {}
    for name in sample.signals.__struct_fields__:
        if getattr(sample.signals, name) is not None:
            found.append(name)
        elif scrape is None:
            if name not in _RATES:
                missing[name] = NOT_EXPOSED
        elif name in scrape.reasons:
            # Without a reason it was read: it is a rate, and waits for the next reading.
            missing[name] = _short(scrape.reasons[name])
    instance = sample if isinstance(sample, wire.InstanceSample) else None
    router = sample if isinstance(sample, wire.RouterSample) else None
    return wire.SourceReport(
        kind=_KINDS[type(sample)],
        id=sample.id,
        engine=instance.engine if instance else router.kind if router else "",
        engine_version=instance.engine_version if instance else "",
        state=sample.state,
        error=sample.error,
        read_s=round(last.read_s, 6),
        n_series=look.n_series,
        found=found if sample.state == "ok" else [],
        missing=missing if sample.state == "ok" else {},
        unmatched=[name[:MAX_NAME_CHARS] for name in look.unmatched[:max_names]],
        n_unmatched=look.n_unmatched,
        n_bad_lines=look.n_bad_lines,
        warnings=short(source.warnings),
    )


_RATES: Final = frozenset({"tx_gbps", "rx_gbps", "retransmit_ratio"})
"""Of links: made from two readings, so that their absence is no fact about the source."""


def short(warnings: Iterable[str]) -> list[str]:
    """Warnings as a report carries them: so many, so long, on one line each."""
    said = [_short(warning) for warning in warnings]
    more = len(said) - MAX_WARNINGS
    return said if more <= 0 else [*said[: MAX_WARNINGS - 1], f"and {more + 1} more"]


def _short(text: str) -> str:
    clean = text.encode("utf-8", errors="replace").decode()
    return "".join(c if c.isprintable() else "?" for c in clean[:MAX_WARNING_CHARS])


class Reporter:
    """Decides when a report goes out and what of it is news."""

    def __init__(self, *, version: str, started_s: float) -> None:
        self._version, self._started_s = version, started_s
        self._said: tuple[Any, ...] | None = None
        self._said_s = 0.0

    def due(self, sources: Mapping[Source, Last], warnings: Sequence[str], *, now_s: float) -> bool:
        """Whether to report now; asked once a round, and true at the start."""
        news = _news(sources, warnings)
        since_s = now_s - self._said_s
        is_old = self._said is None or not 0.0 <= since_s < EVERY_S
        if not is_old and (since_s < AT_MOST_EVERY_S or news == self._said):
            return False
        self._said, self._said_s = news, now_s
        return True

    def report(
        self, sources: Mapping[Source, Last], warnings: Sequence[str], **facts: Any
    ) -> wire.AgentReport:
        """All of it; `facts` are the fields of the report that the caller knows."""
        max_names = min(MAX_NAMES, max(MIN_NAMES, MAX_NAMES_IN_ALL // max(len(sources), 1)))
        scrapes = [s.scrape for s in sources if isinstance(s, EngineSource | GateSource)]
        return wire.AgentReport(
            version=self._version,
            started_s=self._started_s,
            cpu_s=round(time.process_time(), 3),
            rss_bytes=rss_bytes(),
            n_dropped_series=sum(scrape.n_dropped for scrape in scrapes),
            warnings=short(warnings),
            sources=[
                source_report(source, last, max_names=max_names) for source, last in sources.items()
            ],
            **facts,
        )


def _news(sources: Mapping[Source, Last], warnings: Sequence[str]) -> tuple[Any, ...]:
    return (
        tuple(warnings),
        tuple(
            (
                source.name,
                last.sample.state,
                source.warnings,
                *_look_news(source),
            )
            for source, last in sources.items()
        ),
    )


def _look_news(source: Source) -> tuple[Any, ...]:
    if not isinstance(source, EngineSource | GateSource):
        return ()
    return source.scrape.look.unmatched, source.scrape.look.n_bad_lines


def rss_bytes() -> float | None:
    """Resident memory of this process; None where the system does not say."""
    try:
        pages = int(_STATM.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def summary(report: wire.AgentReport) -> str:
    """What was found and what not, a paragraph a source, for whoever tries the agent."""
    lines = [f"! {warning}" for warning in report.warnings]
    for source in report.sources:
        what = " ".join(part for part in (source.engine, source.engine_version) if part)
        took = "" if source.read_s is None else f" in {source.read_s:.3f} s"
        if source.kind != "link":  # what measures a link is in its entry
            what = f"{what or 'unknown'}, "
        lines.append(f"{source.kind} {source.id}: {what}{source.state}{took}")
        if source.error:
            lines.append(f"  error: {source.error}")
        if source.state == "ok":
            lines.append(f"  found {len(source.found)}: {', '.join(source.found)}")
            lines += _missing(source.missing)
        if source.n_unmatched:
            named = ", ".join(source.unmatched[:8])
            more = ", …" if source.n_unmatched > 8 else ""
            lines.append(f"  {source.n_unmatched} series no map knows: {named}{more}")
        if source.n_bad_lines:
            lines.append(f"  {source.n_bad_lines} lines could not be read")
        lines += [f"  ! {warning}" for warning in source.warnings]
    return "\n".join(lines)


def _missing(missing: Mapping[str, str]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for name, reason in missing.items():
        by_reason.setdefault(reason, []).append(name)
    return [f"  missing, {why}: {', '.join(names)}" for why, names in sorted(by_reason.items())]
