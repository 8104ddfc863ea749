"""Prompts to send: random ones, and ones that share real prefixes as a trace's hash ids say.

Two forms of the same tokens: a list of ids, or words of four letters and a space, so that a reader
who counts bytes finds exactly five to a token.
"""

from __future__ import annotations

from array import array
from random import Random
from typing import Literal

from routing.lab.traces import BLOCK_TOKENS

Form = Literal["ids", "text"]
_LETTERS = "abcdefghijklmnop"
WORDS = tuple(a + b + c + d for a in _LETTERS for b in _LETTERS for c in _LETTERS for d in _LETTERS)
"""One word per token id 0 .. 65535."""


def random_ids(n_tokens: int, random: Random) -> list[int]:
    """That many token ids in 0 .. 65535."""
    return array("H", random.randbytes(2 * n_tokens)).tolist()


def trace_ids(hash_ids: tuple[int, ...], n_tokens: int, *, seed: int) -> list[int]:
    """The prompt of a trace row: the same hash id is the same block in every row of a seed."""
    ids: list[int] = []
    for hash_id in hash_ids:
        ids += random_ids(BLOCK_TOKENS, Random(f"{seed}/{hash_id}"))
    return ids[:n_tokens]


def as_form(ids: list[int], form: Form) -> list[int] | str:
    return ids if form == "ids" else " ".join(map(WORDS.__getitem__, ids))
