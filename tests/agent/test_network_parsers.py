"""Counters of a host as their texts: what they mean, and that nothing in them does harm."""

from __future__ import annotations

import struct
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.exposition import Parser
from telemetry.hosts import inet_diag, infiniband, interface, net_dev, net_stat, node_exporter, ss
from telemetry.hosts.errors import HostError, count
from telemetry.hosts.port import Port, speed_gbps
from telemetry.hosts.tcp import address

NET_DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo
    lo: 9391803113 5751595    0    0    0     0          0         0 9391803113 5751595 0 0 0 0 0 0
 bond0:1000 1 0 9 0 0 0 0 2000 2 0 8 0 0 0 0
  eth0: 500 1 0 0 0 0 0 0 1200 2 0 0 0 0 0 0
  eth1: 500 1 0 0 0 0 0 0 800 2 0 0 0 0 0 0
eth0:1: 7 1 0 0 0 0 0 0 8 2 0 0 0 0 0 0
"""


@pytest.mark.parametrize(
    ("name", "rx", "tx"),
    [
        ("lo", 9391803113, 9391803113),
        ("bond0", 1000, 2000),
        ("eth0", 500, 1200),
        ("eth0:1", 7, 8),
    ],
)
def test_one_interface_and_never_a_sum(name: str, rx: int, tx: int) -> None:
    """S-10: bond0 carries what eth0 and eth1 carry: 2000, not 4000."""
    found = net_dev.parse(NET_DEV, name)
    assert (found.rx_bytes, found.tx_bytes) == (rx, tx)


def test_columns_stand_where_they_belong() -> None:
    found = net_dev.parse(NET_DEV, "bond0")
    assert (found.rx_packets, found.tx_packets) == (1, 2)
    assert (found.rx_dropped, found.tx_dropped) == (9, 8)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no interface 'eth0'"),
        ("eth00: 1 2 3\n", "no interface 'eth0'"),
        ("eth0: 1 2 3\n", "3 counters where 16 belong"),
        ("eth0: -5 1 0 0 0 0 0 0 1200 2 0 0 0 0 0 0\n", "'-5' is not a counter"),
        ("eth0: 1_0 1 0 0 0 0 0 0 1200 2 0 0 0 0 0 0\n", "is not a counter"),
        ("eth0: ٣ 1 0 0 0 0 0 0 1200 2 0 0 0 0 0 0\n", "is not a counter"),
        (f"eth0: {2**64} 1 0 0 0 0 0 0 1200 2 0 0 0 0 0 0\n", "is not a counter"),
        (f"eth0: {'9' * 5000} 1 0 0 0 0 0 0 1200 2 0 0 0 0 0 0\n", "is not a counter"),
    ],
)
def test_an_interface_that_cannot_be_read_is_an_error(text: str, why: str) -> None:
    with pytest.raises(HostError, match=why) as caught:
        net_dev.parse(text, "eth0")
    assert len(str(caught.value)) < 200


def test_the_widest_counter() -> None:
    assert count(str(2**64 - 1), "x") == 2**64 - 1


SNMP = """\
Ip: Forwarding DefaultTTL InReceives
Ip: 1 64 9
Tcp: RtoAlgorithm MaxConn OutSegs RetransSegs
Tcp: 1 -1 5000 12
"""
NETSTAT = "TcpExt: TCPTimeouts TCPLostRetransmit\nTcpExt: 3 1\nIpExt: OutOctets\nIpExt: 77\n"


def test_tcp_of_the_host_by_name_and_not_by_place() -> None:
    tcp = net_stat.host_tcp(SNMP, NETSTAT)
    assert (tcp.segments_sent, tcp.segments_retransmitted, tcp.timeouts) == (5000, 12, 3)
    swapped = SNMP.replace("OutSegs RetransSegs", "RetransSegs OutSegs").replace(
        "5000 12", "12 5000"
    )
    assert net_stat.host_tcp(swapped, "") == net_stat.HostTcp(5000, 12, None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Tcp has no OutSegs"),
        (SNMP.replace("Tcp: 1 -1 5000 12", "Tcp: 1 -1 5000"), "Tcp has no OutSegs"),
        (SNMP.replace(" RetransSegs", "").replace(" 12", ""), "Tcp has no RetransSegs"),
        (SNMP.replace("5000", "-5000"), "OutSegs: '-5000' is not a counter"),
    ],
)
def test_a_table_cut_short_is_missing_and_not_zero(text: str, why: str) -> None:
    with pytest.raises(HostError, match=why):
        net_stat.host_tcp(text, NETSTAT)


def test_named_counters() -> None:
    assert net_stat.named_counters("Ip6InReceives \t 7\nIp6Out") == {"Ip6InReceives": 7}
    ethtool = (
        "NIC statistics:\n     tx_bytes_phy: 5\n     duplicate metric: 1\n  a: -\n [0]: b: 2\n"
    )
    assert net_stat.named_counters(ethtool, separator=":") == {
        "tx_bytes_phy": 5,
        "duplicate metric": 1,
        "[0]: b": 2,
    }


@pytest.mark.parametrize(
    "text",
    ["tx_bytes_phy: 5\nrx_bytes_phy: 6", "port.tx_bytes: 5\nport.rx_bytes: 6"],
)
def test_bytes_of_physical_ports_are_summed_over_members_only(text: str) -> None:
    """RDMA passes by the kernel's counters; two ports below a bond are one layer."""
    port = Port(tx_bytes=100.0, rx_bytes=100.0)
    one = interface.with_driver_bytes(port, {"eth0": text})
    assert (one.tx_bytes, one.rx_bytes) == (5.0, 6.0)
    two = interface.with_driver_bytes(port, {"eth0": text, "eth1": text})
    assert (two.tx_bytes, two.rx_bytes) == (10.0, 12.0)
    with pytest.raises(HostError, match="eth1: its driver counts no bytes of the port"):
        interface.with_driver_bytes(port, {"eth0": text, "eth1": "tx_bytes: 9\nrx_bytes: 9"})


