"""The agent as one object: rounds of readings into the spool, the spool to the console."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp

from telemetry import wire
from telemetry.agent.collector import Collector
from telemetry.agent.config import Config, read_token
from telemetry.agent.finders import Finders
from telemetry.agent.reload import Reloader
from telemetry.agent.report import Reporter
from telemetry.agent.roster import Roster
from telemetry.agent.ship import POST_TIMEOUT_S, Shipper
from telemetry.agent.sources import Sample
from telemetry.agent.spool import Spool

log = logging.getLogger(__name__)

SYNC_S = 5.0
"""A power cut loses at most this much of what the console does not have; a kill loses nothing."""
LOOK_S = 2.0
"""How often the configuration file is looked at."""
LAST_SEND_S = 2.0
FIRST_ANSWERS_S = 10.0
"""How long `--once` waits for discovery."""
_DISTRIBUTION = "prfaas-console"
# The rest of an interval is left for readings that come late.
_GRACE = 0.5


def version() -> str:
    """Of the package this runs from; empty where it is not installed as one."""
    try:
        return importlib.metadata.version(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return ""


def batch_of(
    samples: Sequence[Sample],
    *,
    agent: str,
    boot: int,
    seq: int,
    now_s: float,
    report: wire.AgentReport | None = None,
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
        report=report,
    )


def new_session() -> aiohttp.ClientSession:
    """For everything an agent asks: one slow host must not use up the connections of the others."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def read_once(config: Config) -> wire.Batch:
    """One reading of every source, without spool or console; its report says what was found."""
    started_s = time.time()
    async with new_session() as session:
        site = _Site(config, session)
        await site.finders.first_answers(FIRST_ANSWERS_S)
        site.follow(config)
        samples = await site.collector.round(grace_s=_long_grace_s(config))
        reporter = Reporter(version=version(), started_s=started_s)
        warnings = site.warnings
        report = reporter.report(site.collector.last, warnings, interval_s=config.interval_s)
        await site.close()
    return batch_of(samples, agent=config.agent, boot=0, seq=0, now_s=time.time(), report=report)


def _long_grace_s(config: Config) -> float:
    """Every reading of a single round, however slow: none comes later."""
    return 2 * max([config.timeout_s, *(i.timeout_s or 0.0 for i in config.instances)]) + 1.0


class _Site:
    """Everything that is read, as configuration and discovery have it now."""

    def __init__(self, config: Config, session: aiohttp.ClientSession) -> None:
        self.finders = Finders(session=session, rng=random.Random())
        self.collector = Collector()
        self._roster = Roster(session=session, clock=time.time)
        self.finders.run_these(config.discover)
        self.follow(config)

    def follow(self, config: Config) -> list[wire.InstanceSample]:
        """Read what is there now; returns the last samples of instances that are not."""
        self.finders.changed = False
        gone = self._roster.update(config, self.finders.found)
        self.collector.read_these(self._roster.sources)
        for sample in gone:
            log.info("%s is gone", sample.id)
        return gone

    @property
    def warnings(self) -> tuple[str, ...]:
        return (*self.finders.warnings, *self._roster.warnings)

    async def close(self) -> None:
        await self.finders.close()
        await self.collector.close()


