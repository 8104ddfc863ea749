"""Ranges older than what is kept here, read back from where they were forwarded to.

The shape is that of `telemetry.history.series`, so that a chart cannot tell where its points lay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from telemetry.doors.forward import RESOLUTION_S
from telemetry.doors.promql import Client, Series, any_of, quoted

MAX_PATHS_PER_QUERY: Final = 100
_BY: Final = {
    "instance": ("fleet", "cluster", "instance"),
    "router": ("fleet", "cluster", "router"),
    "link": ("link",),
}
# A bin is asked for at its last millisecond: [start, end) whether a range counts its first instant
# (Prometheus 2) or not (Prometheus 3).
_LAST_S: Final = 0.001


def series(
    client: Client,
    kind: str,
    signal: str,
    *,
    paths: Sequence[str],
    since_s: float,
    until_s: float,
    bin_s: float,
) -> dict[str, Any]:
    """`{"t": [bin start, epoch s], "bin_s", "series": {path: [value | None]}}` of one scalar.

    A bin holds the mean of its readings (the last value of a `_total`), an empty
    one None. Bins are never finer than what was forwarded. Raises promql.QueryFailed.
    """
    bin_s = max(bin_s, RESOLUTION_S)
    start_s = math.floor(since_s / bin_s) * bin_s
    n_bins = max(1, math.ceil((until_s - start_s) / bin_s))
    values: dict[str, list[float | None]] = {path: [None] * n_bins for path in paths}
    for selector in _selectors(kind, paths):
        found = client.query_range(
            expression(kind, signal, selector, bin_s=bin_s),
            start_s=start_s + bin_s - _LAST_S,
            end_s=start_s + n_bins * bin_s - _LAST_S,
            step_s=bin_s,
        )
        for entry in found:
            row = values.get(_path(kind, entry), [])
            for at_s, value in entry.points:
                index = round((at_s + _LAST_S - start_s) / bin_s) - 1
                if 0 <= index < len(row) and value is not None and math.isfinite(value):
                    row[index] = value
    return {"t": [start_s + i * bin_s for i in range(n_bins)], "bin_s": bin_s, "series": values}


def expression(kind: str, signal: str, selector: str, *, bin_s: float) -> str:
    """The PromQL of one signal over bins; `selector` are matchers of its sources."""
    is_counter = signal.endswith("_total")
    over = "last_over_time" if is_counter else "avg_over_time"
    # A source's role or engine may have changed within a bin.
    fold = "max" if is_counter else "avg"
    by = ",".join(_BY[kind])
    return f"{fold} by ({by}) ({over}(prfaas_{kind}_{signal}{{{selector}}}[{round(bin_s)}s]))"


def _selectors(kind: str, paths: Sequence[str]) -> Iterable[str]:
    """Matchers for at most `MAX_PATHS_PER_QUERY` of the paths each."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for path in dict.fromkeys(paths):
        parts = [path] if kind == "link" else path.split("/")
        groups.setdefault(tuple(parts[:-1]), []).append(parts[-1])
    for head, names in groups.items():
        place = "".join(f"{k}={quoted(v)}," for k, v in zip(_BY[kind], head, strict=False))
        for start in range(0, len(names), MAX_PATHS_PER_QUERY):
            part = names[start : start + MAX_PATHS_PER_QUERY]
            yield place + any_of(_BY[kind][-1], part)


def _path(kind: str, entry: Series) -> str:
    return "/".join(entry.labels.get(label, "") for label in _BY[kind])