@pytest.mark.parametrize("mbit", [-1, 0, 65535, 4294967295, -125000, float("nan"), 1e300])
def test_a_speed_that_means_unknown(mbit: float) -> None:
    """S-11."""
    assert speed_gbps(mbit) is None


@pytest.mark.parametrize(("mbit", "gbps"), [(10, 0.01), (1000, 1.0), (25000, 25.0), (800000, 800)])
def test_a_speed(mbit: float, gbps: float) -> None:
    assert speed_gbps(mbit) == gbps


def test_infiniband_counts_words_of_four_bytes() -> None:
    port = infiniband.parse(
        "mlx5_0/1", sent="1000", received="25", rate="100 Gb/sec (4X EDR)", state="4: ACTIVE"
    )
    assert (port.tx_bytes, port.rx_bytes) == (4000.0, 100.0)
    assert (port.speed_gbps, port.path_state, port.warnings) == (100.0, "whole", ())
    down = infiniband.parse("m/1", sent="1", received="1", rate="2.5 Gb/sec", state="1: DOWN")
    assert (down.speed_gbps, down.path_state) == (2.5, "down")
    silent = infiniband.parse("m/1", sent="1", received="1")
    assert (silent.speed_gbps, silent.path_state) == (None, None)
    assert silent.warnings == ("m/1 states no rate",)


@pytest.mark.parametrize(("sent", "why"), [("4294967295", "end of its 32 bits"), ("", "''")])
def test_infiniband_counters_that_cannot_be_used(sent: str, why: str) -> None:
    """The old counters stop at their end: a port that looks idle for ever."""
    with pytest.raises(HostError, match=why):
        infiniband.parse("mlx4_0/1", sent=sent, received="1")


