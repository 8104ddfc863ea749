"""What the rows of each known trace format mean: lines in, Row out.

Mooncake    jsonl: timestamp (ms), input_length, output_length, hash_ids of 512 tokens each
            (github.com/kvcache-ai/Mooncake, FAST25-release)
sessions    jsonl: a session a line, its requests with t, in, out, hash_runs [first id, count]
            and sub-agents with requests of their own (github.com/callanjfox/kv-cache-tester)
export      jsonl: at_s, prompt_tokens or uncached_tokens, output_tokens, cluster: this product's
Azure       csv: TIMESTAMP,ContextTokens,GeneratedTokens (AzurePublicDataset)
BurstGPT    csv: Timestamp (s), Request tokens, Response tokens, ... (github.com/HPMLL/BurstGPT)
ServeGen    csv: t_s,client,input_tokens,output_tokens, sampled from github.com/alibaba/ServeGen
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from routing.twin.requests import Blocks
from routing.twin.trace_rows import Chains, Fields, Row

MOONCAKE_BLOCK_TOKENS = 512
SESSION_GAP_S = 10.0
"""Sessions say when their requests come, not when they begin: each begins so much later."""
_Run = tuple[int, int]
"""First id, number of ids that follow each other."""
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?:\+00:00|Z)?", re.ASCII)
_EXPORT = ("at_s", "cluster", "prompt_tokens", "uncached_tokens", "output_tokens")


def mooncake(lines: Iterable[Fields], block_tokens: int) -> Iterator[Row]:
    chains, per = Chains(), block_tokens // MOONCAKE_BLOCK_TOKENS
    for line in lines:
        prompt_tokens = line.tokens("input_length", low=1)
        hash_ids = line.rows("hash_ids")
        if not all(type(i) is int for i in hash_ids):
            raise line.error("hash_ids", "must be whole numbers")
        wanted = -(-prompt_tokens // MOONCAKE_BLOCK_TOKENS)
        if len(hash_ids) != wanted:
            message = f"{prompt_tokens} tokens fill {wanted} blocks of {MOONCAKE_BLOCK_TOKENS}"
            raise line.error("hash_ids", message, value=len(hash_ids))
        blocks: list[int] = []
        for start in range(0, prompt_tokens // block_tokens * per, per):
            before = blocks[-1] if blocks else None
            blocks.append(chains.next(before, *hash_ids[start : start + per]))
        yield Row(
            line=line.line,
            at_s=line.number("timestamp", low=0) / 1e3,
            prompt_tokens=prompt_tokens,
            output_tokens=line.tokens("output_length", low=0),
            blocks=tuple(blocks),
        )


def sessions(lines: Iterable[Fields], block_tokens: int) -> Iterator[Row]:
    """All sessions' requests in one order of time. Ids name blocks within their session only."""
    chains = Chains()
    rows: list[Row] = []
    for n, line in enumerate(lines):
        size = line.tokens("block_size", low=1)
        if block_tokens % size:
            raise line.error("block_size", f"must divide the {block_tokens} tokens of a block")
        joined = _Joined(n, block_tokens // size, chains)
        for at_s, request in _flat(line, n * SESSION_GAP_S):
            prompt_tokens = request.tokens("in", low=1)
            runs = _runs(request, prompt_tokens // size)
            rows.append(
                Row(
                    line=line.line,
                    at_s=at_s,
                    prompt_tokens=prompt_tokens,
                    output_tokens=request.tokens("out", low=0),
                    blocks=joined.blocks(runs, prompt_tokens // block_tokens),
                    session=n,
                )
            )
    yield from sorted(rows, key=lambda row: row.at_s)


def _flat(holder: Fields, from_s: float) -> Iterator[tuple[float, Fields]]:
    """(at_s, request) of a session and, nested, of its sub-agents."""
    for values in holder.rows("requests"):
        if not isinstance(values, dict):
            raise holder.error("requests", "must be a list of objects", value=values)
        entry = Fields(values, source=holder.source, line=holder.line)
        at_s = from_s + entry.number("t", low=0)
        if "requests" in values:
            yield from _flat(entry, at_s)
        else:
            yield at_s, entry


def _runs(request: Fields, wanted: int) -> list[_Run]:
    """[first id, number of ids] of the prompt's full blocks, `wanted` together."""
    runs = request.rows("hash_runs")
    for run in runs:
        if not (isinstance(run, list) and len(run) == 2 and all(type(i) is int for i in run)):
            raise request.error(
                "hash_runs", "must be a list of [first id, number of ids]", value=run
            )
        if run[1] < 1:
            raise request.error("hash_runs", "a run has at least 1 id", value=run)
    n = sum(count for _, count in runs)
    if n != wanted:
        raise request.error("hash_runs", f"the prompt fills {wanted} blocks", value=n)
    return [(first, count) for first, count in runs]


class _Joined:
    """Ids of a session's blocks, each made of `per` of its own; a run is never written out."""

    def __init__(self, session: int, per: int, chains: Chains) -> None:
        self._session, self._per, self._chains = session, per, chains
        self._runs: list[_Run] = []
        self._blocks: list[int] = []

    def blocks(self, runs: list[_Run], n: int) -> Blocks:
        """Ids of the first `n` blocks of a prompt with these runs."""
        # Most prompts begin with the one before them.
        n_known = min(_n_alike(self._runs, runs) // self._per, len(self._blocks), n)
        blocks = self._blocks[:n_known]
        piece: list[_Run] = []
        missing, skipped = self._per, n_known * self._per
        for first, count in runs:
            over = min(skipped, count)
            first, count, skipped = first + over, count - over, skipped - over
            while count and len(blocks) < n:
                taken = min(count, missing)
                piece.append((first, taken))
                first, count, missing = first + taken, count - taken, missing - taken
                if not missing:
                    before = blocks[-1] if blocks else None
                    blocks.append(self._chains.next(before, self._session, *_canonical(piece)))
                    piece, missing = [], self._per
        self._runs, self._blocks = runs, blocks
        return tuple(blocks)


def _n_alike(one: list[_Run], other: list[_Run]) -> int:
    """A number of leading ids that are the same for sure: all of them where runs are cut alike."""
    n = 0
    for (a, n_a), (b, n_b) in zip(one, other, strict=False):
        if a != b:
            break
        n += min(n_a, n_b)
        if n_a != n_b:
            break
    return n


def _canonical(piece: list[_Run]) -> tuple[int, ...]:
    """The first id where the others follow it, else all ids: the same whatever the runs were."""
    first = piece[0][0]
    if all(start == first + sum(n for _, n in piece[:i]) for i, (start, _) in enumerate(piece)):
        return (first,)
    return tuple(i for start, n in piece for i in range(start, start + n))


def export(lines: Iterable[Fields]) -> Iterator[Row]:
    named: bool | None = None
    for line in lines:
        line.only(_EXPORT)
        if named is None:
            named = "cluster" in line.values
        elif named != ("cluster" in line.values):
            raise line.error("cluster", "must stand in every row or in none")
        if "prompt_tokens" in line.values and "uncached_tokens" in line.values:
            raise line.error("uncached_tokens", "stands beside prompt_tokens: give one of them")
        key = "uncached_tokens" if "uncached_tokens" in line.values else "prompt_tokens"
        yield Row(
            line=line.line,
            at_s=line.number("at_s", low=0),
            prompt_tokens=line.tokens(key, low=1),
            output_tokens=line.tokens("output_tokens", low=0),
            cluster=line.text("cluster") if named else None,
        )


def azure(line: Fields) -> Row:
    stamp = _STAMP.fullmatch(line.text("TIMESTAMP").strip())
    try:
        # Seven digits of a second are more than a datetime has.
        at_ns = None if stamp is None else np.datetime64(stamp[1], "ns").astype(np.int64)
    except ValueError:
        at_ns = None
    if at_ns is None:
        raise line.error("TIMESTAMP", "must be YYYY-MM-DD HH:MM:SS.fffffff of UTC")
    return Row(
        line=line.line,
        at_s=int(at_ns) / 1e9,
        prompt_tokens=line.tokens("ContextTokens", low=1),
        output_tokens=line.tokens("GeneratedTokens", low=0),
    )


def burst_gpt(line: Fields) -> Row | None:
    """None for a call that failed: such rows have neither prompt nor answer."""
    prompt_tokens = line.tokens("Request tokens", low=0)
    output_tokens = line.tokens("Response tokens", low=0)
    at_s = line.number("Timestamp", low=0)
    if prompt_tokens == output_tokens == 0:
        return None
    if prompt_tokens == 0:
        raise line.error("Request tokens", "must be at least 1 where there is an answer")
    return Row(line.line, at_s, prompt_tokens, output_tokens)


def servegen(line: Fields) -> Row:
    return Row(
        line=line.line,
        at_s=line.number("t_s", low=0),
        prompt_tokens=line.tokens("input_tokens", low=1),
        output_tokens=line.tokens("output_tokens", low=0),
    )


CSV: dict[tuple[str, ...], Callable[[Fields], Row | None]] = {
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"): azure,
    ("Timestamp", "Request tokens", "Response tokens"): burst_gpt,
    ("t_s", "input_tokens", "output_tokens"): servegen,
}
"""The columns that tell a format, and its rows."""
