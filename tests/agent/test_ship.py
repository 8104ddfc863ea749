"""What the console's answers mean, and in which order batches go to it."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from telemetry import wire
from telemetry.agent import ship
from telemetry.agent.config import TokenError
from telemetry.agent.ship import Answer, Shipper, Superseded, Verdict, judge
from telemetry.agent.spool import Spool

Eventually = Callable[[Callable[[], Any]], Awaitable[None]]

VERDICTS = [
    (200, '{"acked_seq": 7}', Verdict.ACKED),
    (200, '{"acked_seq": 6}', Verdict.RETRY),
    (200, "<html>welcome to our proxy</html>", Verdict.RETRY),
    (0, "connection refused", Verdict.RETRY),
    (302, "", Verdict.RETRY),
    (400, "", Verdict.REFUSED),
    (401, "", Verdict.DENIED),
    (403, "", Verdict.DENIED),
    (404, "", Verdict.RETRY),
    (409, "", Verdict.SUPERSEDED),
    (413, "", Verdict.SPLIT),
    (415, "", Verdict.REFUSED),
    (422, "", Verdict.REFUSED),
    (429, "", Verdict.RETRY),
    (500, "", Verdict.RETRY),
    (503, "", Verdict.RETRY),
]


@pytest.mark.parametrize(("status", "text", "want"), VERDICTS)
def test_what_an_answer_means(status: int, text: str, want: Verdict) -> None:
    assert judge(Answer(status, text), 7) is want


def test_retries_slow_down_with_jitter_and_a_bound() -> None:
    rng = random.Random(1)
    for n, longest in ((1, 0.5), (2, 1.0), (3, 2.0), (5, 8.0), (6, 10.0), (10_000, 10.0)):
        delays = [ship.retry_delay_s(n, None, rng) for _ in range(50)]
        assert longest / 2 <= min(delays) < max(delays) <= longest
    assert 7.0 <= ship.retry_delay_s(1, 7.0, rng) <= 7.7
    assert ship.retry_delay_s(1, 1e9, rng) <= 660.0


@pytest.mark.parametrize(
    ("header", "want"),
    [
        ("7", 7.0),
        ("Wed, 21 Oct 2026 07:28:10 GMT", 10.0),
        ("Wed, 21 Oct 2026 07:27:00 GMT", 0.0),
        ("soon", None),
        ("\N{SUPERSCRIPT TWO}", None),
        ("9" * 400, float("inf")),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_a_number_or_a_date(header: str | None, want: float | None) -> None:
    assert ship.read_retry_after(header, 1792567680.0) == want


def batch_of(n: int) -> wire.Batch:
    """A batch of n instances, n links and n routers."""
    return wire.Batch(
        v=1,
        agent="a",
        boot=1,
        seq=1,
        sent_at_s=1.7e9,
        instances=[
            wire.InstanceSample(id=f"f/c/i{i}", role="prefill", engine="vllm", at_s=1.7e9)
            for i in range(n)
        ],
        links=[wire.LinkSample(id=f"a->b{i}", at_s=1.7e9, measured_layer="lab") for i in range(n)],
        routers=[wire.RouterSample(id=f"f/c/g{i}", kind="gate", at_s=1.7e9) for i in range(n)],
    )


def ids(*batches: wire.Batch) -> list[str]:
    return [s.id for b in batches for s in (*b.instances, *b.links, *b.routers)]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_halves_hold_every_sample_once(n: int) -> None:
    whole = batch_of(n)
    parts = ship.halves(whole)
    assert parts is not None
    assert ids(*parts) == ids(whole)
    assert abs(len(ids(parts[0])) - len(ids(parts[1]))) <= 1


def test_one_sample_cannot_be_halved() -> None:
    one = wire.Batch(
        v=1, agent="a", boot=1, seq=1, sent_at_s=1.7e9, instances=batch_of(1).instances
    )
    assert ship.halves(one) is None


@dataclass
class Rig:
    """A shipper between a real spool and the console peer; `now_s` is its clock."""

    spool: Spool
    shipper: Shipper
    folder: Path
    clock: list[float]
    token: list[str]

    def put(self, n_samples: int = 1) -> int:
        seq = self.spool.take_seq()
        batch = wire.Batch(
            v=1,
            agent="a",
            boot=self.spool.boot,
            seq=seq,
            sent_at_s=1.7e9,
            instances=[
                wire.InstanceSample(id=f"f/c/{seq}-{i}", role="both", engine="vllm", at_s=1.7e9)
                for i in range(n_samples)
            ],
        )
        self.spool.append(seq, wire.encode(batch))
        self.shipper.wake()
        return seq


@pytest.fixture
async def rig(tmp_path: Path, console: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(ship, "LONGEST_RETRY_S", 0.02)
    monkeypatch.setattr(ship, "DENIED_RETRY_S", 0.02)
    clock, token = [1.7e9], ["pf_x_y"]

    def read_token() -> str:
        if not token:
            raise TokenError("no token")
        return token[0]

    spool = Spool(tmp_path / "spool", max_bytes=8 * 1024 * 1024, now_s=1.6e9)
    async with aiohttp.ClientSession() as session:
        shipper = Shipper(
            spool=spool,
            session=session,
            console_url=console.url,
            token=read_token,
            refused_file=tmp_path / "refused.jsonl",
            clock=lambda: clock[0],
            rng=random.Random(1),
        )
        made = Rig(spool, shipper, tmp_path, clock, token)
        yield made
    made.spool.close()


@pytest.fixture
async def running(rig: Rig) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(rig.shipper.run())
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_batch_is_forgotten_when_acknowledged(
    rig: Rig, running: asyncio.Task[None], console: Any
) -> None:
    seq = rig.put()
    await rig.shipper.until_idle()
    assert console.seqs() == [seq]
    assert console.tokens == ["Bearer pf_x_y"]
    assert rig.spool.n_pending == 0
    assert rig.spool.n_bytes == 0


async def test_a_returning_console_gets_the_newest_at_once_and_the_rest_in_order(
    rig: Rig, console: Any, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "telemetry.agent")
    await console.stop()
    old = [rig.put() for _ in range(20)]
    task = asyncio.create_task(rig.shipper.run())
    await eventually(lambda: rig.shipper.away)
    old.append(rig.put())
    newest = rig.put()
    rig.clock[0] += 900
    await console.start()
    await rig.shipper.until_idle()
    task.cancel()
    assert console.seqs() == [newest, old[-1]]
    assert ids(*console.batches) == [f"f/c/{seq}-0" for seq in (newest, *old)]
    assert {batch.sent_at_s for batch in console.batches} == {1.7e9 + 900}
    said = [record.message for record in caplog.records if record.name.endswith("ship")]
    assert len(said) == 2
    assert said[0].startswith("console away")
    assert said[1].startswith("console back after 900 s")


async def test_a_current_batch_waits_for_at_most_one_post_of_old_ones(
    rig: Rig, console: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a backlog shrinks even if readings come as fast as answers."""
    monkeypatch.setattr(ship, "MAX_GROUP", 2)
    old = [rig.put() for _ in range(6)]
    current: list[int] = []

    def respond(batch: wire.Batch) -> None:
        if len(current) < 4:
            current.append(rig.put())

    console.respond = respond
    task = asyncio.create_task(rig.shipper.run())
    await rig.shipper.until_idle()
    task.cancel()
    sent = [
        [int(sample.id.split("/")[2][:-2]) for sample in batch.instances]
        for batch in console.batches
    ]
    # The newest of the backlog counts as current, then old and new take turns.
    assert sent == [
        [old[5]], [old[0], old[1]], [current[1]], [old[2], old[3]], [current[3]],
        [old[4], current[0]], [current[2]],
    ]  # fmt: skip


