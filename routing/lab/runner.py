"""Drive a source of arrivals against gates, keep the count, write the record."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal, Self

import aiohttp
import msgspec

from routing.lab.arrivals import Arrival, Source
from routing.lab.client import CANCELLED, Result, completion_body, send
from routing.lab.content import Form, as_form
from routing.lab.errors import LabError

log = logging.getLogger("lab.load")
PROGRESS_S = 10.0
MAX_FAILURE_KINDS = 20
"""Kinds of failure told apart; what is of none of them is counted as `other`."""


@dataclass
class _Failure:
    """Failed requests of one kind: the same status and beginning of the error."""

    status: int | None
    error: str
    requests: int = 0
    first_at_s: float = 0.0
    last_at_s: float = 0.0
    last_id: str = ""


class Runner:
    """An async context manager: opens the client session and the record file, closes both."""

    def __init__(
        self,
        source: Source,
        *,
        targets: Sequence[str],
        form: Form,
        model: str,
        seed: int,
        limit: int | None,
        record: Path | None,
    ) -> None:
        self._source, self._targets, self._form = source, [t.rstrip("/") for t in targets], form
        self._model, self._seed, self._limit, self._record_path = model, seed, limit, record
        self._record: IO[bytes] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._results: Counter[str] = Counter()
        self._sides: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._failures: dict[tuple[int | None, str], _Failure] = {}
        self._ttft_s: list[float] = []
        self._n_reported = 0
        self._lag_s = 0.0
        self._start_s: float | None = None
        self._end_s: float | None = None
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if self._record_path is not None:
            try:
                self._record = self._closing.enter_context(self._record_path.open("wb", 0))
            except OSError as exc:
                raise LabError(
                    f"cannot be written: {exc.strerror}", source=str(self._record_path)
                ) from None
        # Open loop: no limit on connections, and an answer may take as long as it takes.
        self._session = await self._closing.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
                read_bufsize=2**16,
            )
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._drop()
        await self._closing.aclose()

    async def run(self, stop: asyncio.Event, *, duration_s: float | None, drain_s: float) -> None:
        """Send until the source or the duration ends or `stop` is set, then wait for answers.

        What is not answered after `drain_s`, or when `stop` is set, is cancelled.
        """
        self._start_s = asyncio.get_running_loop().time()
        stopped = asyncio.create_task(stop.wait())
        progress = asyncio.create_task(self._progress())
        feeding = asyncio.create_task(self._feed())
        try:
            await asyncio.wait(
                {feeding, stopped}, timeout=duration_s, return_when=asyncio.FIRST_COMPLETED
            )
            if feeding.done():
                feeding.result()
            feeding.cancel()
            self._end_s = asyncio.get_running_loop().time()
            await self._drain(stopped, drain_s)
        finally:
            for task in (stopped, progress, feeding):
                task.cancel()
            await asyncio.gather(stopped, progress, feeding, return_exceptions=True)
            await self._drop()

    async def _drain(self, stopped: asyncio.Task[Literal[True]], drain_s: float) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + drain_s
        while self._tasks and not stopped.done() and loop.time() < until_s:
            await asyncio.wait(
                {*self._tasks, stopped},
                timeout=until_s - loop.time(),
                return_when=asyncio.FIRST_COMPLETED,
            )

    def summary(self) -> dict[str, Any]:
        """Counts so far. `remote_share` is of the requests whose gate named a side; `rate_rps` over
        `sending_s`, the time in which requests were sent; `max_lag_s` how late one was at worst.
        `failures` are those that failed by status and error, the most frequent first."""
        now_s = asyncio.get_running_loop().time()
        until_s = now_s if self._end_s is None else self._end_s
        sending_s = 0.0 if self._start_s is None else until_s - self._start_s
        n_sides = self._sides.total()
        return {
            "requests": self._results["sent"],
            "completed": self._results["completed"],
            "failed": self._results["failed"],
            "cancelled": self._results["cancelled"],
            "failures": sorted(
                map(asdict, self._failures.values()), key=lambda f: f["requests"], reverse=True
            ),
            "in_flight": len(self._tasks),
            "sending_s": round(sending_s, 3),
            "rate_rps": round(self._results["sent"] / sending_s, 4) if sending_s > 0.0 else None,
            "ttft_s": percentiles(self._ttft_s),
            "remote_share": self._sides["remote"] / n_sides if n_sides else None,
            "reasons": dict(self._reasons),
            "prompt_tokens": self._tokens["prompt"],
            "cached_tokens": self._tokens["cached"],
            "max_lag_s": round(self._lag_s, 4),
        }

    async def _feed(self) -> None:
        loop = asyncio.get_running_loop()
        async for arrival in self._source.arrivals():
            if self._limit is not None and arrival.number >= self._limit:
                return
            self._lag_s = max(self._lag_s, loop.time() - arrival.due_s)
            self._results["sent"] += 1
            task = loop.create_task(self._one(arrival))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _one(self, arrival: Arrival) -> None:
        result = Result(
            id=f"load-{self._seed}-{arrival.number}",
            at_s=0.0,
            prompt_tokens=arrival.prompt_tokens,
            output_tokens=arrival.output_tokens,
            row=None if arrival.row is None else arrival.row.line,
        )
        body = completion_body(
            as_form(self._source.prompt(arrival), self._form),
            output_tokens=arrival.output_tokens,
            model=self._model,
        )
        target = self._targets[arrival.number % len(self._targets)]
        try:
            await send(self._session, target, result, body)
        finally:
            self._count(result)

    def _count(self, result: Result) -> None:
        if result.completed:
            self._results["completed"] += 1
            self._tokens["prompt"] += result.prompt_tokens
            self._tokens["cached"] += result.cached_tokens or 0
        elif result.error == CANCELLED:
            self._results["cancelled"] += 1
        else:
            self._results["failed"] += 1
            self._failed(result)
        if result.ttft_s is not None:
            self._ttft_s.append(result.ttft_s)
        if result.side is not None:
            self._sides[result.side] += 1
            self._reasons[result.gate.get("reason", "")] += 1
        if self._record is not None:
            self._record.write(msgspec.json.encode(result.document()) + b"\n")

    def _failed(self, result: Result) -> None:
        key: tuple[int | None, str] = (result.status, (result.error or "")[:200])
        if key not in self._failures:
            if len(self._failures) >= MAX_FAILURE_KINDS:
                key = (None, "other")
            else:
                log.warning("%s failed: %s %s", result.id, *key)
        failure = self._failures.setdefault(key, _Failure(*key, first_at_s=result.at_s))
        failure.requests += 1
        failure.last_at_s, failure.last_id = result.at_s, result.id

    async def _progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            summary = self.summary()
            fresh, self._n_reported = self._ttft_s[self._n_reported :], len(self._ttft_s)
            last, share = percentiles(fresh), summary["remote_share"]
            log.info(
                "%d s: %d sent (%.2f/s), %d completed, %d failed, %d in flight, "
                "ttft of the last %d p50 %s p90 %s, remote %s",
                summary["sending_s"],
                summary["requests"],
                summary["rate_rps"],
                summary["completed"],
                summary["failed"],
                summary["in_flight"],
                len(fresh),
                *("-" if last[p] is None else f"{last[p]:.2f} s" for p in ("p50", "p90")),
                "-" if share is None else f"{share:.1%}",
            )

    async def _drop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """p50, p90, p99 by nearest rank; None where there is nothing."""
    ranked = sorted(values)
    return {
        f"p{percent}": ranked[math.ceil(percent / 100 * len(ranked)) - 1] if ranked else None
        for percent in (50, 90, 99)
    }
