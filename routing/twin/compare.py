"""Policies side by side over seeds: means, and paired differences, each with its 95 % interval.

Every policy meets the same arrivals at the same seed, so what one does better than another is told
by the differences seed by seed: what the seed itself does to both cancels out. With d the n values
and t the quantile of Student's distribution with n - 1 degrees of freedom,

    mean(d) -+ t(0.975, n - 1) * s(d) / sqrt(n)

One seed says nothing of its own spread: below two the interval is None. A seed at which a report
has no value (None) is left out, and `n` says how many were counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.special import stdtrit

_COVERED = 0.95

Says = Literal["better", "worse", "unclear"]


@dataclass(frozen=True)
class Metric:
    """A value of a report, by the keys that lead to it. `better` is the direction to wish for."""

    name: str
    path: tuple[str, ...]
    better: Literal["higher", "lower"] | None

    def of(self, report: Mapping[str, Any]) -> float | None:
        value: Any = report
        for key in self.path:
            value = value[key]
        return None if value is None else float(value)


METRICS = (
    Metric("goodput_rps", ("goodput_rps",), "higher"),
    Metric("good_fraction", ("good_fraction",), "higher"),
    Metric("throughput_rps", ("throughput_rps",), "higher"),
    Metric("ttft_mean_s", ("ttft_s", "mean"), "lower"),
    Metric("ttft_p50_s", ("ttft_s", "p50"), "lower"),
    Metric("ttft_p90_s", ("ttft_s", "p90"), "lower"),
    Metric("ttft_p99_s", ("ttft_s", "p99"), "lower"),
    Metric("inter_token_p99_s", ("inter_token_s", "p99"), "lower"),
    Metric("unfinished", ("unfinished",), "lower"),
    Metric("lost", ("lost",), "lower"),
    Metric("refused", ("refused",), "lower"),
    Metric("remote_fraction", ("remote_fraction",), None),
    Metric("kv_bytes", ("kv_bytes",), None),
    Metric("plan_changes", ("plan_changes", "all"), None),
    Metric("gpu_hours", ("gpu_hours",), "lower"),
    Metric("cost", ("costs", "total"), "lower"),
)


@dataclass(frozen=True)
class Interval:
    """The mean of `n` values, and where their true mean is with 95 % confidence."""

    n: int
    mean: float | None
    low: float | None
    high: float | None


def interval(values: Sequence[float]) -> Interval:
    """Student's, two-sided. Raises ValueError for a value that is no number."""
    n = len(values)
    if not all(map(math.isfinite, values)):
        raise ValueError(f"{list(values)!r}: not all of them are finite numbers")
    if n == 0:
        return Interval(0, None, None, None)
    mean = math.fsum(values) / n
    if n < 2:
        return Interval(n, mean, None, None)
    half = float(stdtrit(n - 1, (1.0 + _COVERED) / 2.0) * np.std(values, ddof=1) / math.sqrt(n))
    return Interval(n, mean, mean - half, mean + half)


def compare(
    reports: Mapping[str, Mapping[int, Mapping[str, Any]]],
    *,
    baseline: str | None = None,
    metrics: Sequence[Metric] = METRICS,
) -> dict[str, Any]:
    """Plain values of `reports`: by policy and seed, what `Report.to_json` gave.

        {baseline, confidence, seeds: {POLICY: [...]}, metrics: {NAME: {better, policies: {POLICY:
          {n, mean, low, high, difference, ratio, says}}}}}

    `difference` (policy - baseline) and `ratio` (policy / baseline, the mean of the ratios) are
    intervals over the seeds that both have, None without a baseline and for the baseline itself.
    The ratio is None too where the baseline is 0 at one of the seeds. `says` is `better` or `worse`
    where the interval of the difference leaves 0 out, else `unclear`; None where there is no
    interval, or no direction to wish for. Each interval stands for itself: of twenty that compare
    equals, one is expected to say otherwise.

    Raises ValueError for a baseline that is not among the policies.
    """
    if baseline is not None and baseline not in reports:
        raise ValueError(
            f"baseline = {baseline!r}: is none of {', '.join(reports) or 'no policies'}"
        )
    return {
        "baseline": baseline,
        "confidence": _COVERED,
        "seeds": {policy: sorted(runs) for policy, runs in reports.items()},
        "metrics": {metric.name: _compared(metric, reports, baseline) for metric in metrics},
    }


def _compared(
    metric: Metric, reports: Mapping[str, Mapping[int, Mapping[str, Any]]], baseline: str | None
) -> dict[str, Any]:
    values = {policy: _values(metric, runs) for policy, runs in reports.items()}
    policies = {}
    for policy, found in values.items():
        row: dict[str, Any] = {**_plain(interval(list(found.values())))}
        row |= {"difference": None, "ratio": None, "says": None}
        if baseline is not None and policy != baseline:
            row |= _against(found, values[baseline], metric.better)
        policies[policy] = row
    return {"better": metric.better, "policies": policies}


def _against(
    values: dict[int, float], base: dict[int, float], better: str | None
) -> dict[str, Any]:
    seeds = [seed for seed in values if seed in base]
    difference = interval([values[seed] - base[seed] for seed in seeds])
    ratio = None
    if all(base[seed] != 0.0 for seed in seeds):
        ratio = _plain(interval([values[seed] / base[seed] for seed in seeds]))
    return {
        "difference": _plain(difference),
        "ratio": ratio,
        "says": None if better is None else _says(difference, higher_is_better=better == "higher"),
    }


def _says(difference: Interval, *, higher_is_better: bool) -> Says | None:
    if difference.low is None or difference.high is None:
        return None
    if difference.low <= 0.0 <= difference.high:
        return "unclear"
    return "better" if (difference.low > 0.0) == higher_is_better else "worse"


def _values(metric: Metric, runs: Mapping[int, Mapping[str, Any]]) -> dict[int, float]:
    """By seed, ascending, so that the same reports give the same bytes."""
    found = {seed: metric.of(runs[seed]) for seed in sorted(runs)}
    return {seed: value for seed, value in found.items() if value is not None}


def _plain(found: Interval) -> dict[str, float | None]:
    return {"n": found.n, "mean": found.mean, "low": found.low, "high": found.high}
