"""Drawn workloads: right in the mean, the same for the same seed, in pieces of any size."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from routing.core.model.lengths import BucketLengths, LogNormalLengths, from_histogram
from routing.core.scenario.document import parse_scenario
from routing.core.scenario.tables import ScenarioError
from routing.core.types import LengthHistogram
from routing.twin.arrivals import Curve, Pattern, Steady, Switching, arrival_times
from routing.twin.lengths import DrawnTokens, DriftingTokens, FixedTokens, SteppedTokens, quantile
from routing.twin.pieces import joined
from routing.twin.recorded import Interval, Recording, recorded_workload
from routing.twin.requests import Requests, Workload
from routing.twin.settings import parse_settings
from routing.twin.sites import Sessions, Site
from routing.twin.workload import SiteWorkload, scenario_workload
from tests.twin.fleets import ONE_PD, TWO_PD, WORKLOAD, document

LENGTHS = LogNormalLengths(9.9, 1.0, 128.0, 131_072.0)
MIXED = (
    '[[arrivals]]\ncluster = "pd2"\nkind = "mmpp"\nburst_factor = 4\nmean_on_s = 5\nmean_off_s = 9'
)
SESSIONS = '[arrivals]\nkind = "sessions"\nturns = 4\ngrowth_tokens = 400\nthink_s = 30\n'


def all_of(workload: Workload, seed: int = 1) -> Requests:
    return joined(list(workload.pieces(seed)))


def scenario(extra: str = "", *, fleet: str = ONE_PD + WORKLOAD, **wanted: float) -> SiteWorkload:
    given = document(extra, fleet=fleet)
    described = parse_scenario(given)
    return scenario_workload(described, parse_settings(given, described), **wanted)  # type: ignore[arg-type]


def times(pattern: Pattern, n: int, *, piece: int = 4096) -> np.ndarray:
    found, count = [], 0
    gaps, rates = np.random.default_rng(5), np.random.default_rng(6)
    for at_s in arrival_times(pattern, gaps=gaps, rates=rates, n=piece):
        found.append(at_s)
        count += len(at_s)
        if count >= n:
            break
    return np.concatenate(found)[:n]


# Arrivals


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.5])
def test_gaps_have_their_mean_and_their_variation(cv: float) -> None:
    n = 200_000
    gaps = np.diff(times(Steady(8.0, cv=cv), n))
    assert gaps.mean() == pytest.approx(1 / 8, rel=4 * cv / math.sqrt(n))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)


def test_a_variation_of_zero_is_evenly_spaced() -> None:
    assert times(Steady(4.0, cv=0.0), 8).tolist() == [0.25 * (i + 1) for i in range(8)]


def test_poisson_counts_have_their_mean_as_variance() -> None:
    at_s = times(Steady(5.0), 100_000)
    counts = np.bincount((at_s / 10.0).astype(int))[:-1]
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.1)


def test_bursts_keep_the_long_run_rate_and_are_more_than_poisson() -> None:
    pattern = Switching.bursts(6.0, 5.0, on_s=20.0, off_s=60.0)
    assert pattern.rates_rps == (15.0, 3.0)
    assert pattern.mean_rps == 6.0
    at_s = times(pattern, 200_000)
    assert len(at_s) / at_s[-1] == pytest.approx(6.0, rel=0.05)
    counts = np.bincount((at_s / 10.0).astype(int))[:-1]
    assert counts.var() / counts.mean() > 4.0


def test_a_curve_is_followed_between_its_points_and_held_after_them() -> None:
    curve = Curve(((0.0, 0.0), (1000.0, 20.0), (1000.0, 5.0), (2000.0, 5.0)))
    at_s = times(curve, 40_000)
    expected = {(0, 500): 2500, (500, 1000): 7500, (1000, 2000): 5000, (2000, 4000): 10_000}
    for (start, end), n in expected.items():
        assert np.count_nonzero((at_s >= start) & (at_s < end)) == pytest.approx(
            n, abs=5 * math.sqrt(n)
        )


def test_evenly_spaced_arrivals_invert_a_curve_exactly() -> None:
    # C(t) = t^2 / 2 up to t = 4, then 8 + 4 (t - 4).
    at_s = times(Curve(((0.0, 0.0), (4.0, 4.0)), cv=0.0), 10)
    expected = [math.sqrt(2 * n) if n <= 8 else 4 + (n - 8) / 4 for n in range(1, 11)]
    assert at_s == pytest.approx(expected, rel=1e-12)


def test_a_period_repeats_and_joins_its_end_to_its_beginning() -> None:
    # Between 30 s and 110 s the rate falls from 6 to 2; time 0 of a period lies at 100 s: 2.5.
    curve = Curve(((10.0, 2.0), (30.0, 6.0)), period_s=100.0, cv=0.0)
    per_period = (2.5 + 2) / 2 * 10 + (2 + 6) / 2 * 20 + (6 + 2.5) / 2 * 70
    at_s = times(curve, 2000)
    for lap in range(1, 4):
        assert np.count_nonzero(at_s <= lap * 100.0) == math.floor(lap * per_period)


def test_arrivals_end_where_the_rate_is_zero_for_good() -> None:
    curve = Curve(((0.0, 10.0), (100.0, 10.0), (100.0, 0.0)))
    at_s = times(curve, 10_000)
    assert 850 < len(at_s) < 1150
    assert at_s[-1] <= 100.0


def test_a_rate_of_zero_in_between_is_waited_out() -> None:
    curve = Curve(((0.0, 0.0), (50.0, 0.0), (50.0, 1.0), (60.0, 1.0), (60.0, 0.0), (70.0, 0.0),
                   (70.0, 1.0)), cv=0.0)  # fmt: skip
    assert times(curve, 12)[[0, 9, 10]].tolist() == [51.0, 60.0, 71.0]


@pytest.mark.parametrize(
    "pattern",
    [
        Steady(3.0),
        Steady(3.0, cv=2.0),
        Switching((9.0, 1.0), (3.0, 7.0)),
        Curve(((0.0, 1.0), (50.0, 7.0)), period_s=80.0),
        Curve(((0.0, 9.0), (900.0, 0.0))),
    ],
)
def test_pieces_of_any_size_make_the_same_times(pattern: Pattern) -> None:
    whole = times(pattern, 3000, piece=3000)
    assert times(pattern, 3000, piece=1).tobytes() == whole.tobytes()
    assert times(pattern, 3000, piece=777).tobytes() == whole.tobytes()


# Lengths


@pytest.mark.parametrize(
    "lengths",
    [
        LENGTHS,
        LogNormalLengths(4.0, 0.3, 128.0, 512.0),
        BucketLengths(np.array([1.0, 10.0, 100.0, 1000.0]), np.array([0.2, 0.0, 0.8])),
        from_histogram(LengthHistogram((128.0, 512.0, 4096.0), (1.0, 0.0, 5.0, 2.0), 8.0, 8.0)),
    ],
)
def test_draws_have_exactly_the_distribution_the_core_plans_with(
    lengths: LogNormalLengths | BucketLengths,
) -> None:
    u = (np.arange(2000) + 0.5) / 2000
    assert lengths.cdf(quantile(lengths)(u)) == pytest.approx(u, abs=1e-6)
    tokens = DrawnTokens(lengths).tokens(np.linspace(0, 1, 400_001)[:-1], u)
    assert tokens.dtype == np.int64
    assert tokens.mean() == pytest.approx(lengths.at(math.inf)[1], rel=2e-3)


def test_no_draw_leaves_the_truncation() -> None:
    u = np.array([0.0, 1e-300, 1.0 - 2.0**-53])
    assert DrawnTokens(LENGTHS).tokens(u, u).tolist() == [128, 128, 131_072]


def test_lengths_drift_linearly_and_by_steps() -> None:
    drifting = DriftingTokens(LENGTHS, ((0.0, 8.0), (100.0, 9.0), (100.0, 10.0)))
    at_s = np.array([0.0, 50.0, 99.999, 100.0, 500.0])
    for i, mu in enumerate((8.0, 8.5, 9.0, 10.0, 10.0)):
        expected = DrawnTokens(LogNormalLengths(mu, 1.0, 128.0, 131_072.0))
        u = np.full(5, 0.3)
        assert drifting.tokens(u, at_s)[i] == expected.tokens(u, at_s)[i]


def test_stepped_lengths_change_at_their_times() -> None:
    stepped = SteppedTokens((0.0, 10.0), (FixedTokens(5.0), FixedTokens(0.2)))
    at_s = np.array([-1.0, 9.9, 10.0, 99.0])
    assert stepped.tokens(np.zeros(4), at_s).tolist() == [5, 5, 1, 1]


# Workloads


@pytest.mark.parametrize(
    ("extra", "fleet"),
    [("", ONE_PD + WORKLOAD), (MIXED, TWO_PD), (SESSIONS, ONE_PD + WORKLOAD)],
    ids=["poisson", "two-clusters", "sessions"],
)
def test_the_same_seed_gives_the_same_bytes_whatever_the_pieces(extra: str, fleet: str) -> None:
    one, other, third = (
        all_of(scenario(extra, fleet=fleet, n_requests=4000, piece=piece))
        for piece in (16_384, 16_384, 97)
    )
    for found in (other, third):
        assert found.at_s.tobytes() == one.at_s.tobytes()
        assert found.prompt_tokens.tobytes() == one.prompt_tokens.tobytes()
        assert found.output_tokens.tobytes() == one.output_tokens.tobytes()
        assert found.site.tobytes() == one.site.tobytes()
        assert found.blocks == one.blocks
    different = all_of(scenario(extra, fleet=fleet, n_requests=4000), seed=2)
    assert different.at_s.tobytes() != one.at_s.tobytes()


def test_requests_come_in_order_in_pieces_of_bounded_size() -> None:
    workload = scenario(MIXED, fleet=TWO_PD, n_requests=5000, piece=256)
    pieces = list(workload.pieces(1))
    assert max(map(len, pieces)) <= 2 * 256
    assert all(a.at_s[-1] <= b.at_s[0] for a, b in pairwise(pieces))
    assert all(np.all(np.diff(piece.at_s) >= 0) for piece in pieces)
    assert sum(map(len, pieces)) == 5000


def test_the_rate_changes_no_length_and_keeps_the_sites_shares() -> None:
    slow = all_of(scenario(MIXED, fleet=TWO_PD, n_requests=8000))
    fast = all_of(scenario(MIXED, fleet=TWO_PD, n_requests=8000, rate_rps=40.0))
    assert 8000 / fast.at_s[-1] == pytest.approx(40.0, rel=0.1)
    for site, share in ((0, 0.75), (1, 0.25)):
        one, other = slow.prompt_tokens[slow.site == site], fast.prompt_tokens[fast.site == site]
        n = min(len(one), len(other))
        assert one[:n].tolist() == other[:n].tolist()
        assert len(other) / 8000 == pytest.approx(share, abs=0.05)


def test_one_cluster_changes_nothing_for_another() -> None:
    plain = all_of(scenario("", fleet=TWO_PD, duration_s=500.0))
    mixed = all_of(scenario(MIXED, fleet=TWO_PD, duration_s=500.0))
    assert mixed.at_s[mixed.site == 0].tolist() == plain.at_s[plain.site == 0].tolist()
    assert mixed.at_s[mixed.site == 1].tolist() != plain.at_s[plain.site == 1].tolist()


def test_answers_have_the_distribution_that_the_scenario_describes() -> None:
    found = all_of(scenario("", fleet=TWO_PD, n_requests=40_000))
    assert set(found.output_tokens[found.site == 0].tolist()) == {200}
    drawn = found.output_tokens[found.site == 1]
    assert np.log(drawn).mean() == pytest.approx(5.0, abs=0.03)
    assert np.log(drawn).std() == pytest.approx(0.5, abs=0.03)
    assert found.blocks is None


def test_a_duration_ends_it_and_nothing_at_it_is_in() -> None:
    workload = SiteWorkload(
        [Site(Steady(1.0, cv=0.0), FixedTokens(5), FixedTokens(1))], duration_s=4.0
    )
    assert all_of(workload).at_s.tolist() == [1.0, 2.0, 3.0]


def test_a_trace_is_not_drawn() -> None:
    with pytest.raises(ScenarioError, match="needs the trace"):
        scenario('[arrivals]\nkind = "trace"')


# Sessions

TALKS = Sessions(
    rate_rps=2.0,
    turns=5.0,
    first=FixedTokens(1000),
    growth=FixedTokens(300),
    output=FixedTokens(100),
    think_s=10.0,
    answer_tokens_per_s=50.0,
    max_tokens=8000,
    block_tokens=64,
)


def test_a_prompt_goes_on_from_the_one_before_with_its_answer() -> None:
    found = all_of(SiteWorkload([TALKS], n_requests=2000))
    assert found.blocks is not None
    talks: dict[int, list[int]] = {}
    for row, blocks in enumerate(found.blocks):
        assert len(blocks) == found.prompt_tokens[row] // 64
        talks.setdefault(blocks[0], []).append(row)
    assert 200 < len(talks) < 800
    for rows in talks.values():
        for one, other in pairwise(rows):
            assert found.prompt_tokens[other] - found.prompt_tokens[one] == 100 + 300
            before = list(found.blocks[one])
            assert list(found.blocks[other])[: len(before)] == before
            assert found.at_s[other] >= found.at_s[one] + 100 / 50.0 - 1e-5


def test_sessions_bring_their_rate_from_the_first_minute() -> None:
    from_start = SiteWorkload([TALKS], duration_s=20_000.0)
    assert all_of(from_start).at_s[0] >= 0
    led = Sessions(**{**vars(TALKS), "lead_s": 4 * 5 * 12.0})
    found = all_of(SiteWorkload([led], duration_s=20_000.0))
    assert len(found) / 20_000.0 == pytest.approx(2.0, rel=0.05)
    minute = SiteWorkload([led], duration_s=60.0)
    early = [len(all_of(minute, seed)) for seed in range(30)]
    assert np.mean(early) == pytest.approx(120, rel=0.15)


def test_a_prompt_that_would_grow_too_long_is_compacted() -> None:
    found = all_of(SiteWorkload([Sessions(**{**vars(TALKS), "turns": 60.0})], n_requests=4000))
    assert found.prompt_tokens.max() <= 8000
    assert found.prompt_tokens.min() >= 1000
    assert found.blocks is not None
    conversations = {blocks[0]: 0 for blocks in found.blocks}
    for blocks in found.blocks:
        conversations[blocks[0]] += 1
    assert max(conversations.values()) <= 7000 // 400 + 1, "a new chain after each compaction"


def test_shared_instructions_are_the_same_blocks_in_all_sessions_of_a_site() -> None:
    shared = Sessions(**{**vars(TALKS), "shared_tokens": 200})
    found = all_of(SiteWorkload([shared, shared], n_requests=500))
    assert found.blocks is not None
    for site in (0, 1):
        blocks = [b for b, s in zip(found.blocks, found.site.tolist(), strict=True) if s == site]
        assert len({tuple(b[:3]) for b in blocks}) == 1
        assert len({b[3] for b in blocks}) > 20
    assert found.prompt_tokens.min() == 1200


def test_sessions_beside_single_requests_leave_those_without_blocks() -> None:
    single = Site(Steady(2.0), FixedTokens(500), FixedTokens(10))
    found = all_of(SiteWorkload([TALKS, single], n_requests=400))
    assert found.blocks is not None
    assert {len(b) for b, s in zip(found.blocks, found.site.tolist(), strict=True) if s == 1} == {0}


def test_blocks_of_two_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="block_tokens"):
        SiteWorkload([TALKS, Sessions(**{**vars(TALKS), "block_tokens": 128})])


# Recorded intervals


def recorded(recording: Recording, *, fleet: str = TWO_PD, **wanted: float) -> Requests:
    described = parse_scenario(document(fleet=fleet))
    return all_of(recorded_workload(described, recording, **wanted))  # type: ignore[arg-type]


def test_intervals_are_drawn_again_with_their_rates_and_lengths() -> None:
    histogram = LengthHistogram((100.0, 200.0), (0.0, 7.0, 0.0), 7.0, 7.0)
    found = recorded(
        {
            "pd": [
                Interval.observed(5000.0, 600.0, 4.0, uncached_tokens=histogram, output_tokens=50),
                Interval.observed(6200.0, 600.0, 1.0, uncached_tokens=None, output_tokens=None),
            ]
        }
    )
    first, second = found.at_s < 600, found.at_s >= 1200
    assert np.all(first | second), "nothing arrives between the intervals"
    assert np.count_nonzero(first) == pytest.approx(2400, abs=250)
    assert np.count_nonzero(second) == pytest.approx(600, abs=125)
    assert found.at_s[-1] <= 1800
    assert found.prompt_tokens[first].min() >= 100
    assert found.prompt_tokens[first].max() <= 200
    assert set(found.output_tokens[first].tolist()) == {50}
    assert found.prompt_tokens[second].max() > 5000, "the scenario's lengths where none were kept"
    assert set(found.output_tokens[second].tolist()) == {200}
    assert set(found.site.tolist()) == {0}


def test_what_came_to_all_clusters_is_shared_out() -> None:
    found = recorded({None: [Interval(0.0, 1000.0, 8.0)]}, rate_ratio=2.0)
    assert np.count_nonzero(found.site == 0) == pytest.approx(12_000, rel=0.05)
    assert np.count_nonzero(found.site == 1) == pytest.approx(4000, rel=0.08)


@pytest.mark.parametrize(
    ("recording", "said"),
    [
        ({"pd9": [Interval(0.0, 1.0, 1.0)]}, "'pd9'"),
        ({"pd": [Interval(0.0, 0.0, 1.0)]}, "for_s = 0.0"),
        ({"pd": [Interval(0.0, 1.0, -1.0)]}, "rate_rps = -1.0"),
        ({"pd": [Interval(0.0, 9.0, 1.0), Interval(5.0, 9.0, 1.0)]}, "at_s = 5.0"),
        ({"pd": [Interval(0.0, 9.0, 0.0)]}, "no traffic"),
        ({}, "no traffic"),
    ],
)
def test_a_recording_that_cannot_be_meant_is_refused(recording: Recording, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        recorded(recording)
