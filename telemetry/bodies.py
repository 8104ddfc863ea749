"""The bytes of one batch in the landing zone: its msgpack, zstd-compressed.

Names make up most of a batch, and they repeat: a quarter of the bytes for ten microseconds, which
the write-ahead log gives back.
"""

from __future__ import annotations

from typing import Final

import msgspec
import zstandard

from telemetry import wire

MAX_BODY_BYTES: Final = 1 << 28
"""What one body may unpack to: a bound against a damaged row."""

_compressor: Final = zstandard.ZstdCompressor(level=1)
_decompressor: Final = zstandard.ZstdDecompressor()
_decode: Final = msgspec.msgpack.Decoder(wire.Batch).decode


def pack(encoded: bytes) -> bytes:
    """The row's bytes of a batch that `wire.encode` wrote."""
    return _compressor.compress(encoded)


def unpack(body: bytes) -> wire.Batch:
    """The batch again."""
    return _decode(_decompressor.decompress(body, max_output_size=MAX_BODY_BYTES))
