"""The oracle: as good as trying everything where that can be tried, within the loop's limits."""

from __future__ import annotations

import dataclasses
import itertools
from itertools import pairwise
from typing import Any

import pytest

from routing.core.hysteresis import step_limited
from routing.core.scenario.document import parse_scenario
from routing.core.types import ClusterPlan, Params
from routing.twin.fleet import Run, simulate
from routing.twin.oracle import oracle, thresholds
from routing.twin.policies import Fixed, Scripted, at_threshold, optimum
from routing.twin.rehearsal import Known, Rehearsal, Snapshot
from routing.twin.settings import parse_settings
from routing.twin.workload import scenario_workload
from tests.twin.cases import document as plain_document

PLAIN = Params(mode="active", band_ratio=0.0)
NARROW = dataclasses.replace(PLAIN, t_min_tokens=800, t_max_tokens=1800)
"""Three steps of t from end to end: every script of a few intervals can be tried."""
BURSTS = {"kind": "mmpp", "burst_factor": 4.0, "mean_on_s": 60.0, "mean_off_s": 60.0}
LENGTHS = {"kind": "lognormal", "mu": 7.0, "sigma": 0.8, "min": 100, "max": 10_000}
TRAFFIC = {"rate_rps": 2.6, "output_tokens": 5, "lengths": LENGTHS}
SLO = {"name": "small", "slo": {"tokens_per_s": 5.0, "ttft_s": 4.0}}


def a_run(
    *,
    seed: int = 1,
    duration_s: float = 240.0,
    params: Params = PLAIN,
    movable: bool = False,
    **changes: Any,
) -> Run:
    """A small fleet near its limits, with bursts; its roles move only where `movable`."""
    near: dict[str, Any] = {"name": "near", "kind": "pd", "profile": "gpu", "instances": 4}
    if movable:
        near["control_urls"] = ["http://stack.test"]
    far = {"name": "far", "kind": "prefill", "profile": "gpu", "instances": 2}
    told = {"fleet": SLO, "workload": TRAFFIC, "arrivals": BURSTS, "clusters": [far, near]}
    told |= changes
    if "workloads" in told:
        del told["workload"]
    document = plain_document(**told)
    document = {key: value for key, value in document.items() if key != "workload" or key in told}
    scenario = parse_scenario(document)
    settings = parse_settings(document, scenario)
    return Run(
        scenario=scenario,
        settings=settings,
        workload=scenario_workload(scenario, settings, duration_s=duration_s),
        policy=Fixed(optimum(scenario, "exact")),
        params=params,
        seed=seed,
        duration_s=duration_s,
    )


def good(run: Run, policy: Scripted | Fixed) -> int:
    return simulate(dataclasses.replace(run, policy=policy)).good


def changes(policy: Scripted, cluster: str = "near") -> list[tuple[float, ClusterPlan]]:
    """What the cluster was asked for, and when; the first from the start."""
    found: list[tuple[float, ClusterPlan]] = []
    for at_s, plans in policy.script:
        if not found or plans[cluster] != found[-1][1]:
            found.append((at_s, plans[cluster]))
    return found


TABLE = {"table": [[1, 1000, 0.05], [2, 1000, 0.1], [1, 5000, 0.06], [2, 5000, 0.12]]}
PROFILE = {"prefill": [[1000, 1.0], [100_000, 100.0]], "decode": {"batch": 2, "step_s": 0.1}}
FAULTS = [
    {"kind": "decode_down", "cluster": "near", "at_s": 50.0, "for_s": 100.0},
    {"kind": "prefill_down", "cluster": "far", "at_s": 70.0, "for_s": 45.0},
    {"kind": "link_gbps", "link": "far->near", "gbps": 0.01, "at_s": 90.0, "for_s": 60.0},
]


