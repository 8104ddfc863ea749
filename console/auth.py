"""Who asks the API, and what they may do: one set of scopes for people and for machines.

A person's scopes come from their groups (`viewer`, `operator`, `approver`, `admin`, for one fleet
`operator:demo`) or from being superuser; a machine's are written on its token. `operate` and
`approve` include `read`, `admin` includes all three; `ingest` and `router` stand alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils import timezone
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from routing import rights
from routing.rights import Rights
from telemetry import tokens
from telemetry.models import ApiToken


def may(user: Any, scope: str, fleet: str = "") -> bool:
    """Whether `scope` holds in `fleet`; without one, for the whole site."""
    return rights.of(user).may(scope, fleet)


def fleets_of(user: Any, scope: str) -> frozenset[str] | None:
    """The names of the fleets in which `scope` holds; None is every fleet."""
    return rights.of(user).fleets(scope)


@dataclass(frozen=True)
class Machine:
    """The holder of a token, standing where Django has a user."""

    token: ApiToken
    is_authenticated: bool = True
    is_active: bool = True
    is_superuser: bool = False

    @property
    def rights(self) -> Rights:
        return rights.of_token(self.token.scopes, self.token.fleet)

    @property
    def person(self) -> str:
        """The name of the person behind the token."""
        return self.token.owner or self.token.created_by

    @property
    def expires_at(self) -> datetime | None:
        return self.token.expires_at

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
    otherwise. Below /fleets/F the scope must hold in F, whether or not there is an F. Elsewhere it
    must hold for the whole site, unless the view says `across_fleets`: then it holds somewhere and
    the view itself keeps to the fleets that `rights.of(request.user)` names."""

    def has_permission(self, request: Request, view: Any) -> bool:
        needed = getattr(view, "required_scope", None)
        if needed is None:
            needed = ("read",) if request.method in SAFE_METHODS else ("operate",)
        if not request.user.is_authenticated:
            return False
        has = rights.of(request.user)
        fleet = view.kwargs.get("fleet", "")
        if not fleet and getattr(view, "across_fleets", False):
            allowed = any(has.anywhere(scope) for scope in needed)
        else:
            allowed = any(has.may(scope, fleet) for scope in needed)
        if not allowed:
            self.message = _why_not(request.user, has, needed, fleet)
        return allowed


def _why_not(user: Any, has: Rights, needed: tuple[str, ...], fleet: str) -> str:
    if isinstance(user, Machine) and user.token.fleet and user.token.fleet != fleet:
        return f"this token is for fleet {user.token.fleet} only"
    what = f"this needs {' or '.join(needed)} rights"
    if any(has.anywhere(scope) for scope in needed):
        return f"{what} in fleet {fleet}" if fleet else f"{what} for every fleet"
    return what
