"""What a report says of a handful of requests, computed by hand."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from routing.core.scenario.document import Link, Slo
from routing.core.types import ClusterPlan
from routing.twin.compare import compare
from routing.twin.report import Finished, Recorder, Report, UnderWay

SLO = Slo(tokens_per_s=40.0, ttft_s=10.0)
REASONS = ("Short", "Long", "RemoteDown")
STEP_S = 0.025


@dataclass(frozen=True)
class One:
    """A request by its stages in seconds; 41 tokens by default, so 1 s of decode."""

    at_s: float = 0.0
    queue_s: float = 0.0
    prefill_s: float = 1.0
    transfer_s: float = 0.0
    wait_s: float = 0.0
    output_tokens: int = 41
    step_s: float = STEP_S
    site: int = 0
    reason: int = 0
    remote: bool = False
    kv_bytes: float = 0.0
    retries: int = 0


def finished(ones: Sequence[One]) -> Finished:
    stages = np.array([(o.at_s, o.queue_s, o.prefill_s, o.transfer_s, o.wait_s) for o in ones])
    at, begun, ended, ready, slot = np.cumsum(stages.reshape(-1, 5), axis=1).T
    output = np.array([o.output_tokens for o in ones], dtype=np.int64)
    n = len(ones)
    return Finished(
        at_s=at,
        site=np.array([o.site for o in ones], dtype=np.int64),
        prompt_tokens=np.full(n, 1000),
        output_tokens=output,
        uncached_tokens=np.full(n, 800),
        computed_tokens=np.full(n, 900),
        reason=np.array([o.reason for o in ones], dtype=np.int64),
        remote=np.array([o.remote for o in ones], dtype=np.bool_),
        prefill_start_s=begun,
        prefill_end_s=ended,
        ready_s=ready,
        decode_start_s=slot,
        end_s=slot + np.array([o.step_s for o in ones]) * (output - 1),
        kv_bytes=np.array([o.kv_bytes for o in ones]),
        retries=np.array([o.retries for o in ones], dtype=np.int64),
    )


def under_way(at_s: Sequence[float], begun_s: Sequence[float], remote: bool = False) -> UnderWay:
    n = len(at_s)
    return UnderWay(
        at_s=np.array(at_s, dtype=np.float64),
        site=np.zeros(n, dtype=np.int64),
        reason=np.full(n, 1 if remote else 0),
        remote=np.full(n, remote),
        prefill_start_s=np.array(begun_s, dtype=np.float64),
    )


def recorder(**more: Any) -> Recorder:
    return Recorder(SLO, **{"sites": ("pd",), "reasons": REASONS, **more})


def reported(ones: Sequence[One], until_s: float = 100.0, **more: Any) -> Report:
    found = recorder(**more)
    found.add(finished(ones))
    return found.report(until_s)


def text(report: Report) -> str:
    return json.dumps(report.to_json(), allow_nan=False)


def test_stages_add_up_to_the_time_to_first_token() -> None:
    report = reported([One(0.0, 1.0, 2.0, 3.0, 0.5), One(1.0, 0.0, 4.0, 0.0, 0.0)])
    means = {stage: found["mean"] for stage, found in report.stages_s.items()}
    assert means == {"queue": 0.5, "prefill": 3.0, "transfer": 1.5, "decode_wait": 0.25}
    assert report.ttft_s["mean"] == sum(m for m in means.values() if m is not None) == 5.25
    assert report.ttft_s["p50"] == pytest.approx(4.0, rel=1e-3)
    assert report.ttft_s["p90"] == pytest.approx(6.5, rel=1e-3)
    assert report.stages_s["queue"]["p50"] == 0.0


@pytest.mark.parametrize(
    ("one", "good"),
    [
        pytest.param(One(), True, id="quick"),
        pytest.param(One(prefill_s=9.0, wait_s=1.0), True, id="the very TTFT"),
        pytest.param(One(prefill_s=9.0, wait_s=1.01), False, id="TTFT too long"),
        pytest.param(One(queue_s=9.01), False, id="queueing counts"),
        pytest.param(One(transfer_s=9.01), False, id="so does the link"),
        pytest.param(One(step_s=0.0255), True, id="the very step, slack and all"),
        pytest.param(One(at_s=12.7, step_s=0.0255, output_tokens=7), True, id="to the last bit"),
        pytest.param(One(at_s=6.1, prefill_s=9.0, wait_s=1.0), True, id="of a TTFT as well"),
        pytest.param(One(step_s=0.0256), False, id="too slow a step"),
        pytest.param(One(step_s=9.0, output_tokens=2), False, id="one slow gap"),
        pytest.param(One(output_tokens=1), True, id="one token has no gap"),
        pytest.param(One(output_tokens=1, wait_s=9.01), False, id="but a TTFT"),
    ],
)
def test_what_is_served_well(one: One, good: bool) -> None:
    report = reported([one])
    assert (report.completed, report.good) == (1, int(good))
    assert report.goodput_rps == (0.01 if good else 0.0)


def test_the_time_between_tokens_is_over_gaps_and_of_those_who_have_one() -> None:
    report = reported([One(output_tokens=3, step_s=0.5), One(output_tokens=1)])
    assert report.inter_token_s["mean"] == 0.5
    assert reported([One(output_tokens=1)]).inter_token_s["mean"] is None


def test_what_arrived_before_the_window_is_in_throughput_only() -> None:
    """Window 10 to 100 s: the first ended before it, the second inside, the third arrived in it."""
    report = reported(
        [One(at_s=5.0), One(at_s=9.0, prefill_s=3.0, remote=True, reason=1), One(at_s=20.0)],
        warmup_s=10.0,
    )
    assert (report.requests, report.completed, report.good) == (1, 1, 1)
    assert report.throughput_rps == 2 / 90
    assert report.goodput_rps == 1 / 90
    assert report.ttft_s["mean"] == 1.0
    assert report.remote_fraction == 0.0
    assert report.tokens == {"prompt": 1000, "output": 41, "uncached": 800, "computed": 900}
    assert report.series["arrivals"] == [3, 0]


def test_a_backlog_is_neither_completed_nor_good() -> None:
    found = recorder(warmup_s=1.0)
    found.add(finished([One(at_s=2.0), One(at_s=3.0)]))
    found.refused(np.array([0.5, 4.0]), np.array([0, 0]))
    found.lost(np.array([5.0]), np.array([0]), np.array([6.0]))
    report = found.report(11.0, under_way([0.5, 7.0, 8.0, 9.0], [-1.0, 7.5, -1.0, -1.0], True))
    counts = (report.requests, report.completed, report.unfinished, report.refused, report.lost)
    assert counts == (7, 2, 3, 1, 1)
    assert report.goodput_rps == report.throughput_rps == 0.2
    assert report.good_fraction == 2 / 7
    # A side was chosen for two that are done and three under way.
    assert report.remote_fraction == 3 / 5
    assert report.sites["pd"]["requests"] == 7


def test_what_ends_after_the_run_is_unfinished() -> None:
    report = reported([One(), One(at_s=98.5)], until_s=100.0)
    assert (report.completed, report.unfinished) == (2, 0)
    found = recorder(until_s=100.0, warmup_s=0.5)
    early = One(prefill_s=200.0)
    found.add(finished([early, One(at_s=1.0), One(at_s=98.5), One(at_s=99.0, queue_s=5.0)]))
    report = found.report(100.0)
    assert (report.requests, report.completed, report.unfinished) == (3, 1, 2)
    assert report.ttft_s["mean"] == 1.0
    assert report.series["completed"] == [1, 0]
    # Of the 40 s of the second row one waited for the last.
    assert report.series["waiting"] == [0.0, 1 / 40]


def test_an_only_token_has_no_gap_whatever_its_decode_takes() -> None:
    found = recorder()
    found.add(replace(finished([One(output_tokens=1)]), end_s=np.array([2.0])))
    report = found.report(10.0)
    assert (report.good, report.inter_token_s["mean"]) == (1, None)


def test_sides_by_reason_and_site() -> None:
    report = reported(
        [
            One(remote=True, reason=1, kv_bytes=5e8, site=1, prefill_s=2.0),
            One(remote=True, reason=1, kv_bytes=7e8, site=1, prefill_s=4.0, retries=2),
            One(reason=0, site=0),
            One(reason=2, site=1, prefill_s=30.0),
        ],
        sites=("a", "b", "c"),
    )
    assert report.remote_fraction == 0.5
    assert report.reasons == {
        "Short": {"requests": 1, "share": 0.25, "remote": 0},
        "Long": {"requests": 2, "share": 0.5, "remote": 2},
        "RemoteDown": {"requests": 1, "share": 0.25, "remote": 0},
    }
    assert (report.kv_bytes, report.retries) == (1_200_000_000, 2)
    assert [report.sites[name]["remote_fraction"] for name in "abc"] == [0.0, 2 / 3, None]
    assert [report.sites[name]["ttft_s"]["mean"] for name in "abc"] == [1.0, 12.0, None]
    assert [report.sites[name]["good"] for name in "abc"] == [1, 2, 0]


def test_rows_by_minute() -> None:
    found = recorder()
    found.add(
        finished(
            [
                One(at_s=0.0, prefill_s=2.0),
                One(at_s=30.0, queue_s=60.0, prefill_s=3.0, remote=True, reason=1),
                One(at_s=59.0, prefill_s=4.0),
                One(at_s=119.0, prefill_s=5.0),
            ]
        )
    )
    series = found.report(150.0).series
    assert (series["row_s"], series["at_s"]) == (60.0, [0.0, 60.0, 120.0])
    assert series["arrivals"] == [3, 1, 0]
    assert series["completed"] == [1, 2, 1]
    assert series["goodput_rps"] == [2 / 60, 1 / 60, 0.0]
    assert series["remote_fraction"] == [1 / 3, 0.0, None]
    # One waits from 30 to 90: half of the first minute, half of the second.
    assert series["waiting"] == [0.5, 0.5, 0.0]
    assert series["ttft_p50_s"] == [
        pytest.approx(4.0, rel=0.03),
        pytest.approx(5.0, rel=0.03),
        None,
    ]
    assert series["ttft_p90_s"][0] == pytest.approx(63.0, rel=0.03)


def test_a_backlog_waits_to_the_end_of_the_rows() -> None:
    """From 30 s on one waits, from 60 s on two, from 90 s on one; the last one will at the end."""
    found = recorder()
    series = found.report(150.0, under_way([30.0, 60.0, 150.0], [90.0, -1.0, 160.0])).series
    assert series["waiting"] == [0.5, 1.5, 1.0]
    assert found.report(150.0).series["waiting"] == [0.0, 0.0, 0.0]


def test_the_threshold_of_a_row_is_that_at_its_end() -> None:
    found = recorder()
    plan = ClusterPlan("threshold", 4000, 3, 5)
    found.plan_change(0.0, "pd", plan)
    found.plan_change(70.0, "pd", replace(plan, threshold_tokens=5000), "Congested")
    found.plan_change(80.0, "pd", replace(plan, threshold_tokens=5000), "AsBefore")
    found.plan_change(90.0, "pd", replace(plan, threshold_tokens=6000, n_prefill=4, n_decode=4))
    found.plan_change(130.0, "pd", ClusterPlan("always_local", None, 4, 4))
    report = found.report(180.0)
    assert report.series["threshold_tokens"] == {"pd": [4000, 6000, None]}
    assert [row["at_s"] for row in report.plans] == [0.0, 70.0, 90.0, 130.0]
    assert report.plans[1]["reason"] == "Congested"
    assert report.plan_changes == {"all": 3, "threshold": 3, "roles": 1}


def test_a_run_of_days_has_rows_of_several_minutes() -> None:
    """36 h and a second: more than 1,440 minutes, so rows of two, and nothing is lost."""
    found = recorder(links=(Link("prfaas", "pd", 10.0, None, {}),))
    found.link("prfaas->pd", 0.0, 100.0, 3e9, 1e11)
    found.add(finished([One(at_s=90.0, queue_s=60.0)]))
    assert found.report(100.0).series["row_s"] == 60.0
    found.add(finished([One(at_s=36 * 3600.0)]))
    series = found.report(36 * 3600.0 + 60.0).series
    assert (series["row_s"], len(series["at_s"])) == (120.0, 1081)
    assert (series["arrivals"][0], series["arrivals"][1080], sum(series["arrivals"])) == (1, 1, 2)
    assert series["waiting"][:3] == [0.25, 0.25, 0.0]
    assert series["link_gbps"]["prfaas->pd"][0] == pytest.approx(3e9 * 8e-9 / 120.0)


def drawn(n: int, *, seed: int = 3, rate_rps: float = 2.0, sites: int = 2) -> Finished:
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(1.0 / rate_rps, n))
    spans = rng.exponential(1.0, (4, n)) * (rng.random((4, n)) < 0.7)
    begun, ended, ready, slot = at + np.cumsum(spans, axis=0)
    output, tokens = rng.integers(1, 50, n), rng.integers(1, 99_999, n)
    remote = rng.random(n) < 0.4
    return Finished(
        *(at, rng.integers(0, sites, n), tokens, output, tokens, tokens, remote.astype(np.int64)),
        *(remote, begun, ended, ready, slot, slot + STEP_S * (output - 1)),
        *(np.where(remote, tokens * 17280.0, 0.0), rng.integers(0, 2, n)),
    )


@pytest.mark.parametrize("piece", [7, 1000, 30_000])
def test_pieces_and_reports_on_the_way_change_no_byte(piece: int) -> None:
    rows = drawn(30_000)
    until_s = float(rows.at_s[-1]) - 50.0
    kind = {"sites": ("a", "b"), "warmup_s": 1000.0, "until_s": until_s}
    whole, other = recorder(**kind), recorder(**kind)
    whole.add(rows)
    for first in range(0, len(rows), piece):
        other.add(rows[first : first + piece])
        if first % 5000 == 0:
            other.report(float(rows.at_s[first]), under_way([1.0], [2.0]))
    assert text(other.report(until_s)) == text(whole.report(until_s))


def test_against_the_requests_themselves() -> None:
    """Thirty thousand at once, by numpy."""
    rows = drawn(30_000)
    until_s = float(rows.at_s[-1]) - 50.0
    found = recorder(sites=("a", "b"), warmup_s=1000.0, until_s=until_s)
    found.add(rows)
    report = found.report(until_s)
    arrived, ended = rows.at_s >= 1000.0, rows.end_s <= until_s
    ttft = (rows.decode_start_s - rows.at_s)[arrived & ended]
    assert report.requests == np.count_nonzero(arrived)
    assert report.completed == len(ttft)
    assert report.unfinished == np.count_nonzero(arrived & ~ended) > 0
    assert report.ttft_s["mean"] == pytest.approx(ttft.mean(), rel=1e-9)
    for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        want = np.quantile(ttft, q, method="inverted_cdf")
        assert report.ttft_s[name] == pytest.approx(want, rel=1e-3)
    assert report.throughput_rps == pytest.approx(
        np.count_nonzero(ended & (rows.end_s >= 1000.0)) / (until_s - 1000.0)
    )
    assert report.remote_fraction == pytest.approx(rows.remote[arrived].mean())
    waits = np.array(report.series["waiting"])
    in_full = len(waits) - 1
    begun, at = rows.prefill_start_s, rows.at_s
    for i in range(in_full):
        low, high = 60.0 * i, 60.0 * (i + 1)
        overlap = np.clip(np.minimum(begun, high) - np.maximum(at, low), 0.0, None).sum()
        assert waits[i] == pytest.approx(overlap / 60.0, abs=1e-3)


def test_memory_does_not_grow_with_the_run() -> None:
    def peak_bytes(pieces: int) -> int:
        found = recorder()
        tracemalloc.start()
        for i in range(pieces):
            piece = drawn(2000, seed=i, sites=1)
            found.add(piece)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert peak_bytes(60) < 1.1 * peak_bytes(12)


def test_nothing_happened() -> None:
    report = recorder(sites=("a",), pools={"a/prefill": {}}).report(60.0)
    assert (report.requests, report.goodput_rps, report.remote_fraction) == (0, 0.0, None)
    assert report.ttft_s == {"mean": None, "p50": None, "p90": None, "p99": None}
    assert report.pools["a/prefill"]["utilisation"] is None
    assert report.good_fraction is None
    text(report)


def test_a_report_before_the_window_has_no_rates() -> None:
    report = reported([One(at_s=1.0)], until_s=5.0, warmup_s=10.0)
    assert (report.requests, report.throughput_rps, report.goodput_rps) == (0, None, None)
    assert report.series["arrivals"] == [1]
    text(report)


def test_reports_can_be_compared() -> None:
    runs = {seed: replace(reported([One(prefill_s=seed)]), wall_s=0.5) for seed in (1, 2)}
    plain = {seed: report.to_json() for seed, report in runs.items()}
    found = compare({"paper": plain, "static:4000": plain}, baseline="paper")
    assert found["metrics"]["ttft_mean_s"]["policies"]["paper"]["mean"] == 1.5
    assert found["metrics"]["ttft_mean_s"]["policies"]["static:4000"]["ratio"]["mean"] == 1.0


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("prefill_start_s", -1.0, "queue of a request took -1.0 s"),
        ("prefill_end_s", -1.0, "prefill of a request took -1.0 s"),
        ("ready_s", -1.0, "transfer of a request took"),
        ("decode_start_s", -1.0, "TTFT of a request took"),
        ("decode_start_s", float("nan"), "TTFT of a request took nan s"),
        ("end_s", -1.0, "decode of a request took"),
        ("end_s", float("inf"), "inf s is no instant"),
    ],
)
def test_instants_out_of_order_are_named(column: str, value: float, message: str) -> None:
    found = recorder()
    found.add(replace(finished([One()]), **{column: np.array([value])}))
    with pytest.raises(ValueError, match=message):
        found.report(10.0)


def test_columns_of_other_lengths_are_named() -> None:
    with pytest.raises(ValueError, match=r"retries has shape \(3,\), at_s \(1,\)"):
        recorder().add(replace(finished([One()]), retries=np.zeros(3, dtype=np.int64)))