class Agent:
    """Reads, spools and ships until told to stop. Raises ship.Superseded and spool.SpoolError.

    With `path`, where `config` was read from, it follows that file; `name` goes before the name
    in it.
    """

    def __init__(self, config: Config, path: Path | None = None, *, name: str = "") -> None:
        self._config = config
        self._reloader = None if path is None else Reloader(path, config, name=name)
        self._reporter = Reporter(version=version(), started_s=time.time())
        self._n_dropped_said = 0
        self._write_error_said: str | None = None

    def reload(self) -> None:
        """Read the configuration file again at the next round."""
        if self._reloader is not None:
            self._reloader.ask()

    async def run(self, stop: asyncio.Event, *, once: bool = False) -> int:
        """Returns the batches the console does not have; `once` offers it a single round."""
        config = self._config
        spool = Spool(Path(config.spool_dir), max_bytes=config.spool_max_bytes, now_s=time.time())
        with contextlib.closing(spool):
            for warning in spool.warnings:
                log.warning("spool: %s", warning)
            if spool.n_pending:
                log.info("spool: %d batches from before to send", spool.n_pending)
            async with new_session() as session:
                await self._run(spool, session, stop, once=once)
            if spool.n_pending:
                log.info("stopped, %d batches stay in the spool", spool.n_pending)
            return spool.n_pending

    async def _run(
        self, spool: Spool, session: aiohttp.ClientSession, stop: asyncio.Event, *, once: bool
    ) -> None:
        shipper = Shipper(
            spool=spool,
            session=session,
            console_url=self._config.console_url,
            token=lambda: read_token(self._config),
            refused_file=Path(self._config.spool_dir) / "refused.jsonl",
            clock=time.time,
            rng=random.Random(),
        )
        site = _Site(self._config, session)
        shipping = asyncio.create_task(shipper.run())
        stopping = asyncio.create_task(stop.wait())
        try:
            await self._rounds(site, spool, shipper, (shipping, stopping), once=once)
            self._keep(site.collector.finished(), spool, shipper)
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
            await site.close()
            shipping.cancel()
            # Ends by our cancelling it, or raises what ended it before: Superseded.
            with contextlib.suppress(asyncio.CancelledError):
                await shipping

    async def _rounds(
        self,
        site: _Site,
        spool: Spool,
        shipper: Shipper,
        ends: tuple[asyncio.Task[None], asyncio.Task[bool]],
        *,
        once: bool,
    ) -> None:
        started_s = looked_s = synced_s = time.monotonic()
        if spool.n_pending:
            shipper.wake()
        if once:
            await site.finders.first_answers(FIRST_ANSWERS_S)
        while True:
            now_s = time.monotonic()
            if now_s - looked_s >= LOOK_S or self._is_asked:
                looked_s = now_s
                self._look(site, shipper)
            gone = site.follow(self._config) if site.finders.changed else []
            interval_s = self._config.interval_s
            grace_s = _long_grace_s(self._config) if once else interval_s * _GRACE
            samples = await site.collector.round(grace_s=grace_s)
            self._keep([*gone, *samples], spool, shipper, self._report(site, spool, shipper))
            if once:
                return
            if time.monotonic() - synced_s >= SYNC_S:
                synced_s = time.monotonic()
                await _sync(spool)
            # Rounds stay on their own beat; one that took too long skips the beats it missed.
            wait_s = interval_s - (time.monotonic() - started_s) % interval_s
            done, _ = await asyncio.wait(ends, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return

    @property
    def _is_asked(self) -> bool:
        return self._reloader is not None and self._reloader.asked

    def _look(self, site: _Site, shipper: Shipper) -> None:
        """Follow the configuration file, if it says something else that can be used."""
        config = None if self._reloader is None else self._reloader.look()
        if config is not None:
            self._config = config
            shipper.aim(config.console_url)
            site.finders.run_these(config.discover)

    def _report(self, site: _Site, spool: Spool, shipper: Shipper) -> wire.AgentReport | None:
        """What there is to say of this agent now, if it is time to say it."""
        warnings = [*site.warnings]
        if self._reloader is not None:
            warnings += self._reloader.warnings
        if spool.write_error is not None:
            warnings.append(f"spool: {spool.write_error}; the newest batches are in memory only")
        if shipper.trouble is not None:
            warnings.append(f"the console took nothing when this was written: {shipper.trouble}")
        if not self._reporter.due(site.collector.last, warnings, now_s=time.time()):
            return None
        skew_s = shipper.skew.skew_s
        facts: dict[str, Any] = {
            "interval_s": self._config.interval_s,
            "skew_s": None if skew_s is None else round(skew_s, 3),
            "n_spooled_batches": spool.n_pending,
            "spooled_bytes": spool.n_bytes,
            "n_dropped_batches": spool.n_dropped,
        }
        return self._reporter.report(site.collector.last, [*spool.warnings, *warnings], **facts)

    def _keep(
        self,
        samples: Sequence[Sample],
        spool: Spool,
        shipper: Shipper,
        report: wire.AgentReport | None = None,
    ) -> None:
        """Spool the samples as batches no larger than the console takes."""
        size = wire.MAX_ITEMS_PER_BATCH
        parts = [samples[start : start + size] for start in range(0, len(samples), size)]
        if not parts and report is not None:
            parts = [[]]
        for i, part in enumerate(parts):
            seq = spool.take_seq()
            batch = batch_of(
                part,
                agent=self._config.agent,
                boot=spool.boot,
                seq=seq,
                now_s=time.time(),
                report=report if i == 0 else None,
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
