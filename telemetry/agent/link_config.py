"""`[[links]]` of `agent.toml`: which counters a directed link is measured by (docs/links.md)."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network
from typing import Any, Literal

import msgspec

from telemetry.agent.urls import is_http

Problem = tuple[str, Any, str]
MAX_PEERS = 1000
"""Networks of one link: they are one program for the kernel, with jumps of 16 bits."""


class Link(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One directed link, read on its sending side at one layer.

    `lab`: a lab's admin endpoint, `url` answers `{"A->B": {counters}}`. `proc_net_dev`: the
    counters of `interface` in `path`. `interface`: the same out of sysfs with speed, carrier and
    bond members; `counters = "driver"` takes the physical port's from `ethtool -S`. `peer`: TCP
    connections whose remote end is in `peers` (and has one of the ports, where some are given), by
    netlink or by `ss`. `infiniband`: a `port` of a `device`. `node_exporter`: at `url`, an
    `interface` or the `port` of a `device`.

    `capacity_gbps` is the path's own, where it is less than the port's or the port states none.
    `host_tcp` adds the segments of the whole host: only where its traffic is the link's.
    """

    id: str
    source: Literal["lab", "proc_net_dev", "interface", "peer", "infiniband", "node_exporter"]
    measured_layer: str
    url: str = ""
    interface: str = ""
    device: str = ""
    port: int = 1
    path: str = ""
    counters: Literal["kernel", "driver"] = "kernel"
    width_bits: Literal[32, 64] = 64
    host_tcp: bool = False
    peers: tuple[str, ...] = ()
    remote_ports: tuple[int, ...] = ()
    local_ports: tuple[int, ...] = ()
    via: Literal["auto", "inet_diag", "ss"] = "auto"
    capacity_gbps: float | None = None


_NEEDS = {
    "lab": ("url",),
    "proc_net_dev": ("interface",),
    "interface": ("interface",),
    "peer": ("peers",),
    "infiniband": ("device",),
    "node_exporter": ("url",),
}
_TAKES = {
    "lab": (),
    "proc_net_dev": ("path", "width_bits", "host_tcp"),
    "interface": ("path", "counters", "width_bits", "host_tcp"),
    "peer": ("remote_ports", "local_ports", "via"),
    "infiniband": ("port", "path", "host_tcp"),
    "node_exporter": ("interface", "device", "port", "width_bits", "host_tcp"),
}
_ALWAYS = ("id", "source", "measured_layer", "capacity_gbps")


def problems(key: str, link: Link, *, interval_s: float) -> Iterator[Problem]:
    """(key, value, why) of whatever the types cannot say of a link read every `interval_s`."""
    source, arrow, target = link.id.partition("->")
    if not (source and arrow and target):
        yield f"{key}.id", link.id, 'a link id is "A->B"'
    if not link.measured_layer:
        yield f"{key}.measured_layer", link.measured_layer, "say at which layer this is measured"
    if link.capacity_gbps is not None and not 0.0 < link.capacity_gbps < 1e6:
        yield f"{key}.capacity_gbps", link.capacity_gbps, "must be a positive number of Gbps"
    yield from _key_problems(key, link)
    yield from _peer_problems(key, link)
    yield from _width_problems(key, link, interval_s)


def _key_problems(key: str, link: Link) -> Iterator[Problem]:
    """Keys a source cannot do without, and those it would not read."""
    needed = _NEEDS[link.source]
    a_link = f"{'an' if link.source[0] in 'aeiou' else 'a'} {link.source} link"
    known = (*_ALWAYS, *needed, *_TAKES[link.source])
    for field in msgspec.structs.fields(link):
        value = getattr(link, field.name)
        if field.name in needed and not value:
            yield f"{key}.{field.name}", value, f"{a_link} needs its {field.name}"
        elif field.name not in known and value != field.default:
            yield f"{key}.{field.name}", value, f"{a_link} does not read it"
    if link.url and not is_http(link.url):
        yield f"{key}.url", link.url, "must be an http(s) URL"
    if link.source == "node_exporter" and bool(link.interface) == bool(link.device):
        yield f"{key}.interface", link.interface, "give interface, or device and port"
    if link.source == "interface" and link.interface and not _is_plain(link.interface):
        yield f"{key}.interface", link.interface, "is no name of an interface"


def _is_plain(name: str) -> bool:
    # It becomes an argument of a program.
    return name.isprintable() and not name.startswith("-") and not set(name) & set(" /")


def _peer_problems(key: str, link: Link) -> Iterator[Problem]:
    if len(link.peers) > MAX_PEERS:
        yield f"{key}.peers", len(link.peers), f"at most {MAX_PEERS} networks"
    for i, peer in enumerate(link.peers):
        try:
            ip_network(peer)
        except ValueError as exc:
            yield f"{key}.peers[{i}]", peer, str(exc)
    for name in ("remote_ports", "local_ports"):
        for i, port in enumerate(getattr(link, name)):
            if not 0 < port < 65536:
                yield f"{key}.{name}[{i}]", port, "must be in 1..65535"


def _width_problems(key: str, link: Link, interval_s: float) -> Iterator[Problem]:
    """A counter of 32 bits is of use only where it cannot wrap unseen.

    A wrap shows as a fall from the upper half of its range to the lower, so that less than a half
    may pass between two readings, also when one is lost: 2^31 bytes in two intervals.
    """
    if link.width_bits == 64:
        return
    if link.capacity_gbps is None:
        why = "say capacity_gbps: how soon 32 bits wrap depends on it"
        yield f"{key}.width_bits", link.width_bits, why
        return
    wraps_s = 2**32 * 8 / (link.capacity_gbps * 1e9)
    if 2 * interval_s >= wraps_s / 2:
        why = (
            f"wraps within {wraps_s:.2g} s at {link.capacity_gbps:g} Gbps,"
            f" too soon for readings every {interval_s:g} s"
        )
        yield f"{key}.width_bits", link.width_bits, why
