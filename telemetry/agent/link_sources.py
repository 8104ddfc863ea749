"""Directed links, each as one wire sample a reading."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import TypeVar

import aiohttp
import msgspec

from telemetry import exposition, wire
from telemetry.agent import http, links, programs, rates
from telemetry.agent.http import ReadError
from telemetry.agent.link_config import Link
from telemetry.agent.links import Measured
from telemetry.hosts import (
    inet_diag,
    infiniband,
    interface,
    net_dev,
    net_stat,
    node_exporter,
    ss,
)
from telemetry.hosts.errors import HostError
from telemetry.hosts.port import Port
from telemetry.hosts.tcp import Connection, Peer, PeerMeter

T = TypeVar("T")
PROC_NET = Path("/proc/net")


class LinkSource:
    """One directed link."""

    def __init__(
        self,
        link: Link,
        *,
        session: aiohttp.ClientSession,
        timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.name = link.id
        self.warnings: tuple[str, ...] = ()
        self._link, self._clock = link, clock
        self._measure = _reader(link, session=session, timeout_s=timeout_s, clock=clock)
        self._previous: rates.Reading[wire.LinkSignals] | None = None

    async def read(self) -> wire.LinkSample:
        link = self._link
        try:
            measured = await self._measure()
        except (ReadError, HostError) as exc:
            error = exc if isinstance(exc, ReadError) else ReadError(str(exc))
            return wire.LinkSample(
                id=link.id,
                at_s=self._clock(),
                measured_layer=link.measured_layer,
                state=error.state,
                error=str(error),
            )
        current = rates.Reading(measured.at_s, measured.signals, measured.epoch_s)
        signals = rates.link(self._previous, current)
        left_out: tuple[str, ...] = ()
        if self._previous is not None:
            signals, left_out = links.plausible(
                signals,
                elapsed_s=measured.at_s - self._previous.at_s,
                ceiling_gbps=measured.ceiling_gbps,
            )
        self._previous = current
        self.warnings = (*measured.warnings, *left_out)
        return wire.LinkSample(
            id=link.id, at_s=measured.at_s, measured_layer=link.measured_layer, signals=signals
        )


def _reader(
    link: Link,
    *,
    session: aiohttp.ClientSession,
    timeout_s: float,
    clock: Callable[[], float],
) -> Callable[[], Awaitable[Measured]]:
    if link.source == "lab":
        return partial(_lab, link, session, timeout_s, clock)
    if link.source == "peer":
        return _Peer(link, timeout_s=timeout_s, clock=clock).read
    if link.source == "node_exporter":
        return _NodeExporter(link, session=session, timeout_s=timeout_s, clock=clock).read
    return _HostPort(link, timeout_s=timeout_s, clock=clock).read


async def _lab(
    link: Link, session: aiohttp.ClientSession, timeout_s: float, clock: Callable[[], float]
) -> Measured:
    text, _ = await http.get(session, link.url, timeout_s=timeout_s)
    signals, at_s = links.from_lab(text, link.id)
    if signals.capacity_gbps is None:
        signals = msgspec.structs.replace(signals, capacity_gbps=link.capacity_gbps)
    return Measured(signals, clock() if at_s is None else at_s)


class _Threaded:
    """Calls that the kernel may keep waiting, off the event loop and one at a time.

    A thread cannot be stopped: while one is stuck there is no second one.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._running: asyncio.Task[object] | None = None

    async def call(self, function: Callable[[], T]) -> T:
        """Raises ReadError after the deadline, and what `function` raises."""
        if self._running is not None and not self._running.done():
            raise ReadError("the kernel has not answered the last reading yet", "slow")
        running = asyncio.create_task(asyncio.to_thread(function))
        self._running = running
        done, _ = await asyncio.wait({running}, timeout=self._timeout_s)
        if not done:
            running.add_done_callback(_forget)
            raise ReadError(f"no answer of the kernel within {self._timeout_s:g} s", "slow")
        return running.result()


def _forget(task: asyncio.Task[T]) -> None:
    # Nobody waits for it any more; its error is not to be reported as lost.
    if not task.cancelled():
        task.exception()


