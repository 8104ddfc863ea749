"""Files of recorded intervals: lines in, a Recording out.

export      jsonl: at_s, for_s, demand_rps, cluster, uncached_tokens {edges, counts} and the
            mean output_tokens: this product's own telemetry
ServeGen    csv t_s,total_rate_rps,... with a row per window, and beside it jsonl of histograms
            per client and 6 h (github.com/alibaba/ServeGen, log-binned)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from routing.core.model.curves import Array
from routing.core.model.lengths import BucketLengths, usable
from routing.core.types import LengthHistogram
from routing.twin.lengths import DrawnTokens
from routing.twin.recorded import Interval, Recording
from routing.twin.trace_rows import Fields, TraceError, read_csv, read_object

RATE_COLUMNS = ("t_s", "total_rate_rps")
_EXPORT = ("at_s", "for_s", "cluster", "demand_rps", "uncached_tokens", "output_tokens")


def parse_intervals(lines: Iterable[str], *, source: str) -> Recording:
    """The export. Raises TraceError."""
    found: dict[str | None, list[Interval]] = {}
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        line = read_object(text, source=source, number=number)
        line.only(_EXPORT)
        cluster = line.text("cluster") if "cluster" in line.values else None
        interval = Interval.observed(
            line.number("at_s", low=0),
            line.number("for_s", low=0),
            line.number("demand_rps", low=0),
            uncached_tokens=_histogram(line) if "uncached_tokens" in line.values else None,
            output_tokens=line.number("output_tokens", low=0)
            if "output_tokens" in line.values
            else None,
        )
        _check_follows(line, found.setdefault(cluster, []), interval)
        found[cluster].append(interval)
    if not found:
        raise TraceError("has no intervals", source=source)
    if None in found and len(found) > 1:
        raise TraceError("must stand in every row or in none", source=source, field="cluster")
    return found


def _check_follows(line: Fields, before: Sequence[Interval], interval: Interval) -> None:
    if interval.for_s == 0:
        raise line.error("for_s", "must be above 0")
    if before and interval.at_s < before[-1].at_s + before[-1].for_s:
        raise line.error("at_s", "is before the end of the interval before it")


def _histogram(line: Fields) -> LengthHistogram:
    given = line.take("uncached_tokens")
    if not isinstance(given, dict):
        raise line.error("uncached_tokens", "must have edges and counts")
    inner = Fields(given, source=line.source, line=line.line)
    inner.only(("edges", "counts"))
    edges, counts = inner.numbers("edges"), inner.numbers("counts")
    n = sum(counts)
    histogram = LengthHistogram(edges, counts, n_effective=n, n_seen=n)
    if not usable(histogram):
        message = "needs rising edges, one count more than edges, none below 0, some above"
        raise line.error("uncached_tokens", message)
    return histogram


def parse_rates(lines: Iterable[str], *, source: str) -> Recording:
    """Windows of a csv with the columns t_s and total_rate_rps; the last is as long as the one
    before it. Raises TraceError."""
    _, windows = read_csv(lines, source=source)
    rows: list[tuple[float, float]] = []
    for line in windows:
        at_s, rate_rps = (line.number(column, low=0) for column in RATE_COLUMNS)
        if rows and at_s <= rows[-1][0]:
            raise line.error("t_s", "must be after the row before it")
        rows.append((at_s, rate_rps))
    if len(rows) < 2:
        raise TraceError("needs two windows at least, to know how long one is", source=source)
    ends = [at_s for at_s, _ in rows[1:]]
    ends.append(2.0 * rows[-1][0] - rows[-2][0])
    return {
        None: [
            Interval(at_s, end_s - at_s, rate_rps)
            for (at_s, rate_rps), end_s in zip(rows, ends, strict=True)
        ]
    }


def with_lengths(recording: Recording, lines: Iterable[str], *, source: str) -> Recording:
    """The recording with the lengths of ServeGen's histograms: in each window those of all clients,
    weighted by their requests. Raises TraceError."""
    windows = _windows(lines, source)
    starts = sorted(windows)
    return {
        name: [_lengthened(interval, windows, starts) for interval in intervals]
        for name, intervals in recording.items()
    }


def _lengthened(
    interval: Interval, windows: dict[float, tuple[DrawnTokens, DrawnTokens]], starts: list[float]
) -> Interval:
    at = max((start for start in starts if start <= interval.at_s), default=starts[0])
    prompt, output = windows[at]
    return replace(interval, prompt=prompt, output=output)


def _windows(lines: Iterable[str], source: str) -> dict[float, tuple[DrawnTokens, DrawnTokens]]:
    """By beginning: prompts and answers of each window that has any."""
    edges = np.zeros(0)
    weights: dict[float, Array] = {}
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        line = read_object(text, source=source, number=number)
        if not len(edges):
            edges = _edges(line)
            continue
        n = line.number("requests_est", low=0)
        if n > 0:
            window = weights.setdefault(
                line.number("window_s", low=0), np.zeros((2, len(edges) - 1))
            )
            for row, key in zip(window, ("input_tokens", "output_tokens"), strict=True):
                bins, shares = _bins(line, key, len(row))
                np.add.at(row, bins, n * np.array(shares))
    if not weights:
        raise TraceError("has no histograms", source=source)
    return {
        at_s: (_drawn(edges, window[0]), _drawn(edges, window[1]))
        for at_s, window in weights.items()
    }


def _edges(line: Fields) -> Array:
    """Lower edges, and an upper one for the last bin: as much above as that is above its own."""
    lower = np.array(line.numbers("bin_lower_edges"))
    if len(lower) < 2 or lower[0] <= 0 or np.any(np.diff(lower) <= 0):
        raise line.error("bin_lower_edges", "must rise from above 0, two at least")
    return np.append(lower, lower[-1] ** 2 / lower[-2])


def _bins(line: Fields, key: str, n: int) -> tuple[list[int], tuple[float, ...]]:
    given = line.take(key)
    if not isinstance(given, dict):
        raise line.error(key, "must have bins and p")
    inner = Fields(given, source=line.source, line=line.line)
    bins, shares = inner.rows("bins"), inner.numbers("p")
    if not all(type(i) is int and 0 <= i < n for i in bins) or len(bins) != len(shares):
        raise line.error(key, f"bins must be whole numbers below {n}, as many as p")
    if min(shares, default=0.0) < 0 or not sum(shares) > 0:
        raise line.error(key, "p must not be below 0 and must not all be 0")
    return bins, shares


def _drawn(
    edges: Array,
    weights: Array,
) -> DrawnTokens:
    return DrawnTokens(BucketLengths(edges, weights / weights.sum()))
