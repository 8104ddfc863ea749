"""A port and its host's TCP as Prometheus' node_exporter shows them.

https://github.com/prometheus/node_exporter. It turns Mbit/s into bytes a second, the sentinels of
an unknown speed along with them, and words of InfiniBand into bytes.
"""

from __future__ import annotations

import math

from telemetry.exposition import Exposition
from telemetry.hosts.errors import HostError
from telemetry.hosts.net_stat import HostTcp
from telemetry.hosts.port import Port, speed_gbps

_BYTES_PER_MBIT = 125_000.0
_STUCK_BYTES = 4.0 * (2**32 - 1)


def interface(exposition: Exposition, device: str) -> Port:
    """`node_network_*` of one device. Raises HostError."""
    labels = {"device": device}
    speed = _value(exposition, "node_network_speed_bytes", labels)
    carrier = _value(exposition, "node_network_carrier", labels)
    up = _value(exposition, "node_network_up", labels)
    known = None if speed is None else speed_gbps(speed / _BYTES_PER_MBIT)
    n_members, n_up = (
        _value(exposition, name, {"master": device})
        for name in ("node_bonding_slaves", "node_bonding_active")
    )
    told = [flag for flag in (carrier, up) if flag is not None]
    return Port(
        tx_bytes=_counter(exposition, "node_network_transmit_bytes_total", labels),
        rx_bytes=_counter(exposition, "node_network_receive_bytes_total", labels),
        speed_gbps=known,
        up=all(flag == 1.0 for flag in told) if told else None,
        n_members=None if n_members is None else int(n_members),
        n_members_up=None if n_up is None else int(n_up),
        warnings=() if known is not None else (f"{device} states no speed",),
    )


def infiniband(exposition: Exposition, device: str, port: int) -> Port:
    """`node_infiniband_*` of one port. Raises HostError."""
    labels = {"device": device, "port": str(port)}
    rate = _value(exposition, "node_infiniband_rate_bytes_per_second", labels)
    state = _value(exposition, "node_infiniband_state_id", labels)
    tx_bytes, rx_bytes = (
        _counter(exposition, f"node_infiniband_port_data_{way}_bytes_total", labels)
        for way in ("transmitted", "received")
    )
    if _STUCK_BYTES in (tx_bytes, rx_bytes):
        raise HostError(f"{device}/{port}: stands at the end of its 32 bits")
    return Port(
        tx_bytes=tx_bytes,
        rx_bytes=rx_bytes,
        speed_gbps=rate * 8 / 1e9 if rate else None,
        up=None if state is None else state == 4.0,
        warnings=() if rate else (f"{device}/{port} states no rate",),
    )


def host_tcp(exposition: Exposition) -> HostTcp:
    """`node_netstat_Tcp*`, of the whole host. Raises HostError."""
    timeouts = _value(exposition, "node_netstat_TcpExt_TCPTimeouts", {})
    return HostTcp(
        segments_sent=int(_counter(exposition, "node_netstat_Tcp_OutSegs", {})),
        segments_retransmitted=int(_counter(exposition, "node_netstat_Tcp_RetransSegs", {})),
        timeouts=None if timeouts is None else int(timeouts),
    )


def boot_s(exposition: Exposition) -> float:
    """When the host started, in epoch seconds; 0 where that is not told."""
    return _value(exposition, "node_boot_time_seconds", {}) or 0.0


def _counter(exposition: Exposition, name: str, labels: dict[str, str]) -> float:
    value = _value(exposition, name, labels)
    if value is None:
        of = " ".join(labels.values())
        raise HostError(f"node_exporter shows no {name}{f' of {of}' if of else ''}")
    return value


def _value(exposition: Exposition, name: str, labels: dict[str, str]) -> float | None:
    """The one series with these labels; None where there is none or it is no measurement.

    Raises HostError for several: two hosts behind one URL.
    """
    found = [
        sample.value
        for sample in exposition.samples.get(name, ())
        if all(sample.labels.get(key) == value for key, value in labels.items())
    ]
    if len(found) > 1:
        raise HostError(f"node_exporter: {len(found)} series of {name}, one is wanted")
    if not found or not math.isfinite(found[0]) or found[0] < 0.0:
        return None
    return found[0]
