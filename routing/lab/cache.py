"""A block prefix cache: which leading blocks of a prompt need no computing."""

from __future__ import annotations

from collections import OrderedDict

from routing.lab.prompt import Prompt


class PrefixCache:
    """Digests of full blocks, least recently used out first. `capacity_tokens` None: unbounded."""

    def __init__(self, *, capacity_tokens: int | None, block_tokens: int) -> None:
        self._capacity = None if capacity_tokens is None else capacity_tokens // block_tokens
        self._block_tokens = block_tokens
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def held_tokens(self, prompt: Prompt) -> int:
        """Tokens of the longest prefix held, whole blocks."""
        n = 0
        for block in prompt.blocks:
            if block not in self._blocks:
                break
            n += 1
        return n * self._block_tokens

    def cached_tokens(self, prompt: Prompt) -> int:
        """As `held_tokens`, but never the whole prompt: a prefill computes one token at least,
        because its last one's logits start the answer."""
        held = self.held_tokens(prompt)
        return held if held < prompt.tokens else max(0, held - self._block_tokens)

    def insert(self, prompt: Prompt) -> None:
        # Last block first, so that eviction shortens prefixes from their ends.
        for block in reversed(prompt.blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        if self._capacity is not None:
            while len(self._blocks) > self._capacity:
                self._blocks.popitem(last=False)

    def clear(self) -> None:
        self._blocks.clear()
