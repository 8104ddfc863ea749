"""What no view should have to think of."""

from __future__ import annotations

from collections.abc import Callable

from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse

from console.api import bad_request
from routing import request_ids
from telemetry import looks

_UNUSED = (
    *("accelerometer", "autoplay", "camera", "display-capture", "encrypted-media", "geolocation"),
    *("gyroscope", "hid", "magnetometer", "microphone", "midi", "payment", "serial", "usb"),
    *("publickey-credentials-get", "screen-wake-lock", "xr-spatial-tracking"),
)
"""What a browser would let a page ask for and none of ours does."""
PERMISSIONS = ", ".join(
    (*(f"{name}=()" for name in _UNUSED), "clipboard-write=(self)", "fullscreen=(self)")
)


def one_id(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Give each request an id, the one it came with or a new one, and tell it in the answer."""

    def identified(request: HttpRequest) -> HttpResponse:
        request_id = request_ids.begin(request.headers.get(request_ids.HEADER, ""))
        response = get_response(request)
        response.headers[request_ids.HEADER] = request_id
        return response

    return identified


def no_features(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Tell browsers what no page uses, so that a script that got in could not use it either."""

    def restricted(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response.headers["Permissions-Policy"] = PERMISSIONS
        return response

    return restricted


def no_null_characters(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Refuse a query with U+0000: PostgreSQL stores none, so no filter can mean one."""

    def checked(request: HttpRequest) -> HttpResponse:
        if "%00" in request.META.get("QUERY_STRING", ""):
            return bad_request(request, BadRequest("the query holds a null character (%00)"))
        return get_response(request)

    return checked


def one_look(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """A page reads engines, links and gates: who reports at all is asked once for all of it."""

    def looked(request: HttpRequest) -> HttpResponse:
        with looks.looking():
            return get_response(request)

    return looked
