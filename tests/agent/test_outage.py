"""The console away for fifteen minutes, then back: everything once, in order, current values at
once, history late."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from telemetry import wire
from telemetry.agent import ship
from telemetry.agent.ship import Shipper
from telemetry.agent.spool import Spool
from tests.agent.site import Eventually, Site, samples

T0 = 1_800_000_000.0
AWAY_S = 900
ENGINES = 8


class Readings:
    """Rounds of eight engines a second by a clock of its own, as the agent spools them."""

    def __init__(self, spool: Spool, shipper: Shipper) -> None:
        self._spool, self._shipper = spool, shipper
        self.now_s = T0

    def tick(self) -> float:
        """One round, a second later; returns its time."""
        self.now_s += 1.0
        seq = self._spool.take_seq()
        histogram = wire.Histogram(edges=[1.0, 2.0], counts=[1.0, 2.0, 3.0], sum=self.now_s - T0)
        signals = wire.InstanceSignals(requests_running=float(seq % 7), ttft_seconds=histogram)
        batch = wire.Batch(
            v=1,
            agent="a",
            boot=self._spool.boot,
            seq=seq,
            sent_at_s=self.now_s,
            instances=[
                wire.InstanceSample(
                    id=f"f/pd/{i}", role="decode", engine="vllm", at_s=self.now_s, signals=signals
                )
                for i in range(ENGINES)
            ],
        )
        self._spool.append(seq, wire.encode(batch))
        self._shipper.wake()
        return self.now_s


def arrivals(console: Any, path: str) -> list[float]:
    """When what was read, in the order it arrived."""
    return [s.at_s for batch in console.batches for s in batch.instances if s.id == path]


async def test_fifteen_minutes_of_rounds_come_once_in_order_and_behind_the_current_ones(
    tmp_path: Path, console: Any, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """A real console on loopback goes away and comes back; only the seconds are made shorter."""
    monkeypatch.setattr(ship, "LONGEST_RETRY_S", 0.02)
    spool = Spool(tmp_path / "spool", max_bytes=64 * 1024 * 1024, now_s=T0)
    async with aiohttp.ClientSession() as session:
        shipper = Shipper(
            spool=spool,
            session=session,
            console_url=console.url,
            token=lambda: "pf_x_y",
            refused_file=tmp_path / "refused.jsonl",
            clock=lambda: readings.now_s,
            rng=random.Random(1),
        )
        readings = Readings(spool, shipper)
        task = asyncio.create_task(shipper.run())
        readings.tick()
        await shipper.until_idle()
        await console.stop()
        away_s = [readings.tick() for _ in range(AWAY_S)]
        await eventually(lambda: shipper.away)
        assert spool.n_pending == AWAY_S

        is_current: list[bool] = []

        def respond(batch: wire.Batch) -> None:
            # Rounds go on while the backlog drains, one for each answer.
            if len(is_current) < 20:
                times = {sample.at_s for sample in batch.instances}
                is_current.append(times == {readings.now_s})
                readings.tick()

        console.respond = respond
        await console.start()
        n_before = len(console.offers)
        await shipper.until_idle()
        task.cancel()
    spool.close()

    sent = [[sample.at_s for sample in offer.instances[::ENGINES]] for offer in console.offers]
    sent = sent[n_before:]
    assert sent[0] == [away_s[-1]], "the newest reading first"
    assert is_current == [True, False] * 10, "a current round waits for one POST of history"
    history = [at_s for times in sent for at_s in times if at_s in set(away_s[:-1])]
    assert history == away_s[:-1], "everything of the outage once and in order"
    for i in range(ENGINES):
        times = arrivals(console, f"f/pd/{i}")
        assert sorted(times) == [T0 + 1.0 + n for n in range(len(times))]
    assert len(console.offers) == len(console.batches)
    assert len(sent) < 100, "history goes many rounds a POST"
    assert all(batch.instances[0].signals.ttft_seconds for batch in console.batches)


async def test_rounds_that_do_not_fit_the_disk_are_dropped_oldest_first_and_counted(
    tmp_path: Path, console: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ship, "LONGEST_RETRY_S", 0.02)
    spool = Spool(tmp_path / "spool", max_bytes=256 * 1024, now_s=T0)
    async with aiohttp.ClientSession() as session:
        shipper = Shipper(
            spool=spool,
            session=session,
            console_url=console.url,
            token=lambda: "pf_x_y",
            refused_file=tmp_path / "refused.jsonl",
            clock=lambda: T0,
            rng=random.Random(1),
        )
        readings = Readings(spool, shipper)
        await console.stop()
        for _ in range(AWAY_S):
            readings.tick()
        assert spool.n_bytes <= 256 * 1024
        assert 0 < spool.n_dropped < AWAY_S
        await console.start()
        task = asyncio.create_task(shipper.run())
        await shipper.until_idle()
        task.cancel()
    spool.close()
    assert sorted(arrivals(console, "f/pd/0")) == [
        T0 + 1.0 + n for n in range(spool.n_dropped, AWAY_S)
    ]


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_fifteen_real_minutes(
    site: Site, console: Any, engine: Any, eventually: Eventually
) -> None:
    """The same with the agent's own process, clock and disk, at one round a second."""
    site.settings = {"interval_s": 1.0}
    for i in range(ENGINES):
        site.engine(engine.url, f"p{i}")
    process = await site.process()
    await eventually(lambda: len(console.batches) >= 5)
    await console.stop()
    away_from_s = time.time()
    await asyncio.sleep(AWAY_S)
    before = len(console.batches)
    await console.start()
    back_s = time.time()
    await eventually(lambda: len(console.batches) > before)
    first = console.batches[before]
    first_lag_s = first.sent_at_s - first.instances[0].at_s
    await eventually(lambda: spooled(site) == 0)
    process.terminate()
    await process.communicate()
    assert process.returncode == 0
    # The last wait between attempts is 10 s at most; what comes then is of that second.
    assert first.sent_at_s - back_s < 12.0
    assert first_lag_s < 2.5
    for i in range(ENGINES):
        found = samples(console, f"f/pd/p{i}")
        times = [sample.at_s for sample in found]
        assert len(set(times)) == len(times)
        assert {sample.state for sample in found} == {"ok"}
        gaps = [after - was for was, after in itertools.pairwise(times)]
        assert max(gaps) < 4.0
        assert sum(away_from_s < at_s < back_s for at_s in times) > 0.97 * AWAY_S
    history = [
        at_s
        for batch in console.batches[before + 1 :]
        for at_s in {s.at_s for s in batch.instances if s.id == "f/pd/p0"}
        if at_s < back_s
    ]
    assert len(history) > 0.97 * AWAY_S


def spooled(site: Site) -> int:
    return sum(path.stat().st_size for path in (site.folder / "spool").glob("*.segment"))
