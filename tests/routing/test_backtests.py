"""Backtests: what is asked, who takes runs, what a dead or cancelled worker leaves behind."""

from __future__ import annotations

import dataclasses
import gzip
import math
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from routing import backtest_results, backtest_work, backtests
from routing.backtest_asked import Asked
from routing.commands import Refused
from routing.core.jsonable import to_jsonable
from routing.models import Action, Backtest, BacktestRun, Decision, Fleet, Tick, TraceFile
from tests.console import page_case
from tests.routing.backtesting import (
    BY,
    POLICIES,
    mooncake,
    scenario_backtest,
    states,
    trace_backtest,
    upload,
    work_all,
)
from tests.routing.cases import NOW, after, make_fleet

pytestmark = pytest.mark.django_db


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet()


@pytest.fixture(autouse=True)
def _fresh_worker() -> None:
    backtest_work._prepared.cache_clear()
    backtest_work._trace.cache_clear()


def test_every_policy_and_seed_is_run_and_compared(fleet: Fleet) -> None:
    made = scenario_backtest(fleet)
    assert states(made) == ["queued"] * 4
    assert work_all() == 4
    runs = list(made.runs.order_by("place", "seed"))
    assert [(run.policy, run.seed) for run in runs] == [(p, s) for p in POLICIES for s in (1, 2)]
    assert all(run.state == "done" and run.progress == 1.0 and run.wall_s > 0 for run in runs)
    found = backtest_results.results(made, runs)
    assert (found["state"], found["progress"]) == ("done", 1.0)
    goodput = found["comparison"]["metrics"]["goodput_rps"]["policies"]
    assert goodput["paper"]["n"] == 2
    assert goodput["paper"]["difference"] is None
    assert goodput["always_local"]["difference"]["n"] == 2
    link = found["comparison"]["metrics"]["link:prfaas->pd"]["policies"]
    assert link["paper"]["mean"] > 0 == link["always_local"]["mean"]
    series = found["series"]["paper"]
    assert series["at_s"] == [0.0, 60.0]
    assert series["n_seeds"] == 2
    assert len(series["link_gbps"]["prfaas->pd"]) == 2


def test_the_same_seed_brings_the_same_requests_to_every_policy(fleet: Fleet) -> None:
    made = scenario_backtest(fleet)
    work_all()
    requests = {(run.policy, run.seed): run.report["requests"] for run in made.runs.all()}
    for seed in (1, 2):
        assert requests["paper", seed] == requests["always_local", seed]
    assert requests["paper", 1] != requests["paper", 2]


def test_a_seed_is_finished_under_every_policy_before_the_next_one(fleet: Fleet) -> None:
    scenario_backtest(fleet)
    taken = []
    while (run := backtests.claim_next(NOW)) is not None:
        taken.append((run.seed, run.policy))
    assert taken == [(seed, policy) for seed in (1, 2) for policy in POLICIES]


def test_changed_numbers_stand_in_the_scenario_that_is_simulated(fleet: Fleet) -> None:
    made = scenario_backtest(fleet, numbers={"prfaas->pd.gbps": 7.0})
    assert made.scenario["links"][0]["gbps"] == 7.0
    assert fleet.scenario["links"][0]["gbps"] == 100.0


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"policies": ()}, "policies"),
        ({"policies": ("static:many",)}, "policies"),
        ({"policies": ("paper", "paper")}, "policies"),
        ({"policies": ("lived",)}, "policies"),
        ({"seeds": 21}, "seeds"),
        ({"seeds": 0}, "seeds"),
        ({"baseline": "adaptive"}, "baseline"),
        ({"duration_s": math.inf}, "duration_s"),
        ({"warmup_ratio": 1.0}, "warmup_ratio"),
        ({"scale": "load_thinned"}, "scale"),
        ({"scale_value": 0.0}, "scale_value"),
        ({"numbers": {"pd.colour": 3}}, "pd.colour"),
        ({"numbers": {"pd.rate_rps": -1}}, "pd.rate_rps"),
        ({"cache": "cluster", "cache_capacity": "much"}, "cache_capacity"),
        ({"cache": "cluster", "cache_capacity": "profile"}, "cache_capacity"),
        ({"duration_s": 30 * 86_400.0, "scale_value": 50.0}, "scale_value"),
    ],
)
def test_what_cannot_be_meant_names_its_field_and_makes_nothing(
    fleet: Fleet, asked: dict[str, Any], field: str
) -> None:
    with pytest.raises(Refused) as refused:
        scenario_backtest(fleet, **asked)
    assert refused.value.field == field
    assert not Backtest.objects.exists()


