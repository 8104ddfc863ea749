"""Prefill instances of one cluster: first come, first served, one prompt at a time on each.

A request goes to the instance that would finish it first. As every service time is known when a
request is given to its instance, so are its start and its end:

    start = max(given, when the instance has done all it was given)        end = start + T(l, k)

Without caches all instances would take equally long for it, so that is one queue in front of them
all: G/G/c. With caches T depends on what is cached when the prefill starts, which for a queue in
order is known as well: what is there now and whatever is computed before that start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from routing.twin.cache import PrefixCache
from routing.twin.requests import Blocks
from routing.twin.row import COMPUTED, END, GIVEN, PROMPT, START, Row
from routing.twin.service import Service


class PrefillPool:
    """Instances by number: `n` at first; they come, go and fail by `add`, `remove` and `fail`.

    `new_cache` makes an empty prefix cache, for each instance or one that all share; None: nothing
    is cached. `keeps_rows`: remember what is in hand, for `fail`.
    """

    def __init__(
        self,
        service: Service,
        n: int,
        *,
        new_cache: Callable[[], PrefixCache] | None = None,
        shared_cache: bool = True,
        block_tokens: int = 1,
        keeps_rows: bool = False,
    ) -> None:
        self.service, self.block_tokens = service, block_tokens
        self._new_cache = new_cache
        self._own_caches = new_cache is not None and not shared_cache
        n_caches = 0 if new_cache is None else 1 if shared_cache else n
        self._caches = [] if new_cache is None else [new_cache() for _ in range(n_caches)]
        self._free_s = [0.0] * n
        """When an instance has done all it was given; infinity where it takes nothing new."""
        self._rows: list[list[Row]] | None = [[] for _ in range(n)] if keeps_rows else None
        self._starts: list[float] = []
        self._leaving_s: list[float] = []
        """When removed instances have done what they have."""
        self.stranded: list[Row] = []
        """Given while no instance takes any; for the caller to give again."""
        self._given_s = 0.0
        """Work given so far, in instance seconds."""

    def __len__(self) -> int:
        """Instances that take requests."""
        return sum(1 for free_s in self._free_s if free_s < math.inf)

    @property
    def spreads_prefixes(self) -> bool:
        """Whether a prompt may be given to an instance that does not hold what another one does."""
        return self._own_caches

    def take(self, rows: Sequence[Row], service_s: Sequence[float]) -> None:
        """Gives rows, in order of GIVEN, to their instances; fills START and END of each."""
        free_s, starts, kept = self._free_s, self._starts, self._rows
        for row, seconds in zip(rows, service_s, strict=True):
            start_s = min(free_s)
            i = free_s.index(start_s)
            given_s = row[GIVEN]
            if start_s < given_s:
                start_s = given_s
            else:
                starts.append(start_s)
            row[START] = start_s
            row[END] = free_s[i] = start_s + seconds
            if kept is not None:
                kept[i].append(row)
        self._given_s += sum(service_s)

    def take_one(self, row: Row, blocks: Blocks, *, moved_tokens: int = 0) -> bool:
        """As `take` for one row of which a prefix may be cached here, or was brought here; fills
        COMPUTED too. False where nobody takes requests: the row is `stranded`."""
        free_s = self._free_s
        start_s = min(free_s) if free_s else math.inf
        if start_s == math.inf:
            self.stranded.append(row)
            return False
        given_s, prompt, size = row[GIVEN], row[PROMPT], self.block_tokens
        most = (prompt - 1) // size  # the last token is computed, its logits start the answer
        i = free_s.index(start_s)
        if self._own_caches and blocks:
            i = self._soonest(prompt, blocks, given_s, most)
            start_s = free_s[i]
        if start_s > given_s:
            self._starts.append(start_s)
        else:
            start_s = given_s
        cached = min(moved_tokens, most * size)
        cache = None
        if self._caches and blocks:
            cache = self._caches[i if self._own_caches else 0]
            held = cache.match(blocks, at_s=start_s, most=most)[1] * size
            if held > cached:
                cached = held
        row[COMPUTED] = prompt - cached
        seconds = self.service.seconds(prompt - cached, cached)
        row[START] = start_s
        end_s = row[END] = free_s[i] = start_s + seconds
        self._given_s += seconds
        if cache is not None:
            cache.insert(blocks, ready_s=end_s)
        if self._rows is not None:
            self._rows[i].append(row)
        return True

    def _soonest(self, prompt: int, blocks: Blocks, given_s: float, most: int) -> int:
        """The instance that would finish it first, each with a cache of its own as it is now."""
        best, found = math.inf, 0
        for i, (free, cache) in enumerate(zip(self._free_s, self._caches, strict=True)):
            if free < math.inf:
                held = cache.match(blocks, at_s=given_s, most=most)[1]
                cached = held * self.block_tokens
                end_s = max(free, given_s) + self.service.seconds(prompt - cached, cached)
                if end_s < best:
                    best, found = end_s, i
        return found

    def held_tokens(self, row: Row, blocks: Blocks) -> int:
        """Leading tokens of it with KV and state somewhere in the cluster, when it is given."""
        if not blocks:
            return 0
        size, at_s = self.block_tokens, row[GIVEN]
        most = (row[PROMPT] - 1) // size
        best = 0
        for cache in self._caches:
            held = cache.match(blocks, at_s=at_s, most=most)[1]
            if held > best:
                best = held
        return best * size

    def busy_s(self, now_s: float) -> float:
        """Instance seconds worked until now: what was given less what is left of it."""
        self._leaving_s = [free_s for free_s in self._leaving_s if free_s > now_s]
        left = [free_s - now_s for free_s in self._free_s if now_s < free_s < math.inf]
        return self._given_s - sum(left) - sum(free_s - now_s for free_s in self._leaving_s)

    def n_waiting(self, now_s: float) -> int:
        """Given and not begun."""
        self._starts = [start_s for start_s in self._starts if start_s > now_s]
        return len(self._starts) + len(self.stranded)

    def add(self, now_s: float) -> None:
        """One instance more, free from `now_s`."""
        self._free_s.append(now_s)
        if self._own_caches and self._new_cache is not None:
            self._caches.append(self._new_cache())
        if self._rows is not None:
            self._rows.append([])

    def remove(self, now_s: float) -> float:
        """The instance that is free first takes nothing new; when it has done what it has."""
        free_s = min(self._free_s)
        self._free_s[self._free_s.index(free_s)] = math.inf
        self._leaving_s.append(free_s)
        return max(free_s, now_s)

    def fail(self, now_s: float) -> list[Row]:
        """An instance is lost with all it had: the rows that have to begin anew."""
        assert self._rows is not None, "a pool that may fail keeps its rows"
        i = max(j for j, free_s in enumerate(self._free_s) if free_s < math.inf)
        self._free_s[i] = math.inf
        lost = [row for row in self._rows[i] if row[END] > now_s]
        self._rows[i] = []
        self._given_s -= sum(row[END] - max(row[START], now_s) for row in lost)
        gone = {row[START] for row in lost}
        self._starts = [start_s for start_s in self._starts if start_s not in gone]
        if self._own_caches:
            self._caches[i].clear()
        return lost

    def forget_prefixes(self) -> None:
        """All of the cluster's caches are lost."""
        for cache in self._caches:
            cache.clear()

    def forget_done(self, now_s: float) -> None:
        """Keeps in hand only what is not done: memory does not grow with the run."""
        self._starts = [start_s for start_s in self._starts if start_s > now_s]
        if self._rows is not None:
            self._rows = [[row for row in rows if row[END] > now_s] for rows in self._rows]
