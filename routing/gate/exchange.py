"""One request in the gate's hands, from its route to its last byte."""

from __future__ import annotations

from dataclasses import dataclass, field

from aiohttp import web

from routing.core.placement import sides
from routing.core.placement.rule import Route
from routing.gate.measure import Measured, Move
from routing.gate.pool import Pool
from routing.gate.reading import Reading
from routing.gate.rules import InForce
from routing.gate.upstream import Upstream


@dataclass
class Exchange:
    """Where another upstream is tried, `pool`, `upstream` and `route` change and nothing is moved.

    `tried` are those before it, `n_on_side` how many of its place were tried with it. `status` and
    `result` are what became of it, None until then. `first_byte_s` is of the gate's clock.
    """

    request: web.Request
    arrived_s: float
    body: bytes
    is_stream: bool
    strip_usage: bool
    measured: Measured | None
    in_force: InForce
    route: Route
    pool: Pool
    upstream: Upstream
    move: Move | None
    tried: list[Upstream] = field(default_factory=list)
    n_on_side: int = 1
    is_passed_on: bool = False
    queued_s: float = 0.0
    first_byte_s: float | None = None
    status: int | None = None
    result: str | None = None

    @property
    def compute_tokens(self) -> int | None:
        """What the upstream has to compute, where its first byte tells how long that takes."""
        if self.measured is None or not self.is_stream:
            return None
        return self.measured.judged.compute_tokens[self.upstream.side]

    @property
    def reading(self) -> Reading | None:
        """The prompt as read; None for what cannot be measured."""
        return None if self.measured is None else self.measured.reading

    @property
    def headers(self) -> dict[str, str]:
        """What the gate says about this request in its answer."""
        out = {
            "X-PrfaaS-Side": self.route.side,
            "X-PrfaaS-Upstream": self.upstream.name,
            "X-PrfaaS-Reason": self.route.reason,
            "X-PrfaaS-Plan": self.in_force.plan_name,
        }
        if self.in_force.override is not None:
            out["X-PrfaaS-Override"] = self.in_force.override.id
        measured = self.measured
        if measured is not None:
            out |= {
                "X-PrfaaS-Prompt-Tokens": str(measured.length.tokens),
                "X-PrfaaS-Uncached-Tokens": str(measured.uncached_tokens("local")),
                "X-PrfaaS-Uncached-Remote-Tokens": str(measured.uncached_tokens("remote")),
                "X-PrfaaS-Judged-Tokens": str(measured.judged.uncached_tokens),
                "X-PrfaaS-Length-Source": measured.length.source,
            }
        if self.move is not None:
            out["X-PrfaaS-Move-Tokens"] = str(self.move.tokens)
        return out

    def go_on(self, pool: Pool, upstream: Upstream) -> None:
        """Tries this one next."""
        self.tried.append(self.upstream)
        self.n_on_side = self.n_on_side + 1 if pool is self.pool else 1
        if pool is not self.pool:
            self.route = Route("local", sides.REMOTE_DOWN)
        self.pool, self.upstream, self.move = pool, upstream, None