def test_a_fleet_has_ten_open_backtests_at_most(fleet: Fleet) -> None:
    for _ in range(backtests.MOST_OPEN):
        made = scenario_backtest(fleet)
    with pytest.raises(Refused, match="are not over"):
        scenario_backtest(fleet)
    backtests.cancel(backtest=made, reason="", **BY)
    scenario_backtest(fleet)


class TestTraces:
    def test_a_trace_is_kept_once_and_gzipped(self, fleet: Fleet) -> None:
        plain = upload(fleet)
        assert upload(fleet) == plain
        assert gzip.decompress(bytes(plain.data)) == mooncake()
        assert plain.n_bytes == len(mooncake())
        packed = upload(fleet, gzip.compress(mooncake()), "small.jsonl.gz")
        assert packed != plain
        assert Action.objects.filter(verb="trace.upload").count() == 2

    @pytest.mark.parametrize(
        ("data", "says"),
        [
            (b"", "is empty"),
            (b"hello\n", "columns"),
            (
                mooncake(2) + b'{"timestamp": 9000, "input_length": -3}\n',
                "jsonl:3: input_length = -3",
            ),
            (gzip.compress(b"a,b\n1,2\n", mtime=0), "columns"),
            (b"\x1f\x8bnot gzip", "Error"),
        ],
    )
    def test_a_bad_beginning_is_refused_at_once(self, fleet: Fleet, data: bytes, says: str) -> None:
        with pytest.raises(Refused, match=says):
            upload(fleet, data)
        assert not TraceFile.objects.exists()

    def test_too_large_an_upload_is_refused(
        self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backtests, "MOST_TRACE_BYTES", 100)
        with pytest.raises(Refused, match="at most 100"):
            upload(fleet)

    def test_a_bad_row_further_on_fails_every_run_with_line_and_field(self, fleet: Fleet) -> None:
        data = mooncake(4000)
        assert len(data) > backtests._HEAD_BYTES
        bad = b'{"timestamp": 1, "input_length": 512, "output_length": 1, "hash_ids": [1]}\n'
        made = trace_backtest(fleet, upload(fleet, data + bad))
        assert work_all() == 1
        assert states(made) == ["failed"] * 4
        errors = set(made.runs.values_list("error", flat=True))
        assert len(errors) == 1
        assert errors.pop().startswith("small.jsonl:4001: time = 0.001: is earlier")

    def test_its_facts_and_its_rate_are_told(self, fleet: Fleet) -> None:
        made = trace_backtest(fleet)
        assert made.prepared is None
        work_all()
        made.refresh_from_db()
        facts = made.prepared
        assert facts["n_requests"] == 60
        assert facts["own_rps"] == pytest.approx(0.5)
        assert facts["block_tokens"] == 512
        # Every second prompt finds all its blocks cached.
        seen = facts["traffic"]["pd"]
        assert seen["mean_prompt_tokens"] == 2048
        assert seen["mean_uncached_tokens"] == pytest.approx(1024, rel=0.01)

    def test_without_a_cache_nothing_is_found_cached(self, fleet: Fleet) -> None:
        made = trace_backtest(fleet, cache="none")
        work_all()
        made.refresh_from_db()
        assert made.prepared["traffic"]["pd"]["mean_uncached_tokens"] == 2048
        assert "cache" not in made.scenario

    def test_load_replays_it_at_a_share_of_what_the_best_plan_carries(self, fleet: Fleet) -> None:
        made = trace_backtest(fleet, scale="load", scale_value=0.5, seeds=1, policies=("paper",))
        work_all()
        made.refresh_from_db()
        facts = made.prepared
        assert facts["rate_rps"] == pytest.approx(0.5 * facts["lambda_max_rps"])
        assert facts["duration_s"] == pytest.approx(60 / facts["rate_rps"])
        report = made.runs.get().report
        assert report["until_s"] == pytest.approx(facts["duration_s"])

    def test_the_loop_begins_with_the_best_plan_for_the_trace_as_fixed_policies_do(
        self, fleet: Fleet
    ) -> None:
        made = trace_backtest(fleet, policies=("paper", "adaptive"), seeds=1)
        as_told = trace_backtest(
            fleet, TraceFile.objects.get(), policies=("adaptive",), seeds=1, plan_for="scenario"
        )
        work_all()
        first = {run.policy: run.report["plans"][0] for run in made.runs.all()}
        assert first["adaptive"]["threshold_tokens"] != 4000
        told = as_told.runs.get().report["plans"][0]
        assert (told["threshold_tokens"], told["n_prefill"]) == (4000, 3)

    def test_thinning_keeps_the_speed_and_leaves_conversations_out(self, fleet: Fleet) -> None:
        data = mooncake(400, gap_ms=50)
        trace = upload(fleet, data)
        made = trace_backtest(
            fleet, trace, scale="load_thinned", scale_value=0.1, plan_for="scenario", cache="none",
            warmup_ratio=0.0, policies=("paper",),
        )  # fmt: skip
        work_all()
        made.refresh_from_db()
        facts = made.prepared
        assert 0 < facts["keep_ratio"] < 1
        assert facts["duration_s"] == pytest.approx(20.0)
        n = [run.report["requests"] for run in made.runs.all()]
        assert all(0 < each < 400 for each in n)

    def test_thinning_cannot_make_more(self, fleet: Fleet) -> None:
        made = trace_backtest(fleet, scale="load_thinned", scale_value=1.5)
        work_all()
        assert states(made) == ["failed"] * 4
        assert "replay it faster instead" in made.runs.first().error

    def test_one_seed_is_the_trace_as_it_was_and_several_begin_elsewhere(
        self, fleet: Fleet
    ) -> None:
        one = trace_backtest(fleet, seeds=1)
        several = trace_backtest(fleet, TraceFile.objects.get())
        work_all()
        for made in (one, several):
            made.refresh_from_db()
        assert not one.prepared["starts_vary"]
        assert several.prepared["starts_vary"]


