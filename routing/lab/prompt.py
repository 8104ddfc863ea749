"""A prompt as the lab sees it: how many tokens, and which cacheable blocks they fill.

A list of token ids counts exactly; in a string every whitespace-separated word is one token. Each
*full* block of `block_tokens` has a digest that covers the whole prefix up to its end, so that two
prompts share their first n digests exactly when they share their first n blocks.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

DIGEST_BYTES = 12
"""At a billion blocks a false match has odds of about 1e-11."""


@dataclass(frozen=True)
class Prompt:
    """`blocks` has shape (tokens // block_tokens,): the digests of the full blocks. `ids` has shape
    (tokens,); None: the prompt came as text."""

    tokens: int
    blocks: tuple[bytes, ...]
    ids: array[int] | None = field(default=None, repr=False, compare=False)


def of_ids(ids: Sequence[int], *, block_tokens: int) -> Prompt:
    """Token ids in 0 .. 2^31-1."""
    kept = array("i", ids)
    packed = kept.tobytes()
    size = kept.itemsize * block_tokens
    chained = _chained(len(ids), block_tokens, lambda i: packed[i * size : (i + 1) * size])
    return replace(chained, ids=kept)


def of_text(text: str, *, block_tokens: int) -> Prompt:
    words = text.split()
    return _chained(
        len(words),
        block_tokens,
        lambda i: " ".join(words[i * block_tokens : (i + 1) * block_tokens]).encode(),
    )


def _chained(tokens: int, block_tokens: int, block: Callable[[int], bytes]) -> Prompt:
    digest, blocks = b"", []
    for i in range(tokens // block_tokens):
        digest = blake2b(digest + block(i), digest_size=DIGEST_BYTES).digest()
        blocks.append(digest)
    return Prompt(tokens=tokens, blocks=tuple(blocks))
