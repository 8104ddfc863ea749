"""`POST /api/v1/ingest` as a raw ASGI callable in front of Django.

Answers: 200 {acked_seq} after the commit | 401, 403 token | 405 | 408 slow body | 409 older boot |
413 too large | 415 encoding or type | 422 {error, field, value}, nothing stored | 503 with
Retry-After, send it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec
import psycopg
from django.conf import settings
from django.db import connections
from prometheus_client import Counter

from telemetry import layouts, reports, store, tokens, wire
from telemetry.arrivals import Arrival
from telemetry.flusher import Connect, Flusher, Rejected, Unavailable
from telemetry.landing import Outcome
from telemetry.publish import Publisher

log = logging.getLogger(__name__)

PATH: Final = "/api/v1/ingest"
_OFF_LOOP_BYTES: Final = 128 * 1024
_BODY_TIMEOUT_S: Final = 30.0
_MSGPACK: Final = (
    "",
    "application/msgpack",
    "application/x-msgpack",
    "application/vnd.msgpack",
    "application/octet-stream",
)
_CONNECT_TIMEOUT_S: Final = 5
_LOG_EVERY_S: Final = 10.0
_ASK_TIMEOUT_S: Final = 5.0

REFUSED = Counter("prfaas_ingest_refused_requests", "Requests refused, by status.", ["status"])

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Refused(Exception):
    """An answer other than 200."""

    def __init__(
        self, status: int, error: str, *, headers: dict[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(error)
        self.status = status
        self.body = {"error": error, **more}
        self.headers = headers or {}
        self.agent: str | None = None
        """Whose batch it was, where that was read."""


class Ingest:
    """The endpoint. `start` and `stop` it with the server (ASGI lifespan)."""

    def __init__(
        self,
        *,
        flusher: Flusher,
        token_cache: tokens.TokenCache,
        refusals: reports.Refusals,
        max_bytes: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.refusals = refusals
        self._flusher = flusher
        self._tokens = token_cache
        self._max_bytes = max_bytes
        self._clock = clock
        self._log_again_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        held = _Held(self._flusher)
        try:
            status, body, headers = 200, await self._accept(scope, receive, held), {}
        except Refused as refused:
            status, body, headers = refused.status, refused.body, refused.headers
            self.note(refused, dict(scope["headers"]), scope.get("client"))
        except Unavailable as exc:
            status, body = 503, {"error": str(exc)}
            headers = {"retry-after": str(max(1, round(exc.retry_s)))}
        except ConnectionAbortedError:
            return  # the agent hung up; it will send the batch again
        finally:
            held.release()
        await _answer(send, status, body, headers)

    def at_once(self, headers: Mapping[bytes, bytes], body: bytes) -> Taken | None:
        """Take a whole body that needs nobody to wait for: the common case, without a task.

        None where it does (an unknown token or encoding, a large body): `__call__` then does the
        same, slowly. Raises Refused or Unavailable. Call `answer` once the batch's outcome is
        there.
        """
        received_s = self._clock()
        secret = tokens.bearer(headers.get(b"authorization", b"").decode("latin-1"))
        grant = None if secret is None else self._tokens.known(secret, now_s=received_s)
        if secret is None or grant is None or len(body) > _OFF_LOOP_BYTES:
            return None
        encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding not in (b"", b"identity", b"gzip"):
            return None
        self._check_scope(grant)
        held = _Held(self._flusher)
        held.more(len(body))
        try:
            if encoding == b"gzip":
                n_packed, body = len(body), self._gunzip(body)
                if len(body) > _OFF_LOOP_BYTES:
                    held.release()
                    return None
                held.more(max(len(body) - n_packed, 0))
            batch, encoded = self._read(body, headers, received_s, grant, secret)
            outcome = self._flusher.put(batch, received_s=received_s, encoded=encoded)
        except BaseException:
            held.release()
            raise
        outcome.add_done_callback(lambda _: held.release())
        return Taken(batch.agent, batch.boot, batch.seq, outcome)

    def knows(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether this process knows the request's token without asking the database."""
        secret = tokens.bearer(headers.get(b"authorization", b"").decode("latin-1"))
        return secret is not None and self._tokens.known(secret, now_s=self._clock()) is not None

    async def learn(self, headers: Mapping[bytes, bytes]) -> None:
        """Ask for it, so that `at_once` can tell; what it raises is for `__call__` to say."""
        with contextlib.suppress(Refused, Unavailable):
            await self._grant(headers)

    async def _accept(self, scope: Scope, receive: Receive, held: _Held) -> dict[str, Any]:
        headers = {name.lower(): value for name, value in scope["headers"]}
        if scope["method"] != "POST":
            raise Refused(405, "only POST is allowed", headers={"allow": "POST"})
        grant, secret = await self._grant(headers)
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                body = await self._body(headers, receive, held)
        except TimeoutError:
            # What has come of it counts against everybody's room.
            raise Refused(
                408,
                f"the body did not come within {_BODY_TIMEOUT_S:g} s",
                headers={"connection": "close"},
            ) from None
        received_s = self._clock()
        if len(body) < _OFF_LOOP_BYTES:
            batch, encoded = self._read(body, headers, received_s, grant, secret)
        else:
            # Megabytes take long enough to check that every socket would notice.
            batch, encoded = await asyncio.to_thread(
                self._read, body, headers, received_s, grant, secret
            )
        outcome = self._flusher.put(batch, received_s=received_s, encoded=encoded)
        with contextlib.suppress(Exception):
            await outcome
        return answer(Taken(batch.agent, batch.boot, batch.seq, outcome))

    def _read(
        self,
        body: bytes,
        headers: Mapping[bytes, bytes],
        received_s: float,
        grant: tokens.Grant,
        secret: str,
    ) -> tuple[wire.Batch, bytes]:
        """The checked batch and its msgpack bytes. Raises Refused."""
        content_type = headers.get(b"content-type", b"").decode("latin-1")
        media_type = content_type.partition(";")[0].strip().lower()
        if media_type not in _MSGPACK and "json" not in media_type:
            raise Refused(
                415,
                f"unknown Content-Type {media_type!r}: send application/msgpack or "
                "application/json",
                headers={"accept": "application/msgpack, application/json"},
            )
        agent = None
        try:
            batch = wire.decode(body, media_type)
            agent = batch.agent
            _check_size_and_times(batch, received_s)
            _check_fleet(batch, grant.fleet)
        except wire.WireError as exc:
            refused = Refused(422, exc.error, field=exc.field, value=_short(exc.value))
            refused.agent = agent
            raise refused from None
        except Refused as refused:
            refused.agent = agent
            raise
        self.refusals.heard(batch.agent, tokens.prefix_of(secret))
        return batch, wire.encode(batch) if "json" in media_type else body

    async def _grant(self, headers: Mapping[bytes, bytes]) -> tuple[tokens.Grant, str]:
        secret = tokens.bearer(headers.get(b"authorization", b"").decode("latin-1"))
        challenge = {"www-authenticate": 'Bearer realm="ingest"'}
        if secret is None:
            raise Refused(401, "needs a header Authorization: Bearer pf_…", headers=challenge)
        grant = await self._tokens.grant(secret, now_s=self._clock())
        if grant is None:
            raise Refused(401, "this token is unknown, revoked or expired", headers=challenge)
        self._check_scope(grant)
        return grant, secret

    @staticmethod
    def _check_scope(grant: tokens.Grant) -> None:
        if "ingest" not in grant.scopes:
            raise Refused(403, "this token has no scope ingest")

    async def _body(self, headers: Mapping[bytes, bytes], receive: Receive, held: _Held) -> bytes:
        """The decompressed body; what is larger than allowed is never kept."""
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit():
            raise Refused(400, "Content-Length is not a number")
        encoding = headers.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
        if encoding not in ("", "identity", "gzip"):
            raise Refused(
                415, f"unknown encoding {encoding!r}", headers={"accept-encoding": "gzip"}
            )
        if int(declared) > self._max_bytes:
            raise self._too_large("body")
        held.more(0)  # full or away: say so before the body crosses the wire
        body = bytearray()
        unzip = zlib.decompressobj(wbits=31) if encoding == "gzip" else None
        n_received, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionAbortedError
            chunk, more = message.get("body", b""), message.get("more_body", False)
            n_received += len(chunk)
            if n_received > self._max_bytes:
                raise self._too_large("body")
            if unzip is not None:
                chunk = self._unzipped(unzip, chunk, room=self._max_bytes - len(body))
            held.more(len(chunk))
            body += chunk
            if len(body) > self._max_bytes:
                raise self._too_large("decompressed body")
        if unzip is not None and (unzip.unused_data or not unzip.eof):
            raise Refused(422, "the body is not one whole gzip stream", field="", value=None)
        return bytes(body)

    @staticmethod
    def _unzipped(unzip: Any, chunk: bytes, *, room: int) -> bytes:
        try:
            # One byte more than allowed is enough to know, however much would follow.
            return unzip.decompress(chunk, room + 1)
        except zlib.error as exc:
            raise Refused(422, f"the body is not gzip: {exc}", field="", value=None) from None

    def _too_large(self, what: str) -> Refused:
        return Refused(
            413, f"the {what} is larger than {self._max_bytes} bytes", limit=self._max_bytes
        )

    def _gunzip(self, body: bytes) -> bytes:
        """The whole body; of one that is too large for the loop just enough to know."""
        unzip = zlib.decompressobj(wbits=31)
        room = min(self._max_bytes, _OFF_LOOP_BYTES)
        whole = self._unzipped(unzip, body, room=room)
        if len(whole) > self._max_bytes:
            raise self._too_large("decompressed body")
        if len(whole) > room:
            return whole
        if unzip.unused_data or not unzip.eof:
            raise Refused(422, "the body is not one whole gzip stream", field="", value=None)
        return whole

    def note(self, refused: Refused, headers: Mapping[bytes, bytes], client: object) -> None:
        """Count a refusal, and log one in a while: the agent is told each time."""
        REFUSED.labels(str(refused.status)).inc()
        now_s = self._clock()
        secret = tokens.bearer(headers.get(b"authorization", b"").decode("latin-1"))
        if refused.status != 405:  # who only looked sent no batch
            self.refusals.count(
                refused.agent,
                tokens.prefix_of(secret) if secret else "",
                refused.status,
                str(refused.body["error"]),
                str(refused.body.get("field", "")),
                now_s,
            )
        if now_s >= self._log_again_s:
            self._log_again_s = now_s + _LOG_EVERY_S
            log.warning("telemetry of %s refused: %.300s", client, refused.body)