@pytest.mark.parametrize(
    ("band", "more"),
    [
        (None, {}),
        ((700, 2000), {}),
        ((700, 2000), {"faults": FAULTS}),
        (None, {"cache": {"capacity_tokens": 40_000, "block_tokens": 64}}),
        (None, {"profiles": {"gpu": PROFILE | {"kv_capacity_tokens": 12_000}}}),
        (None, {"profiles": {"gpu": PROFILE | {"decode": TABLE}}}),
    ],
    ids=["plain", "band", "faults", "caches", "kv", "table"],
)
def test_a_rehearsal_copied_again_and_again_is_the_run(band: Any, more: dict[str, Any]) -> None:
    sessions = {"kind": "sessions", "turns": 4.0, "growth_tokens": 300.0, "think_s": 5.0}
    told: dict[str, Any] = more | ({"arrivals": sessions} if "cache" in more else {})
    run = a_run(**told)
    plan = dataclasses.replace(run.policy.first()["near"], band=band)
    rehearsal = Rehearsal(run, {"near": plan}, Known.of(run))
    for until_s in (40.0, 80.0, 120.0, 160.0, 240.0):
        left = Snapshot(rehearsal)
        rehearsal = left.again()
        rehearsal.run(until_s)
        left.again().run(until_s)  # another way from there changes nothing here
    report = simulate(dataclasses.replace(run, policy=Fixed({"near": plan})))
    assert rehearsal.score().served == report.good > 50


def every_script(run: Run, starts: list[ClusterPlan], grid: list[int]) -> list[Scripted]:
    """All ways through the grid, a new t asked for each 60 s and gone to in steps of 20 s."""
    found = []
    for start in starts:
        for aims in itertools.product(grid, repeat=round(run.duration_s / 60.0) - 1):
            script, plan = [(0.0, {"near": start})], start
            for i, aim in enumerate(aims, start=1):
                at_s = 60.0 * i
                while plan.threshold_tokens != aim:
                    assert plan.threshold_tokens is not None
                    t = step_limited(plan.threshold_tokens, aim, run.params.t_max_step_factor)
                    plan = dataclasses.replace(plan, threshold_tokens=t)
                    script.append((at_s, {"near": plan}))
                    at_s += run.params.t_dwell_s
            found.append(Scripted(script))
    return found


def rehearsed(run: Run, known: Known, policy: Scripted) -> int:
    rehearsal = Rehearsal(run, policy.script[0][1], known)
    for at_s, plans in policy.script[1:]:
        rehearsal.adopt("near", plans["near"], at_s)
    rehearsal.run(run.duration_s)
    return rehearsal.score().served


@pytest.mark.parametrize("seed", [1, 3])
def test_it_finds_what_trying_everything_finds(seed: int) -> None:
    run = a_run(seed=seed, params=NARROW)
    known, best = Known.of(run), optimum(run.scenario, "exact")
    grid = thresholds(NARROW, list(best.values()))
    starts = [
        dataclasses.replace(best["near"], threshold_tokens=t, n_prefill=n, n_decode=4 - n)
        for t in grid
        for n in (1, 2, 3)
    ]
    tried = [rehearsed(run, known, script) for script in every_script(run, starts, grid)]
    found = rehearsed(run, known, oracle(run))
    assert len(set(tried)) > 20, "the choice must matter"
    assert found == max(tried)


@pytest.mark.parametrize("seed", [1, 2])
def test_no_plan_for_the_whole_run_is_better(seed: int) -> None:
    run = a_run(seed=seed, movable=True, faults=FAULTS)
    reached = good(run, oracle(run))
    for tokens in (*thresholds(PLAIN, list(run.policy.first().values())), float("inf")):
        assert reached >= good(run, Fixed(at_threshold(run.scenario, tokens))), tokens
    assert reached >= good(run, Fixed(optimum(run.scenario, "exact")))
    assert reached >= good(run, Fixed(optimum(run.scenario, "paper")))


