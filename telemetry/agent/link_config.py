"""`[[links]]` of `agent.toml`: which counters a directed link is measured by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from telemetry.agent.urls import is_http


class Link(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One directed link, read on its sending side at one layer.

    `lab`: a lab's admin endpoint, `url` answers `{"A->B": {counters}}`. `proc_net_dev`: the
    counters of `interface` in `path`. `capacity_gbps` stands in where the source states none.
    """

    id: str
    source: Literal["lab", "proc_net_dev"]
    measured_layer: str
    url: str = ""
    interface: str = ""
    path: str = "/proc/net/dev"
    capacity_gbps: float | None = None


def problems(key: str, link: Link) -> Iterator[tuple[str, Any, str]]:
    """(key, value, why) of whatever the types cannot say."""
    source, arrow, target = link.id.partition("->")
    if not (source and arrow and target):
        yield f"{key}.id", link.id, 'a link id is "A->B"'
    if not link.measured_layer:
        yield f"{key}.measured_layer", link.measured_layer, "say at which layer this is measured"
    if link.source == "lab" and not is_http(link.url):
        yield f"{key}.url", link.url, "a lab link needs the http(s) URL of its /links"
    if link.source == "proc_net_dev" and not link.interface:
        yield f"{key}.interface", link.interface, "a proc_net_dev link needs its interface"
    if link.capacity_gbps is not None and not 0.0 < link.capacity_gbps < 1e6:
        yield f"{key}.capacity_gbps", link.capacity_gbps, "must be a positive number of Gbps"
