"""What counters of many sources gained, bin by bin, from roll-ups: exact, over resets.

`history` shows a counter's last values; their differences lose what a restart hides. Roll-ups keep
what was gained at every reading (`bins`). Only spans that are rolled up are read, so the newest ten
minutes are not told yet: NaN, as any bin in which nothing was counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from telemetry import bins, chunks, history, layouts, tables
from telemetry.columns import Matrix
from telemetry.history import History
from telemetry.store import QueryError

BIN_S: Final = bins.LEVELS[1].bin_s
_AT_ONCE_S: Final = 86_400.0


def read(
    kind: str, signal: str, *, paths: Sequence[str], since_s: float, until_s: float
) -> History:
    """Gains a minute, shape (n_minutes, n_paths), of a day at most. Raises QueryError.

    Where two agents count one source in the same minute the greater gain is taken: it is one
    counter that both read.
    """
    if not chunks.is_counter(signal) or signal not in chunks.SHAPES.get(kind, {}):
        raise QueryError("must be a counter", field="field", value=signal)
    if until_s - since_s > _AT_ONCE_S:
        raise QueryError("at most a day at a time", field="until", value=until_s)
    start_s, bin_s, n_bins = history.axis_of(since_s, until_s, max_points=1, bin_s=BIN_S)
    gained = np.full((n_bins, len(paths)), np.nan)
    with tables.one_moment():
        targets = history.targets_of(kind, paths, since_s=start_s)
        if targets:
            _fill(gained, kind, signal, targets, start_s)
    return History(start_s, bin_s, tuple(paths), gained)


def _fill(
    gained: Matrix,
    kind: str,
    signal: str,
    targets: dict[int, history.Target],
    start_s: float,
) -> None:
    shared = {
        "ids": sorted(targets),
        "kind": layouts.KINDS.index(kind),
        "since": tables.utc(start_s),
        "until": tables.utc(start_s + len(gained) * BIN_S),
        "number": tables.NAMES.known(signal),
        "at_number": tables.NAMES.known(chunks.AT),
    }
    if shared["number"] is None or shared["at_number"] is None:
        return
    fine, coarse = bins.LEVELS
    for level, rows in (
        (coarse, history.rollup_rows(coarse, shared)),
        (fine, history.rollup_rows(fine, shared, waiting_for=coarse)),
    ):
        for layout_id, n_bins, span_s, column in rows:
            target = targets[layout_id]
            gain = bins.unpack(column, n_bins, target.n_sources).gain
            if gain is not None:
                _add(gained, gain[:, target.sources], target, level, span_s - start_s)


def _add(
    gained: Matrix, gain: Matrix, target: history.Target, level: bins.Level, from_s: float
) -> None:
    """Bins of one row, `from_s` after ours begin, folded into minutes."""
    minute = ((from_s + level.bin_s * np.arange(len(gain))) // BIN_S).astype(np.int64)
    inside = np.flatnonzero((minute >= 0) & (minute < len(gained)))
    if not inside.size:
        return
    minute, gain = minute[inside], gain[inside]
    firsts = np.flatnonzero(np.diff(minute, prepend=-1))
    known = ~np.isnan(gain)
    total = np.add.reduceat(np.where(known, gain, 0.0), firsts, axis=0)
    total[np.add.reduceat(known.astype(np.int64), firsts, axis=0) == 0] = np.nan
    where = np.ix_(minute[firsts], target.places)
    gained[where] = np.fmax(gained[where], total)
