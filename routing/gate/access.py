"""What the access log says of one request, gathered while it is served."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aiohttp import web

from routing.gate.access_log import AccessLog, Line
from routing.gate.admission import tenant_of
from routing.gate.exchange import Exchange
from routing.gate.prompt import Endpoint

_MAX_ID = 128


class Access:
    """Makes the lines of `log`. `tenant_header` is where tenants are named, None: the bearer key.

    `epoch_s` tells epoch seconds, `now_s` a monotonic clock's.
    """

    def __init__(
        self,
        log: AccessLog,
        *,
        tenant_header: str | None,
        epoch_s: Callable[[], float],
        now_s: Callable[[], float],
    ) -> None:
        self.log = log
        self.tenant_header = tenant_header
        self.epoch_s, self.now_s = epoch_s, now_s

    def begin(self, request: web.Request, endpoint: Endpoint, arrived_s: float) -> Seen:
        """A request arrived."""
        return Seen(self, request, endpoint, arrived_s, self.epoch_s())


@dataclass(slots=True)
class Seen:
    """One request until its line is written."""

    access: Access
    request: web.Request
    endpoint: Endpoint
    arrived_s: float
    at_s: float
    queued_s: float = 0.0
    exchange: Exchange | None = None
    result: str | None = None
    status: int | None = None

    def end(self) -> None:
        """It is over, whichever way."""
        headers, exchange = self.request.headers, self.exchange
        line = Line(
            at_s=round(self.at_s, 3),
            endpoint=self.endpoint,
            request_id=_request_id(headers),
            tenant=tenant_of(headers, self.access.tenant_header),
            result=self.result or "cancelled",
            status=self.status,
            queued_s=round(self.queued_s, 6),
            total_s=round(self.access.now_s() - self.arrived_s, 6),
        )
        if exchange is not None:
            self._add_route(line, exchange)
        self.access.log.add(line)

    def _add_route(self, line: Line, exchange: Exchange) -> None:
        if self.result is None:
            line.result, line.status = exchange.result or "cancelled", exchange.status
        line.reason, line.side = exchange.route.reason, exchange.route.side
        line.upstream, line.stream = exchange.upstream.name, exchange.is_stream
        line.attempts = len(exchange.tried) + 1
        line.queued_s = round(self.queued_s + exchange.queued_s, 6)
        in_force = exchange.in_force
        line.plan = in_force.plan_name
        if in_force.rule is not None:
            line.threshold_tokens = in_force.rule.threshold_tokens
        if in_force.override is not None:
            line.override = in_force.override.id
        if exchange.first_byte_s is not None:
            line.ttft_s = round(exchange.first_byte_s - self.arrived_s, 6)
        measured = exchange.measured
        if measured is not None:
            line.prompt_tokens = measured.length.tokens
            line.length_source = measured.length.source
            line.uncached_tokens = measured.uncached_tokens("local")
            line.judged_tokens = measured.judged.uncached_tokens


def _request_id(headers: Mapping[str, str]) -> str | None:
    """As the client named it. Headers are bytes: what is no text in them becomes question marks."""
    named = headers.get("X-Request-ID", "")[:_MAX_ID]
    return named.encode(errors="replace").decode() or None
