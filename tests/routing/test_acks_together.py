"""Many acks at once: one transaction, each judged alone, and no more queries than for one."""

from __future__ import annotations

import asyncio
import datetime
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from routing import ack_batches, acks, announce, delivery, fleets, scheduler
from routing.ack_batches import AckBatches
from routing.acks import Claim
from routing.models import Delivery, Fleet, RouterState
from tests.routing.cases import NOW, after, make_fleet
from tests.telemetry.rows import sql


@pytest.fixture
def fleet(db: None) -> Fleet:
    made = make_fleet()
    scheduler.run_tick(made.pk, now=NOW, tick_s=2.0)
    return made


def claim(name: str, running: tuple[int, int] | None, **values: Any) -> Claim:
    said = {"state": "running" if running else "no_plan", "error": None, "transport": "socket"}
    return Claim(f"f1/pd/{name}", running, **{**said, **values})


def states() -> dict[str, str]:
    return {row.router.rpartition("/")[2]: row.state for row in Delivery.objects.all()}


def queries(fleet: Fleet, n: int, *, at: datetime.datetime) -> int:
    with CaptureQueriesContext(
        connection,
    ) as asked:
        delivery.record_acks(fleet, [claim(f"g{i}", (1, 1)) for i in range(n)], now=at)
    return len(asked)


def test_hundreds_ask_the_database_no_more_often_than_one(fleet: Fleet) -> None:
    first = queries(fleet, 1, at=after(1))
    assert queries(fleet, 300, at=after(2)) == first
    assert set(states().values()) == {"applied"}
    assert len(states()) == 300
    beat = queries(fleet, 1, at=after(6))
    assert queries(fleet, 300, at=after(7)) == beat < first
    assert {row.applied_at for row in Delivery.objects.all()} == {after(1), after(2)}
    assert set(RouterState.objects.values_list("last_seen_at", flat=True)) == {after(7)}


def test_each_is_judged_alone(fleet: Fleet) -> None:
    found = delivery.record_acks(
        fleet,
        [
            claim("a", (1, 1)),
            claim("b", None, state="refused", error="no such\0 cluster"),
            claim("c", (1, 1), state="fine"),
            Claim("f2/pd/x", (1, 1), "running", None, "socket"),
            claim("d", (7, 7)),
        ],
        now=after(1),
    )
    assert [error and error.field for error in found] == [None, None, "state", "router", None]
    assert states() == {"a": "applied", "b": "failed", "d": "sent"}
    assert Delivery.objects.get(router="f1/pd/b").error == "no such cluster"
    assert set(RouterState.objects.values_list("router", flat=True)) == {
        "f1/pd/a",
        "f1/pd/b",
        "f1/pd/d",
    }


def test_of_several_by_one_router_all_count_and_the_last_is_its_state(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    told: list[str] = []
    monkeypatch.setattr(
        announce, "publish_all", lambda messages: told.extend(m["state"] for m in messages)
    )
    refusing = claim("a", None, state="refused", error="busy")
    with django_capture_on_commit_callbacks(execute=True):
        delivery.record_acks(fleet, [refusing, claim("a", (1, 1))], now=after(1))
    assert states() == {"a": "applied"}
    assert Delivery.objects.get().error == ""
    assert RouterState.objects.get().state == "running"
    assert told == ["failed", "applied"]


def test_no_claim_that_can_be_meant_writes_nothing(fleet: Fleet) -> None:
    [error] = delivery.record_acks(fleet, [claim("a", None, state="fine")], now=after(1))
    assert isinstance(error, acks.AckError)
    assert fleets.newest_adopted(fleet) is not None
    assert not RouterState.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("model", [RouterState, Delivery])
def test_rows_are_locked_in_one_order(model: type[RouterState | Delivery]) -> None:
    """Two web processes that lock the same rows in two orders would wait for each other."""
    fleet, names = make_fleet(), ["a", "b", "c", "d"]
    scheduler.run_tick(fleet.pk, now=NOW, tick_s=2.0)
    delivery.record_acks(fleet, [claim(name, None) for name in names], now=after(1))

    def ack() -> None:
        try:
            backwards = [claim(name, (1, 1)) for name in reversed(names)]
            delivery.record_acks(fleet, backwards, now=after(2))
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            held = model.objects.select_for_update().order_by("pk")[0]
            acking = pool.submit(ack)
            while not sql("SELECT 1 FROM pg_locks WHERE NOT granted"):
                time.sleep(0.01)
            free = model.objects.select_for_update(nowait=True).exclude(pk=held.pk)
            assert len(free) == len(names) - 1
        acking.result(timeout=20)
    assert set(states().values()) == {"applied"}


async def test_what_comes_while_one_is_recorded_goes_together() -> None:
    batches: list[list[int]] = []
    free = asyncio.Event()

    async def record(fleet: str, acks: list[int]) -> list[Exception | None]:
        batches.append(acks)
        await free.wait()
        return [ValueError(str(ack)) if ack == 3 else None for ack in acks]

    together = AckBatches(record)
    first = asyncio.create_task(together.add("F", 0))
    while not batches:
        await asyncio.sleep(0.001)
    rest = [asyncio.create_task(together.add("F", i)) for i in range(1, 6)]
    other = asyncio.create_task(together.add("G", 9))
    while len(batches) < 2:
        await asyncio.sleep(0.001)
    rest[1].cancel()
    free.set()
    outcomes = await asyncio.gather(first, other, *rest, return_exceptions=True)
    assert batches == [[0], [9], [1, 2, 3, 4, 5]]
    assert [type(outcome) for outcome in outcomes if outcome is not None] == [
        asyncio.CancelledError,
        ValueError,
    ]


async def test_no_batch_is_larger_than_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ack_batches, "MAX_AT_ONCE", 2)
    sizes: list[int] = []

    async def record(fleet: str, acks: list[int]) -> list[Exception | None]:
        sizes.append(len(acks))
        return [None] * len(acks)

    together = AckBatches(record)
    await asyncio.gather(*(together.add("F", i) for i in range(5)))
    assert sizes == [2, 2, 1]


async def test_a_database_that_is_away_is_everybodys_error_and_the_next_ack_is_tried() -> None:
    away = True

    async def record(fleet: str, acks: list[int]) -> list[Exception | None]:
        if away:
            raise OSError("away")
        return [None] * len(acks)

    together = AckBatches(record)
    outcomes = await asyncio.gather(
        *(together.add("F", i) for i in range(3)), return_exceptions=True
    )
    assert [str(outcome) for outcome in outcomes] == ["away"] * 3
    away = False
    await together.add("F", 4)
