"""Zstandard with contexts that are reused, one a thread.

A context costs more to make than a small body to pack, and must never be used by two threads at a
time: both release the interpreter's lock while they work, and wrote into each other's.
"""

from __future__ import annotations

import threading

import zstandard


class Zstd(threading.local):
    """Compresses at `level`. Each thread that uses it gets contexts of its own."""

    def __init__(self, level: int) -> None:
        # What is packed here is unpacked here: four bytes that say so, of each of twenty columns,
        # are a hundredth of what a chunk takes.
        parameters = zstandard.ZstdCompressionParameters(
            compression_level=level, format=zstandard.FORMAT_ZSTD1_MAGICLESS
        )
        self._compressor = zstandard.ZstdCompressor(compression_params=parameters)
        self._decompressor = zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS)

    def compress(self, data: bytes) -> bytes:
        return self._compressor.compress(data)

    def decompress(self, packed: bytes, *, most_bytes: int) -> bytes:
        """Raises zstandard.ZstdError for damaged bytes, and for what would be too large."""
        return self._decompressor.decompress(packed, max_output_size=most_bytes)