@dataclass(frozen=True)
class Taken:
    """A batch that waits for its commit."""

    agent: str
    boot: int
    seq: int
    outcome: asyncio.Future[Outcome]


def answer(taken: Taken) -> dict[str, Any]:
    """The body of a 200, once the outcome is there. Raises Refused or Unavailable."""
    try:
        outcome = taken.outcome.result()
    except Rejected as exc:
        if exc.by_content:
            said = f"the database refuses this batch: {exc}"
            refused = Refused(422, said, field="", value=None)
        else:
            refused = Refused(500, f"this batch cannot be stored: {exc}")
        refused.agent = taken.agent
        raise refused from None
    if outcome.state == "older":
        refused = Refused(
            409,
            f"a newer boot of this agent has reported: {outcome.newest_boot}",
            field="boot",
            value=taken.boot,
        )
        refused.agent = taken.agent
        raise refused
    return {"acked_seq": taken.seq}


def _check_size_and_times(batch: wire.Batch, received_s: float) -> None:
    """What can be known of a batch without the database. Raises Refused or WireError."""
    n_items = len(batch.instances) + len(batch.links) + len(batch.routers)
    if n_items > wire.MAX_ITEMS_PER_BATCH:
        raise Refused(
            413,
            f"{n_items} entries, at most {wire.MAX_ITEMS_PER_BATCH} in one batch",
            limit=wire.MAX_ITEMS_PER_BATCH,
        )
    latest_s = received_s + store.FUTURE_S
    if max(layouts.times(batch), default=0.0) <= latest_s:
        return
    for kind in ("instances", "links", "routers"):
        for i, sample in enumerate(getattr(batch, kind)):
            if sample.at_s > latest_s:
                ahead_s = sample.at_s - received_s
                raise wire.WireError(
                    f"{ahead_s:.0f} s ahead of this console: the clock of agent {batch.agent} is"
                    " wrong",
                    field=f"{kind}[{i}].at_s",
                    value=sample.at_s,
                )


