"""Interfaces out of a sysfs made by hand: speeds, carrier, bonds, VLANs."""

from __future__ import annotations

from pathlib import Path

import pytest

from telemetry.agent.links import PortMeter
from telemetry.hosts import infiniband, interface
from telemetry.hosts.errors import HostError
from telemetry.hosts.port import Port


def _interface(root: Path, name: str, **files: str | int) -> Path:
    """One interface that is up; a file that is None is not there."""
    wanted = {
        "statistics/tx_bytes": 2000,
        "statistics/rx_bytes": 1000,
        "speed": 25000,
        "carrier": 1,
        "operstate": "up",
    }
    for path, value in (wanted | files).items():
        file = root / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")
    return root / name


def _bond(root: Path, *, speed: int = 50000, members: str = "eth0 eth1") -> None:
    _interface(root, "bond0", speed=speed, **{"bonding/slaves": members})


def _measured(port: Port, configured_gbps: float | None = None):  # type: ignore[no-untyped-def]
    return PortMeter(configured_gbps=configured_gbps).read(port, at_s=1.7e9)


def test_a_bond_is_measured_at_the_bond_alone(tmp_path: Path) -> None:
    """S-10."""
    _bond(tmp_path)
    for name in ("eth0", "eth1"):
        place = _interface(tmp_path, name, **{"statistics/tx_bytes": 1000})
        (place / "master").symlink_to(tmp_path / "bond0")
    port = interface.read("bond0", root=tmp_path)
    assert (port.tx_bytes, port.rx_bytes, port.speed_gbps) == (2000.0, 1000.0, 50.0)
    assert (port.path_state, port.trouble, port.warnings) == ("whole", (), ())
    assert (port.n_members, port.n_members_up) == (2, 2)
    part = interface.read("eth0", root=tmp_path)
    assert part.tx_bytes == 1000.0
    assert part.warnings == ("eth0 is a part of bond0, which may carry more",)


def test_a_vlan_over_a_bond_is_one_layer_that_knows_what_is_below(tmp_path: Path) -> None:
    """S-10, S-12."""
    _bond(tmp_path)
    _interface(tmp_path, "eth0")
    _interface(tmp_path, "eth1", carrier=0)
    vlan = _interface(tmp_path, "bond0.100", speed=-1, **{"statistics/tx_bytes": 700})
    (vlan / "lower_bond0").symlink_to(tmp_path / "bond0")
    port = interface.read("bond0.100", root=tmp_path)
    assert (port.tx_bytes, port.speed_gbps) == (700.0, 50.0)
    assert (port.path_state, port.trouble) == ("degraded", ("eth1 is down",))


@pytest.mark.parametrize("speed", [-1, 0, 65535, 4294967295])
def test_a_bond_member_with_carrier_and_no_speed_degrades_the_path(
    tmp_path: Path, speed: int
) -> None:
    """S-12: and what the bond states of itself then bounds nothing."""
    _bond(tmp_path, speed=25000)
    _interface(tmp_path, "eth0")
    _interface(tmp_path, "eth1", speed=speed)
    measured = _measured(interface.read("bond0", root=tmp_path), 50.0)
    assert measured.signals.path_state == "degraded"
    assert (measured.signals.n_members, measured.signals.n_members_up) == (2.0, 2.0)
    assert measured.signals.capacity_gbps == 25.0
    assert measured.ceiling_gbps == 50.0
    assert measured.warnings == ("eth1 has carrier and no known speed",)


def test_a_member_that_the_bond_does_not_use_degrades_the_path(tmp_path: Path) -> None:
    _bond(tmp_path, speed=25000)
    _interface(tmp_path, "eth0", **{"bonding_slave/mii_status": "up"})
    _interface(tmp_path, "eth1", **{"bonding_slave/mii_status": "going down"})
    port = interface.read("bond0", root=tmp_path)
    assert (port.path_state, port.trouble, port.n_members_up) == (
        "degraded",
        ("eth1 is down",),
        1,
    )


