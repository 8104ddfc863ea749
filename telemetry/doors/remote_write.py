"""Prometheus remote-write bodies, 1.0 and 2.0, as series of timed values.

1.0 repeats the labels of a series in every request. They come out here as the undecoded bytes of
their block, a key that whoever receives them every few seconds looks up once a series instead of
taking a dozen labels apart. 2.0 refers to a table of symbols that is new in each request.

Specifications: https://prometheus.io/docs/specs/prw/remote_write_spec/ and
https://prometheus.io/docs/specs/prw/remote_write_spec_2_0/
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

import cramjam

from telemetry.doors import protobuf
from telemetry.doors.points import Labels, Point
from telemetry.doors.protobuf import BYTES, DecodeError

V1 = "prometheus.WriteRequest"
V2 = "io.prometheus.write.v2.Request"

MAX_SERIES = 50_000
MAX_SAMPLES = 100_000
MAX_LABELS = 128
MAX_SYMBOLS = 200_000
MAX_LABEL_CHARS = 2_048
MAX_SERIES_CHARS = 16_384

_DOUBLE = struct.Struct("<d").unpack_from
_STALE_BYTES = struct.pack("<Q", 0x7FF0_0000_0000_0002)
_LABEL_TAG, _SAMPLE_TAG = 0x0A, 0x12


class TooLarge(ValueError):
    """More than one request may carry."""


class Series(NamedTuple):
    """One series of a request: labels as a 1.0 block of bytes, or decoded from 2.0's symbols."""

    labels: bytes | Labels
    points: list[Point]


@dataclass
class Decoded:
    """A request. Native histograms and exemplars are counted; nothing here reads them."""

    series: list[Series] = field(default_factory=list)
    n_samples: int = 0
    n_histograms: int = 0
    n_exemplars: int = 0


def unsnap(body: bytes, max_bytes: int) -> bytes:
    """The content of a snappy block, which states its size first. Raises TooLarge, DecodeError."""
    length, _ = protobuf.varint(body, 0)
    if length > max_bytes:
        raise TooLarge(f"the decompressed body is larger than {max_bytes} bytes")
    try:
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as exc:
        raise DecodeError(f"the body is not a snappy block: {exc}") from None


def decode_v1(body: bytes) -> Decoded:
    """A `prometheus.WriteRequest`. Raises DecodeError, TooLarge."""
    out = Decoded()
    for number, kind, start, end in protobuf.fields(body, 0, len(body)):
        if number == 1 and kind == BYTES:
            if len(out.series) >= MAX_SERIES:
                raise TooLarge(f"more than {MAX_SERIES} series in one request")
            out.series.append(_series_v1(body, start, end, out))
    return out


def _series_v1(body: bytes, start: int, end: int, out: Decoded) -> Series:
    at, n_labels = start, 0
    while at < end and body[at] == _LABEL_TAG and n_labels <= MAX_LABELS:
        length, at = protobuf.varint(body, at + 1)
        at += length
        n_labels += 1
    if at > end:
        raise DecodeError("a label reaches beyond its series")
    block, points = body[start:at], []
    for number, kind, a, b in protobuf.fields(body, at, end):
        if kind != BYTES:
            continue
        if number == 2:
            points.append(_sample(body, a, b))
            _bound(n_labels, len(points), out)
        elif number == 1:  # labels behind samples: unusual, and allowed
            n_labels += 1
            _bound(n_labels, 0, out)
            block += protobuf.put_bytes(1, body[a:b])
        else:
            _count_other(number, out, histogram=4, exemplar=3)
    _bound(n_labels, 0, out)
    out.n_samples += len(points)
    return Series(block, points)


def labels_v1(block: bytes) -> Labels:
    """The labels of a 1.0 block. Raises DecodeError."""
    pairs = []
    for _, _, start, end in protobuf.fields(block, 0, len(block)):
        name = value = ""
        for number, kind, a, b in protobuf.fields(block, start, end):
            if kind == BYTES and number == 1:
                name = protobuf.text(block, a, b)
            elif kind == BYTES and number == 2:
                value = protobuf.text(block, a, b)
        pairs.append((name, value))
    return _checked(pairs)


def decode_v2(body: bytes) -> Decoded:
    """An `io.prometheus.write.v2.Request`. Raises DecodeError, TooLarge."""
    out = Decoded()
    symbols: list[str] = []
    found: list[tuple[int, int]] = []
    for number, kind, start, end in protobuf.fields(body, 0, len(body)):
        if kind != BYTES:
            continue
        if number == 4:
            if len(symbols) >= MAX_SYMBOLS:
                raise TooLarge(f"more than {MAX_SYMBOLS} symbols in one request")
            symbols.append(protobuf.text(body, start, end))
        elif number == 5:
            if len(found) >= MAX_SERIES:
                raise TooLarge(f"more than {MAX_SERIES} series in one request")
            found.append((start, end))
    if found and (not symbols or symbols[0]):
        raise DecodeError("the first symbol must be the empty text")
    out.series.extend(_series_v2(body, start, end, symbols, out) for start, end in found)
    return out


def _series_v2(body: bytes, start: int, end: int, symbols: list[str], out: Decoded) -> Series:
    refs: list[int] = []
    points: list[Point] = []
    created_ms = 0
    for number, kind, a, b in protobuf.fields(body, start, end):
        if number == 1:
            if kind == BYTES:
                if b - a > 10 * MAX_LABELS:
                    raise DecodeError(f"a series has more than {MAX_LABELS} labels")
                refs.extend(protobuf.packed(body, a, b))
            else:
                refs.append(a)
            _bound(len(refs) // 2, 0, out)
        elif number == 2 and kind == BYTES:
            points.append(_sample(body, a, b))
            _bound(0, len(points), out)
        elif number == 6 and kind == protobuf.VARINT:
            created_ms = protobuf.signed(a)
        elif kind == BYTES:
            _count_other(number, out, histogram=3, exemplar=4)
    out.n_samples += len(points)
    if len(refs) % 2:
        raise DecodeError("labels_refs come in pairs")
    try:
        pairs = [(symbols[refs[i]], symbols[refs[i + 1]]) for i in range(0, len(refs), 2)]
    except IndexError:
        raise DecodeError(f"a reference points beyond the {len(symbols)} symbols") from None
    if created_ms:
        points = [p if p.start_ms else p._replace(start_ms=created_ms) for p in points]
    return Series(_checked(pairs), points)


def _sample(body: bytes, start: int, end: int) -> Point:
    value: float | None = 0.0
    at_ms = start_ms = 0
    for number, kind, a, _ in protobuf.fields(body, start, end):
        if number == 1 and kind == protobuf.FIXED64:
            [value] = _DOUBLE(body, a)
            if value != value and body[a : a + 8] == _STALE_BYTES:
                value = None
        elif number == 2 and kind == protobuf.VARINT:
            at_ms = protobuf.signed(a)
        elif number == 3 and kind == protobuf.VARINT:
            start_ms = protobuf.signed(a)
    return Point(value, at_ms, start_ms)


def _count_other(number: int, out: Decoded, *, histogram: int, exemplar: int) -> None:
    if number == histogram:
        out.n_histograms += 1
    elif number == exemplar:
        out.n_exemplars += 1


def _bound(n_labels: int, n_points: int, out: Decoded) -> None:
    if n_labels > MAX_LABELS:
        raise DecodeError(f"a series has more than {MAX_LABELS} labels")
    if out.n_samples + n_points > MAX_SAMPLES:
        raise TooLarge(f"more than {MAX_SAMPLES} samples in one request")


def _checked(pairs: list[tuple[str, str]]) -> Labels:
    names = {name for name, _ in pairs}
    if len(names) != len(pairs):
        raise DecodeError(f"a label is given twice: {[name for name, _ in pairs][:20]}")
    if "__name__" not in names:
        raise DecodeError(f"a series without a name: {pairs[:5]!r}"[:300])
    if sum(len(name) + len(value) for name, value in pairs) > MAX_SERIES_CHARS:
        raise DecodeError(f"the labels of a series are longer than {MAX_SERIES_CHARS} characters")
    for name, value in pairs:
        if len(name) > MAX_LABEL_CHARS or len(value) > MAX_LABEL_CHARS:
            raise DecodeError(f"label {name[:60]!r} is longer than {MAX_LABEL_CHARS} characters")
    return tuple(pairs)
