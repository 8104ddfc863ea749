"""Instances that hold KV memory for nothing, from stored rows (`core.leaks`)."""

from __future__ import annotations

from collections.abc import Mapping

from routing.core import leaks
from telemetry import store, wire
from telemetry.store import Reading

_BIN_S = 30.0
_BEFORE_S = 60.0
"""Beyond the lease: a time is older than the lease only if readings go back further."""


def warnings(fleet: str, instances: Mapping[str, list[Reading]], *, at_s: float) -> tuple[str, ...]:
    """A sentence for each suspected leak."""
    return tuple(leak.warning for leak in suspected(fleet, instances, at_s=at_s))


def suspected(
    fleet: str, instances: Mapping[str, list[Reading]], *, at_s: float
) -> list[leaks.Leak]:
    """The suspected leaks of the fleet; `instances` are its newest readings by path.

    The lease's rows are read only while some instance looks like one: hardly ever.
    """
    now = [use_of(ok[-1]) for rows in instances.values() if (ok := _good(rows, at_s))]
    if not leaks.held_since(now, {}, at_s):
        return []
    found = store.window(
        "instance",
        prefix=f"{fleet}/",
        since_s=at_s - leaks.LEASE_S - _BEFORE_S,
        until_s=at_s,
        bin_s=_BIN_S,
    )
    since: dict[str, float] = {}
    for rows in found.values():
        held: dict[str, float] = {}
        for reading in _good(rows, at_s):
            held = leaks.held_since([use_of(reading)], held, reading.at_s)
        since |= held
    return leaks.suspected(now, since, at_s)


def _good(rows: list[Reading], at_s: float) -> list[Reading]:
    return [row for row in rows if row.state == "ok" and row.received_s <= at_s]


def use_of(reading: Reading) -> leaks.KvUse:
    signals = reading.signals
    assert isinstance(signals, wire.InstanceSignals), "an instance's readings are of an instance"
    return leaks.KvUse(
        instance=reading.path,
        running=signals.requests_running,
        waiting=signals.requests_waiting,
        kv_usage_ratio=signals.kv_cache_usage_ratio,
    )
