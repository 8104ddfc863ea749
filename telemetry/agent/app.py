"""The agent as one object: rounds of readings into the spool, the spool to the console."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from telemetry import wire
from telemetry.agent import sources
from telemetry.agent.collector import Collector
from telemetry.agent.config import Config, read_token
from telemetry.agent.ship import POST_TIMEOUT_S, Shipper
from telemetry.agent.sources import Sample
from telemetry.agent.spool import Spool

log = logging.getLogger(__name__)

SYNC_S = 5.0
"""A power cut loses at most this much of what the console does not have; a kill loses nothing."""
LAST_SEND_S = 2.0
# The rest of an interval is left for readings that come late.
_GRACE = 0.5


def batch_of(
    samples: Sequence[Sample], *, agent: str, boot: int, seq: int, now_s: float
) -> wire.Batch:
    """The samples as one batch."""
    return wire.Batch(
        v=wire.WIRE_VERSION,
        agent=agent,
        boot=boot,
        seq=seq,
        sent_at_s=now_s,
        instances=[entry for entry in samples if isinstance(entry, wire.InstanceSample)],
        links=[entry for entry in samples if isinstance(entry, wire.LinkSample)],
        routers=[entry for entry in samples if isinstance(entry, wire.RouterSample)],
    )


async def read_once(config: Config) -> wire.Batch:
    """One reading of every source, without spool or console."""
    async with aiohttp.ClientSession() as session:
        collector = Collector(sources.of(config, session=session, clock=time.time))
        samples = await collector.round(grace_s=2 * config.timeout_s + 1.0)
        await collector.close()
    return batch_of(samples, agent=config.agent, boot=0, seq=0, now_s=time.time())


class Agent:
    """Reads, spools and ships until told to stop. Raises ship.Superseded and spool.SpoolError."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._n_dropped_said = 0
        self._write_error_said: str | None = None

    async def run(self, stop: asyncio.Event, *, once: bool = False) -> int:
        """Returns the batches the console does not have; `once` offers it a single round."""
        config = self._config
        spool = Spool(Path(config.spool_dir), max_bytes=config.spool_max_bytes, now_s=time.time())
        with contextlib.closing(spool):
            for warning in spool.warnings:
                log.warning("spool: %s", warning)
            if spool.n_pending:
                log.info("spool: %d batches from before to send", spool.n_pending)
            async with aiohttp.ClientSession() as session:
                await self._run(spool, session, stop, once=once)
            if spool.n_pending:
                log.info("stopped, %d batches stay in the spool", spool.n_pending)
            return spool.n_pending

    async def _run(
        self, spool: Spool, session: aiohttp.ClientSession, stop: asyncio.Event, *, once: bool
    ) -> None:
        config = self._config
        shipper = Shipper(
            spool=spool,
            session=session,
            console_url=config.console_url,
            token=lambda: read_token(config),
            refused_file=Path(config.spool_dir) / "refused.jsonl",
            clock=time.time,
            rng=random.Random(),
        )
        collector = Collector(sources.of(config, session=session, clock=time.time))
        shipping = asyncio.create_task(shipper.run())
        stopping = asyncio.create_task(stop.wait())
        try:
            await self._rounds(collector, spool, shipper, (shipping, stopping), once=once)
            self._keep(collector.finished(), spool, shipper)
            if not shipper.away and not shipping.done():
                settled = asyncio.create_task(shipper.until_settled())
                await asyncio.wait(
                    (shipping, settled),
                    timeout=POST_TIMEOUT_S if once else LAST_SEND_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                settled.cancel()
        finally:
            stopping.cancel()
            await collector.close()
            shipping.cancel()
            # Ends by our cancelling it, or raises what ended it before: Superseded.
            with contextlib.suppress(asyncio.CancelledError):
                await shipping

    async def _rounds(
        self,
        collector: Collector,
        spool: Spool,
        shipper: Shipper,
        ends: tuple[asyncio.Task[None], asyncio.Task[bool]],
        *,
        once: bool,
    ) -> None:
        interval_s = self._config.interval_s
        started_s = time.monotonic()
        synced_s = started_s
        if spool.n_pending:
            shipper.wake()
        while True:
            grace_s = 2 * self._config.timeout_s + 1.0 if once else interval_s * _GRACE
            self._keep(await collector.round(grace_s=grace_s), spool, shipper)
            if once:
                return
            now_s = time.monotonic()
            if now_s - synced_s >= SYNC_S:
                synced_s = now_s
                await _sync(spool)
            # Rounds stay on their own beat; one that took too long skips the beats it missed.
            wait_s = interval_s - (time.monotonic() - started_s) % interval_s
            done, _ = await asyncio.wait(ends, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return

    def _keep(self, samples: Sequence[Sample], spool: Spool, shipper: Shipper) -> None:
        """Spool the samples as batches no larger than the console takes."""
        for start in range(0, len(samples), wire.MAX_ITEMS_PER_BATCH):
            seq = spool.take_seq()
            batch = batch_of(
                samples[start : start + wire.MAX_ITEMS_PER_BATCH],
                agent=self._config.agent,
                boot=spool.boot,
                seq=seq,
                now_s=time.time(),
            )
            spool.append(seq, wire.encode(batch))
            shipper.wake()
        self._say(spool)

    def _say(self, spool: Spool) -> None:
        if spool.n_dropped > self._n_dropped_said:
            log.error(
                "spool is full (%d bytes): dropped the oldest %d batches, %d in all",
                self._config.spool_max_bytes,
                spool.n_dropped - self._n_dropped_said,
                spool.n_dropped,
            )
            self._n_dropped_said = spool.n_dropped
        if spool.write_error != self._write_error_said:
            self._write_error_said = spool.write_error
            if spool.write_error is None:
                log.info("spool: the disk takes writes again")
            else:
                log.error("spool: %s; keeping the newest batches in memory", spool.write_error)


async def _sync(spool: Spool) -> None:
    descriptor = spool.sync_fd()
    if descriptor is None:
        return
    try:
        await asyncio.to_thread(os.fdatasync, descriptor)
    except OSError as exc:
        log.warning("spool: fdatasync: %s", exc.strerror)
    finally:
        os.close(descriptor)
