"""Directed links as readings show them: counters of the link, and the transfers that crossed it.

Transfers are counted by gates (requests sent to the remote side and those of them it failed) and by
the engines that send (`kv_transfer_*`). Neither says over which link, so they are taken for a link
only where there is one to take them for: gates' where one PrfaaS cluster alone sends to their
cluster, engines' where their cluster sends to one PD cluster alone. Receiving engines also count
what their own cluster sends them, and are not asked.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from routing.core.scenario.document import Link, Scenario
from routing.core.types import LinkObservation, SignalState
from telemetry import counters, wire
from telemetry.store import Reading

TRANSFERS_S = 30.0
"""How far back transfers are counted: `core.breaker` waits longer than that."""
ENOUGH = 20.0
"""The newest of them, where there are more: a path that fails shows after a fifth of these."""
Readings = Mapping[str, list[Reading]]


@dataclass(frozen=True)
class Transfers:
    """The newest within `TRANSFERS_S`. `seconds` and `size_bytes` are sums over `n_timed`."""

    n: float = 0.0
    n_failed: float = 0.0
    n_timed: float = 0.0
    seconds: float = 0.0
    size_bytes: float | None = None

    @property
    def failed_ratio(self) -> float | None:
        return min(self.n_failed / self.n, 1.0) if self.n > 0.0 else None


def observed(
    fleet: str,
    scenario: Scenario,
    links: Mapping[str, Reading],
    *,
    gates: Readings,
    instances: Readings,
    at_s: float,
) -> dict[str, LinkObservation]:
    """Every link of the scenario by id. `gates` and `instances` by path, readings ascending."""
    found = {}
    for link in scenario.links:
        senders = [other for other in _kv_links(scenario) if other.source == link.source]
        receivers = [other for other in _kv_links(scenario) if other.target == link.target]
        by_gates = by_engines = None
        if receivers == [link]:
            by_gates = of_gates(_under(gates, f"{fleet}/{link.target}/"), at_s)
        if senders == [link]:
            by_engines = of_engines(_under(instances, f"{fleet}/{link.source}/"), at_s)
        found[link.id] = _link(links.get(link.id), link, by_gates, by_engines, at_s)
    return found


def _kv_links(scenario: Scenario) -> list[Link]:
    """The links that KV of remotely prefilled requests takes: out of PrfaaS clusters."""
    prefill = {cluster.name for cluster in scenario.clusters if cluster.kind == "prefill"}
    return [link for link in scenario.links if link.source in prefill]


def _under(readings: Readings, place: str) -> list[list[Reading]]:
    return [rows for path, rows in readings.items() if path.startswith(place)]


def of_gates(gates: Iterable[list[Reading]], at_s: float) -> Transfers | None:
    """Requests of the remote side and its errors, over all gates; None where no gate tells."""
    n = n_failed = 0.0
    told = False
    for before, after in _recent(gates, at_s):
        was, now = before.signals, after.signals
        assert isinstance(was, wire.RouterSignals), "gates are routers"
        assert isinstance(now, wire.RouterSignals), "gates are routers"
        restarted = before.epoch_s != after.epoch_s
        asked = counters.keyed_increases(
            was.requests_total, now.requests_total, restarted=restarted
        )
        if asked is None:
            continue
        # A label set appears with its first error: a gate that shows none had none.
        failed = counters.keyed_increases(
            was.errors_total or {}, now.errors_total or {}, restarted=restarted
        )
        told = True
        n += sum(gained for key, gained in asked.items() if key.partition("|")[0] == "remote")
        n_failed += (failed or {}).get("remote", 0.0)
        if n >= ENOUGH:
            break
    # Requests are counted as they arrive, errors when they fail: those of before may be more.
    return Transfers(n=max(n, n_failed), n_failed=n_failed) if told else None


def of_engines(instances: Iterable[list[Reading]], at_s: float) -> Transfers | None:
    """Transfers as the sending engines count them; None where none of them does."""
    n = n_failed = seconds = 0.0
    size_bytes: float | None = None
    told = False
    for before, after in _recent(instances, at_s):
        was, now = before.signals, after.signals
        assert isinstance(was, wire.InstanceSignals), "engines are instances"
        assert isinstance(now, wire.InstanceSignals), "engines are instances"
        restarted = before.epoch_s != after.epoch_s
        failed = counters.increase(
            was.kv_transfer_failures_total, now.kv_transfer_failures_total, restarted=restarted
        )
        timed = None
        if was.kv_transfer_seconds is not None and now.kv_transfer_seconds is not None:
            timed = counters.histogram_increase(
                was.kv_transfer_seconds, now.kv_transfer_seconds, restarted=restarted
            )
        sent = counters.increase(
            was.kv_transfer_bytes_total, now.kv_transfer_bytes_total, restarted=restarted
        )
        told = told or failed is not None or timed is not None
        n_failed += failed or 0.0
        if timed is not None:
            n, seconds = n + timed.count, seconds + timed.sum
        if sent is not None:
            size_bytes = sent if size_bytes is None else size_bytes + sent
        if n + n_failed >= ENOUGH:
            break
    if not told:
        return None
    return Transfers(n + n_failed, n_failed, n_timed=n, seconds=seconds, size_bytes=size_bytes)


def _recent(sources: Iterable[list[Reading]], at_s: float) -> list[tuple[Reading, Reading]]:
    """Neighbouring good readings of each source within the last `TRANSFERS_S`, newest first."""
    found = []
    for readings in sources:
        good = [reading for reading in readings if reading.state == "ok"]
        for before, after in itertools.pairwise(good):
            if before.at_s < after.at_s and after.at_s > at_s - TRANSFERS_S:
                found.append((before, after))
    return sorted(found, key=lambda pair: pair[1].at_s, reverse=True)


def _link(
    reading: Reading | None,
    link: Link,
    by_gates: Transfers | None,
    by_engines: Transfers | None,
    at_s: float,
) -> LinkObservation:
    # Either may see failures that the other does not: whoever saw more is heard.
    counts = [found for found in (by_engines, by_gates) if found is not None]
    worst = max(counts, key=lambda found: (found.n_failed, found.n), default=None)
    timed = by_engines if by_engines is not None and by_engines.n_timed > 0.0 else None
    size_bytes = None if timed is None else timed.size_bytes
    signals = wire.LinkSignals() if reading is None else reading.signals
    assert isinstance(signals, wire.LinkSignals), "a link's readings are of a link"
    return LinkObservation(
        capacity_gbps=link.gbps if signals.capacity_gbps is None else signals.capacity_gbps,
        tx_gbps=signals.tx_gbps,
        state=_state(reading, signals),
        retransmit_ratio=signals.retransmit_ratio,
        rtt_s=signals.rtt_s,
        age_s=None if reading is None else max(at_s - reading.received_s, 0.0),
        connections=signals.connections,
        transfers=None if worst is None else worst.n,
        transfers_failed_ratio=None if worst is None else worst.failed_ratio,
        transfer_s=None if timed is None else timed.seconds / timed.n_timed,
        transfer_bytes=None if timed is None or size_bytes is None else size_bytes / timed.n_timed,
    )


def _state(reading: Reading | None, signals: wire.LinkSignals) -> SignalState:
    if reading is not None and reading.state != "ok":
        return "failed"
    if signals.tx_gbps is None:
        return "missing"
    return "idle" if signals.tx_gbps == 0.0 else "value"
