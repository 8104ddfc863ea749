"""What a prompt is to the rule: its length, what each side holds of it, what could be moved."""

from __future__ import annotations

import math
from dataclasses import dataclass

from routing.core.placement.rule import Judged, Prefixes, Route, Rule, Side, judge
from routing.gate.count import Counter, Length
from routing.gate.prefix import NOTHING, Chain, Match, chain_of
from routing.gate.prompt import BYTES_PER_ID, Prompt
from routing.gate.upstream import Upstream

_ESTIMATE_MARGIN_RATIO = 0.05
"""A prefix of estimated length is asked for with so much more: one token too few would leave its
last block behind, or its whole state, and what lies beyond is moved only if it is held as well."""


@dataclass(frozen=True)
class Measured:
    """A prompt, its length, and what each side is believed to hold of it.

    `remote` is the remote that would take the request now.
    """

    prompt: Prompt
    chains: tuple[Chain, ...]
    length: Length
    matches: dict[Side, Match]
    cached_tokens: dict[Side, int]
    judged: Judged

    def uncached_tokens(self, side: Side) -> int:
        return self.length.tokens - self.cached_tokens[side]


@dataclass(frozen=True)
class Move:
    """A prefix to be moved before the prefill: `n_blocks` blocks that `source` holds.

    `tokens` is what is asked for, `new_tokens` what of it is believed to be missing where it is
    needed.
    """

    source: Upstream
    link: str
    n_blocks: int
    tokens: int
    new_tokens: int

    def __str__(self) -> str:
        return f"{self.link}; tokens={self.tokens}"


class Measurer:
    """Measures prompts for the gate of one PD `cluster`, whose upstream is `local`."""

    def __init__(
        self, *, cluster: str, local: Upstream, counter: Counter, block_tokens: int
    ) -> None:
        self._cluster, self._local, self._counter = cluster, local, counter
        self._block_bytes = block_tokens * BYTES_PER_ID

    def blocks(self, prompt: Prompt, *, tokens: int, of_tokens: int) -> float:
        """Blocks of the index that the first `tokens` of the prompt's `of_tokens` fill."""
        return tokens * prompt.n_bytes / of_tokens / self._block_bytes

    def measure(
        self, prompt: Prompt, rule: Rule | None, *, remote: Upstream | None, admits: bool
    ) -> Measured:
        """Judges by `remote`; nothing moves between the sides unless it `admits` requests."""
        chains = tuple(
            chain_of(piece, salt=prompt.salt, block_bytes=self._block_bytes)
            for piece in prompt.pieces
        )
        length = self._counter.count(prompt)
        matches: dict[Side, Match] = {"local": NOTHING, "remote": NOTHING}
        cached: dict[Side, int] = {"local": 0, "remote": 0}
        movable: dict[Side, int] = {"local": 0, "remote": 0}
        # A batch is one request with many prefixes: it has no first N tokens to move.
        may_move = admits and len(chains) == 1
        for upstream in filter(None, (self._local, remote)):
            side, credit = upstream.side, upstream.index.credit
            match = matches[side] = upstream.index.match(chains)
            cached[side] = int(self._tokens(prompt, length, match.n_blocks) * credit)
            if may_move and upstream.health.state == "up":
                movable[side] = int(self._tokens(prompt, length, match.n_settled) * credit)
        name = remote.name if remote is not None else ""
        judged = judge(
            rule,
            Prefixes(
                total=length.tokens,
                local=cached["local"],
                remote=cached["remote"],
                movable_local=movable["local"],
                movable_remote=movable["remote"],
            ),
            to_local=f"{name}->{self._cluster}",
            to_remote=f"{self._cluster}->{name}",
        )
        return Measured(prompt, chains, length, matches, cached, judged)

    def move(
        self, chosen: Route, measured: Measured | None, *, remote: Upstream | None
    ) -> Move | None:
        """What the route moves, and from where."""
        if chosen.link is None or measured is None or remote is None:
            return None
        source = remote if chosen.side == "local" else self._local
        # All of it, however few of such claims came true lately: what the source turns out not to
        # hold costs nothing on the link.
        n_blocks = measured.matches[source.side].n_settled
        tokens = self._tokens(measured.prompt, measured.length, n_blocks)
        new_tokens = tokens - measured.cached_tokens[chosen.side]
        if measured.length.source != "tokenised":
            tokens += math.ceil(tokens * _ESTIMATE_MARGIN_RATIO)
        return Move(source, chosen.link, n_blocks, tokens, new_tokens)

    def _tokens(self, prompt: Prompt, length: Length, n_blocks: int) -> int:
        # Integers first: for token ids this is exactly the tokens of these blocks.
        return length.tokens * n_blocks * self._block_bytes // max(1, prompt.n_bytes)
