"""Group commit: batches wait up to 100 ms, then one transaction stores them all.

`offer` answers with a future that resolves only after the commit. The queue is bounded by batches
and by bytes; when it is full, or the database is away, offering raises Unavailable at once, so
that agents spool and come back instead of waiting in our memory.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import psycopg
from prometheus_client import Counter, Gauge, Histogram

from telemetry import wire
from telemetry.arrivals import Arrival
from telemetry.landing import Landing, Outcome

log = logging.getLogger(__name__)

WINDOW_S: Final = 0.1
MAX_HELD_BYTES: Final = 64 * 1024 * 1024
_START_TIMEOUT_S: Final = 3.0
_COMMIT_TIMEOUT_S: Final = 20.0
_UPKEEP_EVERY_S: Final = 5.0
_RETRY_S: Final = (0.1, 0.3, 1.0, 2.0)

QUEUED = Gauge("prfaas_ingest_queued_batches", "Batches waiting for their commit.")
COMMIT_S = Histogram(
    "prfaas_ingest_commit_seconds",
    "One group commit.",
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0),
)
BATCHES = Counter("prfaas_ingest_batches", "Batches by what became of them.", ["outcome"])

Connect = Callable[[], Awaitable[psycopg.AsyncConnection]]


class Unavailable(RuntimeError):
    """The batch was not stored and may be sent again after `retry_s`: the queue or the database."""

    def __init__(self, error: str, *, retry_s: float = 1.0) -> None:
        super().__init__(error)
        self.retry_s = retry_s


class Rejected(RuntimeError):
    """The database refuses this very batch. `by_content`: its values are at fault."""

    def __init__(self, error: str, *, by_content: bool) -> None:
        super().__init__(error)
        self.by_content = by_content


@dataclass(frozen=True)
class _Waiting:
    arrival: Arrival
    done: asyncio.Future[Outcome]


class Flusher:
    """Owns one database connection and the queue in front of it."""

    def __init__(
        self,
        connect: Connect,
        *,
        publish: Callable[[list[Arrival]], None],
        max_batches: int,
        upkeep: Callable[[psycopg.AsyncConnection], Awaitable[None]] | None = None,
        window_s: float = WINDOW_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._connect = connect
        self._publish = publish
        self._max_batches = max_batches
        self._upkeep = upkeep
        self._window_s = window_s
        self._clock = clock
        self._waiting: list[_Waiting] = []
        self._flushing: list[_Waiting] = []
        self._held_bytes = 0
        self._work = asyncio.Event()
        self._stopping = False
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        QUEUED.set_function(lambda: len(self._waiting))

    async def start(self) -> None:
        """Begin to connect and commit; a database that is there is waited for, briefly."""
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run(), name="ingest flusher")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ready.wait(), _START_TIMEOUT_S)

    async def stop(self) -> None:
        """Commit what waits, then end; what cannot be committed is answered Unavailable."""
        self._stopping = True
        self._work.set()
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._task, _COMMIT_TIMEOUT_S)
        self._fail(self._flushing + self._take(), "the console is stopping")

    def hold(self, n_bytes: int) -> None:
        """Count bytes of a body being received. Raises Unavailable when there is no room."""
        if not self._ready.is_set():
            raise Unavailable("the database is away", retry_s=2.0)
        if len(self._waiting) + len(self._flushing) >= self._max_batches:
            raise Unavailable("the ingest queue is full")
        if self._held_bytes + n_bytes > MAX_HELD_BYTES:
            raise Unavailable("too many bytes are waiting for their commit")
        self._held_bytes += n_bytes

    def release(self, n_bytes: int) -> None:
        """Give back what `hold` counted."""
        self._held_bytes -= n_bytes

    def put(
        self, batch: wire.Batch, *, received_s: float, encoded: bytes | None = None
    ) -> asyncio.Future[Outcome]:
        """Take a batch; the future tells its outcome after the commit, or Unavailable or Rejected.

        `encoded` are its msgpack bytes, where they are at hand. Raises Unavailable.
        """
        self.hold(0)
        if self._stopping:
            raise Unavailable("the console is stopping")
        assert self._loop is not None  # it holds nothing before it has begun
        arrival = Arrival.of(batch, received_s=received_s, encoded=encoded)
        done: asyncio.Future[Outcome] = self._loop.create_future()
        self._waiting.append(_Waiting(arrival, done))
        self._work.set()
        return done

    async def offer(self, batch: wire.Batch, *, received_s: float) -> Outcome:
        """What became of a batch, after the commit. Raises Unavailable or Rejected."""
        return await self.put(batch, received_s=received_s)

    async def _run(self) -> None:
        failures = 0
        while not self._stopping:
            connection = None
            try:
                connection = await self._connect()
                landing = Landing(connection)
                await landing.make_partitions(datetime.fromtimestamp(self._clock(), UTC))
                if failures:
                    log.info("ingest has its database again")
                failures = 0
                self._ready.set()
                await self._commit_groups(connection, landing)
            except Exception as exc:  # whatever it is, the next connection may be better
                if failures == 0:
                    log.warning("ingest has no database: %s", str(exc).strip() or repr(exc))
                failures += 1
            finally:
                self._ready.clear()
                self._fail(self._flushing + self._take(), "the database is away")
                self._flushing = []  # or it would go on filling the queue
                if connection is not None:
                    with contextlib.suppress(Exception):
                        await connection.close()
            if failures:
                # Jitter, or every web process would knock at the same moment.
                delay_s = _RETRY_S[min(failures, len(_RETRY_S)) - 1]
                await asyncio.sleep(delay_s * random.uniform(0.5, 1.5))

    async def _commit_groups(self, connection: psycopg.AsyncConnection, landing: Landing) -> None:
        """Commit groups until stopped. Raises psycopg.Error or TimeoutError with the connection."""
        kept_up_s = self._clock()
        next_s = time.monotonic()
        while self._waiting or not self._stopping:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._work.wait(), _UPKEEP_EVERY_S)
            if self._upkeep is not None and self._clock() >= kept_up_s + _UPKEEP_EVERY_S:
                kept_up_s = self._clock()
                await self._upkeep(connection)
            if not self._stopping:
                # One turn at least: what came along with the first goes along.
                await asyncio.sleep(max(0.0, next_s - time.monotonic()))
            next_s = time.monotonic() + self._window_s
            self._flushing = self._take()
            if self._flushing:
                await self._flush(connection, landing, self._flushing)
            self._flushing = []

    async def _flush(
        self, connection: psycopg.AsyncConnection, landing: Landing, group: Sequence[_Waiting]
    ) -> None:
        started_s = time.perf_counter()
        try:
            async with asyncio.timeout(_COMMIT_TIMEOUT_S):
                outcomes = await landing.commit([w.arrival for w in group])
        except TimeoutError:
            raise
        except Exception as exc:
            if connection.closed or connection.broken:
                raise
            if isinstance(exc, psycopg.OperationalError):
                log.warning("a group commit was refused: %s", str(exc).strip())
                self._fail(group, "the database refused for now")
            elif len(group) == 1:
                self._reject(group[0], exc)
            else:
                # One bad batch must not take the others down: halve until it stands alone.
                middle = len(group) // 2
                await self._flush(connection, landing, group[:middle])
                await self._flush(connection, landing, group[middle:])
            return
        COMMIT_S.observe(time.perf_counter() - started_s)
        for state, n in collections.Counter(outcome.state for outcome in outcomes).items():
            BATCHES.labels(state).inc(n)
        stored = []
        for waiting, outcome in zip(group, outcomes, strict=True):
            if outcome.state == "stored":
                stored.append(waiting.arrival)
            if not waiting.done.done():
                waiting.done.set_result(outcome)
        if stored:
            self._publish(stored)

    def _reject(self, waiting: _Waiting, exc: Exception) -> None:
        log.error("batch %s/%s/%s rejected: %s", *waiting.arrival.key, exc)
        BATCHES.labels("rejected").inc()
        by_content = isinstance(exc, psycopg.DataError | psycopg.IntegrityError)
        primary = exc.diag.message_primary if isinstance(exc, psycopg.Error) else None
        text = primary or str(exc) or type(exc).__name__
        if not waiting.done.done():
            waiting.done.set_exception(Rejected(text, by_content=by_content))

    def _take(self) -> list[_Waiting]:
        taken, self._waiting = self._waiting, []
        if not self._stopping:
            self._work.clear()
        return taken

    @staticmethod
    def _fail(group: Sequence[_Waiting], error: str) -> None:
        for waiting in group:
            if not waiting.done.done():
                BATCHES.labels("unavailable").inc()
                waiting.done.set_exception(Unavailable(error))
