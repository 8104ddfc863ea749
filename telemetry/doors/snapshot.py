"""The series of one target as the sample an agent would have shipped of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from telemetry import canonical, exposition, wire
from telemetry.agent import links, rates
from telemetry.doors.mapping import Place
from telemetry.hosts import node_exporter
from telemetry.hosts.errors import HostError
from telemetry.refusals import WireError

log = logging.getLogger(__name__)

Sample = wire.InstanceSample | wire.LinkSample | wire.RouterSample
UP = "up"
"""What Prometheus writes beside every scrape: 1, or 0 when it failed."""


class Known(Protocol):
    """A series with its newest value."""

    @property
    def name(self) -> str: ...
    @property
    def labels(self) -> dict[str, str]: ...
    @property
    def value(self) -> float: ...


@dataclass
class Memory:
    """The last good reading of a target, for the rates of the next."""

    instance: rates.Reading[wire.InstanceSignals] | None = None
    router: rates.Reading[wire.RouterSignals] | None = None
    link: rates.Reading[wire.LinkSignals] | None = None
    meter: links.PortMeter | None = None


class _Failed(Exception):
    """The target was not read; the text is what its sample says as `error`."""


def check_place(place: Place) -> None:
    """What every sample of a place would be refused for. Raises WireError."""
    wire.check_sample(_failed(place, at_s=1e9, error="", engine=""), "")


def sample(
    place: Place, known: Iterable[Known], memory: Memory, *, at_s: float, start_ms: int
) -> tuple[Sample, canonical.Canonical | None]:
    """One reading of a target at `at_s`, and what was found in it. Never raises for the series."""
    series = list(known)
    read = None
    try:
        up = [entry.value for entry in series if entry.name == UP]
        if up and not any(up):
            raise _Failed("Prometheus could not scrape it (up is 0)")
        if place.kind == "link":
            made: Sample = _link(place, series, memory, at_s)
        else:
            read = _read(place, series)
            epoch_s = read.epoch_s or start_ms / 1000
            reads = _instance if place.kind == "instance" else _router
            made = reads(place, read, memory, at_s, epoch_s)
        wire.check_sample(made, "")
        return made, read
    except _Failed as exc:
        error = str(exc)
    except WireError as exc:
        error = f"not a reading: {exc.field.lstrip('.')}={exc.value!r}: {exc.error}"[:500]
    except Exception:
        # A fault of ours in one target must not silence the others.
        log.exception("%s: reading it failed inside the door", place.id)
        error = "reading it failed inside the door, see the console's log"
    return _failed(place, at_s=at_s, error=error, engine=_engine(place)), read


def gone(place: Place, *, at_s: float) -> Sample | None:
    """The last sample of an instance all of whose series were ended: nobody scrapes it any more.

    None for links and routers, which are silent when they are read no more.
    """
    if place.kind != "instance":
        return None
    return wire.InstanceSample(
        id=place.id, role=place.role, engine=_engine(place), at_s=at_s, state="gone"
    )


def _exposition(series: list[Known]) -> exposition.Exposition:
    found = exposition.Exposition()
    for entry in series:
        found.samples.setdefault(entry.name, []).append(
            exposition.Sample(entry.labels, entry.value)
        )
    return found


def _read(place: Place, series: list[Known]) -> canonical.Canonical:
    read = canonical.canonicalise(
        _exposition(series), place.entry.engine, kind=place.kind, version=place.engine_version
    )
    if not read.recognised:
        wanted = _engine(place) or "a known engine"
        raise _Failed(f"no series of {wanted} among the {len(series)} that came")
    return read


def _instance(
    place: Place, read: canonical.Canonical, memory: Memory, at_s: float, epoch_s: float
) -> Sample:
    cache = read.signals.get("prefix_cache_hit_ratio")
    current = rates.Reading(
        at_s,
        canonical.to_instance_signals(read),
        epoch_s,
        cache_hits=cache.sum if cache else None,
        cache_queries=cache.count if cache else None,
    )
    signals = rates.instance(memory.instance, current)
    memory.instance = current
    return wire.InstanceSample(
        id=place.id,
        role=place.role,
        engine=read.engine,
        engine_version=read.engine_version or place.engine_version,
        epoch_s=epoch_s,
        at_s=at_s,
        group=place.group or None,
        signals=signals,
    )


def _router(
    place: Place, read: canonical.Canonical, memory: Memory, at_s: float, epoch_s: float
) -> Sample:
    current = rates.Reading(at_s, canonical.to_router_signals(read), epoch_s)
    signals = rates.router(memory.router, current)
    memory.router = current
    plan_epoch, plan_version = canonical.plan_of(read)
    return wire.RouterSample(
        id=place.id,
        kind=read.engine,
        at_s=at_s,
        epoch_s=epoch_s,
        plan_epoch=plan_epoch,
        plan_version=plan_version,
        signals=signals,
    )


def _link(place: Place, series: list[Known], memory: Memory, at_s: float) -> Sample:
    found = _exposition(series)
    entry = place.entry
    if memory.meter is None:
        memory.meter = links.PortMeter(configured_gbps=entry.capacity_gbps)
    try:
        port = node_exporter.interface(found, place.interface)
        tcp = node_exporter.host_tcp(found) if entry.host_tcp else None
    except HostError as exc:
        raise _Failed(str(exc)) from None
    measured = memory.meter.read(port, at_s=at_s, tcp=tcp, epoch_s=node_exporter.boot_s(found))
    current = rates.Reading(at_s, measured.signals, measured.epoch_s)
    signals = rates.link(memory.link, current)
    if memory.link is not None:
        signals, _ = links.plausible(
            signals, elapsed_s=at_s - memory.link.at_s, ceiling_gbps=measured.ceiling_gbps
        )
    memory.link = current
    return wire.LinkSample(
        id=place.id, at_s=at_s, measured_layer=entry.measured_layer, signals=signals
    )


def _engine(place: Place) -> str:
    return "" if place.entry.engine == "auto" else place.entry.engine


def _failed(place: Place, *, at_s: float, error: str, engine: str) -> Sample:
    state: Literal["ok", "failed"] = "failed" if error else "ok"
    text = error.encode("utf-8", errors="replace").decode().replace("\0", "?") or None
    if place.kind == "link":
        return wire.LinkSample(
            id=place.id,
            at_s=at_s,
            measured_layer=place.entry.measured_layer,
            state=state,
            error=text,
        )
    if place.kind == "router":
        kind = engine or "router"
        return wire.RouterSample(id=place.id, kind=kind, at_s=at_s, state=state, error=text)
    return wire.InstanceSample(
        id=place.id,
        role=place.role,
        engine=engine,
        engine_version=place.engine_version,
        at_s=at_s,
        group=place.group or None,
        state=state,
        error=text,
    )
