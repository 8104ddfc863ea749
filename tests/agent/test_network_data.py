"""Network captures: file -> signal -> the number that stands in the file, copied by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from telemetry.exposition import Parser
from telemetry.hosts import infiniband, interface, net_dev, net_stat, node_exporter, ss
from telemetry.hosts.errors import HostError
from telemetry.hosts.port import Port
from telemetry.hosts.tcp import Connection

DATA = Path(__file__).parents[2] / "../shared/data/network"
EMPTY = Port(tx_bytes=0.0, rx_bytes=0.0)


def _text(file: str) -> str:
    path = DATA / file
    if not path.exists():
        pytest.skip("network captures are not part of the project")
    return path.read_text()


def _device(name: str) -> Callable[[str], net_dev.Interface]:
    return lambda text: net_dev.parse(text, name)


def _connection(index: int) -> Callable[[str], Connection]:
    return lambda text: ss.parse(text)[index]


def _table(name: str) -> Callable[[str], dict[str, str]]:
    return lambda text: net_stat.tables(text)[name]


def _ethtool(text: str) -> dict[str, int]:
    return net_stat.named_counters(text, separator=":")


def _physical(text: str) -> Port:
    return interface.with_driver_bytes(EMPTY, {"eth0": text})


def _ib_files(device: str, port: int) -> Callable[[str], Port]:
    """The fixture has one `path = value` a line."""

    def read(text: str) -> Port:
        start = f"sys/class/infiniband/{device}/ports/{port}/"
        files = dict(
            line.removeprefix(start).split(" = ", 1)
            for line in text.splitlines()
            if line.startswith(start)
        )
        return infiniband.parse(
            f"{device}/{port}",
            sent=files["counters/port_xmit_data"],
            received=files["counters/port_rcv_data"],
            rate=files["rate"],
            state=files["state"],
        )

    return read


def _exporter(read: Callable[[Any], Any]) -> Callable[[str], Any]:
    return lambda text: read(Parser().parse(text))


IPERF, TELEGRAF = "ss_local_iperf_P4_loss.txt", "ss_telegraf_tcp_traffic.txt"
NETSTAT = "proc_net_netstat_node_exporter_fixture.txt"
MLX5 = "ethtool_S_mlx5_k515_xdp.txt"
IB = "sys_class_infiniband_procfs_fixture.txt"
NODE = "node_exporter_e2e_output.txt"
LOCAL_DEV = "proc_net_dev_local.txt"
FIXTURE_DEV = "proc_net_dev_procfs_fixture.txt"
TABLE: list[tuple[str, Callable[[str], Any], dict[str, Any]]] = [
    (
        IPERF,  # the control connection
        _connection(0),
        {
            "segments_retransmitted": 0,
            "rtt_s": 0.039e-3,
            "min_rtt_s": 0.024e-3,
            "sent_bytes": 185,
            "acked_bytes": 186,
            "received_bytes": 4,
            "congestion_control": "bbr",
            "delivery_bytes_per_s": 10922666664 / 8,
        },
    ),
    (
        IPERF,  # port 53214 in the first of three snapshots
        _connection(1),
        {
            "segments_retransmitted": 3,
            "retransmitted_bytes": 142795,
            "segments_sent": 276,
            "sent_bytes": 17262392,
            "rtt_s": 52.656e-3,
            "congestion_control": "cubic",
            "congestion_window_segments": 18,
            "segment_bytes": 65483,
        },
    ),
    (IPERF, _connection(4), {"segments_retransmitted": 1, "rtt_s": 53.183e-3}),
    (IPERF, _connection(6), {"segments_retransmitted": 5, "rtt_s": 43.067e-3}),
    (IPERF, _connection(8), {"segments_retransmitted": 6, "rtt_s": 47.19e-3}),
    (IPERF, _connection(13), {"segments_retransmitted": 7, "rtt_s": 39.503e-3}),
    (
        IPERF,  # port 53230 in the last snapshot
        _connection(14),
        {"segments_retransmitted": 6, "rtt_s": 39.674e-3, "sent_bytes": 72928204},
    ),
    (
        TELEGRAF,  # an old kernel tells bytes acknowledged only
        _connection(1),
        {
            "sent_bytes": 790782896,
            "received_bytes": 1126,
            "rtt_s": 0.034e-3,
            "segments_sent": 333358,
            "segments_retransmitted": 0,
            "retransmitted_bytes": None,
        },
    ),
    (TELEGRAF, _connection(2), {"segments_retransmitted": 1, "rtt_s": 16.009e-3}),
    (LOCAL_DEV, _device("eth0"), {"rx_bytes": 5485396948, "tx_bytes": 7246888}),
    (LOCAL_DEV, _device("lo"), {"rx_bytes": 9391803113, "tx_bytes": 9391803113}),
    (FIXTURE_DEV, _device("eth0"), {"rx_bytes": 874354587, "tx_bytes": 563352563}),
    (FIXTURE_DEV, _device("vethf345468"), {"rx_bytes": 648, "tx_bytes": 438, "tx_packets": 5}),
    (
        NETSTAT,
        _table("TcpExt"),
        {"TCPFastRetrans": "1", "TCPSlowStartRetrans": "1", "TCPTimeouts": "115"},
    ),
    (NETSTAT, _table("IpExt"), {"InOctets": "6286396970", "OutOctets": "2786264347"}),
    (
        "proc_net_netstat_procfs_fixture.txt",
        _table("TcpExt"),
        {"TCPSlowStartRetrans": "3", "TCPSynRetrans": "16", "TCPLossProbes": "32"},
    ),
    (
        "proc_net_snmp_node_exporter_fixture.txt",
        _table("Tcp"),
        {"RetransSegs": "227", "OutSegs": "54915039", "InSegs": "57252008", "MaxConn": "-1"},
    ),
    (
        "proc_net_snmp6_node_exporter_fixture.txt",
        net_stat.named_counters,
        {
            "Ip6OutOctets": 536,
            "Ip6InOctets": 460,
            "Ip6OutNoRoutes": 3003,
            "UdpLite6InCsumErrors": 0,
        },
    ),
    (MLX5, _physical, {"tx_bytes": 357657403514.0, "rx_bytes": 6211329423080.0}),
    (
        MLX5,
        _ethtool,
        {"rx_discards_phy": 58591428329, "rx_out_of_buffer": 990473555, "tx_bytes": 2070},
    ),
    (
        "ethtool_S_node_exporter_eth0.txt",
        _ethtool,
        {"tx_packets": 961500, "port.rx_dropped": 12028, "duplicate metric": 1},
    ),
    (
        IB,  # words of four bytes
        _ib_files("mlx5_0", 1),
        {
            "tx_bytes": 2880761508848.0 * 4,
            "rx_bytes": 18126345378.0 * 4,
            "speed_gbps": 25.0,
            "path_state": "whole",
        },
    ),
    (
        IB,
        _ib_files("hfi1_0", 1),
        {"tx_bytes": 273558326543.0 * 4, "rx_bytes": 345091702026.0 * 4, "speed_gbps": 100.0},
    ),
    (IB, _ib_files("mlx4_0", 2), {"tx_bytes": 26540356890.0 * 4, "speed_gbps": 40.0}),
    (
        NODE,
        _exporter(node_exporter.host_tcp),
        {"segments_sent": 54915039, "segments_retransmitted": 227, "timeouts": 115},
    ),
    (
        NODE,
        _exporter(lambda parsed: node_exporter.infiniband(parsed, "mlx4_0", 1)),
        {"tx_bytes": 14933760.0, "rx_bytes": 18527668.0, "speed_gbps": 40.0, "up": True},
    ),
]


@pytest.mark.parametrize(("file", "read", "want"), TABLE, ids=[row[0][:40] for row in TABLE])
def test_what_a_file_says(file: str, read: Callable[[str], Any], want: dict[str, Any]) -> None:
    found = read(_text(file))
    got = {name: found[name] if isinstance(found, dict) else getattr(found, name) for name in want}
    # As written in the file, but for what units make of the last digit of a float.
    exact = {
        name: pytest.approx(value, rel=1e-12) if isinstance(value, float) else value
        for name, value in want.items()
    }
    assert got == exact


def test_the_captured_node_exporter_counts_no_bytes_of_an_interface() -> None:
    """Its fixture has the heading of the family and no sample: that is missing, not zero."""
    parsed = Parser().parse(_text(NODE))
    with pytest.raises(HostError, match="node_network_transmit_bytes_total of eth0"):
        node_exporter.interface(parsed, "eth0")
    counted = Parser().parse(
        _text(NODE)
        + 'node_network_transmit_bytes_total{device="eth0"} 5\n'
        + 'node_network_receive_bytes_total{device="eth0"} 7\n'
    )
    port = node_exporter.interface(counted, "eth0")
    assert (port.speed_gbps, port.path_state) == (1.0, "whole")
    assert node_exporter.boot_s(counted) == 1418183276.0


def test_the_captured_connections_are_all_read() -> None:
    assert len(ss.parse(_text(IPERF))) == 3 * 5
    assert [c.remote_port for c in ss.parse(_text(TELEGRAF))] == [443, 6514, 50378]
    with pytest.raises(HostError, match="no connection in 'Total: 84'"):
        ss.parse(_text("ss_summary_local.txt"))


CUT: list[tuple[str, Callable[[str], Any]]] = [
    (IPERF, ss.parse),
    (TELEGRAF, ss.parse),
    (LOCAL_DEV, _device("eth0")),
    (NETSTAT, net_stat.tables),
    ("proc_net_snmp_node_exporter_fixture.txt", lambda text: net_stat.host_tcp(text, "")),
    ("proc_net_snmp6_node_exporter_fixture.txt", net_stat.named_counters),
    (MLX5, _physical),
    ("proc_net_tcp_procfs_fixture.txt", ss.parse),
    ("ss_summary_local.txt", ss.parse),
]


@pytest.mark.parametrize(("file", "read"), CUT, ids=[row[0][:40] for row in CUT])
def test_a_file_cut_short_raises_nothing_but_its_own_error(
    file: str, read: Callable[[str], Any]
) -> None:
    text = _text(file)
    ends = [i + 1 for i, character in enumerate(text) if character == "\n"]
    for end in [0, *ends, *(end - 7 for end in ends if end > 7)]:
        try:
            read(text[:end])
        except HostError:
            continue
