"""What a page answers whose change a freeze forbids: by what, until when, and who may override."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from console.changes import CONFLICT
from routing.models import Fleet
from routing.windows.refusing import FrozenNow


class SaysFrozen:
    """Middleware: any page's command may raise FrozenNow, and no page has to think of it."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exc: Exception) -> HttpResponse | None:
        if not isinstance(exc, FrozenNow):
            return None
        context = {
            "fleet": Fleet.objects.get(pk=exc.value),
            "frozen": exc.frozen,
            "again": request.get_full_path(),
        }
        return render(request, "frozen.html", context, status=CONFLICT)
