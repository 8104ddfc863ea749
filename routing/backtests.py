"""Backtests and their runs: the only writer of TraceFile, Backtest and BacktestRun.

The tables are the queue. A worker takes the next run by an update that only one of them can make,
and each sign of life it gives names the attempt it is: of a worker that was taken for dead nothing
counts any more. A run whose worker is silent for `SILENT_S` waits for another one; the message that
wakes a worker may be lost, because the sweep sends it again.
"""

from __future__ import annotations

import dataclasses
import datetime
import gzip
import hashlib
import zlib
from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.db.models import Count, Q, QuerySet

from routing import audit, knobs
from routing import backtest_asked as asking
from routing.backtest_asked import Asked
from routing.backtest_recordings import beginning_as_lived, recorded
from routing.backtest_workloads import WorkloadError, prepare, recording_from, settings_of
from routing.commands import Refused
from routing.core.model.lengths import usable
from routing.core.scenario.tables import ScenarioError
from routing.core.types import LengthHistogram
from routing.core.what_if.changes import changed_document
from routing.models import Backtest, BacktestRun, Fleet, TraceFile
from routing.simulating import SimulateError
from routing.trace_files import trace_of
from routing.twin.trace_rows import TraceError

SILENT_S = 120.0
"""Between two signs of life lie a hundredth of the simulated time, or the reading of a trace."""
MOST_ATTEMPTS = 3
MOST_OPEN = 10
"""Backtests of a fleet that are not over."""
MOST_TRACE_BYTES = 64 << 20
KEPT = datetime.timedelta(days=90)
_HEAD_BYTES = 1 << 18
_GZIP = b"\x1f\x8b"
_MOST_NOTE = 200
_OPEN = ("queued", "running")


def store_trace(
    *, fleet: Fleet, name: str, data: bytes, actor: str, via: str, now: datetime.datetime
) -> TraceFile:
    """Keeps an upload, once. Its beginning is read at once, all of it by the worker.

    Raises Refused.
    """
    name = name.strip().rpartition("/")[2][:200] or "trace"
    if len(data) > MOST_TRACE_BYTES:
        message = f"has {len(data):,} bytes; at most {MOST_TRACE_BYTES:,} are taken"
        raise Refused("trace", name, message)
    _check_head(data, name)
    digest = hashlib.sha256(data).hexdigest()
    packed = data if data.startswith(_GZIP) else gzip.compress(data, 6)
    with transaction.atomic():
        found, created = TraceFile.objects.get_or_create(
            fleet=fleet,
            sha256=digest,
            defaults={
                "name": name,
                "n_bytes": len(data),
                "data": packed,
                "uploaded_by": actor,
                "created_at": now,
            },
        )
        if created:
            audit.record(
                actor=actor,
                via=via,
                verb="trace.upload",
                fleet=fleet.pk,
                target=name,
                after={"n_bytes": len(data), "sha256": digest},
            )
    return found


