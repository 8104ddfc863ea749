"""Talks to the stacks of a PD cluster and to its engines (docs/contracts.md, A stack's workers).

Blocking calls, each bounded in time and in bytes; a redirect is not followed. What answers is
somebody else's program, so every answer is checked field by field.

    WorkersError            no answer, or one that cannot be meant: ask again later
      Refusal               an answer that says no, with `status`: 400, 404, 409 or 422
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Annotated, Any, Literal, TypeVar

import msgspec

Role = Literal["prefill", "decode"]
ROLES: tuple[Role, Role] = ("prefill", "decode")

TIMEOUT_S = 2.0
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
    `{worker_type}`. Saying it twice is saying it once. Raises WorkersError.
    """
    url = f"{control_url}/workers/{urllib.parse.quote(instance.rpartition('/')[2], safe='')}"
    worker = _ask("PUT", url, Worker, change)
    for field in ("status", "worker_type"):
        shown = getattr(worker, field)
        if shown != change.get(field, shown):
            raise WorkersError(url, f"answers 200 with {field} {shown}, not {change[field]}")
    return worker


def load(engine_url: str) -> Load:
    """What runs and waits on an engine, and the role it has. Raises WorkersError."""
    return _ask("GET", f"{engine_url.rstrip('/')}/v1/loads", Load)


def switch(engine_url: str, new_role: str) -> None:
    """Have an idle engine take `new_role`, and read it back.

    Raises WorkersError, of it Refusal with status 409 from an engine that is not idle.
    """
    url = f"{engine_url.rstrip('/')}/pd_role_switch"
    answer = _ask("POST", url, _Switched, {"new_role": new_role})
    if not answer.success or answer.new_role != new_role:
        raise WorkersError(
            url,
            f"answers 200 with success {answer.success}, new_role {answer.new_role}: "
            f"{answer.message[:_MAX_WORDS] or 'no message'}",
        )
    mode = load(engine_url).disagg_mode
    if mode != new_role:
        raise WorkersError(url, f"answers that it switched to {new_role}, and still is {mode}")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:
        return None


# No proxy either: the environment of a console says nothing about the way to its engines.
_opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))


def _ask(method: str, url: str, kind: type[T], body: dict[str, Any] | None = None) -> T:
    """One request; the answer as `kind`."""
    if not url.startswith(("http://", "https://")):
        raise WorkersError(url, "must begin with http:// or https://")
    request = urllib.request.Request(
        url,
        method=method,
        data=None if body is None else msgspec.json.encode(body),
        headers={"Content-Type": "application/json", "Accept": "application/json"},
    )
    until_s = time.monotonic() + TIMEOUT_S
    try:
        with _opener.open(request, timeout=TIMEOUT_S) as response:
            raw = _read(response, url, until_s)
    except urllib.error.HTTPError as exc:
        with exc:
            words = _words(exc, url, until_s)
        if exc.code in _REFUSALS:
            raise Refusal(url, exc.code, words) from None
        raise WorkersError(url, f"answers {exc.code}: {words}") from None
    except (OSError, http.client.HTTPException, ValueError) as exc:
        reason = exc.reason if isinstance(exc, urllib.error.URLError) else exc
        raise WorkersError(url, f"does not answer: {reason or type(exc).__name__}") from None
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise WorkersError(url, f"answers what it should not: {exc}") from None


def _read(response: Any, url: str, until_s: float) -> bytes:
    """The body, at most MAX_ANSWER_BYTES, however slowly it drips."""
    raw = b""
    while chunk := response.read1(_CHUNK_BYTES):
        raw += chunk
        if len(raw) > MAX_ANSWER_BYTES:
            raise WorkersError(url, f"answers more than {MAX_ANSWER_BYTES} bytes")
        if time.monotonic() > until_s:
            raise WorkersError(url, f"needs more than {TIMEOUT_S:g} s for its answer")
    return raw


def _words(exc: urllib.error.HTTPError, url: str, until_s: float) -> str:
    """What an error answer says, for people: its `error` or `message`, else how it begins."""
    try:
        raw = _read(exc.fp, url, until_s) if exc.fp is not None else b""
    except (OSError, http.client.HTTPException, WorkersError):
        return str(exc.reason)
    try:
        said: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = raw.decode("utf-8", "replace")
    for name in ("error", "message"):
        if isinstance(said, dict) and name in said:
            said = said[name]
    words = " ".join("".join(c for c in str(said) if c.isprintable() or c == " ").split())
    return words[:_MAX_WORDS] or str(exc.reason)
