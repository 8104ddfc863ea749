"""One request through the gate: let in, measure, choose a side, relay, learn.

A request is counted at arrival with the side and reason the rule gave. If an upstream then gives no
byte of an answer, or answers with a 5xx status, another one of its place is tried, and what no
remote serves local does (`RemoteDown` in its headers). Once anything was passed on to the client,
nothing is retried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web

from routing.gate.access import Access, Seen
from routing.gate.admission import Admission, Refused
from routing.gate.choose import Chooser
from routing.gate.count import Counter
from routing.gate.errors import error
from routing.gate.exchange import Exchange
from routing.gate.measure import Measured, Measurer, Move
from routing.gate.metrics import JUDGED, Metrics
from routing.gate.pool import Pool
from routing.gate.prefix import Chain
from routing.gate.prompt import BadRequest, Endpoint, parse_body, parse_prompt
from routing.gate.rules import Rules
from routing.gate.sse import Usage, UsageFilter, WholeAnswer
from routing.gate.upstream import Attempt, Unanswered, Upstream, end_to_end, is_refusal

log = logging.getLogger(__name__)


class Proxy:
    """The request path. `rules` tells the rule in force, `now_s` is a monotonic clock.

    `cluster` is the PD cluster of `local`, by its name in links. `retries_per_side`: how many more
    upstreams of a place are tried for a request that one failed. `admission` and `access` are None
    where nothing bounds requests and nobody logs them.
    """

    def __init__(
        self,
        *,
        cluster: str,
        local: Pool,
        remotes: dict[str, Pool],
        rules: Rules,
        counter: Counter,
        metrics: Metrics,
        block_tokens: int,
        retries_per_side: int,
        admission: Admission | None,
        access: Access | None,
        now_s: Callable[[], float],
    ) -> None:
        self.draining = False
        self.idle = asyncio.Event()
        self.idle.set()
        self.retries_per_side = retries_per_side
        self.admission, self.access = admission, access
        self._n_open = 0
        self._local = local
        self._counter, self._metrics = counter, metrics
        self._measurer = Measurer(cluster=cluster, counter=counter, block_tokens=block_tokens)
        self._chooser = Chooser(
            local=local,
            remotes=remotes,
            rules=rules,
            measurer=self._measurer,
            metrics=metrics,
            now_s=now_s,
        )
        self._now_s = now_s

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions"""
        return await self._handle(request, "completions")

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions"""
        return await self._handle(request, "chat")

    async def models(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/models, as local answers it."""
        tried: list[Upstream] = []
        problem = "nobody is there"
        while len(tried) <= self.retries_per_side:
            upstream = self._chooser.next_of(self._local, None, tried)
            if upstream is None:
                break
            tried.append(upstream)
            try:
                answer = await upstream.request(
                    "GET", request.rel_url.raw_path_qs, headers=request.headers, body=None
                )
                async with answer:
                    return web.Response(
                        status=answer.status,
                        body=await answer.read(),
                        headers=end_to_end(answer.headers, drop=frozenset({"content-length"})),
                    )
            except (Unanswered, aiohttp.ClientError, TimeoutError) as exc:
                problem = str(exc)
        return error(502, "upstream_unavailable", f"local gave no answer: {problem}")

    async def _handle(self, request: web.Request, endpoint: Endpoint) -> web.StreamResponse:
        arrived_s = self._now_s()
        seen = None if self.access is None else self.access.begin(request, endpoint, arrived_s)
        self._n_open += 1
        self.idle.clear()
        try:
            if self.draining:
                raise Refused(503, "stopping", "this gate is stopping", retry_s=1.0)
            if self.admission is None:
                return await self._route(request, endpoint, arrived_s, seen)
            entry = await self.admission.enter(request.headers)
            try:
                return await self._route(request, endpoint, arrived_s, seen)
            finally:
                entry.leave()
        except Refused as exc:
            if exc.is_demand:
                self._metrics.refused.add()
            return self._refused(exc, seen, {})
        finally:
            self._n_open -= 1
            if self._n_open == 0:
                self.idle.set()
            if seen is not None:
                seen.end()

    async def _route(
        self, request: web.Request, endpoint: Endpoint, arrived_s: float, seen: Seen | None
    ) -> web.StreamResponse:
        """Reads, chooses, serves. What goes wrong here is an answer in OpenAI's shape too."""
        exchange: Exchange | None = None
        if seen is not None:
            seen.queued_s = self._now_s() - arrived_s
        try:
            body = await request.read()
            fields = parse_body(body)
            prompt = parse_prompt(endpoint, fields)
            if prompt is not None:
                prompt = await self._counter.tokenise(prompt)
            exchange = self._chooser.choose(request, arrived_s, body, fields, prompt)
            if seen is not None:
                seen.exchange = exchange
            return await self._serve(exchange)
        except web.HTTPRequestEntityTooLarge as exc:
            return self._invalid(seen, 413, "too_large", exc.text or "the body is too large")
        except web.RequestPayloadError as exc:
            message = f"the body cannot be read: {_one_line(exc)}"
            return self._invalid(seen, 400, "invalid_body", message)
        except BadRequest as exc:
            return self._invalid(seen, 400, "invalid_json", str(exc))
        except Refused as exc:
            # Its side has no room. It was counted at arrival, so it is not counted as refused.
            return self._refused(exc, seen, exchange.headers if exchange else {})
        except Exception as exc:
            if exchange is not None and exchange.is_passed_on:
                raise  # half an answer is out: the server cuts the connection
            log.exception("a request could not be handled")
            if seen is not None:
                seen.result, seen.status = "failed", 500
            return error(500, "internal_error", f"the gate failed: {type(exc).__name__}")

    def _refused(self, exc: Refused, seen: Seen | None, said: dict[str, str]) -> web.Response:
        self._metrics.refusals.add(exc.reason)
        if seen is not None:
            seen.result, seen.status = "refused", exc.status
        return error(exc.status, exc.reason, str(exc), headers=said | exc.headers)

    def _invalid(self, seen: Seen | None, status: int, code: str, message: str) -> web.Response:
        self._metrics.invalid.add()
        if seen is not None:
            seen.result, seen.status = "invalid", status
        return error(status, code, message)

    async def _serve(self, exchange: Exchange) -> web.StreamResponse:
        """Tries one upstream after the other while nothing was passed on."""
        while True:
            try:
                return await self._try(exchange)
            except Unanswered as exc:
                following = None if exc.timed_out else self._following(exchange)
                if following is None:
                    return self._unavailable(exchange, exc)
            except _ServerError as exc:
                following = exc.following
            pool, upstream = following
            if pool is exchange.pool:
                self._metrics.retries.add(exchange.route.side)
            else:
                self._metrics.fallbacks.add()
            exchange.go_on(pool, upstream)

    def _following(self, exchange: Exchange) -> tuple[Pool, Upstream] | None:
        """Whom to try after the one that failed: another of its place that takes requests; then,
        for a remote's, whoever local has. Local's own get one that is thought to be down as well:
        after it there is nobody."""
        pool, reading = exchange.pool, exchange.reading
        tried = (*exchange.tried, exchange.upstream)
        is_local = pool is self._local
        upstream = None
        if exchange.n_on_side <= self.retries_per_side:
            if is_local:
                upstream = self._chooser.next_of(pool, reading, tried)
            else:
                upstream = pool.pick(reading, now_s=self._now_s(), without=tried)
        if upstream is None and not is_local:
            pool, upstream = self._local, self._chooser.next_of(self._local, reading, tried)
        return None if upstream is None else (pool, upstream)

    def _try(self, exchange: Exchange) -> Awaitable[web.StreamResponse]:
        """One attempt, within the bounds of its side."""
        admission = self.admission
        if admission is None or not admission.bounds_local or exchange.pool is not self._local:
            return self._send(exchange)
        return self._send_in_turn(exchange, admission)

    async def _send_in_turn(self, exchange: Exchange, admission: Admission) -> web.StreamResponse:
        """One attempt at local once it has room. Raises what `_send` does, and Refused."""
        asked_s = self._now_s()
        try:
            has_waited = await admission.local.take("local")
        finally:
            exchange.queued_s += self._now_s() - asked_s
        try:
            if has_waited:
                self._choose_stack_anew(exchange)
            return await self._send(exchange)
        finally:
            admission.local.give()

    def _choose_stack_anew(self, exchange: Exchange) -> None:
        """All that wait chose while the same ones were busy, and one may have left since."""
        upstream = self._chooser.next_of(self._local, exchange.reading, exchange.tried)
        if upstream is not None and upstream is not exchange.upstream:
            exchange.upstream, exchange.move = upstream, None

    async def _send(self, exchange: Exchange) -> web.StreamResponse:
        """One attempt at the exchange's upstream. Raises Unanswered while no byte was answered, and
        _ServerError for a 5xx that somebody else may do better, of which nothing was passed on."""
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
                # A POST is sent again only because this says that it was not served. Where there is
                # nowhere left to go its client gets it as it is.
                if answer.status >= 500 and (following := self._following(exchange)) is not None:
                    raise _ServerError(following)
                return await self._relay(exchange, attempt, answer)
            finally:
                answer.close()  # an answer read to its end has already given its connection back
        except Unanswered as exc:
            self._ended(exchange, "failed")
            now_s = self._now_s()
            upstream.failed(str(exc), refused=is_refusal(exc), now_s=now_s)
            attempt.failed(str(exc), now_s=now_s)
            raise
        except _ServerError:
            self._answered(exchange, answer.status)
            raise
        except asyncio.CancelledError:
            self._ended(exchange, "cancelled")
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
        exchange.is_passed_on, exchange.status = True, answer.status
        try:
            await response.prepare(exchange.request)
            chunk = await _read(answer)
            if chunk and answer.status < 400:
                now_s = exchange.first_byte_s = self._now_s()
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
            now_s = self._now_s()
            attempt.upstream.broke_off(str(exc), now_s=now_s)
            attempt.failed(str(exc), now_s=now_s)
            self._ended(exchange, "failed")
            # No proper end: the client must not take half an answer for a whole one.
            if exchange.request.transport is not None:
                exchange.request.transport.close()
            return response
        except ConnectionResetError:
            self._ended(exchange, "cancelled")
            return response
        self._answered(exchange, answer.status)
        if answer.status < 500:
            attempt.upstream.breaker.succeeded(self._now_s())
        usage = reader.usage if answer.status < 400 else None
        if usage is not None and exchange.measured is not None:
            self._learn(attempt, exchange.measured, exchange.move, usage)
        return response

    def _answered(self, exchange: Exchange, status: int) -> None:
        """The upstream gave a whole answer."""
        if status >= 500:
            self._ended(exchange, "server_error")
        else:
            self._ended(exchange, "client_error" if status >= 400 else "ok")

    def _ended(self, exchange: Exchange, result: str) -> None:
        """An attempt is over, with one of `RESULTS`."""
        side = exchange.upstream.side
        exchange.result = result
        self._metrics.results.add(side, result)
        if result in ("failed", "server_error"):
            self._metrics.errors.add(side)

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
        exchange.status = status
        return error(
            status,
            code,
            f"{exchange.upstream.name} gave no answer: {exc}",
            headers=exchange.headers,
        )


class _ServerError(Exception):
    """An upstream answered with a status of 500 or above, and `following` can be tried."""

    def __init__(self, following: tuple[Pool, Upstream]) -> None:
        super().__init__()
        self.following = following


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
