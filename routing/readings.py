"""The newest reading of each instance and link, as the API shows it: value and state apart."""

from __future__ import annotations

from typing import Any

from routing import fleets
from routing.core.types import LinkMemory
from routing.models import Fleet
from telemetry import store, wire
from telemetry.store import Reading

_BEFORE_S = 60.0


def instances(
    fleet: Fleet, *, cluster: str | None, role: str | None, now_s: float
) -> list[dict[str, Any]]:
    """Instances by path, those of the last hour."""
    prefix = f"{fleet.pk}/{cluster}/" if cluster else f"{fleet.pk}/"
    earlier = _earlier("instance", prefix, now_s)
    return [
        {
            **_values(reading, earlier.get(reading.path), now_s),
            "cluster": reading.path.split("/")[1],
            "role": reading.role,
            "engine": reading.engine,
            "engine_version": reading.engine_version,
        }
        for reading in store.latest("instance", prefix=prefix, now_s=now_s)
        if role in (None, reading.role)
    ]


def links(fleet: Fleet, *, now_s: float) -> list[dict[str, Any]]:
    """The scenario's links in its order; one that was never read says `missing`."""
    found = {reading.path: reading for reading in store.latest("link", now_s=now_s)}
    judged = fleets.memory_after(fleets.newest_tick(fleet)).links
    rows = []
    for link in fleets.scenario_of(fleet).links:
        reading = found.get(link.id)
        row = {"configured_gbps": link.gbps, "measured_layer": None}
        row |= _judged(judged.get(link.id, LinkMemory()))
        if reading is None:
            row |= {
                "id": link.id,
                "at_s": None,
                "received_s": None,
                "age_s": None,
                "state": "missing",
                "error": None,
                "signals": {},
            }
        else:
            row |= _values(reading, None, now_s) | {"measured_layer": reading.measured_layer}
        rows.append(row)
    return rows


def _judged(memory: LinkMemory) -> dict[str, Any]:
    """What the newest tick found of a link; `unknown` before the first."""
    return {
        "label": memory.label,
        "signs": memory.signs,
        "events": list(memory.events),
        "breaker": memory.breaker,
    }


def _earlier(kind: str, prefix: str, now_s: float) -> dict[str, Reading]:
    """By path, a reading from the minute before the newest, to tell idle from busy."""
    found = store.window(
        kind, prefix=prefix, since_s=now_s - _BEFORE_S, until_s=now_s, bin_s=_BEFORE_S / 2
    )
    return {path: seen[0] for path, seen in found.items() if len(seen) > 1}


def _values(reading: Reading, earlier: Reading | None, now_s: float) -> dict[str, Any]:
    states = store.signal_states(reading, earlier)
    return {
        "id": reading.path,
        "at_s": reading.at_s,
        "received_s": reading.received_s,
        "age_s": max(now_s - reading.received_s, 0.0),
        "state": reading.state,
        "error": reading.error,
        "signals": {
            name: {"state": state, "value": _plain(getattr(reading.signals, name))}
            for name, state in states.items()
        },
    }


def _plain(value: Any) -> Any:
    """A histogram as its count and sum: buckets are for `series`, not for a table of engines."""
    if isinstance(value, wire.Histogram):
        return {"count": value.count, "sum": value.sum}
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return value
