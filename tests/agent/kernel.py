"""Whether this machine's kernel tells of sockets, asked without the code under test."""

from __future__ import annotations

import socket
import struct

_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _ERROR = 4, 20, 2
_REQUEST_DUMP = 0x301


def why_silent() -> str:
    """Why it does not answer over sock_diag (7); empty where it does."""
    # linux/netlink.h's head, then inet_diag_req_v2: TCP of IPv4 in every state, no addresses.
    body = struct.pack("=BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0xFFF) + bytes(48)
    head = struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as diag:
            diag.settimeout(5.0)
            diag.send(head + body)
            [kind] = struct.unpack_from("=H", diag.recv(65_536), 4)
    except (AttributeError, OSError) as exc:
        return f"no sock_diag here: {exc}"
    return "the kernel refuses sock_diag" if kind == _ERROR else ""
