"""What `ss -tin` prints, as connections: the fallback where netlink is refused.

A connection is a line with its queues and its two ends, before them its state where `ss` was asked
for more than one; what TCP knows of it stands indented below, or behind it (`-O`). Rates are in
bits a second, with or without K, M or G (thousands), times in ms.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from telemetry.hosts.errors import HostError, count
from telemetry.hosts.tcp import Connection, address

COMMAND = ("ss", "-t", "-i", "-n")
MAX_LINES = 400_000
_ESTABLISHED = ("ESTAB", "ESTABLISHED")
_RATE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,9})?)([KMGT]?)bps")
_PER_S = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_NUMBER = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,9})?")
_OPTIONS = frozenset(("ts", "sack", "ecn", "ecnseen", "fastopen"))
"""Bare words that stand before the name of the congestion control."""
_COUNTS = {
    "bytes_sent": "sent_bytes",
    "bytes_acked": "acked_bytes",
    "bytes_received": "received_bytes",
    "bytes_retrans": "retransmitted_bytes",
    "data_segs_out": "segments_sent",
    "cwnd": "congestion_window_segments",
    "mss": "segment_bytes",
}


def parse(text: str) -> list[Connection]:
    """The connections of `text`. Raises HostError.

    A line that cannot be read is left out: numbers of a connection are unknown then, never zero.
    But text that has lines and no connection nor the heading of `ss` is not its output.
    """
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        raise HostError(f"ss: more than {MAX_LINES} lines")
    found: list[tuple[Connection, dict[str, Any]]] = []
    headed = not text.strip()
    for line in lines:
        if "Local Address" in line:
            headed = True
        elif line[:1].isspace():
            if found:
                found[-1][1].update(_info(line.split()))
        else:
            words = line.split()
            behind = words[4:] if words[:1] and words[0].isdigit() else words[5:]
            if (connection := _connection(words)) is not None:
                found.append((connection, _info(behind)))
    if not (found or headed):
        raise HostError(f"ss: no connection in {lines[0][:60]!r}")
    idle = _idle(text)
    return [
        replace(connection, **_whole(told, idle)) if told else connection
        for connection, told in found
    ]


def _idle(text: str) -> dict[str, int]:
    """What a connection of `text` counts where nothing is said: `ss` leaves out what is zero.

    Whether it knows a counter at all shows in the other connections.
    """
    names = ["segments_retransmitted"]
    if "bytes_acked:" in text or "bytes_received:" in text:
        names += ["acked_bytes", "received_bytes"]
    if "bytes_sent:" in text:
        names += ["sent_bytes", "retransmitted_bytes"]
    if "data_segs_" in text:
        names.append("segments_sent")
    return dict.fromkeys(names, 0)


def _whole(told: dict[str, Any], idle: dict[str, int]) -> dict[str, Any]:
    whole = {**idle, **told}
    # Before Linux 4.19 bytes are counted when they were acknowledged.
    whole.setdefault("sent_bytes", whole.get("acked_bytes"))
    return whole


def _connection(words: Sequence[str]) -> Connection | None:
    stated = bool(words) and not words[0].isdigit()
    state, ends = ("ESTAB", words) if not stated else (words[0], words[1:])
    if len(ends) < 4 or not (ends[0].isdigit() and ends[1].isdigit()):
        return None
    try:
        local_port = _port(ends[2])
        remote_port = _port(ends[3])
        remote = address(ends[3].rpartition(":")[0].strip("[]"))
    except HostError:
        return None  # A listening socket has `*` for its peer.
    return Connection(
        key=(ends[2], ends[3]),
        local_port=local_port,
        remote=remote,
        remote_port=remote_port,
        established=state in _ESTABLISHED,
    )


def _port(end: str) -> int:
    port = count(end.rpartition(":")[2], "port")
    if port > 65535:
        raise HostError(f"port {port}")
    return port


def _info(words: Sequence[str]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for word, following in pairwise([*words, ""]):
        name, colon, value = word.partition(":")
        if not colon:
            if word == "delivery_rate":
                told["delivery_bytes_per_s"] = _bytes_per_s(following)
            elif not told and _is_name(word):
                told["congestion_control"] = word[:16]
        elif name in _COUNTS:
            told[_COUNTS[name]] = _count(value)
        elif name == "retrans":  # outstanding now / since it opened
            told["segments_retransmitted"] = _count(value.rpartition("/")[2])
        elif name == "rtt":  # smoothed / its deviation
            told["rtt_s"] = _ms(value.partition("/")[0])
        elif name == "minrtt":
            told["min_rtt_s"] = _ms(value)
    return told


def _is_name(word: str) -> bool:
    return word not in _OPTIONS and word.isascii() and word.replace("_", "").isalnum()


def _count(text: str) -> int | None:
    try:
        return count(text, "")
    except HostError:
        return None


def _ms(text: str) -> float | None:
    return float(text) / 1e3 if _NUMBER.fullmatch(text) else None


def _bytes_per_s(text: str) -> float | None:
    match = _RATE.fullmatch(text)
    if match is None:
        return None
    rate = float(match[1]) * _PER_S[match[2]] / 8.0
    return rate if math.isfinite(rate) else None