def _samples(batch: wire.Batch) -> Iterator[tuple[str, Any]]:
    for kind in ("instances", "links", "routers"):
        for i, sample in enumerate(getattr(batch, kind)):
            yield f"{kind}[{i}]", sample


def _check_fleet(batch: wire.Batch, fleet: str) -> None:
    """A token of one fleet may not report for another; links belong to no fleet."""
    if not fleet:
        return
    for path, sample in _samples(batch):
        if not isinstance(sample, wire.LinkSample) and not sample.id.startswith(f"{fleet}/"):
            raise Refused(
                403, f"this token is for fleet {fleet} only", field=f"{path}.id", value=sample.id
            )


def _short(value: Any) -> Any:
    return value if not isinstance(value, str) or len(value) <= 200 else f"{value[:200]}…"


class _Held:
    """The bytes one request counts in the flusher until it is answered."""

    def __init__(self, flusher: Flusher) -> None:
        self._flusher = flusher
        self._n_bytes = 0

    def more(self, n_bytes: int) -> None:
        self._flusher.hold(n_bytes)
        self._n_bytes += n_bytes

    def release(self) -> None:
        self._flusher.release(self._n_bytes)


async def _answer(send: Send, status: int, body: dict[str, Any], headers: dict[str, str]) -> None:
    encoded = msgspec.json.encode(body)
    lines = {"content-type": "application/json", "content-length": str(len(encoded)), **headers}
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(k.encode(), v.encode()) for k, v in lines.items()],
        }
    )
    await send({"type": "http.response.body", "body": encoded})


