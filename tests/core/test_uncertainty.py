"""Draws, smoothing and shrinking of observed lengths."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from routing.core.model import uncertainty
from routing.core.model.lengths import LogNormalLengths
from routing.core.model.uncertainty import outlook, smooth, together
from routing.core.types import LengthHistogram
from tests.core.cases import TRUE_LENGTHS, WIRE_EDGES, exact_histogram


def sampled(n: int, seed: int) -> LengthHistogram:
    rng = np.random.default_rng(seed)
    drawn = np.exp(rng.normal(9.9, 1.0, 2 * n))
    drawn = drawn[(drawn >= 128) & (drawn <= 131_072)][:n]
    counts = np.bincount(np.searchsorted(WIRE_EDGES, drawn), minlength=len(WIRE_EDGES) + 1)
    return LengthHistogram(
        tuple(WIRE_EDGES.tolist()), tuple(counts.astype(float)), float(n), float(n)
    )


def two_humps(n: float) -> LengthHistogram:
    """Short chats and long documents, nothing between: no log-normal at all."""
    short, long = (
        LogNormalLengths(7.0, 0.3, 128, 131_072),
        LogNormalLengths(11.0, 0.2, 128, 131_072),
    )
    below = 0.5 * short.cdf(WIRE_EDGES) + 0.5 * long.cdf(WIRE_EDGES)
    counts = n * np.diff([0.0, *below, 1.0])
    return LengthHistogram(tuple(WIRE_EDGES.tolist()), tuple(counts), n, n)


def test_draws_are_shares_around_the_mean_and_no_dice_are_thrown() -> None:
    known = outlook(exact_histogram(1500))
    assert known.draws.shape == (uncertainty.N_DRAWS, len(WIRE_EDGES) + 1)
    assert np.allclose(known.draws.sum(axis=1), 1.0)
    assert np.all(known.draws >= 0.0)
    assert np.array_equal(known.draws, outlook(exact_histogram(1500)).draws)


@pytest.mark.parametrize("n", [200, 1500, 20_000])
def test_draws_spread_like_the_sample_they_stand_for(n) -> None:
    """P(L > t) of a log-normal with fitted mu and sigma has 0.8 of a binomial's deviation."""
    known = outlook(exact_histogram(n))
    above = known.draws[:, np.searchsorted(WIRE_EDGES, 19_800) + 1 :].sum(axis=1)
    assert above.std() == pytest.approx(0.8 * 0.5 / np.sqrt(n), rel=0.25)


def test_the_fit_helps_where_lengths_are_log_normal() -> None:
    at = np.array([19_800.0])
    raw, fitted = [], []
    for seed in range(60):
        window = sampled(400, seed)
        counts = np.array(window.counts)
        known = outlook(window)
        true = float(TRUE_LENGTHS.cdf(at)[0])
        plain = dataclasses.replace(known, mean=counts / counts.sum())
        raw.append(float(plain.lengths.cdf(at)[0]) - true)
        fitted.append(float(known.lengths.cdf(at)[0]) - true)
    assert np.std(fitted) < 0.92 * np.std(raw)


def test_the_fit_stays_away_where_they_are_not() -> None:
    window = two_humps(1500)
    counts = np.array(window.counts)
    assert np.abs(outlook(window).mean - counts / counts.sum()).sum() < 0.08


def test_memory_keeps_what_left_the_window() -> None:
    """Steady traffic: the window and its memory know 2.45 times what the window does."""
    window, memory = exact_histogram(1500), None
    window = dataclasses.replace(window, n_seen=1e6)
    for _ in range(3000):
        memory = smooth(window, memory, elapsed_s=2.0)
    both = together(window, memory)
    # The window's weight is rate * tau; its n is twice that in a decayed window.
    assert both.n_effective / (2 * sum(window.counts)) == pytest.approx(2.45, rel=0.05)
    shares = np.array(both.counts) / sum(both.counts)
    assert np.allclose(shares, np.array(window.counts) / 1500, atol=1e-5)


def test_memory_starts_anew_on_other_traffic_other_edges_or_a_clock_set_back() -> None:
    window, memory = exact_histogram(1500), None
    for _ in range(100):
        memory = smooth(window, memory, elapsed_s=2.0)
    assert memory.n_effective > 500
    shorter = exact_histogram(1500, LogNormalLengths(9.5, 1.0, 128, 131_072))
    coarse = LengthHistogram((1e3, 1e4), (500.0, 500.0, 500.0), 1500, 1500)
    for new, elapsed_s in ((shorter, 2.0), (coarse, 2.0), (window, -5.0)):
        assert smooth(new, memory, elapsed_s=elapsed_s).n_effective == 0.0
    assert together(coarse, memory) == coarse


def test_never_more_requests_than_were_seen() -> None:
    window, memory = exact_histogram(300), None
    for _ in range(500):
        memory = smooth(window, memory, elapsed_s=2.0)
    assert together(window, memory).n_effective <= 300
