"""A block-level model of the hybrid prefix cache, to compare the twin's with: slow and plain."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from math import inf

Ids = dict[str, int]


def chained(text: str, ids: Ids) -> list[int]:
    """The blocks of a prompt, one a letter: an id for each of its prefixes, known ones first."""
    return [ids.setdefault(text[: n + 1], len(ids)) for n in range(len(text))]


class NaiveCache:
    def __init__(self, *, capacity_blocks: int | None, exact_state: bool) -> None:
        self.capacity, self.exact = capacity_blocks, exact_state
        self.blocks: OrderedDict[int, tuple[float, float]] = OrderedDict()
        """When each block, and when a state after it, is there; least recently used first."""

    def __len__(self) -> int:
        return len(self.blocks)

    def match(
        self, blocks: Sequence[int], *, at_s: float, most: int | None = None
    ) -> tuple[int, int]:
        n = n_usable = 0
        for block in blocks[:most]:
            kv_s, state_s = self.blocks.get(block, (inf, inf))
            if kv_s > at_s:
                break
            n += 1
            if state_s <= at_s:
                n_usable = n
        return n, n_usable if self.exact else n

    def insert(self, blocks: Sequence[int], *, ready_s: float) -> None:
        for n, block in enumerate(reversed(blocks)):
            kv_s, state_s = self.blocks.pop(block, (inf, inf))
            self.blocks[block] = min(kv_s, ready_s), min(state_s, ready_s if n == 0 else inf)
        while self.capacity is not None and len(self.blocks) > self.capacity:
            self.blocks.popitem(last=False)
