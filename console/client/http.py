"""One question to the API and its answer: time limits, repetition, versions, pages, streams.

Repeated is only what may be asked twice: what reads, and what acts under an Idempotency-Key, of
which each call has one of its own.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

import httpx

from console.client.errors import ClientError, Unreachable, error_of

Asked = str | int | float | bool | None
"""A value of a query or of a header; None is not sent."""
Body = Mapping[str, Any] | bytes | None
BASE: Final = "/api/v1"
KEY: Final = "Idempotency-Key"
_AGAIN: Final = frozenset({429, 502, 503, 504})
_MAX_WAIT_S: Final = 30.0
_STREAM_QUIET_S: Final = 60.0
"""Longer than a stream is ever silent: it says something every 15 s."""


@dataclass(frozen=True)
class Operation:
    """One of the API's operations, as its schema describes it."""

    method: str
    path: str
    query: tuple[str, ...]
    headers: tuple[str, ...]
    media_types: tuple[str, ...]

    @property
    def may_repeat(self) -> bool:
        return self.method == "GET" or KEY in self.headers


@dataclass(frozen=True)
class Answer:
    """`data` is parsed JSON, else bytes; None where there is no body."""

    status: int
    data: Any
    etag: str = ""
    location: str = ""

    @property
    def is_proposal(self) -> bool:
        """Nothing was changed: `data` is a proposal that waits for a second person."""
        return self.status == 202 and "/approvals/" in self.location


@dataclass(frozen=True)
class Event:
    """One of a stream; a stream that begins again after `id` misses nothing."""

    id: str
    kind: str
    data: Any


def _operations() -> dict[str, Operation]:
    text = resources.files("console.client").joinpath("operations.json").read_text()
    return {
        name: Operation(
            *(row["method"], row["path"]),
            *(tuple(row[part]) for part in ("query", "headers", "media_types")),
        )
        for name, row in json.loads(text).items()
    }


OPERATIONS: Final = _operations()


