"""Who asks the API, and what they may do: one set of scopes for people and for machines.

A person's scopes come from their groups (`viewer`, `operator`) or from being superuser; a machine's
are written on its token. `operate` includes `read`, `admin` includes both; `ingest` and `router`
stand alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.utils import timezone
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from telemetry import tokens
from telemetry.models import ApiToken

_INCLUDES = {
    "admin": frozenset({"admin", "operate", "read"}),
    "operate": frozenset({"operate", "read"}),
}
_GROUP_SCOPES = {"viewer": "read", "operator": "operate"}


def granted(scopes: list[str]) -> frozenset[str]:
    """Everything `scopes` allow, with what they include."""
    return frozenset().union(*(_INCLUDES.get(scope, {scope}) for scope in scopes))


def scopes_of(user: Any) -> frozenset[str]:
    """What a signed-in person may do. Nothing without a group."""
    if user.is_superuser:
        return granted(["admin"])
    groups = user.groups.values_list("name", flat=True)
    return granted([_GROUP_SCOPES[name] for name in groups if name in _GROUP_SCOPES])


@dataclass(frozen=True)
class Machine:
    """The holder of a token, standing where Django has a user."""

    token: ApiToken
    is_authenticated: bool = True
    is_active: bool = True
    is_superuser: bool = False

    def get_username(self) -> str:
        return f"token {self.token.name}"


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer pf_…`. Which scopes count is RolePermission's question."""

    def authenticate(self, request: Request) -> tuple[Machine, ApiToken] | None:
        secret = tokens.bearer(get_authorization_header(request).decode("latin-1"))
        if secret is None:
            return None
        token = tokens.find(secret, timezone.now())
        if token is None:
            raise AuthenticationFailed("this token is unknown, revoked or expired")
        return Machine(token), token

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="console"'


class RolePermission(BasePermission):
    """Reading needs `read`, changing needs `operate`; a view's `required_scope` (any of) decides
    otherwise. A token bound to a fleet opens that fleet's addresses only."""

    def has_permission(self, request: Request, view: Any) -> bool:
        needed = getattr(view, "required_scope", None)
        if needed is None:
            needed = ("read",) if request.method in SAFE_METHODS else ("operate",)
        if isinstance(request.user, Machine):
            token = request.user.token
            if token.fleet and view.kwargs.get("fleet") != token.fleet:
                self.message = f"this token is for fleet {token.fleet} only"
                return False
            has = granted(token.scopes)
        elif request.user.is_authenticated:
            has = scopes_of(request.user)
        else:
            return False
        self.message = f"this needs {' or '.join(needed)} rights"
        return not has.isdisjoint(needed)
