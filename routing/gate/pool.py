"""The stacks of one place, and which of them takes a request.

A place is the PD cluster's own side, or one PrfaaS cluster. Of several stacks that take requests
the one with the smallest expected wait is chosen, as `Wait` measures it for what this stack would
have to compute: so a session stays where its prefix is held until waiting there costs more than
computing it anew. Until all of them were measured within `FRESH_S`, the measure is
(requests in flight + 1) * tokens to compute instead; it needs no history, so no stack is left
alone for ever because of one slow answer long ago.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from routing.core.placement.rule import Side
from routing.gate.reading import Reading
from routing.gate.upstream import Upstream

FRESH_S = 10.0
"""What was measured of a stack that got no request for so long is not compared with the others."""


class Pool:
    """One place. `name` is `local` or the PrfaaS cluster's name; `upstreams` has at least one."""

    def __init__(self, name: str, side: Side, upstreams: Sequence[Upstream]) -> None:
        self.name = name
        self.side: Side = side
        self.upstreams = tuple(upstreams)

    @property
    def in_flight(self) -> int:
        """Requests sent to any of them and not finished."""
        return sum(upstream.in_flight for upstream in self.upstreams)

    def admits(self, now_s: float) -> bool:
        """Whether any takes a request that has another choice."""
        return any(upstream.admits(now_s) for upstream in self.upstreams)

    def is_reachable(self, now_s: float) -> bool:
        """Whether any may still serve what has no other choice."""
        return any(upstream.is_reachable(now_s) for upstream in self.upstreams)

    def pick(
        self, reading: Reading | None, *, now_s: float, without: Collection[Upstream] = ()
    ) -> Upstream | None:
        """Who takes it, or None if nobody does. `reading` is None for what cannot be measured."""
        able = [u for u in self._left(without) if u.admits(now_s)]
        if len(able) < 2:
            return able[0] if able else None
        return self._least(able, reading, now_s=now_s)

    def last_resort(
        self, reading: Reading | None, *, now_s: float, without: Collection[Upstream] = ()
    ) -> Upstream | None:
        """Who is tried when nobody admits it; None if all were tried."""
        left = self._left(without)
        reachable = [u for u in left if u.is_reachable(now_s)] or left
        return self._least(reachable, reading, now_s=now_s) if reachable else None

    def _left(self, without: Collection[Upstream]) -> Sequence[Upstream]:
        """By url: a stack that left and came back with reloads is not another one."""
        if not without:
            return self.upstreams
        urls = {upstream.url for upstream in without if upstream.place == self.name}
        return [upstream for upstream in self.upstreams if upstream.url not in urls]

    def _least(
        self, able: Sequence[Upstream], reading: Reading | None, *, now_s: float
    ) -> Upstream:
        if len(able) == 1:
            return able[0]
        if reading is None:
            return min(able, key=lambda upstream: (upstream.in_flight, upstream.last_sent_s))
        tokens = [reading.uncached_tokens(upstream) for upstream in able]
        waits_s = [
            upstream.wait.expected_s(tokens=n, now_s=now_s)
            if now_s - upstream.last_sent_s <= FRESH_S
            else None
            for upstream, n in zip(able, tokens, strict=True)
        ]
        if all(wait_s is not None for wait_s in waits_s):
            costs = [wait_s or 0.0 for wait_s in waits_s]
        else:
            costs = [
                float((u.in_flight + 1) * max(1, n)) for u, n in zip(able, tokens, strict=True)
            ]
        # Of equals the one that got nothing for the longest time.
        order = [(cost, u.last_sent_s) for cost, u in zip(costs, able, strict=True)]
        return able[min(range(len(able)), key=order.__getitem__)]
