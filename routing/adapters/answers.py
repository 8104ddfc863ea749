"""One question to a router or engine, its no told apart from no answer, and what it shows as.

All that adapters send over HTTP goes through here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from routing.adapters import http
from routing.adapters.surface import Refused, SurfaceError
from telemetry import exposition

MAX_METRICS_BYTES: Final = 16_000_000
REFUSALS: Final = (400, 401, 403, 404, 405, 409, 422)
T = TypeVar("T")


def call(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: Any = None,
    max_bytes: int | None = None,
) -> http.Answer:
    """One request. Raises Refused for an answer that says no, else SurfaceError."""
    try:
        return http.ask(
            method, url, headers=headers, body=body, max_bytes=max_bytes or http.MAX_ANSWER_BYTES
        )
    except http.Status as exc:
        raise no_of(exc) from None
    except http.HttpError as exc:
        raise SurfaceError(str(exc)) from None


def no_of(answer: http.Status) -> SurfaceError:
    """Refused for one that says no, else SurfaceError."""
    return (Refused if answer.status in REFUSALS else SurfaceError)(str(answer))


def read_as(answer: http.Answer, kind: type[T]) -> T:
    """Its JSON as `kind`. Raises SurfaceError naming the field."""
    try:
        return answer.read_as(kind)
    except http.HttpError as exc:
        raise SurfaceError(str(exc)) from None


def get(
    url: str,
    kind: type[T],
    *,
    headers: Mapping[str, str] | None = None,
    max_bytes: int | None = None,
) -> T:
    """The JSON at `url` as `kind`. Raises SurfaceError."""
    return read_as(call("GET", url, headers=headers, max_bytes=max_bytes), kind)


def post(url: str, body: object, kind: type[T], *, headers: Mapping[str, str] | None = None) -> T:
    """What `url` answers to `body`, as `kind`. Raises Refused for a no, else SurfaceError."""
    return read_as(call("POST", url, headers=headers, body=body), kind)


def metrics(url: str, *, headers: Mapping[str, str] | None = None) -> exposition.Exposition:
    """The Prometheus text at `url`. Raises SurfaceError."""
    answer = call("GET", url, headers=headers, max_bytes=MAX_METRICS_BYTES)
    return exposition.parse(answer.text())


def total(found: exposition.Exposition, name: str, **labels: str) -> float | None:
    """The sum of the samples called `name` that carry these labels; None: there is none, or it is
    no number that could be passed on."""
    values = [
        sample.value
        for sample in found.samples.get(name, ())
        if all(sample.labels.get(key) == value for key, value in labels.items())
    ]
    return sum(values) if values and all(map(math.isfinite, values)) else None
