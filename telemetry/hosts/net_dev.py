"""`/proc/net/dev`: bytes and packets of every interface, 64 bits wide on any 64-bit kernel.

https://www.kernel.org/doc/html/latest/networking/statistics.html
"""

from __future__ import annotations

from dataclasses import dataclass

from telemetry.hosts.errors import HostError, count

_COLUMNS = 16
_TX = 8
"""Eight columns received (bytes, packets, errors, drops, ...), then eight sent."""


@dataclass(frozen=True)
class Interface:
    """Counters of one interface since it exists."""

    rx_bytes: int
    tx_bytes: int
    rx_packets: int
    tx_packets: int
    rx_dropped: int
    tx_dropped: int


def parse(text: str, interface: str) -> Interface:
    """The counters of `interface` alone. Raises HostError.

    Never a sum over interfaces: a bond and its members, or a VLAN and its parent, carry the same
    bytes.
    """
    for line in text.splitlines():
        # Old kernels print no blank behind the colon: `eth0:874354587`. A name may have colons.
        name, colon, numbers = line.rpartition(":")
        if colon and name.strip() == interface:
            return _interface(interface, numbers.split())
    raise HostError(f"there is no interface {interface!r}")


def _interface(name: str, columns: list[str]) -> Interface:
    if len(columns) != _COLUMNS:
        raise HostError(
            f"interface {name!r}: {len(columns)} counters where {_COLUMNS} belong, cut short?"
        )
    numbers = [count(column, f"interface {name!r}") for column in columns]
    received, sent = numbers[:_TX], numbers[_TX:]
    return Interface(
        rx_bytes=received[0],
        tx_bytes=sent[0],
        rx_packets=received[1],
        tx_packets=sent[1],
        rx_dropped=received[3],
        tx_dropped=sent[3],
    )
