"""When signing in is refused for a while: wrong passwords for one account from one address, for one
account from wherever, and from one address for whichever accounts.

Attempts are counted by the name that was typed, whether or not there is such an account, so a
refusal tells nobody whether there is one.
"""

from __future__ import annotations

from typing import Any, Final

from axes.handlers.database import AxesDatabaseHandler
from axes.models import AccessAttempt
from django.http import HttpRequest

LIMITS: Final = (8, 40, 100)
"""Failures that lock, of each of AXES_LOCKOUT_PARAMETERS. From elsewhere it takes more, so that a
stranger does not keep somebody out with a few wrong passwords an hour."""


class Handler(AxesDatabaseHandler):
    """axes with a limit for each way of counting."""

    def get_failures(self, request: HttpRequest, credentials: dict[str, Any] | None = None) -> int:
        """The failures of the fullest count, as if its limit were the first one."""
        counts = [
            sum(attempts.values_list("failures_since_start", flat=True))
            for attempts in self.get_user_attempts(request, credentials)
        ]
        return max(n * LIMITS[0] // limit for n, limit in zip(counts, LIMITS, strict=True))

    def user_logged_in(self, sender: Any, request: HttpRequest, user: Any, **kwargs: Any) -> None:
        """Who gets in starts anew from there; what was tried from elsewhere still counts."""
        ip_address = getattr(request, "axes_ip_address", None)
        AccessAttempt.objects.filter(username=user.get_username(), ip_address=ip_address).delete()
