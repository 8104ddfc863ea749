"""Recorded requests: what a trace file holds, as columns.

The first line tells the format (trace_formats.py). A row that cannot be meant is an error that
names the file, the line, the field and the value; so are a row before its predecessor and a file
without rows. Times are made seconds since the first row. An answer of 0 tokens is made 1: every
request answers with a token, also where its user went away.

Ids of blocks are made anew, so that each names its block and all before it; only full blocks have
one, because only they are reused.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from routing.core.model.curves import Array
from routing.twin import trace_formats as formats
from routing.twin.requests import Blocks
from routing.twin.trace_rows import Row, TraceError, read_csv, read_object

Numbered = Iterable[tuple[int, str]]
_SESSION_BLOCK_TOKENS = 512
"""Agentic sessions' blocks of 64 tokens are joined up to this: a prompt has thousands of them."""


@dataclass(frozen=True)
class Trace:
    """Requests in order of time; columns of shape (n,), `at_s` from 0.

    `blocks` as in Requests, of `block_tokens`, their ids below `n_ids`. `sessions` are numbers of
    the conversations that the file says rows belong to, `clusters` the PD clusters they arrived
    at; None where it says nothing. `n_left_out` rows were calls that had failed.
    """

    source: str
    at_s: Array
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    blocks: list[Blocks] | None = None
    block_tokens: int | None = None
    n_ids: int = 0
    sessions: NDArray[np.int64] | None = None
    clusters: tuple[str, ...] | None = None
    n_left_out: int = 0

    def __len__(self) -> int:
        return len(self.at_s)

    @property
    def span_s(self) -> float:
        return float(self.at_s[-1])

    @property
    def mean_rps(self) -> float:
        """Requests per second between the first and the last; 0 of a single moment."""
        return (len(self) - 1) / self.span_s if self.span_s > 0 else 0.0

    @cached_property
    def conversations(self) -> NDArray[np.int64]:
        """A number for each row, the same for rows of one conversation; shape (n,).

        Where the file does not say: a prompt that begins with all full blocks of an earlier one
        goes on with its conversation. Not if that had one block only, which often is
        everybody's instructions.
        """
        if self.sessions is not None:
            return self.sessions
        found = np.arange(len(self), dtype=np.int64)
        last_blocks: dict[int, int] = {}
        for row, blocks in enumerate(self.blocks or ()):
            if len(blocks) > 1:
                earlier = (last_blocks[i] for i in reversed(blocks[1:]) if i in last_blocks)
                found[row] = last_blocks[blocks[-1]] = next(earlier, row)
        return found


def parse_trace(lines: Iterable[str], *, source: str, block_tokens: int | None = None) -> Trace:
    """The requests in the lines of a file that errors call `source`.

    `block_tokens`: join blocks up to this size, a multiple of the file's. Raises TraceError.
    """
    numbered = enumerate(lines, start=1)
    start = next(((n, line) for n, line in numbered if line.strip()), None)
    if start is None:
        raise TraceError("is empty", source=source)
    first = start[1]
    rest = chain([(start[0], first)], numbered)
    if first.lstrip().startswith("{"):
        return _of_objects(rest, source, block_tokens)
    return _columns(_csv_rows(rest, source, start[0]), source)


def _of_objects(numbered: Numbered, source: str, block_tokens: int | None) -> Trace:
    objects = (read_object(line, source=source, number=n) for n, line in numbered if line.strip())
    first = next(objects)
    lines = chain([first], objects)
    if "requests" in first.values:
        size = _SESSION_BLOCK_TOKENS if block_tokens is None else block_tokens
        return _columns(formats.sessions(lines, size), source, block_tokens=size)
    if "hash_ids" in first.values:
        size = formats.MOONCAKE_BLOCK_TOKENS if block_tokens is None else block_tokens
        if size % formats.MOONCAKE_BLOCK_TOKENS:
            raise TraceError(
                f"must be a multiple of {formats.MOONCAKE_BLOCK_TOKENS}, the trace's own blocks",
                source=source,
                field="block_tokens",
                value=size,
            )
        return _columns(formats.mooncake(lines, size), source, block_tokens=size)
    if "at_s" in first.values:
        return _columns(formats.export(lines), source)
    raise TraceError(
        "is no request that is known: Mooncake's has hash_ids, a session requests, an export at_s",
        source=source,
        line=first.line,
        field="keys",
        value=", ".join(first.values),
    )


def _csv_rows(numbered: Numbered, source: str, start: int) -> Iterator[Row | None]:
    header, lines = read_csv((line for _, line in numbered), source=source, start=start)
    read = next((read for known, read in formats.CSV.items() if set(known) <= set(header)), None)
    if read is None:
        raise TraceError(
            "needs the columns " + " or ".join(",".join(known) for known in formats.CSV),
            source=source,
            line=start,
            field="header",
            value=",".join(header),
        )
    return map(read, lines)


def _columns(rows: Iterable[Row | None], source: str, *, block_tokens: int | None = None) -> Trace:
    at_s, prompts, outputs, sessions = array("d"), array("q"), array("q"), array("q")
    blocks: list[Blocks] = []
    clusters: list[str] = []
    n_left_out = 0
    for row in rows:
        if row is None:
            n_left_out += 1
            continue
        if at_s and row.at_s < at_s[-1]:
            raise TraceError(
                "is earlier than the row before it",
                source=source,
                line=row.line,
                field="time",
                value=row.at_s,
            )
        at_s.append(row.at_s)
        prompts.append(row.prompt_tokens)
        outputs.append(max(1, row.output_tokens))
        if row.blocks is not None:
            blocks.append(row.blocks)
        if row.session is not None:
            sessions.append(row.session)
        if row.cluster is not None:
            clusters.append(row.cluster)
    if not at_s:
        raise TraceError("has no rows", source=source)
    times = np.array(at_s)
    return Trace(
        source=source,
        at_s=times - times[0],
        prompt_tokens=np.array(prompts, dtype=np.int64),
        output_tokens=np.array(outputs, dtype=np.int64),
        blocks=blocks or None,
        block_tokens=block_tokens,
        n_ids=1 + max((ids[-1] for ids in blocks if ids), default=-1),
        sessions=np.array(sessions, dtype=np.int64) if sessions else None,
        clusters=tuple(clusters) or None,
        n_left_out=n_left_out,
    )
