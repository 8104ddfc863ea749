"""The `[[faults]]` of a scenario: what breaks, when, for how long.

    kind = "prefill_down" | "decode_down"     cluster, instances (default 1)
    kind = "cluster_down" | "agent_silent"    cluster
    kind = "link_down"                        link = "A->B"
    kind = "link_gbps"                        link, gbps
    kind = "link_loss"                        link, loss_ratio

Each with `at_s` and `for_s`, without which it lasts; `times` repeats it every `every_s`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from routing.core.scenario.document import Cluster, Scenario
from routing.core.scenario.tables import Table


@dataclass(frozen=True)
class InstancesDown:
    """So many of the instances that have `role` then lose what they run."""

    cluster: str
    role: Literal["prefill", "decode"]
    instances: int
    at_s: float
    for_s: float


@dataclass(frozen=True)
class ClusterDown:
    """Every instance of the cluster, whatever its role."""

    cluster: str
    at_s: float
    for_s: float


@dataclass(frozen=True)
class AgentSilent:
    """No sample of the cluster is taken; its requests go on."""

    cluster: str
    at_s: float
    for_s: float


@dataclass(frozen=True)
class LinkCapacity:
    """The link carries `gbps`; 0 is down."""

    link: str
    gbps: float
    at_s: float
    for_s: float


@dataclass(frozen=True)
class LinkLoss:
    """So much of what is sent is lost, where the link's own loss is not more."""

    link: str
    loss_ratio: float
    at_s: float
    for_s: float


Fault = InstancesDown | ClusterDown | AgentSilent | LinkCapacity | LinkLoss

_WHEN = ("kind", "at_s", "for_s", "times", "every_s")


def read_faults(root: Table, scenario: Scenario) -> tuple[Fault, ...]:
    """Every fault, repeated ones once for each time, in order of `at_s`. Raises ScenarioError."""
    keys = {key for known, _ in _KINDS.values() for key in known}
    found: list[Fault] = []
    for anything in root.tables("faults", (*_WHEN, *sorted(keys)), optional=True):
        known, read = _KINDS[anything.one_of("kind", tuple(_KINDS))]
        table = Table(anything.data, anything.path, known=(*_WHEN, *known))
        found.extend(_repeated(read(table, scenario), table))
    return tuple(sorted(found, key=lambda fault: fault.at_s))


def _repeated(fault: Fault, table: Table) -> Iterator[Fault]:
    times = table.count("times", 1, low=1)
    if times == 1:
        if "every_s" in table.data:
            raise table.error("every_s", "needs times, at least 2")
        yield fault
        return
    every_s = table.number("every_s", low=0)
    if every_s <= fault.for_s:
        raise table.error("every_s", "must be above for_s: the fault would not end in between")
    for i in range(times):
        yield replace(fault, at_s=fault.at_s + i * every_s)


def _at_s(table: Table) -> float:
    return table.number("at_s", low=0, inclusive=True)


def _for_s(table: Table) -> float:
    return table.number("for_s", low=0) if "for_s" in table.data else math.inf


def _cluster(table: Table, scenario: Scenario) -> Cluster:
    cluster = scenario.cluster(table.text("cluster"))
    if cluster is None:
        raise table.error("cluster", "is not a cluster")
    return cluster


def _link(table: Table, scenario: Scenario) -> str:
    link = table.text("link")
    ids = [known.id for known in scenario.links]
    if link not in ids:
        raise table.error("link", f"is not a link (links: {', '.join(ids) or 'none'})")
    return link


def _instances_down(
    table: Table, scenario: Scenario, role: Literal["prefill", "decode"]
) -> InstancesDown:
    cluster = _cluster(table, scenario)
    if role == "decode" and cluster.kind != "pd":
        raise table.error("cluster", "has no decode instances: it is of kind prefill")
    instances = table.count("instances", 1, low=1)
    if instances > cluster.instances:
        raise table.error("instances", f"{cluster.name} has {cluster.instances}")
    return InstancesDown(cluster.name, role, instances, _at_s(table), _for_s(table))


def _link_loss(table: Table, scenario: Scenario) -> LinkLoss:
    loss_ratio = table.ratio("loss_ratio")
    if loss_ratio == 1.0:
        raise table.error("loss_ratio", "must be below 1; a link that loses all is link_down")
    return LinkLoss(_link(table, scenario), loss_ratio, _at_s(table), _for_s(table))


_KINDS: dict[str, tuple[tuple[str, ...], Callable[[Table, Scenario], Fault]]] = {
    "prefill_down": (("cluster", "instances"), lambda t, s: _instances_down(t, s, "prefill")),
    "decode_down": (("cluster", "instances"), lambda t, s: _instances_down(t, s, "decode")),
    "cluster_down": (
        ("cluster",),
        lambda t, s: ClusterDown(_cluster(t, s).name, _at_s(t), _for_s(t)),
    ),
    "agent_silent": (
        ("cluster",),
        lambda t, s: AgentSilent(_cluster(t, s).name, _at_s(t), _for_s(t)),
    ),
    "link_down": (
        ("link",),
        lambda t, s: LinkCapacity(_link(t, s), 0.0, _at_s(t), _for_s(t)),
    ),
    "link_gbps": (
        ("link", "gbps"),
        lambda t, s: LinkCapacity(_link(t, s), t.number("gbps", low=0), _at_s(t), _for_s(t)),
    ),
    "link_loss": (("link", "loss_ratio"), _link_loss),
}