def test_a_link_that_narrows_is_met_by_a_higher_t_while_it_does() -> None:
    narrow = {
        "kind": "link_gbps",
        "link": "far->near",
        "gbps": 0.004,
        "at_s": 120.0,
        "for_s": 180.0,
    }
    run = a_run(
        duration_s=420.0,
        arrivals={"kind": "poisson"},
        workload=TRAFFIC | {"rate_rps": 1.8},
        faults=[narrow],
    )
    found = oracle(run)
    grid = thresholds(PLAIN, list(run.policy.first().values()))
    assert good(run, found) > max(good(run, Fixed(at_threshold(run.scenario, t))) for t in grid)
    asked = [(at_s, plan.threshold_tokens or 0) for at_s, plan in changes(found)]
    meanwhile = [t for at_s, t in asked if 120.0 <= at_s < 300.0]
    assert max(meanwhile) > max(t for at_s, t in asked if at_s < 120.0)


@pytest.mark.parametrize("seed", [1, 2])
def test_limits_of_the_loop_hold(seed: int) -> None:
    run = a_run(seed=seed, movable=True, faults=FAULTS, duration_s=480.0)
    asked = changes(oracle(run))
    assert len(asked) > 3
    moved_s = []
    for (before_s, before), (at_s, after) in pairwise(asked):
        assert at_s % run.settings.delays.tick_s == 0.0
        a, b = before.threshold_tokens, after.threshold_tokens
        assert a is not None
        assert b is not None
        assert PLAIN.t_min_tokens <= b <= PLAIN.t_max_tokens
        assert a / 1.5 - 1 <= b <= a * 1.5 + 1
        if before_s > 0.0:
            assert at_s - before_s >= PLAIN.t_dwell_s
        # One of four at once: max(1, 25 %).
        assert abs(after.n_prefill - before.n_prefill) <= 1 or sum(
            (after.n_prefill, after.n_decode)
        ) != sum((before.n_prefill, before.n_decode))
        assert min(after.n_prefill, after.n_decode) >= 1
        if after.n_prefill != before.n_prefill:
            moved_s.append(at_s)
    for before_s, at_s in pairwise(moved_s):
        assert at_s - before_s >= PLAIN.roles_dwell_s


def test_roles_stay_where_there_is_no_stack_to_ask() -> None:
    asked = changes(oracle(a_run()))
    assert len({plan.n_prefill for _, plan in asked}) == 1


def test_an_hour_has_so_many_changes() -> None:
    few = dataclasses.replace(PLAIN, max_changes_per_hour=2)
    assert len(changes(oracle(a_run(params=few)))) <= 1 + 1  # the last one is kept for failures


def test_its_plans_have_the_band_of_the_loops() -> None:
    banded = dataclasses.replace(PLAIN, band_ratio=0.2)
    asked = changes(oracle(a_run(params=banded, duration_s=120.0)))
    for _, plan in asked[1:]:
        assert plan.threshold_tokens is not None
        assert plan.band is not None
        assert plan.band[0] < plan.threshold_tokens < plan.band[1]


def test_same_seed_same_script() -> None:
    run = a_run(seed=5, movable=True)
    assert oracle(run) == oracle(run)


def test_two_clusters_are_searched_in_turn() -> None:
    far = {"name": "far", "kind": "prefill", "profile": "gpu", "instances": 2}
    pd = {"kind": "pd", "profile": "gpu", "instances": 4}
    run = a_run(
        duration_s=180.0,
        clusters=[far, pd | {"name": "near"}, pd | {"name": "other"}],
        links=[{"from": "far", "to": n, "gbps": 0.08, "rtt_ms": 0.0} for n in ("near", "other")],
        workloads=[TRAFFIC | {"cluster": name, "rate_rps": 1.5} for name in ("near", "other")],
    )
    found = oracle(run)
    assert good(run, found) >= good(run, Fixed(optimum(run.scenario, "exact")))
    assert {name for _, plans in found.script for name in plans} == {"near", "other"}