NODE = """\
node_boot_time_seconds 1.7e9
node_network_transmit_bytes_total{device="bond0"} 2000
node_network_receive_bytes_total{device="bond0"} 1000
node_network_transmit_bytes_total{device="eth0"} 1200
node_network_receive_bytes_total{device="eth0"} 500
node_network_speed_bytes{device="bond0"} 1.25e+10
node_network_speed_bytes{device="eth0"} -125000
node_network_carrier{device="bond0"} 1
node_network_up{device="bond0"} 1
node_bonding_slaves{master="bond0"} 2
node_bonding_active{master="bond0"} 1
node_netstat_Tcp_OutSegs 5000
node_netstat_Tcp_RetransSegs 12
node_infiniband_port_data_transmitted_bytes_total{device="mlx5_0",port="1"} 4000
node_infiniband_port_data_received_bytes_total{device="mlx5_0",port="1"} 100
node_infiniband_rate_bytes_per_second{device="mlx5_0",port="1"} 1.25e+10
node_infiniband_state_id{device="mlx5_0",port="1"} 4
"""


def test_node_exporter() -> None:
    """S-12, S-13: 12.5 GB/s is 100 Gbps; one of two members is down."""
    parsed = Parser().parse(NODE)
    bond = node_exporter.interface(parsed, "bond0")
    assert (bond.tx_bytes, bond.rx_bytes, bond.speed_gbps) == (2000.0, 1000.0, 100.0)
    assert (bond.path_state, bond.trouble) == ("degraded", ("1 of 2 members are down",))
    eth0 = node_exporter.interface(parsed, "eth0")
    assert (eth0.tx_bytes, eth0.speed_gbps, eth0.path_state) == (1200.0, None, None)
    hca = node_exporter.infiniband(parsed, "mlx5_0", 1)
    assert (hca.tx_bytes, hca.speed_gbps, hca.path_state) == (4000.0, 100.0, "whole")
    assert node_exporter.host_tcp(parsed) == net_stat.HostTcp(5000, 12, None)
    assert node_exporter.boot_s(parsed) == 1.7e9


@pytest.mark.parametrize(
    ("add", "why"),
    [
        ('node_network_transmit_bytes_total{device="bond0",host="b"} 1\n', "2 series of"),
        ('node_network_transmit_bytes_total{device="bond1"} NaN\n', "shows no .* of bond1"),
    ],
)
def test_node_exporter_of_two_hosts_or_of_none(add: str, why: str) -> None:
    parsed = Parser().parse(NODE + add)
    with pytest.raises(HostError, match=why):
        node_exporter.interface(parsed, "bond0" if "bond0" in add else "bond1")


SS = """\
State Recv-Q Send-Q Local Address:Port  Peer Address:Port Process
ESTAB 0      0           10.1.0.5:40000     10.2.0.9:8998
\t ts sack ecn cubic wscale:7,7 rto:204 rtt:250/0.5 mss:1448 cwnd:10 bytes_sent:9000 \
bytes_retrans:1448 bytes_acked:7552 bytes_received:12 segs_out:9 data_segs_out:7 send 463Kbps \
delivery_rate 12.5Mbps busy:4ms retrans:1/3 minrtt:0.25
0     5      [::ffff:10.1.0.5]:8998 [::ffff:10.2.0.9]:40100
\t bbr wscale:7,7 rto:204 rtt:0.25/0.1 mss:1448 cwnd:20
CLOSE-WAIT 1 0 [fe80::1%eth0]:22 [fe80::2%eth0]:50000 users:(("a",pid=1,fd=3)) cubic rtt:1/1
"""


def test_ss() -> None:
    """S-13: 250 ms is 0.25 s, Kbps and Mbps are thousands."""
    first, second, third = ss.parse(SS)
    assert (first.local_port, first.remote, first.remote_port) == (
        40000,
        ip_address("10.2.0.9"),
        8998,
    )
    assert (first.rtt_s, first.min_rtt_s) == (0.25, 0.00025)
    assert (first.sent_bytes, first.acked_bytes, first.received_bytes) == (9000, 7552, 12)
    assert (first.segments_sent, first.segments_retransmitted) == (7, 3)
    assert (first.delivery_bytes_per_s, first.congestion_control) == (12.5e6 / 8, "cubic")
    assert second.remote == ip_address("10.2.0.9"), "IPv4 in IPv6 is IPv4"
    assert (second.rtt_s, second.sent_bytes, second.segments_sent) == (0.00025, 0, 0)
    assert (third.established, third.remote) == (False, ip_address("fe80::2"))
    assert (third.rtt_s, third.congestion_control) == (0.001, "cubic")


