"""The cheapest fleet of the same clusters that carries the load and keeps the SLO.

Counts of instances per cluster are searched, each with its best plan. A fleet will do when its
headroom is enough and the estimated mean time to first token (`waiting`) is within the SLO; the
token rate is kept by every plan, for batches are capped for it. Money is `cost_per_hour` of the
profiles, or, where not every profile says so, the number of instances.

More instances never carry less, so with one PD and one PrfaaS cluster the frontier of what will do
is a staircase, walked from one end to the other: the cheapest is certain. With more clusters it is
a descent, one instance at a time from the fleet scaled up alike: good, but not proven.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from routing.core.model import fleetmodel
from routing.core.model.optimize import Optimum, optimise
from routing.core.model.planner import freedom_of
from routing.core.scenario.document import Cluster, Scenario
from routing.core.what_if.waiting import first_tokens

MOST_INSTANCES = 256
_MOST_FREE = 6
"""Clusters up to which a descent takes a moment and not minutes."""
_BOUND_FACTOR = 2
_MOST_SHOWN = 6

Counts = dict[str, int]


@dataclass(frozen=True)
class _Found:
    counts: Counts
    cost: float
    headroom: float
    ttft_s: float | None
    best: Optimum


def cheapest(scenario: Scenario, *, headroom: float, most: Mapping[str, int]) -> dict[str, Any]:
    """What the cheapest fleet has, up to `most` instances by cluster (twice its own where
    nothing is said), with `headroom` times the demand carried."""
    free = [c for c in scenario.clusters if _is_free(scenario, c)]
    search = _Search(scenario, headroom, free, most)
    answer: dict[str, Any] = {
        "basis": search.basis,
        "least_headroom": headroom,
        "slo_ttft_s": scenario.slo.ttft_s,
        "searched": search.bounds,
        "fixed": [c.name for c in scenario.clusters if c not in free and not c.drained],
        "proven": search.is_staircase,
        "now": _described(search, search.now),
        "found": None,
        "others": [],
        "largest": None,
        "why_not": "",
    }
    if len(free) > _MOST_FREE:
        answer["why_not"] = f"{len(free)} clusters are free; the search covers up to {_MOST_FREE}"
        return answer
    if not free:
        answer["why_not"] = "no cluster's size is free: all are pinned"
        return answer
    found = sorted(search.frontier(), key=lambda each: (each.cost, sum(each.counts.values())))
    if found:
        answer["found"] = _described(search, found[0])
        answer["others"] = [_described(search, each) for each in found[1:_MOST_SHOWN]]
    else:
        answer["largest"] = _described(
            search, search.of({n: b[1] for n, b in search.bounds.items()})
        )
    return answer


def _is_free(scenario: Scenario, cluster: Cluster) -> bool:
    if cluster.drained or (cluster.kind == "pd" and cluster.pinned):
        return False
    return cluster.kind == "pd" or any(link.source == cluster.name for link in scenario.links)


def _described(search: _Search, found: _Found) -> dict[str, Any]:
    return {
        "counts": found.counts,
        "cost": found.cost,
        "headroom": found.headroom,
        "ttft_s": found.ttft_s,
        "will_do": search.will_do(found),
        "clusters": {
            name: {
                "threshold_tokens": round(s.threshold) if np.isfinite(s.threshold) else None,
                "n_prefill": round(s.n_prefill),
                "n_decode": round(s.n_decode),
            }
            for name, s in found.best.settings.items()
        },
    }


class _Search:
    """Fleets of one scenario, each looked at once."""

    def __init__(
        self, scenario: Scenario, headroom: float, free: list[Cluster], most: Mapping[str, int]
    ) -> None:
        self._scenario, self._headroom = scenario, headroom
        self._seen: dict[tuple[int, ...], _Found] = {}
        costs = {
            c.name: scenario.profiles[c.profile].facts.get("cost_per_hour")
            for c in scenario.clusters
            if not c.drained
        }
        priced = all(cost is not None for cost in costs.values())
        self.basis = "cost_per_hour" if priced else "instances"
        self._price = {n: float(c) if priced and c is not None else 1.0 for n, c in costs.items()}
        self._free = free
        self.bounds: dict[str, tuple[int, int]] = {}
        for cluster in free:
            is_pd = cluster.kind == "pd"
            low = max(2, cluster.min_prefill + cluster.min_decode) if is_pd else 0
            high = min(most.get(cluster.name, _BOUND_FACTOR * cluster.instances), MOST_INSTANCES)
            self.bounds[cluster.name] = (low, max(low, high))
        kinds = [cluster.kind for cluster in free]
        self.is_staircase = kinds.count("pd") == 1 and kinds.count("prefill") <= 1

    @property
    def now(self) -> _Found:
        return self.of({cluster.name: cluster.instances for cluster in self._free})

    def of(self, counts: Counts) -> _Found:
        """The best plan of a fleet with these counts, and its price."""
        key = tuple(counts[cluster.name] for cluster in self._free)
        if key not in self._seen:
            self._seen[key] = self._looked_at(counts)
        return self._seen[key]

    def _looked_at(self, counts: Counts) -> _Found:
        clusters = tuple(
            replace(c, instances=max(counts[c.name], 1), drained=counts[c.name] == 0)
            if c.name in counts
            else c
            for c in self._scenario.clusters
        )
        scenario = replace(self._scenario, clusters=clusters)
        model = fleetmodel.of_scenario(scenario, "exact")
        best = optimise(model, {s.name: freedom_of(scenario, s) for s in model.sites})
        firsts = first_tokens(model, best.settings).values()
        slowest = max(float(first.mean_s(1.0)) for first in firsts)
        cost = sum(self._price[c.name] * c.instances for c in clusters if not c.drained)
        return _Found(
            counts={cluster.name: counts[cluster.name] for cluster in self._free},
            cost=cost,
            headroom=best.prediction.headroom or 0.0,
            ttft_s=slowest if np.isfinite(slowest) else None,
            best=best,
        )

    def will_do(self, found: _Found) -> bool:
        in_time = found.ttft_s is not None and found.ttft_s <= self._scenario.slo.ttft_s
        return in_time and found.headroom >= self._headroom

    def frontier(self) -> Iterator[_Found]:
        """Fleets that will do and from which no instance can be taken."""
        if self.is_staircase:
            yield from self._staircase()
        else:
            yield from self._descent()

    def _staircase(self) -> Iterator[_Found]:
        pd = next(c.name for c in self._free if c.kind == "pd")
        remote = next((c.name for c in self._free if c.kind == "prefill"), None)
        low, n = self.bounds[pd]
        remotes = (0, 0) if remote is None else self.bounds[remote]
        for n_remote in range(remotes[0], remotes[1] + 1):
            fixed = {} if remote is None else {remote: n_remote}
            found = None
            while n >= low and self.will_do(each := self.of({pd: n, **fixed})):
                found = each
                n -= 1
            if found is not None:
                yield found

    def _descent(self) -> Iterator[_Found]:
        counts = self._scaled_up()
        if counts is None:
            return
        found = self.of(counts)
        smaller: list[_Found] = [found]
        while smaller:
            found = smaller[0]
            tried = [
                self.of({**found.counts, name: found.counts[name] - 1})
                for name, (low, _) in self.bounds.items()
                if found.counts[name] > low
            ]
            smaller = sorted((f for f in tried if self.will_do(f)), key=lambda f: f.cost)
        yield found

    def _scaled_up(self) -> Counts | None:
        """The fleet of now times the least of a few factors that will do, inside the bounds."""
        for factor in np.linspace(0.25, _BOUND_FACTOR, 15):
            counts = {
                c.name: int(np.clip(np.ceil(c.instances * factor), *self.bounds[c.name]))
                for c in self._free
            }
            if self.will_do(self.of(counts)):
                return counts
        most = {name: high for name, (_, high) in self.bounds.items()}
        return most if self.will_do(self.of(most)) else None
