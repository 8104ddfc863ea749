"""What a door says of itself in its batches: which targets it has, and what nobody wanted."""

from __future__ import annotations

from telemetry import wire
from telemetry.agent.app import version
from telemetry.agent.report import MAX_NAMES, rss_bytes, short
from telemetry.doors import intake

MAX_TARGETS = 2_000
"""Targets one report tells of; more are counted in a warning."""
UNMATCHED_KIND = "unmatched"


def report(taken: intake.Intake, *, started_s: float) -> wire.AgentReport:
    """The report of a door. What no rule matched stands as a source of kind `unmatched` (S-19)."""
    targets = sorted(taken.targets, key=lambda target: (target.place.kind, target.place.id))
    sources = [_source(target) for target in targets[:MAX_TARGETS]]
    warnings = []
    if len(targets) > MAX_TARGETS:
        warnings.append(f"{len(targets) - MAX_TARGETS} more targets are not listed")
    if taken.n_refused_series:
        warnings.append(f"{taken.n_refused_series} times a series was one too many")
    if taken.unmatched:
        sources.append(
            wire.SourceReport(
                kind=UNMATCHED_KIND,
                id=taken.rules.name,
                unmatched=list(taken.unmatched),
                n_unmatched=taken.n_unmatched,
                warnings=sorted(set(taken.unmatched.values()))[:20],
            )
        )
    return wire.AgentReport(
        version=version(),
        started_s=started_s,
        rss_bytes=rss_bytes(),
        n_dropped_series=taken.n_refused_series,
        warnings=warnings,
        sources=sources,
    )


def _source(target: intake.Target) -> wire.SourceReport:
    read = target.canonical
    signals = read.signals if read and target.error is None else {}
    return wire.SourceReport(
        kind=target.place.kind,
        id=target.place.id,
        engine=read.engine if read else "",
        engine_version=read.engine_version if read else "",
        state="ok" if target.error is None else "failed",
        error=target.error,
        n_series=len(target.series),
        found=[name for name, signal in signals.items() if signal.state != "missing"],
        missing={name: signal.reason or "" for name, signal in signals.items() if signal.reason},
        unmatched=[name[:200] for name in read.unmatched[:MAX_NAMES]] if read else [],
        n_unmatched=read.n_unmatched if read else 0,
        warnings=short(read.warnings) if read else [],
    )
