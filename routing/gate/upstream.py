"""One OpenAI-compatible P/D stack: how it is reached, how it does, what its prefix cache holds."""

from __future__ import annotations

import io
import logging
import ssl
from collections.abc import Mapping

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from routing.core.placement.rule import Side
from routing.core.placement.wait import Pending, Wait
from routing.gate.breaker import Breaker
from routing.gate.health import Health, State
from routing.gate.prefix import Chain, PrefixIndex, Ticket
from routing.gate.settings import BreakerConfig, UpstreamConfig

MOVE_HEADER = "X-PrfaaS-Move"
MOVED_HEADER = "X-PrfaaS-Moved-Tokens"
KEEPALIVE_S = 4.0
"""Idle connections are dropped before uvicorn's default of 5 s drops them under a request."""

_LARGE_BODY_BYTES = 512 * 1024
_SAY_EVERY_S = 10.0
_NOT_OURS = frozenset({"Accept", "Accept-Encoding", "Content-Type", "User-Agent"})
_HOP_BY_HOP = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
        "te", "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
# The body was read whole and is sent anew; answers must stay readable, so no compression; and what
# is moved between the clusters is for the plan to say, not for a client.
_REWRITTEN = frozenset(
    {
        "host", "content-length", "content-encoding", "accept-encoding", "expect",
        MOVE_HEADER.lower(),
    }
)  # fmt: skip

log = logging.getLogger(__name__)


class Unanswered(Exception):
    """No byte of an answer came. `timed_out`: the upstream took the request and stayed silent."""

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


def end_to_end(headers: Mapping[str, str], *, drop: frozenset[str]) -> CIMultiDict[str]:
    """The headers that concern the other end, without those of one hop and those in `drop`."""
    unwanted = _HOP_BY_HOP | drop
    if "Connection" in headers:  # it may be said in several lines
        lines = [v for k, v in headers.items() if k.lower() == "connection"]
        unwanted |= {name.strip().lower() for line in lines for name in line.split(",")}
    return CIMultiDict((k, v) for k, v in headers.items() if k.lower() not in unwanted)


