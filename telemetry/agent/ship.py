"""Takes batches from the spool to the console, and what each answer means.

Two lanes over one spool. The newest batch that was never offered goes first, so that a console
that comes back shows current values at once; behind it the backlog goes oldest first, in order,
several batches in a POST. While both have work they alternate, so neither waits for the other's
end: a current batch waits for at most one POST of old ones, and a backlog shrinks even where
answers are slower than readings come.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import json
import logging
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import aiohttp
import msgspec

from telemetry import wire
from telemetry.agent.config import TokenError
from telemetry.agent.skew import Skew
from telemetry.agent.spool import Spool

log = logging.getLogger(__name__)

# Its checksum says that it is what this agent wrote, and it checked that before.
_decoder = msgspec.msgpack.Decoder(wire.Batch)

PATH = "/api/v1/ingest"
FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 10.0
DENIED_RETRY_S = 30.0
LONGEST_RETRY_AFTER_S = 600.0
POST_TIMEOUT_S = 15.0
MAX_GROUP = 32
MAX_GROUP_BYTES = 256 * 1024
"""Batches of the backlog in one POST, before compression."""
MIN_GZIP_BYTES = 2048
MAX_ANSWER_BYTES = 64 * 1024
MAX_REFUSED_BYTES = 8 * 1024 * 1024


class Verdict(enum.Enum):
    """What to do with a batch after an answer."""

    ACKED = "acked"
    RETRY = "retry"
    DENIED = "denied"
    SPLIT = "split"
    REFUSED = "refused"
    SUPERSEDED = "superseded"


class Superseded(RuntimeError):
    """The console knows a newer boot of this agent: going on would lose every batch."""


@dataclass(frozen=True)
class Answer:
    """One POST's outcome; status 0 when there was no answer at all.

    `unsent`: there was not even a connection, so the console certainly has nothing of it.
    """

    status: int
    text: str
    retry_after_s: float | None = None
    unsent: bool = False


def judge(answer: Answer, seq: int) -> Verdict:
    """What an answer to batch `seq` means."""
    status = answer.status
    if status == 200:
        # A proxy's own friendly page is not an acknowledgement.
        return Verdict.ACKED if _acked_seq(answer.text) == seq else Verdict.RETRY
    if status in (401, 403):
        return Verdict.DENIED
    if status == 409:
        return Verdict.SUPERSEDED
    if status == 413:
        return Verdict.SPLIT
    if 400 <= status < 500 and status not in (404, 405, 407, 408, 425, 429):
        return Verdict.REFUSED
    return Verdict.RETRY


def retry_delay_s(n_failures: int, retry_after_s: float | None, rng: random.Random) -> float:
    """Seconds to wait after the nth failure in a row: what was asked for, else doubling.

    Both carry jitter, so that agents that lost the console together do not return together.
    """
    jitter = rng.random()
    if retry_after_s is not None:
        return min(retry_after_s, LONGEST_RETRY_AFTER_S) * (1.0 + 0.1 * jitter)
    longest = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(n_failures - 1, 30))
    return longest * (0.5 + 0.5 * jitter)


def read_retry_after(header: str | None, now_s: float) -> float | None:
    """Seconds of a Retry-After header, which is a number or a date; None when it is neither."""
    if not header:
        return None
    if header.strip().isdecimal() and header.isascii():
        return float(header)
    try:
        at = parsedate_to_datetime(header)
    except ValueError:
        return None
    return max(0.0, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - now_s)


def halves(batch: wire.Batch) -> tuple[wire.Batch, wire.Batch] | None:
    """What a batch holds in two (same key: the caller gives new ones); None for one sample."""
    samples = [*batch.instances, *batch.links, *batch.routers]
    if len(samples) < 2:
        if not samples or batch.report is None:
            return None
        alone = msgspec.structs.replace(batch, instances=[], links=[], routers=[])
        return msgspec.structs.replace(batch, report=None), alone
    middle = len(samples) // 2
    first, second = (
        msgspec.structs.replace(
            batch,
            instances=[entry for entry in part if isinstance(entry, wire.InstanceSample)],
            links=[entry for entry in part if isinstance(entry, wire.LinkSample)],
            routers=[entry for entry in part if isinstance(entry, wire.RouterSample)],
            report=report,
        )
        for part, report in ((samples[:middle], batch.report), (samples[middle:], None))
    )
    return first, second


def merged(batches: Sequence[wire.Batch]) -> wire.Batch:
    """Batches in order as one, under the key of the last; of their reports the newest."""
    if len(batches) == 1:
        return batches[0]
    return msgspec.structs.replace(
        batches[-1],
        instances=[entry for batch in batches for entry in batch.instances],
        links=[entry for batch in batches for entry in batch.links],
        routers=[entry for batch in batches for entry in batch.routers],
        report=next((batch.report for batch in reversed(batches) if batch.report), None),
    )


def n_samples(batch: wire.Batch) -> int:
    return len(batch.instances) + len(batch.links) + len(batch.routers)


class Shipper:
    """Sends what is in the spool until it is stopped. Raises Superseded."""

    def __init__(
        self,
        *,
        spool: Spool,
        session: aiohttp.ClientSession,
        console_url: str,
        token: Callable[[], str],  # raises TokenError
        refused_file: Path,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._spool, self._session = spool, session
        self.aim(console_url)
        self._token, self._refused_file = token, refused_file
        self._clock, self._rng = clock, rng
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._settled = asyncio.Event()
        self._offered = 0
        self._owes_history = False
        self._n_failures = 0
        self._away_since_s: float | None = None
        self._away_as: Verdict | None = None
        self.skew = Skew()
        self.trouble: str | None = None
        """Why the console takes nothing now; None while it does."""

    def aim(self, console_url: str) -> None:
        """Send there from now on."""
        self._url = console_url.rstrip("/") + PATH

    @property
    def away(self) -> bool:
        """Whether the last attempt failed."""
        return self._away_since_s is not None

    def wake(self) -> None:
        """Say that the spool has a new batch."""
        self._idle.clear()
        self._settled.clear()
        self._wake.set()

    async def until_idle(self) -> None:
        """Return when everything spooled has been acknowledged."""
        await self._idle.wait()

    async def until_settled(self) -> None:
        """Return when there is nothing to wait for: all acknowledged, or an attempt failed."""
        await self._settled.wait()

    async def run(self) -> None:
        """Send for ever."""
        while True:
            batches = self._choose()
            if not batches:
                if self._spool.n_pending:
                    continue  # what was chosen could not be read and is dropped by now
                self._idle.set()
                self._settled.set()
                self._wake.clear()
                await self._wake.wait()
                continue
            delay_s = await self._send(batches)
            if delay_s:
                await asyncio.sleep(delay_s)

    def _choose(self) -> list[wire.Batch]:
        """What to send now: the newest batch if it was never offered, else the oldest ones."""
        newest, group = self._spool.newest(), self._spool.group()
        if newest is None:
            return []
        is_new = newest > self._offered and newest not in group
        if is_new and not self._owes_history:
            return self._read([newest])
        self._owes_history = False
        return self._history(group)

    def _history(self, group: Sequence[int]) -> list[wire.Batch]:
        """The group as offered before, else the oldest batches: as many as one POST takes."""
        chosen, n_bytes = list(group), 0
        for seq, size in () if group else self._spool.fresh(MAX_GROUP):
            n_bytes += size
            if chosen and n_bytes > MAX_GROUP_BYTES:
                break
            chosen.append(seq)
        oldest = self._spool.oldest()
        if not chosen and oldest is not None:
            chosen = [oldest]
        batches = self._read(chosen)
        counts = itertools.accumulate(n_samples(batch) for batch in batches)
        n_fit = sum(count <= wire.MAX_ITEMS_PER_BATCH for count in counts)
        return batches[: max(n_fit, 1)]

    async def _send(self, batches: Sequence[wire.Batch]) -> float:
        """Offer batches and act on the answer; returns the seconds to wait before the next."""
        seqs = [batch.seq for batch in batches]
        if seqs != self._spool.group():
            self._spool.offer(seqs)
        batch, seq = merged(batches), seqs[-1]
        if seq < self._offered and batch.report is not None:
            # The console keeps the report that came last, and a newer one came first.
            batch = msgspec.structs.replace(batch, report=None)
        answer = await self._post(batch)
        verdict = judge(answer, seq)
        if verdict is Verdict.SUPERSEDED:
            raise Superseded(
                f"the console refuses boot {batch.boot} of agent {batch.agent!r} ({answer.text}): "
                "another agent of that name is running, or this spool was copied; give one of "
                "them another name or another spool_dir"
            )
        if verdict in (Verdict.RETRY, Verdict.DENIED):
            if answer.unsent or verdict is Verdict.DENIED:
                # Certainly not stored: a backlog need not remember how it was offered.
                self._spool.withdraw(seqs)
            return self._failed(answer, verdict)
        self._back()
        self._offered = max(self._offered, seq)
        if verdict is Verdict.ACKED:
            # The last one last: as long as one is left, the group keeps its key.
            for done in seqs:
                self._spool.done(done)
        elif len(seqs) > 1:
            # Nothing of it was stored: alone, only the one at fault is split or set aside.
            self._spool.ungroup(seqs)
        elif verdict is Verdict.SPLIT and (parts := halves(batch)) is not None:
            self._split(seq, parts)
        else:
            self._set_aside(batch, answer)
            self._spool.done(seq)
        self._owes_history = seq == self._offered and self._spool.n_pending > 0
        return 0.0

    def _read(self, seqs: Sequence[int]) -> list[wire.Batch]:
        """Those of the batches that can be read; the others are dropped."""
        batches = []
        for seq in seqs:
            payload = self._spool.read(seq)
            try:
                if payload is not None:
                    batches.append(_decoder.decode(payload))
                    continue
            except msgspec.DecodeError as exc:
                log.error("batch %d in the spool cannot be read and is dropped: %s", seq, exc)
            self._spool.done(seq)
        return batches

    async def _post(self, batch: wire.Batch) -> Answer:
        try:
            headers = {
                "Authorization": f"Bearer {self._token()}",
                "Content-Type": "application/msgpack",
            }
        except TokenError as exc:
            return Answer(401, str(exc), unsent=True)
        # The console takes our clock's error from this, so it is when it leaves, not when it was
        # spooled.
        sent_s = self._clock()
        body = wire.encode(msgspec.structs.replace(batch, sent_at_s=sent_s))
        if len(body) >= MIN_GZIP_BYTES:
            body = zlib.compress(body, level=1, wbits=31)
            headers["Content-Encoding"] = "gzip"
        try:
            async with (
                asyncio.timeout(POST_TIMEOUT_S),
                self._session.post(
                    self._url, data=body, headers=headers, allow_redirects=False
                ) as answer,
            ):
                text = await _text(answer)
                date = answer.headers.get("Date")
                self.skew.heard(date, sent_s=sent_s, received_s=self._clock())
                retry_after = answer.headers.get("Retry-After")
                return Answer(answer.status, text, read_retry_after(retry_after, self._clock()))
        except TimeoutError:
            return Answer(0, f"no answer within {POST_TIMEOUT_S:g} s")
        except aiohttp.ClientConnectorError as exc:
            return Answer(0, str(exc) or type(exc).__name__, unsent=True)
        except (aiohttp.ClientError, OSError) as exc:
            return Answer(0, str(exc) or type(exc).__name__)

    def _failed(self, answer: Answer, verdict: Verdict) -> float:
        self._n_failures += 1
        self._settled.set()
        what = f"HTTP {answer.status}: {answer.text}" if answer.status else answer.text
        self.trouble = what[:300]
        if self._away_since_s is None:
            self._away_since_s = self._clock()
        if verdict is not self._away_as:
            self._away_as = verdict
            state = "away" if verdict is Verdict.RETRY else "takes no readings from us"
            log.warning("console %s (%s), spooling: %s", state, self._url, self.trouble)
        # Whoever answers next gets the newest reading first.
        self._owes_history = False
        if verdict is Verdict.DENIED:
            return DENIED_RETRY_S * (0.5 + 0.5 * self._rng.random())
        return retry_delay_s(self._n_failures, answer.retry_after_s, self._rng)

    def _back(self) -> None:
        self._n_failures, self.trouble = 0, None
        self._settled.clear()
        if self._away_since_s is not None:
            away_s = self._clock() - self._away_since_s
            self._away_since_s = self._away_as = None
            log.info("console back after %.0f s, %d batches to send", away_s, self._spool.n_pending)

    def _split(self, seq: int, parts: tuple[wire.Batch, wire.Batch]) -> None:
        keyed = []
        for part in parts:
            part_seq = self._spool.take_seq()
            keyed.append((part_seq, wire.encode(msgspec.structs.replace(part, seq=part_seq))))
        self._spool.replace(seq, keyed)
        log.warning("batch %d is too large for the console, sent as %s", seq, [s for s, _ in keyed])

    def _set_aside(self, batch: wire.Batch, answer: Answer) -> None:
        """Keep a batch the console will never take where a person can read why."""
        log.error(
            "the console refuses batch %d (HTTP %d: %s), set aside in %s",
            batch.seq,
            answer.status,
            answer.text[:300],
            self._refused_file,
        )
        line = {
            "at": datetime.fromtimestamp(self._clock(), UTC).isoformat(),
            "status": answer.status,
            "answer": answer.text,
            "batch": msgspec.to_builtins(batch),
        }
        try:
            if (
                self._refused_file.exists()
                and self._refused_file.stat().st_size > MAX_REFUSED_BYTES
            ):
                self._refused_file.replace(self._refused_file.with_suffix(".old"))
            with self._refused_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as exc:
            log.error("%s: %s, batch %d is dropped", self._refused_file, exc.strerror, batch.seq)


async def _text(answer: aiohttp.ClientResponse) -> str:
    body = b""
    async for chunk in answer.content.iter_chunked(4096):
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            break
    return body.decode("utf-8", errors="replace")


def _acked_seq(text: str) -> int | None:
    try:
        return msgspec.json.decode(text, type=wire.Ack).acked_seq
    except msgspec.DecodeError:
        return None
