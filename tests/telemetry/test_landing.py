"""The transaction: once by (agent, boot, seq), inventory kept, a mistake undone whole."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import psycopg
import pytest

from telemetry.ingest import database_connect
from telemetry.landing import Arrival, Landing, Outcome
from telemetry.models import Agent, Source
from tests.telemetry.batches import batch, instance, link, router, unique
from tests.telemetry.rows import commit, n_samples, sql

pytestmark = pytest.mark.usefixtures("landing_zone")


def states(outcomes: list[Outcome]) -> list[str]:
    return [outcome.state for outcome in outcomes]


def test_typed_columns_hold_what_the_sample_says() -> None:
    now_s, name = time.time(), unique("n")
    commit(
        batch(
            unique("agent"),
            instance(f"f/pd/{name}", now_s, signals={"requests_waiting": 7.0}),
            link(f"{name}->pd", now_s, tx_gbps=12.5, capacity_gbps=100.0),
            router(
                f"f/pd/{name}",
                now_s,
                plan_epoch=1,
                plan_version=9,
                signals={
                    "requests_total": {"local|short": 3.0, "local|down": 1.0, "remote|long": 4.0},
                    "in_flight": {"local": 2.0, "remote": 0.0},
                },
            ),
        ),
        received_s=now_s,
    )
    assert sql("SELECT running, waiting, role, state FROM telemetry_instance_sample") == [
        (None, 7.0, "decode", "ok")
    ]
    assert sql("SELECT tx_gbps, capacity_gbps, rtt_s FROM telemetry_link_sample") == [
        (12.5, 100.0, None)
    ]
    assert sql(
        "SELECT plan_epoch, plan_version, requests_local_total, requests_remote_total,"
        " in_flight_local, in_flight_remote FROM telemetry_router_sample"
    ) == [(1, 9, 4.0, 4.0, 2.0, 0.0)]


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
    assert commit(new, received_s=now_s) == [Outcome("stored", 10)]
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
        [
            Arrival(batch(f"{agent}-{i}", instance(f"{path}{i}", now_s), seq=turn), now_s)
            for i in range(20)
        ]
        for turn in range(10)
    ]

    async def run() -> list[Outcome]:
        async with await database_connect() as one, await database_connect() as two:
            first = Landing(one, retention=timedelta(hours=72))
            second = Landing(two, retention=timedelta(hours=72))
            found: list[Outcome] = []
            for group in groups:
                for outcomes in await asyncio.gather(
                    first.commit(group, now_s=now_s), second.commit(group[::-1], now_s=now_s)
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
            landing = Landing(connection, retention=timedelta(hours=72))
            written = []
            for seq in range(25):
                at_s = now_s + seq
                arrival = Arrival(batch(agent, instance(path, at_s), seq=seq), at_s)
                await landing.commit([arrival], now_s=at_s)
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
            landing = Landing(connection, retention=timedelta(hours=72))
            refused = batch(agent, instance(path, now_s, error="zero \0 byte"))
            with pytest.raises(psycopg.DataError):
                await landing.commit([Arrival(refused, now_s)], now_s=now_s)
            good = batch(agent, instance(path, now_s))
            [outcome] = await landing.commit([Arrival(good, now_s)], now_s=now_s)
            assert outcome.state == "stored"

    asyncio.run(run())
    assert n_samples("instance", path) == 1
