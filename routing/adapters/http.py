"""The one blocking HTTP client that routers and engines are spoken to with.

Each call is bounded in time and in bytes; a redirect is not followed, a proxy not asked. What
answers is somebody else's program: its answer is taken as a type or not at all.

    HttpError               no answer, or one that cannot be meant: ask again later
      Status                an answer that is not 2xx, with `status` and its `words`
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
import urllib.parse
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

TIMEOUT_S = 2.0
"""For a whole call, from the connection to the last byte. Only the resolver is not bounded."""
MAX_ANSWER_BYTES = 1_000_000
MayReach = Callable[[str], bool]
"""Of a numeric address."""
_CHUNK_BYTES = 65_536
_MAX_WORDS = 200
_MAX_MESSAGE = 300
T = TypeVar("T")


class HttpError(Exception):
    """A URL that gives no usable answer; the message names it and what is wrong."""

    def __init__(self, url: str, message: str) -> None:
        self.url, self.message = url, plain(message, _MAX_MESSAGE)
        super().__init__(f"{url}: {self.message}")


class Status(HttpError):
    """An answer that says no, or that it failed."""

    def __init__(self, url: str, status: int, words: str) -> None:
        super().__init__(url, f"answers {status}: {words}")
        self.status, self.words = status, words


@dataclass(frozen=True)
class Answer:
    """One of status 2xx."""

    url: str
    status: int
    raw: bytes

    def read_as(self, kind: type[T]) -> T:
        """Its JSON as `kind`. Raises HttpError naming the field."""
        try:
            return msgspec.json.decode(self.raw, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise HttpError(self.url, f"answers what it should not: {exc}") from None

    def text(self) -> str:
        return self.raw.decode("utf-8", "replace")


def ask(
    method: str,
    url: str,
    *,
    body: Any = None,
    raw: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    max_bytes: int = MAX_ANSWER_BYTES,
    may_reach: MayReach | None = None,
) -> Answer:
    """One request; `body` goes as JSON, `raw` as it is. Raises HttpError, of it Status.

    `timeout_s` None: TIMEOUT_S. `may_reach` is asked of each address the host has, and it is the
    addresses it was asked of that are connected to: one that it refuses refuses the host.
    """
    timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
    if not url.startswith(("http://", "https://")):
        raise HttpError(url, "must begin with http:// or https://")
    sent = {"Content-Type": "application/json", "Accept": "application/json", **(headers or {})}
    if body is not None:
        raw = msgspec.json.encode(body)
    try:
        status, reason, answered = _exchange(
            method, url, raw, sent, time.monotonic() + timeout_s, max_bytes, may_reach
        )
    except TimeoutError:
        raise HttpError(url, f"needs more than {timeout_s:g} s for its answer") from None
    except (OSError, http.client.HTTPException, ValueError) as exc:
        why = _unkeyed(str(exc), sent) or type(exc).__name__
        raise HttpError(url, f"does not answer: {why[:_MAX_WORDS]}") from None
    if not 200 <= status < 300:
        said = _unkeyed(words(answered) or plain(reason, _MAX_WORDS), sent)
        raise Status(url, status, said or "no reason given")
    return Answer(url, status, answered)


def words(raw: bytes) -> str:
    """What an error answer says, for people: its `error` or `message`, else how it begins."""
    try:
        said: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = raw.decode("utf-8", "replace")
    for name in ("error", "message"):
        if isinstance(said, dict) and name in said:
            said = said[name]
    return plain(str(said), _MAX_WORDS)


def plain(text: str, most: int) -> str:
    """Fit for a line of a log and for a page: no control characters, no more than `most`."""
    return " ".join("".join(c for c in text if c.isprintable() or c == " ").split())[:most]


def _unkeyed(text: str, sent: Mapping[str, str]) -> str:
    """Without the key that was shown: some repeat what they were given, and this goes to logs."""
    key = sent.get("Authorization", "").removeprefix("Bearer ")
    # By its beginning, as the text may have been cut within it.
    return f"{text.partition(key[:8])[0]}..." if key and key[:8] in text else text


def _exchange(
    method: str,
    url: str,
    body: bytes | None,
    headers: Mapping[str, str],
    until_s: float,
    max_bytes: int,
    may_reach: MayReach | None,
) -> tuple[int, str, bytes]:
    """Status, reason and body of the answer. Raises TimeoutError at `until_s`, of `monotonic`."""
    parts = urllib.parse.urlsplit(url)
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    connection = (
        http.client.HTTPConnection(parts.netloc)
        if tls is None
        else http.client.HTTPSConnection(parts.netloc, context=tls)
    )
    with closing(connection):
        connected = _connect(connection.host, connection.port, until_s, may_reach)
        connection.sock = connected
        connected.settimeout(_left_s(until_s))
        if tls is not None:
            connection.sock = tls.wrap_socket(connected, server_hostname=connection.host)
        connection.sock.settimeout(_left_s(until_s))
        connection.request(
            method,
            urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, "")),
            body=body,
            headers={**headers, "Connection": "close"},
        )
        heard: Any = _Hurried(connection.sock, until_s)
        with http.client.HTTPResponse(heard, method=method) as answer:
            answer.begin()
            return answer.status, answer.reason, _read(answer, url, max_bytes)


def _connect(host: str, port: int, until_s: float, may_reach: MayReach | None) -> socket.socket:
    """A connection to the first address of `host` that takes one. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for *_, address in found:
        if may_reach is not None and not may_reach(str(address[0])):
            raise OSError(f"{host} is at an address that may not be reached from here")
    failed = OSError(f"{host} has no address")
    for i, (family, kind, proto, _, address) in enumerate(found):
        connected = socket.socket(family, kind, proto)
        try:
            # One address that swallows what it is sent leaves time for those after it.
            connected.settimeout(_left_s(until_s) / (len(found) - i))
            connected.connect(address)
        except OSError as exc:
            connected.close()
            failed = exc
            continue
        # Head and body are two writes; the second must not wait for the ack of the first.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected
    raise failed


class _Hurried(io.RawIOBase):
    """What a socket receives until a moment, as the file that an HTTPResponse reads from.

    A socket's own timeout begins anew with each byte, so one that drips is never late.
    """

    def __init__(self, connected: socket.socket, until_s: float) -> None:
        self._connected, self._until_s = connected, until_s

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connected.settimeout(_left_s(self._until_s))
        return self._connected.recv_into(buffer)


def _left_s(until_s: float) -> float:
    left_s = until_s - time.monotonic()
    if left_s <= 0.0:
        raise TimeoutError
    return left_s


def _read(response: http.client.HTTPResponse, url: str, max_bytes: int) -> bytes:
    """The body, at most `max_bytes`; of an error what can be had of it."""
    raw = b""
    try:
        while chunk := response.read1(_CHUNK_BYTES):
            raw += chunk
            if len(raw) > max_bytes:
                raise HttpError(url, f"answers more than {max_bytes} bytes")
        if response.length:
            # read1 takes the end of the connection for the end of the answer.
            raise HttpError(url, f"ends {response.length} bytes before its answer does")
    except (OSError, http.client.HTTPException, HttpError):
        if response.status < 400:
            raise
    return raw
