"""Prefill profiles as stored telemetry shows them, cluster by cluster, beside the scenario's.

A row of the fit is what one instance's histograms `prefill_seconds` and `uncached_prompt_tokens`
gained between two readings. Both give counts and sums; the sum of squared lengths is that of the
buckets, log-uniform inside, brought to the sum of lengths that is known (one request: exact).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from routing import fleets
from routing.core.model.lengths import from_histogram, usable
from routing.core.model.profile_fit import Fit, PrefillRows, Refusal, fit_prefill
from routing.core.scenario.document import Cluster
from routing.core.types import LengthHistogram
from routing.models import Fleet
from telemetry import counters, history, store
from telemetry.counters import HistogramIncrease
from telemetry.store import Reading

_MOST_BINS = 5000
"""Bins a span is cut into, each at most one row of an instance. They are as short as readings are
(a row of many requests tells lengths apart worse) until a span is too long for that."""


@dataclass(frozen=True)
class Measured:
    """What a cluster's prefill instances showed. `engines`: name and version of all of them."""

    cluster: Cluster
    engines: tuple[str, ...]
    outcome: Fit | Refusal


def measure(
    fleet: Fleet, *, cluster: str | None, since_s: float, until_s: float, warmup_s: float
) -> list[Measured]:
    """Each cluster of the fleet, or the one named, over (since_s, until_s]."""
    bin_s = max(history.BINS_S[0], (until_s - since_s) / _MOST_BINS)
    found = []
    for each in fleets.scenario_of(fleet).clusters:
        if cluster in (None, each.name):
            seen = store.window(
                "instance",
                prefix=f"{fleet.pk}/{each.name}/",
                since_s=since_s,
                until_s=until_s,
                bin_s=bin_s,
            )
            found.append(_measured(each, list(seen.values()), warmup_s))
    return found


def _measured(
    cluster: Cluster, instances: Sequence[Sequence[Reading]], warmup_s: float
) -> Measured:
    prefill = [r for readings in instances for r in readings if r.role != "decode"]
    engines = tuple(sorted({f"{r.engine} {r.engine_version}".strip() for r in prefill}))
    if not prefill:
        outcome: Fit | Refusal = Refusal("NoInstance", "no prefill instance was read in this span")
    elif len(engines) > 1:
        outcome = Refusal(
            "SeveralEngines",
            f"{', '.join(engines)} ran in this span: one profile is of one engine and version",
        )
    else:
        outcome = fit_prefill(rows_of(instances), warmup_s=warmup_s)
    return Measured(cluster, engines, outcome)


def rows_of(instances: Iterable[Sequence[Reading]]) -> PrefillRows:
    """What was prefilled between successive readings of each instance, rising in time.

    A restart between two readings hides which requests were before it, so no row spans one.
    """
    rows = []
    for readings in instances:
        role_since_s = -math.inf
        for before, now in pairwise(r for r in readings if r.state == "ok"):
            if now.role != before.role:
                role_since_s = now.at_s
                continue
            if now.role == "decode" or now.epoch_s != before.epoch_s:
                continue
            seconds = counters.histogram_increase(
                before.signals.prefill_seconds, now.signals.prefill_seconds
            )
            tokens = counters.histogram_increase(
                before.signals.uncached_prompt_tokens, now.signals.uncached_prompt_tokens
            )
            # Where the two do not count the same requests, their sums do not belong together.
            if seconds is None or tokens is None or seconds.count != tokens.count:
                continue
            if tokens.count > 0:
                # A start of 0 is one that nobody told, and so are restarts since.
                started_s = max(now.epoch_s, role_since_s) if now.epoch_s > 0 else math.nan
                squared = _squared(tokens)
                row = (tokens.count, tokens.sum, squared, seconds.sum, before.at_s, started_s)
                rows.append(row)
    return PrefillRows(*np.array(rows, dtype=np.float64).reshape(-1, 6).T)


def _squared(tokens: HistogramIncrease) -> float:
    """Sum of squared lengths, in tokens^2."""
    histogram = LengthHistogram(tokens.edges, tokens.counts, tokens.count, tokens.count)
    mean = tokens.sum / tokens.count
    if tokens.count == 1.0 or not usable(histogram):
        return tokens.count * mean * mean
    lengths = from_histogram(histogram)
    first = float(lengths.tokens_below([math.inf])[0])
    second = float(lengths.squares_below([math.inf])[0])
    return tokens.count * mean * mean * second / (first * first)
