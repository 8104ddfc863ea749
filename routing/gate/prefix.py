"""What one upstream's prefix cache probably holds: a bounded index of block-hash chains.

A prompt is a chain of hashes, each over the whole prefix up to the end of its block; only full
blocks count. The index assumes that a request sent to the upstream leaves its blocks there, and
corrects itself by what the engine reports (`usage.prompt_tokens_details.cached_tokens`):

* the engine had *less* than was claimed: the first block it missed had been evicted, and with it
  everything that continued from there. This prompt's own blocks have just been computed again and
  stay; every other continuation is forgotten (`_Block.floor`).
* a claim resting on a request whose prefill is still running proves nothing, so only the *settled*
  part of a claim is compared. An engine reports whole blocks of its own size and always computes at
  least one token, so coming within one block of the claim counts as having all of it.
* `credit` is the token-weighted share of settled claims that engines confirmed lately. Claims are
  scaled by it: with prefix caching off, or prompts spread over instances without affinity, the
  index would otherwise promise what no engine holds. It is exactly 1 while all claims come true.

Keys are stable across processes. The least recently used block leaves first and a prefix always
outlives its continuations.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

Chain = tuple[bytes, ...]

_KEY_BYTES = 8
_CREDIT_DECAY = 0.97
_CREDIT_PRIOR_BLOCKS = 16.0
"""Blocks' worth of good faith an upstream starts with."""


def chain_of(piece: bytes, *, salt: bytes, block_bytes: int) -> Chain:
    """One key per full block of the piece, each naming the whole prefix up to its end."""
    hasher = hashlib.blake2b(salt, digest_size=_KEY_BYTES)
    view = memoryview(piece)
    keys: list[bytes] = []
    for end in range(block_bytes, len(piece) + 1, block_bytes):
        hasher.update(view[end - block_bytes : end])
        keys.append(hasher.copy().digest())
    return tuple(keys)


@dataclass(frozen=True)
class Match:
    """Leading blocks the upstream is believed to hold, summed over the chains of the prompt.

    `n_settled` of them do not depend on a request whose prefill may still be running.
    """

    n_blocks: int
    n_settled: int


NOTHING = Match(0, 0)


@dataclass(slots=True)
class _Block:
    born: int  # the request that last had to compute it anew
    touched: int  # the last request it was part of
    floor: int  # continuations touched before this are not believed: they went with the block
    n_pending: int = 0


@dataclass
class Ticket:
    """One request given to the upstream: what it may leave there, and what was claimed before."""

    seq: int
    chains: tuple[Chain, ...]
    match: Match
    _open: bool = field(default=True, repr=False)


class PrefixIndex:
    """The index of one upstream. `capacity_blocks` None is unbounded, 0 holds nothing."""

    def __init__(self, capacity_blocks: int | None) -> None:
        self._capacity_blocks = capacity_blocks
        self._blocks: OrderedDict[bytes, _Block] = OrderedDict()
        self._seq = 0
        self._confirmed = self._claimed = _CREDIT_PRIOR_BLOCKS

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: bytes) -> bool:
        return key in self._blocks

    @property
    def credit(self) -> float:
        """Share of recent claims that came true, 0..1."""
        return self._confirmed / self._claimed

    def match(self, chains: tuple[Chain, ...]) -> Match:
        """How much of the prompt is believed cached. Changes nothing."""
        found = [self._match(chain) for chain in chains]
        return Match(sum(m.n_blocks for m in found), sum(m.n_settled for m in found))

    def dispatch(self, chains: tuple[Chain, ...]) -> Ticket:
        """Records that a prompt is being sent to the upstream."""
        self._seq += 1
        match = self.match(chains)
        if self._capacity_blocks is not None:
            chains = tuple(chain[: self._capacity_blocks] for chain in chains)
        for chain in chains:
            n_known = self._match(chain).n_blocks
            # From the tail, so that a prefix is always more recent than what continues from it.
            for i in reversed(range(len(chain))):
                self._touch(chain[i], known=i < n_known)
            self._evict()
        return Ticket(self._seq, chains, match)

    def prefilled(self, ticket: Ticket) -> None:
        """The first answer byte came: the prompt's blocks are in the cache."""
        if not ticket._open:
            return
        ticket._open = False
        for chain in ticket.chains:
            for key in chain:
                block = self._blocks.get(key)
                if block is not None and block.n_pending:
                    block.n_pending -= 1

    def abandon(self, ticket: Ticket) -> None:
        """The request ended before any answer byte: what only it would have left is forgotten."""
        if not ticket._open:
            return
        self.prefilled(ticket)
        for chain in ticket.chains:
            for key in chain:
                block = self._blocks.get(key)
                if block is not None and block.born == block.touched == ticket.seq:
                    del self._blocks[key]

    def learn(self, ticket: Ticket, *, cached_blocks: float) -> None:
        """What the engine says it had cached for this prompt, in blocks of this index.

        A batch tells nothing: its one number cannot be split over the prompts.
        """
        n_settled = ticket.match.n_settled
        if len(ticket.chains) != 1 or n_settled == 0:
            return
        missed = cached_blocks <= n_settled - 1
        confirmed = cached_blocks if missed else float(n_settled)
        self._confirmed = self._confirmed * _CREDIT_DECAY + confirmed
        self._claimed = self._claimed * _CREDIT_DECAY + n_settled
        if not missed:
            return
        for key in ticket.chains[0][int(cached_blocks) :]:
            block = self._blocks.get(key)
            if block is not None:
                block.floor = max(block.floor, ticket.seq)

    def clear(self) -> None:
        """The upstream's processes are gone, and their caches with them."""
        self._blocks.clear()

    def _match(self, chain: Chain) -> Match:
        n_blocks = n_settled = floor = 0
        settled = True
        for key in chain:
            block = self._blocks.get(key)
            if block is None or block.touched < floor:
                break
            n_blocks += 1
            settled = settled and block.n_pending == 0
            n_settled += settled
            floor = block.floor
        return Match(n_blocks, n_settled)

    def _touch(self, key: bytes, *, known: bool) -> None:
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = _Block(self._seq, self._seq, self._seq)
        else:
            self._blocks.move_to_end(key)
            block.touched = self._seq
            if not known:
                block.born = block.floor = self._seq
        block.n_pending += 1

    def _evict(self) -> None:
        if self._capacity_blocks is None:
            return
        while len(self._blocks) > self._capacity_blocks:
            self._blocks.popitem(last=False)
