"""From settled windows to committed batches, and who may be told so.

One batch is under way at a time. While the console cannot store it, it is offered again under the
same key, nothing new is taken in, and everybody who waits is told to come back: senders keep what
was not acknowledged, so nothing is lost and our memory stays flat.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from telemetry import wire
from telemetry.doors import intake
from telemetry.doors.reporting import report
from telemetry.flusher import Rejected, Unavailable

log = logging.getLogger(__name__)

TICK_S = 0.1
ANSWER_TIMEOUT_S = 10.0
"""How long an answer waits for its commit before it says: come back."""
REPORT_EVERY_S = 30.0
AT_ONCE = 16
MAX_PER_ROUND = 1_000
"""Samples made without letting others run, and before the first of them are shipped."""
_RETRY_S = 0.5
_LONGEST_RETRY_S = 5.0


class Outcome(Protocol):
    """What became of a batch: `stored`, `duplicate` or `older`."""

    @property
    def state(self) -> str: ...


class Offer(Protocol):
    """The ingest queue: answers after the commit, raises Unavailable or Rejected."""

    async def __call__(self, batch: wire.Batch, *, received_s: float) -> Outcome: ...


class Door:
    """Owns an Intake and ships what it makes as the agent `agent`."""

    def __init__(
        self,
        taken: intake.Intake,
        offer: Offer,
        *,
        agent: str,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self.intake = taken
        self._offer, self._agent = offer, agent
        self._clock, self._rng = clock, rng
        self._boot = int(clock() * 1000)
        self._started_s = clock()
        self._seq = 0
        self._reported_s = 0.0
        self._away: str | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to ship, in the running loop."""
        self._task = asyncio.create_task(self._run(), name=f"door {self._agent}")

    async def stop(self) -> None:
        """Ship what has come, briefly, then end; who still waits is told to come back."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        if self._away is None:
            with contextlib.suppress(TimeoutError, Unavailable, Rejected):
                async with asyncio.timeout(1.0):
                    await self._ship(self.intake.due(self._clock(), all_of_them=True))
        self._away = "the console is stopping"
        self._tell()

    def admit(self) -> None:
        """Raises Unavailable while nothing can be taken in."""
        if self._away is not None:
            raise Unavailable(self._away)
        if self.intake.full:
            raise Unavailable("too many samples are waiting for their commit")

    async def committed(self, receipt: intake.Receipt) -> None:
        """Return when all that a request brought is stored, or refused for good.

        What the database refuses is counted in the receipt. Raises Unavailable, and the request
        may be sent again.
        """
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                while any(window.state == "waiting" for window in receipt.windows):
                    changed = self._changed
                    if self._away is not None:
                        raise Unavailable(self._away)
                    await changed.wait()
        except TimeoutError:
            raise Unavailable("its commit takes too long") from None
        if n_refused := sum(window.state == "refused" for window in receipt.windows):
            receipt.refuse("of a reading that cannot be stored, see the console's log", n_refused)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            due: list[intake.Due] = []
            try:
                # Reading many targets takes long enough for every socket to notice.
                while part := self.intake.due(self._clock(), most=AT_ONCE):
                    due += part
                    if len(due) >= MAX_PER_ROUND:
                        break
                    await asyncio.sleep(0)
                await self._ship(due)
            except Exception:
                # A fault of ours in one round must not close the door for ever.
                log.exception("a round of %s failed", self._agent)
                lost = [entry for entry in due if entry.window.state == "waiting"]
                self._settle(lost, stored=False)
                self._tell()

    async def _ship(self, due: Sequence[intake.Due]) -> None:
        silent = [entry for entry in due if entry.sample is None]
        shown = [entry for entry in due if entry.sample is not None]
        self._settle(silent)
        for start in range(0, len(shown), wire.MAX_ITEMS_PER_BATCH):
            await self._commit(shown[start : start + wire.MAX_ITEMS_PER_BATCH])
        if not shown and self._owes_report() and (self.intake.unmatched or self._reported_s):
            # Where no rule matches, nothing else would ever say so.
            await self._commit(())
        if silent:
            self._tell()

    async def _commit(self, due: Sequence[intake.Due]) -> None:
        """Offer one batch until it is stored, or refused for its content."""
        batch = self._batch(due)
        failures = 0
        while True:
            now_s = self._clock()
            try:
                outcome = await self._offer(
                    msgspec.structs.replace(batch, sent_at_s=now_s), received_s=now_s
                )
            except Unavailable as exc:
                failures += 1
                if self._away is None:
                    log.warning("%s takes nothing: %s", self._agent, exc)
                self._away = str(exc)
                self._tell()
                wait_s = min(_RETRY_S * 2.0 ** min(failures - 1, 10), _LONGEST_RETRY_S)
                await asyncio.sleep(wait_s * self._rng.uniform(0.5, 1.0))
                continue
            except Rejected as exc:
                self._back()
                await self._split(due, str(exc))
                return
            self._back()
            if outcome.state == "older":
                # Another process ships under this name; a newer boot takes over from it.
                self._boot = int(self._clock() * 1000)
                batch = self._batch(due)
                continue
            self._settle(due)
            self._tell()
            return

    def _owes_report(self) -> bool:
        return self._clock() - self._reported_s >= REPORT_EVERY_S

    async def _split(self, due: Sequence[intake.Due], why: str) -> None:
        if not due:
            log.error("the report of %s cannot be stored: %s", self._agent, why)
            return
        if len(due) > 1:
            middle = len(due) // 2
            await self._commit(due[:middle])
            await self._commit(due[middle:])
            return
        log.error("the sample of %s cannot be stored: %s", due[0].target.place.id, why)
        self._settle(due, stored=False)
        self._tell()

    def _batch(self, due: Sequence[intake.Due]) -> wire.Batch:
        samples = [entry.sample for entry in due]
        now_s = self._clock()
        self._seq += 1
        told = None
        if self._owes_report():
            self._reported_s = now_s
            told = report(self.intake, started_s=self._started_s)
        return wire.Batch(
            v=wire.WIRE_VERSION,
            agent=self._agent,
            boot=self._boot,
            seq=self._seq,
            sent_at_s=now_s,
            instances=[s for s in samples if isinstance(s, wire.InstanceSample)],
            links=[s for s in samples if isinstance(s, wire.LinkSample)],
            routers=[s for s in samples if isinstance(s, wire.RouterSample)],
            report=told,
        )

    def _settle(self, due: Sequence[intake.Due], *, stored: bool = True) -> None:
        for entry in due:
            self.intake.settle(entry, stored=stored)

    def _back(self) -> None:
        if self._away is not None:
            log.info("%s takes samples again", self._agent)
        self._away = None

    def _tell(self) -> None:
        """Wake everybody who waits; each looks whether it was meant."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