class TestRecorded:
    @pytest.fixture
    def lived(self) -> Fleet:
        fleet = make_fleet(mode="active")
        page_case.decision(fleet, NOW - timedelta(minutes=11), 1, 4000)
        for i in range(40):
            page_case.tick(fleet, NOW - timedelta(minutes=10) + timedelta(seconds=15 * i))
        page_case.decision(fleet, NOW - timedelta(minutes=5), 2, 6000, previous=4000)
        return fleet

    def ask(self, fleet: Fleet, **asked: Any) -> Backtest:
        facts = {"policies": ("lived", "always_local"), "seeds": 2, **asked}
        return backtests.create(
            fleet=fleet,
            asked=Asked("recorded", **facts),
            since=NOW - timedelta(minutes=10),
            until=NOW,
            **BY,
        )

    def test_demand_lengths_and_lived_plans_are_those_of_the_ticks(self, lived: Fleet) -> None:
        made = self.ask(lived)
        kept = made.recording
        assert kept["n_rows"] == 10
        assert kept["n_missing"] == {"pd": 0}
        assert {row["demand_rps"] for row in kept["clusters"]["pd"]} == {2.5}
        assert len(kept["lengths"]) == 2
        assert kept["live"]["remote_fraction"] == [pytest.approx(0.48)] * 10
        assert kept["live"]["link_gbps"]["prfaas->pd"] == [9.4] * 10
        plans = [(row["at_s"], row["clusters"]["pd"]["threshold_tokens"]) for row in kept["lived"]]
        assert plans == [(0.0, 4000), (pytest.approx(300.0), 6000)]

    def test_twin_and_live_are_compared_under_the_lived_plans(self, lived: Fleet) -> None:
        made = self.ask(lived)
        work_all()
        found = backtest_results.results(made, list(made.runs.order_by("place", "seed")))
        assert found["state"] == "done"
        drift = {row["what"]: row for row in found["drift"]}
        assert drift["demand_rps"]["policy"] == "lived"
        assert drift["demand_rps"]["live"] == pytest.approx(2.5)
        assert drift["demand_rps"]["apart"] == pytest.approx(0.0, abs=0.1)
        # The recorded lengths are far shorter than what would send 48 % over 4,000 tokens.
        assert drift["remote_fraction"]["live"] == pytest.approx(0.48)
        assert drift["link_gbps"]["where"] == "prfaas->pd"
        changes = {run.policy: run.report["plan_changes"]["all"] for run in made.runs.all()}
        assert changes["lived"] == 1
        assert changes["always_local"] == 0

    def test_adaptive_begins_with_the_plan_that_was_in_force(self, lived: Fleet) -> None:
        Decision.objects.filter(version=1).update(
            plan=to_jsonable(page_case.plan(lived.pk, 1, 7777))
        )
        made = self.ask(lived, policies=("adaptive",), seeds=1)
        work_all()
        first = made.runs.get().report["plans"][0]
        assert (first["threshold_tokens"], first["n_prefill"]) == (7777, 3)

    def test_another_number_of_instances_cannot_have_lived_plans(self, lived: Fleet) -> None:
        with pytest.raises(Refused, match="leave them as they are"):
            self.ask(lived, numbers={"pd.instances": 4})
        made = self.ask(lived, numbers={"pd.instances": 3}, policies=("adaptive",), seeds=1)
        assert "start" not in made.scenario["clusters"][1]

    def test_minutes_before_the_first_demand_are_left_out(self, lived: Fleet) -> None:
        early = Tick.objects.filter(at__lt=NOW - timedelta(minutes=8))
        for tick in early:
            tick.observed["pd"]["pd"] |= {"demand_rps": None, "demand_state": "missing"}
            tick.save()
        made = self.ask(lived)
        assert made.recording["from_s"] == (NOW - timedelta(minutes=8)).timestamp()
        assert made.recording["n_rows"] == 8
        assert made.recording["clusters"]["pd"][0]["at_s"] == 0.0
        assert made.recording["lived"][0]["at_s"] == 0.0

    def test_an_interval_without_ticks_says_where_there_are_some(self, lived: Fleet) -> None:
        with pytest.raises(Refused, match="stored ones are of 2026"):
            backtests.create(
                fleet=lived,
                asked=Asked("recorded"),
                since=NOW - timedelta(hours=3),
                until=NOW - timedelta(hours=2),
                **BY,
            )


