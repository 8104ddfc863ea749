"""What happened, as the database writes it down: every kind, in order, none lost, none twice."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from routing import commands
from routing.models import Decision, Delivery, Fleet
from routing.rest import events
from routing.rest.models import Event
from tests.routing.cases import make_fleet

pytestmark = pytest.mark.django_db(transaction=True)

WHO: dict[str, Any] = {"actor": "ana", "via": "test", "reason": "x"}


def heard(since: events.Place, chosen: events.Chosen = events.EVERYTHING) -> list[tuple[str, str]]:
    return [(each.kind, each.change) for each in events.after(since, chosen, 500)[0]]


def hold(fleet: Fleet) -> Any:
    now = timezone.now()
    return commands.place_hold(
        fleet=fleet.pk,
        cluster="",
        mode="always_local",
        threshold_tokens=None,
        owner="ana",
        expires_at=now + timedelta(hours=1),
        now=now,
        **WHO,
    )


def decide(fleet: Fleet, version: int) -> Decision:
    return Decision.objects.create(
        fleet=fleet,
        epoch=1,
        version=100 + version,
        plan={},
        reason="Initial",
        message="The plan.",
        created_at=timezone.now(),
    )


def test_a_hold_is_placed_extended_and_released() -> None:
    fleet = make_fleet()
    since = events.now()
    placed = hold(fleet)
    now = timezone.now()
    later = now + timedelta(hours=2)
    commands.extend_hold(hold_id=placed.pk, expires_at=later, now=now, **WHO)
    commands.release_hold(hold_id=placed.pk, now=now, **WHO)
    assert heard(since) == [("hold", "placed"), ("hold", "extended"), ("hold", "released")]
    [first, *_], _ = events.after(since, events.EVERYTHING, 500)
    assert (first.fleet, first.subject, first.data["owner"]) == ("f1", placed.pk, "ana")


def test_deliveries_are_told_when_their_state_changes_and_not_when_they_are_only_written() -> None:
    decision = decide(make_fleet(), 1)
    since = events.now()
    Delivery.objects.bulk_create(
        Delivery(decision=decision, router=f"f1/pd/g{i}", state="sent", updated_at=timezone.now())
        for i in range(3)
    )
    Delivery.objects.update(updated_at=timezone.now())
    Delivery.objects.filter(router="f1/pd/g1").update(state="applied")
    assert heard(since) == [*[("delivery", "sent")] * 3, ("delivery", "applied")]


def test_a_change_that_is_rolled_back_is_not_told() -> None:
    fleet = make_fleet()
    since = events.now()
    with transaction.atomic():
        hold(fleet)
        transaction.set_rollback(True)
    assert heard(since) == []


def test_only_what_was_chosen_is_told() -> None:
    fleet, other = make_fleet("f1"), make_fleet("f2")
    since = events.now()
    hold(fleet), hold(other), decide(other, 1)
    assert heard(since, events.Chosen(frozenset({"f2"}))) == [
        ("hold", "placed"),
        ("decision", "adopted"),
    ]
    assert heard(since, events.Chosen(None, frozenset({"decision"}))) == [("decision", "adopted")]
    assert heard(since, events.Chosen(frozenset())) == []


def test_pages_follow_on_each_other() -> None:
    fleet = make_fleet()
    place = events.now()
    for version in range(1, 8):
        decide(fleet, version)
    found = []
    for expected in (3, 3, 1, 0):
        page, place = events.after(place, events.EVERYTHING, 3)
        assert len(page) == expected
        found += [each.data["version"] - 100 for each in page]
    assert found == list(range(1, 8))


def test_a_transaction_that_ends_late_is_not_passed_over() -> None:
    """Its rows have lower numbers than what ended before it: whoever read that hears it after."""
    fleet = make_fleet()
    since = events.now()
    began, end = threading.Event(), threading.Event()

    def slow() -> None:
        try:
            with transaction.atomic():
                decide(fleet, 1)
                began.set()
                end.wait(20)
        finally:
            connection.close()

    thread = threading.Thread(target=slow)
    thread.start()
    assert began.wait(20)
    decide(fleet, 2)
    first, place = events.after(since, events.EVERYTHING, 500)
    assert first == [], "what is not settled waits"
    end.set()
    thread.join()
    rest, _ = events.after(place, events.EVERYTHING, 500)
    assert [each.data["version"] - 100 for each in rest] == [1, 2]


def test_many_writers_lose_and_repeat_nothing() -> None:
    fleet = make_fleet()
    place = events.now()
    n_writers, n_each = 4, 25

    def write(writer: int) -> None:
        try:
            for i in range(n_each):
                with transaction.atomic():
                    decide(fleet, writer * n_each + i + 1)
        finally:
            connection.close()

    threads = [threading.Thread(target=write, args=(n,)) for n in range(n_writers)]
    for thread in threads:
        thread.start()
    found: list[int] = []
    deadline_s = time.monotonic() + 30
    while len(found) < n_writers * n_each and time.monotonic() < deadline_s:
        page, place = events.after(place, events.EVERYTHING, 7)
        found += [each.data["version"] - 100 for each in page]
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(1, n_writers * n_each + 1))


def test_whoever_comes_too_late_is_told_so() -> None:
    fleet = make_fleet()
    since = events.now()
    for version in (1, 2, 3):
        decide(fleet, version)
    now = timezone.now()
    assert not events.is_lost(since, now), "nothing was ever forgotten"
    assert events.forget(now) == 0
    Event.objects.filter(data__version__in=[101, 102]).update(at=now - timedelta(days=8))
    assert events.forget(now) == 1, "the newest of the old stays, as the mark of what is gone"
    assert events.is_lost(since, now)
    kept = Event.objects.order_by("id").first()
    assert kept is not None
    assert not events.is_lost(events.Place(kept.transaction, kept.pk), now)
    assert events.is_lost(events.Place(2**60, 0), now), "an id of another database"


@pytest.mark.parametrize("text", ["", "1", "1-", "-1", "a-b", "1-2-3", "9" * 30 + "-1", "１-1"])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no id"):
        events.parse_place(text)


def test_an_id_reads_back() -> None:
    assert events.parse_place(str(events.Place(12, 345))) == events.Place(12, 345)