async def test_a_group_whose_answer_was_lost_is_offered_again_as_it_was(
    rig: Rig, console: Any, eventually: Eventually
) -> None:
    """S-16 with several batches a POST, through a restart of the agent in between."""
    seqs = [rig.put() for _ in range(4)]
    lost: list[wire.Batch] = []

    def respond(batch: wire.Batch) -> web.Response | None:
        if len(batch.instances) > 1 and not lost:
            lost.append(batch)
            console.batches.append(batch)
        return web.Response(status=502) if lost else None

    console.respond = respond
    task = asyncio.create_task(rig.shipper.run())
    await eventually(lambda: lost and rig.shipper.away)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    rig.spool.close()
    again = Spool(rig.folder / "spool", max_bytes=8 * 1024 * 1024, now_s=1.6e9)
    rig.spool, rig.shipper._spool = again, again
    console.respond = None
    seqs.append(rig.put())
    task = asyncio.create_task(rig.shipper.run())
    await rig.shipper.until_idle()
    task.cancel()
    assert sorted(ids(*console.batches)) == sorted(f"f/c/{seq}-0" for seq in seqs)
    assert {offer.seq for offer in console.offers if len(offer.instances) > 1} == {seqs[2]}


@pytest.mark.parametrize("status", [413, 422])
async def test_a_group_the_console_refuses_goes_one_by_one(
    rig: Rig, running: asyncio.Task[None], console: Any, status: int
) -> None:
    bad: list[int] = []

    def respond(batch: wire.Batch) -> web.Response | None:
        mine = [sample.id for sample in batch.instances]
        wrong = len(mine) > 1 if status == 413 else f"f/c/{bad[0]}-0" in mine
        return web.Response(status=status) if wrong else None

    console.respond = respond
    seqs = [rig.put() for _ in range(5)]
    bad.append(seqs[1] if status == 422 else 0)
    await rig.shipper.until_idle()
    assert sorted(console.seqs()) == [seq for seq in seqs if seq not in bad]
    assert (rig.folder / "refused.jsonl").exists() == (status == 422)


