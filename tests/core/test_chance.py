"""Bands around predictions hold what chance alone does, and little else."""

from __future__ import annotations

import numpy as np
import pytest

from routing.core import chance
from routing.core.types import LengthHistogram


def test_a_share_lies_in_its_band_nineteen_times_of_twenty() -> None:
    rng = np.random.default_rng(7)
    band = chance.of_share(0.49, 150)
    assert band is not None
    inside = [band.holds(x / 150) for x in rng.binomial(150, 0.49, size=4000)]
    assert 0.93 < np.mean(inside) < 0.98


def test_so_does_the_work_of_requests_that_differ() -> None:
    rng = np.random.default_rng(7)
    sigma = 0.8
    c = float(np.sqrt(np.exp(sigma**2) - 1))
    n = rng.poisson(400, size=2000)
    work = np.array([rng.lognormal(-(sigma**2) / 2, sigma, size=k).sum() for k in n])
    band = chance.of_work(400.0, 400.0, c)
    assert band is not None
    inside = (band.low <= work) & (work <= band.high)
    assert 0.93 < inside.mean() < 0.98


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_all_or_nothing_has_no_room_for_chance(share: float) -> None:
    assert chance.of_share(share, 100) == chance.Band(share, share)


def test_nothing_counted_has_no_band() -> None:
    assert chance.of_share(0.5, 0) is None
    assert chance.of_work(1.0, 0.0, 1.0) is None


def test_a_band_never_leaves_what_can_be() -> None:
    band = chance.of_share(0.01, 4)
    assert band is not None
    assert band.low == 0.0
    work = chance.of_work(1.0, 1.0, 1.0)
    assert work is not None
    assert work.low == 0.0


def test_variation_of_lengths() -> None:
    even = LengthHistogram(edges=(1000.0, 2000.0), counts=(0.0, 5.0, 0.0), n_effective=5, n_seen=5)
    assert chance.variation(even) == 0.0
    two = LengthHistogram(edges=(1000.0, 3000.0), counts=(1.0, 1.0, 0.0), n_effective=2, n_seen=2)
    assert chance.variation(two) == pytest.approx(0.6)
    none = LengthHistogram(edges=(1000.0,), counts=(0.0, 0.0), n_effective=0, n_seen=0)
    assert chance.variation(none) == 0.0
