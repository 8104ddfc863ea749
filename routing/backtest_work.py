"""What a worker of the twin does: take a run, simulate it, tell how far it is."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime

from routing import backtests
from routing.backtest_asked import ORACLE, Asked
from routing.backtest_workloads import Prepared, WorkloadError, prepare, recording_from
from routing.core.scenario.tables import ScenarioError
from routing.models import Backtest, BacktestRun, TraceFile
from routing.simulating import SimulateError
from routing.trace_files import trace_of
from routing.twin.fleet import simulate
from routing.twin.oracle import oracle
from routing.twin.policies import PolicyError
from routing.twin.recorded import Recording
from routing.twin.report import Report
from routing.twin.trace_rows import TraceError
from routing.twin.traces import Trace

Clock = Callable[[], datetime]

MOST_TEXT_BYTES = 256 << 20
_TOLD, _TOLD_S = 100, 900.0
"""A run is looked at so many times, and at least every so many simulated seconds: a worker that is
at work is never taken for silent. It tells of it no more often than `_BEAT_S` of its own time."""
_BEAT_S = 0.5
_PARTIAL_S = 1.0
_LOOK_S = 1.0
_OF_ALL = (TraceError, ScenarioError, SimulateError, WorkloadError)
"""What is wrong with the workload, whoever decides on it."""

log = logging.getLogger(__name__)


def work(clock: Clock) -> bool:
    """Takes one run as far as it goes. False: nothing waits."""
    run = backtests.claim_next(clock())
    if run is None:
        return False
    try:
        _simulate(run, clock)
    except _Ended:
        backtests.stopped(run, clock())
    except _OF_ALL as exc:
        backtests.fail_all(run, clock(), str(exc))
    except PolicyError as exc:
        backtests.fail(run, clock(), str(exc))
    except Exception as exc:
        log.exception("run %s of backtest %s failed", run, run.backtest_id)
        why = f"{type(exc).__name__}: {exc}"
        backtests.fail(run, clock(), f"the twin failed ({why}); the worker's log has more")
    return True


def _simulate(run: BacktestRun, clock: Clock) -> None:
    prepared = _prepared(run.backtest_id)
    backtest = Backtest.objects.get(pk=run.backtest_id)
    backtests.set_prepared(backtest, prepared.facts)
    lived = () if backtest.recording is None else backtest.recording["lived"]
    asked = prepared.run(run.policy, run.seed, lived)
    told = _Telling(run, clock, asked.duration_s)
    if not backtests.beat(run, clock(), 0.0, None):
        backtests.stopped(run, clock())
        return
    began = time.perf_counter()
    if run.policy == ORACLE:
        with _looking_up(told.still):
            asked = dataclasses.replace(asked, policy=oracle(asked))
    every_s = min(asked.duration_s / _TOLD, _TOLD_S)
    report = simulate(asked, told, told_every_s=every_s)
    if told.ended:
        backtests.stopped(run, clock())
        return
    wall_s = time.perf_counter() - began
    backtests.finish(run, clock(), report.to_json() | {"wall_s": wall_s})


class _Ended(Exception):
    """Somebody cancelled what has no place to be asked from."""


@contextlib.contextmanager
def _looking_up(look: Callable[[], None]) -> Iterator[None]:
    """Calls `look` between two steps of what runs inside, each `_LOOK_S` of this process's time.

    What runs inside must not touch the database: `look` does, in the same thread. A worker of
    threads has no such signals; there nothing is told until it is through.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    was = signal.signal(signal.SIGVTALRM, lambda *_: look())
    signal.setitimer(signal.ITIMER_VIRTUAL, _LOOK_S, _LOOK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, was)


class _Telling:
    """The progress callback: tells the database now and then, and stops when that says so."""

    def __init__(self, run: BacktestRun, clock: Clock, duration_s: float) -> None:
        self._run, self._clock, self._duration_s = run, clock, duration_s
        self._beat_at = self._partial_at = time.monotonic()
        self.ended = False

    def still(self) -> None:
        """It is at work before the first simulated second. Raises _Ended."""
        if not backtests.beat(self._run, self._clock(), 0.0, None):
            raise _Ended

    def __call__(self, at_s: float, report: Report) -> bool:
        now_s = time.monotonic()
        if now_s - self._beat_at < _BEAT_S:
            return True
        self._beat_at = now_s
        partial = None
        if now_s - self._partial_at >= _PARTIAL_S:
            self._partial_at = now_s
            partial = report.to_json()
        ratio = min(at_s / self._duration_s, 1.0)
        self.ended = not backtests.beat(self._run, self._clock(), ratio, partial)
        return not self.ended


@functools.lru_cache(maxsize=2)
def _prepared(backtest_id: int) -> Prepared:
    """Kept from run to run: a backtest and its trace never change."""
    backtest = Backtest.objects.get(pk=backtest_id)
    asked = Asked.from_json(backtest.asked)
    recorded: Trace | Recording | None = None
    if backtest.trace_id is not None:
        recorded = _trace(backtest.trace_id)
    elif backtest.recording is not None:
        recorded = recording_from(backtest.recording)
    return prepare(backtest.scenario, asked, recorded)


@functools.lru_cache(maxsize=1)
def _trace(trace_id: int) -> Trace | Recording:
    stored = TraceFile.objects.get(pk=trace_id)
    return trace_of(bytes(stored.data), source=stored.name, most_bytes=MOST_TEXT_BYTES)
