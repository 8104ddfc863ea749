"""The loop: one record per interval, whoever runs it, and nothing pushed that was not meant."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest
from django.db import IntegrityError, connection, transaction

from console.celery import app as celery
from routing import announce, commands, delivery, fleets, scheduler, tasks
from routing.core.jsonable import from_jsonable
from routing.core.types import Observation, Verdict
from routing.models import Action, Decision, Delivery, Fleet, Tick
from tests.routing.cases import (
    NOW,
    NOW_S,
    Gate,
    after,
    engines,
    feed,
    link,
    make_fleet,
    steady,
    traffic,
)

WHO: dict[str, Any] = {"actor": "ada", "via": "test", "reason": "test"}


def tick(at_s: float = 0.0, name: str = "f1") -> Tick | None:
    return scheduler.run_tick(name, now=after(at_s), tick_s=2.0)


def hold(threshold_tokens: int, *, at_s: float, until_s: float = 3_600.0) -> None:
    commands.place_hold(
        fleet="f1",
        mode="threshold",
        threshold_tokens=threshold_tokens,
        owner="ada",
        expires_at=after(until_s),
        now=after(at_s),
        **WHO,
    )


def run_with_traffic(until_s: float, name: str = "f1") -> list[Tick]:
    """Ticks every 2 s beside ten minutes of past and `until_s` of coming traffic."""
    gate = Gate(path=f"{name}/pd/gw-1")
    feed(steady(gate, np.random.default_rng(3), until_s=until_s, every_s=5.0))
    ticks = []
    at_s = 0.0
    while at_s <= until_s:
        if at_s % 10 == 0:
            feed(engines(name, at_s=at_s))
            feed([link(at_s=at_s, tx_gbps=9.0, capacity_gbps=100.0, retransmit_ratio=0.0)])
        found = tick(at_s, name)
        assert found is not None
        ticks.append(found)
        at_s += 2.0
    return ticks


@pytest.mark.django_db
def test_the_first_plan_is_what_the_scenario_starts_with() -> None:
    fleet = make_fleet()
    tick()
    [decision] = Decision.objects.all()
    assert (decision.epoch, decision.version, decision.reason) == (1, 1, "Initial")
    plan = decision.plan["clusters"]["pd"]
    assert (plan["mode"], plan["threshold_tokens"]) == ("threshold", 4000)
    assert (plan["n_prefill"], plan["n_decode"]) == (3, 5)
    tick(2.0)
    assert fleets.newest_adopted(fleet) == decision, "it is issued once"


@pytest.mark.django_db
def test_a_fresh_install_pushes_nothing_and_says_what_it_waits_for() -> None:
    """S-35: no start plan, no traffic; then too little traffic."""
    fleet = make_fleet(start=False)
    found = tick()
    assert found is not None
    assert found.action == "hold"
    assert found.verdict["plan"]["clusters"]["pd"]["mode"] == "always_local"
    feed(steady(Gate(), np.random.default_rng(1), rate_rps=1.0, since_s=-60.0))
    feed(engines())
    feed([link(tx_gbps=1.0)])
    found = tick(2.0)
    assert found is not None
    assert (found.action, found.reason) == ("hold", "WarmingUp")
    assert "of 200" in found.verdict["message"]
    assert not Decision.objects.exists()
    assert delivery.newest_document(fleet) is None


@pytest.mark.django_db
def test_every_pass_keeps_what_it_saw_and_why_it_did_what_it_did() -> None:
    """S-30: decisions and non-actions have reason, inputs, formula, clamps and the next moment."""
    make_fleet()
    ticks = run_with_traffic(30.0)
    assert {"adopt", "hold"} <= {t.action for t in ticks}
    for found in Tick.objects.all():
        verdict = from_jsonable(Verdict, found.verdict)
        observed = from_jsonable(Observation, found.observed)
        assert found.reason == verdict.reason
        assert found.reason.isalnum()
        assert found.reason[0].isupper()
        assert verdict.message
        assert verdict.formula
        assert isinstance(verdict.clamps, tuple)
        assert "next_action_at_s" in found.verdict
        assert observed.pd["pd"].lengths is not None
        assert observed.now_s == found.at.timestamp()
    waiting = [t for t in ticks if t.reason in ("GainPending", "Dwell")]
    assert all(t.verdict["next_action_at_s"] > t.at.timestamp() for t in waiting)
    adopted = Decision.objects.filter(kind="adopted").order_by("version")
    assert [d.version for d in adopted] == list(range(1, len(adopted) + 1))
    assert len(adopted) > 1, "4,000 is far from the best threshold"
    for decision in adopted:
        assert decision.tick is not None
        assert decision.tick.verdict["reason"] == decision.reason
        assert decision.plan["version"] == decision.version


@pytest.mark.django_db
def test_thresholds_move_towards_the_optimum_by_bounded_steps() -> None:
    make_fleet()
    run_with_traffic(50.0)
    plans = Decision.objects.order_by("version").values_list("plan", flat=True)
    thresholds = [plan["clusters"]["pd"]["threshold_tokens"] for plan in plans]
    assert thresholds[0] == 4000
    assert thresholds == sorted(thresholds)
    assert all(b <= 1.5 * a + 1 for a, b in itertools.pairwise(thresholds))


@pytest.mark.django_db
def test_advisory_records_decisions_and_pushes_nothing(
    django_capture_on_commit_callbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-63."""
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(announce, "publish", said.append)
    fleet = make_fleet(mode="advisory")
    delivery.record_ack(
        fleet=fleet,
        router="f1/pd/gw-1",
        running=None,
        state="no_plan",
        error=None,
        transport="socket",
        now=NOW,
    )
    with django_capture_on_commit_callbacks(execute=True):
        run_with_traffic(60.0)
    advised = Decision.objects.all()
    assert advised
    assert {(d.kind, d.version) for d in advised} == {("advised", None)}
    assert not Delivery.objects.exists()
    assert delivery.newest_document(fleet) is None
    assert "plan" not in {m["type"] for m in said}
    assert Tick.objects.filter(action="adopt").count() > 1
    assert len(advised) == 1, "the same advice is recorded once, not whenever it is given"


