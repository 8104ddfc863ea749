"""A run that can be stopped, copied and gone on with in several ways: what hindsight is made of.

The same stages, moves and faults as `fleet.Fleet`, without telemetry and without a report: of a
request only is kept whether it was served well. A copy is a pickle in memory, several times as
quick as `copy.deepcopy`; what never changes is shared by all of them.
"""

from __future__ import annotations

import io
import itertools
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from types import FunctionType
from typing import Any

import numpy as np

from routing.core.model.kvcache import KvModel
from routing.core.model.profiles import PrefillProfile
from routing.core.scenario.document import Link, Slo
from routing.core.types import ClusterPlan
from routing.twin.build import build
from routing.twin.cache import PrefixCache
from routing.twin.fleet import Run
from routing.twin.moves import LOOK_S, RoleMoves
from routing.twin.pieces import limited
from routing.twin.policies import ClusterPlans
from routing.twin.report import served_well
from routing.twin.requests import Requests
from routing.twin.row import AT, DONE, END, OUTPUT, SLOT, START, Row
from routing.twin.trouble import Act, Trouble


class Known(tuple[Requests, ...]):
    """All requests of a run, known before it begins."""

    __slots__ = ()

    @classmethod
    def of(cls, run: Run) -> Known:
        pieces = run.workload.pieces(run.seed)
        return cls(limited(pieces, duration_s=run.duration_s, n_requests=None))


@dataclass(frozen=True)
class Score:
    """How a run goes, at a moment in it.

    `served` counted requests were served well to the end. `good` of all requests, also of those
    that the report does not count, were served well or can still be; `n_waiting` wait for an
    instance or a slot; `ttft_s` is the sum of what all have waited for their first token, or will
    at least.
    """

    served: int
    good: int
    n_waiting: int
    ttft_s: float


class Rehearsal:
    """The fleet of a run from time 0 on. `adopt` changes plans, `run` goes on."""

    def __init__(self, run: Run, plans: ClusterPlans, known: Known) -> None:
        self._slo, self._warmup_s = run.scenario.slo, run.warmup_s
        self._gate_s = run.settings.delays.gate_s
        self._end_s = run.duration_s
        self.now_s = 0.0
        self.stages = build(run.scenario, run.settings, plans, iter(known))
        self.moves = {
            cluster.name: RoleMoves(
                cluster.pool,
                cluster.decode,
                drain_s=run.settings.delays.drain_s,
                drain_timeout_s=run.params.drain_timeout_s,
            )
            for cluster in self.stages.clusters
        }
        self._clusters = {cluster.name: cluster for cluster in self.stages.clusters}
        self._calendar: list[tuple[float, int, Act]] = []
        self._numbers = itertools.count()
        trouble = Trouble(self.stages, run.scenario)
        for at_s, act in trouble.acts(run.settings.faults):
            if at_s <= self._end_s:
                self._at(at_s, act)
        self.served = self._good = 0
        self._ttft_s = 0.0
        self.ttfts_s: list[float] | None = None
        """Of what is done, where somebody wants them all."""

    def adopt(self, cluster: str, plan: ClusterPlan, at_s: float) -> None:
        """The plan is made at `at_s`, now or later; gates run it a while after that."""
        self._at(at_s + self._gate_s, partial(self._apply, cluster, plan))

    def run(self, until_s: float) -> None:
        while self._calendar and self._calendar[0][0] <= until_s:
            at_s, _, act = heappop(self._calendar)
            self._pass(at_s)
            act(at_s)
        self._pass(until_s)

    def score(self) -> Score:
        """Of all that has arrived by now and counts."""
        rows = self.stages.under_way
        if not rows:
            return Score(self.served, self._good, 0, self._ttft_s)
        table = np.array(rows, dtype=np.float64).T
        now_s = self.now_s
        slotted = table[SLOT] >= 0.0
        first_s = np.where(slotted, table[SLOT], np.maximum(table[END], now_s)) - table[AT]
        gen_s = np.where(slotted, table[DONE] - table[SLOT], 0.0)
        good = served_well(self._slo, ttft_s=first_s, gen_s=gen_s, gaps=table[OUTPUT] - 1.0)
        waits = (table[START] < 0.0) | (table[START] > now_s) | (table[SLOT] > now_s)
        return Score(
            self.served,
            self._good + int(np.count_nonzero(good)),
            int(np.count_nonzero(waits)),
            self._ttft_s + float(first_s.sum()),
        )

    def _pass(self, until_s: float) -> None:
        done = self.stages.run(until_s)
        self.stages.arrived = []
        self.now_s = until_s
        if done:
            self._count(done)

    def _count(self, done: Sequence[Row]) -> None:
        table = np.array(done, dtype=np.float64).T
        ttft_s = table[SLOT] - table[AT]
        good = served_well(
            self._slo,
            ttft_s=ttft_s,
            gen_s=table[DONE] - table[SLOT],
            gaps=table[OUTPUT] - 1.0,
        )
        counted = table[AT] >= self._warmup_s
        self._good += int(np.count_nonzero(good))
        self.served += int(np.count_nonzero(good & counted))
        self._ttft_s += float(ttft_s.sum())
        if self.ttfts_s is not None:
            self.ttfts_s += ttft_s[counted].tolist()

    def _at(self, at_s: float, act: Act) -> None:
        heappush(self._calendar, (at_s, next(self._numbers), act))

    def _apply(self, name: str, plan: ClusterPlan, now_s: float) -> None:
        self._clusters[name].adopt(plan)
        moves = self.moves[name]
        active = moves.active
        moves.ask(plan.n_prefill, plan.n_decode, now_s)
        if not active:
            self._look(name, now_s)

    def _look(self, name: str, now_s: float) -> None:
        moves = self.moves[name]
        if moves.active:
            moves.look(now_s)
            self.stages.resume(now_s)
            self._at(now_s + LOOK_S, partial(self._look, name))


class Snapshot:
    """A `Rehearsal` as it stood. `again` gives copies of it."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        rehearsal.stages.forget_done(rehearsal.now_s)
        self._kept: dict[int, Any] = {}
        file = io.BytesIO()
        _Writer(file, self._kept).dump(rehearsal)
        self._bytes = file.getvalue()

    def again(self) -> Rehearsal:
        found = _Reader(io.BytesIO(self._bytes), self._kept).load()
        assert isinstance(found, Rehearsal), "what was written is read"
        return found


_SHARED = frozenset({Known, Requests, PrefillProfile, KvModel, Link, Slo, FunctionType})
"""Of these nothing changes. A function is what makes a pool's empty caches."""


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, kept: dict[int, Any]) -> None:
        super().__init__(file, protocol=5)
        self._kept = kept

    def persistent_id(self, obj: Any) -> int | None:
        kind = type(obj)
        if kind in _SHARED:
            self._kept[id(obj)] = obj
        elif kind is PrefixCache:
            self._kept[id(obj)] = obj.copy()
        else:
            return None
        return id(obj)


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, kept: Mapping[int, Any]) -> None:
        super().__init__(file)
        self._kept = kept

    def persistent_load(self, pid: Any) -> Any:
        found = self._kept[pid]
        # A pool is the only one that knows its caches, so each is met once.
        return found.copy() if type(found) is PrefixCache else found
