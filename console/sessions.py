"""How long somebody stays signed in: from the sign-in on, whatever they do meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.contrib.auth import logout
from django.contrib.auth.signals import user_logged_in
from django.contrib.sessions.backends.base import SessionBase
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

SINCE: Final = "signed_in_s"


@receiver(user_logged_in)
def _remember(sender: Any, request: HttpRequest, user: Any, **more: Any) -> None:
    request.session[SINCE] = timezone.now().timestamp()


def is_over(session: SessionBase, now: datetime) -> bool:
    """Whether the sign-in of a session is longer ago than it may be."""
    since_s: float = session.get(SINCE, now.timestamp())
    return now.timestamp() - since_s > settings.SESSION_S


def bounded(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Sign out whoever signed in too long ago; a form that they sent waits behind the login."""

    def checked(request: HttpRequest) -> HttpResponse:
        if request.user.is_authenticated:
            now = timezone.now()
            if is_over(request.session, now):
                logout(request)
            else:
                request.session.setdefault(SINCE, now.timestamp())
        return get_response(request)

    return checked
