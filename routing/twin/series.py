"""A run minute by minute, for plots: counts, times to first token, how many waited, link rates.

At most MAX_ROWS rows are kept: a longer run has rows of 2, 4, 8, ... minutes. Whole numbers are
summed (instants in microseconds), so the rows do not depend on the order of what is told.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing.twin.sketch import Buckets

FIRST_ROW_S = 60.0
MAX_ROWS = 1440
BITS_PER_GB = 8e-9

_TTFT = Buckets(part_bits=5, lowest=-10, highest=17)
"""A millisecond to 36 hours; quantiles within 3 %, 7 kB a row."""
_US_PER_S = 1e6

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


_ARRIVED, _ARRIVED_US, _BEGUN, _BEGUN_US, _COMPLETED, _GOOD, _SIDED, _REMOTE = range(8)
"""Places in `Series._counts`; `_US` is how long after the beginning of its row, in total."""


class Series:
    """Rows from the start of the run, whatever of it is measured."""

    def __init__(self) -> None:
        self.row_s = FIRST_ROW_S
        self._counts: Counts = np.zeros((8, MAX_ROWS), dtype=np.int64)
        self._ttft: Counts = np.zeros((MAX_ROWS, _TTFT.size), dtype=np.int64)
        self._link_bytes: dict[str, Array] = {}

    def arrived(self, at_s: Array) -> None:
        """Requests by arrival, shape (n,)."""
        self._instants(_ARRIVED, _ARRIVED_US, at_s)

    def begun(self, begun_s: Array) -> None:
        """When requests ceased to wait, shape (n,): their prefill began, or they were given up."""
        self._instants(_BEGUN, _BEGUN_US, begun_s)

    def sided(self, at_s: Array, remote: NDArray[np.bool_]) -> None:
        """For which of the arrivals a side was chosen, and which; of shape (n,)."""
        if len(at_s):
            rows = self._rows(at_s)
            self._add(_SIDED, rows)
            self._add(_REMOTE, rows[remote])

    def completed(self, at_s: Array, end_s: Array, ttft_s: Array, good: NDArray[np.bool_]) -> None:
        """Which were served to the end, and how well; all of shape (n,).

        They count where they ended; good ones, and times to first token, where they arrived.
        """
        if len(at_s):
            ended, rows = self._rows(end_s), self._rows(at_s)
            self._add(_COMPLETED, ended)
            self._add(_GOOD, rows[good])
            np.add.at(self._ttft.reshape(-1), rows * _TTFT.size + _TTFT.of(ttft_s), 1)

    def carried(self, link: str, from_s: float, until_s: float, n_bytes: float) -> None:
        """Bytes that crossed a link, evenly from `from_s` to `until_s`."""
        self._reach(until_s)
        row_bytes = self._link_bytes.get(link)
        if row_bytes is None:
            row_bytes = self._link_bytes[link] = np.zeros(MAX_ROWS)
        first, last = int(from_s / self.row_s), int(until_s / self.row_s)
        if first == last:
            row_bytes[first] += n_bytes
            return
        edges = np.arange(first + 1, last + 1) * self.row_s
        spans = np.diff(edges, prepend=from_s, append=until_s)
        row_bytes[first : last + 1] += n_bytes / (until_s - from_s) * spans

    def copy(self) -> Series:
        """One that can be told of more arrivals without changing this one."""
        other = copy.copy(self)
        other._counts = self._counts.copy()
        return other

    def columns(self, until_s: float, thresholds: dict[str, list[tuple[float, int | None]]]) -> Any:
        """Plain lists, one value a row up to `until_s`; of a last row not over yet, what it has.

        `thresholds`: by cluster, when t became what, ascending. A row says the t at its end.
        """
        n = min(max(math.ceil(until_s / self.row_s), 1), MAX_ROWS)
        counts = self._counts[:, :n]
        begins = np.arange(n) * self.row_s
        length = np.minimum(until_s - begins, self.row_s)
        more = counts[_ARRIVED] - counts[_BEGUN]
        waited_s = more * length - (counts[_ARRIVED_US] - counts[_BEGUN_US]) / _US_PER_S
        with np.errstate(divide="ignore", invalid="ignore"):
            waiting = np.maximum(np.cumsum(more) - more + waited_s / length, 0.0)
            remote = counts[_REMOTE] / counts[_SIDED]
            good_rps = counts[_GOOD] / length
            gbps = {k: v[:n] * BITS_PER_GB / length for k, v in self._link_bytes.items()}
        return {
            "row_s": self.row_s,
            "at_s": begins.tolist(),
            "arrivals": counts[_ARRIVED].tolist(),
            "completed": counts[_COMPLETED].tolist(),
            "goodput_rps": _plain(good_rps),
            "ttft_p50_s": [_TTFT.quantile(row, 0.5) for row in self._ttft[:n]],
            "ttft_p90_s": [_TTFT.quantile(row, 0.9) for row in self._ttft[:n]],
            "remote_fraction": _plain(remote),
            "waiting": _plain(waiting),
            "link_gbps": {link: _plain(rates) for link, rates in gbps.items()},
            "threshold_tokens": {
                cluster: _in_force(changes, begins + length)
                for cluster, changes in thresholds.items()
            },
        }

    def _instants(self, column: int, late_us: int, at_s: Array) -> None:
        if not len(at_s):
            return
        rows = self._rows(at_s)
        self._add(column, rows)
        late = np.rint(at_s * _US_PER_S) - rows * round(self.row_s * _US_PER_S)
        # Whole numbers whose sum stays below 2^53: as doubles they add up exactly.
        found = np.bincount(rows, weights=late)
        self._counts[late_us, : len(found)] += found.astype(np.int64)

    def _rows(self, at_s: Array) -> Counts:
        self._reach(float(at_s.max()))
        rows: Counts = (at_s / self.row_s).astype(np.int64)
        return rows

    def _add(self, column: int, rows: Counts) -> None:
        found = np.bincount(rows)
        self._counts[column, : len(found)] += found

    def _reach(self, until_s: float) -> None:
        if not until_s < math.inf:
            raise ValueError(f"{until_s!r} s is no instant of a run")
        while until_s >= MAX_ROWS * self.row_s:
            self._widen()

    def _widen(self) -> None:
        later_us = round(self.row_s * _US_PER_S)
        counts = self._counts.copy()
        for column, late_us in ((_ARRIVED, _ARRIVED_US), (_BEGUN, _BEGUN_US)):
            counts[late_us, 1::2] += later_us * counts[column, 1::2]
        self._counts = _paired(counts.T).T
        self._ttft = _paired(self._ttft)
        self._link_bytes = {link: _paired(rows) for link, rows in self._link_bytes.items()}
        self.row_s *= 2.0


def _paired(rows: Any) -> Any:
    """Row 2i and 2i + 1 added up, in the first half; the second half is empty."""
    paired = np.zeros_like(rows)
    paired[: len(rows) // 2] = rows[0::2] + rows[1::2]
    return paired


def _plain(values: Array) -> list[float | None]:
    """None where nothing was counted to divide by."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def _in_force(changes: list[tuple[float, int | None]], at_s: Array) -> list[int | None]:
    since = np.searchsorted([at for at, _ in changes], at_s, side="right")
    return [changes[i - 1][1] if i else None for i in since.tolist()]
