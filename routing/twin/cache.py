"""A cluster's hybrid prefix cache in the twin: which leading blocks of a prompt need no computing.

KV of full attention is kept per block and serves any prompt that starts with the same blocks. The
state of linear layers is kept once per prompt, at the end of its last full block, and serves only a
prompt that has exactly that prefix (paper, section 6). Eviction is by blocks, least recently used
first, and of one prompt the last block first, so a prefix is always shortened from its end.

Blocks that are always used together are one node of a radix tree: a prompt costs a few steps for
its nodes, not one for each of its blocks. Two properties keep the tree down to one table and one
queue. An id names its whole prefix, so a node is found by its first id, and matches as a whole
where its last id does. And whoever uses a node uses all before it, later in the queue: what is in
front of the queue has nothing behind it in the tree.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf

from routing.twin.requests import Blocks


class _Node:
    """Blocks `ids`: of every prompt that has them, the ones from `start` to before `end`.

    `last` is the last of them, `kv_ready_s` when they can be used, `state_ready_s` when the linear
    state after the last can be, infinite where none is kept.
    """

    __slots__ = ("end", "ids", "kv_ready_s", "last", "start", "state_ready_s")

    def __init__(
        self, ids: Blocks, start: int, end: int, kv_ready_s: float, state_ready_s: float
    ) -> None:
        self.ids = ids
        self.start = start
        self.end = end
        self.last = ids[end - start - 1]
        self.kv_ready_s = kv_ready_s
        self.state_ready_s = state_ready_s

    def n_shared(self, blocks: Blocks, most: int) -> int:
        """To which place, at most `most`, a prompt that has the first block here has the same."""
        ids, start = self.ids, self.start
        high = min(self.end, most)
        if blocks[high - 1] == ids[high - 1 - start]:
            return high
        low = start + 1
        while high - low > 1:
            middle = (low + high) // 2
            if blocks[middle - 1] == ids[middle - 1 - start]:
                low = middle
            else:
                high = middle
        return low


class PrefixCache:
    """Blocks of prompts with the time from which each is there.

    `capacity_blocks` None: unbounded. With `exact_state` a prefix is usable up to the deepest
    linear state on it; without, the model has no such layers and all of it is. Prompts are
    sequences of ids from 0 on that nobody changes: the cache keeps slices of them, in all as long
    as it has blocks.
    """

    def __init__(self, *, capacity_blocks: int | None, exact_state: bool) -> None:
        self._capacity = capacity_blocks
        self._exact = exact_state
        self._by_first: dict[int, _Node] = {}
        self._by_use: OrderedDict[_Node, None] = OrderedDict()
        """Least recently used first; a node before all that lead to it."""
        self._n_blocks = 0

    def __len__(self) -> int:
        """Blocks held, ready or not."""
        return self._n_blocks

    def match(self, blocks: Blocks, *, at_s: float, most: int | None = None) -> tuple[int, int]:
        """(leading blocks whose KV is there, how many of them a prefill can go on from), of the
        first `most` blocks, at `at_s`. Matching is no use: the order of eviction stays."""
        by_first = self._by_first
        n = n_usable = 0
        stop = len(blocks) if most is None or most > len(blocks) else most
        while n < stop:
            node = by_first.get(blocks[n])
            if node is None or node.kv_ready_s > at_s:
                break
            end = node.end
            if end > stop or blocks[end - 1] != node.last:
                n = node.n_shared(blocks, stop)
                break
            n = end
            if node.state_ready_s <= at_s:
                n_usable = n
        return n, n_usable if self._exact else n

    def insert(self, blocks: Blocks, *, ready_s: float) -> None:
        """All blocks of a prompt whose prefill ends at `ready_s`, and its state after the last.

        Room is made at once: the blocks are written while the prefill runs. What was to be there
        earlier stays so.
        """
        by_first, by_use = self._by_first, self._by_use
        n, n_all = 0, len(blocks)
        path: list[_Node] = []
        node: _Node | None = None
        while n < n_all:
            node = by_first.get(blocks[n])
            if node is None:
                node = _Node(blocks[n:] if n else blocks, n, n_all, ready_s, inf)
                by_first[blocks[n]] = node
                by_use[node] = None
                self._n_blocks += n_all - n
                break
            end = node.end
            if end > n_all or blocks[end - 1] != node.last:
                node = self._split(node, node.n_shared(blocks, n_all))
                end = node.end
            if ready_s < node.kv_ready_s:
                node.kv_ready_s = ready_s
            path.append(node)
            n = end
        if node is not None and ready_s < node.state_ready_s:
            node.state_ready_s = ready_s
        for node in reversed(path):
            by_use.move_to_end(node)
        if self._capacity is not None and self._n_blocks > self._capacity:
            self._evict(self._n_blocks - self._capacity)

    def copy(self) -> PrefixCache:
        """One that holds the same and goes its own way. Its cost grows with the blocks held."""
        other = PrefixCache(capacity_blocks=self._capacity, exact_state=self._exact)
        for node in self._by_use:
            twin = _Node(node.ids, node.start, node.end, node.kv_ready_s, node.state_ready_s)
            other._by_use[twin] = None
            other._by_first[node.ids[0]] = twin
        other._n_blocks = self._n_blocks
        return other

    def clear(self) -> None:
        """Nothing is held any more, as after the loss of the memory it was in."""
        self._by_first.clear()
        self._by_use.clear()
        self._n_blocks = 0

    def _split(self, node: _Node, at: int) -> _Node:
        """The part of a node before `at`, as a node of its own; the rest keeps its place in the
        queue."""
        n = at - node.start
        ids = node.ids
        front = _Node(ids[:n], node.start, at, node.kv_ready_s, inf)
        self._by_first[ids[0]] = front
        self._by_first[ids[n]] = node
        self._by_use[front] = None
        node.ids, node.start = ids[n:], at
        return front

    def _evict(self, excess: int) -> None:
        """`excess` blocks, the least recently used first; of the last node only what must go."""
        by_use = self._by_use
        self._n_blocks -= excess
        while excess > 0:
            node = next(iter(by_use))
            n_left = node.end - node.start - excess
            if n_left > 0:
                node.ids = node.ids[:n_left]
                node.end, node.last, node.state_ready_s = node.start + n_left, node.ids[-1], inf
                return
            excess = -n_left
            del by_use[node], self._by_first[node.ids[0]]
