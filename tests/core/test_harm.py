"""Harm is told from chance, from other load and from no effect."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from routing.core.harm import Block, Counted, judge, quantile, together

EDGES = tuple(0.05 * 1.1**i for i in range(80))


def counted(
    n: int,
    *,
    median_s: float = 1.0,
    remote: float = 0.5,
    errors: float = 0.0,
    mean_tokens: float = 20_000.0,
    elapsed_s: float = 180.0,
    seed: int = 1,
) -> Counted:
    """Lognormal TTFT with sigma 0.5: its 90th percentile is 1.898 medians."""
    drawn = median_s * np.exp(0.5 * np.random.default_rng(seed).standard_normal(n))
    failed = np.random.default_rng(seed + 50_000).permutation(np.arange(n) < errors * n)
    blocks = []
    for part, lost in zip(np.array_split(drawn, 6), np.array_split(failed, 6), strict=True):
        blocks.append(Block(float(len(part)), float(lost.sum()), tuple(histogram(part))))
    return Counted(
        elapsed_s=elapsed_s,
        requests=float(n),
        remote=remote * n,
        errors=errors * n,
        tokens=mean_tokens * n,
        edges=EDGES,
        counts=tuple(histogram(drawn)),
        blocks=tuple(blocks),
    )


def histogram(ttft_s: np.ndarray) -> list[float]:
    found = np.bincount(np.searchsorted(EDGES, ttft_s), minlength=len(EDGES) + 1)
    return [float(n) for n in found]


def queued(seed: int, rates_rps: tuple[float, float], *, slower: float = 1.0) -> list[Counted]:
    """Before and after a plan: 8 servers with lognormal service of 0.68 s mean, first come first
    served. `slower`: by what the plan multiplies it."""
    rng = np.random.default_rng(seed)
    free_s, at_s, found = np.zeros(8), 0.0, []
    while at_s < 1110.0:
        at_s += rng.exponential(1 / rates_rps[at_s > 850.0])
        mean_s = 0.68 * (slower if at_s > 900.0 else 1.0)
        i = int(free_s.argmin())
        free_s[i] = max(at_s, free_s[i]) + mean_s * np.exp(0.8 * rng.standard_normal() - 0.32)
        found.append((at_s, free_s[i] - at_s))
    arrived_s, ttft_s = np.array(found).T

    def inside(since_s: float, until_s: float) -> np.ndarray:
        return ttft_s[(arrived_s > since_s) & (arrived_s <= until_s)]

    sides = []
    for since_s in (720.0, 930.0):
        parts = [inside(since_s + 30.0 * i, since_s + 30.0 * (i + 1)) for i in range(6)]
        together = np.concatenate(parts)
        blocks = tuple(Block(float(len(p)), 0.0, tuple(histogram(p))) for p in parts)
        n, counts = float(len(together)), tuple(histogram(together))
        sides.append(Counted(180.0, n, 0.0, 0.0, 1000.0 * n, EDGES, counts, blocks))
    return sides


def test_the_same_traffic_is_good_whatever_the_seed() -> None:
    outcomes = {
        judge(
            counted(400, seed=seed), counted(400, seed=seed + 1000), expected_remote_ratio=0.5
        ).outcome
        for seed in range(200)
    }
    assert outcomes == {"good"}


def test_ttft_twice_as_long_is_harm_with_the_figures_that_say_so() -> None:
    found = judge(counted(1000), counted(1000, median_s=2.0, seed=2), expected_remote_ratio=0.5)
    assert found.outcome == "harm"
    assert found.before.ttft_p90_s == pytest.approx(1.898, rel=0.08)
    assert found.after.ttft_p90_s == pytest.approx(3.796, rel=0.08)
    assert found.text.startswith("TTFT p90 rose from 1.")


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (counted(1000, median_s=2.0, elapsed_s=120.0), "the rate rose from 5.56 to 8.33 requests"),
        (counted(1000, median_s=2.0, mean_tokens=30_000.0), "the mean prompt rose from 2e+04"),
        (counted(99, median_s=2.0), "1000 requests before and 99 after it are too few of 100"),
    ],
)
def test_slower_under_more_load_or_of_too_few_proves_nothing(after: Counted, why: str) -> None:
    found = judge(counted(1000), after, expected_remote_ratio=0.5)
    assert (found.outcome, why in found.text) == ("unknown", True)


@pytest.mark.parametrize(
    ("headroom", "outcome"), [(1.09, "unknown"), (1.1, "harm"), (None, "harm")]
)
def test_slower_after_a_plan_that_could_not_carry_it_either_proves_nothing(
    headroom: float | None, outcome: str
) -> None:
    slower = counted(1000, median_s=2.0)
    found = judge(counted(1000), slower, expected_remote_ratio=0.5, headroom_before=headroom)
    assert found.outcome == outcome
    failing = counted(1000, median_s=2.0, errors=0.1)
    found = judge(counted(1000), failing, expected_remote_ratio=0.5, headroom_before=headroom)
    assert found.outcome == "harm", "errors are harm all the same"


@pytest.mark.parametrize(
    ("rates_rps", "slower", "least", "most"),
    [
        ((10.0, 10.0), 1.0, 0, 0),  # as full before as after: queues that come and go
        ((10.0, 11.5), 1.0, 0, 1),  # a quiet night and a busy morning, less than LOAD_RATIO apart
        ((7.0, 7.0), 2.0, 19, 20),
    ],
)
def test_requests_that_queue_together_are_not_many_that_agree(
    rates_rps: tuple[float, float], slower: float, least: int, most: int
) -> None:
    harmed = 0
    for seed in range(20):
        before, after = queued(seed, rates_rps, slower=slower)
        headroom = 8 / 0.68 / rates_rps[0]
        found = judge(before, after, expected_remote_ratio=None, headroom_before=headroom)
        harmed += found.outcome == "harm"
    assert least <= harmed <= most


def test_an_engine_that_failed_for_a_moment_is_not_the_plans_harm() -> None:
    calm, failing = counted(1000), counted(1000, errors=0.06, seed=3)
    at_once = [Block(b.requests, 60.0 * (i == 2), b.counts) for i, b in enumerate(calm.blocks)]
    burst = dataclasses.replace(failing, blocks=tuple(at_once))
    found = judge(calm, burst, expected_remote_ratio=None)
    assert (found.outcome, found.text) == (
        "unknown",
        "errors rose from 0.0% to 6.0% of requests, but not for as long as was looked",
    )
    assert judge(calm, failing, expected_remote_ratio=None).outcome == "harm"


def test_a_few_milliseconds_are_no_harm_however_many_times() -> None:
    found = judge(
        counted(1000, median_s=0.06), counted(1000, median_s=0.12), expected_remote_ratio=None
    )
    assert found.outcome == "good"


@pytest.mark.parametrize(
    ("n", "errors", "outcome"),
    [(1000, 0.03, "harm"), (1000, 0.015, "good"), (150, 0.03, "good"), (150, 0.2, "harm")],
)
def test_errors_are_harm_beyond_chance_and_two_points(n: int, errors: float, outcome: str) -> None:
    found = judge(counted(n), counted(n, errors=errors, seed=3), expected_remote_ratio=0.5)
    assert found.outcome == outcome


@pytest.mark.parametrize(
    ("before", "expected", "after", "outcome"),
    [
        (0.5, 0.3, 0.3, "good"),
        (0.5, 0.3, 0.5, "good"),  # no effect: a warning of `effect`, no harm
        (0.5, 0.3, 0.05, "harm"),
        (0.5, 0.3, 0.75, "harm"),
        (0.5, 0.7, 0.95, "harm"),
        (0.5, 0.7, 0.85, "good"),
        (0.5, None, 1.0, "good"),
    ],
)
def test_the_split_is_harm_past_its_prediction_or_away_from_it(
    before: float, expected: float | None, after: float, outcome: str
) -> None:
    found = judge(
        counted(500, remote=before),
        counted(500, remote=after, seed=4),
        expected_remote_ratio=expected,
    )
    assert found.outcome == outcome


def test_nothing_measured_is_unknown_and_not_good() -> None:
    blind = dataclasses.replace(counted(500), edges=(), counts=(), errors=None)
    found = judge(blind, blind, expected_remote_ratio=None)
    assert (found.outcome, found.text) == ("unknown", "no gate tells the time to first token")


def test_one_cluster_harmed_is_harm_and_one_unknown_no_proof() -> None:
    good = judge(counted(500), counted(500, seed=5), expected_remote_ratio=None)
    bad = judge(counted(500), counted(500, median_s=3.0), expected_remote_ratio=None)
    unknown = judge(counted(50), counted(50), expected_remote_ratio=None)
    assert together([good, good]) == "good"
    assert together([good, unknown]) == "unknown"
    assert together([unknown, bad, good]) == "harm"
    assert together([]) == "unknown"


def test_quantiles_are_linear_inside_a_bucket_and_end_at_the_last_edge() -> None:
    assert quantile((1.0, 2.0), (10.0, 10.0, 0.0), 0.9) == pytest.approx(1.8)
    assert quantile((1.0, 2.0), (0.0, 0.0, 5.0), 0.5) == 2.0
    assert quantile((1.0,), (0.0, 0.0), 0.5) is None
