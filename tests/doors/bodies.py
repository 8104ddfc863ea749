"""Remote-write 2.0 and OTLP bodies, written by hand."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from telemetry.doors import remote_write_encode
from telemetry.doors.protobuf import put_bytes, put_varint

STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0_0000_0000_0002))[0]


def v1(*series: tuple[str, Mapping[str, str], float, int]) -> bytes:
    """A compressed 1.0 request of (name, labels, value, at_ms)."""
    values = [remote_write_encode.Value(*entry) for entry in series]
    return remote_write_encode.compressed(remote_write_encode.write_request(values))


def sample(value: float, at_ms: int, start_ms: int = 0) -> bytes:
    body = b"\x09" + struct.pack("<d", value) + b"\x10" + put_varint(at_ms)
    return body + (b"\x18" + put_varint(start_ms) if start_ms else b"")


def v2(
    series: Sequence[tuple[Mapping[str, str], Sequence[tuple[float, int]]]], **more: Any
) -> bytes:
    """An uncompressed 2.0 request; `created_ms` and `start_ms` stand where each version puts it."""
    symbols = [""]
    messages = []
    for labels, samples in series:
        refs = b""
        for text in [text for pair in labels.items() for text in pair]:
            if text not in symbols:
                symbols.append(text)
            refs += put_varint(symbols.index(text))
        body = put_bytes(1, refs)
        for value, at_ms in samples:
            body += put_bytes(2, sample(value, at_ms, more.get("start_ms", 0)))
        if "created_ms" in more:
            body += b"\x30" + put_varint(more["created_ms"])
        messages.append(put_bytes(5, body))
    return b"".join(put_bytes(4, symbol.encode()) for symbol in symbols) + b"".join(messages)
