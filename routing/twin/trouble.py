"""Faults that happen to a run's stages, and the end of each.

What will happen is methods of plain objects: the oracle copies a fleet with all that is to come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from routing.core.scenario.document import Link, Scenario
from routing.twin.faults import (
    AgentSilent,
    ClusterDown,
    Fault,
    InstancesDown,
    LinkCapacity,
    LinkLoss,
)
from routing.twin.row import Row
from routing.twin.stages import Stages
from routing.twin.transfer import Path

Act = Callable[[float], None]
"""Something that happens, told when."""


class Trouble:
    """What is wrong at the moment. `silent` clusters send no samples; `gbps` and `loss_ratio` say
    by link what it carries and loses now. Of several faults of one link the worst holds."""

    def __init__(self, stages: Stages, scenario: Scenario) -> None:
        self._stages = stages
        self._links = {link.id: link for link in scenario.links}
        self._scheduled = {link.id: link.gbps for link in scenario.links}
        self._present: list[Fault] = []
        self.gbps = dict(self._scheduled)
        self.loss_ratio = {link.id: _own_loss(link) for link in scenario.links}

    @property
    def silent(self) -> set[str]:
        return {fault.cluster for fault in self._present if isinstance(fault, AgentSilent)}

    def acts(self, faults: Sequence[Fault]) -> Iterator[tuple[float, Act]]:
        """Everything that happens to links and instances, and when; not in order."""
        for link in self._links.values():
            for at_s, gbps in link.facts.get("schedule", ()):
                yield at_s, partial(self._schedule, link.id, gbps)
        for fault in faults:
            begin, end = self._both(fault)
            yield fault.at_s, begin
            yield fault.at_s + fault.for_s, end

    def _both(self, fault: Fault) -> tuple[Act, Act]:
        match fault:
            case ClusterDown(cluster=name):
                outage = _Outage(self._stages, name, {"prefill": None, "decode": None})
                return outage.begin, outage.end
            case InstancesDown(cluster=name, role=role, instances=n):
                outage = _Outage(self._stages, name, {role: n})
                return outage.begin, outage.end
        return partial(self._begin, fault), partial(self._end, fault)

    def _begin(self, fault: Fault, now_s: float) -> None:
        self._present.append(fault)
        self._set_paths()

    def _end(self, fault: Fault, now_s: float) -> None:
        self._present.remove(fault)
        self._set_paths()

    def _schedule(self, link: str, gbps: float, now_s: float) -> None:
        self._scheduled[link] = gbps
        self._set_paths()

    def _set_paths(self) -> None:
        for name, link in self._links.items():
            gbps, loss = self._scheduled[name], _own_loss(link)
            for fault in self._present:
                if isinstance(fault, LinkCapacity) and fault.link == name:
                    gbps = min(gbps, fault.gbps)
                elif isinstance(fault, LinkLoss) and fault.link == name:
                    loss = max(loss, fault.loss_ratio)
            self.gbps[name], self.loss_ratio[name] = gbps, loss
            self._stages.links[name].path = Path.of(link, gbps=gbps, loss=loss)


def _own_loss(link: Link) -> float:
    return float(link.facts.get("loss", 0.0))


class _Outage:
    """So many instances of a cluster by role, None for all, lost at `begin` and back at `end`."""

    def __init__(self, stages: Stages, name: str, wanted: Mapping[str, int | None]) -> None:
        self._stages, self._wanted = stages, wanted
        self._cluster = next((c for c in stages.clusters if c.name == name), None)
        self._pool = stages.pools[name] if self._cluster is None else self._cluster.pool
        self._n_lost = {"prefill": 0, "decode": 0}

    def begin(self, now_s: float) -> None:
        wanted, cluster, n_lost = self._wanted, self._cluster, self._n_lost
        rows: list[Row] = []
        if "prefill" in wanted:
            n_lost["prefill"] = _at_most(wanted["prefill"], len(self._pool))
            for _ in range(n_lost["prefill"]):
                rows += self._pool.fail(now_s)
            if wanted["prefill"] is None:
                self._pool.forget_prefixes()
        if cluster is not None and "decode" in wanted:
            n_lost["decode"] = _at_most(wanted["decode"], len(cluster.decode))
            for _ in range(n_lost["decode"]):
                decoder, lost = cluster.decode.fail(now_s)
                rows += lost + self._stages.sent_to(cluster, decoder)
        self._stages.lose(rows)
        self._stages.again(rows, now_s)

    def end(self, now_s: float) -> None:
        for _ in range(self._n_lost["prefill"]):
            self._pool.add(now_s)
        if self._cluster is not None:
            for _ in range(self._n_lost["decode"]):
                self._cluster.decode.add(now_s)


def _at_most(n: int | None, there: int) -> int:
    return there if n is None else min(n, there)
