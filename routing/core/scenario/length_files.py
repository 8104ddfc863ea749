"""Lengths of a recorded trace as buckets [upper edge, weight], small enough to store."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from routing.core.scenario.profile_files import FileError

_LEAST_TOKENS, _MOST_TOKENS = 2.0, 1e9
"""A bucket needs room above 1 token, where the first begins (lengths.py); shorter lengths, 0 of a
prompt that was cached whole included, count as 2. Beyond 10^9 a column is no length."""
_MOST_EXACT = 256
"""Distinct lengths kept one by one. More of them are bucketed."""
_PER_OCTAVE = 8
"""Buckets per doubling: edges 2^(k/8), a ratio of 1.09, among them 128 and 131,072."""


def length_buckets(text: str, *, name: str, column: str | None) -> list[list[float]]:
    """`name` is the file's, for its kind: `.jsonl`, `.csv` or one length a line. Raises FileError.

    A few distinct lengths stay exact, each in the bucket of the one token that ends at it.
    """
    found = list(_lengths(text, name.removesuffix(".gz").casefold(), column))
    if not found:
        raise FileError("holds no length")
    values = np.maximum(np.asarray(found), _LEAST_TOKENS)
    distinct = np.unique(values)
    if len(distinct) <= _MOST_EXACT:
        edges = np.unique(np.concatenate([distinct, distinct - 1.0]))
        edges = edges[edges > 1.0]
    else:
        last = math.ceil(_PER_OCTAVE * math.log2(values.max()))
        edges = np.unique(np.round(2.0 ** (np.arange(_PER_OCTAVE, last + 1) / _PER_OCTAVE)))
        edges = edges[max(0, int(np.searchsorted(edges, values.min())) - 1) :]
    weights = np.bincount(np.searchsorted(edges, values), minlength=len(edges))
    return [[float(edge), int(weight)] for edge, weight in zip(edges, weights, strict=True)]


def _lengths(text: str, name: str, column: str | None) -> Iterator[float]:
    if name.endswith(".jsonl"):
        for i, line in enumerate(text.splitlines()):
            if line.strip():
                yield _length(_member(line, i, column), i)
    elif name.endswith(".csv") or column is not None:
        reader = csv.DictReader(io.StringIO(text))
        if column not in (reader.fieldnames or []):
            names = ", ".join(reader.fieldnames or [])
            raise FileError(f"needs column = one of its columns: {names}")
        for i, row in enumerate(reader, start=1):
            yield _length(row[str(column)], i)
    else:
        for i, line in enumerate(text.splitlines()):
            if line.strip():
                yield _length(line, i)


def _member(line: str, i: int, column: str | None) -> Any:
    try:
        entry = json.loads(line)
    except ValueError as exc:
        raise FileError(f"line {i + 1} is not JSON: {exc}") from None
    if not isinstance(entry, dict) or column not in entry:
        names = ", ".join(entry) if isinstance(entry, dict) else "none"
        raise FileError(f"needs column = one of the names of line {i + 1}: {names}")
    return entry[column]


def _length(value: Any, i: int) -> float:
    try:
        length = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        length = math.nan
    if not 0.0 <= length <= _MOST_TOKENS:
        raise FileError(f"line {i + 1} holds no length from 0 to {_MOST_TOKENS:g}: {value!r:.40}")
    return length
