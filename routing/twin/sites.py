"""What arrives at one PD cluster: requests each for itself, or sessions of growing prompts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from routing.core.model.curves import Array
from routing.twin.arrivals import Pattern, Steady, arrival_times
from routing.twin.lengths import Tokens, TokensAt
from routing.twin.pieces import joined, sliced
from routing.twin.requests import Blocks, Requests, cut

_IDS_OF_A_SITE = 1 << 44
"""Block ids of different sites never meet; no run opens so many conversations."""


@dataclass(frozen=True)
class Site:
    """Requests that share nothing."""

    pattern: Pattern
    prompt: TokensAt
    output: TokensAt

    def scaled(self, factor: float) -> Site:
        return replace(self, pattern=self.pattern.scaled(factor))

    def requests(
        self, index: int, seeds: np.random.SeedSequence, *, piece: int, blocks: bool
    ) -> Iterator[Requests]:
        """Pieces of `piece` requests, empty `blocks` with each if they are wanted."""
        gaps, rates, prompts, outputs = map(np.random.default_rng, seeds.spawn(4))
        for at_s in arrival_times(self.pattern, gaps=gaps, rates=rates, n=piece):
            n = len(at_s)
            yield Requests(
                at_s=at_s,
                prompt_tokens=self.prompt.tokens(prompts.random(n), at_s),
                output_tokens=self.output.tokens(outputs.random(n), at_s),
                site=np.full(n, index, dtype=np.int64),
                blocks=[()] * n if blocks else None,
            )


@dataclass(frozen=True)
class Sessions:
    """Conversations of agents: each prompt is the one before, its answer, and something new.

    Sessions begin as a Poisson process and have a geometric number of turns, `turns` in the mean;
    together they bring `rate_rps` requests/s. The first prompt is `shared_tokens` that all
    sessions of the site begin with (instructions, tools) and `first`; each later one adds the
    answer before it and `growth`. It comes an exponential time of mean `think_s` after an answer
    that was read at `answer_tokens_per_s`: what a fleet that keeps its SLO gives. A prompt that
    would pass `max_tokens` is compacted: it falls back to the length of the first one, with what
    is over, and shares nothing but `shared_tokens` with what was before.

    `lead_s` is how long before the run the first session may have begun, so that a run does not
    begin with first turns only.
    """

    rate_rps: float
    turns: float
    first: TokensAt
    growth: TokensAt
    output: TokensAt
    think_s: float
    answer_tokens_per_s: float
    max_tokens: int
    block_tokens: int
    shared_tokens: int = 0
    lead_s: float = 0.0

    def scaled(self, factor: float) -> Sessions:
        return replace(self, rate_rps=self.rate_rps * factor)

    def requests(
        self, index: int, seeds: np.random.SeedSequence, *, piece: int
    ) -> Iterator[Requests]:
        """Pieces of about `piece` requests."""
        starts, *streams = map(np.random.default_rng, seeds.spawn(6))
        turns = _Turns(self, index, streams)
        later: Requests | None = None
        begins = Steady(self.rate_rps / self.turns)
        batch = max(1, round(piece / self.turns))
        for start_s in arrival_times(begins, gaps=starts, rates=starts, n=batch):
            fresh = turns.of(start_s - self.lead_s)
            known = fresh if later is None else joined([later, fresh])
            # What later sessions bring comes after the last of these began.
            first = int(np.searchsorted(known.at_s, 0.0))
            n = int(np.searchsorted(known.at_s, start_s[-1] - self.lead_s, side="right"))
            if n > first:
                yield sliced(known, first, n)
            later = sliced(known, n, len(known))


class _Turns:
    """The requests of one session after another: the n-th has the same whoever asks how."""

    def __init__(self, sessions: Sessions, index: int, streams: list[np.random.Generator]) -> None:
        self._sessions, self._index = sessions, index
        self._turns, self._firsts, self._growths, self._outputs, self._thinks = streams
        self._n_conversations = 0

    def of(self, start_s: Array) -> Requests:
        """All requests of the sessions that begin at `start_s`, in order of time."""
        this = self._sessions
        n_turns = self._turns.geometric(1.0 / this.turns, len(start_s))
        first_of = np.cumsum(n_turns) - n_turns
        n = int(n_turns.sum())
        at_start = np.repeat(start_s, n_turns)
        is_first = np.zeros(n, dtype=np.bool_)
        is_first[first_of] = True
        output = this.output.tokens(self._outputs.random(n), at_start)
        growth = this.growth.tokens(self._growths.random(n), at_start)
        answer = np.where(is_first, 0, np.roll(output, 1))
        wait_s = answer / this.answer_tokens_per_s
        wait_s += self._thinks.standard_exponential(n) * this.think_s
        # Whole microseconds: their sums do not depend on what else is summed up with them.
        wait_us = np.where(is_first, 0, np.rint(wait_s * 1e6).astype(np.int64))
        head = this.first.tokens(self._firsts.random(len(start_s)), start_s) + this.shared_tokens
        head = np.repeat(np.minimum(head, this.max_tokens), n_turns)
        room = np.maximum(this.max_tokens - head, 1)
        grown = _within(np.where(is_first, 0, answer + growth), first_of, n_turns)
        conversation = grown // room
        prompt = head + grown % room
        opens = is_first | (conversation != np.roll(conversation, 1))
        numbers = self._n_conversations + np.cumsum(opens) - 1
        self._n_conversations = int(numbers[-1]) + 1
        requests = Requests(
            at_s=at_start + _within(wait_us, first_of, n_turns) / 1e6,
            prompt_tokens=prompt,
            output_tokens=output,
            site=np.full(n, self._index, dtype=np.int64),
            blocks=self._blocks(prompt, numbers),
        )
        return joined([requests])

    def _blocks(self, prompt: Tokens, numbers: NDArray[np.int64]) -> list[Blocks]:
        """Every conversation has a range of ids of its own behind the shared ones."""
        this = self._sessions
        n_shared = this.shared_tokens // this.block_tokens
        start = self._index * _IDS_OF_A_SITE
        each = this.max_tokens // this.block_tokens + 1
        n_ids = np.maximum(prompt // this.block_tokens, n_shared)
        ends = np.cumsum(n_ids)
        starts = ends - n_ids
        places = np.arange(int(n_ids.sum())) - np.repeat(starts, n_ids)
        ids = start + places + np.where(places < n_shared, 0, np.repeat(numbers * each, n_ids))
        return cut(ids, starts, ends)


def _within(
    values: NDArray[np.int64], first_of: NDArray[np.int64], n_turns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Sums from each session's first request on; shape of `values`."""
    sums = np.cumsum(values)
    sums -= np.repeat(sums[first_of] - values[first_of], n_turns)
    return sums
