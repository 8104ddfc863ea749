"""What of the API goes away, and when: the one table that headers, schema and checks read.

An entry names an operation, or one parameter or property of it. From `since` on answers say so
(RFC 9745), with `sunset` when it ends (RFC 8594): a year later or more. Only past that may it be
missing from the schema (`openapi_changes`), and its entry go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Final

from django.http import HttpRequest, HttpResponse
from django.utils.http import http_date

BASE: Final = "/api/v1/"
POLICY: Final = "/api/docs/#deprecation"


@dataclass(frozen=True)
class Deprecated:
    """`path` as the schema writes it, empty for every path that has the parameter."""

    method: str
    path: str
    since: date
    sunset: date
    instead: str
    parameter: str = ""

    def headers(self) -> dict[str, str]:
        """What an answer says of it."""
        return {
            "Deprecation": f"@{_midnight(self.since):.0f}",
            "Sunset": http_date(_midnight(self.sunset)),
            "Link": f'<{POLICY}>; rel="deprecation"; type="text/html"',
        }

    def is_of(self, method: str, path: str) -> bool:
        return self.method == method.lower() and self.path in ("", path)


TABLE: Final[tuple[Deprecated, ...]] = (
    Deprecated(
        "get",
        "",
        since=date(2026, 12, 1),
        sunset=date(2027, 12, 1),
        instead="`next`: rows that come or go are then neither repeated nor passed over.",
        parameter="offset",
    ),
)
NOT_LISTS: Final = ("/api/v1/fleets/{fleet}/telemetry/series/ranked",)
"""Where a parameter of the same name means something else."""


def told(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware: say on an answer that what was asked goes away."""

    def answered(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        match = getattr(request, "resolver_match", None)
        if match is not None and request.path.startswith(BASE):
            found = used(request.method or "", template(match.route), request.GET)
            for name, value in (found.headers() if found else {}).items():
                response.headers[name] = value
        return response

    return answered


def used(
    method: str, path: str, parameters: Iterable[str], table: tuple[Deprecated, ...] = TABLE
) -> Deprecated | None:
    """What such a request uses that goes away: of several what ends first."""
    if path in NOT_LISTS:
        return None
    given = set(parameters)
    found = [
        entry
        for entry in table
        if entry.is_of(method, path) and (not entry.parameter or entry.parameter in given)
    ]
    return min(found, key=lambda entry: entry.sunset, default=None)


def template(route: str) -> str:
    """A route of the URL map as the schema writes it."""
    parts = [
        f"{{{part[1:-1].rpartition(':')[2]}}}" if part.startswith("<") else part
        for part in route.split("/")
    ]
    return "/" + "/".join(parts)


def _midnight(day: date) -> float:
    return datetime.combine(day, time(), UTC).timestamp()