def create(
    *,
    fleet: Fleet,
    asked: Asked,
    actor: str,
    via: str,
    now: datetime.datetime,
    trace: TraceFile | None = None,
    since: datetime.datetime | None = None,
    until: datetime.datetime | None = None,
    lengths: Mapping[str, LengthHistogram | None] | None = None,
    note: str = "",
) -> Backtest:
    """One backtest with a run for each policy and seed, all of them queued. Raises Refused.

    `trace` is for the workload of that name; `since` and `until` for a recorded one; `lengths` what
    gates counted lately, for numbers that ask for it.
    """
    if len(note) > _MOST_NOTE:
        raise Refused("note", note, f"must have at most {_MOST_NOTE} characters")
    if (asked.workload == "trace") != (trace is not None):
        message = "choose one" if trace is None else f"is not read for workload {asked.workload}"
        raise Refused("trace", None if trace is None else trace.name, message)
    asked = dataclasses.replace(asked, knobs=knobs.checked(fleet.policy.knobs))
    try:
        document, scenario = changed_document(fleet.scenario, asked.numbers, _usable(lengths))
        document = _with_cache(document, asked, scenario)
        scenario, settings = settings_of(document)
        asked = asking.checked(asked, scenario, settings)
        recording, facts = None, None
        if asked.workload == "recorded":
            if since is None or until is None:
                raise Refused("since", since, "say from when to when")
            recording = recorded(fleet, scenario, since, until)
            document = beginning_as_lived(document, recording)
        if trace is None:
            again = None if recording is None else recording_from(recording)
            facts = prepare(document, asked, again).facts
            if recording is not None:
                facts |= {key: recording[key] for key in ("from_s", "until_s", "n_missing")}
    except (ScenarioError, SimulateError) as exc:
        raise Refused(exc.field, exc.value, exc.message) from None
    except WorkloadError as exc:
        raise Refused("scale_value", asked.scale_value, str(exc)) from None
    with transaction.atomic():
        # One after the other for each fleet, or two of them could both be the last one allowed.
        Fleet.objects.select_for_update(no_key=True).get(pk=fleet.pk)
        if open_backtests(fleet).count() >= MOST_OPEN:
            message = f"{MOST_OPEN} backtests of this fleet are not over: cancel one, or wait"
            raise Refused("fleet", fleet.pk, message)
        made = Backtest.objects.create(
            fleet=fleet,
            scenario=document,
            asked=asked.to_json(),
            trace=trace,
            recording=recording,
            prepared=facts,
            note=note,
            requested_by=actor,
            created_at=now,
        )
        BacktestRun.objects.bulk_create(
            BacktestRun(backtest=made, policy=policy, place=place, seed=seed)
            for seed in range(1, asked.seeds + 1)
            for place, policy in enumerate(asked.policies)
        )
        audit.record(
            actor=actor,
            via=via,
            verb="backtest.create",
            fleet=fleet.pk,
            target=f"backtest {made.pk}",
            after={
                "workload": asked.workload,
                "trace": trace and trace.name,
                "policies": list(asked.policies),
                "seeds": asked.seeds,
            },
            reason=note,
        )
    return made


def cancel(
    *, backtest: Backtest, actor: str, via: str, reason: str, now: datetime.datetime
) -> Backtest:
    """What waits is cancelled at once, what runs as soon as it looks up. Raises Refused."""
    if len(reason) > 500:
        raise Refused("reason", reason, "must have at most 500 characters")
    with transaction.atomic():
        asked = Backtest.objects.filter(pk=backtest.pk, cancel_requested=False)
        if not backtest.runs.filter(state__in=_OPEN).exists():
            raise Refused("backtest", backtest.pk, "is over: there is nothing left to cancel")
        if not asked.update(cancel_requested=True, cancelled_by=actor):
            raise Refused("backtest", backtest.pk, "was cancelled already")
        _cancel_queued(now)
        audit.record(
            actor=actor,
            via=via,
            verb="backtest.cancel",
            fleet=backtest.fleet_id,
            target=f"backtest {backtest.pk}",
            reason=reason,
        )
    backtest.refresh_from_db()
    return backtest


def open_backtests(fleet: Fleet) -> QuerySet[Backtest]:
    """Those that are not over."""
    return Backtest.objects.filter(fleet=fleet, runs__state__in=_OPEN).distinct()


def counted(rows: QuerySet[Backtest]) -> QuerySet[Backtest]:
    """With how many of their runs are in which state, as `n_STATE` and `n_runs`."""
    states = ("queued", "running", "done", "failed", "cancelled")
    counts = {f"n_{state}": Count("runs", filter=Q(runs__state=state)) for state in states}
    return rows.annotate(n_runs=Count("runs"), **counts)


def claim_next(now: datetime.datetime) -> BacktestRun | None:
    """The next run for whoever asks, all policies of a seed before the next seed; None: nothing
    waits."""
    with transaction.atomic():
        waiting = BacktestRun.objects.select_for_update(skip_locked=True, of=("self",))
        run = (
            waiting.filter(state="queued", backtest__cancel_requested=False)
            .order_by("backtest_id", "seed", "place")
            .first()
        )
        if run is None:
            return None
        run.state, run.attempt = "running", run.attempt + 1
        run.started_at = run.heartbeat_at = now
        run.progress, run.report = 0.0, None
        run.save(
            update_fields=["state", "attempt", "started_at", "heartbeat_at", "progress", "report"]
        )
    return run