@dataclass
class Service:
    """The endpoint with everything behind it, made from Django's settings."""

    app: Ingest
    flusher: Flusher
    publisher: Publisher
    asker: Asker

    async def start(self) -> None:
        self.publisher.start()
        await self.flusher.start()

    async def stop(self) -> None:
        await self.flusher.stop()
        await self.publisher.stop()
        await self.asker.close()


def service(committed: Callable[[list[Arrival]], None] | None = None) -> Service:
    """What `console.asgi` starts and stops with the server; `committed` hears what was stored."""
    publisher = Publisher(settings.REDIS_URL)

    def publish(arrivals: list[Arrival]) -> None:
        publisher.put(arrivals)
        if committed is not None:
            committed(arrivals)

    refusals = reports.Refusals()
    flusher = Flusher(
        database_connect,
        publish=publish,
        max_batches=settings.ENV["CONSOLE_INGEST_QUEUE"],
        upkeep=refusals.flush,
    )
    asker = Asker(database_connect)
    app = Ingest(
        flusher=flusher,
        token_cache=tokens.TokenCache(asker.grant),
        refusals=refusals,
        max_bytes=settings.ENV["CONSOLE_INGEST_MAX_BYTES"],
    )
    return Service(app, flusher, publisher, asker)


async def database_connect() -> psycopg.AsyncConnection:
    """A connection of our own, outside Django's pool, that never lets a lost commit look safe."""
    chosen = connections["default"].settings_dict
    names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST"}
    options = {k: v for k, v in chosen.get("OPTIONS", {}).items() if k != "pool"}
    connection = await psycopg.AsyncConnection.connect(
        **{**options, **{key: chosen[name] for key, name in names.items() if chosen[name]}},
        port=chosen["PORT"] or None,
        connect_timeout=_CONNECT_TIMEOUT_S,
        application_name="console ingest",
        autocommit=True,
    )
    await connection.execute("SET synchronous_commit = on")
    await connection.execute("SET statement_timeout = '15s'")
    return connection


class Asker:
    """Reads grants over a small connection of its own: the flusher's is inside transactions."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._connection: psycopg.AsyncConnection | None = None
        self._lock = asyncio.Lock()

    async def grant(self, digest: bytes, now: datetime) -> tokens.Grant | None:
        """The grant of a digest. Raises Unavailable while there is no database."""
        async with self._lock:
            for attempt in (1, 2):
                try:
                    async with asyncio.timeout(_ASK_TIMEOUT_S):
                        if self._connection is None:
                            self._connection = await self._connect()
                        return await tokens.fetch_grant(self._connection, digest, now=now)
                except (psycopg.OperationalError, OSError, TimeoutError) as exc:
                    # The first failure may only mean that the database was restarted since.
                    await self.close()
                    if attempt == 2:
                        log.warning("no token can be checked: %s", str(exc).strip())
        raise Unavailable("the database is away", retry_s=2.0)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
