"""`POST /api/v1/write` (remote-write 1.0 and 2.0) and `POST /v1/metrics` (OTLP) as raw ASGI.

Answered after the commit of what a request brought: 204, or 200 with OTLP's response | 400 cannot
be read, or samples that can never be taken, the others stored | 401, 403 token | 404 no rules |
405 | 408 slow body | 413 too large | 415 encoding or type | 503 with Retry-After, send it again.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from prometheus_client import Counter

from telemetry import tokens
from telemetry.doors import intake, otlp, protobuf, remote_write
from telemetry.doors.door import Door
from telemetry.doors.points import Labels
from telemetry.doors.protobuf import DecodeError
from telemetry.doors.remote_write import TooLarge
from telemetry.flusher import Unavailable

log = logging.getLogger(__name__)

WRITE_PATH: Final = "/api/v1/write"
OTLP_PATH: Final = "/v1/metrics"
PATHS: Final = (WRITE_PATH, OTLP_PATH)
MAX_HELD_BYTES: Final = 64 * 1024 * 1024
_BODY_TIMEOUT_S: Final = 30.0
_OFF_LOOP_BYTES: Final = 64 * 1024
_LOG_EVERY_S: Final = 10.0
_MAX_BLOCK_BYTES: Final = 64 * 1024 * 1024
_MAX_DECODING: Final = 2

SAMPLES = Counter(
    "prfaas_doors_samples", "Samples by door and what became of them.", ["door", "outcome"]
)
REQUESTS = Counter("prfaas_doors_requests", "Requests by door and status.", ["door", "status"])

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = dict[bytes, bytes]


class Grants(Protocol):
    """What a token allows; raises Unavailable while that cannot be asked."""

    async def grant(self, secret: str, *, now_s: float) -> tokens.Grant | None: ...


class _Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, error: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(error)
        self.status, self.headers = status, headers or {}


class _Held:
    """The bytes of one body until it is answered. `more` raises Unavailable without room."""

    def __init__(self, owner: Receiver) -> None:
        self._owner, self._n_bytes = owner, 0

    def more(self, n_bytes: int) -> None:
        if self._owner.held_bytes + n_bytes > MAX_HELD_BYTES:
            raise Unavailable("too many bytes are waiting for their commit")
        self._owner.held_bytes += n_bytes
        self._n_bytes += n_bytes

    def release(self) -> None:
        self._owner.held_bytes -= self._n_bytes
        self._n_bytes = 0


class _Answer:
    """A success: status, body and headers."""

    def __init__(
        self, status: int, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        self.status, self.body, self.headers = status, body, headers or {}


class Receiver:
    """Both doors of one process.

    `door` is what takes samples, or the answer in its place: status and words.
    """

    def __init__(
        self,
        door: Door | tuple[int, str],
        *,
        grants: Grants,
        max_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        self._door, self._grants = door, grants
        self._max_bytes, self._clock = max_bytes, clock
        self._blocks: dict[bytes, intake.Series] = {}
        self._n_block_bytes = 0
        self.held_bytes = 0
        # A small body may be a large request: few are taken apart at a time.
        self._decoding = asyncio.Semaphore(_MAX_DECODING)
        self._log_again_s = 0.0

    def open(self, door: Door) -> None:
        """Put what comes from now on through another door: its rules are others."""
        self._door = door
        self._blocks.clear()
        self._n_block_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = "otlp" if scope["path"] == OTLP_PATH else "remote_write"
        headers = {key.lower(): value for key, value in scope["headers"]}
        try:
            answer = await self._accept(scope, headers, receive, name)
        except _Refused as exc:
            answer = self._refusal(name, headers, exc.status, str(exc), exc.headers)
        except TooLarge as exc:
            answer = self._refusal(name, headers, 413, str(exc), {})
        except DecodeError as exc:
            answer = self._refusal(name, headers, 400, str(exc), {})
        except intake.Forbidden as exc:
            answer = self._refusal(name, headers, 403, str(exc), {})
        except Unavailable as exc:
            retry = {"retry-after": str(max(1, round(exc.retry_s)))}
            answer = self._refusal(name, headers, 503, str(exc), retry)
        except ConnectionAbortedError:
            return  # the sender hung up; it will send the same again
        REQUESTS.labels(name, str(answer.status)).inc()
        await _send(send, answer)

    async def _accept(self, scope: Scope, headers: Headers, receive: Receive, name: str) -> _Answer:
        if scope["method"] != "POST":
            raise _Refused(405, "only POST is allowed", {"allow": "POST"})
        grant = await self._grant(headers)
        if not isinstance(self._door, Door):
            status, error = self._door
            raise _Refused(status, error, {"retry-after": "30"} if status == 503 else None)
        self._door.admit()
        held = _Held(self)
        try:
            body = await self._read(headers, receive, held)
            if name == "otlp":
                return await self._otlp(self._door, headers, body, grant)
            return await self._write(self._door, headers, body, grant)
        finally:
            held.release()

    async def _grant(self, headers: Headers) -> tokens.Grant:
        secret = tokens.bearer(headers.get(b"authorization", b"").decode("latin-1"))
        challenge = {"www-authenticate": 'Bearer realm="ingest"'}
        if secret is None:
            raise _Refused(401, "needs a header Authorization: Bearer pf_…", challenge)
        grant = await self._grants.grant(secret, now_s=self._clock())
        if grant is None:
            raise _Refused(401, "this token is unknown, revoked or expired", challenge)
        if "ingest" not in grant.scopes:
            raise _Refused(403, "this token has no scope ingest")
        return grant

    async def _read(self, headers: Headers, receive: Receive, held: _Held) -> bytes:
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit():
            raise _Refused(400, "Content-Length is not a number")
        if int(declared) > self._max_bytes:
            raise TooLarge(f"the body is larger than {self._max_bytes} bytes")
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ConnectionAbortedError
                    chunk = message.get("body", b"")
                    body += chunk
                    more = message.get("more_body", False)
                    if len(body) > self._max_bytes:
                        raise TooLarge(f"the body is larger than {self._max_bytes} bytes")
                    held.more(len(chunk))
        except TimeoutError:
            raise _Refused(
                408, f"the body did not come within {_BODY_TIMEOUT_S:g} s", {"connection": "close"}
            ) from None
        return bytes(body)

    async def _write(
        self, door: Door, headers: Headers, body: bytes, grant: tokens.Grant
    ) -> _Answer:
        encoding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
        if encoding != "snappy":
            raise _Refused(415, f"Content-Encoding {encoding!r}: remote-write is sent in snappy")
        message = _proto(headers.get(b"content-type", b"").decode("latin-1"))
        decode = remote_write.decode_v2 if message == remote_write.V2 else remote_write.decode_v1
        receipt = intake.Receipt(self._clock())
        async with self._decoding:
            await self._take_write(door, body, decode, receipt, grant.fleet)
        await self._committed(door, receipt, "remote_write")
        # Without these a sender of 2.0 takes us for a receiver of 1.0.
        n_written = receipt.n_taken + receipt.n_repeated + receipt.n_left_out
        written = {
            "x-prometheus-remote-write-samples-written": str(n_written),
            "x-prometheus-remote-write-histograms-written": "0",
            "x-prometheus-remote-write-exemplars-written": "0",
        }
        if receipt.n_refused:
            raise _Refused(400, receipt.words(), written)
        return _Answer(204, headers=written)

    async def _take_write(
        self,
        door: Door,
        body: bytes,
        decode: Callable[[bytes], remote_write.Decoded],
        receipt: intake.Receipt,
        fleet: str,
    ) -> None:
        """Place every series, then take its samples: a request that is refused changes nothing."""

        def decoded() -> remote_write.Decoded:
            return decode(remote_write.unsnap(body, self._max_bytes))

        # A snappy block begins with the size of what is in it.
        request = await _maybe_off_loop(decoded, protobuf.varint(body, 0)[0])
        found = []
        for i, (labels, points) in enumerate(request.series):
            await _breathe(i)
            try:
                found.append((self._find(door.intake, labels, fleet), points))
            except intake.Refused as exc:
                receipt.refuse(str(exc), len(points))
        for i, (series, points) in enumerate(found):
            await _breathe(i)
            door.intake.take(series, points, receipt)
        if request.n_histograms:
            why = "native histograms are not supported, send classic buckets"
            receipt.refuse(why, request.n_histograms)

    def _find(self, taken: intake.Intake, labels: bytes | Labels, fleet: str) -> intake.Series:
        """The series of labels, remembered by the bytes they came as."""
        known = self._blocks.get(labels) if isinstance(labels, bytes) else None
        if known is None or not known.alive:
            pairs = remote_write.labels_v1(labels) if isinstance(labels, bytes) else labels
            known = taken.series(pairs)
            if isinstance(labels, bytes):
                self._n_block_bytes += len(labels)
                if self._n_block_bytes > _MAX_BLOCK_BYTES:
                    self._blocks.clear()
                    self._n_block_bytes = len(labels)
                self._blocks[labels] = known
        _check_fleet(known, fleet)
        return known

    async def _otlp(
        self, door: Door, headers: Headers, body: bytes, grant: tokens.Grant
    ) -> _Answer:
        encoding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
        if encoding not in ("", "identity", "gzip"):
            raise _Refused(415, f"unknown encoding {encoding!r}", {"accept-encoding": "gzip"})
        is_json = _is_json(headers)
        limit = min(self._max_bytes, otlp.MAX_JSON_BYTES) if is_json else self._max_bytes

        receipt = intake.Receipt(self._clock())
        async with self._decoding:
            await _take_otlp(door, body, encoding == "gzip", is_json, limit, receipt, grant.fleet)
        await self._committed(door, receipt, "otlp")
        response = ExportMetricsServiceResponse()
        if receipt.n_refused:
            # Series, where one histogram point is several: a sender only looks whether it is 0.
            response.partial_success.rejected_data_points = receipt.n_refused
            response.partial_success.error_message = receipt.words()
        return _Answer(200, _message(response, is_json), {"content-type": _type(is_json)})

    async def _committed(self, door: Door, receipt: intake.Receipt, name: str) -> None:
        await door.committed(receipt)
        for outcome, n in (
            ("taken", receipt.n_taken),
            ("repeated", receipt.n_repeated),
            ("left_out", receipt.n_left_out),
            ("refused", receipt.n_refused),
        ):
            if n:
                SAMPLES.labels(name, outcome).inc(n)

    def _refusal(
        self, name: str, headers: Headers, status: int, error: str, more: dict[str, str]
    ) -> _Answer:
        now_s = self._clock()
        if now_s >= self._log_again_s and status != 503:
            self._log_again_s = now_s + _LOG_EVERY_S
            log.warning("%s refused: %d %.300s", name, status, error)
        if name == "otlp":
            is_json = _is_json(headers, strict=False)
            return _Answer(
                status, _status(error, is_json), {"content-type": _type(is_json), **more}
            )
        text = (error + "\n").encode("utf-8", errors="replace")
        return _Answer(status, text, {"content-type": "text/plain; charset=utf-8", **more})


async def _take_otlp(
    door: Door,
    body: bytes,
    zipped: bool,
    is_json: bool,
    limit: int,
    receipt: intake.Receipt,
    fleet: str,
) -> None:
    """Place every series, then take its point: a request that is refused changes nothing."""

    def decoded() -> otlp.Decoded:
        plain = _unzipped(body, limit) if zipped else body
        return otlp.decode_json(plain) if is_json else otlp.decode(plain)

    request = await _maybe_off_loop(decoded, len(body) * (10 if zipped else 1))
    found = []
    for i, entry in enumerate(request.series):
        await _breathe(i)
        try:
            series = door.intake.series(entry.labels)
        except intake.Refused as exc:
            receipt.refuse(str(exc))
            continue
        _check_fleet(series, fleet)
        found.append((series, entry))
    for i, (series, entry) in enumerate(found):
        await _breathe(i)
        door.intake.take(series, (entry.point,), receipt, delta=entry.delta)
    for why, n in request.rejected.items():
        receipt.refuse(why, n)


def _check_fleet(series: intake.Series, fleet: str) -> None:
    """A token of one fleet may not report for another; links belong to no fleet."""
    target = series.target
    if fleet and target is not None and target.fleet not in ("", fleet):
        raise intake.Forbidden(f"this token is for fleet {fleet} only, not for {target.place.id}")


def _proto(content_type: str) -> str:
    """The message a Content-Type names. Raises _Refused."""
    media_type, *parameters = [part.strip() for part in content_type.split(";")]
    message = remote_write.V1
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip().lower() == "proto":
            message = value.strip().strip('"')
    if media_type.lower() != "application/x-protobuf" or message not in (
        remote_write.V1,
        remote_write.V2,
    ):
        raise _Refused(
            415,
            f"Content-Type {content_type!r}: send application/x-protobuf, with proto="
            f"{remote_write.V1} or {remote_write.V2}",
        )
    return message


def _is_json(headers: Headers, *, strict: bool = True) -> bool:
    """Whether a request is OTLP/JSON. Raises _Refused for what is no OTLP, when `strict`."""
    content_type = headers.get(b"content-type", b"").decode("latin-1")
    media_type = content_type.partition(";")[0].strip().lower()
    if strict and media_type not in ("application/x-protobuf", "application/json"):
        raise _Refused(
            415, f"Content-Type {content_type!r}: send application/x-protobuf or application/json"
        )
    return media_type == "application/json"


def _type(is_json: bool) -> str:
    return "application/json" if is_json else "application/x-protobuf"


def _message(message: Any, is_json: bool) -> bytes:
    if is_json:
        return json_format.MessageToJson(message, indent=None).encode()
    return bytes(message.SerializeToString())


def _status(error: str, is_json: bool) -> bytes:
    """A google.rpc.Status, in which OTLP says what went wrong; its field 2 is the message."""
    if is_json:
        return msgspec.json.encode({"message": error})
    return protobuf.put_bytes(2, error.encode("utf-8", errors="replace"))


def _unzipped(body: bytes, limit: int) -> bytes:
    unzip = zlib.decompressobj(wbits=31)
    try:
        # One byte more than allowed is enough to know, however much would follow.
        plain = unzip.decompress(body, limit + 1)
    except zlib.error as exc:
        raise DecodeError(f"the body is not gzip: {exc}") from None
    if len(plain) > limit:
        raise TooLarge(f"the decompressed body is larger than {limit} bytes")
    if unzip.unused_data or not unzip.eof:
        raise DecodeError("the body is not one whole gzip stream")
    return plain


async def _maybe_off_loop(work: Callable[[], Any], n_bytes: int) -> Any:
    """Do the work here, or in a thread where it takes long enough for every socket to notice."""
    return work() if n_bytes < _OFF_LOOP_BYTES else await asyncio.to_thread(work)


async def _breathe(i: int) -> None:
    """Let others run now and then inside a long loop."""
    if i % 500 == 499:
        await asyncio.sleep(0)


async def _send(send: Send, answer: _Answer) -> None:
    lines = {**answer.headers}
    if answer.status != 204:
        lines["content-length"] = str(len(answer.body))
    await send(
        {
            "type": "http.response.start",
            "status": answer.status,
            "headers": [(key.encode(), value.encode()) for key, value in lines.items()],
        }
    )
    await send({"type": "http.response.body", "body": answer.body})