@pytest.mark.django_db
def test_paused_ticks_are_recorded_and_decide_nothing() -> None:
    fleet = make_fleet(mode="paused")
    ticks = run_with_traffic(10.0)
    assert {(t.action, t.reason) for t in ticks} == {("hold", "Paused")}
    assert not Decision.objects.exists()
    assert delivery.newest_document(fleet) is None


@pytest.mark.django_db
def test_a_hold_is_adopted_by_the_next_tick_and_kept() -> None:
    make_fleet()
    traffic()
    tick(0.0)
    hold(9_000, at_s=1.0)
    found = tick(2.0)
    assert found is not None
    assert (found.action, found.reason) == ("adopt", "Held")
    assert found.verdict["plan"]["clusters"]["pd"]["threshold_tokens"] == 9_000
    for at_s in range(4, 60, 2):
        tick(float(at_s))
    pushed = Decision.objects.filter(version__isnull=False)
    assert pushed.count() == 2, "nothing else is pushed while it holds"
    advised = Decision.objects.filter(kind="advised")
    assert [row.message.startswith("Were nothing held: ") for row in advised] == [True]


@pytest.mark.django_db
def test_a_hold_that_expires_returns_to_automatic_with_one_event() -> None:
    """S-56, its last part."""
    make_fleet()
    hold(9_000, at_s=0.0, until_s=10.0)
    for at_s in range(0, 20, 2):
        tick(float(at_s))
    last = tick(20.0)
    assert last is not None
    assert last.reason != "Held"
    [action] = Action.objects.filter(verb="hold.expire")
    assert action.actor == "system"


@pytest.mark.django_db
def test_a_raised_epoch_issues_the_plan_in_force_again() -> None:
    fleet = make_fleet()
    hold(9_000, at_s=0.0)
    tick(0.0)
    tick(2.0)
    commands.raise_epoch(fleet="f1", now=after(3), **WHO)
    fleet.refresh_from_db()
    assert delivery.newest_document(fleet) is None
    tick(4.0)
    newest = fleets.newest_adopted(fleet)
    assert newest is not None
    assert (newest.epoch, newest.version, newest.reason) == (2, 1, "EpochRaised")
    assert newest.plan["clusters"]["pd"]["threshold_tokens"] == 9_000


@pytest.mark.django_db
def test_an_advisory_fleet_does_not_push_when_its_epoch_is_raised() -> None:
    make_fleet(mode="advisory")
    tick(0.0)
    commands.raise_epoch(fleet="f1", now=after(1), **WHO)
    tick(2.0)
    assert not Decision.objects.filter(version__isnull=False).exists()


@pytest.mark.django_db
def test_two_fleets_in_one_cluster_have_their_own_plans_and_history() -> None:
    """S-34: and removing one leaves the other."""
    make_fleet("f1")
    make_fleet("f2")
    tick(0.0, "f1")
    tick(0.0, "f2")
    hold(9_000, at_s=1.0)
    tick(2.0, "f1")
    tick(2.0, "f2")
    newest = {name: fleets.newest_adopted(Fleet.objects.get(pk=name)) for name in ("f1", "f2")}
    found = {name: d.plan["clusters"]["pd"]["threshold_tokens"] for name, d in newest.items() if d}
    assert found == {"f1": 9_000, "f2": 4_000}
    Decision.objects.filter(fleet="f1").delete()
    Fleet.objects.filter(pk="f1").delete()
    assert tick(4.0, "f2") is not None
    assert Tick.objects.filter(fleet="f2").count() == 3


