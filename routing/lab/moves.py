"""Prefixes brought over a link before a prefill, so that they need not be computed again.

A request asks for it (`Move`). What the source cluster really holds of the prefix it asks for, up
to the deepest point to go on from, is brought to the instance that will compute the rest; of its KV
crosses what that instance lacks, and the fixed state at its end. It is one transfer that shares the
link with all others. When the link is or goes down the instance computes instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from routing.lab.cache import PrefixCache
from routing.lab.engine import Engine
from routing.lab.link import Link, Shipment
from routing.lab.profile import KvSize
from routing.lab.prompt import Prompt


@dataclass(frozen=True)
class Route:
    """A way for prefixes; `sources` are all instances of the cluster it starts in."""

    link_id: str
    link: Link
    sources: Sequence[Engine]


@dataclass(frozen=True)
class Moving:
    """The prefix up to `end_tokens` for one instance: the KV of its last `tokens`, and the state
    at its end, in `total_bytes`."""

    end_tokens: int
    tokens: int
    total_bytes: int


class Offer:
    """What may be moved for one request over one route, as the caches stand now."""

    def __init__(self, route: Route, prompt: Prompt, asked_tokens: int, kv: KvSize) -> None:
        self.route, self._prompt, self._kv = route, prompt, kv
        # The last token is computed in any case, so nothing up to it is worth its bytes.
        most = min(asked_tokens, prompt.tokens - 1)
        self._end_tokens = max(e.cache.held_tokens(prompt, most) for e in route.sources)

    def to(self, cache: PrefixCache) -> Moving | None:
        """What that cache lacks of it, or None: it can go on from there or further already."""
        end_tokens = self._end_tokens
        if self.route.link.down or cache.held_tokens(self._prompt, end_tokens) >= end_tokens:
            return None
        tokens = end_tokens - cache.held_kv_tokens(self._prompt, end_tokens)
        return Moving(end_tokens, tokens, self._kv.bytes_of(tokens))

    def expected_finish_s(self, engine: Engine) -> float:
        """Seconds until the prompt would be prefilled there, its prefix having been moved."""
        moving = self.to(engine.cache)
        if moving is None:
            return engine.queue.expected_finish_s(self._prompt)
        return engine.queue.expected_finish_s(
            self._prompt,
            held_tokens=moving.end_tokens,
            not_before_s=self.route.link.expected_s(moving.total_bytes),
        )

    async def bring(self, moving: Moving, engine: Engine, sent: Callable[[int], object]) -> float:
        """Wait until it is in the engine's cache; when it arrived, on the loop's clock.

        `sent(n_bytes)` hears once what left for it, however this ends. Raises LinkDown.
        """
        start_s = asyncio.get_running_loop().time()
        shipment = Shipment(
            self.route.link,
            total_bytes=moving.total_bytes,
            start_s=start_s,
            duration_s=0.0,
            n_chunks=1,
            ends_with_link=True,
        )
        try:
            with engine.queue.expecting(self._prompt, moving.end_tokens):
                arrival_s = await shipment.arrival_s()
        finally:
            sent(shipment.cancel())
        engine.cache.insert(self._prompt, moving.end_tokens)
        engine.metrics.prefix_received(kv_bytes=moving.total_bytes, transfer_s=arrival_s - start_s)
        return arrival_s
