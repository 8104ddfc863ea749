"""Counters that restart, wrap, vanish and come back."""

from __future__ import annotations

import pytest

from telemetry import counters
from telemetry.wire import Histogram

SERIES: list[tuple[str, list[float | None], list[float | None]]] = [
    ("reset", [100, 175, 20, 35], [None, 75, 20, 15]),
    ("still", [5, 5, 5], [None, 0, 0]),
    ("restart from zero", [100, 0, 10], [None, 0, 10]),
    ("a missed reading costs nothing", [100, None, 175], [None, None, 75]),
    ("unknown until first read", [None, None, 7, 9], [None, None, None, 2]),
    ("nothing", [], []),
]


@pytest.mark.parametrize(("readings", "want"), [c[1:] for c in SERIES], ids=[c[0] for c in SERIES])
def test_increases(readings: list[float | None], want: list[float | None]) -> None:
    """S-08: 100, 175, 20, 35 gained unknown, 75, 20, 15."""
    assert counters.increases(readings) == want


WRAPS: list[tuple[str, float, float, int | None, float]] = [
    ("declared 32-bit", 4_294_967_000, 1_000, 32, 1_296),
    ("declared 64-bit: a reset", 4_294_967_000, 1_000, 64, 1_000),
    ("undeclared: a reset", 4_294_967_000, 1_000, None, 1_000),
    ("32-bit, but from the lower half: a reset", 2_000_000_000, 1_000, 32, 1_000),
    ("32-bit, rising", 10, 30, 32, 20),
]


@pytest.mark.parametrize(
    ("previous", "current", "width_bits", "want"), [c[1:] for c in WRAPS], ids=[c[0] for c in WRAPS]
)
def test_a_wrap_is_not_a_reset(
    previous: float, current: float, width_bits: int | None, want: float
) -> None:
    """S-09."""
    assert counters.increase(previous, current, width_bits=width_bits) == want
    assert counters.increases([previous, current], width_bits=width_bits) == [None, want]


def test_a_known_restart_is_seen_even_where_the_counter_overtook_itself() -> None:
    assert counters.increase(100.0, 150.0, restarted=True) == 150.0


RATES: list[tuple[str, float | None, float | None, float, float | None]] = [
    ("rising", 100, 300, 2.0, 100.0),
    ("reset", 100, 20, 2.0, 10.0),
    ("first reading", None, 20, 2.0, None),
    ("time stood still", 100, 300, 0.0, None),
    ("clock set back", 100, 300, -5.0, None),
    ("no time at all", 100, 300, float("nan"), None),
]


@pytest.mark.parametrize(
    ("previous", "current", "elapsed_s", "want"), [c[1:] for c in RATES], ids=[c[0] for c in RATES]
)
def test_rate(
    previous: float | None, current: float | None, elapsed_s: float, want: float | None
) -> None:
    assert counters.rate(previous, current, elapsed_s=elapsed_s) == want


def test_labelled_counters_gain_key_by_key() -> None:
    was, now = {"local": 10.0, "remote": 50.0}, {"local": 12.0, "remote": 5.0, "new": 3.0}
    assert counters.keyed_increases(was, now) == {"local": 2.0, "remote": 5.0, "new": 3.0}
    assert counters.keyed_increases(was, now, restarted=True) == now
    assert counters.keyed_increases(None, now) is None
    assert counters.keyed_increases(was, None) is None


def _histogram(*counts: float, edges: tuple[float, ...] = (1.0, 2.0), total: float) -> Histogram:
    return Histogram(edges=list(edges), counts=list(counts), sum=total)


def test_histograms() -> None:
    was = _histogram(1, 2, 3, total=10)
    gained = counters.histogram_increase(was, _histogram(1, 5, 4, total=17))
    assert gained == counters.HistogramIncrease((1.0, 2.0), (0.0, 3.0, 1.0), 7.0)
    assert gained.count == 4.0
    after_reset = _histogram(2, 0, 0, total=1)
    assert counters.histogram_increase(was, after_reset) == counters.HistogramIncrease(
        (1.0, 2.0), (2.0, 0.0, 0.0), 1.0
    )
    grown = _histogram(9, 9, 9, total=90)
    restarted = counters.histogram_increase(was, grown, restarted=True)
    assert restarted is not None
    assert restarted.count == 27.0
    assert counters.histogram_increase(None, was) is None
    assert counters.histogram_increase(was, None) is None
    other = _histogram(1, 2, 3, 4, edges=(1.0, 2.0, 3.0), total=10)
    assert counters.histogram_increase(was, other) is None
