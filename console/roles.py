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
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from routing import rights

View = Callable[..., HttpResponse]


@dataclass(frozen=True)
class Role:
    name: str
    help: str
    scopes: frozenset[str] = frozenset()
    administers_site: bool = False

    @property
    def can_operate(self) -> bool:
        return "operate" in self.scopes

    @property
    def can_approve(self) -> bool:
        return "approve" in self.scopes

    @property
    def can_administer(self) -> bool:
        return "admin" in self.scopes


def role_of(user: Any, fleet: str = "") -> Role:
    """The role that a signed-in person's scopes amount to in `fleet`, or for the whole site."""
    has = rights.of(user)
    scopes = has.scopes(fleet)
    if "admin" in scopes:
        name, help_text = "administrator", _("Administrator: may also issue and revoke tokens.")
    elif "operate" in scopes:
        name = "operator"
        help_text = _(
            "Operator: may switch modes, hold plans, roll back, cancel moves "
            "of roles and reset breakers."
        )
    elif "approve" in scopes:
        name = "approver"
        help_text = _("Approver: sees everything, and approves or rejects what others propose.")
    elif "read" in scopes:
        name, help_text = "viewer", _("Viewer: sees everything, changes nothing.")
    else:
        name, help_text = "nobody", _("In no group: ask an administrator for viewer or operator.")
    return Role(name, help_text, scopes, has.may("admin"))


def needs(scope: str, why: Any, *, across: bool = False) -> Callable[[View], View]:
    """Refuse (403) people without `scope`, on GET as on POST, saying `why`.

    It must hold in the fleet of the address, whether or not there is such a fleet; an address
    without one needs it for the whole site. A page that is `across` fleets is for whoever has it
    somewhere, and keeps by itself to the fleets that `rights.of(request.user)` names.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            has, fleet = rights.of(request.user), kwargs.get("fleet", "")
            if not (has.anywhere(scope) if across and not fleet else has.may(scope, fleet)):
                raise PermissionDenied(_OTHER_FLEETS if has.anywhere(scope) else why)
            return view(request, *args, **kwargs)

        return checked

    return decorate


_OTHER_FLEETS = _lazy("This account has these rights for other fleets only.")
_READERS = _lazy("This account is in no group: it may not look at fleets.")
_OPERATORS = _lazy("Only operators change policy and holds, and start backtests.")
_APPROVERS = _lazy("Only approvers approve or reject what others propose.")
_ADMINISTRATORS = _lazy("Only administrators issue and revoke tokens.")

readable = needs("read", _READERS)
readable_across = needs("read", _READERS, across=True)
operators_only = needs("operate", _OPERATORS)
operators_across = needs("operate", _OPERATORS, across=True)
approvers_only = needs("approve", _APPROVERS)
approvers_across = needs("approve", _APPROVERS, across=True)
administrators_only = needs("admin", _ADMINISTRATORS)
administrators_across = needs("admin", _ADMINISTRATORS, across=True)
