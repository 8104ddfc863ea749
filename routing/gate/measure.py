"""What a prompt is to the rule: its length, what each side holds of it, what could be moved."""

from __future__ import annotations

import math
from dataclasses import dataclass

from routing.core.placement.rule import Judged, Prefixes, Route, Rule, Side, judge
from routing.gate.count import Counter, Length
from routing.gate.prefix import NOTHING, Chain, Match, chain_of
from routing.gate.prompt import BYTES_PER_ID, Prompt
from routing.gate.reading import Reading
from routing.gate.upstream import Upstream

_ESTIMATE_MARGIN_RATIO = 0.05
"""A prefix of estimated length is asked for with so much more: one token too few would leave its
last block behind, or its whole state, and what lies beyond is moved only if it is held as well."""


@dataclass(frozen=True)
class Measured:
    """A prompt as read, and what each side is believed to hold of it.

    `remote` is the remote that would take the request now.
    """

    reading: Reading
    matches: dict[Side, Match]
    cached_tokens: dict[Side, int]
    judged: Judged

    @property
    def prompt(self) -> Prompt:
        return self.reading.prompt

    @property
    def chains(self) -> tuple[Chain, ...]:
        return self.reading.chains

    @property
    def length(self) -> Length:
        return self.reading.length

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
    """Measures prompts for the gate of one PD `cluster`."""

    def __init__(self, *, cluster: str, counter: Counter, block_tokens: int) -> None:
        self._cluster, self._counter = cluster, counter
        self._block_bytes = block_tokens * BYTES_PER_ID

    def read(self, prompt: Prompt) -> Reading:
        """Its blocks and its length."""
        chains = tuple(
            chain_of(piece, salt=prompt.salt, block_bytes=self._block_bytes)
            for piece in prompt.pieces
        )
        return Reading(prompt, chains, self._counter.count(prompt), self._block_bytes)

    def blocks(self, prompt: Prompt, *, tokens: int, of_tokens: int) -> float:
        """Blocks of the index that the first `tokens` of the prompt's `of_tokens` fill."""
        return tokens * prompt.n_bytes / of_tokens / self._block_bytes

    def measure(
        self,
        reading: Reading,
        rule: Rule | None,
        *,
        local: Upstream,
        remote: Upstream | None,
        admits: bool,
    ) -> Measured:
        """Judges by these two; nothing moves between them unless `remote` `admits` requests."""
        matches: dict[Side, Match] = {"local": NOTHING, "remote": NOTHING}
        cached: dict[Side, int] = {"local": 0, "remote": 0}
        movable: dict[Side, int] = {"local": 0, "remote": 0}
        # A batch is one request with many prefixes: it has no first N tokens to move.
        may_move = admits and len(reading.chains) == 1
        for upstream in filter(None, (local, remote)):
            side, credit = upstream.side, upstream.index.credit
            match = matches[side] = reading.match(upstream)
            cached[side] = int(reading.tokens(match.n_blocks) * credit)
            if may_move and upstream.is_up:
                movable[side] = int(reading.tokens(match.n_settled) * credit)
        name = remote.place if remote is not None else ""
        judged = judge(
            rule,
            Prefixes(
                total=reading.length.tokens,
                local=cached["local"],
                remote=cached["remote"],
                movable_local=movable["local"],
                movable_remote=movable["remote"],
            ),
            to_local=f"{name}->{self._cluster}",
            to_remote=f"{self._cluster}->{name}",
        )
        return Measured(reading, matches, cached, judged)

    def move(
        self,
        chosen: Route,
        measured: Measured | None,
        *,
        local: Upstream,
        remote: Upstream | None,
    ) -> Move | None:
        """What the route moves, and from where."""
        if chosen.link is None or measured is None or remote is None:
            return None
        source = remote if chosen.side == "local" else local
        # All of it, however few of such claims came true lately: what the source turns out not to
        # hold costs nothing on the link.
        n_blocks = measured.matches[source.side].n_settled
        tokens = measured.reading.tokens(n_blocks)
        new_tokens = tokens - measured.cached_tokens[chosen.side]
        if measured.length.source != "tokenised":
            tokens += math.ceil(tokens * _ESTIMATE_MARGIN_RATIO)
        return Move(source, chosen.link, n_blocks, tokens, new_tokens)
