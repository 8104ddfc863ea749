"""What no view should have to think of."""

from __future__ import annotations

from collections.abc import Callable

from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse

from console.api import bad_request


def no_null_characters(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Refuse a query with U+0000: PostgreSQL stores none, so no filter can mean one."""

    def checked(request: HttpRequest) -> HttpResponse:
        if "%00" in request.META.get("QUERY_STRING", ""):
            return bad_request(request, BadRequest("the query holds a null character (%00)"))
        return get_response(request)

    return checked
