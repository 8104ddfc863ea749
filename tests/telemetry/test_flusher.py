"""Group commit against the real database: full queues, poison, lost connections, publishing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import psycopg
import pytest
import redis.asyncio
from django.conf import settings

from telemetry import publish, wire
from telemetry.arrivals import Arrival
from telemetry.flusher import Flusher, Rejected, Unavailable
from telemetry.ingest import database_connect
from telemetry.landing import Outcome
from telemetry.publish import Publisher
from tests.telemetry.batches import batch, instance, link, unique
from tests.telemetry.rows import arrivals, n_samples, sql

pytestmark = pytest.mark.usefixtures("landing_zone")


@asynccontextmanager
async def running(
    *,
    max_batches: int = 100,
    connect: Callable[[], Awaitable[psycopg.AsyncConnection]] = database_connect,
    publisher: Callable[[list[Arrival]], None] = lambda arrivals: None,
) -> AsyncIterator[Flusher]:
    """A flusher that commits every 10 ms."""
    flusher = Flusher(
        connect,
        publish=publisher,
        max_batches=max_batches,
        window_s=0.01,
    )
    await flusher.start()
    try:
        yield flusher
    finally:
        await flusher.stop()


@asynccontextmanager
async def table_locked(table: str) -> AsyncIterator[None]:
    """Nobody can write `table` meanwhile: a database that is slow to commit."""
    async with await database_connect() as other, other.transaction():
        await other.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        yield


def offer(flusher: Flusher, sent: wire.Batch) -> asyncio.Task[Outcome]:
    return asyncio.create_task(flusher.offer(sent, received_s=time.time()))


async def settled(*tasks: asyncio.Task[Outcome]) -> list[str]:
    """The outcome of each, or the name of what it raised."""
    results = await asyncio.gather(*tasks, return_exceptions=True)
    return [r.state if isinstance(r, Outcome) else type(r).__name__ for r in results]


def test_an_answer_comes_only_after_the_commit() -> None:
    path = unique("f/pd/d")

    async def run() -> None:
        async with running() as flusher:
            async with table_locked("telemetry_batch"):
                waiting = offer(flusher, batch(unique("agent"), instance(path, time.time())))
                await asyncio.sleep(0.2)
                assert not waiting.done()
            assert await settled(waiting) == ["stored"]

    asyncio.run(run())
    assert n_samples("instance", path) == 1


def test_a_full_queue_refuses_and_what_it_took_is_stored() -> None:
    path = unique("f/pd/d")

    async def run() -> list[str]:
        async with running(max_batches=3) as flusher:
            async with table_locked("telemetry_batch"):
                tasks = [
                    offer(flusher, batch(f"{path}{i}", instance(path, time.time())))
                    for i in range(5)
                ]
                await asyncio.sleep(0.2)
                late = offer(flusher, batch(unique("agent"), instance(path, time.time())))
                with pytest.raises(Unavailable):
                    await late
            return await settled(*tasks)

    assert asyncio.run(run()) == ["stored"] * 3 + ["Unavailable"] * 2
    assert n_samples("instance", path) == 3


def test_too_many_bytes_in_flight_are_refused() -> None:
    async def run() -> None:
        async with running() as flusher:
            flusher.hold(60_000_000)
            with pytest.raises(Unavailable):
                flusher.hold(60_000_000)
            flusher.release(60_000_000)
            flusher.hold(60_000_000)

    asyncio.run(run())


def test_a_poison_batch_falls_alone() -> None:
    sql("ALTER TABLE telemetry_batch ADD CONSTRAINT sane CHECK (seq <> 13)")
    name = unique("w")

    async def run() -> list[str]:
        async with running() as flusher:
            return await settled(
                *(
                    offer(
                        flusher,
                        batch(
                            f"{name}{i}",
                            link(f"{name}->pd", time.time()),
                            seq=13 if i == 5 else i,
                        ),
                    )
                    for i in range(12)
                )
            )

    try:
        outcomes = asyncio.run(run())
    finally:
        sql("ALTER TABLE telemetry_batch DROP CONSTRAINT sane")
    assert outcomes == ["stored"] * 5 + ["Rejected"] + ["stored"] * 6
    assert n_samples("link", f"{name}->pd") == 11


def test_a_rejection_says_whether_the_values_are_at_fault() -> None:
    async def run() -> Rejected:
        async with running() as flusher:
            with pytest.raises(Rejected) as caught:
                await flusher.offer(
                    batch(unique("agent"), instance(unique("f/pd/a\0b"), time.time())),
                    received_s=time.time(),
                )
            return caught.value

    assert asyncio.run(run()).by_content is True


def test_a_lost_connection_is_answered_and_replaced() -> None:
    path = unique("f/pd/d")

    async def run() -> list[str]:
        async with running(max_batches=1) as flusher:
            sent = batch(unique("agent"), instance(path, time.time()))
            async with table_locked("telemetry_batch"):
                waiting = offer(flusher, sent)
                await asyncio.sleep(0.2)
                async with await database_connect() as other:
                    await other.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE wait_event_type = 'Lock' AND application_name = 'console ingest'"
                        " AND datname = current_database()"
                    )
                outcomes = await settled(waiting)
            while "stored" not in outcomes:
                await asyncio.sleep(0.05)
                outcomes += await settled(offer(flusher, sent))
            return outcomes

    outcomes = asyncio.run(run())
    assert outcomes[0] == "Unavailable"
    assert n_samples("instance", path) == 1


def test_without_a_database_it_refuses_at_once_and_begins_when_there_is_one() -> None:
    path, refused = unique("f/pd/d"), 2

    async def connect() -> psycopg.AsyncConnection:
        nonlocal refused
        if refused:
            refused -= 1
            raise psycopg.OperationalError("connection refused")
        return await database_connect()

    async def run() -> None:
        flusher = Flusher(
            connect,
            publish=lambda arrivals: None,
            max_batches=10,
        )
        starting = asyncio.create_task(flusher.start())
        await asyncio.sleep(0)
        assert await settled(offer(flusher, batch("early"))) == ["Unavailable"]
        await starting
        sent = batch(unique("agent"), instance(path, time.time()))
        assert await settled(offer(flusher, sent)) == ["stored"]
        await flusher.stop()

    asyncio.run(run())


def test_stopping_commits_what_was_taken() -> None:
    path = unique("f/pd/d")

    async def run() -> list[str]:
        async with running() as flusher:
            waiting = offer(flusher, batch(unique("agent"), instance(path, time.time())))
            await asyncio.sleep(0)
        assert await settled(offer(flusher, batch("late"))) == ["Unavailable"]
        return await settled(waiting)

    assert asyncio.run(run()) == ["stored"]
    assert n_samples("instance", path) == 1


def test_only_newly_committed_batches_are_published() -> None:
    agent = unique("agent")
    first, second = batch(agent, seq=1), batch(agent, seq=2)

    async def run() -> list[list[wire.Batch]]:
        heard: list[list[wire.Batch]] = []

        def hear(arrivals: list[Arrival]) -> None:
            heard.append([arrival.batch for arrival in arrivals])

        async with running(publisher=hear) as flusher:
            await settled(offer(flusher, first))
            await settled(offer(flusher, first), offer(flusher, second))
            await settled(offer(flusher, first))
        return heard

    assert asyncio.run(run()) == [[first], [second]]


def test_a_group_is_one_redis_message_to_every_other_process_and_none_to_its_own() -> None:
    agent = unique("agent")
    sent = [batch(agent, seq=i) for i in range(3)]

    async def heard_by(pubsub: redis.asyncio.client.PubSub) -> list[wire.Batch]:
        async with asyncio.timeout(20):
            async for message in pubsub.listen():
                if message["type"] == "message":
                    heard = list(publish.batches(message["data"]))
                    if heard[0].agent == agent:
                        return heard
        raise AssertionError("the connection ended")

    async def run() -> None:
        client = redis.asyncio.Redis.from_url(settings.REDIS_URL)
        async with client, client.pubsub() as one, client.pubsub() as two, client.pubsub() as own:
            await one.subscribe("telemetry:one")
            await two.subscribe("telemetry:two")
            await own.subscribe(publish.CHANNEL)
            publisher = Publisher(settings.REDIS_URL)
            publisher.start()
            publisher.put(arrivals(sent, time.time()))
            assert await heard_by(one) == await heard_by(two) == sent
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await heard_by(own)
            await publisher.stop()

    asyncio.run(run())


def test_redis_away_costs_no_ack() -> None:
    path = unique("f/pd/d")

    async def run() -> list[str]:
        publisher = Publisher("redis://127.0.0.1:1/0")
        publisher.start()
        async with running(publisher=publisher.put) as flusher:
            outcomes = []
            for seq in range(50):
                sent = batch(path, instance(path, time.time()), seq=seq)
                outcomes += await settled(offer(flusher, sent))
        await publisher.stop()
        return outcomes

    assert set(asyncio.run(run())) == {"stored"}
