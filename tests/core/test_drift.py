"""When the mix has changed: seen soon, not imagined, and forgotten traffic stays forgotten."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from routing.core.drift import DRIFT_SD, noticed, shifted
from routing.core.model.lengths import LogNormalLengths
from routing.core.types import LengthShift, Memory
from tests.core.cases import exact_histogram, pd, seen
from tests.core.loop import TICK_S, Window, _sample

STEADY = LengthShift(60.0, 150.0, 9.6, 600.0, 9.6, 1.0)


def test_a_step_is_seen_and_a_wobble_is_not() -> None:
    error = (1 / 150 + 1 / 600) ** 0.5
    assert not shifted(STEADY)
    assert not shifted(dataclasses.replace(STEADY, mean_recent=9.6 + (DRIFT_SD - 0.1) * error))
    assert shifted(dataclasses.replace(STEADY, mean_recent=9.6 + (DRIFT_SD + 0.1) * error))
    assert shifted(dataclasses.replace(STEADY, mean_recent=9.6 - (DRIFT_SD + 0.1) * error))


def test_a_handful_of_requests_proves_nothing() -> None:
    assert not shifted(dataclasses.replace(STEADY, n_recent=39.0, mean_recent=2.0))
    assert not shifted(dataclasses.replace(STEADY, n_before=39.0, mean_recent=2.0))


def test_the_window_begins_anew_at_the_shortest_span_that_shows_it() -> None:
    found = (STEADY, dataclasses.replace(STEADY, mean_recent=8.9), STEADY)
    spans = tuple(
        dataclasses.replace(s, span_s=span)
        for s, span in zip(found, (30.0, 60.0, 120.0), strict=True)
    )
    memory = Memory(lengths={"pd": exact_histogram()}, lengths_since_s={"pd": 100.0})
    after = noticed(memory, seen(pd=pd(shifts=spans)))
    assert after.lengths_since_s == {"pd": 940.0}
    assert after.lengths == {}, "what was smoothed is of the old traffic"
    assert noticed(memory, seen(pd=pd(shifts=(STEADY,)))) == memory


def test_it_never_reaches_back_behind_an_earlier_cut() -> None:
    memory = Memory(lengths_since_s={"pd": 980.0})
    shift = dataclasses.replace(STEADY, span_s=120.0, mean_recent=8.0)
    assert noticed(memory, seen(pd=pd(shifts=(shift,)))).lengths_since_s == {"pd": 980.0}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_on_drawn_traffic_a_step_of_the_mean_is_seen_within_a_minute_and_nothing_before(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    before = LogNormalLengths(9.9, 1.0, 128, 131_072)
    after = LogNormalLengths(9.2, 1.0, 128, 131_072)
    window = Window()
    cuts = []
    for tick in range(480):
        mix = before if tick < 420 else after
        window.add(_sample(mix, rng, rng.poisson(2.5 * TICK_S)), TICK_S)
        if tick % 5 == 0 and any(map(shifted, window.shifts())):
            cuts.append(tick)
    assert cuts
    assert 420 <= cuts[0] <= 450
