"""Columns of a statement as PostgreSQL's binary arrays, made at once instead of value by value.

psycopg writes a list element by element in Python, which at a thousand batches a second was more
than reading them. The format is that of `array_recv` (PostgreSQL, utils/adt/arrayfuncs.c):
dimensions, whether there are NULLs, the type's oid, length and lower bound; then of each element
its length and its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np
import psycopg
from psycopg.adapt import Dumper
from psycopg.postgres import types
from psycopg.pq import Format

_HEAD: Final = struct.Struct(">iiIii")
_LENGTH: Final = struct.Struct(">i")
_EPOCH_S: Final = 946_684_800.0
"""2000-01-01 UTC, from which PostgreSQL counts microseconds."""


class _Array:
    """One column; `data` is what PostgreSQL reads."""

    element: ClassVar[str]

    def __init__(self, data: bytes, n: int) -> None:
        head = _HEAD.pack(1 if n else 0, 0, types[self.element].oid, n, 1)
        self.data = head + data if n else head[:12]


class Int8s(_Array):
    """bigint[] of whole numbers."""

    element = "int8"

    def __init__(self, values: Sequence[int]) -> None:
        super().__init__(_wide(np.array(values, dtype=np.int64)), len(values))


class Moments(_Array):
    """timestamptz[] of epoch seconds, to the microsecond."""

    element = "timestamptz"

    def __init__(self, values_s: Sequence[float]) -> None:
        since = np.array(values_s, dtype=np.float64) - _EPOCH_S
        super().__init__(_wide(np.rint(since * 1e6).astype(np.int64)), len(values_s))


class Texts(_Array):
    """text[]. Raises ValueError for what UTF-8 or PostgreSQL cannot say."""

    element = "text"

    def __init__(self, values: Sequence[str]) -> None:
        if any("\0" in value for value in values):
            raise ValueError("text must not hold NUL")
        super().__init__(_joined([value.encode() for value in values]), len(values))


class Bytes(_Array):
    """bytea[]."""

    element = "bytea"

    def __init__(self, values: Sequence[bytes]) -> None:
        super().__init__(_joined(values), len(values))


def register(connection: psycopg.AsyncConnection[Any]) -> None:
    """Let statements of this connection take these arrays as parameters."""
    for kind in (Int8s, Moments, Texts, Bytes):
        dumper = type(f"{kind.__name__}Dumper", (_Dumper,), {"oid": types[kind.element].array_oid})
        connection.adapters.register_dumper(kind, dumper)


class _Dumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: _Array) -> bytes:
        return obj.data


_ELEMENT: Final = np.dtype([("length", ">i4"), ("value", ">i8")])


def _wide(values: np.ndarray[Any, np.dtype[np.int64]]) -> bytes:
    out = np.empty(len(values), _ELEMENT)
    out["length"] = 8
    out["value"] = values
    return out.tobytes()


def _joined(values: Sequence[bytes]) -> bytes:
    parts = []
    for value in values:
        parts.append(_LENGTH.pack(len(value)))
        parts.append(value)
    return b"".join(parts)
