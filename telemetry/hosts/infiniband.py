"""`/sys/class/infiniband`: bytes of one port of an HCA, InfiniBand or RoCE.

https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-class-infiniband. `port_xmit_data` and
`port_rcv_data` count words of four bytes. Where an HCA has only the old 32-bit counters, these
stop at their end instead of starting over: such a reading is refused.
"""

from __future__ import annotations

import re
from pathlib import Path

from telemetry.hosts.errors import HostError, count
from telemetry.hosts.port import Port

ROOT = Path("/sys/class/infiniband")
WORD_BYTES = 4
_STUCK = 2**32 - 1
_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec\b")
_ACTIVE = "4: ACTIVE"


def read(device: str, port: int, *, root: Path = ROOT) -> Port:
    """One port, as `mlx5_0`, 1. Raises HostError."""
    place = root / device / "ports" / str(port)
    try:
        found = "/" not in device and device not in ("", ".", "..") and place.is_dir()
    except OSError:
        found = False  # A name that no file may have.
    if not found:
        raise HostError(f"there is no InfiniBand port {device[:60]!r} {port}")
    texts = {
        name: _text(place / name)
        for name in ("counters/port_xmit_data", "counters/port_rcv_data", "rate", "state")
    }
    return parse(
        f"{device}/{port}",
        sent=texts["counters/port_xmit_data"],
        received=texts["counters/port_rcv_data"],
        rate=texts["rate"],
        state=texts["state"],
    )


def parse(name: str, *, sent: str, received: str, rate: str = "", state: str = "") -> Port:
    """A port out of the texts of its files. Raises HostError."""
    found = _RATE.match(rate)
    speed_gbps = float(found[1]) if found is not None else 0.0
    return Port(
        tx_bytes=_bytes(sent, f"{name}: port_xmit_data"),
        rx_bytes=_bytes(received, f"{name}: port_rcv_data"),
        speed_gbps=speed_gbps or None,
        up=state == _ACTIVE if state else None,
        warnings=() if speed_gbps else (f"{name} states no rate",),
    )


def _bytes(text: str, what: str) -> float:
    words = count(text, what)
    if words == _STUCK:
        raise HostError(f"{what}: stands at the end of its 32 bits")
    return float(words * WORD_BYTES)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
