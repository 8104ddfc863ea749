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

With `exact_state` (models whose linear layers keep one state a request, docs/contracts.md) a prefix
counts only up to the deepest block at whose end such a state was left: the last full block of a
prompt that was prefilled. The state lives and leaves with its block.

Keys are stable across processes. The least recently used block leaves first and a prefix always
outlives its continuations.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import xxhash

from routing.core.placement.credit import Credit

Chain = tuple[bytes, ...]


def new_hasher(salt: bytes) -> xxhash.xxh3_64:
    """Fed with a prompt's bytes, its digest at the end of each block is that block's key, 8 bytes.

    XXH3, as Dynamo hashes blocks: over 10 GB/s where BLAKE2b makes 1.4. Whoever made two prompts
    collide would have one of them sent to the wrong side, no more: keys are beliefs, not content.
    """
    return xxhash.xxh3_64(salt)


def chain_of(piece: bytes, *, salt: bytes, block_bytes: int) -> Chain:
    """One key per full block of the piece, each naming the whole prefix up to its end."""
    hasher = new_hasher(salt)
    view = memoryview(piece)
    keys: list[bytes] = []
    for end in range(block_bytes, len(piece) + 1, block_bytes):
        hasher.update(view[end - block_bytes : end])
        keys.append(hasher.digest())
    return tuple(keys)


@dataclass(frozen=True)
class Match:
    """Leading blocks the upstream is believed to hold, summed over the chains of the prompt.

    `n_settled` of them do not depend on a request whose prefill may still be running.
    """

    n_blocks: int
    n_settled: int


NOTHING = Match(0, 0)


class _Block(msgspec.Struct, gc=False):
    # There may be a million, and holding numbers only they are nothing for the garbage collector.
    born: int  # the request that last had to compute it anew
    touched: int  # the last request it was part of
    floor: int  # continuations touched before this are not believed: they went with the block
    n_pending: int = 0
    state_born: int = 0  # the request that left a state at this block's end; 0: none did
    state_touched: int = 0  # the last request that ended here


@dataclass(frozen=True, slots=True)
class _Found:
    """`n_known` leading blocks of a chain are believed held, whether or not they can be used."""

    n_known: int
    n_blocks: int
    n_settled: int


@dataclass
class Ticket:
    """One request given to the upstream: what it may leave there, and what was claimed before.

    Of each chain the first `n_settled` blocks were there already, whatever becomes of it.
    """

    seq: int
    chains: tuple[Chain, ...]
    n_settled: tuple[int, ...]
    match: Match
    _open: bool = field(default=True, repr=False)


class Holders(Protocol):
    """Who is told by the engines themselves what they hold."""

    def __contains__(self, key: bytes) -> bool: ...

    def cleared(self) -> None:
        """The index was cleared: enter again what is held."""


