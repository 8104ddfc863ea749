"""TCP connections from the kernel itself, over netlink: `inet_diag` with `tcp_info`.

Layouts are of linux/netlink.h, linux/inet_diag.h, linux/sock_diag.h and linux/tcp.h. The structure
`tcp_info` only ever grew at its end, so a field is there if the kernel sent enough bytes for it.
No privilege is needed; connections of other network namespaces are not seen.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Sequence

from telemetry.hosts.errors import HostError
from telemetry.hosts.tcp import Connection, Network, address

NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_DUMP = 0x1 | 0x100 | 0x200  # NLM_F_REQUEST | NLM_F_ROOT | NLM_F_MATCH
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_REQUEST = struct.Struct("=BBBxI48x")  # family, protocol, extensions, states, any socket
_SOCKET = struct.Struct("=BBxx")  # family, state
_PORTS = struct.Struct(">HH")
_STEP = struct.Struct("=BBH")  # code, bytes to go on by where it holds, and where it does not
_CONDITION = struct.Struct("=BBxxi")  # family, length of the prefix, port
_BYTECODE, _JUMP, _REMOTE_IS = 1, 1, 8
_ANY_PORT = -1
_ATTRIBUTE = struct.Struct("=HH")
_INFO, _CONGESTION = 2, 4
_EXTENSIONS = 1 << (_INFO - 1) | 1 << (_CONGESTION - 1)
_MESSAGE_BYTES = 72
_ESTABLISHED = 1
# Those that carry data or may still: without SYN_*, TIME_WAIT, CLOSE and LISTEN.
_STATES = sum(1 << state for state in (_ESTABLISHED, 4, 5, 8, 9, 11))
_UNKNOWN_U32 = 2**32 - 1
_BUFFER_BYTES = 256 * 1024
MAX_CONNECTIONS = 200_000
_ADDRESS_BYTES = {socket.AF_INET: 4, socket.AF_INET6: 16}
_FIELDS = {
    "segment_bytes": (16, "I"),
    "rtt_us": (68, "I"),
    "congestion_window_segments": (80, "I"),
    "total_retransmitted": (100, "I"),
    "acked_bytes": (120, "Q"),
    "received_bytes": (128, "Q"),
    "min_rtt_us": (148, "I"),
    "data_segments_sent": (156, "I"),
    "delivery_bytes_per_s": (160, "Q"),
    "sent_bytes": (200, "Q"),
    "retransmitted_bytes": (208, "Q"),
}
"""Offset and type of what is read of `tcp_info`. Bytes acked and received came with Linux 4.1,
segments and rates with 4.6 to 4.9, bytes sent with 4.19."""
_FORMATS = {name: (at, struct.Struct(f"={kind}")) for name, (at, kind) in _FIELDS.items()}


def request(family: int, sequence: int, networks: Sequence[Network] = ()) -> bytes:
    """A dump of the TCP connections of one address family; all of them, or those with `networks`.

    The kernel leaves out the others, which a gateway has by the thousand. It takes IPv4 in IPv6
    for IPv4, and more than was asked for where a network is everything.
    """
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, _EXTENSIONS, _STATES)
    if networks:
        code = _bytecode(networks)
        body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(code), _BYTECODE) + code
    length = _HEADER.size + len(body)
    return _HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _DUMP, sequence, 0) + body


def _bytecode(networks: Sequence[Network]) -> bytes:
    """`inet_diag_bc_op`: one network or the next or ..., written from the last to the first.

    A program that ends just behind its end accepts, one that goes four bytes further refuses.
    """
    code = b""
    for network in reversed(networks):
        family = socket.AF_INET if network.version == 4 else socket.AF_INET6
        condition = _CONDITION.pack(family, network.prefixlen, _ANY_PORT)
        condition += network.network_address.packed
        size = _STEP.size + len(condition)
        accept = _STEP.pack(_JUMP, _STEP.size, _STEP.size + len(code)) if code else b""
        # Where it does not hold: past the jump to what follows, or past the end.
        step = _STEP.pack(_REMOTE_IS, size, size + _STEP.size)
        code = step + condition + accept + code
    return code


def parse(data: bytes, *, sequence: int | None = None) -> tuple[list[Connection], bool]:
    """(connections, whether the dump ends here) of one datagram of the kernel's answer.

    Raises HostError where the kernel refused, and for bytes that are no such answer.
    """
    found: list[Connection] = []
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _, answered, _ = _HEADER.unpack_from(data, at)
        if not _HEADER.size <= length <= len(data) - at:
            raise HostError(f"inet_diag: a message of {length} bytes in {len(data) - at}")
        body = data[at + _HEADER.size : at + length]
        at += _aligned(length)
        if sequence is not None and answered != sequence:
            continue
        if kind in (_ERROR, _DONE):
            _check_error(body)
            return found, True
        if kind == _SOCK_DIAG_BY_FAMILY:
            found.append(_connection(body))
    if at < len(data):
        raise HostError(f"inet_diag: {len(data) - at} bytes are no message")
    return found, False


def read(networks: Sequence[Network] = (), *, timeout_s: float) -> list[Connection]:
    """The TCP connections of this network namespace, with `networks` or all. Raises HostError."""
    found: list[Connection] = []
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG) as netlink:
            netlink.settimeout(timeout_s)
            for sequence, family in enumerate(_ADDRESS_BYTES, 1):
                netlink.sendto(request(family, sequence, networks), (0, 0))
                done = False
                while not done:
                    some, done = parse(netlink.recv(_BUFFER_BYTES), sequence=sequence)
                    found += some
                    if len(found) > MAX_CONNECTIONS:
                        raise HostError(f"inet_diag: more than {MAX_CONNECTIONS} connections")
    except (OSError, AttributeError) as exc:
        # AttributeError: a system without netlink has no AF_NETLINK.
        raise HostError(f"inet_diag is refused: {exc}") from None
    return found


def _check_error(body: bytes) -> None:
    """Raises what an error, or the end of a dump, says in its first four bytes."""
    code = struct.unpack_from("=i", body)[0] if len(body) >= 4 else 0
    if code < 0:
        raise HostError(f"inet_diag is refused: {os.strerror(-code)}")


def _connection(body: bytes) -> Connection:
    if len(body) < _MESSAGE_BYTES:
        raise HostError(f"inet_diag: a connection of {len(body)} bytes")
    family, state = _SOCKET.unpack_from(body)
    size = _ADDRESS_BYTES.get(family)
    if size is None:
        raise HostError(f"inet_diag: address family {family}")
    local_port, remote_port = _PORTS.unpack_from(body, 4)
    remote = address(body[24 : 24 + size])
    cookie = body[44:52]
    info, congestion = b"", None
    for kind, value in _attributes(body, _MESSAGE_BYTES):
        if kind == _INFO:
            info = value
        elif kind == _CONGESTION:
            congestion = value.rstrip(b"\0").decode("ascii", errors="replace")[:16]
    told = _told(info)
    delivery = told.get("delivery_bytes_per_s")
    return Connection(
        key=cookie,
        local_port=local_port,
        remote=remote,
        remote_port=remote_port,
        established=state == _ESTABLISHED,
        sent_bytes=told.get("sent_bytes", told.get("acked_bytes")),
        acked_bytes=told.get("acked_bytes"),
        received_bytes=told.get("received_bytes"),
        retransmitted_bytes=told.get("retransmitted_bytes"),
        segments_sent=told.get("data_segments_sent"),
        segments_retransmitted=told.get("total_retransmitted"),
        rtt_s=_seconds(told.get("rtt_us")),
        min_rtt_s=_seconds(told.get("min_rtt_us")),
        congestion_window_segments=told.get("congestion_window_segments"),
        segment_bytes=told.get("segment_bytes"),
        delivery_bytes_per_s=None if not delivery else float(delivery),
        congestion_control=congestion or None,
    )


def _attributes(body: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    while at + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        if not _ATTRIBUTE.size <= length <= len(body) - at:
            raise HostError(f"inet_diag: an attribute of {length} bytes in {len(body) - at}")
        yield kind, body[at + _ATTRIBUTE.size : at + length]
        at += _aligned(length)


def _told(info: bytes) -> dict[str, int]:
    return {
        name: form.unpack_from(info, at)[0]
        for name, (at, form) in _FORMATS.items()
        if at + form.size <= len(info)
    }


def _seconds(microseconds: int | None) -> float | None:
    # Zero and all ones: no round trip was measured yet.
    if microseconds is None or microseconds in (0, _UNKNOWN_U32):
        return None
    return microseconds / 1e6


def _aligned(length: int) -> int:
    return (length + 3) & ~3
