"""Trace files as arrivals: Mooncake jsonl (with `hash_ids`) and Azure csv, plain or gzipped.

A bad row is an error that names its line; so is a file without rows.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from routing.lab.errors import LabError

BLOCK_TOKENS = 512
"""Tokens a Mooncake hash id stands for; a prompt's last block may be partial."""


@dataclass(frozen=True)
class Row:
    """One request of a trace. `at_s` since the first row; `hash_ids` name its blocks, or None."""

    line: int
    at_s: float
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] | None


class _MooncakeRow(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


_decoder = msgspec.json.Decoder(_MooncakeRow)
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_trace(path: Path) -> list[Row]:
    """All rows, in order of time. `.csv` is Azure's format, `.jsonl` Mooncake's, `.gz` either.

    Raises LabError naming file, line and value.
    """
    name = path.name.removesuffix(".gz")
    kind = _azure if name.endswith(".csv") else _mooncake if name.endswith(".jsonl") else None
    if kind is None:
        raise LabError("a trace is .jsonl or .csv, or either .gz", source=str(path))
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.name.endswith(".gz") else raw).decode()
    except OSError as exc:
        raise LabError(f"cannot be read: {exc.strerror or exc}", source=str(path)) from None
    except (EOFError, zlib.error, UnicodeDecodeError) as exc:
        raise LabError(f"cannot be decoded: {exc}", source=str(path)) from None
    rows = list(_checked(kind(text, str(path)), str(path)))
    if not rows:
        raise LabError("has no rows", source=str(path))
    return rows


def _checked(rows: Iterator[Row], source: str) -> Iterator[Row]:
    """The rows with times since the first; each is possible and none is before its predecessor."""
    first_s = last_s = None
    for row in rows:
        where = f"{source}:{row.line}"
        if row.prompt_tokens < 1:
            raise LabError(
                "needs a prompt of 1 token or more", source=where, value=row.prompt_tokens
            )
        if row.output_tokens < 0:
            raise LabError(
                "cannot answer with fewer than 0 tokens", source=where, value=row.output_tokens
            )
        if last_s is not None and row.at_s < last_s:
            raise LabError("is earlier than the row before it", source=where, value=row.at_s)
        first_s, last_s = row.at_s if first_s is None else first_s, row.at_s
        # Every request answers with a token, also where a trace says that its user went away.
        yield Row(
            row.line, row.at_s - first_s, row.prompt_tokens, max(1, row.output_tokens), row.hash_ids
        )


def _mooncake(text: str, source: str) -> Iterator[Row]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{source}:{number}"
        try:
            row = _decoder.decode(line)
        except msgspec.MsgspecError as exc:
            raise LabError(f"is not a Mooncake row: {exc}", source=where) from None
        wanted = -(-row.input_length // BLOCK_TOKENS)
        if len(row.hash_ids) != wanted:
            raise LabError(
                f"{row.input_length} tokens fill {wanted} blocks of {BLOCK_TOKENS}",
                source=where,
                field="hash_ids",
                value=len(row.hash_ids),
            )
        yield Row(
            line=number,
            at_s=row.timestamp / 1000.0,
            prompt_tokens=row.input_length,
            output_tokens=row.output_length,
            hash_ids=tuple(row.hash_ids),
        )


def _azure(text: str, source: str) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(text))
    header = next(reader, None)
    if header is None:
        return
    if tuple(header[:3]) != AZURE_COLUMNS:
        raise LabError(
            f"needs the columns {','.join(AZURE_COLUMNS)}",
            source=f"{source}:1",
            value=",".join(header),
        )
    for row in reader:
        if not row:
            continue
        where = f"{source}:{reader.line_num}"
        try:
            stamp, prompt_tokens, output_tokens = row[0], int(row[1]), int(row[2])
            # Seven digits of a second are one more than a datetime has.
            at_s = datetime.fromisoformat(stamp[:26]).timestamp()
        except (ValueError, IndexError):
            raise LabError("is not an Azure row", source=where, value=",".join(row)) from None
        yield Row(reader.line_num, at_s, prompt_tokens, output_tokens, None)