class PrefixIndex:
    """The index of one upstream. `capacity_blocks` None is unbounded, 0 holds nothing.

    `on_stored` is told each chain that a request of this gate left in the upstream's cache; with
    `exact_state` its last key is where the state was left. `holders`, where engines tell what they
    hold: what they do hold is believed whatever a request found, because it may have gone to an
    engine that does not.
    """

    def __init__(self, capacity_blocks: int | None, *, exact_state: bool = False) -> None:
        self.on_stored: Callable[[Chain], None] | None = None
        self.holders: Holders | None = None
        self.exact_state = exact_state
        self._capacity_blocks = capacity_blocks
        self._blocks: OrderedDict[bytes, _Block] = OrderedDict()
        self._seq = 0
        self._credit = Credit()

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: bytes) -> bool:
        return key in self._blocks

    @property
    def credit(self) -> float:
        """Share of recent claims that came true, 0..1."""
        return self._credit.ratio

    def match(self, chains: tuple[Chain, ...]) -> Match:
        """How much of the prompt is believed cached. Changes nothing."""
        return _summed([self._find(chain) for chain in chains])

    def dispatch(self, chains: tuple[Chain, ...]) -> Ticket:
        """Records that a prompt is being sent to the upstream."""
        self._seq += 1
        found = [self._find(chain) for chain in chains]
        # Instructions that all prompts begin with are part of some running prefill at any time.
        kept = tuple(
            self._record(chain, ends_with_state=True, pending_from=each.n_settled)
            for chain, each in zip(chains, found, strict=True)
        )
        return Ticket(self._seq, kept, tuple(each.n_settled for each in found), _summed(found))

    def adopt(self, keys: Sequence[bytes], *, state_at_end: bool) -> None:
        """Records what another gate says the upstream holds: consecutive keys of one chain.

        What comes before them is told first or was told before. `state_at_end`: a state was left at
        the end of the last key's block.
        """
        self._seq += 1
        self._record(tuple(keys), ends_with_state=state_at_end, pending_from=len(keys))

    def prefilled(self, ticket: Ticket) -> None:
        """The first answer byte came: the prompt's blocks are in the cache."""
        if not self._settle(ticket) or self.on_stored is None:
            return
        for chain in ticket.chains:
            end = self._blocks.get(chain[-1]) if chain else None
            # A prompt longer than the cache left no state that could be found again.
            if end is not None and (end.state_born or not self.exact_state):
                self.on_stored(chain)

    def abandon(self, ticket: Ticket) -> None:
        """The request ended before any answer byte: what only it would have left is forgotten."""
        if not self._settle(ticket):
            return
        for chain in ticket.chains:
            for key in chain:
                block = self._blocks.get(key)
                if block is None:
                    continue
                if block.born == block.touched == ticket.seq:
                    del self._blocks[key]
                elif block.state_born == block.state_touched == ticket.seq:
                    block.state_born = 0

    def learn(self, ticket: Ticket, *, cached_blocks: float) -> None:
        """What the engine says it had cached for this prompt, in blocks of this index.

        A batch tells nothing: its one number cannot be split over the prompts.
        """
        n_settled = ticket.match.n_settled
        if len(ticket.chains) != 1 or n_settled == 0:
            return
        missed = cached_blocks <= n_settled - 1
        self._credit.claimed(n_settled, confirmed=cached_blocks if missed else n_settled)
        if not missed:
            return
        n_cached = int(cached_blocks)
        for i, key in enumerate(ticket.chains[0][n_cached:], n_cached):
            block = self._blocks.get(key)
            if block is None:
                continue
            block.floor = max(block.floor, ticket.seq)
            # The blocks have just been computed again, but a state is left only at the prompt's
            # end: those on the way that the engine did not find are gone.
            if i < n_settled and block.state_touched < ticket.seq and not self._is_told(key):
                block.state_born = 0

    def lost(self, chain: Chain, *, n_held: int) -> None:
        """The upstream holds no more than `n_held` leading blocks of this chain."""
        for key in chain[n_held:]:
            self._blocks.pop(key, None)

    def refresh(self, keys: Iterable[bytes]) -> None:
        """What continues these was used, so they leave after it: given from the deepest on."""
        for key in keys:
            if key in self._blocks:
                self._blocks.move_to_end(key)

    def lost_state(self, key: bytes) -> None:
        """No state is left at the end of this key's block, whether or not the block is."""
        block = self._blocks.get(key)
        if block is not None:
            block.state_born = 0

    def clear(self) -> None:
        """The upstream's processes are gone, and their caches with them."""
        self._blocks.clear()
        if self.holders is not None:
            self.holders.cleared()

    def _find(self, chain: Chain) -> _Found:
        n_known = n_blocks = n_settled = floor = 0
        settled = True
        get, exact_state = self._blocks.get, self.exact_state
        for key in chain:
            block = get(key)
            if block is None or (block.touched < floor and not self._is_told(key)):
                break
            n_known += 1
            settled = settled and block.n_pending == 0
            floor = block.floor
            if block.state_born or not exact_state:
                n_blocks = n_known
                if settled:
                    n_settled = n_known
        return _Found(n_known, n_blocks, n_settled)

    def _is_told(self, key: bytes) -> bool:
        return self.holders is not None and key in self.holders

    def _record(self, chain: Chain, *, ends_with_state: bool, pending_from: int) -> Chain:
        """Enters one chain as the most recent; what of it fits into the cache. Blocks from
        `pending_from` on wait for a prefill."""
        kept = chain
        if self._capacity_blocks is not None and len(chain) > self._capacity_blocks:
            kept, ends_with_state = chain[: self._capacity_blocks], False
        n_known = self._find(kept).n_known
        blocks, seq = self._blocks, self._seq
        # From the tail, so that a prefix is always more recent than what continues from it.
        for i in range(len(kept) - 1, -1, -1):
            key = kept[i]
            block = blocks.get(key)
            if block is None:
                blocks[key] = _Block(seq, seq, seq, int(i >= pending_from))
                continue
            blocks.move_to_end(key)
            block.touched = seq
            block.n_pending += i >= pending_from
            if i >= n_known:
                # Computed anew, and whatever state it once ended with is not.
                block.born = block.floor = seq
                block.state_born = 0
        if kept and ends_with_state:
            end = self._blocks[kept[-1]]
            end.state_born = end.state_born or self._seq
            end.state_touched = self._seq
        self._evict()
        return kept

    def _settle(self, ticket: Ticket) -> bool:
        """The request waits no more. False if that was known."""
        if not ticket._open:
            return False
        ticket._open = False
        for chain, n_settled in zip(ticket.chains, ticket.n_settled, strict=True):
            for key in chain[n_settled:]:
                block = self._blocks.get(key)
                if block is not None and block.n_pending:
                    block.n_pending -= 1
        return True

    def _evict(self) -> None:
        if self._capacity_blocks is None:
            return
        while len(self._blocks) > self._capacity_blocks:
            self._blocks.popitem(last=False)


def _summed(found: Sequence[_Found]) -> Match:
    return Match(sum(f.n_blocks for f in found), sum(f.n_settled for f in found))
