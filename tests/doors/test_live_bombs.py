"""Bodies made to hurt, sent to a live console: refused with a clear 4xx, memory flat (S-14)."""

from __future__ import annotations

import gzip

import cramjam
import pytest

from telemetry.doors.protobuf import put_bytes
from tests import servers
from tests.doors.test_receiver import JSON, PROTOBUF, SNAPPY, V2

MAX_GROWTH_BYTES = 100_000_000


def snappy(body: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(body))


NAME = put_bytes(1, put_bytes(1, b"__name__") + put_bytes(2, b"x"))
LABEL = put_bytes(1, put_bytes(1, b"a") + put_bytes(2, b"b"))
WRITES = (
    ("a large body", b"\0" * 8_388_609, SNAPPY, 413),
    ("a snappy bomb", snappy(b"\0" * 500_000_000), SNAPPY, 413),
    ("10^6 labels", snappy(put_bytes(1, NAME + LABEL * 1_000_000)), SNAPPY, 400),
    ("10^6 empty series", snappy(b"\x0a\x00" * 1_000_000), SNAPPY, 413),
    ("10^6 samples", snappy(put_bytes(1, NAME + b"\x12\x00" * 1_000_000)), SNAPPY, 413),
    ("10^6 symbols", snappy(b"\x22\x00" * 1_000_000), V2, 413),
)
NESTED = b"\x0a\x00"
for _ in range(2_000):
    NESTED = put_bytes(5, put_bytes(1, NESTED))
ZIPPED = {**PROTOBUF, "Content-Encoding": "gzip"}
EXPORTS = (
    ("a gzip bomb", gzip.compress(b"\0" * 200_000_000), ZIPPED, 413),
    ("10^6 attributes", put_bytes(1, put_bytes(1, b"\x0a\x00" * 1_000_000)), PROTOBUF, 413),
    (
        "nested values",
        put_bytes(1, put_bytes(1, put_bytes(1, put_bytes(1, b"k") + put_bytes(2, NESTED)))),
        PROTOBUF,
        400,
    ),
    ("nested JSON", b"[" * 1_000_000, JSON, 400),
    ("much JSON", b"{}," * 1_000_000, JSON, 413),
)  # fmt: skip


@pytest.mark.timeout(180)
def test_bombs_are_refused_and_memory_stays(console: servers.Server, token: str) -> None:
    before_bytes = console.rss_bytes
    for path, bombs in (("/api/v1/write", WRITES), ("/v1/metrics", EXPORTS)):
        for name, body, headers, status in bombs:
            answer = console.request(
                "POST", path, body, {**headers, "Authorization": f"Bearer {token}"}
            )
            assert (name, answer.status) == (name, status)
            assert len(str(answer.body)) > 20, name
    assert console.rss_bytes - before_bytes < MAX_GROWTH_BYTES
