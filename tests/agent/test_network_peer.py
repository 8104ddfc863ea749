"""Connections of one peer: totals that never fall, on paper and with the real kernel."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.agent import link_config
from telemetry.hosts import inet_diag
from telemetry.hosts.tcp import Connection, Peer, PeerMeter
from tests.agent import kernel

REMOTE = Peer(networks=(ip_network("10.2.0.0/16"),))


def _connection(key: int = 1, **values: Any) -> Connection:
    told: dict[str, Any] = {
        "local_port": 40000,
        "remote": ip_address("10.2.0.9"),
        "remote_port": 8998,
        "sent_bytes": 0,
        "acked_bytes": 0,
        "received_bytes": 0,
        "retransmitted_bytes": 0,
        "segments_sent": 0,
        "segments_retransmitted": 0,
    }
    return Connection(key=key, **(told | values))


@pytest.mark.parametrize(
    ("peer", "mine"),
    [
        (REMOTE, True),
        (Peer((ip_network("10.3.0.0/16"),)), False),
        (Peer((ip_network("10.3.0.0/16"), ip_network("10.2.0.9/32"))), True),
        (Peer((ip_network("10.2.0.0/16"),), remote_ports=frozenset({8998})), True),
        (Peer((ip_network("10.2.0.0/16"),), remote_ports=frozenset({22})), False),
        (Peer((ip_network("10.2.0.0/16"),), local_ports=frozenset({40000})), True),
        (Peer((ip_network("10.2.0.0/16"),), frozenset({22}), frozenset({40000})), True),
        (Peer((ip_network("::/0"),)), False),
    ],
)
def test_whose_a_connection_is(peer: Peer, mine: bool) -> None:
    assert peer.has(_connection()) is mine


def test_totals_count_from_the_first_reading_and_never_fall() -> None:
    meter = PeerMeter(REMOTE)
    first = meter.read([_connection(1, sent_bytes=5_000_000, segments_sent=100)])
    assert (first.sent_bytes, first.segments_sent) == (0.0, 0.0), "since when it counts is unknown"
    second = meter.read(
        [
            _connection(1, sent_bytes=5_001_000, segments_sent=101, segments_retransmitted=1),
            _connection(2, sent_bytes=500, segments_sent=1),
            _connection(3, sent_bytes=99, remote=ip_address("10.9.0.1")),
        ]
    )
    assert second.sent_bytes == 1500.0, "a new connection sent all of it since"
    assert (second.segments_sent, second.segments_retransmitted) == (2.0, 1.0)
    assert second.n_connections == 2
    third = meter.read([_connection(2, sent_bytes=700, segments_sent=1)])
    assert third.sent_bytes == 1700.0, "what a closed one carried stays"
    closed = meter.read([])
    assert (closed.sent_bytes, closed.n_connections, closed.rtt_s) == (1700.0, 0, None)


def test_a_port_used_again_is_another_connection() -> None:
    """By `ss` a connection is its two ends: a counter that fell is of a new one."""
    meter = PeerMeter(REMOTE)
    meter.read([])
    meter.read([_connection(1, sent_bytes=900)])
    assert meter.read([_connection(1, sent_bytes=100)]).sent_bytes == 1000.0


def test_segments_wrap_at_32_bits_within_minutes() -> None:
    meter = PeerMeter(REMOTE)
    meter.read([_connection(1, segments_sent=2**32 - 296)])
    assert meter.read([_connection(1, segments_sent=1000)]).segments_sent == 1296.0


def test_no_connections_are_a_measured_zero_and_an_untold_counter_is_missing() -> None:
    meter = PeerMeter(REMOTE)
    assert meter.read([]).sent_bytes == 0.0
    untold = meter.read([_connection(1, sent_bytes=None), _connection(2, sent_bytes=10)])
    assert (untold.sent_bytes, untold.received_bytes) == (None, 0.0)


def test_round_trips_weigh_what_was_sent_over_them() -> None:
    meter = PeerMeter(REMOTE)
    idle = _connection(1, rtt_s=0.5, min_rtt_s=0.004)
    busy = _connection(2, rtt_s=0.010, min_rtt_s=0.005)
    assert meter.read([idle, busy]).rtt_s == pytest.approx(0.255)
    sending = _connection(2, rtt_s=0.020, min_rtt_s=0.005, sent_bytes=1000)
    found = meter.read([idle, sending])
    assert (found.rtt_s, found.min_rtt_s) == (0.020, 0.004)


def test_windows_rates_and_algorithms_of_all_connections() -> None:
    meter = PeerMeter(REMOTE)
    window = {"congestion_window_segments": 10, "segment_bytes": 1448}
    meter.read([])
    found = meter.read(
        [
            _connection(
                1,
                sent_bytes=5,
                delivery_bytes_per_s=1e6,
                congestion_control="cubic",
                **window,
            ),
            _connection(
                2,
                sent_bytes=5,
                delivery_bytes_per_s=2e6,
                congestion_control="bbr",
                established=False,
                **window,
            ),
            _connection(3, delivery_bytes_per_s=9e9, congestion_control="bbr", **window),
        ]
    )
    assert found.congestion_window_bytes == 30 * 1448.0
    assert found.delivery_bytes_per_s == 3e6, "an idle one shows the rate of when it last sent"
    assert (found.congestion_control, found.n_connections) == ("bbr,cubic", 2)


@given(
    readings=st.lists(
        st.dictionaries(
            st.integers(0, 3),
            st.none() | st.integers(0, 10**6) | st.integers(0, 2**64 - 1),
            max_size=4,
        ),
        max_size=12,
    )
)
def test_totals_never_fall_whatever_connections_do(
    readings: list[dict[int, int | None]],
) -> None:
    meter, last = PeerMeter(REMOTE), 0.0
    for reading in readings:
        found = meter.read([_connection(key, sent_bytes=sent) for key, sent in reading.items()])
        if found.sent_bytes is not None:
            assert found.sent_bytes >= last
            last = found.sent_bytes


@contextmanager
def _loopback(n: int) -> Iterator[tuple[int, list[socket.socket], list[socket.socket]]]:
    """(port, clients, servers) of `n` connections through the real kernel."""
    with ExitStack() as stack:
        if why := kernel.why_silent():
            pytest.skip(why)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        clients, servers = [], []
        for _ in range(n):
            client = socket.create_connection(listener.getsockname())
            clients.append(stack.enter_context(client))
            servers.append(stack.enter_context(listener.accept()[0]))
        yield listener.getsockname()[1], clients, servers


def _send(sender: socket.socket, receiver: socket.socket, n_bytes: int) -> None:
    """All of it, and read at the other end: by then the kernel has counted it."""
    left, piece = n_bytes, b"x" * 16384
    while left:
        sender.sendall(piece[: min(left, len(piece))])
        receiver.recv(min(left, len(piece)), socket.MSG_WAITALL)
        left -= min(left, len(piece))


def test_the_real_kernel_counts_what_was_sent() -> None:
    with _loopback(3) as (port, clients, servers):
        peer = Peer((ip_network("127.0.0.0/8"),), remote_ports=frozenset({port}))
        meter = PeerMeter(peer)
        before = meter.read(inet_diag.read(timeout_s=5.0))
        assert (before.n_connections, before.sent_bytes) == (3, 0.0)
        for client, server, n_bytes in zip(clients, servers, (1_000_000, 50_000, 1), strict=True):
            _send(client, server, n_bytes)
        _send(servers[0], clients[0], 7_000)
        after = meter.read(inet_diag.read(timeout_s=5.0))
        # Sent is acknowledged or sent again: on a loopback that is busy some may be.
        assert after.sent_bytes is not None
        assert after.retransmitted_bytes is not None
        assert after.sent_bytes - after.retransmitted_bytes == 1_050_001.0
        assert after.received_bytes == 7_000.0
        assert after.segments_sent is not None
        assert after.segments_sent >= 3
        assert after.rtt_s is not None
        assert 0.0 < after.rtt_s < 60.0
        assert after.congestion_window_bytes is not None
        assert after.congestion_control
        clients[0].close()
        servers[0].close()
        _send(clients[1], servers[1], 1000)
        gone = meter.read(inet_diag.read(timeout_s=5.0))
        assert (gone.n_connections, gone.received_bytes) == (2, 7_000.0)
        assert gone.sent_bytes is not None
        assert gone.sent_bytes >= after.sent_bytes + 1000


@pytest.mark.parametrize(
    ("networks", "found"),
    [
        (["127.0.0.0/8"], True),
        (["127.0.0.1"], True),
        (["10.2.0.0/16"], False),
        (["10.2.0.0/16", "127.0.0.0/8"], True),
        (["127.0.0.0/8", "10.2.0.0/16", "fd00::/8"], True),
        (["10.2.0.0/16", "fd00::/8"], False),
        (["fd00::/8"], False),
        (["::1/128", "127.0.0.1/32"], True),
        ([*(f"fd00:{n}::/32" for n in range(link_config.MAX_PEERS - 1)), "127.0.0.0/8"], True),
    ],
)
def test_the_real_kernel_leaves_out_other_peers(networks: list[str], found: bool) -> None:
    with _loopback(2) as (port, _, _):
        wanted = [ip_network(network) for network in networks]
        with_them = inet_diag.read(wanted, timeout_s=5.0)
        assert sum(c.remote_port == port for c in with_them) == 2 * found
        assert found or not any(c.remote.is_loopback for c in with_them)


def test_the_real_kernel_takes_ipv4_in_ipv6_for_ipv4() -> None:
    if why := kernel.why_silent():
        pytest.skip(why)
    try:
        listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    except (OSError, ValueError) as exc:
        pytest.skip(str(exc))
    with listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), listener.accept()[0]:
            found = inet_diag.read([ip_network("127.0.0.1/32")], timeout_s=5.0)
            # Our end is IPv4, the listener's is IPv4 in IPv6.
            assert sum(port in (c.remote_port, c.local_port) for c in found) == 2


def test_the_real_kernel_is_read_as_pyroute2_reads_it() -> None:
    """An independent decoder of the same structures, on the same connections."""
    diag = pytest.importorskip("pyroute2.netlink.diag")
    with _loopback(2) as (port, clients, servers):
        _send(clients[0], servers[0], 30_000)
        _send(servers[1], clients[1], 500)
        mine = {c.local_port: c for c in inet_diag.read(timeout_s=5.0) if c.remote_port == port}
        with diag.DiagSocket() as netlink:
            netlink.bind()
            theirs = netlink.get_sock_stats(
                family=socket.AF_INET, states=1 << diag.SS_ESTABLISHED, extensions=0b1010
            )
        compared = 0
        for message in theirs:
            if message["idiag_dport"] != port:
                continue
            found, info = mine[message["idiag_sport"]], message.get_attr("INET_DIAG_INFO")
            assert found.sent_bytes == info["tcpi_bytes_sent"]
            assert found.acked_bytes == info["tcpi_bytes_acked"]
            assert found.received_bytes == info["tcpi_bytes_received"]
            assert found.retransmitted_bytes == info["tcpi_bytes_retrans"]
            assert found.segments_sent == info["tcpi_data_segs_out"]
            assert found.segments_retransmitted == info["tcpi_total_retrans"]
            assert found.rtt_s == info["tcpi_rtt"] / 1e6
            assert found.min_rtt_s == info["tcpi_min_rtt"] / 1e6
            assert found.congestion_window_segments == info["tcpi_snd_cwnd"]
            assert found.segment_bytes == info["tcpi_snd_mss"]
            assert (found.delivery_bytes_per_s or 0) == info["tcpi_delivery_rate"]
            assert found.congestion_control == message.get_attr("INET_DIAG_CONG")
            compared += 1
        assert compared == 2
