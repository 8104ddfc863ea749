"""The Mooncake conversation trace, all blocks of it, as simulators of prefix caches count hits."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from routing.twin.cache import PrefixCache

TRACE = Path(__file__).parents[2] / "../shared/data/traces/mooncake_conversation_trace.jsonl.gz"
BLOCK_TOKENS = 512


@dataclass(frozen=True)
class Prompt:
    """`blocks` has the partly filled last one as well: the trace names it like the others."""

    tokens: int
    blocks: list[int]


@dataclass(frozen=True)
class Hits:
    hit_tokens: int
    tokens: int


def read(path: Path) -> list[Prompt]:
    with gzip.open(path, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return [Prompt(row["input_length"], row["hash_ids"]) for row in rows]


def last_half(prompts: Sequence[Prompt], *, capacity_blocks: int) -> Hits:
    """Tokens of leading blocks that were held, over the requests after the first half."""
    cache = PrefixCache(capacity_blocks=capacity_blocks, exact_state=False)
    hit_tokens = tokens = 0
    for i, prompt in enumerate(prompts):
        n, _ = cache.match(prompt.blocks, at_s=0.0)
        cache.insert(prompt.blocks, ready_s=0.0)
        if i >= len(prompts) // 2:
            hit_tokens += min(n * BLOCK_TOKENS, prompt.tokens)
            tokens += prompt.tokens
    return Hits(hit_tokens, tokens)
