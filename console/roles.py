"""Who may open which page: the scopes of `console.auth`, in words people read.

Checked on the server for every page that changes something; templates only hide what would be
refused anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse

from console.auth import scopes_of

View = Callable[..., HttpResponse]


@dataclass(frozen=True)
class Role:
    name: str
    help: str
    scopes: frozenset[str] = frozenset()

    @property
    def can_operate(self) -> bool:
        return "operate" in self.scopes

    @property
    def can_administer(self) -> bool:
        return "admin" in self.scopes


def role_of(user: Any) -> Role:
    """The role that a signed-in person's scopes amount to."""
    scopes = scopes_of(user)
    if "admin" in scopes:
        name, help_text = "administrator", "Administrator: may also issue and revoke tokens."
    elif "operate" in scopes:
        name = "operator"
        help_text = (
            "Operator: may switch modes, hold plans, roll back, cancel moves of roles and reset "
            "breakers."
        )
    elif "read" in scopes:
        name, help_text = "viewer", "Viewer: sees everything, changes nothing."
    else:
        name, help_text = "nobody", "In no group: ask an administrator for viewer or operator."
    return Role(name, help_text, scopes)


def needs(scope: str, why: str) -> Callable[[View], View]:
    """Refuse (403) people without `scope`, on GET as on POST, saying `why`."""

    def decorate(view: View) -> View:
        @wraps(view)
        def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if scope not in scopes_of(request.user):
                raise PermissionDenied(why)
            return view(request, *args, **kwargs)

        return checked

    return decorate


readable = needs("read", "This account is in no group: it may not look at fleets.")
operators_only = needs("operate", "Only operators change policy and holds, and start backtests.")
administrators_only = needs("admin", "Only administrators issue and revoke tokens.")
