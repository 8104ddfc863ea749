"""A remote-write 1.0 request out of named series: what every receiver understands.

Specification: https://prometheus.io/docs/specs/prw/remote_write_spec/
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

import cramjam

from telemetry.doors.protobuf import put_bytes, put_varint

HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_DOUBLE = struct.Struct("<d").pack


class Value(NamedTuple):
    """One sample of one series; `labels` without the name."""

    name: str
    labels: Mapping[str, str]
    value: float
    at_ms: int


def write_request(values: Iterable[Value]) -> bytes:
    """The `prometheus.WriteRequest` of the values, one series each, not compressed."""
    out: list[bytes] = []
    was_ms, time = 0, put_varint(0)
    for name, labels, value, at_ms in values:
        if at_ms != was_ms:  # those of one reading share it
            was_ms, time = at_ms, put_varint(at_ms)
        sample = b"\x09" + _DOUBLE(value) + b"\x10" + time
        series = _labels(name, labels) + b"\x12" + put_varint(len(sample)) + sample
        out += (b"\x0a", put_varint(len(series)), series)
    return b"".join(out)


def compressed(message: bytes) -> bytes:
    """The message as one snappy block, the only encoding the protocol has."""
    return bytes(cramjam.snappy.compress_raw(message))


def _labels(name: str, labels: Mapping[str, str]) -> bytes:
    # Sorted by name, which the protocol demands; a label without value is no label.
    pairs = sorted([("__name__", name), *labels.items()])
    return b"".join([_label(*pair) for pair in pairs if pair[1]])


@lru_cache(maxsize=20_000)  # the same few thousand, every ten seconds
def _label(name: str, value: str) -> bytes:
    return put_bytes(1, put_bytes(1, name.encode()) + put_bytes(2, value.encode()))
