"""Each due run is done once or skipped with its reason, whoever dies, however late (S-51, S-53)."""

from __future__ import annotations

import datetime
import itertools
import random
import threading
from collections import Counter
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection

from routing import commands, rebalance
from routing.commands import Refused, Stale
from routing.jobs import doing, jobs, runs, when
from routing.jobs.models import Job, JobRun
from routing.models import Action, Fleet, Hold, Policy, Rebalance, Tick
from tests.routing import test_rebalance_by_hand as by_hand
from tests.routing.cases import NOW, after, make_fleet
from tests.routing.jobs.case import ADVISE, BY, MORNING, put

pytestmark = pytest.mark.django_db

HALF_HOUR_S = 1800.0
YEAR_S = 365 * 86400.0
HALF_PAST_TWO, EVERY_DAY = datetime.time(2, 30), frozenset(range(7))


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet()


@pytest.fixture
def moving() -> Fleet:
    """With a plan of 3/5 in force, and routers that could move instances."""
    made: Fleet = by_hand.fleet.__wrapped__()  # type: ignore[attr-defined]
    return made


def work(at_s: float) -> list[tuple[str, str]]:
    runs.work(lambda: after(at_s))
    return list(JobRun.objects.order_by("due_at", "pk").values_list("state", "text"))


def at(moment: datetime.datetime) -> float:
    return (moment - NOW).total_seconds()


def test_it_is_done_at_its_minute_and_once(fleet: Fleet) -> None:
    put(ADVISE)
    assert work(HALF_HOUR_S - 1) == []
    assert work(HALF_HOUR_S) == [("done", "f1 is advisory")]
    assert Policy.objects.get().mode == "advisory"
    commands.set_policy(
        fleet="f1", changes={"mode": "active"}, if_version=2, now=after(1801.0), **BY
    )
    for at_s in range(1802, 90_000, 4999):
        work(at_s)
    assert Policy.objects.get().mode == "active"
    assert JobRun.objects.count() == 1
    done = Action.objects.filter(actor="job advise").values_list("verb", "via", "reason")
    assert list(done.order_by("pk")) == [
        ("policy.change", "job", "Job advise: long prompts of the morning"),
        ("job.done", "job", "f1 is advisory"),
    ]


def test_what_is_found_late_is_done_within_its_grace_and_skipped_after(fleet: Fleet) -> None:
    put(ADVISE)
    assert work(HALF_HOUR_S + 599)[0][0] == "done"
    put(ADVISE | {"name": "other"})
    assert work(HALF_HOUR_S + 601)[-1] == ("skipped", "found 601 s late, over its grace")
    assert Action.objects.filter(verb="job.skip").count() == 1


def test_of_many_that_were_missed_only_the_newest_is_done(fleet: Fleet) -> None:
    put(ADVISE | {"when": ADVISE["when"] | {"days": ["sun", "mon", "tue"]}})
    found = work(2 * 86400.0 + HALF_HOUR_S + 60)
    assert [state for state, _ in found] == ["skipped", "skipped", "done"]
    assert found[0][1] == "a later one was due by then"


def test_what_was_due_before_it_was_written_is_not_made_up_for(fleet: Fleet) -> None:
    put(ADVISE, now=after(HALF_HOUR_S + 1))
    assert work(HALF_HOUR_S + 5) == []


def test_a_job_that_is_switched_off_is_not_done(fleet: Fleet) -> None:
    put(ADVISE, enabled=False)
    assert work(HALF_HOUR_S) == []
    put(ADVISE, enabled=True, now=after(100.0))
    assert work(HALF_HOUR_S)[0][0] == "done"


def test_what_cannot_be_had_fails_with_its_reason_and_changes_nothing(fleet: Fleet) -> None:
    hold = {"kind": "plan", "mode": "threshold", "threshold_tokens": 10_000, "for_s": 3600}
    put(ADVISE | {"do": hold})
    put(ADVISE | {"name": "second", "do": hold})
    states = sorted(state for state, _ in work(HALF_HOUR_S))
    assert states == ["done", "failed"]
    assert Hold.objects.count() == 1
    failed = JobRun.objects.get(state="failed")
    assert "hold" in failed.text
    assert Hold.objects.get().expires_at == after(HALF_HOUR_S + 3600)


def test_a_dry_run_says_what_it_would_do(moving: Fleet) -> None:
    put(MORNING | {"dry_run": True, "when": ADVISE["when"]}, now=after(25.0))
    assert work(HALF_HOUR_S) == [
        (
            "done",
            "dry run: would move pd from 3 prefill and 5 decode to 5 prefill and 3 decode",
        )
    ]
    assert not Hold.objects.exists()


