"""Trace files as arrivals: Mooncake jsonl (with `hash_ids`), agentic sessions jsonl (a session a
line, with `hash_runs`) and Azure csv, plain or gzipped.

A bad row is an error that names its line; so is a file without rows.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec

from routing.lab.errors import LabError

BLOCK_TOKENS = 512
"""Tokens a row's hash id stands for; a prompt's last block may be partial."""
SESSION_GAP_S = 10.0
"""Sessions say when their requests come, not when they begin: each begins so much later."""


@dataclass(frozen=True)
class Row:
    """One request of a trace. `at_s` since the first row; `hash_ids` name its blocks, or None;
    `line` is the file's, which many requests of one session share."""

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


class _SessionEntry(msgspec.Struct, rename={"prompt_tokens": "in", "output_tokens": "out"}):
    """A request, or a sub-agent with requests of its own. `t` seconds since the session, or the
    sub-agent, began; `hash_runs` [first id, number of ids] of the prompt's full blocks."""

    t: float
    prompt_tokens: int = 0
    output_tokens: int = 0
    hash_runs: list[tuple[int, int]] = []
    requests: list[_SessionEntry] | None = None


class _Session(msgspec.Struct):
    requests: list[_SessionEntry]
    block_size: Annotated[int, msgspec.Meta(ge=1, le=BLOCK_TOKENS)]


_decoder = msgspec.json.Decoder(_MooncakeRow)
_session_decoder = msgspec.json.Decoder(_Session)
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_trace(path: Path) -> list[Row]:
    """All rows, in order of time. `.csv` is Azure's format, `.jsonl` Mooncake's or, where its first
    line holds `requests`, sessions; `.gz` any of them.

    Raises LabError naming file, line and value.
    """
    name = path.name.removesuffix(".gz")
    kind = _azure if name.endswith(".csv") else _jsonl if name.endswith(".jsonl") else None
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


def _jsonl(text: str, source: str) -> Iterator[Row]:
    first = text.lstrip().partition("\n")[0]
    return (_sessions if '"requests"' in first else _mooncake)(text, source)


def _sessions(text: str, source: str) -> Iterator[Row]:
    """The sessions' requests in one order of time. Ids name blocks within their session only."""
    rows: list[Row] = []
    ids: dict[tuple[object, ...], int] = {}
    for n, line in enumerate(text.splitlines()):
        if not line.strip():
            continue
        where = f"{source}:{n + 1}"
        try:
            session = _session_decoder.decode(line)
        except msgspec.MsgspecError as exc:
            raise LabError(f"is not a session: {exc}", source=where) from None
        if BLOCK_TOKENS % session.block_size:
            raise LabError(
                f"must divide {BLOCK_TOKENS}",
                source=where,
                field="block_size",
                value=session.block_size,
            )
        for at_s, request in _flat(session.requests, n * SESSION_GAP_S):
            blocks = [i for first, count in request.hash_runs for i in range(first, first + count)]
            wanted = request.prompt_tokens // session.block_size
            if len(blocks) != wanted:
                raise LabError(
                    f"{request.prompt_tokens} tokens fill {wanted} blocks of {session.block_size}",
                    source=where,
                    field="hash_runs",
                    value=len(blocks),
                )
            hash_ids = _coarser(blocks, request.prompt_tokens, session.block_size, n, ids)
            rows.append(Row(n + 1, at_s, request.prompt_tokens, request.output_tokens, hash_ids))
    yield from sorted(rows, key=lambda row: row.at_s)


def _flat(entries: Iterable[_SessionEntry], from_s: float) -> Iterator[tuple[float, _SessionEntry]]:
    """(at_s, request) of a session and, nested, of its sub-agents."""
    for entry in entries:
        if entry.requests is None:
            yield from_s + entry.t, entry
        else:
            yield from _flat(entry.requests, from_s + entry.t)


def _coarser(
    blocks: list[int], n_tokens: int, size: int, session: int, ids: dict[tuple[object, ...], int]
) -> tuple[int, ...]:
    """Ids of BLOCK_TOKENS each out of finer ones: equal where all that stands before is equal.

    What follows the last full fine block is nobody else's; it only ever is in a partial block.
    """
    per = BLOCK_TOKENS // size
    found: list[int] = []
    for start in range(0, n_tokens, BLOCK_TOKENS):
        at = start // size
        key = (session, found[-1] if found else None, *blocks[at : at + per])
        found.append(ids.setdefault(key, len(ids)))
    return tuple(found)


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
