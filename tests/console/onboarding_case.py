"""Telemetry as it stands in the tables, written by hand: sources, agents, reports, refusals."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from console.wanted import wanted_of
from telemetry import reports, wire
from telemetry.models import Agent, Refusal, Source, StoredReport

ROLES = {"prefill": "prefill", "pd": "decode"}


def agent(name: str, *, silent_s: float = 1.0, skew_s: float = 0.0) -> None:
    at = timezone.now() - timedelta(seconds=silent_s)
    Agent.objects.update_or_create(
        name=name, defaults={"boot": 1, "last_seq": 9, "last_seen_at": at, "skew_s": skew_s}
    )


def source(
    path: str, kind: str = "instance", *, by: str = "a1", role: str = "", silent_s: float = 1.0
) -> None:
    at = timezone.now() - timedelta(seconds=silent_s)
    engine = {"instance": "vllm", "router": "gate", "link": ""}[kind]
    Source.objects.update_or_create(
        kind=kind,
        path=path,
        defaults={"role": role, "engine": engine, "agent": by, "last_seen_at": at},
    )


def tells(
    path: str, kind: str = "instance", *, role: str = "", without: tuple[str, ...] = (), **more: Any
) -> wire.SourceReport:
    """A source's part of a report, with everything wanted of it but `without`."""
    found = [want.name for want in wanted_of(kind, role) if want.name not in without]
    facts: dict[str, Any] = {
        "engine": "vllm",
        "engine_version": "0.32.0",
        "read_s": 0.012,
        "n_series": 240,
        "missing": dict.fromkeys(without, "no series of this engine says it"),
    }
    return wire.SourceReport(kind=kind, id=path, found=found, **{**facts, **more})


def report(name: str, *sources: wire.SourceReport, silent_s: float = 0.0, **more: Any) -> None:
    StoredReport.objects.update_or_create(
        agent=name,
        defaults={
            "report": reports.encoded(wire.AgentReport(sources=list(sources), **more)),
            "reported_at": timezone.now() - timedelta(seconds=silent_s),
        },
    )


def refusal(status: int, *, name: str = "", ago_s: float = 5.0, **more: Any) -> None:
    at = timezone.now() - timedelta(seconds=ago_s)
    facts = {"count": 1, "error": "no", "field": "", "first_at": at, "last_at": at}
    Refusal.objects.create(agent=name, status=status, **{**facts, **more})


def well(fleet: str = "f1", *, n_prefill: int = 4, n_pd: int = 8) -> None:
    """Everything of the test fleet reports everything."""
    paths = [(f"{fleet}/prfaas/h200-{n + 1}", "prefill") for n in range(n_prefill)]
    paths += [(f"{fleet}/pd/h20-{n + 1}", "prefill" if n < 3 else "decode") for n in range(n_pd)]
    for path, role in paths:
        source(path, role=role)
    source("prfaas->pd", "link")
    source(f"{fleet}/pd/gw-1", "router")
    agent("a1")
    report(
        "a1",
        *(tells(path, role=role) for path, role in paths),
        tells("prfaas->pd", "link"),
        tells(f"{fleet}/pd/gw-1", "router"),
        version="0.5.0",
        interval_s=1.0,
        rss_bytes=44e6,
    )