def test_ss_of_an_old_kernel_tells_no_bytes_and_that_is_not_zero() -> None:
    [old] = ss.parse("0 0 10.1.0.5:1 10.2.0.9:2\n\t cubic rtt:250/1 cwnd:10\n")
    assert (old.sent_bytes, old.received_bytes, old.segments_sent) == (None, None, None)
    [bare] = ss.parse("0 0 10.1.0.5:1 10.2.0.9:2\n")
    assert (bare.rtt_s, bare.segments_retransmitted) == (None, None)


@pytest.mark.parametrize(
    ("rate", "want"),
    [("100000000bps", 12.5e6), ("100Mbps", 12.5e6), ("0.1Gbps", 12.5e6), ("fast", None)],
)
def test_one_rate_in_four_units(rate: str, want: float | None) -> None:
    """S-13."""
    [found] = ss.parse(f"0 0 10.1.0.5:1 10.2.0.9:2\n\t cubic rtt:1/1 delivery_rate {rate}\n")
    assert found.delivery_bytes_per_s == want


@pytest.mark.parametrize(
    "text",
    ["no such thing\n", "0 0 10.1.0.5:1 nowhere:2\n", "0 0 10.1.0.5:1 10.2.0.9:99999\n"],
)
def test_text_that_is_not_of_ss(text: str) -> None:
    with pytest.raises(HostError, match="ss: no connection in"):
        ss.parse(text)
    assert ss.parse("State Recv-Q Send-Q Local Address:Port Peer Address:Port\n" + text) == []


def test_no_connections_at_all() -> None:
    assert ss.parse("") == []


def test_an_address() -> None:
    assert address("10.0.0.1") == address(bytes([10, 0, 0, 1])) == address("::ffff:10.0.0.1")
    with pytest.raises(HostError, match=r"'10\.0\.0\.1\.2' is not an address"):
        address("10.0.0.1.2")


PARSERS: dict[str, Callable[[str], Any]] = {
    "net_dev": lambda text: net_dev.parse(text, "eth0"),
    "host_tcp": lambda text: net_stat.host_tcp(text, text),
    "tables": net_stat.tables,
    "named": net_stat.named_counters,
    "ethtool": lambda text: net_stat.named_counters(text, separator=":"),
    "ss": ss.parse,
    "infiniband": lambda text: infiniband.parse(text, sent=text, received=text, rate=text),
    "node_exporter": lambda text: node_exporter.interface(Parser().parse(text), "eth0"),
    "node_infiniband": lambda text: node_exporter.infiniband(Parser().parse(text), "mlx5_0", 1),
}


@pytest.mark.parametrize("name", PARSERS)
def test_a_text_cut_anywhere_raises_nothing_but_its_own_error(name: str) -> None:
    for text in (NET_DEV, SNMP, NETSTAT, SS, NODE):
        for end in range(len(text)):
            try:
                PARSERS[name](text[:end])
            except HostError:
                continue


words = st.sampled_from(
    ["eth0:", "Tcp:", "TcpExt:", "OutSegs", "RetransSegs", "0", "-1", "9" * 30, "10.1.0.5:1", "::1",
     "\t", "\n", " ", "rtt:1e5/x", "cwnd:", "retrans:/", "[", "]:", "%", "bytes_sent:9", "\0", "٣"]
)  # fmt: skip


@given(text=st.text(max_size=200) | st.lists(words, max_size=40).map(" ".join))
def test_hostile_text_raises_nothing_but_its_own_error(text: str) -> None:
    for parse in PARSERS.values():
        try:
            parse(text)
        except HostError:
            continue


def _message(kind: int, body: bytes, sequence: int = 1) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 0, sequence, 0) + body


