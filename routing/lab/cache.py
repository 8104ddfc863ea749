"""A block prefix cache: which leading blocks of a prompt need no computing.

KV of full attention is kept per block and serves any prompt that starts with the same blocks. The
state of linear layers is kept once per request, at the end of its last full block, and serves only
a prompt that has exactly that prefix. With `linear_state` `exact` a prefix is therefore usable up
to the deepest such snapshot on it; with `none` there are no such layers and all of it is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from routing.lab.prompt import Prompt

LinearState = Literal["exact", "none"]


@dataclass(frozen=True)
class Change:
    """What inserting `prompt` did: the runs of its blocks that are new, the block of it at whose
    end a state is new, and the blocks that left, each with whether a state left with it."""

    prompt: Prompt
    stored: Sequence[range]
    state_at: int | None
    removed: Sequence[tuple[bytes, bool]]


class Listener(Protocol):
    """Who is told what a cache holds."""

    def changed(self, change: Change) -> None: ...

    def cleared(self) -> None: ...


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
        self.listeners: list[Listener] = []

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
        stored = self._missing(blocks) if self.listeners else ()
        is_new_state = self._exact and bool(blocks) and not self._blocks.get(blocks[-1], False)
        # Last block first, so that eviction shortens prefixes from their ends.
        for i, block in enumerate(reversed(blocks)):
            self._blocks[block] = self._blocks.get(block, False) or i == 0
            self._blocks.move_to_end(block)
        removed: list[tuple[bytes, bool]] = []
        if self._capacity is not None:
            while len(self._blocks) > self._capacity:
                block, had_snapshot = self._blocks.popitem(last=False)
                removed.append((block, had_snapshot and self._exact))
        state_at = len(blocks) - 1 if is_new_state else None
        for listener in self.listeners:
            listener.changed(Change(prompt, stored, state_at, removed))

    def clear(self) -> None:
        self._blocks.clear()
        for listener in self.listeners:
            listener.cleared()

    def _missing(self, blocks: Sequence[bytes]) -> list[range]:
        """Runs of blocks that are not held."""
        runs: list[range] = []
        for i, block in enumerate(blocks):
            if block in self._blocks:
                continue
            if runs and runs[-1].stop == i:
                runs[-1] = range(runs[-1].start, i + 1)
            else:
                runs.append(range(i, i + 1))
        return runs

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
