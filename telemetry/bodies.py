"""The bytes of one batch in the landing zone: its msgpack, zstd-compressed.

Names make up most of a batch, and they repeat: a quarter of the bytes for five microseconds, which
the write-ahead log gives back. Level 1 takes eight for the same bytes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from telemetry import wire
from telemetry.zstd import Zstd

MAX_BODY_BYTES: Final = 1 << 28
"""What one body may unpack to: a bound against a damaged row."""

_zstd: Final = Zstd(level=-1)
_decode: Final = msgspec.msgpack.Decoder(wire.Batch).decode


def pack(encoded: bytes) -> bytes:
    """The row's bytes of a batch that `wire.encode` wrote."""
    return _zstd.compress(encoded)


def unpack(body: bytes) -> wire.Batch:
    """The batch again."""
    return _decode(_zstd.decompress(body, most_bytes=MAX_BODY_BYTES))
