"""A trace as a workload: as it was, or faster, thinner, from another moment, again and again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, count
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from routing.core.scenario.document import Scenario
from routing.twin.pieces import limited
from routing.twin.requests import Blocks, Requests, cut
from routing.twin.trace_rows import TraceError
from routing.twin.traces import Trace

PIECE = 16_384
Laps = Literal["once", "same", "fresh"]


class TraceWorkload:
    """The requests of a trace from time 0 on.

    `speed` divides the times. `keep_ratio` keeps that share of the conversations, drawn anew for
    each lap; `shift` begins at a drawn row and wraps around at the end: these two are what a seed
    varies, and without them every seed gives exactly the trace. `laps`: `once`; or again and again,
    the mean gap after the last request, until `duration_s` or `n_requests`: with the `same` block
    ids, so that a lap finds in the caches what the one before left, or with `fresh` ones, so that
    it finds what the trace itself brings. `sites` (n,): the PD cluster of each row.
    """

    def __init__(
        self,
        trace: Trace,
        *,
        speed: float = 1.0,
        keep_ratio: float = 1.0,
        shift: bool = False,
        laps: Laps = "once",
        sites: NDArray[np.int64] | None = None,
        duration_s: float | None = None,
        n_requests: int | None = None,
        piece: int = PIECE,
    ) -> None:
        if not 0 < speed < np.inf:
            raise ValueError(f"speed = {speed!r}: must be finite and above 0")
        if not 0 < keep_ratio <= 1:
            raise ValueError(f"keep_ratio = {keep_ratio!r}: must be above 0 and at most 1")
        if laps not in ("once", "same", "fresh"):
            raise ValueError(f"laps = {laps!r}: must be once, same or fresh")
        if trace.mean_rps == 0 and (shift or laps != "once"):
            raise TraceError("is one moment: it cannot be repeated", source=trace.source)
        self._trace, self._speed, self._keep_ratio = trace, speed, keep_ratio
        self._shift, self._laps, self._piece = shift, laps, piece
        self._sites = np.zeros(len(trace), dtype=np.int64) if sites is None else sites
        self._duration_s, self._n_requests = duration_s, n_requests

    @property
    def block_tokens(self) -> int | None:
        return self._trace.block_tokens

    def pieces(self, seed: int) -> Iterator[Requests]:
        shift, keep = np.random.SeedSequence(seed).spawn(2)
        first = int(np.random.default_rng(shift).integers(len(self._trace))) if self._shift else 0
        pieces = self._from(first, np.random.default_rng(keep))
        return limited(pieces, duration_s=self._duration_s, n_requests=self._n_requests)

    def _from(self, first: int, keep: np.random.Generator) -> Iterator[Requests]:
        """From the row `first` on, and from the trace's beginning after its end."""
        trace = self._trace
        lap_s = trace.span_s + 1.0 / trace.mean_rps if trace.mean_rps else 0.0
        order = np.roll(np.arange(len(trace)), -first)
        at_s = trace.at_s[order] - trace.at_s[first]
        at_s[len(trace) - first :] += lap_s
        groups, n_groups = np.zeros(0, dtype=np.int64), 0
        if self._keep_ratio < 1:
            groups, n_groups = trace.conversations[order], 1 + int(trace.conversations.max())
        for lap in count():
            rows = np.arange(len(trace))
            if n_groups:
                rows = np.flatnonzero(keep.random(n_groups)[groups] < self._keep_ratio)
            new_ids = lap * trace.n_ids if self._laps == "fresh" else 0
            for start in range(0, len(rows), self._piece):
                some = rows[start : start + self._piece]
                yield self._requests(order[some], at_s[some] + lap * lap_s, new_ids)
            if self._laps == "once":
                return

    def _requests(
        self, rows: NDArray[np.int64], at_s: NDArray[np.float64], new_ids: int
    ) -> Requests:
        trace = self._trace
        blocks: list[Blocks] | None = None
        if trace.blocks is not None:
            if new_ids:
                blocks = self._packed.renumbered(rows, new_ids)
            else:
                blocks = [trace.blocks[row] for row in rows.tolist()]
        return Requests(
            at_s=at_s / self._speed,
            prompt_tokens=trace.prompt_tokens[rows],
            output_tokens=trace.output_tokens[rows],
            site=self._sites[rows],
            blocks=blocks,
        )

    @cached_property
    def _packed(self) -> _Packed:
        return _Packed(self._trace.blocks or ())


class _Packed:
    """The blocks of all rows in one array: other ids for many of them are one addition."""

    def __init__(self, blocks: Sequence[Blocks]) -> None:
        n_ids = np.fromiter(map(len, blocks), np.int64, len(blocks))
        self._ends = np.cumsum(n_ids)
        self._starts = self._ends - n_ids
        self._ids = np.fromiter(chain.from_iterable(blocks), np.int64, int(n_ids.sum()))

    def renumbered(self, rows: NDArray[np.int64], new_ids: int) -> list[Blocks]:
        """The blocks of `rows` with ids that are `new_ids` higher."""
        starts, ends = self._starts[rows], self._ends[rows]
        first, last = int(starts.min()), int(ends.max())
        return cut(self._ids[first:last] + new_ids, starts - first, ends - first)


def trace_workload(
    scenario: Scenario,
    trace: Trace,
    *,
    rate_rps: float | None = None,
    speed: float = 1.0,
    keep_ratio: float = 1.0,
    shift: bool = False,
    laps: Laps = "once",
    duration_s: float | None = None,
    n_requests: int | None = None,
) -> TraceWorkload:
    """The trace arriving at the scenario's PD clusters, at its own speed or at `rate_rps` in the
    mean after thinning, which then takes the place of `speed`.

    Rows that name their cluster arrive there. Of others each conversation stays with one cluster,
    and clusters get them in proportion to their workloads' rates. Raises TraceError for a name that
    is no PD cluster's.
    """
    if rate_rps is not None:
        if trace.mean_rps == 0:
            raise TraceError("is one moment: it has no rate to change", source=trace.source)
        speed = rate_rps / (trace.mean_rps * keep_ratio)
    return TraceWorkload(
        trace,
        speed=speed,
        keep_ratio=keep_ratio,
        shift=shift,
        laps=laps,
        sites=_sites(scenario, trace),
        duration_s=duration_s,
        n_requests=n_requests,
    )


def _sites(scenario: Scenario, trace: Trace) -> NDArray[np.int64]:
    names = [cluster.name for cluster in scenario.clusters if cluster.kind == "pd"]
    if trace.clusters is not None:
        numbers = {name: i for i, name in enumerate(names)}
        for name in trace.clusters:
            if name not in numbers:
                raise TraceError(
                    f"is no PD cluster of {scenario.fleet} ({', '.join(names)})",
                    source=trace.source,
                    field="cluster",
                    value=name,
                )
        return np.array([numbers[name] for name in trace.clusters], dtype=np.int64)
    if len(names) == 1:
        return np.zeros(len(trace), dtype=np.int64)
    workloads = [scenario.workload(name) for name in names]
    return _shared_out(trace.conversations, [w.rate_rps for w in workloads if w is not None])


def _shared_out(conversations: NDArray[np.int64], rates: Sequence[float]) -> NDArray[np.int64]:
    """A site for each row by its conversation alone, in proportion to `rates`."""
    ends = np.cumsum(rates) / np.sum(rates)
    found: NDArray[np.int64] = np.searchsorted(ends, _uniform(conversations), side="right")
    return np.minimum(found, len(rates) - 1)


def _uniform(numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """A fixed hash of each number in [0, 1): the finaliser of SplitMix64 (Steele et al., 2014)."""
    x = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53