class _HostPort:
    """A port of this host: `proc_net_dev`, `interface` or `infiniband`."""

    def __init__(self, link: Link, *, timeout_s: float, clock: Callable[[], float]) -> None:
        self._link, self._timeout_s, self._clock = link, timeout_s, clock
        self._meter = links.PortMeter(
            configured_gbps=link.capacity_gbps, width_bits=link.width_bits
        )
        self._threaded = _Threaded(timeout_s)

    async def read(self) -> Measured:
        port, tcp = await self._threaded.call(self._files)
        if self._link.counters == "driver":
            names = [member.name for member in port.members] or [self._link.interface]
            texts = await asyncio.gather(
                *(
                    programs.output(("ethtool", "-S", name), timeout_s=self._timeout_s)
                    for name in names
                )
            )
            port = interface.with_driver_bytes(port, dict(zip(names, texts, strict=True)))
        return self._meter.read(port, at_s=self._clock(), tcp=tcp)

    def _files(self) -> tuple[Port, net_stat.HostTcp | None]:
        tcp = None
        if self._link.host_tcp:
            tcp = net_stat.host_tcp(_text(PROC_NET / "snmp"), _text(PROC_NET / "netstat"))
        return self._port(), tcp

    def _port(self) -> Port:
        link = self._link
        if link.source == "interface":
            return interface.read(link.interface, root=Path(link.path or interface.ROOT))
        if link.source == "infiniband":
            root = Path(link.path or infiniband.ROOT)
            return infiniband.read(link.device, link.port, root=root)
        text = _text(Path(link.path or PROC_NET / "dev"))
        found = net_dev.parse(text, link.interface)
        return Port(tx_bytes=float(found.tx_bytes), rx_bytes=float(found.rx_bytes))


class _NodeExporter:
    """A port of another host, as its node_exporter shows it."""

    def __init__(
        self,
        link: Link,
        *,
        session: aiohttp.ClientSession,
        timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._link, self._session = link, session
        self._timeout_s, self._clock = timeout_s, clock
        self._parser = exposition.Parser()
        self._meter = links.PortMeter(
            configured_gbps=link.capacity_gbps, width_bits=link.width_bits
        )

    async def read(self) -> Measured:
        link = self._link
        text, content_type = await http.get(self._session, link.url, timeout_s=self._timeout_s)
        at_s = self._clock()
        parsed = self._parser.parse(text, openmetrics=exposition.is_openmetrics(content_type))
        if parsed.truncated:
            raise ReadError(f"{parsed.warnings[0]} ({link.url})")
        if link.interface:
            port = node_exporter.interface(parsed, link.interface)
        else:
            port = node_exporter.infiniband(parsed, link.device, link.port)
        tcp = node_exporter.host_tcp(parsed) if link.host_tcp else None
        return self._meter.read(port, at_s=at_s, tcp=tcp, epoch_s=node_exporter.boot_s(parsed))


class _Peer:
    """The TCP connections of this host with one remote cluster."""

    def __init__(self, link: Link, *, timeout_s: float, clock: Callable[[], float]) -> None:
        self._link, self._timeout_s, self._clock = link, timeout_s, clock
        self._networks = tuple(ip_network(peer) for peer in link.peers)
        self._meter = PeerMeter(
            Peer(
                networks=self._networks,
                remote_ports=frozenset(link.remote_ports),
                local_ports=frozenset(link.local_ports),
            )
        )
        self._threaded = _Threaded(timeout_s)
        self._by_ss = link.via == "ss"
        self._warnings: tuple[str, ...] = ()

    async def read(self) -> Measured:
        connections = await self._connections()
        at_s = self._clock()
        configured_gbps = self._link.capacity_gbps
        signals = links.of_peer(self._meter.read(connections), configured_gbps=configured_gbps)
        return Measured(signals, at_s, ceiling_gbps=configured_gbps, warnings=self._warnings)

    async def _connections(self) -> list[Connection]:
        if self._by_ss:
            return await self._from_ss()
        try:
            read = partial(inet_diag.read, self._networks, timeout_s=self._timeout_s)
            return await self._threaded.call(read)
        except HostError as exc:
            if self._link.via == "inet_diag":
                raise
            found = await self._from_ss()
            # Keys of both ways differ: to go back and forth would count connections twice.
            self._by_ss, self._warnings = True, (f"{exc}; ss is used",)
            return found

    async def _from_ss(self) -> list[Connection]:
        return ss.parse(await programs.output(ss.COMMAND, timeout_s=self._timeout_s))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as exc:
        raise ReadError(f"{path}: {exc.strerror}") from None
