"""A prompt as it was read: its blocks, its length, what of it an upstream is believed to hold."""

from __future__ import annotations

from dataclasses import dataclass

from routing.gate.count import Length
from routing.gate.prefix import Chain, Match
from routing.gate.prompt import Prompt
from routing.gate.upstream import Upstream


@dataclass(frozen=True, slots=True)
class Reading:
    """`chains` are the prompt's pieces in blocks of `block_bytes`."""

    prompt: Prompt
    chains: tuple[Chain, ...]
    length: Length
    block_bytes: int

    def tokens(self, n_blocks: int) -> int:
        """Tokens that so many of its blocks hold."""
        # Integers first: for token ids this is exactly the tokens of these blocks.
        return self.length.tokens * n_blocks * self.block_bytes // max(1, self.prompt.n_bytes)

    def match(self, upstream: Upstream) -> Match:
        """What the upstream is believed to hold of it."""
        return upstream.index.match(self.chains)

    def uncached_tokens(self, upstream: Upstream) -> int:
        """What the upstream would have to compute, as far as engines confirmed such claims."""
        held = self.tokens(self.match(upstream).n_blocks) * upstream.index.credit
        return self.length.tokens - int(held)
