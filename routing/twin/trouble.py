"""Faults that happen to a run's stages, and the end of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from routing.core.scenario.document import Scenario
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
    by link what it carries and loses now."""

    def __init__(self, stages: Stages, scenario: Scenario) -> None:
        self._stages = stages
        self._links = {link.id: link for link in scenario.links}
        self.gbps = {link.id: link.gbps for link in scenario.links}
        self.loss_ratio = {link.id: float(link.facts.get("loss", 0.0)) for link in scenario.links}
        self.silent: set[str] = set()

    def acts(self, faults: Sequence[Fault]) -> Iterator[tuple[float, Act]]:
        """Everything that happens to links and instances, and when; not in order."""
        for link in self._links.values():
            for at_s, gbps in link.facts.get("schedule", ()):
                yield at_s, self._capacity(link.id, gbps)
        for fault in faults:
            begin, end = self._both(fault)
            yield fault.at_s, begin
            yield fault.at_s + fault.for_s, end

    def _both(self, fault: Fault) -> tuple[Act, Act]:
        match fault:
            case LinkCapacity(link=link, gbps=gbps):
                return self._capacity(link, gbps), self._capacity(link, self._links[link].gbps)
            case LinkLoss(link=link, loss_ratio=ratio):
                return self._loss(link, ratio), self._loss(link, self.loss_ratio[link])
            case AgentSilent(cluster=name):
                return (
                    lambda now_s: self.silent.add(name),
                    lambda now_s: self.silent.discard(name),
                )
            case ClusterDown(cluster=name):
                return self._down(name, {"prefill": None, "decode": None})
            case InstancesDown(cluster=name, role=role, instances=n):
                return self._down(name, {role: n})

    def _capacity(self, link: str, gbps: float) -> Act:
        def act(now_s: float) -> None:
            self.gbps[link] = gbps
            self._set_path(link)

        return act

    def _loss(self, link: str, ratio: float) -> Act:
        def act(now_s: float) -> None:
            self.loss_ratio[link] = ratio
            self._set_path(link)

        return act

    def _set_path(self, link: str) -> None:
        path = Path.of(self._links[link], gbps=self.gbps[link], loss=self.loss_ratio[link])
        self._stages.links[link].path = path

    def _down(self, name: str, wanted: Mapping[str, int | None]) -> tuple[Act, Act]:
        """So many instances by role, None for all, lost and back again."""
        n_lost = {"prefill": 0, "decode": 0}
        cluster = next((c for c in self._stages.clusters if c.name == name), None)
        pool = self._stages.pools[name] if cluster is None else cluster.pool

        def begin(now_s: float) -> None:
            rows: list[Row] = []
            if "prefill" in wanted:
                n_lost["prefill"] = _at_most(wanted["prefill"], len(pool))
                for _ in range(n_lost["prefill"]):
                    rows += pool.fail(now_s)
            if cluster is not None and "decode" in wanted:
                n_lost["decode"] = _at_most(wanted["decode"], len(cluster.decode))
                for _ in range(n_lost["decode"]):
                    decoder, lost = cluster.decode.fail(now_s)
                    rows += lost + self._stages.sent_to(cluster, decoder)
            self._stages.lose(rows)
            self._stages.again(rows, now_s)

        def end(now_s: float) -> None:
            for _ in range(n_lost["prefill"]):
                pool.add(now_s)
            if cluster is not None:
                for _ in range(n_lost["decode"]):
                    cluster.decode.add(now_s)
            self._stages.resume(now_s)

        return begin, end


def _at_most(n: int | None, there: int) -> int:
    return there if n is None else min(n, there)
