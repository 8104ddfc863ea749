"""A small client of Prometheus' query API: Prometheus, Thanos, Mimir, VictoriaMetrics.

Synchronous on purpose: views call it in their own thread, the puller in one of its loop's.
API: https://prometheus.io/docs/prometheus/latest/querying/api/
"""

from __future__ import annotations

import base64
import http.client
import math
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote, urlencode, urlsplit, urlunsplit

import msgspec

MAX_ANSWER_BYTES = 64 * 1024 * 1024


class QueryFailed(RuntimeError):
    """No usable answer; the text says of whom and why."""


class Series(NamedTuple):
    """One series of an answer: points of (time in epoch seconds, value), NaN as None."""

    labels: dict[str, str]
    points: list[tuple[float, float | None]]


class _Result(msgspec.Struct):
    metric: dict[str, str] = {}
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct, rename="camel"):
    result_type: str = ""
    result: msgspec.Raw = msgspec.Raw(b"[]")


class _Answer(msgspec.Struct, rename="camel"):
    status: str = ""
    error: str = ""
    error_type: str = ""
    data: _Data | None = None


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_results = msgspec.json.Decoder(list[_Result]).decode


@dataclass(frozen=True)
class Client:
    """`url` is what `/api/v1/query` is appended to; user and password may stand in it."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 10.0

    def query(self, promql: str, *, at_s: float) -> list[Series]:
        """What an expression is at one time: a vector, or the raw samples of `selector[range]`.

        Raises QueryFailed.
        """
        return self._ask("query", query=promql, time=f"{at_s:.3f}")

    def query_range(
        self, promql: str, *, start_s: float, end_s: float, step_s: float
    ) -> list[Series]:
        """An expression at start, start + step, ..., end. Raises QueryFailed."""
        return self._ask(
            "query_range",
            query=promql,
            start=f"{start_s:.3f}",
            end=f"{end_s:.3f}",
            step=f"{step_s:g}",
            # VictoriaMetrics would move start and end to multiples of the step.
            nocache="1",
        )

    def _ask(self, what: str, **form: str) -> list[Series]:
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        url = urlunsplit((parts.scheme, host, parts.path.rstrip("/") + f"/api/v1/{what}", "", ""))
        headers = {"Content-Type": "application/x-www-form-urlencoded", **self.headers}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
        request = urllib.request.Request(url, data=urlencode(form).encode(), headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as answer:
                body = answer.read(MAX_ANSWER_BYTES + 1)
        except urllib.error.HTTPError as exc:
            with exc:
                body = exc.read(64 * 1024)
            raise QueryFailed(f"{url}: HTTP {exc.code}: {_error(body)}") from None
        except (OSError, http.client.HTTPException) as exc:
            raise QueryFailed(f"{url}: {exc or type(exc).__name__}") from None
        if len(body) > MAX_ANSWER_BYTES:
            raise QueryFailed(f"{url}: more than {MAX_ANSWER_BYTES} bytes, ask for less")
        try:
            return _series(body)
        except (msgspec.MsgspecError, ValueError, UnicodeDecodeError) as exc:
            raise QueryFailed(f"{url}: not an answer of the query API: {exc}") from None


def _error(body: bytes) -> str:
    try:
        return _decode_answer(body).error[:300]
    except msgspec.MsgspecError:
        return body[:200].decode("utf-8", errors="replace").strip()


def _series(body: bytes) -> list[Series]:
    answer = _decode_answer(body)
    if answer.status != "success" or answer.data is None:
        raise ValueError(f"{answer.error_type}: {answer.error}"[:300])
    if answer.data.result_type not in ("vector", "matrix"):
        raise ValueError(f"a {answer.data.result_type!r} is no series")
    out = []
    for entry in _decode_results(answer.data.result):
        pairs = entry.values if entry.value is None else [entry.value]
        out.append(Series(entry.metric, [(at_s, _number(text)) for at_s, text in pairs]))
    return out


def _number(text: str) -> float | None:
    number = float(text)
    return None if math.isnan(number) else number


def quoted(text: str) -> str:
    """A PromQL string literal."""
    return msgspec.json.encode(text).decode()


def any_of(label: str, values: Any) -> str:
    """A matcher for exactly these values of a label."""
    return f"{label}=~{quoted('|'.join(_literal(value) for value in values))}"


def _literal(text: str) -> str:
    # RE2 knows no escape of an ordinary letter, so only what is special is escaped.
    return "".join(f"\\{c}" if c in r"\.+*?()|[]{}^$" else c for c in text)
