"""Talks to the stacks of a PD cluster and to its engines (docs/contracts.md, A stack's workers).

Blocking calls, each bounded in time and in bytes; a redirect is not followed, a proxy not asked.
What answers is somebody else's program, so every answer is checked field by field.

    WorkersError            no answer, or one that cannot be meant: ask again later
      Refusal               an answer that says no, with `status`: 400, 404, 409 or 422
      Unheeded              an answer that says yes to what then is not so
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
import urllib.parse
from contextlib import closing
from typing import Annotated, Any, Literal, TypeVar

import msgspec

Role = Literal["prefill", "decode"]
ROLES: tuple[Role, Role] = ("prefill", "decode")

TIMEOUT_S = 2.0
"""For a whole call, from the connection to the last byte. Only the resolver is not bounded."""
MAX_ANSWER_BYTES = 1_000_000
_REFUSALS = (400, 404, 409, 422)
_CHUNK_BYTES = 65_536
_MAX_WORDS = 200

_Count = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=300, pattern=r"^[^\x00-\x1f\x7f]+$")]
_Url = Annotated[str, msgspec.Meta(max_length=500, pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")]
T = TypeVar("T")


class Worker(msgspec.Struct, frozen=True):
    """One instance as one stack lists it; `requests` is everything that is still on it."""

    id: _Name
    url: _Url
    worker_type: Role
    status: Literal["ready", "draining"]
    requests: _Count
    lease_s: float | None = None


class Load(msgspec.Struct, frozen=True):
    """What an engine says of itself."""

    num_running_reqs: _Count
    num_waiting_reqs: _Count
    disagg_mode: Role
    epoch_s: float | None = None

    @property
    def requests(self) -> int:
        return self.num_running_reqs + self.num_waiting_reqs


class _Listing(msgspec.Struct, frozen=True):
    workers: list[Worker]


class _Switched(msgspec.Struct, frozen=True):
    success: bool
    new_role: Role
    message: str = ""


class WorkersError(Exception):
    """A URL that gives no usable answer; the message names it and the field that is wrong."""

    def __init__(self, url: str, message: str) -> None:
        super().__init__(f"{url}: {message}")
        self.url = url


class Refusal(WorkersError):
    """The other side understood and says no."""

    def __init__(self, url: str, status: int, words: str) -> None:
        super().__init__(url, f"answers {status}: {words}")
        self.status, self.words = status, words


class Unheeded(WorkersError):
    """The other side says that it did what was asked, and shows that it did not."""


def listing(control_url: str) -> dict[str, Worker]:
    """Every worker a stack lists, by id. Raises WorkersError."""
    url = f"{control_url}/workers"
    found: dict[str, Worker] = {}
    for i, worker in enumerate(_ask("GET", url, _Listing).workers):
        if worker.id in found:
            raise WorkersError(url, f"workers[{i}].id {worker.id} is listed twice")
        found[worker.id] = worker
    return found


def put(control_url: str, instance: str, change: dict[str, Any]) -> Worker:
    """Change one worker of a stack: `{status: draining, lease_s}`, `{status: ready}` or
    `{worker_type}`. Saying it twice is saying it once.

    Raises WorkersError, of it Unheeded when the answer shows another worker than was asked for.
    """
    url = f"{control_url}/workers/{urllib.parse.quote(instance.rpartition('/')[2], safe='')}"
    worker = _ask("PUT", url, Worker, change)
    for field in ("status", "worker_type"):
        shown = getattr(worker, field)
        if shown != change.get(field, shown):
            raise Unheeded(url, f"answers 200 with {field} {shown}, not {change[field]}")
    return worker


def load(engine_url: str) -> Load:
    """What runs and waits on an engine, and the role it has. Raises WorkersError."""
    return _ask("GET", f"{engine_url.rstrip('/')}/v1/loads", Load)


def switch(engine_url: str, new_role: str) -> None:
    """Have an idle engine take `new_role`, and read it back.

    Raises WorkersError, of it Refusal with status 409 from an engine that is not idle, Unheeded
    from one that keeps its role.
    """
    url = f"{engine_url.rstrip('/')}/pd_role_switch"
    answer = _ask("POST", url, _Switched, {"new_role": new_role})
    if not answer.success or answer.new_role != new_role:
        raise Unheeded(
            url,
            f"answers 200 with success {answer.success}, new_role {answer.new_role}: "
            f"{answer.message[:_MAX_WORDS] or 'no message'}",
        )
    mode = load(engine_url).disagg_mode
    if mode != new_role:
        raise Unheeded(url, f"answers that it switched to {new_role}, and still is {mode}")


def _ask(method: str, url: str, kind: type[T], body: dict[str, Any] | None = None) -> T:
    """One request; the answer as `kind`."""
    if not url.startswith(("http://", "https://")):
        raise WorkersError(url, "must begin with http:// or https://")
    try:
        status, reason, raw = _exchange(method, url, body, time.monotonic() + TIMEOUT_S)
    except TimeoutError:
        raise WorkersError(url, f"needs more than {TIMEOUT_S:g} s for its answer") from None
    except (OSError, http.client.HTTPException, ValueError) as exc:
        why = str(exc) or type(exc).__name__
        raise WorkersError(url, f"does not answer: {why[:_MAX_WORDS]}") from None
    if not 200 <= status < 300:
        words = _words(raw) or reason or "no reason given"
        if status in _REFUSALS:
            raise Refusal(url, status, words)
        raise WorkersError(url, f"answers {status}: {words}")
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise WorkersError(url, f"answers what it should not: {exc}") from None


def _exchange(
    method: str, url: str, body: dict[str, Any] | None, until_s: float
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
        connected = _connect(connection.host, connection.port, until_s)
        connection.sock = connected
        connected.settimeout(_left_s(until_s))
        if tls is not None:
            connection.sock = tls.wrap_socket(connected, server_hostname=connection.host)
        connection.sock.settimeout(_left_s(until_s))
        connection.request(
            method,
            urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, "")),
            body=None if body is None else msgspec.json.encode(body),
            headers={
                "Content-Type": "application/json",
                "Accept": "application/json",
                "Connection": "close",
            },
        )
        heard: Any = _Hurried(connection.sock, until_s)
        with http.client.HTTPResponse(heard, method=method) as answer:
            answer.begin()
            return answer.status, answer.reason, _read(answer, url)


def _connect(host: str, port: int, until_s: float) -> socket.socket:
    """A connection to the first address of `host` that takes one. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
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


def _read(response: http.client.HTTPResponse, url: str) -> bytes:
    """The body, at most MAX_ANSWER_BYTES; of an error what can be had of it."""
    raw = b""
    try:
        while chunk := response.read1(_CHUNK_BYTES):
            raw += chunk
            if len(raw) > MAX_ANSWER_BYTES:
                raise WorkersError(url, f"answers more than {MAX_ANSWER_BYTES} bytes")
    except (OSError, http.client.HTTPException, WorkersError):
        if response.status < 400:
            raise
    return raw


def _words(raw: bytes) -> str:
    """What an error answer says, for people: its `error` or `message`, else how it begins."""
    try:
        said: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = raw.decode("utf-8", "replace")
    for name in ("error", "message"):
        if isinstance(said, dict) and name in said:
            said = said[name]
    words = " ".join("".join(c for c in str(said) if c.isprintable() or c == " ").split())
    return words[:_MAX_WORDS]