async def test_a_large_body_is_compressed_and_a_small_one_is_not(
    rig: Rig, running: asyncio.Task[None], console: Any
) -> None:
    rig.put()
    await rig.shipper.until_idle()
    rig.put(n_samples=200)
    await rig.shipper.until_idle()
    assert console.encodings == ["", "gzip"]
    assert len(ids(*console.batches)) == 201


def test_batches_merge_under_the_last_key_with_the_newest_report() -> None:
    reports = [None, wire.AgentReport(version="1"), wire.AgentReport(version="2"), None]
    batches = [
        wire.Batch(
            v=1,
            agent="a",
            boot=1,
            seq=seq,
            sent_at_s=1.7e9,
            routers=[wire.RouterSample(id=f"f/c/{seq}", kind="gate", at_s=1.7e9 + seq)],
            report=report,
        )
        for seq, report in enumerate(reports)
    ]
    whole = ship.merged(batches)
    assert (whole.seq, ids(whole)) == (3, ["f/c/0", "f/c/1", "f/c/2", "f/c/3"])
    assert whole.report == reports[2]
    parts = ship.halves(whole)
    assert parts is not None
    assert [part.report for part in parts] == [reports[2], None]


async def test_a_lost_answer_does_not_store_twice(
    rig: Rig, running: asyncio.Task[None], console: Any
) -> None:
    """S-16, the agent's side: the key of a batch never changes."""
    lost = []

    def respond(batch: wire.Batch) -> web.Response | None:
        if not lost:
            lost.append(batch)
            console.batches.append(batch)
            return web.Response(status=502)
        return None

    console.respond = respond
    seq = rig.put()
    await rig.shipper.until_idle()
    assert [offer.seq for offer in console.offers] == [seq, seq]
    assert console.seqs() == [seq]


async def test_a_refused_batch_is_set_aside_and_blocks_nobody(
    rig: Rig, running: asyncio.Task[None], console: Any
) -> None:
    bad: list[int] = []

    def respond(batch: wire.Batch) -> web.Response | None:
        if batch.seq in bad:
            body = {"error": "must be finite", "field": "instances[0].x", "value": "nan"}
            return web.json_response(body, status=422)
        return None

    console.respond = respond
    first = rig.put()
    await rig.shipper.until_idle()
    bad.append(rig.put())
    last = rig.put()
    await rig.shipper.until_idle()
    assert console.seqs() == [first, last]
    [line] = (rig.folder / "refused.jsonl").read_text().splitlines()
    document = json.loads(line)
    assert document["status"] == 422
    assert "must be finite" in document["answer"]
    assert document["batch"]["seq"] == bad[0]
    assert document["batch"]["instances"][0]["id"] == f"f/c/{bad[0]}-0"


