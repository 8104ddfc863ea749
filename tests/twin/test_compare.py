"""Policies over seeds: Student's intervals and paired differences, computed by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from routing.twin.compare import METRICS, Interval, compare, interval


def report(**values: Any) -> dict[str, Any]:
    """A report's plain values, None where nothing is said."""
    found: dict[str, Any] = {}
    for metric in METRICS:
        at = found
        for key in metric.path[:-1]:
            at = at.setdefault(key, {})
        at[metric.path[-1]] = values.get(metric.name)
    return found


def goodput(*rates: float | None) -> dict[int, dict[str, Any]]:
    return {seed: report(goodput_rps=rate) for seed, rate in enumerate(rates)}


def row(found: dict[str, Any], policy: str, metric: str = "goodput_rps") -> dict[str, Any]:
    value: dict[str, Any] = found["metrics"][metric]["policies"][policy]
    return value


@pytest.mark.parametrize(
    ("values", "want"),
    [
        pytest.param([], Interval(0, None, None, None), id="nothing"),
        pytest.param([4.0], Interval(1, 4.0, None, None), id="one seed has no interval"),
        # s = 1, so T_2 / sqrt(3)
        pytest.param([1.0, 2.0, 3.0], Interval(3, 2.0, -0.4841, 4.4841), id="three"),
        # s = sqrt(2), n = 2: t(0.975, 1) = 12.7062 times 1
        pytest.param([1.0, 3.0], Interval(2, 2.0, -10.7062, 14.7062), id="two"),
        pytest.param([5.0, 5.0, 5.0], Interval(3, 5.0, 5.0, 5.0), id="no spread"),
    ],
)
def test_an_interval(values: list[float], want: Interval) -> None:
    found = interval(values)
    assert found.n == want.n
    assert (found.mean, found.low, found.high) == pytest.approx(
        (want.mean, want.low, want.high), abs=1e-4
    )


def test_pairs_see_what_the_spread_of_seeds_hides() -> None:
    """Seeds differ by some 4, policies by 0.25: the intervals of the means overlap all the same."""
    found = compare(
        {"paper": goodput(1.0, 5.0, 9.0), "new": goodput(1.3, 5.2, 9.25)}, baseline="paper"
    )
    paper, new = row(found, "paper"), row(found, "new")
    assert paper["low"] < new["mean"] < paper["high"]
    # d = 0.3, 0.2, 0.25: s = 0.05, half = 4.30265 * 0.05 / sqrt(3)
    assert new["difference"] == pytest.approx(
        {"n": 3, "mean": 0.25, "low": 0.12579, "high": 0.37421}, abs=1e-5
    )
    # 1.3, 1.04, 1.027778
    assert new["ratio"]["mean"] == pytest.approx(1.122593, abs=1e-6)
    assert new["says"] == "better"


@pytest.mark.parametrize(
    ("metric", "new", "says"),
    [
        # d = +1, +1.1, +1.2: 1.1 -+ 4.3027 * 0.1 / sqrt(3) = 0.25
        pytest.param("goodput_rps", (2.0, 3.1, 4.2), "better", id="more goodput"),
        pytest.param("ttft_p90_s", (2.0, 3.1, 4.2), "worse", id="more seconds"),
        pytest.param("ttft_p90_s", (0.5, 1.4, 2.3), "better", id="fewer seconds"),
        pytest.param("goodput_rps", (1.0, 2.0, 3.0), "unclear", id="the same"),
        pytest.param("remote_fraction", (2.0, 3.1, 4.2), None, id="neither is better"),
    ],
)
def test_what_an_interval_says(metric: str, new: tuple[float, ...], says: str | None) -> None:
    base = {seed: report(**{metric: value}) for seed, value in enumerate((1.0, 2.0, 3.0))}
    runs = {seed: report(**{metric: value}) for seed, value in enumerate(new)}
    found = compare({"base": base, "new": runs}, baseline="base")
    assert row(found, "new", metric)["says"] == says


def test_pairs_are_of_the_seeds_that_both_have() -> None:
    found = compare(
        {"a": goodput(1.0, 2.0, 3.0, None), "b": goodput(2.0, None, 5.0, 9.0)}, baseline="a"
    )
    assert row(found, "a")["n"] == 3
    assert row(found, "b")["n"] == 3
    assert row(found, "b")["difference"]["n"] == 2
    assert row(found, "b")["difference"]["mean"] == 1.5


def test_one_seed_has_a_difference_and_no_interval() -> None:
    found = compare({"a": goodput(2.0), "b": goodput(3.0)}, baseline="a")
    assert row(found, "b") == {
        **{"n": 1, "mean": 3.0, "low": None, "high": None, "says": None},
        "difference": {"n": 1, "mean": 1.0, "low": None, "high": None},
        "ratio": {"n": 1, "mean": 1.5, "low": None, "high": None},
    }


def test_no_ratio_to_nothing() -> None:
    found = compare({"a": goodput(0.0, 2.0), "b": goodput(1.0, 2.0)}, baseline="a")
    assert row(found, "b")["ratio"] is None
    assert row(found, "b")["difference"]["mean"] == 0.5


def test_missing_everywhere_is_nothing() -> None:
    found = compare({"a": goodput(1.0, 2.0), "b": goodput(1.0, 2.0)}, baseline="a")
    cost = row(found, "b", "cost")
    assert (cost["n"], cost["mean"], cost["difference"]["mean"]) == (0, None, None)


def test_the_baseline_and_no_baseline_have_no_difference() -> None:
    runs = {"a": goodput(1.0, 2.0), "b": goodput(1.0, 2.0)}
    assert row(compare(runs, baseline="a"), "a")["difference"] is None
    assert row(compare(runs), "b")["difference"] is None


def test_seeds_in_any_order_are_the_same_bytes() -> None:
    runs = goodput(0.1, 0.2, 0.7)
    back = dict(reversed(list(runs.items())))
    one = compare({"a": runs, "b": goodput(0.3, 0.1, 0.4)}, baseline="b")
    other = compare({"a": back, "b": goodput(0.3, 0.1, 0.4)}, baseline="b")
    assert json.dumps(one, allow_nan=False) == json.dumps(other, allow_nan=False)


def test_an_unknown_baseline_is_named() -> None:
    with pytest.raises(ValueError, match="baseline = 'oracle': is none of a"):
        compare({"a": goodput(1.0)}, baseline="oracle")


def test_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        interval([1.0, float("nan")])