def _connection(*, cookie: int = 7, info: bytes = b"", family: int = 2, state: int = 1) -> bytes:
    local = bytes([10, 1, 0, 5]) + bytes(12)
    remote = bytes([10, 2, 0, 9]) + bytes(12)
    body = struct.pack("=BBBB", family, state, 0, 0) + struct.pack(">HH", 40000, 8998)
    body += local + remote + struct.pack("=IQIIIII", 0, cookie, 0, 0, 0, 0, 0)
    for kind, value in ((4, b"cubic\0"), (2, info)):
        padding = bytes(-len(value) % 4)
        body += struct.pack("=HH", 4 + len(value), kind) + value + padding
    return _message(20, body)


def _tcp_info(**fields: int) -> bytes:
    """As long as its last field needs, all else zero."""
    info = bytearray(max(at + 8 for at, _ in inet_diag._FIELDS.values()))
    for name, value in fields.items():
        at, kind = inet_diag._FIELDS[name]
        struct.pack_into(f"={kind}", info, at, value)
    return bytes(info)


DONE = _message(3, struct.pack("=i", 0))


def test_inet_diag() -> None:
    info = _tcp_info(
        rtt_us=250_000, min_rtt_us=200, sent_bytes=2**40, acked_bytes=5, total_retransmitted=3
    )
    [found], done = inet_diag.parse(_connection(info=info) + DONE, sequence=1)
    assert done
    assert (found.local_port, found.remote, found.remote_port) == (
        40000,
        ip_address("10.2.0.9"),
        8998,
    )
    assert (found.rtt_s, found.min_rtt_s) == (0.25, 0.0002)
    assert (found.sent_bytes, found.acked_bytes, found.segments_retransmitted) == (2**40, 5, 3)
    assert (found.congestion_control, found.delivery_bytes_per_s) == ("cubic", None)


def test_inet_diag_of_an_older_kernel_is_shorter() -> None:
    info = _tcp_info(rtt_us=100, acked_bytes=5, sent_bytes=6)[:136]
    [found], _ = inet_diag.parse(_connection(info=info))
    assert (found.sent_bytes, found.retransmitted_bytes, found.min_rtt_s) == (5, None, None)
    [none], _ = inet_diag.parse(_connection(info=b""))
    assert (none.sent_bytes, none.rtt_s, none.segments_retransmitted) == (None, None, None)


def test_inet_diag_answers_of_others_are_read_past() -> None:
    alien = _message(20, b"", sequence=9)
    assert inet_diag.parse(alien + DONE, sequence=1) == ([], True)


@pytest.mark.parametrize("kind", [2, 3], ids=["error", "end of the dump"])
def test_a_refusal_is_an_error_and_not_an_empty_host(kind: int) -> None:
    with pytest.raises(HostError, match="refused: No such file or directory"):
        inet_diag.parse(_message(kind, struct.pack("=i", -2) + bytes(16)))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (struct.pack("=IHHII", 4, 20, 0, 1, 0), "a message of 4 bytes"),
        (struct.pack("=IHHII", 999, 20, 0, 1, 0), "a message of 999 bytes in 16"),
        (_message(20, bytes(20)), "a connection of 20 bytes"),
        (_connection(family=99), "address family 99"),
        (DONE[:7], "7 bytes are no message"),
    ],
)
def test_bytes_that_are_no_answer(data: bytes, why: str) -> None:
    with pytest.raises(HostError, match=why):
        inet_diag.parse(data)


def test_an_answer_cut_anywhere_raises_nothing_but_its_own_error() -> None:
    whole = _connection(info=_tcp_info(rtt_us=1)) + DONE
    for end in range(len(whole)):
        try:
            _, done = inet_diag.parse(whole[:end])
            assert not done
        except HostError:
            continue


@given(data=st.binary(max_size=300), at=st.integers(0, 400), flip=st.integers(1, 255))
def test_hostile_bytes_raise_nothing_but_their_own_error(data: bytes, at: int, flip: int) -> None:
    whole = bytearray(_connection(info=_tcp_info(rtt_us=1)) + DONE)
    whole[at % len(whole)] ^= flip
    for answer in (data, _message(20, data), bytes(whole)):
        try:
            inet_diag.parse(answer)
        except HostError:
            continue
