"""How often one person or one token may ask the API, and how much of that is left.

Counted in Valkey in windows of a minute, reading and changing apart. Where Valkey does not answer
nobody is counted and everybody served: a limit protects the console, it does not guard anything.
Batches, plans and sockets are not counted.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import redis
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from routing.rest.once import holder

log = logging.getLogger(__name__)

WINDOW_S: Final = 60
_TIMEOUT_S: Final = 0.3
_AWAY_S: Final = 5.0
"""How long a Valkey that did not answer is not asked again: requests must not wait for it."""


@dataclass(frozen=True)
class Count:
    """Where somebody stands in the window: so many of `quota`, for another `left_s`."""

    policy: str
    quota: int
    used: int
    left_s: float

    @property
    def is_over(self) -> bool:
        return self.used > self.quota

    def headers(self) -> dict[str, str]:
        """As draft-ietf-httpapi-ratelimit-headers names them."""
        remaining = max(self.quota - self.used, 0)
        return {
            "RateLimit-Policy": f'"{self.policy}";q={self.quota};w={WINDOW_S}',
            "RateLimit": f'"{self.policy}";r={remaining};t={max(round(self.left_s), 1)}',
        }


class Limit(BaseThrottle):
    """DRF's question whether a request may go on. Each view asks it once, signed in."""

    def __init__(self) -> None:
        self._count: Count | None = None

    def allow_request(self, request: Request, view: Any) -> bool:
        asked_again = getattr(request._request, "scope", {}).get("asked_again", False)
        if asked_again or not request.user.is_authenticated:
            return True
        policy = "read" if request.method in SAFE_METHODS else "change"
        self._count = count(policy, holder(request))
        request._request.rate_limit = self._count
        return self._count is None or not self._count.is_over

    def wait(self) -> float | None:
        return None if self._count is None else max(self._count.left_s, 1.0)


def told(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware: say on each answer of the API what is left."""

    def answered(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        found: Count | None = getattr(request, "rate_limit", None)
        if found is not None:
            for name, value in found.headers().items():
                response.headers[name] = value
        return response

    return answered


def count(policy: str, holder: str) -> Count | None:
    """One more request of `holder`; None where nobody counts."""
    quota = settings.ENV[{"read": "CONSOLE_API_READS", "change": "CONSOLE_API_CHANGES"}[policy]]
    found = _valkey().count(f"api:{policy}:{holder}")
    return None if found is None else Count(policy, quota, *found)


class _Valkey:
    """The counters. Says once that they are away, and once that they are back."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(
            url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
        )
        self._away_until_s = 0.0
        self._is_away = False

    def count(self, key: str) -> tuple[int, float] | None:
        """(requests in the window with this one, seconds until it ends)."""
        if time.monotonic() < self._away_until_s:
            return None
        try:
            with self._client.pipeline() as pipe:
                pipe.set(key, 0, ex=WINDOW_S, nx=True)
                pipe.incr(key)
                pipe.pttl(key)
                _, used, left_ms = pipe.execute()
        except redis.RedisError as exc:
            if not self._is_away:
                log.warning("requests are not counted, Valkey does not answer: %s", exc)
            self._is_away, self._away_until_s = True, time.monotonic() + _AWAY_S
            return None
        if self._is_away:
            log.info("requests are counted again")
        self._is_away = False
        return used, max(left_ms, 0) / 1000.0


@functools.cache
def _valkey() -> _Valkey:
    return _Valkey(settings.REDIS_URL)
