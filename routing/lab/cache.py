"""A block prefix cache: which leading blocks of a prompt need no computing.

KV of full attention is kept per block and serves any prompt that starts with the same blocks. The
state of linear layers is kept once per request, at the end of its last full block, and serves only
a prompt that has exactly that prefix. With `linear_state` `exact` a prefix is therefore usable up
to the deepest such snapshot on it; with `none` there are no such layers and all of it is.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from routing.lab.prompt import Prompt

LinearState = Literal["exact", "none"]


class PrefixCache:
    """Digests of full blocks, least recently used out first, a snapshot with the block it ends.
    `capacity_tokens` None: unbounded."""

    def __init__(
        self,
        *,
        capacity_tokens: int | None,
        block_tokens: int,
        linear_state: LinearState = "none",
    ) -> None:
        self._capacity = None if capacity_tokens is None else capacity_tokens // block_tokens
        self._block_tokens, self._exact = block_tokens, linear_state == "exact"
        self._blocks: OrderedDict[bytes, bool] = OrderedDict()
        """Whether a snapshot was taken at the block's end."""

    def __len__(self) -> int:
        return len(self._blocks)

    def held_tokens(self, prompt: Prompt, at_most_tokens: int | None = None) -> int:
        """Tokens of the longest usable prefix held, whole blocks."""
        n, n_to_snapshot = self._matching(prompt, at_most_tokens)
        return (n_to_snapshot if self._exact else n) * self._block_tokens

    def held_kv_tokens(self, prompt: Prompt, at_most_tokens: int | None = None) -> int:
        """As `held_tokens`, by full attention alone: with or without a state to go on from."""
        return self._matching(prompt, at_most_tokens)[0] * self._block_tokens

    def cached_tokens(self, prompt: Prompt) -> int:
        """As `held_tokens`, but never the whole prompt: a prefill computes one token at least,
        because its last one's logits start the answer."""
        return self.held_tokens(prompt, prompt.tokens - 1)

    def insert(self, prompt: Prompt, tokens: int | None = None) -> None:
        """The full blocks of the prompt or of its first `tokens`, and a snapshot at their end."""
        blocks = prompt.blocks if tokens is None else prompt.blocks[: tokens // self._block_tokens]
        # Last block first, so that eviction shortens prefixes from their ends.
        for i, block in enumerate(reversed(blocks)):
            self._blocks[block] = self._blocks.get(block, False) or i == 0
            self._blocks.move_to_end(block)
        if self._capacity is not None:
            while len(self._blocks) > self._capacity:
                self._blocks.popitem(last=False)

    def clear(self) -> None:
        self._blocks.clear()

    def _matching(self, prompt: Prompt, at_most_tokens: int | None) -> tuple[int, int]:
        """Leading blocks held, and how many of them lead to the last snapshot."""
        n = n_to_snapshot = 0
        most = None if at_most_tokens is None else at_most_tokens // self._block_tokens
        for block in prompt.blocks[:most]:
            snapshot = self._blocks.get(block)
            if snapshot is None:
                break
            n += 1
            if snapshot:
                n_to_snapshot = n
        return n, n_to_snapshot