def test_roles_are_asked_for_and_followed_to_their_end(moving: Fleet) -> None:
    put(MORNING | {"when": ADVISE["when"] | {"at": "13:01"}}, now=after(25.0))
    assert work(60.0) == [("moving", "asked for 5 prefill and 3 decode")]
    hold = Hold.objects.get()
    assert (hold.owner, hold.n_prefill, hold.n_decode) == ("job big-morning", 5, 3)
    by_hand.run(70.0, 70.0)
    row = Rebalance.objects.get()
    assert row.hold == hold
    assert work(75.0)[0][0] == "moving"
    rebalance.end(row, "done", "", after(80.0))
    said = f"asked for 5 prefill and 3 decode: rebalance {row.pk} is done"
    assert work(85.0) == [("done", said)]


def test_one_job_follows_another_at_the_very_moment_that_ends_its_hold(moving: Fleet) -> None:
    """Found late, what it holds still ends when it was to: the next one is not refused for it."""
    do = {"kind": "roles", "cluster": "pd", "for_s": 120.0}
    when = ADVISE["when"] | {"at": "13:01"}
    day = {"do": do | {"n_prefill": 4, "n_decode": 4}, "when": when}
    put(MORNING | {"name": "day"} | day, now=after(25.0))
    back = {"do": do | {"n_prefill": 3, "n_decode": 5}, "when": when | {"at": "13:03"}}
    put(MORNING | {"name": "back"} | back, now=after(25.0))
    assert work(64.0) == [("moving", "asked for 4 prefill and 4 decode")]
    assert Hold.objects.get().expires_at == after(180.0)
    by_hand.run(70.0, 70.0)
    rebalance.end(Rebalance.objects.get(), "done", "", after(80.0))
    tick = Tick.objects.latest("seq")
    tick.observed["pd"]["pd"] |= {"n_prefill": 4, "n_decode": 4}
    tick.save()
    assert work(180.0)[-1] == ("moving", "asked for 3 prefill and 5 decode")
    assert Hold.objects.latest("pk").owner == "job back"


def test_what_would_be_over_is_not_begun(moving: Fleet) -> None:
    few = {"kind": "at_least_prefill", "cluster": "pd", "n_prefill": 5, "for_s": 60}
    put(MORNING | {"do": few, "when": ADVISE["when"] | {"at": "13:01"}}, now=after(25.0))
    assert work(120.0) == [("skipped", "found 60 s late, when it would be over")]
    assert not Hold.objects.exists()


@pytest.mark.parametrize("ends_as", ["failed", "expired", "cancelled"])
def test_a_move_that_comes_to_nothing_is_a_run_that_failed(moving: Fleet, ends_as: str) -> None:
    put(MORNING | {"when": ADVISE["when"] | {"at": "13:01"}}, now=after(25.0))
    work(60.0)
    by_hand.run(70.0, 70.0)
    rebalance.end(Rebalance.objects.get(), ends_as, "an engine said no", after(80.0))
    [(state, text)] = work(85.0)
    assert (state, f"is {ends_as}: an engine said no" in text) == ("failed", True)


def test_roles_that_no_tick_takes_up_are_said(moving: Fleet) -> None:
    put(MORNING | {"when": ADVISE["when"] | {"at": "13:01"}}, now=after(25.0))
    work(60.0)
    assert work(100.0)[0][0] == "moving"
    assert work(200.0) == [("failed", "no tick took up the roles that were asked for")]


def test_enough_already_is_done(moving: Fleet) -> None:
    few = {"kind": "at_least_prefill", "cluster": "pd", "n_prefill": 2, "for_s": 60}
    put(MORNING | {"do": few, "when": ADVISE["when"] | {"at": "13:01"}}, now=after(25.0))
    assert work(60.0) == [("done", "pd has 3 prefill and 5 decode already")]


def test_the_next_run_waits_for_nobody_that_still_moves(moving: Fleet) -> None:
    put(MORNING | {"when": ADVISE["when"] | {"at": "13:01"}}, now=after(25.0))
    work(60.0)
    JobRun.objects.create(job="big-morning", fleet="f1", due_at=after(70.0))
    assert work(71.0)[-1] == ("skipped", "the run before it still moves instances")


