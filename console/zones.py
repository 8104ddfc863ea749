"""In which time zone a page tells the time: UTC, or the reader's own, which a cookie names.

Pages only: what programs read (the API, health, metrics) and what is stored stays UTC.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from console.languages import CONTRACTS

COOKIE: Final = "zone"
UTC: Final = ZoneInfo("UTC")


def in_their_zone(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Every clock of a page by the zone its reader chose (`static/console/chrome.js`)."""

    def told(request: HttpRequest) -> HttpResponse:
        if request.path_info.startswith(CONTRACTS):
            return get_response(request)
        with timezone.override(zone_of(request.COOKIES.get(COOKIE, ""))):
            return get_response(request)

    return told


def zone_of(name: str) -> ZoneInfo:
    """The zone of that name; UTC where there is none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC
