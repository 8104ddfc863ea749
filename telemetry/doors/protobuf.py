"""Protocol buffers' wire format, as far as the doors need it: reading fields, writing a few.

A hand reader instead of generated classes, because it can be bounded: a body of eight million
empty messages costs a generated decoder hundreds of bytes each before anybody may count them.

Format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MAX_SHIFT = 63


class DecodeError(ValueError):
    """These bytes are not the message they are taken for."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """(number in 0..2^64-1, position behind it). Raises DecodeError."""
    try:
        byte = data[at]
        if byte < 0x80:
            return byte, at + 1
        number, shift = byte & 0x7F, 7
        while True:
            at += 1
            byte = data[at]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number & 0xFFFF_FFFF_FFFF_FFFF, at + 1
            shift += 7
            if shift > _MAX_SHIFT:
                raise DecodeError("a varint longer than ten bytes")
    except IndexError:
        raise DecodeError("cut short inside a varint") from None


def signed(number: int) -> int:
    """A varint as int64 (two's complement)."""
    return number - (1 << 64) if number >> 63 else number


def fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(field number, wire type, a, b) of every field in data[start:end].

    Of a VARINT, a is the number; of the others data[a:b] is the content. Raises DecodeError.
    """
    at = start
    while at < end:
        tag, at = varint(data, at)
        kind = tag & 7
        if kind == VARINT:
            number, at = varint(data, at)
            yield tag >> 3, kind, number, at
        elif kind in (BYTES, FIXED64, FIXED32):
            if kind == BYTES:
                length, at = varint(data, at)
            else:
                length = 8 if kind == FIXED64 else 4
            if length > end - at:
                raise DecodeError("a field reaches beyond its message")
            yield tag >> 3, kind, at, at + length
            at += length
        else:
            raise DecodeError(f"unknown wire type {kind}")
    if at > end:
        raise DecodeError("a field reaches beyond its message")


def text(data: bytes, start: int, end: int) -> str:
    """data[start:end] as UTF-8. Raises DecodeError."""
    try:
        return data[start:end].decode()
    except UnicodeDecodeError:
        raise DecodeError(f"a text is not UTF-8: {data[start:end][:40]!r}") from None


def packed(data: bytes, start: int, end: int) -> Iterator[int]:
    """The varints packed in data[start:end]. Raises DecodeError."""
    at = start
    while at < end:
        number, at = varint(data, at)
        yield number
    if at > end:
        raise DecodeError("a packed field reaches beyond its message")


_ONE_BYTE = tuple(bytes((number,)) for number in range(0x80))


def put_varint(number: int) -> bytes:
    """An unsigned number, or a negative one as int64."""
    if 0 <= number < 0x80:
        return _ONE_BYTE[number]
    number &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def put_bytes(field: int, content: bytes) -> bytes:
    """A length-delimited field."""
    return put_varint(field << 3 | BYTES) + put_varint(len(content)) + content
