"""Packing in several threads at a time: what one of them does leaves the others alone."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard

from telemetry.zstd import Zstd

N_THREADS = 8


def test_threads_do_not_write_into_each_others_answers() -> None:
    shared = Zstd(level=1)
    # Half of it does not shrink, so that packing and unpacking take long enough to overlap.
    bodies = [(bytes([i]) * 40_000 + os.urandom(40_000)) * 4 for i in range(N_THREADS)]

    def round_trips(body: bytes) -> bool:
        return all(
            shared.decompress(shared.compress(body), most_bytes=1 << 20) == body for _ in range(50)
        )

    with ThreadPoolExecutor(N_THREADS) as pool:
        assert all(pool.map(round_trips, bodies))


def test_what_is_damaged_or_too_large_is_refused() -> None:
    packed = Zstd(level=1).compress(b"x" * 1000)
    assert Zstd(level=1).decompress(packed, most_bytes=1000) == b"x" * 1000
    with pytest.raises(zstandard.ZstdError):
        Zstd(level=1).decompress(packed[:-3] + b"abc"[:1], most_bytes=1000)
