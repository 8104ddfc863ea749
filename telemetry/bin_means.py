"""Readings and finer bins of one plain signal folded into the bins of a chart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from telemetry import chunks
from telemetry.columns import Matrix

READINGS_AT_ONCE: Final = 1_000_000
"""More do not wait to be folded together: a bound on memory."""

Readings = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.intp]]
"""(times, values, places in the answer) of readings, source by source."""


@dataclass
class BinMeans:
    """Readings folded into bins: sums and counts, or of a counter the last value and its time."""

    signal: str
    start_s: float
    bin_s: float
    n_bins: int
    total: Matrix
    count: Matrix
    last_at_s: Matrix
    waiting: list[Readings] = field(default_factory=list)
    n_waiting: int = 0

    @classmethod
    def empty(
        cls, signal: str, start_s: float, bin_s: float, n_bins: int, n_paths: int
    ) -> BinMeans:
        shape = (n_bins, n_paths)
        return cls(
            signal,
            start_s,
            bin_s,
            n_bins,
            np.zeros(shape),
            np.zeros(shape),
            np.full(shape if chunks.is_counter(signal) else (0, 0), -np.inf),
        )

    @property
    def end_s(self) -> float:
        return self.start_s + self.n_bins * self.bin_s

    def values(self) -> Matrix:
        self.settle()
        with np.errstate(invalid="ignore"):
            return np.where(self.count > 0, self.total / np.maximum(self.count, 1.0), np.nan)

    def add_bins(
        self,
        start_s: float,
        width_s: float,
        mean: Matrix,
        count: Matrix,
        places: npt.NDArray[np.intp],
    ) -> None:
        """Bins of `width_s` of some sources, shape (n, n_places), of which ours are multiples."""
        ratio = round(self.bin_s / width_s)
        first = round((start_s - self.start_s) / width_s)
        low, high = max(-first, 0), min(self.n_bins * ratio - first, len(mean))
        if low >= high:
            return
        mean, count = mean[low:high], count[low:high]
        if chunks.is_counter(self.signal):
            at_s = start_s + width_s * np.arange(low, high)[:, None]
            self.add(np.broadcast_to(at_s, mean.shape), mean, places)
            return
        good = ~np.isnan(mean)
        total, weight = np.where(good, mean * count, 0.0), np.where(good, count, 0.0)
        index = (first + low + np.arange(high - low)) // ratio
        if ratio > 1:
            firsts = np.flatnonzero(np.diff(index, prepend=-1))
            total = np.add.reduceat(total, firsts, axis=0)
            weight = np.add.reduceat(weight, firsts, axis=0)
            index = index[firsts]
        rows = slice(int(index[0]), int(index[-1]) + 1)
        columns_of: Any = places
        if places[-1] - places[0] == len(places) - 1 and (np.diff(places) == 1).all():
            columns_of = slice(int(places[0]), int(places[-1]) + 1)
        self.total[rows, columns_of] += total
        self.count[rows, columns_of] += weight

    def add(self, at_s: Matrix, values: Matrix, places: npt.NDArray[np.intp]) -> None:
        """Readings of some sources, shape (..., n_ticks, n_places), `places` (..., n_places). They
        wait to be folded together."""
        where = places.repeat(at_s.shape[-2])
        self.waiting.append((_by_source(at_s), _by_source(values), where))
        self.n_waiting += at_s.size
        if self.n_waiting > READINGS_AT_ONCE:
            self.settle()

    def settle(self) -> None:
        """Fold the readings that wait: all at once, for each alone is too small for arrays."""
        if not self.waiting:
            return
        at_s, values, places = map(np.concatenate, zip(*self.waiting, strict=True))
        self.waiting.clear()
        self.n_waiting = 0
        index = np.floor((at_s - self.start_s) / self.bin_s)
        good = (index >= 0) & (index < self.n_bins) & ~np.isnan(values)
        if not good.all():
            at_s, values, places, index = at_s[good], values[good], places[good], index[good]
        if not values.size:
            return
        cells = index.astype(np.intp) * self.total.shape[1] + places
        if chunks.is_counter(self.signal):
            self._settle_last(cells, values, at_s)
            return
        shape, size = self.total.shape, self.total.size
        self.total += np.bincount(cells, values, size).reshape(shape)
        self.count += np.bincount(cells, minlength=size).reshape(shape)

    def _settle_last(
        self,
        cells: npt.NDArray[np.intp],
        values: npt.NDArray[np.float64],
        at_s: npt.NDArray[np.float64],
    ) -> None:
        # Readings of a source lie together in order of time, so of most cells one is left to sort.
        same = cells[1:] == cells[:-1]
        if not (same & (at_s[1:] < at_s[:-1])).any():
            last = np.append(~same, True)
            cells, values, at_s = cells[last], values[last], at_s[last]
        order = np.argsort(at_s, kind="stable")
        cells, values, at_s = cells[order], values[order], at_s[order]
        last_at_s = self.last_at_s.reshape(-1)
        newer = at_s >= last_at_s[cells]
        cells = cells[newer]
        # Of several readings in one cell the last assignment stays, which is the newest.
        self.total.reshape(-1)[cells] = values[newer]
        last_at_s[cells] = at_s[newer]
        self.count.reshape(-1)[cells] = 1.0


def _by_source(readings: Matrix) -> npt.NDArray[np.float64]:
    """Readings of shape (..., n_ticks, n_places) in a row, those of a source together."""
    return readings.swapaxes(-1, -2).reshape(-1)
