"""One request through the gate: measure, choose a side, relay, learn.

A request is counted at arrival with the side and reason the rule gave. If a remote then gives no
byte of an answer, or answers with a 5xx status, local serves it, once (`RemoteDown` in its
headers). Once anything was passed on to the client, nothing is retried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
import msgspec
from aiohttp import web

from routing.core.placement import sides
from routing.core.placement.rule import Judged, Route, Rule, Side, Situation, WeightedTurns, route
from routing.gate.count import Counter
from routing.gate.measure import Measured, Measurer, Move
from routing.gate.metrics import JUDGED, Metrics
from routing.gate.plan import PlanState
from routing.gate.prefix import Chain
from routing.gate.prompt import (
    BadRequest,
    Endpoint,
    Fields,
    Prompt,
    parse_body,
    parse_prompt,
    wants_stream,
)
from routing.gate.sse import Usage, UsageFilter, WholeAnswer, ask_for_usage
from routing.gate.upstream import Attempt, Unanswered, Upstream, end_to_end, is_refusal

log = logging.getLogger(__name__)


@dataclass
class Exchange:
    """One request in the gate's hands. On a fallback, once, `upstream` and `route` change and
    nothing is moved."""

    request: web.Request
    arrived_s: float
    body: bytes
    is_stream: bool
    strip_usage: bool
    measured: Measured | None
    plan_name: str
    route: Route
    upstream: Upstream
    move: Move | None

    @property
    def compute_tokens(self) -> int | None:
        """What the upstream has to compute, where its first byte tells how long that takes."""
        if self.measured is None or not self.is_stream:
            return None
        return self.measured.judged.compute_tokens[self.upstream.side]

    @property
    def headers(self) -> dict[str, str]:
        """What the gate says about this request in its answer."""
        out = {
            "X-PrfaaS-Side": self.route.side,
            "X-PrfaaS-Upstream": self.upstream.name,
            "X-PrfaaS-Reason": self.route.reason,
            "X-PrfaaS-Plan": self.plan_name,
        }
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


class Proxy:
    """The request path. `plan` tells the plan that runs, `now_s` is a monotonic clock.

    `cluster` is the PD cluster of `local`, by its name in links.
    """

    def __init__(
        self,
        *,
        cluster: str,
        local: Upstream,
        remotes: dict[str, Upstream],
        plan: Callable[[], PlanState],
        counter: Counter,
        metrics: Metrics,
        block_tokens: int,
        now_s: Callable[[], float],
    ) -> None:
        self.draining = False
        self.idle = asyncio.Event()
        self.idle.set()
        self._n_open = 0
        self._local, self._remotes = local, remotes
        self._plan, self._counter, self._metrics = plan, counter, metrics
        self._measurer = Measurer(
            cluster=cluster, local=local, counter=counter, block_tokens=block_tokens
        )
        self._now_s = now_s
        self._turns = WeightedTurns()

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions"""
        return await self._handle(request, "completions")

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions"""
        return await self._handle(request, "chat")

    async def models(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/models, as local answers it."""
        try:
            answer = await self._local.request(
                "GET", request.rel_url.raw_path_qs, headers=request.headers, body=None
            )
            async with answer:
                return web.Response(
                    status=answer.status,
                    body=await answer.read(),
                    headers=end_to_end(answer.headers, drop=frozenset({"content-length"})),
                )
        except (Unanswered, aiohttp.ClientError, TimeoutError) as exc:
            return _error(502, "upstream_unavailable", f"local gave no answer: {exc}")

    async def _handle(self, request: web.Request, endpoint: Endpoint) -> web.StreamResponse:
        arrived_s = self._now_s()
        if self.draining:
            self._metrics.refused.add()
            return _error(503, "stopping", "this gate is stopping", headers={"Retry-After": "1"})
        self._n_open += 1
        self.idle.clear()
        try:
            body = await request.read()
            fields = parse_body(body)
            prompt = parse_prompt(endpoint, fields)
            if prompt is not None:
                prompt = await self._counter.tokenise(prompt)
            return await self._serve(self._choose(request, arrived_s, body, fields, prompt))
        except web.HTTPRequestEntityTooLarge as exc:
            self._metrics.invalid.add()
            return _error(413, "too_large", exc.text or "the body is too large")
        except web.RequestPayloadError as exc:
            self._metrics.invalid.add()
            return _error(400, "invalid_body", f"the body cannot be read: {_one_line(exc)}")
        except BadRequest as exc:
            self._metrics.invalid.add()
            return _error(400, "invalid_json", str(exc))
        finally:
            self._n_open -= 1
            if self._n_open == 0:
                self.idle.set()

    def _choose(
        self,
        request: web.Request,
        arrived_s: float,
        body: bytes,
        fields: Fields,
        prompt: Prompt | None,
    ) -> Exchange:
        """Measures and routes; no await, so that counts, index and turns agree with each other."""
        running = self._plan().running
        rule = running.rule if running else None
        weights = {
            name: weight
            for name, weight in (rule.remote if rule else {}).items()
            if weight > 0.0 and name in self._remotes
        }
        admissible = [name for name in weights if self._remotes[name].health.admits()]
        candidate = self._turns.next(weights, admissible)
        # With nobody to take it, the remote side is still judged: by any remote there is.
        compared = candidate or next(iter(weights or self._remotes), None)
        remote = self._remotes[compared] if compared else None
        measured = None
        if prompt is not None:
            measured = self._measurer.measure(
                prompt, rule, remote=remote, admits=candidate is not None
            )
        judged = measured.judged if measured else None
        chosen = route(
            rule,
            Situation(
                judged=judged,
                remotes=weights,
                admissible=admissible,
                remote_in_flight=sum(remote.in_flight for remote in self._remotes.values()),
                local_up=self._local.health.state != "down",
                waits_s=self._waits_s(rule, judged, remote, now_s=arrived_s),
            ),
        )
        upstream = self._local
        if chosen.side == "remote" and candidate is not None:
            self._turns.take(candidate, weights, admissible)
            upstream = self._remotes[candidate]
        move = self._measurer.move(chosen, measured, remote=remote)
        self._count_arrival(chosen, measured, move)
        is_stream = wants_stream(fields)
        asked = ask_for_usage(body, fields) if is_stream else None
        return Exchange(
            request=request,
            arrived_s=arrived_s,
            body=body if asked is None else asked,
            is_stream=is_stream,
            strip_usage=asked is not None,
            measured=measured,
            plan_name=running.name if running else "none",
            route=chosen,
            upstream=upstream,
            move=move,
        )

    def _waits_s(
        self, rule: Rule | None, judged: Judged | None, remote: Upstream | None, *, now_s: float
    ) -> dict[Side, float | None]:
        if rule is None or judged is None or not rule.in_band(judged.uncached_tokens):
            return {}
        return {
            upstream.side: upstream.wait.expected_s(
                tokens=judged.compute_tokens[upstream.side], now_s=now_s
            )
            for upstream in filter(None, (self._local, remote))
        }

    def _count_arrival(self, chosen: Route, measured: Measured | None, move: Move | None) -> None:
        self._metrics.requests.add(chosen.side, chosen.reason)
        if move is not None:
            self._metrics.moves.add(move.link)
            self._metrics.move_tokens.add(move.link, by=move.new_tokens)
        if measured is None:
            return
        if measured.prompt.n_media:
            self._metrics.media_requests.add()
        self._metrics.prompt_tokens.add(by=measured.length.tokens)
        cached = measured.cached_tokens
        self._metrics.movable_tokens.add(by=max(0, cached["remote"] - cached["local"]))
        self._metrics.cached_tokens.add(chosen.side, by=cached[chosen.side])
        kind = measured.length.source, measured.prompt.modality
        for side in cached:
            self._metrics.uncached.observe(side, *kind, value=measured.uncached_tokens(side))
        self._metrics.uncached.observe(JUDGED, *kind, value=measured.judged.uncached_tokens)

    async def _serve(self, exchange: Exchange) -> web.StreamResponse:
        try:
            return await self._try(exchange)
        except Unanswered as exc:
            if exchange.upstream is self._local or exc.timed_out:
                return self._unavailable(exchange, exc)
        except _ServerError:
            pass
        self._metrics.fallbacks.add()
        exchange.upstream = self._local
        exchange.route = Route("local", sides.REMOTE_DOWN)
        exchange.move = None
        try:
            return await self._try(exchange)
        except Unanswered as exc:
            return self._unavailable(exchange, exc)

    async def _try(self, exchange: Exchange) -> web.StreamResponse:
        """One attempt at the exchange's upstream. Raises Unanswered while no byte was answered, and
        _ServerError for a remote's 5xx, of which nothing was passed on."""
        upstream = exchange.upstream
        attempt = Attempt(
            upstream,
            exchange.measured.chains if exchange.measured else (),
            compute_tokens=exchange.compute_tokens,
            now_s=self._now_s(),
        )
        try:
            answer = await upstream.request(
                "POST",
                exchange.request.rel_url.raw_path_qs,
                headers=exchange.request.headers,
                body=exchange.body,
                move=str(exchange.move) if exchange.move else None,
            )
            attempt.answered(answer, now_s=self._now_s())
            try:
                # A POST is sent again only because this says that it was not served. After local's
                # there is nowhere to go: its client gets it as it is.
                if answer.status >= 500 and upstream is not self._local:
                    raise _ServerError
                return await self._relay(exchange, attempt, answer)
            finally:
                answer.close()  # an answer read to its end has already given its connection back
        except Unanswered as exc:
            self._metrics.errors.add(upstream.side)
            self._metrics.results.add(upstream.side, "failed")
            upstream.failed(str(exc), refused=is_refusal(exc), now_s=self._now_s())
            raise
        except _ServerError:
            self._count_result(upstream.side, answer.status)
            raise
        except asyncio.CancelledError:
            self._metrics.results.add(upstream.side, "cancelled")
            raise
        finally:
            attempt.end()

    async def _relay(
        self, exchange: Exchange, attempt: Attempt, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        """Passes the answer on as it comes; a slow client slows the upstream, nothing piles up."""
        is_stream = answer.content_type == "text/event-stream"
        strip = exchange.strip_usage and is_stream
        headers = end_to_end(answer.headers, drop=frozenset({"content-length"} if strip else ()))
        headers.update(exchange.headers)
        response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
        reader = UsageFilter(strip=strip) if is_stream else WholeAnswer()
        side = attempt.upstream.side
        try:
            await response.prepare(exchange.request)
            chunk = await _read(answer)
            if chunk and answer.status < 400:
                now_s = self._now_s()
                attempt.prefilled(now_s=now_s)
                if is_stream:
                    self._metrics.ttft_s.observe(side, value=now_s - exchange.arrived_s)
            while chunk:
                if passed := reader.feed(chunk):
                    await response.write(passed)
                chunk = await _read(answer)
            if rest := reader.flush():
                await response.write(rest)
            await response.write_eof()
        except _Broken as exc:
            attempt.upstream.broke_off(str(exc), now_s=self._now_s())
            self._metrics.errors.add(side)
            self._metrics.results.add(side, "failed")
            # No proper end: the client must not take half an answer for a whole one.
            if exchange.request.transport is not None:
                exchange.request.transport.close()
            return response
        except ConnectionResetError:
            self._metrics.results.add(side, "cancelled")
            return response
        self._count_result(side, answer.status)
        usage = reader.usage if answer.status < 400 else None
        if usage is not None and exchange.measured is not None:
            self._learn(attempt, exchange.measured, exchange.move, usage)
        return response

    def _count_result(self, side: Side, status: int) -> None:
        if status >= 500:
            self._metrics.errors.add(side)
            self._metrics.results.add(side, "server_error")
        else:
            self._metrics.results.add(side, "client_error" if status >= 400 else "ok")

    def _learn(self, attempt: Attempt, measured: Measured, move: Move | None, usage: Usage) -> None:
        """Corrects ratio and index by what the engine counted, which is what t is chosen from."""
        upstream, prompt = attempt.upstream, measured.prompt
        cached_tokens = usage.cached_tokens if upstream.trust_cached_tokens else None
        self._counter.learn(prompt, prompt_tokens=usage.prompt_tokens)
        if cached_tokens is not None and usage.prompt_tokens > 0:
            self._metrics.engine_prompt_tokens.add(upstream.side, by=usage.prompt_tokens)
            self._metrics.engine_cached_tokens.add(upstream.side, by=cached_tokens)
            cached_blocks = self._measurer.blocks(
                prompt, tokens=cached_tokens, of_tokens=usage.prompt_tokens
            )
            upstream.index.learn(attempt.ticket, cached_blocks=cached_blocks)
            if move is not None and attempt.has_moved:
                _learn_move(move, upstream, measured.chains[0], cached_blocks=cached_blocks)
        if measured.length.source == "tokenised":
            return  # exact at arrival, and recorded then
        judged = measured.judged
        scale = usage.prompt_tokens / max(1, measured.length.tokens)
        for side, claimed in measured.cached_tokens.items():
            cached = round(claimed * scale)
            # What was moved here for this request was not here before.
            if side == upstream.side and cached_tokens is not None and move is None:
                cached = cached_tokens
            self._metrics.uncached.observe(
                side, "usage", prompt.modality, value=usage.prompt_tokens - cached
            )
        cached = round((measured.length.tokens - judged.uncached_tokens) * scale)
        if cached_tokens is not None and (move is not None or upstream.side == judged.holder):
            cached = cached_tokens
        self._metrics.uncached.observe(
            JUDGED, "usage", prompt.modality, value=usage.prompt_tokens - cached
        )

    def _unavailable(self, exchange: Exchange, exc: Unanswered) -> web.Response:
        status, code = (504, "upstream_timeout") if exc.timed_out else (502, "upstream_unavailable")
        return _error(
            status,
            code,
            f"{exchange.upstream.name} gave no answer: {exc}",
            headers=exchange.headers,
        )


class _ServerError(Exception):
    """A remote answered with a status of 500 or above."""


class _Broken(Exception):
    """The upstream stopped in the middle of an answer."""


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """The next bytes, b"" at the end. Keeps a failing upstream apart from a leaving client."""
    try:
        return await answer.content.readany()
    except (aiohttp.ClientError, TimeoutError, OSError) as exc:
        raise _Broken(_one_line(exc)) from exc


def _one_line(exc: BaseException) -> str:
    return " ".join(str(exc).split()) or type(exc).__name__


def _learn_move(move: Move, to: Upstream, chain: Chain, *, cached_blocks: float) -> None:
    """What an engine that reports so much cached tells of the caches a prefix moved between.

    Only once something came: with nothing the link may be down, or the rest never have been needed.
    """
    if cached_blocks <= move.n_blocks - 1:
        move.source.index.lost(chain, n_held=int(cached_blocks))  # no more of it was there to come
    else:
        to.index.adopt(chain[: move.n_blocks], state_at_end=True)  # its state came along


def _error(
    status: int, code: str, message: str, *, headers: dict[str, str] | None = None
) -> web.Response:
    """An error of the gate's own, in OpenAI's shape."""
    body = {"error": {"message": message, "type": "gate_error", "param": None, "code": code}}
    return web.Response(
        status=status,
        body=msgspec.json.encode(body),
        content_type="application/json",
        headers=headers,
    )