class Calls:
    """What all calls go through. `client.Client` has one method for each operation."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_s: float = 30.0,
        attempts: int = 4,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._attempts, self._sleep, self._timeout_s = max(1, attempts), sleep, timeout_s
        # Never to where an answer points: the token would go along.
        self._http = httpx.Client(
            base_url=url.rstrip("/"),
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=timeout_s,
            follow_redirects=False,
            transport=transport,
            trust_env=False,
        )

    def close(self) -> None:
        self._http.close()

    def call(
        self,
        operation_name: str,
        asked: Mapping[str, Asked],
        body: Body = None,
        /,
        **place: str | int,
    ) -> Answer:
        """Ask one operation by its name. Raises ClientError."""
        operation = OPERATIONS[operation_name]
        query, headers = _sorted_out(operation_name, operation, asked)
        if KEY in operation.headers:
            headers.setdefault(KEY, uuid.uuid4().hex)
        content, media_type = _content(operation, body, headers.pop("Content-Type", ""))
        if media_type:
            headers["Content-Type"] = media_type
        return self._ask(operation, _address(operation, place), query, headers, content)

    def rows(
        self, operation_name: str, asked: Mapping[str, Asked], /, **place: str | int
    ) -> Iterator[dict[str, Any]]:
        """Every row of a list, page by page, as they are asked for. Raises ClientError."""
        while True:
            page = self.call(operation_name, asked, None, **place).data
            rows = page if isinstance(page, list) else page["results"]
            yield from rows
            following = None if isinstance(page, list) else page.get("next")
            if not following:
                return
            # Of the address only the query counts: the console may be known by another name.
            query = parse_qs(urlsplit(following).query)
            asked = {**asked, **{key: values[-1] for key, values in query.items()}}

    def stream(
        self, operation_name: str, asked: Mapping[str, Asked], /, **place: str | int
    ) -> Iterator[Event]:
        """Events as they happen, for ever: a stream that broke is begun again after the last one.
        Raises ClientError where it is refused, or cannot be had several times over."""
        operation = OPERATIONS[operation_name]
        query, headers = _sorted_out(operation_name, operation, asked)
        path, failed = _address(operation, place), 0
        while True:
            try:
                for event in self._events(path, query, headers):
                    failed = 0
                    if event.id:
                        headers["Last-Event-ID"] = event.id
                        query.pop("last_event_id", None)
                    if event.kind or event.data is not None:
                        yield event
            except httpx.TransportError as exc:
                failed += 1
                if failed >= self._attempts:
                    raise Unreachable(f"{self._http.base_url}: {_why(exc)}") from None
            self._sleep(_wait_s(failed + 1, None))

    def _events(
        self, path: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> Iterator[Event]:
        limits = httpx.Timeout(self._timeout_s, read=max(self._timeout_s, _STREAM_QUIET_S))
        with self._http.stream(
            "GET", path, params=query, headers=headers, timeout=limits
        ) as response:
            if response.status_code != 200:
                response.read()
                raise error_of(response.status_code, _json(response))
            yield from _parsed(response.iter_lines())

    def _ask(
        self,
        operation: Operation,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        content: bytes | None,
    ) -> Answer:
        attempt = 1
        while True:
            try:
                response = self._http.request(
                    operation.method, path, params=query, headers=headers, content=content
                )
            except httpx.TransportError as exc:
                if not operation.may_repeat or attempt >= self._attempts:
                    raise Unreachable(f"{self._http.base_url}: {_why(exc)}") from None
                said = None
            except (httpx.InvalidURL, httpx.UnsupportedProtocol) as exc:
                raise ClientError(f"{self._http.base_url}: {exc}") from None
            else:
                again = response.status_code in _AGAIN and operation.may_repeat
                if not again or attempt >= self._attempts:
                    return _answer(response)
                said = response.headers.get("Retry-After")
            self._sleep(_wait_s(attempt, said))
            attempt += 1


def _sorted_out(
    name: str, operation: Operation, asked: Mapping[str, Asked]
) -> tuple[dict[str, str], dict[str, str]]:
    """What goes into the query and into headers. Raises TypeError for what it does not take."""
    headers = {header.lower().replace("-", "_"): header for header in operation.headers}
    if operation.media_types:
        headers["content_type"] = "Content-Type"
    query: dict[str, str] = {}
    found: dict[str, str] = {}
    for key, value in asked.items():
        if value is None:
            continue
        said = str(value).lower() if isinstance(value, bool) else str(value)
        if key in headers:
            quoted = key in ("if_match", "if_none_match") and not said.startswith('"')
            found[headers[key]] = f'"{said}"' if quoted else said
        elif key in operation.query or (key == "numbers" and operation.query):
            query[key] = said
        else:
            takes = ", ".join([*operation.query, *headers]) or "nothing"
            raise TypeError(f"{name} takes {takes}, and no {key}")
    return query, found


def _content(operation: Operation, body: Body, media_type: str) -> tuple[bytes | None, str]:
    if body is None:
        # An act without a body still says that it is JSON.
        return (
            (b"{}", "application/json")
            if "application/json" in operation.media_types
            else (
                None,
                "",
            )
        )
    if isinstance(body, bytes):
        return body, media_type or operation.media_types[0]
    return json.dumps(body, allow_nan=False).encode(), "application/json"


def _address(operation: Operation, place: Mapping[str, str | int]) -> str:
    quoted = {name: quote(str(value), safe="") for name, value in place.items()}
    return BASE + operation.path.format(**quoted)


def _answer(response: httpx.Response) -> Answer:
    body = _json(response)
    if response.status_code >= 400:
        raise error_of(response.status_code, body)
    if 300 <= response.status_code < 400 and response.status_code != 304:
        raise error_of(response.status_code, None)
    return Answer(
        response.status_code,
        body,
        etag=response.headers.get("ETag", "").strip('"'),
        location=response.headers.get("Location", ""),
    )


def _json(response: httpx.Response) -> Any:
    if not response.content:
        return None
    if "json" not in response.headers.get("Content-Type", ""):
        return response.content
    try:
        return response.json()
    except ValueError:
        return response.content


def _wait_s(attempt: int, said: str | None) -> float:
    """Twice as long each time, never all clients at once; as long as the console asks for."""
    if said is not None and said.isascii() and said.isdigit():
        return min(float(said), _MAX_WAIT_S)
    return random.uniform(0.5, 1.0) * min(0.2 * 2.0**attempt, _MAX_WAIT_S)


def _why(exc: httpx.TransportError) -> str:
    if isinstance(exc, httpx.TimeoutException):
        return "does not answer in time"
    return str(exc) or "cannot be reached"


def _parsed(lines: Iterator[str]) -> Iterator[Event]:
    """Server-sent events out of their lines; one without data only says where one is."""
    event_id, kind, data = "", "", []
    for line in lines:
        if line.startswith(":"):
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "id" and "\0" not in value:
            event_id = value
        elif field == "event":
            kind = value
        elif field == "data":
            data.append(value)
        elif not line:
            text = "\n".join(data)
            yield Event(event_id, kind, _value(text) if data else None)
            kind, data = "", []


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