def beat(
    run: BacktestRun, now: datetime.datetime, progress: float, report: dict[str, Any] | None
) -> bool:
    """A sign of life. False: stop, it was cancelled or given to another worker."""
    values: dict[str, Any] = {"heartbeat_at": now, "progress": progress}
    if report is not None:
        values["report"] = report
    return bool(_mine(run).filter(backtest__cancel_requested=False).update(**values))


def finish(run: BacktestRun, now: datetime.datetime, report: dict[str, Any]) -> None:
    _mine(run).update(
        state="done", progress=1.0, report=report, wall_s=report["wall_s"], finished_at=now
    )


def stopped(run: BacktestRun, now: datetime.datetime) -> None:
    """It left off because `beat` told it to."""
    _mine(run).filter(backtest__cancel_requested=True).update(state="cancelled", finished_at=now)


def fail(run: BacktestRun, now: datetime.datetime, error: str) -> None:
    _mine(run).update(state="failed", error=_short(error), finished_at=now)


def fail_all(run: BacktestRun, now: datetime.datetime, error: str) -> None:
    """What is wrong with the backtest itself is wrong with every run that waits."""
    fail(run, now, error)
    waiting = BacktestRun.objects.filter(backtest_id=run.backtest_id, state="queued")
    waiting.update(state="failed", error=_short(error), finished_at=now)


def set_prepared(backtest: Backtest, facts: dict[str, Any]) -> None:
    """What the workload turned out to be; every worker finds the same."""
    Backtest.objects.filter(pk=backtest.pk, prepared__isnull=True).update(prepared=facts)


def sweep(now: datetime.datetime) -> int:
    """Gives up workers that are silent. Returns how many runs wait for one."""
    _cancel_queued(now)
    silent = BacktestRun.objects.filter(
        state="running", heartbeat_at__lt=now - datetime.timedelta(seconds=SILENT_S)
    )
    silent.filter(backtest__cancel_requested=True).update(state="cancelled", finished_at=now)
    silent.filter(attempt__gte=MOST_ATTEMPTS).update(
        state="failed",
        finished_at=now,
        error=f"its worker fell silent for {SILENT_S:g} s, {MOST_ATTEMPTS} times in a row",
    )
    silent.update(state="queued", progress=0.0)
    return BacktestRun.objects.filter(state="queued").count()


def prune(before: datetime.datetime) -> int:
    """Forget backtests that are over and older, and traces that nothing refers to."""
    old = Backtest.objects.filter(created_at__lt=before).exclude(runs__state__in=_OPEN)
    _, by_table = old.delete()
    TraceFile.objects.filter(created_at__lt=before, backtests=None).delete()
    return by_table.get("routing.Backtest", 0)


def _check_head(data: bytes, name: str) -> None:
    """Says at once what is wrong with the first lines, as long as whole ones are among them."""
    try:
        head = data[:_HEAD_BYTES]
        if data.startswith(_GZIP):
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, _HEAD_BYTES)
        if len(head) == _HEAD_BYTES:
            head = head[: head.rfind(b"\n") + 1]
            if not head:
                return
        trace_of(head, source=name)
    except (TraceError, zlib.error) as exc:
        raise Refused("trace", name, str(exc)) from None


def _cancel_queued(now: datetime.datetime) -> None:
    BacktestRun.objects.filter(state="queued", backtest__cancel_requested=True).update(
        state="cancelled", finished_at=now
    )


def _mine(run: BacktestRun) -> QuerySet[BacktestRun]:
    return BacktestRun.objects.filter(pk=run.pk, attempt=run.attempt, state="running")


def _with_cache(document: dict[str, Any], asked: Asked, scenario: Any) -> dict[str, Any]:
    if asked.cache == "scenario":
        return document
    table = asking.cache_table(asked, scenario)
    kept = {key: value for key, value in document.items() if key != "cache"}
    return kept if table is None else {**kept, "cache": table}


def _usable(
    lengths: Mapping[str, LengthHistogram | None] | None,
) -> dict[str, LengthHistogram | None]:
    return {
        name: each if each is not None and usable(each) else None
        for name, each in (lengths or {}).items()
    }


def _short(text: str) -> str:
    return text if len(text) <= 500 else f"{text[:497]}..."