class Upstream:
    """One stack and all the gate knows of it.

    `place` is `local` or the PrfaaS cluster's name, `name` the same where it is the only one there.
    A place has one of each `url`; after a reload another `Upstream` may stand for the same stack.
    `trust` is whom an https url is believed (`aiohttp`'s `ssl`), `timeout` of each request.
    """

    def __init__(
        self,
        name: str,
        place: str,
        side: Side,
        config: UpstreamConfig,
        *,
        breaker: BreakerConfig,
        block_tokens: int,
        session: aiohttp.ClientSession,
        timeout: aiohttp.ClientTimeout,
        trust: ssl.SSLContext | bool,
        now_s: float,
    ) -> None:
        self.name, self.place = name, place
        self.side: Side = side
        self.in_flight = 0
        self.last_sent_s = now_s
        self.config = config
        self.health = Health(now_s=now_s)
        self.breaker = Breaker(breaker)
        self.index = PrefixIndex(
            config.capacity_blocks(block_tokens), exact_state=config.linear_state == "exact"
        )
        self.wait = Wait()
        self._session = session
        self._n_broken = 0
        self._say_broken_again_s = now_s
        self.configure(name, config, breaker=breaker, timeout=timeout, trust=trust)

    def configure(
        self,
        name: str,
        config: UpstreamConfig,
        *,
        breaker: BreakerConfig,
        timeout: aiohttp.ClientTimeout,
        trust: ssl.SSLContext | bool,
    ) -> None:
        """Takes other settings of the same url and cache; what is known of the stack stays."""
        self.name, self.config, self.breaker.config = name, config, breaker
        self.trust_cached_tokens = config.trust_cached_tokens
        self._timeout, self._trust = timeout, trust
        self.url = config.url.rstrip("/")
        self._health_url = URL(self.url + config.health_path, encoded=True)

    def admits(self, now_s: float) -> bool:
        """Whether a request that has another choice may be sent here."""
        return self.health.admits() and self.breaker.admits(now_s)

    def is_reachable(self, now_s: float) -> bool:
        """Whether it is neither down nor cut off, though it may be on trial."""
        return self.health.state != "down" and self.breaker.state(now_s) != "open"

    @property
    def is_up(self) -> bool:
        """Whether it takes requests freely."""
        return self.health.state == "up" and self.breaker.is_closed

    def problem(self, now_s: float) -> str | None:
        """What keeps requests from it; None while it takes them freely."""
        if self.health.state != "up":
            return self.health.state
        if not self.breaker.is_closed:
            return f"cut off ({self.breaker.state(now_s)}: {self.breaker.reason})"
        return None

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        move: str | None = None,
    ) -> aiohttp.ClientResponse:
        """The answer, its headers read and its body not yet. Raises Unanswered.

        `move` is what to say of a prefix to be moved first (docs/contracts.md).
        A kept-alive connection that the upstream closed just as it was used is tried once more: it
        says nothing about the upstream.
        """
        url = URL(self.url + path, encoded=True)
        sent = end_to_end(headers, drop=_REWRITTEN)
        if move is not None:
            sent[MOVE_HEADER] = move
        for is_last in (False, True):
            try:
                return await self._session.request(
                    method,
                    url,
                    data=_payload(body),
                    headers=sent,
                    skip_auto_headers=_NOT_OURS,
                    allow_redirects=False,
                    timeout=self._timeout,
                    ssl=self._trust,
                )
            except aiohttp.ClientConnectorError as exc:
                raise Unanswered(str(exc)) from exc
            except aiohttp.ConnectionTimeoutError as exc:
                raise Unanswered(f"{self.url} did not accept a connection in time") from exc
            except (aiohttp.ServerTimeoutError, TimeoutError) as exc:
                raise Unanswered(f"{self.url} did not answer in time", timed_out=True) from exc
            except aiohttp.ClientError as exc:
                if is_last:
                    raise Unanswered(f"{self.url} broke the connection: {exc}") from exc
        raise AssertionError("the loop returns or raises")

    async def probe(self, *, timeout_s: float) -> str | None:
        """Asks the health endpoint; None when it answers, else what is wrong.

        Raises ConnectionRefusedError when nobody listens.
        """
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.get(
                self._health_url, timeout=timeout, ssl=self._trust
            ) as answer:
                # A 404 is a stack without this endpoint, but one that lives.
                return None if answer.status < 500 else f"health answered {answer.status}"
        except aiohttp.ClientConnectorError as exc:
            if is_refusal(exc):
                raise ConnectionRefusedError(str(exc)) from exc
            return str(exc)
        except (aiohttp.ClientError, TimeoutError) as exc:
            return str(exc) or "health did not answer in time"

    def failed(self, error: str, *, refused: bool, now_s: float) -> None:
        """A request or probe got no answer; a process that is gone took its cache along."""
        if self._note_failure(error, refused=refused, now_s=now_s) and refused:
            self.index.clear()

    def answered(self, status: int, *, sent_s: float, now_s: float) -> None:
        """A request got an answer of this HTTP status.

        One 503 suffices against a remote, because local serves what it would have been given. One
        of local's may be a moment of overload, and to send everything over the link is a lot.
        """
        if status >= 500:
            refused = status == 503 and self.side == "remote"
            self._note_failure(f"answered {status}", refused=refused, now_s=now_s)
            return
        was = self.health.state
        self.health.request_ok(sent_s=sent_s, now_s=now_s)
        self._say_if_up(was)

    def probe_answered(self, *, now_s: float) -> None:
        """A probe got an answer."""
        was = self.health.state
        self.health.probe_ok(now_s=now_s)
        self._say_if_up(was)

    def _note_failure(self, error: str, *, refused: bool, now_s: float) -> bool:
        """Whether this took it down."""
        went_down = self.health.failed(error, refused=refused, now_s=now_s)
        if went_down:
            log.warning("%s is down: %s", self.name, error)
        return went_down

    def _say_if_up(self, was: State) -> None:
        if was != "up" and self.health.state == "up":
            log.info("%s is up again", self.name)

    def broke_off(self, error: str, *, now_s: float) -> None:
        """It stopped in the middle of an answer. One process that dies breaks all of its streams:
        one line tells of them, and the next of how many there were meanwhile."""
        self._n_broken += 1
        if now_s < self._say_broken_again_s:
            return
        more = f" ({self._n_broken} since it was last said)" if self._n_broken > 1 else ""
        log.warning("%s broke off an answer%s: %s", self.name, more, error)
        self._n_broken = 0
        self._say_broken_again_s = now_s + _SAY_EVERY_S