def test_a_worker_that_dies_in_it_leaves_all_or_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-51: whoever comes next meets the same row."""
    put(ADVISE)
    act = doing.act

    def dies(*args: Any, **kwargs: Any) -> doing.Done:
        act(*args, **kwargs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(doing, "act", dies)
        with pytest.raises(KeyboardInterrupt):
            work(HALF_HOUR_S)
    assert Policy.objects.get().mode == "active"
    assert JobRun.objects.get().state == "due"
    assert work(HALF_HOUR_S + 5) == [("done", "f1 is advisory")]


@pytest.mark.django_db(transaction=True)
def test_two_schedulers_at_once_do_it_once() -> None:
    make_fleet()
    hold = {"kind": "plan", "mode": "always_local", "for_s": 3600}
    put(ADVISE | {"do": hold})
    ready = threading.Barrier(4)

    def pass_() -> None:
        ready.wait()
        try:
            runs.work(lambda: after(HALF_HOUR_S))
        finally:
            connection.close()

    threads = [threading.Thread(target=pass_) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Hold.objects.count() == 1
    assert [run.state for run in JobRun.objects.all()] == ["done"]


def test_run_now(fleet: Fleet) -> None:
    put(ADVISE)
    row = runs.run_now(name="advise", now=after(10.0), **BY)
    with pytest.raises(Refused, match="a run of it is due"):
        runs.run_now(name="advise", now=after(11.0), **BY)
    assert work(12.0) == [("done", "f1 is advisory")]
    assert JobRun.objects.get().asked_by == "ada"
    assert Action.objects.filter(actor="ada", verb="policy.change").count() == 1
    assert row.due_at == after(10.0)
    assert [state for state, _ in work(HALF_HOUR_S)] == ["done", "done"], "its own minute as well"


def test_a_job_is_changed_by_who_has_seen_it(fleet: Fleet) -> None:
    assert put(ADVISE, if_version=0).version == 1
    assert put(ADVISE).version == 1, "nothing new"
    with pytest.raises(Stale):
        put(ADVISE | {"grace_s": 60}, if_version=0)
    assert put(ADVISE | {"grace_s": 60}, if_version=1).version == 2
    with pytest.raises(Refused, match="no fleet"):
        put(ADVISE | {"fleet": "f2"})
    with pytest.raises(Refused, match="no PD cluster"):
        put(MORNING | {"do": MORNING["do"] | {"cluster": "prfaas"}})
    with pytest.raises(Stale):
        jobs.delete(name="advise", if_version=1, **BY)
    jobs.delete(name="advise", if_version=2, **BY)
    assert not Job.objects.exists()


def test_a_year_with_workers_that_die_and_two_schedulers(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three zones, both changes of the clock, looks of any length: each day once, or skipped."""
    zones = ("Europe/Paris", "America/New_York", "Australia/Lord_Howe")
    every = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
    for i, zone in enumerate(zones):
        daily = {"zone": zone, "at": "02:30", "days": every}
        put(ADVISE | {"name": f"z{i}", "when": daily, "grace_s": 3600, "dry_run": True})
    n_acted: Counter[str] = Counter()
    preview, calls = doing.preview, itertools.count(1)

    def noted(document: Any, **kwargs: Any) -> doing.Done:
        if next(calls) % 7 == 0:
            raise RuntimeError("the worker dies")
        n_acted[document.name] += 1
        return preview(document, **kwargs)

    monkeypatch.setattr(doing, "preview", noted)
    rng, seen_s = random.Random(3), 0.0
    for moment in sorted(
        moment
        for zone in zones
        for moment in when.due(
            when.When(ZoneInfo(zone), HALF_PAST_TWO, days=EVERY_DAY),
            NOW,
            after(YEAR_S),
        )
    ):
        if at(moment) < seen_s:
            continue  # somebody has looked since
        away_s = rng.choice((0.0, 0.0, 0.0, 7000.0, 200_000.0))
        seen_s = at(moment) + rng.uniform(0.0, 3000.0) + away_s
        runs.work(partial(after, seen_s))
        if rng.random() < 0.3:
            runs.work(partial(after, seen_s - 1.0))  # a second one, its clock behind
    last_s = max(seen_s, YEAR_S)
    runs.work(lambda: after(last_s))
    for i, zone in enumerate(zones):
        name, clock = f"z{i}", when.When(ZoneInfo(zone), HALF_PAST_TWO, days=EVERY_DAY)
        mine = JobRun.objects.filter(job=name).order_by("due_at")
        assert [run.due_at for run in mine] == when.due(clock, NOW, after(last_s))
        assert set(mine.values_list("state", flat=True)) == {"done", "skipped"}
        assert 50 < mine.filter(state="done").count() == n_acted[name]
        assert not mine.filter(state="skipped", text="").exists()
