"""The transaction: once by (agent, boot, seq), inventory kept, a mistake undone whole."""

from __future__ import annotations

import asyncio
import time

import psycopg
import pytest

from telemetry import bodies
from telemetry.ingest import database_connect
from telemetry.landing import Landing, Outcome
from telemetry.models import Agent, Source
from tests.telemetry.batches import batch, instance, link, router, unique
from tests.telemetry.rows import arrivals, commit, n_samples, sql

pytestmark = pytest.mark.usefixtures("landing_zone")


def states(outcomes: list[Outcome]) -> list[str]:
    return [outcome.state for outcome in outcomes]


def test_a_batch_lands_as_it_came() -> None:
    now_s, name = time.time(), unique("n")
    sent = batch(
        unique("agent"),
        instance(f"f/pd/{name}", now_s, signals={"requests_waiting": 7.0}),
        link(f"{name}->pd", now_s, tx_gbps=12.5, capacity_gbps=100.0),
        router(f"f/pd/{name}", now_s, signals={"requests_total": {"local|short": 3.0}}),
    )
    commit(sent, received_s=now_s)
    [(body, at_s)] = sql("SELECT body, extract(epoch FROM at)::float8 FROM telemetry_landing")
    assert bodies.unpack(body) == sent
    assert at_s == pytest.approx(now_s, abs=1e-6)


def test_several_moments_in_one_batch_land_apart() -> None:
    """One row is one moment, whatever an agent packs together."""
    now_s, agent, one, two = time.time(), unique("agent"), unique("f/pd/a"), unique("f/pd/b")
    times = [(one, -3.0), (one, -2.0), (two, -2.5), (two, -9.0), (one, 0.0)]
    sent = batch(agent, *(instance(path, now_s + offset_s) for path, offset_s in times))
    assert states(commit(sent, sent, received_s=now_s)) == ["stored", "duplicate"]
    rows = [bodies.unpack(body) for (body,) in sql("SELECT body FROM telemetry_landing")]
    moments = [[(s.id, s.at_s - now_s) for s in row.instances] for row in rows]
    for moment in moments:
        assert len({path for path, _ in moment}) == len(moment)
        assert max(at for _, at in moment) - min(at for _, at in moment) <= 2.0
    found = [(path, round(at, 3)) for moment in moments for path, at in moment]
    assert sorted(found) == sorted(times)


def test_a_batch_is_stored_once() -> None:
    """S-16: the second answer is success and there are no new rows."""
    now_s, agent, path = time.time(), unique("agent"), unique("f/pd/d")
    one = batch(agent, instance(path, now_s))
    two = batch(agent, instance(path, now_s + 1), seq=2)
    assert states(commit(one, one, received_s=now_s)) == ["stored", "duplicate"]
    assert states(commit(one, two, received_s=now_s)) == ["duplicate", "stored"]
    assert n_samples("instance", path) == 2


def test_an_older_boot_is_told_apart_from_a_duplicate() -> None:
    now_s, agent, path = time.time(), unique("agent"), unique("f/pd/d")
    old = batch(agent, instance(path, now_s), boot=10)
    new = batch(agent, instance(path, now_s), boot=11)
    assert commit(old, received_s=now_s) == [Outcome("stored", 10)]
    assert commit(new, received_s=now_s) == [Outcome("stored", 11)]
    late = batch(agent, instance(path, now_s), boot=10, seq=2)
    assert commit(late, old, new, received_s=now_s) == [
        Outcome("older", 11),
        Outcome("older", 11),
        Outcome("duplicate", 11),
    ]


def test_two_processes_with_the_same_batches_store_them_once() -> None:
    """Ten rounds of the same group, in opposite order, over two connections at once."""
    now_s, agent, path = time.time(), unique("agent"), unique("f/pd/d")
    groups = [
        arrivals(
            (batch(f"{agent}-{i}", instance(f"{path}{i}", now_s), seq=turn) for i in range(20)),
            now_s,
        )
        for turn in range(10)
    ]

    async def run() -> list[Outcome]:
        async with await database_connect() as one, await database_connect() as two:
            first, second = Landing(one), Landing(two)
            found: list[Outcome] = []
            for group in groups:
                for outcomes in await asyncio.gather(
                    first.commit(group), second.commit(group[::-1])
                ):
                    found += outcomes
            return found

    found = states(asyncio.run(run()))
    assert found.count("stored") == found.count("duplicate") == 200
    assert [n_samples("instance", f"{path}{i}") for i in range(20)] == [10] * 20


def test_the_inventory_follows_what_reports() -> None:
    now_s, agent, path = time.time(), unique("agent"), unique("f/pd/d")
    commit(batch(agent, instance(path, now_s), seq=1, sent_at_s=now_s + 3.0), received_s=now_s)
    source = Source.objects.get(path=path)
    assert (source.role, source.engine, source.engine_version) == ("decode", "vllm", "0.32.0")
    seen = Agent.objects.get(name=agent)
    assert (seen.boot, seen.last_seq, seen.skew_s) == (1, 1, pytest.approx(3.0))
    late = batch(agent, instance(path, now_s - 60), seq=9, boot=2, sent_at_s=now_s - 60)
    fresh = batch(agent, instance(path, now_s), seq=3, boot=2, sent_at_s=now_s)
    commit(late, fresh, received_s=now_s)
    seen.refresh_from_db()
    assert (seen.boot, seen.last_seq, seen.skew_s) == (2, 9, pytest.approx(0.0))
    silent = instance(path, now_s + 1, role="prefill", engine_version="", state="failed")
    commit(batch(agent, silent, seq=10, boot=2), received_s=now_s + 1)
    source.refresh_from_db()
    assert (source.role, source.engine_version) == ("prefill", "0.32.0")


def test_time_alone_rewrites_agents_and_sources_at_most_each_ten_seconds() -> None:
    now_s, agent, path = time.time(), unique("agent"), unique("f/pd/d")

    async def run() -> list[tuple[int, str]]:
        async with await database_connect() as connection:
            landing = Landing(connection)
            written = []
            for seq in range(25):
                at_s = now_s + seq
                sent = batch(agent, instance(path, at_s), seq=seq)
                await landing.commit(arrivals([sent], at_s))
                cursor = await connection.execute(
                    "SELECT xmin::text FROM telemetry_source WHERE path = %s UNION ALL"
                    " SELECT xmin::text FROM telemetry_agent WHERE name = %s",
                    [path, agent],
                )
                written += await cursor.fetchall()
            return written

    assert len(set(asyncio.run(run()))) == 3  # at 0, 10 and 20 s; both in one transaction
    assert n_samples("instance", path) == 25


def test_a_failed_commit_leaves_nothing_and_is_not_remembered() -> None:
    now_s, agent, path = time.time(), unique("agent"), unique("f/pd/d")

    async def run() -> None:
        async with await database_connect() as connection:
            landing = Landing(connection)
            refused = batch(agent, instance(f"{path}\0", now_s))
            with pytest.raises(psycopg.DataError):
                await landing.commit(arrivals([refused], now_s))
            good = batch(agent, instance(path, now_s))
            [outcome] = await landing.commit(arrivals([good], now_s))
            assert outcome.state == "stored"

    asyncio.run(run())
    assert n_samples("instance", path) == 1
