"""One signal of several sources over some minutes as bytes, and back.

A column is a matrix of shape (n_ticks, n_values), float64, NaN where nothing was measured. Values
of one source lie together and are stored as differences in time, their bytes by significance, so
that what moves slowly costs nearly nothing. Whole numbers, and numbers with up to four decimals,
come back exactly. What is neither comes back as float32 (7 digits) where `exact` is false, else
exactly. The first byte says how a column was stored, so ways may be added.

The measured alternatives are in tests/bench/README.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard

from telemetry.zstd import Zstd

Matrix = npt.NDArray[np.float64]

_LEVEL: Final = 6
_zstd: Final = Zstd(_LEVEL)
MAX_COLUMN_BYTES: Final = 1 << 28
"""What one column may unpack to: a bound against a damaged row."""

# How the numbers of a column are stored; | _HOLES where some are missing.
_CONSTANT: Final = 1
_WHOLE: Final = 2  # int64 x 10^-decimals, differences in time; decimals in the second byte
_SINGLE: Final = 3
_DOUBLE: Final = 4
_OBJECTS: Final = 5
_HOLES: Final = 0x80

_EXACT_BELOW: Final = 2.0**53
_SINGLE_ABOVE: Final = float(np.finfo(np.float32).tiny)
"""The least number that keeps its seven digits as float32."""
_MANTISSA_BITS: Final = 23
_SCALES: Final = (1.0, 10.0, 100.0, 1e3, 1e4)
_WIDTHS: Final = ((np.int8, 0x7F), (np.int16, 0x7FFF), (np.int32, 0x7FFFFFFF))


class ColumnError(ValueError):
    """Bytes that are no column of the shape asked for."""


def encode(matrix: Matrix, *, exact: bool, n_bits: int = 23) -> bytes:
    """The column of `matrix`, shape (n_ticks, n_values); empty when nothing in it was measured.

    `exact`: no digit may be lost (counters); else numbers with many decimals keep `n_bits` of their
    mantissa: 23 are seven digits, 13 four.
    """
    holes = np.isnan(matrix)
    n_holes = int(np.count_nonzero(holes))
    if n_holes == matrix.size:
        return b""
    by_value = matrix.T
    prefix = b""
    mark = 0
    if n_holes:
        mark = _HOLES
        packed = _zstd.compress(np.packbits(holes.T).tobytes())
        prefix = len(packed).to_bytes(4, "little") + packed
        by_value = _bridged(by_value, holes.T)
    flat = np.ascontiguousarray(by_value)
    first = flat[0, 0]
    if (flat == first).all():
        return bytes((_CONSTANT | mark,)) + prefix + np.float64(first).tobytes()
    whole, n_decimals = _whole(flat)
    if whole is not None:
        steps = np.diff(whole, axis=1, prepend=0)
        steps = _narrow(steps)
        head = bytes((_WHOLE | mark, n_decimals, steps.itemsize))
        return head + prefix + _zstd.compress(_shuffled(steps))
    if exact:
        return bytes((_DOUBLE | mark,)) + prefix + _zstd.compress(_shuffled(flat))
    with np.errstate(over="ignore"):
        single = flat.astype(np.float32)
    if n_bits < _MANTISSA_BITS:
        single = _rounded(single, n_bits)
    large = np.abs(single)
    if not np.isfinite(large).all() or ((large < _SINGLE_ABOVE) & (flat != 0.0)).any():
        return bytes((_DOUBLE | mark,)) + prefix + _zstd.compress(_shuffled(flat))
    return bytes((_SINGLE | mark,)) + prefix + _zstd.compress(_shuffled(single))


def decode(column: bytes, n_ticks: int, n_values: int) -> Matrix:
    """The matrix of a column, shape (n_ticks, n_values). Raises ColumnError."""
    matrix: Matrix = decode_many([column], n_ticks, n_values)[0]
    return matrix


def decode_many(packed: Sequence[bytes], n_ticks: int, n_values: int) -> npt.NDArray[np.float64]:
    """The matrices of columns of one shape, (n_columns, n_ticks, n_values). Raises ColumnError.

    A column alone is too small for arrays: those that were stored in the same way are unpacked
    together.
    """
    shape = (n_values, n_ticks)
    out = np.empty((len(packed), *shape))
    alike: dict[bytes, list[tuple[int, bytes]]] = {}
    holes: list[tuple[int, npt.NDArray[np.bool_]]] = []
    for i, column in enumerate(packed):
        if not column:
            out[i] = np.nan
            continue
        how = column[0] & ~_HOLES
        at = 3 if how == _WHOLE else 1
        head = bytes((how,)) + column[1:at]
        if column[0] & _HOLES:
            length = int.from_bytes(column[at : at + 4], "little")
            at += 4
            holes.append((i, _unpacked_holes(column[at : at + length], shape)))
            at += length
        alike.setdefault(head, []).append((i, column[at:]))
    for head, columns in alike.items():
        places = [i for i, _ in columns]
        out[places] = _unpacked(head, [body for _, body in columns], shape)
    for i, missing in holes:
        out[i][missing] = np.nan
    return out.transpose(0, 2, 1)


def _unpacked(
    head: bytes, bodies: Sequence[bytes], shape: tuple[int, int]
) -> npt.NDArray[np.float64]:
    """The numbers of columns with this head, holes bridged, shape (n_columns, *shape)."""
    how = head[0]
    if how == _CONSTANT:
        if any(len(body) != np.dtype(np.float64).itemsize for body in bodies):
            raise ColumnError("damaged constant")
        numbers = np.frombuffer(b"".join(bodies), np.float64)
        return np.broadcast_to(numbers[:, None, None], (len(bodies), *shape))
    if how == _WHOLE:
        if len(head) < 3 or head[2] not in (1, 2, 4, 8) or head[1] >= len(_SCALES):
            raise ColumnError("damaged head")
        steps = _unshuffled(bodies, np.dtype(f"<i{head[2]}"), shape)
        flat = np.cumsum(steps, axis=2, dtype=np.int64).astype(np.float64)
        if head[1]:
            flat /= _SCALES[head[1]]
        return flat
    if how == _SINGLE:
        return _unshuffled(bodies, np.dtype("<f4"), shape).astype(np.float64)
    if how == _DOUBLE:
        return _unshuffled(bodies, np.dtype("<f8"), shape)
    raise ColumnError(f"unknown kind of column {how}")


def encode_objects(values: Any) -> bytes:
    """Anything else that msgpack can say, as one column."""
    return bytes((_OBJECTS,)) + _zstd.compress(msgspec.msgpack.encode(values))


def decode_objects(column: bytes) -> Any:
    """What `encode_objects` was given, as plain values; None for an empty column."""
    if not column:
        return None
    if column[0] != _OBJECTS:
        raise ColumnError(f"not a column of objects: {column[0]}")
    return msgspec.msgpack.decode(_unzipped(column[1:]))


def _rounded(single: npt.NDArray[np.float32], n_bits: int) -> npt.NDArray[np.float32]:
    """With only `n_bits` of the mantissa: the bytes of the others are zero and cost nothing."""
    dropped = _MANTISSA_BITS - n_bits
    bits = single.view(np.uint32)
    bits = (bits + np.uint32(1 << (dropped - 1))) & np.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF)
    return bits.view(np.float32)


def _bridged(by_value: Matrix, holes: npt.NDArray[np.bool_]) -> Matrix:
    """Holes filled with the last known value of their source, which costs no difference."""
    n_ticks = by_value.shape[1]
    known = np.where(holes, -1, np.arange(n_ticks))
    np.maximum.accumulate(known, axis=1, out=known)
    # Before the first known value there is none: take the first.
    first = np.argmax(~holes, axis=1)
    known = np.where(known < 0, first[:, None], known)
    filled: Matrix = np.take_along_axis(by_value, known, axis=1)
    empty = holes.all(axis=1)
    if empty.any():
        filled[empty] = 0.0
    return filled


def _whole(flat: Matrix) -> tuple[npt.NDArray[np.int64] | None, int]:
    """(the numbers times 10^n as int64, n) for the least n of 0..4 that loses nothing."""
    largest = float(np.abs(flat).max())
    for n_decimals, scale in enumerate(_SCALES):
        if largest * scale >= _EXACT_BELOW:
            break
        scaled = np.rint(flat * scale)
        if (scaled / scale == flat).all():
            return scaled.astype(np.int64), n_decimals
        # A sample of the first tells most columns that are no decimals at once.
        if n_decimals == 1 and not _decimal(float(flat[0, 0])):
            break
    return None, 0


def _decimal(value: float) -> bool:
    return any(round(value * scale) / scale == value for scale in _SCALES)


def _narrow(steps: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """In the least width that holds every step."""
    low, high = int(steps.min()), int(steps.max())
    for width, limit in _WIDTHS:
        if -limit <= low and high <= limit:
            return steps.astype(width)
    return steps


def _shuffled(values: npt.NDArray[Any]) -> bytes:
    """The bytes of all values by significance."""
    width = values.itemsize
    if width == 1:
        return values.tobytes()
    return np.ascontiguousarray(values).view(np.uint8).reshape(-1, width).T.tobytes()


def _unshuffled(
    packed: Sequence[bytes], dtype: np.dtype[Any], shape: tuple[int, int]
) -> npt.NDArray[Any]:
    n, width = shape[0] * shape[1], dtype.itemsize
    raws = [_unzipped(one) for one in packed]
    for raw in raws:
        if len(raw) != n * width:
            raise ColumnError(f"{len(raw)} bytes, {n * width} expected")
    planes = np.frombuffer(b"".join(raws), np.uint8).reshape(len(raws), width, n)
    if width == 1:
        return planes.view(dtype).reshape(len(raws), *shape)
    together = np.ascontiguousarray(planes.transpose(0, 2, 1))
    return together.view(dtype).reshape(len(raws), *shape)


def _unpacked_holes(packed: bytes, shape: tuple[int, int]) -> npt.NDArray[np.bool_]:
    n = shape[0] * shape[1]
    bits = np.frombuffer(_unzipped(packed), np.uint8)
    if bits.size * 8 < n:
        raise ColumnError("too few bits of holes")
    return np.unpackbits(bits, count=n).reshape(shape).astype(np.bool_)


def _unzipped(packed: bytes) -> bytes:
    try:
        return _zstd.decompress(packed, most_bytes=MAX_COLUMN_BYTES)
    except zstandard.ZstdError as exc:
        raise ColumnError(str(exc)) from None