class Attempt:
    """One request at one upstream, from sending to its end; `end` is safe to call always.

    `compute_tokens` is None if its first byte does not tell when its prefill ends: it is no stream,
    or its length is not known.
    """

    def __init__(
        self,
        upstream: Upstream,
        chains: tuple[Chain, ...],
        *,
        compute_tokens: int | None,
        now_s: float,
    ) -> None:
        self.upstream = upstream
        self._sent_s = now_s
        self._pending: Pending | None = None
        if compute_tokens is not None:
            self._pending = upstream.wait.sent(tokens=compute_tokens, now_s=now_s)
        self.ticket: Ticket = upstream.index.dispatch(chains)
        self.has_moved = False
        self._answered = self._has_failed = False
        upstream.in_flight += 1
        upstream.last_sent_s = now_s
        upstream.health.request_started()
        self._is_trial = upstream.breaker.sent(now_s)

    def answered(self, answer: aiohttp.ClientResponse, *, now_s: float) -> None:
        """The answer's headers arrived."""
        self._answered = True
        self.has_moved = answer.headers.get(MOVED_HEADER, "0") != "0"
        self.upstream.answered(answer.status, sent_s=self._sent_s, now_s=now_s)
        if answer.status < 500:
            self.upstream.breaker.answered(trial=self._is_trial)
            self._is_trial = False  # it has told; what becomes of it later is like any request's
        else:
            self.failed(f"answered {answer.status}", now_s=now_s)

    def failed(self, error: str, *, now_s: float) -> None:
        """It got no answer, half of one, or one of 500 and above. Counts once."""
        if self._has_failed:
            return
        self._has_failed = True
        if self.upstream.breaker.failed(error, trial=self._is_trial, now_s=now_s):
            log.warning("%s: breaker open, %s", self.upstream.name, self.upstream.breaker.reason)

    def prefilled(self, *, now_s: float) -> None:
        """The first byte of a good answer arrived."""
        self.upstream.index.prefilled(self.ticket)
        if self._pending is not None:
            self.upstream.wait.first_byte(self._pending, now_s=now_s)

    def end(self) -> None:
        """The request is over, whichever way."""
        self.upstream.in_flight -= 1
        self.upstream.index.abandon(self.ticket)
        if self._pending is not None:
            self.upstream.wait.gone(self._pending)
        if not self._answered:
            self.upstream.health.request_abandoned()
            self.upstream.breaker.abandoned(trial=self._is_trial)


def is_refusal(exc: BaseException | None) -> bool:
    """Whether nobody listens there, as opposed to a slow or broken path."""
    while exc is not None:
        if isinstance(exc, ConnectionRefusedError):
            return True
        if isinstance(exc, aiohttp.ClientConnectorError):
            return isinstance(exc.os_error, ConnectionRefusedError)
        exc = exc.__cause__
    return False


def _payload(body: bytes | None) -> bytes | io.BytesIO | None:
    # aiohttp writes raw bytes in one go, which for megabytes stalls every other stream.
    return io.BytesIO(body) if body is not None and len(body) > _LARGE_BODY_BYTES else body