@pytest.mark.parametrize("speed", ["-1", "0", "65535", "4294967295", "fast", ""])
def test_an_unknown_speed_is_the_configured_one(tmp_path: Path, speed: str) -> None:
    """S-11."""
    _interface(tmp_path, "eth0", speed=speed)
    port = interface.read("eth0", root=tmp_path)
    assert (port.speed_gbps, port.path_state) == (None, "whole")
    measured = _measured(port, 100.0)
    assert measured.signals.capacity_gbps == 100.0
    assert measured.warnings == ("eth0 states no speed: the configured 100 Gbps count",)
    unknown = _measured(port)
    assert (unknown.signals.capacity_gbps, unknown.ceiling_gbps) == (None, None)
    assert unknown.warnings == ("eth0 states no speed: give capacity_gbps",)


@pytest.mark.parametrize(
    ("configured", "capacity", "ceiling"),
    [(None, 25.0, 25.0), (10.0, 10.0, 25.0), (100.0, 25.0, 100.0)],
)
def test_a_path_carries_the_lesser_of_what_is_known(
    tmp_path: Path, configured: float | None, capacity: float, ceiling: float
) -> None:
    """A leased 10 Gbps behind a port of 25: other traffic of the port may pass 10."""
    _interface(tmp_path, "eth0")
    measured = _measured(interface.read("eth0", root=tmp_path), configured)
    assert (measured.signals.capacity_gbps, measured.ceiling_gbps) == (capacity, ceiling)


@pytest.mark.parametrize("files", [{"carrier": 0}, {"operstate": "down", "carrier": ""}])
def test_an_interface_that_is_down_carries_nothing(
    tmp_path: Path, files: dict[str, str | int]
) -> None:
    _interface(tmp_path, "eth0", **files)
    measured = _measured(interface.read("eth0", root=tmp_path), 100.0)
    assert (measured.signals.path_state, measured.signals.capacity_gbps) == ("down", 0.0)
    assert measured.signals.tx_bytes_total == 2000.0


@pytest.mark.parametrize("name", ["eth9", "", ".", "..", "../net/eth0", "eth0/statistics", "\0"])
def test_no_such_interface(tmp_path: Path, name: str) -> None:
    _interface(tmp_path, "eth0")
    with pytest.raises(HostError, match="there is no interface"):
        interface.read(name, root=tmp_path)


def test_a_name_that_no_file_may_have(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="File name too long"):
        interface.read("e" * 5000, root=tmp_path)
    with pytest.raises(HostError, match="there is no InfiniBand port"):
        infiniband.read("m" * 5000, 1, root=tmp_path)


@pytest.mark.parametrize(("text", "why"), [("-5", "is not a counter"), ("", "is not a counter")])
def test_a_counter_that_is_none(tmp_path: Path, text: str, why: str) -> None:
    _interface(tmp_path, "eth0", **{"statistics/tx_bytes": text})
    with pytest.raises(HostError, match=why):
        interface.read("eth0", root=tmp_path)
    (tmp_path / "eth0/statistics/tx_bytes").unlink()
    with pytest.raises(HostError, match="tx_bytes cannot be read"):
        interface.read("eth0", root=tmp_path)


def test_interfaces_stacked_in_a_circle_end(tmp_path: Path) -> None:
    for name, lower in (("a", "b"), ("b", "a")):
        place = _interface(tmp_path, name, speed=-1)
        (place / f"lower_{lower}").symlink_to(tmp_path / lower)
    assert interface.read("a", root=tmp_path).speed_gbps is None


def test_the_loopback_of_this_machine() -> None:
    if not Path("/sys/class/net").is_dir():
        pytest.skip("no sysfs here")
    port = interface.read("lo")
    assert port.tx_bytes == port.rx_bytes >= 0.0
    assert port.speed_gbps is None


def test_an_infiniband_port(tmp_path: Path) -> None:
    place = tmp_path / "mlx5_0/ports/1"
    (place / "counters").mkdir(parents=True)
    for name, value in {
        "counters/port_xmit_data": "1000",
        "counters/port_rcv_data": "25",
        "rate": "100 Gb/sec (4X EDR)",
        "state": "4: ACTIVE",
    }.items():
        (place / name).write_text(f"{value}\n")
    port = infiniband.read("mlx5_0", 1, root=tmp_path)
    assert (port.tx_bytes, port.rx_bytes, port.speed_gbps) == (4000.0, 100.0, 100.0)
    for device, number in (("mlx5_0", 2), ("..", 1), ("a/b", 1)):
        with pytest.raises(HostError, match="there is no InfiniBand port"):
            infiniband.read(device, number, root=tmp_path)
