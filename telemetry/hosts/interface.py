"""`/sys/class/net`: one interface with its speed, its carrier and what it is stacked on.

https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-class-net and -bonding. Bytes are of the
interface that was asked for and of nothing below it; what is below says only whether the path is
whole. Counters are 64 bits wide.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from telemetry.hosts.errors import HostError, count
from telemetry.hosts.net_stat import named_counters
from telemetry.hosts.port import Member, Port, speed_gbps

ROOT = Path("/sys/class/net")
MAX_DEPTH = 4
"""Of interfaces stacked on one another: VLAN, bond, port."""
_DOWN = ("down", "lowerlayerdown", "notpresent")
# What a driver's own statistics call the bytes of its physical port: mlx5, i40e, ice.
_PORT_BYTES = (
    ("tx_bytes_phy", "rx_bytes_phy"),
    ("port.tx_bytes", "port.rx_bytes"),
    ("tx_bytes.nic", "rx_bytes.nic"),
)


def read(name: str, *, root: Path = ROOT) -> Port:
    """One interface. Raises HostError; reading some files asks the driver and may take a while."""
    try:
        return _read(name, root)
    except OSError as exc:
        # It went while it was read, or its name is none that a file may have.
        raise HostError(f"interface {name[:60]!r}: {exc.strerror}") from None


def _read(name: str, root: Path) -> Port:
    place = root / name
    if "/" in name or name in ("", ".", "..") or not place.is_dir():
        raise HostError(f"there is no interface {name!r}")
    up = _is_up(place)
    speed, members = _below(place, root, MAX_DEPTH)
    warnings = []
    if up and speed is None:
        warnings.append(f"{name} states no speed")
    if (place / "master").exists():
        master = (place / "master").resolve().name
        warnings.append(f"{name} is a part of {master}, which may carry more")
    return Port(
        tx_bytes=_counter(place, "tx_bytes"),
        rx_bytes=_counter(place, "rx_bytes"),
        speed_gbps=speed,
        up=up,
        members=members,
        n_members=len(members) or None,
        n_members_up=sum(member.up for member in members) if members else None,
        warnings=tuple(warnings),
    )


def with_driver_bytes(port: Port, statistics: dict[str, str]) -> Port:
    """`port` with the bytes of its physical ports, by what `ethtool -S` prints for each of them.

    `statistics` has one text by name: the interface's own, or those of all members of a bond,
    whose sum is one layer, too. RDMA passes by the kernel's counters and shows in these only.
    Raises HostError where one port does not tell.
    """
    tx_bytes = rx_bytes = 0
    for name, text in statistics.items():
        told = named_counters(text, separator=":")
        for tx, rx in _PORT_BYTES:
            if tx in told and rx in told:
                tx_bytes += told[tx]
                rx_bytes += told[rx]
                break
        else:
            raise HostError(f"{name}: its driver counts no bytes of the port")
    return replace(port, tx_bytes=float(tx_bytes), rx_bytes=float(rx_bytes))


def _counter(place: Path, name: str) -> float:
    text = _text(place / "statistics" / name)
    if text is None:
        raise HostError(f"{place.name}: {name} cannot be read")
    return float(count(text, f"{place.name}: {name}"))


def _below(place: Path, root: Path, depth: int) -> tuple[float | None, tuple[Member, ...]]:
    """(speed, members of the bond) of an interface, through the VLANs and the like upon it."""
    speed = _speed(place)
    slaves = _text(place / "bonding" / "slaves")
    if slaves is not None:
        return speed, tuple(_member(root / name, root) for name in slaves.split())
    lower = sorted(p.name.removeprefix("lower_") for p in place.glob("lower_*"))
    # A bridge has several and carries what is between them as well: no path of ours.
    if len(lower) != 1 or depth == 0:
        return speed, ()
    lower_speed, members = _below(root / lower[0], root, depth - 1)
    return (lower_speed if speed is None else speed), members


def _member(place: Path, root: Path) -> Member:
    monitored = _text(place / "bonding_slave" / "mii_status")
    up = _is_up(place) is True and monitored in (None, "up")
    return Member(place.name, up, _below(place, root, 1)[0])


def _is_up(place: Path) -> bool | None:
    # The carrier of an interface that is switched off cannot be read at all.
    carrier, operstate = _text(place / "carrier"), _text(place / "operstate")
    if operstate in _DOWN or carrier == "0":
        return False
    return True if carrier == "1" or operstate == "up" else None


def _speed(place: Path) -> float | None:
    text = _text(place / "speed")
    digits = "" if text is None else text.removeprefix("-")
    if text is None or not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
        return None
    return speed_gbps(int(text))


def _text(path: Path) -> str | None:
    """The file's one line; None where there is none or the driver refuses to say."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
