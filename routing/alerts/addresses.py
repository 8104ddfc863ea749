"""Which addresses alerts may be sent to: public ones, and the networks that the site allows.

A host name is no promise: it is the address that is connected to which is asked about, each time.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def may_reach(address: str, allowed: Sequence[_Network]) -> bool:
    """Whether this numeric address is public, or within a network that is allowed."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    behind = _behind(found)
    if any(behind in network for network in allowed if network.version == behind.version):
        return True
    return behind.is_global and not behind.is_multicast


def _behind(address: _Address) -> _Address:
    """The IPv4 address that an IPv6 one stands for, where it does: a way around a check."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address
