"""TCP connections of one host, however they were read, and the totals of those with one peer.

A connection's counters go when it closes, so a sum over open ones falls. `PeerMeter` adds up what
each connection gained from reading to reading instead: its totals never fall. What a connection
carried between its last reading and its end is not seen, nor one that opened and closed between
two readings.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from telemetry import counters
from telemetry.hosts.errors import HostError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
_SEGMENTS_BITS = 32
"""Of the kernel's counts of segments (`tcp_info`): a busy connection wraps them in minutes."""


def address(written: str | bytes) -> Address:
    """An address as text (without its zone) or as 4 or 16 bytes; IPv4 in IPv6 is IPv4.

    Raises HostError.
    """
    try:
        found = ip_address(written.partition("%")[0] if isinstance(written, str) else written)
    except ValueError:
        raise HostError(f"{written[:60]!r} is not an address") from None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return found if mapped is None else mapped


@dataclass(frozen=True)
class Connection:
    """One connection at one instant. None: the kernel does not tell.

    `key` is the connection's own while it lives. Bytes are payload: `sent_bytes` with what was sent
    again, `acked_bytes` without; segments are those with data.
    """

    key: Hashable
    local_port: int
    remote: Address
    remote_port: int
    established: bool = True
    sent_bytes: int | None = None
    acked_bytes: int | None = None
    received_bytes: int | None = None
    retransmitted_bytes: int | None = None
    segments_sent: int | None = None
    segments_retransmitted: int | None = None
    rtt_s: float | None = None
    min_rtt_s: float | None = None
    congestion_window_segments: int | None = None
    segment_bytes: int | None = None
    delivery_bytes_per_s: float | None = None
    congestion_control: str | None = None


@dataclass(frozen=True)
class Peer:
    """Which connections are of a link: the remote end is in `networks`, and where ports are given,
    its port is one of `remote_ports` or ours one of `local_ports`."""

    networks: tuple[Network, ...]
    remote_ports: frozenset[int] = frozenset()
    local_ports: frozenset[int] = frozenset()

    def has(self, connection: Connection) -> bool:
        if not any(connection.remote in network for network in self.networks):
            return False
        if not (self.remote_ports or self.local_ports):
            return True
        return (
            connection.remote_port in self.remote_ports or connection.local_port in self.local_ports
        )


_COUNTED = (
    "sent_bytes",
    "acked_bytes",
    "received_bytes",
    "retransmitted_bytes",
    "segments_sent",
    "segments_retransmitted",
)
_WIDTH_BITS = {"segments_sent": _SEGMENTS_BITS, "segments_retransmitted": _SEGMENTS_BITS}


@dataclass(frozen=True)
class PeerReading:
    """Connections with one peer. Totals count from the meter's first reading and are zero while
    there was no connection; None where a connection does not tell.

    Round trips are the mean over connections weighted by what they sent since the reading before,
    over all of them where none sent; `min_rtt_s` is the least of any. Window and delivery rate are
    sums: what may be in flight to the peer, and what TCP last saw arrive of those that sent.
    """

    n_connections: int
    sent_bytes: float | None
    acked_bytes: float | None
    received_bytes: float | None
    retransmitted_bytes: float | None
    segments_sent: float | None
    segments_retransmitted: float | None
    rtt_s: float | None
    min_rtt_s: float | None
    congestion_window_bytes: float | None
    delivery_bytes_per_s: float | None
    congestion_control: str | None


class PeerMeter:
    """Totals of one peer over readings of all connections of the host."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._totals = dict.fromkeys(_COUNTED, 0.0)
        self._before: dict[Hashable, Connection] | None = None

    def read(self, connections: Iterable[Connection]) -> PeerReading:
        """What is between the peer and us now. Remembers only what is open now."""
        now = {found.key: found for found in connections if self._peer.has(found)}
        sent = {key: self._count(key, connection) for key, connection in now.items()}
        self._before = now
        mine = list(now.values())
        windows = [
            c.congestion_window_segments * c.segment_bytes
            for c in mine
            if c.congestion_window_segments is not None and c.segment_bytes is not None
        ]
        # An idle connection still shows the rate of when it last sent.
        rates = [
            c.delivery_bytes_per_s
            for key, c in now.items()
            if sent[key] > 0.0 and c.delivery_bytes_per_s is not None
        ]
        return PeerReading(
            n_connections=sum(c.established for c in mine),
            **{name: self._total(name, mine) for name in _COUNTED},
            rtt_s=_mean_rtt_s(now, sent),
            min_rtt_s=min((c.min_rtt_s for c in mine if c.min_rtt_s is not None), default=None),
            congestion_window_bytes=float(sum(windows)) if windows else None,
            delivery_bytes_per_s=sum(rates) if rates else None,
            congestion_control=_algorithms(mine),
        )

    def _total(self, name: str, mine: list[Connection]) -> float | None:
        # A sum with one unknown part is unknown.
        return None if any(getattr(c, name) is None for c in mine) else self._totals[name]

    def _count(self, key: Hashable, connection: Connection) -> float:
        """Add what one connection gained; returns the bytes it sent since the reading before."""
        if self._before is None:
            return 0.0  # It was there before us: since when it counts is unknown.
        before = self._before.get(key)
        gains = dict.fromkeys(_COUNTED, 0.0)
        for name in _COUNTED:
            was = 0 if before is None else getattr(before, name)
            gained = counters.increase(
                was, getattr(connection, name), width_bits=_WIDTH_BITS.get(name)
            )
            gains[name] = gained or 0.0
            self._totals[name] += gains[name]
        return gains["sent_bytes"]


def _mean_rtt_s(now: dict[Hashable, Connection], sent: dict[Hashable, float]) -> float | None:
    known = [(c.rtt_s, sent[key]) for key, c in now.items() if c.rtt_s is not None]
    if not known:
        return None
    weight = sum(sent_bytes for _, sent_bytes in known)
    if weight > 0.0:
        return sum(rtt_s * sent_bytes for rtt_s, sent_bytes in known) / weight
    return sum(rtt_s for rtt_s, _ in known) / len(known)


def _algorithms(connections: list[Connection]) -> str | None:
    names = {c.congestion_control for c in connections if c.congestion_control}
    return ",".join(sorted(names)) or None
