"""Workers of the twin: who takes a run, what a dead, cancelled or broken one leaves behind."""

from __future__ import annotations

import math
from typing import Any

import pytest

from routing import backtest_results, backtest_work, backtests, tasks
from routing.commands import Refused
from routing.models import Action, Backtest, BacktestRun, Fleet
from routing.twin import fleet as twin
from tests.routing.backtesting import BY, clock, scenario_backtest, states, work_all
from tests.routing.cases import NOW, after, make_fleet

pytestmark = pytest.mark.django_db


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet()


@pytest.fixture(autouse=True)
def _fresh_worker() -> None:
    backtest_work._prepared.cache_clear()
    backtest_work._trace.cache_clear()


def test_two_workers_never_have_the_same_run(fleet: Fleet) -> None:
    scenario_backtest(fleet, seeds=1)
    first, second = backtests.claim_next(NOW), backtests.claim_next(NOW)
    assert first is not None
    assert second is not None
    assert first.pk != second.pk
    assert backtests.claim_next(NOW) is None


def test_a_silent_worker_loses_its_run_and_its_word(fleet: Fleet) -> None:
    scenario_backtest(fleet, seeds=1, policies=("paper",))
    dead = backtests.claim_next(NOW)
    assert dead is not None
    assert backtests.sweep(after(backtests.SILENT_S - 1)) == 0
    assert backtests.sweep(after(backtests.SILENT_S + 1)) == 1
    alive = backtests.claim_next(after(200))
    assert alive is not None
    assert (alive.pk, alive.attempt) == (dead.pk, 2)
    assert not backtests.beat(dead, after(201), 0.9, {"wall_s": 1.0})
    backtests.finish(dead, after(201), {"wall_s": 1.0})
    backtests.fail(dead, after(201), "too late")
    assert BacktestRun.objects.get().state == "running"
    assert backtests.beat(alive, after(202), 0.1, None)


def test_a_run_that_kills_its_workers_fails_in_the_end(fleet: Fleet) -> None:
    made = scenario_backtest(fleet, seeds=1, policies=("paper",))
    at_s = 0.0
    for _ in range(backtests.MOST_ATTEMPTS):
        assert backtests.claim_next(after(at_s)) is not None
        at_s += backtests.SILENT_S + 1
        backtests.sweep(after(at_s))
    assert states(made) == ["failed"]
    assert "3 times in a row" in made.runs.get().error


def test_cancelling_ends_what_waits_at_once_and_what_runs_at_its_next_look(fleet: Fleet) -> None:
    made = scenario_backtest(fleet)
    run = backtests.claim_next(NOW)
    assert run is not None
    backtests.cancel(backtest=made, reason="enough", **BY)
    assert states(made) == ["running", "cancelled", "cancelled", "cancelled"]
    assert not backtests.beat(run, after(1), 0.5, {"half": True})
    backtests.stopped(run, after(1))
    assert states(made) == ["cancelled"] * 4
    action = Action.objects.get(verb="backtest.cancel")
    assert (action.actor, action.reason) == ("anna", "enough")
    with pytest.raises(Refused, match="nothing left to cancel"):
        backtests.cancel(backtest=made, reason="", **BY)


def test_a_cancelled_simulation_stops_in_the_middle(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = scenario_backtest(fleet, seeds=1, policies=("paper",), duration_s=3600.0)
    monkeypatch.setattr(backtest_work, "_BEAT_S", 0.0)
    seen: list[float] = []

    def beat(run: Any, now: Any, progress: float, report: Any) -> bool:
        seen.append(progress)
        if len(seen) == 3:
            Backtest.objects.filter(pk=made.pk).update(cancel_requested=True)
        return real(run, now, progress, report)

    real = backtests.beat
    monkeypatch.setattr(backtests, "beat", beat)
    work_all()
    assert states(made) == ["cancelled"]
    assert len(seen) == 3
    assert seen[-1] < 0.1


def test_progress_and_a_partial_report_are_told_while_it_runs(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = scenario_backtest(fleet, seeds=1, policies=("paper",), duration_s=600.0)
    monkeypatch.setattr(backtest_work, "_BEAT_S", 0.0)
    monkeypatch.setattr(backtest_work, "_PARTIAL_S", 0.0)
    seen: list[tuple[float, int]] = []
    real = backtests.beat

    def beat(*args: Any) -> bool:
        found = real(*args)
        run = made.runs.get()
        series = backtest_results.results(made, [run])["series"]["paper"]
        seen.append((run.progress, len(series["at_s"]) if series else 0))
        return found

    monkeypatch.setattr(backtests, "beat", beat)
    work_all()
    ratios = [ratio for ratio, _ in seen]
    assert ratios == sorted(ratios)
    assert 0 < ratios[1] < ratios[-1] < 1
    assert {n for _, n in seen} >= {0, 1, 4, 8}


def test_the_oracle_is_asked_and_gives_signs_of_life_while_it_searches(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = scenario_backtest(fleet, seeds=1, policies=("oracle", "always_local"))
    monkeypatch.setattr(backtest_work, "_LOOK_S", 0.02)
    seen: list[float] = []
    real = backtests.beat

    def beat(run: Any, now: Any, progress: float, report: Any) -> bool:
        seen.append(progress)
        return real(run, now, progress, report)

    monkeypatch.setattr(backtests, "beat", beat)
    work_all()
    assert states(made) == ["done", "done"]
    assert seen.count(0.0) > 3
    good = {run.policy: run.report["good"] for run in made.runs.all()}
    assert good["oracle"] >= good["always_local"]


def test_a_search_in_hindsight_can_be_cancelled(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = scenario_backtest(fleet, seeds=1, policies=("oracle",))
    monkeypatch.setattr(backtest_work, "_LOOK_S", 0.02)

    seen: list[float] = []
    real = backtests.beat

    def beat(run: Any, now: Any, progress: float, report: Any) -> bool:
        seen.append(progress)
        if len(seen) == 3:
            Backtest.objects.filter(pk=made.pk).update(cancel_requested=True)
        return real(run, now, progress, report)

    def endless(run: Any) -> None:
        while True:
            math.sqrt(2.0)

    monkeypatch.setattr(backtests, "beat", beat)
    monkeypatch.setattr(backtest_work, "oracle", endless)
    work_all()
    assert states(made) == ["cancelled"]


def test_a_bug_in_the_twin_fails_one_run_and_says_so(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = scenario_backtest(fleet, seeds=1)

    def broken(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("no queue")

    monkeypatch.setattr(backtest_work, "simulate", broken)
    backtest_work.work(clock)
    monkeypatch.setattr(backtest_work, "simulate", twin.simulate)
    work_all()
    assert states(made) == ["failed", "done"]
    assert "ZeroDivisionError: no queue" in made.runs.get(state="failed").error


def test_the_task_takes_one_run_and_wakes_the_next(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(tasks.backtest, "apply_async", lambda **options: sent.append(options))
    made = scenario_backtest(fleet, seeds=1)
    tasks.backtest()
    assert sorted(states(made)) == ["done", "queued"]
    assert sent == [{"expires": tasks.SWEEP_S, "retry": False}]
    tasks.backtest()
    sent.clear()
    tasks.backtest()
    assert sent == []
    tasks.backtests_swept()
    assert sent == []
    scenario_backtest(fleet, seeds=3)
    tasks.backtests_swept()
    assert len(sent) == tasks.TWIN_PROCESSES
