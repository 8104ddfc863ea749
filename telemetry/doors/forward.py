"""Our history to what the site keeps history in: remote-write 1.0, one value in ten seconds.

    prfaas_instance_<signal>{fleet, cluster, instance, role, engine}
    prfaas_router_<signal>{fleet, cluster, router, kind}
    prfaas_link_<signal>{link, layer}

Labelled signals carry their key in `key`, histograms are classic ones, `..._up` is 1 for a good
reading. Only committed batches come here. Whoever stores them may be away for as long as the queue
has room; then the oldest values are dropped, and counted.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import logging
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import aiohttp
from prometheus_client import Counter, Gauge

from telemetry import wire
from telemetry.doors import remote_write_encode
from telemetry.doors.remote_write_encode import Value

log = logging.getLogger(__name__)

RESOLUTION_S: Final = 10.0
MAX_QUEUED: Final = 50_000
"""Readings that wait; a few kilobytes each."""
MAX_PER_POST: Final = 50
_MAX_SOURCES: Final = 50_000
_POST_TIMEOUT_S: Final = 20.0
_RETRY_S: Final = 0.5
_LONGEST_RETRY_S: Final = 30.0
_LAST_SEND_S: Final = 2.0

READINGS = Counter(
    "prfaas_forward_readings", "Readings to forward, by what became of them.", ["outcome"]
)
QUEUED = Gauge("prfaas_forward_queued_readings", "Readings that wait to be forwarded.")

Sample = wire.InstanceSample | wire.LinkSample | wire.RouterSample


def values_of(sample: Sample) -> Iterator[Value]:
    """One sample as series."""
    kind, labels = _head(sample)
    at_ms = round(sample.at_s * 1000)
    yield Value(f"prfaas_{kind}_up", labels, float(sample.state == "ok"), at_ms)
    if isinstance(sample, wire.RouterSample):
        for name in ("plan_epoch", "plan_version"):
            if (number := getattr(sample, name)) is not None:
                yield Value(f"prfaas_router_{name}", labels, float(number), at_ms)
    for signal in sample.signals.__struct_fields__:
        measured = getattr(sample.signals, signal)
        name = f"prfaas_{kind}_{signal}"
        if isinstance(measured, dict):
            for key, inner in measured.items():
                yield from _series(name, {**labels, "key": key}, inner, at_ms)
        elif measured is not None and not isinstance(measured, str):
            yield from _series(name, labels, measured, at_ms)


def _head(sample: Sample) -> tuple[str, dict[str, str]]:
    if isinstance(sample, wire.LinkSample):
        return "link", {"link": sample.id, "layer": sample.measured_layer}
    fleet, cluster, name = sample.id.split("/")
    place = {"fleet": fleet, "cluster": cluster}
    if isinstance(sample, wire.RouterSample):
        return "router", {**place, "router": name, "kind": sample.kind}
    return "instance", {**place, "instance": name, "role": sample.role, "engine": sample.engine}


def _series(
    name: str, labels: Mapping[str, str], measured: float | wire.Histogram, at_ms: int
) -> Iterator[Value]:
    if not isinstance(measured, wire.Histogram):
        yield Value(name, labels, float(measured), at_ms)
        return
    bounds = [*(repr(float(edge)) for edge in measured.edges), "+Inf"]
    for bound, count in zip(bounds, itertools.accumulate(measured.counts), strict=True):
        yield Value(f"{name}_bucket", {**labels, "le": bound}, count, at_ms)
    yield Value(f"{name}_sum", labels, measured.sum, at_ms)
    yield Value(f"{name}_count", labels, measured.count, at_ms)


class Forwarder:
    """A queue in memory and one sender behind it."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        clock: Callable[[], float],
        rng: random.Random,
        max_queued: int = MAX_QUEUED,
    ) -> None:
        self._url, self._headers = url, {**headers, **remote_write_encode.HEADERS}
        self._clock, self._rng, self._max_queued = clock, rng, max_queued
        self._queue: collections.deque[Sample] = collections.deque()
        self._newest: dict[tuple[str, str], int] = {}
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._away = False
        self.n_queued = 0
        self.n_dropped = 0

    def put(self, batches: Sequence[wire.Batch]) -> None:
        """Queue what committed batches bring to their ten seconds. Never blocks, never fails."""
        for batch in batches:
            for samples in (batch.instances, batch.links, batch.routers):
                due = [sample for sample in samples if self._is_due(sample)]
                self._queue.extend(due)
                self.n_queued += len(due)
        while self.n_queued > self._max_queued and self._queue:
            self._queue.popleft()
            self.n_queued -= 1
            self.n_dropped += 1
            READINGS.labels("dropped").inc()
        QUEUED.set(self.n_queued)
        if self._queue:
            self._work.set()

    def _is_due(self, sample: Any) -> bool:
        """Whether it is the first of its source in its ten seconds, and none came of later ones:
        most receivers take a series in the order of time only."""
        if sample.state == "gone":
            return False
        key = (type(sample).__name__, sample.id)
        slot = math.floor(sample.at_s / RESOLUTION_S)
        if slot <= self._newest.get(key, -1):
            return False
        if len(self._newest) >= _MAX_SOURCES:
            self._newest.clear()
        self._newest[key] = slot
        return True

    def start(self) -> None:
        """Begin to send, in the running loop."""
        self._task = asyncio.create_task(self._run(), name="forwarder")

    async def stop(self) -> None:
        """Send what waits, briefly, then end."""
        if self._task is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SEND_S):
                while self.n_queued and not self._away:
                    await asyncio.sleep(0.02)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                await self._work.wait()
                self._work.clear()
                while part := self._take():
                    # A reading with its histograms is hundreds of values: off the event loop.
                    body = await asyncio.to_thread(_body, part)
                    failures = 0
                    while (wait_s := await self._send(session, body, len(part), failures)) is not (
                        None
                    ):
                        failures += 1
                        await asyncio.sleep(wait_s)
                    self.n_queued -= len(part)
                    QUEUED.set(self.n_queued)

    def _take(self) -> list[Sample]:
        """The oldest readings, as many as one request carries; they count until they are sent."""
        n = min(len(self._queue), MAX_PER_POST)
        return [self._queue.popleft() for _ in range(n)]

    async def _send(
        self, session: aiohttp.ClientSession, body: bytes, n: int, failures: int
    ) -> float | None:
        """None when the `n` readings are off our hands, else the seconds to wait before again."""
        retry_after = ""
        try:
            async with (
                asyncio.timeout(_POST_TIMEOUT_S),
                session.post(
                    self._url, data=body, headers=self._headers, allow_redirects=False
                ) as answer,
            ):
                status = answer.status
                retry_after = answer.headers.get("Retry-After", "")
                text = (await answer.content.read(500)).decode("utf-8", errors="replace")
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            status, text = 0, str(exc) or type(exc).__name__
        if 200 <= status < 300:
            self._say(None)
            READINGS.labels("sent").inc(n)
            return None
        if 300 <= status < 500 and status != 429:
            # They will never be taken; part of them may have been (values out of order).
            self._say(None)
            READINGS.labels("refused").inc(n)
            log.warning("history: HTTP %d for %d readings: %.300s", status, n, text.strip())
            return None
        self._say(f"HTTP {status}: {text}" if status else text)
        if retry_after.isascii() and retry_after.isdecimal():
            return min(float(retry_after), _LONGEST_RETRY_S)
        longest_s = min(_LONGEST_RETRY_S, _RETRY_S * 2.0 ** min(failures, 10))
        return longest_s * self._rng.uniform(0.5, 1.0)

    def _say(self, trouble: str | None) -> None:
        if trouble is not None and not self._away:
            log.warning("history is not taken, up to %d readings wait: %.300s",
                        self._max_queued, trouble)  # fmt: skip
        elif trouble is None and self._away:
            log.info("history is taken again, %d readings wait", self.n_queued)
        self._away = trouble is not None


def _body(samples: list[Sample]) -> bytes:
    """The samples as one compressed request."""
    values = [value for sample in samples for value in values_of(sample)]
    return remote_write_encode.compressed(remote_write_encode.write_request(values))
