"""Where a page leads whose change waits for a second person: to the proposal."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from routing.approvals.asking import Proposed


class LeadsToProposal:
    """Middleware: any page's command may raise Proposed, and no page has to think of it."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exc: Exception) -> HttpResponse | None:
        if not isinstance(exc, Proposed):
            return None
        messages.warning(
            request, _("Nothing has changed yet: somebody else has to approve it first.")
        )
        return redirect("approval", exc.kept().pk)