@pytest.mark.django_db
def test_a_second_run_in_the_same_interval_does_nothing() -> None:
    """S-53: late ticks that arrive in a burst run once."""
    make_fleet()
    assert tick(0.0) is not None
    assert [tick(0.3), tick(0.7), tick(1.9)] == [None, None, None]
    assert Tick.objects.count() == 1
    assert Decision.objects.count() == 1
    assert tick(2.0) is not None


@pytest.mark.django_db(transaction=True)
def test_two_beats_and_two_workers_make_one_decision() -> None:
    """S-52: eight workers race for each of a few intervals on the real database."""
    make_fleet()
    for round_ in range(3):
        hold_s = 2.0 * round_
        if round_:
            commands.release_hold(
                hold_id=fleets.commands.open_holds(Fleet.objects.get(), after(hold_s))[0].pk,
                now=after(hold_s),
                **WHO,
            )
        hold(9_000 + 1_000 * round_, at_s=hold_s)
        results: list[Tick | None] = []
        errors: list[Exception] = []
        barrier = threading.Barrier(8)

        def work(
            at_s: float = hold_s,
            results: list[Tick | None] = results,
            errors: list[Exception] = errors,
            barrier: threading.Barrier = barrier,
        ) -> None:
            try:
                barrier.wait()
                results.append(tick(at_s))
            except Exception as exc:
                errors.append(exc)
            finally:
                connection.close()

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert sum(result is not None for result in results) == 1
        assert Tick.objects.count() == round_ + 1
    versions = list(Decision.objects.order_by("version").values_list("version", flat=True))
    assert versions == [1, 2, 3]


@pytest.mark.django_db
def test_the_database_itself_refuses_a_second_tick_or_version() -> None:
    make_fleet()
    found = tick()
    assert found is not None
    found.pk = None
    with pytest.raises(IntegrityError), transaction.atomic():
        found.save(force_insert=True)
    decision = Decision.objects.get()
    decision.pk, decision.tick = None, None
    with pytest.raises(IntegrityError), transaction.atomic():
        decision.save(force_insert=True)


@pytest.mark.django_db
def test_a_fleet_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    make_fleet("f1")
    make_fleet("f2")
    Fleet.objects.filter(pk="f1").update(scenario={"nothing": "useful"})
    tasks.tick()
    assert {t.fleet_id for t in Tick.objects.all()} == {"f2"}
    assert "the tick of fleet f1 failed" in caplog.text


@pytest.mark.django_db
def test_what_a_tick_announces_can_be_drawn(
    django_capture_on_commit_callbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(announce, "publish", said.append)
    make_fleet()
    traffic()
    with django_capture_on_commit_callbacks(execute=True):
        tick()
    by_type = {message["type"]: message for message in said}
    assert set(by_type) == {"tick", "decision", "plan"}
    assert by_type["plan"]["plan"]["version"] == 1
    assert by_type["decision"]["kind"] == "adopted"
    summary = by_type["tick"]
    assert summary["fleet"] == "f1"
    assert summary["plan"]["version"] == 1
    assert summary["observed"]["demand_rps"] == pytest.approx(2.5, rel=0.2)
    assert summary["observed"]["clusters"]["pd"]["remote_share"] is not None


@pytest.mark.django_db
def test_a_broker_that_is_away_does_not_stop_the_loop(
    settings: Any, django_capture_on_commit_callbacks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    announce._client.cache_clear()
    make_fleet()
    try:
        with django_capture_on_commit_callbacks(execute=True):
            assert tick() is not None
    finally:
        announce._client.cache_clear()
    assert "not announced" in caplog.text
    assert Tick.objects.count() == 1


@pytest.mark.django_db
def test_old_ticks_go_except_those_that_decided() -> None:
    make_fleet()
    tick(0.0)
    tick(2.0)
    tick(4.0)
    assert scheduler.prune_ticks(after(3)) == 1
    assert [t.at.timestamp() - NOW_S for t in Tick.objects.order_by("at")] == [0.0, 4.0]


@pytest.mark.django_db
def test_memory_of_another_release_is_forgotten_not_fatal() -> None:
    make_fleet()
    first = tick()
    assert first is not None
    first.verdict["memory"] = {"something": "else"}
    first.save(update_fields=["verdict"])
    assert tick(2.0) is not None


def test_everything_beat_sends_is_a_task_and_expires_before_the_next(settings: Any) -> None:
    """S-53: a backlog after an outage is dropped, not run."""
    celery.loader.import_default_modules()
    for entry in settings.CELERY_BEAT_SCHEDULE.values():
        assert entry["task"] in celery.tasks
        assert entry["options"]["expires"] < entry["schedule"]
