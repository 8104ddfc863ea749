"""Dampers on lists of times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.hysteresis import free_at, step_limited, wait_until, within_the_hour


@pytest.mark.parametrize(
    ("since", "wait", "now", "until"),
    [
        (None, 20.0, 100.0, 100.0),
        (90.0, 20.0, 100.0, 110.0),
        (70.0, 20.0, 100.0, 90.0),
        (500.0, 20.0, 100.0, 120.0),
    ],
    ids=["never begun", "half way", "over", "clock set back"],
)
def test_a_wait(since, wait, now, until) -> None:
    assert wait_until(since, wait, now) == until


@pytest.mark.parametrize(
    ("current", "wanted", "stepped"),
    [
        *[
            (4000, 19_000, 6000),
            (6000, 6500, 6500),
            (19_000, 4000, 12_667),
            (19_000, 18_000, 18_000),
        ],
        *[(1001, 9000, 1501), (0, 9000, 192), (7, 7, 7), (300, 0, 200)],
    ],
)
def test_a_step(current, wanted, stepped) -> None:
    assert step_limited(current, wanted, 1.5) == stepped


@given(st.integers(128, 200_000), st.integers(0, 200_000), st.floats(1.01, 4.0))
def test_a_step_never_exceeds_its_factor_and_never_overshoots(current, wanted, factor) -> None:
    stepped = step_limited(current, wanted, factor)
    assert current / factor <= stepped <= current * factor
    assert min(current, wanted) <= stepped <= max(current, wanted)


@pytest.mark.parametrize(
    ("changes", "limit", "until"),
    [
        *[((), 2, 5000.0), ((4000.0,), 2, 5000.0), ((3000.0, 4000.0), 2, 6600.0)],
        *[((1000.0, 3000.0, 4000.0), 2, 6600.0), ((4000.0,), 0, 8600.0), ((9000.0,), 1, 8600.0)],
    ],
)
def test_changes_an_hour(changes, limit, until) -> None:
    assert free_at(changes, limit, 5000.0) == until


def test_the_hour_slides() -> None:
    assert within_the_hour((1399.0, 1401.0, 5000.0), 5000.0) == (1401.0, 5000.0)