async def test_a_batch_that_is_too_large_is_split_until_it_fits(
    rig: Rig, running: asyncio.Task[None], console: Any
) -> None:
    def respond(batch: wire.Batch) -> web.Response | None:
        return web.Response(status=413) if len(batch.instances) > 2 else None

    console.respond = respond
    seq = rig.put(n_samples=9)
    await rig.shipper.until_idle()
    stored = sorted(s.id for batch in console.batches for s in batch.instances)
    assert stored == sorted(f"f/c/{seq}-{i}" for i in range(9))
    assert seq not in console.seqs()
    assert not (rig.folder / "refused.jsonl").exists()


async def test_one_sample_that_is_too_large_is_set_aside(
    rig: Rig, running: asyncio.Task[None], console: Any
) -> None:
    console.respond = lambda batch: web.Response(status=413)
    rig.put(n_samples=2)
    await rig.shipper.until_idle()
    assert len((rig.folder / "refused.jsonl").read_text().splitlines()) == 2
    assert console.seqs() == []


async def test_an_older_boot_stops_the_agent_with_a_reason(rig: Rig, console: Any) -> None:
    console.respond = lambda batch: web.json_response({"error": "newer boot"}, status=409)
    rig.put()
    with pytest.raises(Superseded, match="another agent of that name"):
        await rig.shipper.run()
    assert rig.spool.n_pending == 1


async def test_a_refused_token_loses_nothing_and_a_new_one_is_picked_up(
    rig: Rig,
    running: asyncio.Task[None],
    console: Any,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "telemetry.agent")
    good = "pf_new_one"
    console.respond = lambda batch: (
        None if console.tokens[-1].endswith(good) else web.Response(status=401, text="revoked")
    )
    seqs = [rig.put(), rig.put()]
    await eventually(lambda: len(console.offers) > 3)
    rig.token.clear()
    n = len(console.offers)
    await asyncio.sleep(0.05)
    assert len(console.offers) <= n + 1
    rig.token.append(good)
    await rig.shipper.until_idle()
    assert sorted(console.seqs()) == seqs
    refusals = [r for r in caplog.records if "takes no readings from us" in r.message]
    assert len(refusals) == 1


async def test_retry_after_is_honoured(rig: Rig, console: Any, monkeypatch: Any) -> None:
    slept: list[float] = []
    real_sleep = asyncio.sleep

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)
        await real_sleep(0)

    monkeypatch.setattr(ship.asyncio, "sleep", sleep)
    busy = web.Response(status=503, headers={"Retry-After": "7"})
    console.respond = lambda batch: busy if len(console.offers) == 1 else None
    rig.put()
    task = asyncio.create_task(rig.shipper.run())
    await rig.shipper.until_idle()
    task.cancel()
    assert [7.0 <= delay_s <= 7.7 for delay_s in slept] == [True]


async def test_a_batch_that_rotted_on_disk_is_dropped_with_a_line(
    rig: Rig, running: asyncio.Task[None], console: Any, caplog: pytest.LogCaptureFixture
) -> None:
    seq = rig.spool.take_seq()
    rig.spool.append(seq, b"\xc1 not a batch")
    good = rig.put()
    await rig.shipper.until_idle()
    assert console.seqs() == [good]
    assert any("cannot be read" in record.message for record in caplog.records)


async def test_an_old_report_does_not_follow_a_newer_one(rig: Rig, console: Any) -> None:
    """The console keeps the one that came last."""
    seqs = [rig.spool.take_seq() for _ in range(4)]
    for seq in seqs:
        report = wire.AgentReport(version=str(seq))
        batch = msgspec.structs.replace(
            batch_of(1), boot=rig.spool.boot, seq=seq, report=report, links=[], routers=[]
        )
        rig.spool.append(seq, wire.encode(batch))
    rig.shipper.wake()
    task = asyncio.create_task(rig.shipper.run())
    await rig.shipper.until_idle()
    task.cancel()
    assert [batch.report and batch.report.version for batch in console.batches] == ["4", None]