def test_old_backtests_and_their_traces_are_forgotten_open_ones_are_not(fleet: Fleet) -> None:
    done = trace_backtest(fleet)
    work_all()
    waiting = scenario_backtest(fleet)
    assert backtests.prune(after(60)) == 1
    assert list(Backtest.objects.all()) == [waiting]
    assert not TraceFile.objects.exists()
    assert not BacktestRun.objects.filter(backtest_id=done.pk).exists()


def test_a_table_has_a_row_for_each_run(fleet: Fleet) -> None:
    made = scenario_backtest(fleet)
    work_all()
    runs = list(made.runs.order_by("place", "seed"))
    header, rows = backtest_results.rows_of(runs)
    assert header[:4] == ["policy", "seed", "state", "wall_s"]
    assert "link:prfaas->pd" in header
    assert [row[:3] for row in rows] == [[p, s, "done"] for p in POLICIES for s in (1, 2)]
    place = header.index("goodput_rps")
    assert rows[0][place] == runs[0].report["goodput_rps"]


def test_who_asked_and_who_cancelled_stands_in_the_audit(fleet: Fleet) -> None:
    made = scenario_backtest(fleet)
    action = Action.objects.get(verb="backtest.create")
    assert (action.actor, action.target) == ("anna", f"backtest {made.pk}")
    assert made.requested_by == "anna"
    assert dataclasses.replace(Asked.from_json(made.asked), knobs={}).policies == POLICIES


def test_the_clock_of_the_worker_is_its_own(fleet: Fleet) -> None:
    made = scenario_backtest(fleet, seeds=1, policies=("paper",))
    backtest_work.work(timezone.now)
    assert made.runs.get().finished_at > NOW - timedelta(days=9999)
