"""What somebody may do, everywhere or in one fleet: the same for people and for machines.

A person's rights come from groups, named after a role (`operator`: every fleet) or after a role and
a fleet (`operator:demo`); a machine's are written on its token. Rooms ask `of(user)`; nobody else
reads groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from django.core.exceptions import PermissionDenied
from django.db.models import Model, Q, QuerySet
from django.shortcuts import get_object_or_404

M = TypeVar("M", bound=Model)

SCOPES: Final = ("read", "operate", "approve", "admin")
"""What people may do; tokens may also be for `ingest` and for `router`."""
_INCLUDES: Final = {
    "admin": frozenset(SCOPES),
    "operate": frozenset({"operate", "read"}),
    "approve": frozenset({"approve", "read"}),
}
ROLES: Final = {"viewer": "read", "operator": "operate", "approver": "approve", "admin": "admin"}
"""The scope that being in a group of this name gives."""


def granted(scopes: list[str]) -> frozenset[str]:
    """Everything `scopes` allow, with what they include."""
    return frozenset().union(*(_INCLUDES.get(scope, {scope}) for scope in scopes))


@dataclass(frozen=True)
class Rights:
    """Scopes that hold in every fleet and for the site as a whole, and scopes in single fleets."""

    everywhere: frozenset[str] = frozenset()
    by_fleet: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def may(self, scope: str, fleet: str = "") -> bool:
        """Whether `scope` holds in `fleet`; without one, for the whole site."""
        return scope in self.everywhere or scope in self.by_fleet.get(fleet, ())

    def anywhere(self, scope: str) -> bool:
        """Whether `scope` holds in at least one fleet, be it there or not."""
        return scope in self.everywhere or any(scope in s for s in self.by_fleet.values())

    def scopes(self, fleet: str = "") -> frozenset[str]:
        """All that holds in `fleet`; without one, for the whole site."""
        return self.everywhere | self.by_fleet.get(fleet, frozenset())

    def fleets(self, scope: str) -> frozenset[str] | None:
        """The names of the fleets in which `scope` holds; None is every fleet."""
        if scope in self.everywhere:
            return None
        return frozenset(name for name, scopes in self.by_fleet.items() if scope in scopes)

    def within(self, scope: str, rows: QuerySet[M], *, by: str = "fleet") -> QuerySet[M]:
        """Those of `rows` whose field `by` names a fleet in which `scope` holds."""
        names = self.fleets(scope)
        return rows if names is None else rows.filter(**{f"{by}__in": sorted(names)})

    def within_or_site(self, scope: str, rows: QuerySet[M], *, by: str = "fleet") -> QuerySet[M]:
        """As `within`, with rows of no fleet, which are about the whole site."""
        names = self.fleets(scope)
        if names is None:
            return rows
        return rows.filter(Q(**{f"{by}__in": sorted(names)}) | Q(**{by: ""}))


NOTHING: Final = Rights()
EVERYTHING: Final = Rights(granted(["admin"]))


def of_groups(names: list[str]) -> Rights:
    """What being in groups of these names allows; other names mean nothing here."""
    everywhere: list[str] = []
    by_fleet: dict[str, list[str]] = {}
    for name in names:
        role, has_fleet, fleet = name.partition(":")
        if role not in ROLES or (has_fleet and not fleet):
            continue
        (by_fleet.setdefault(fleet, []) if fleet else everywhere).append(ROLES[role])
    return Rights(granted(everywhere), {name: granted(each) for name, each in by_fleet.items()})


def of_token(scopes: list[str], fleet: str) -> Rights:
    """What a token with `scopes` allows, for one fleet where it is bound to one."""
    return Rights(by_fleet={fleet: granted(scopes)}) if fleet else Rights(granted(scopes))


def of(user: Any) -> Rights:
    """The rights of whoever a request is from; nobody has none.

    Kept on `user` for as long as that object lives, which is a request. Whoever holds on to a
    connection asks with a user that was read again.
    """
    if not user.is_authenticated or not user.is_active:
        return NOTHING
    found: Rights | None = getattr(user, "rights", None)
    if found is None:
        if user.is_superuser:
            found = EVERYTHING
        else:
            found = of_groups(list(user.groups.values_list("name", flat=True)))
        user.rights = found
    return found


def person_of(user: Any) -> str:
    """The name of the person who asks, or who is behind the token that asks."""
    return getattr(user, "person", None) or user.get_username()


def demand(user: Any, scope: str, fleet: str) -> None:
    """Raises PermissionDenied unless `scope` holds in `fleet`; without one, for the whole site."""
    if not of(user).may(scope, fleet):
        where = f"in fleet {fleet}" if fleet else "for every fleet"
        raise PermissionDenied(f"this needs {scope} rights {where}")


def opened(user: Any, scope: str, rows: QuerySet[M], **which: Any) -> M:
    """The row that is asked for, if `scope` holds in its fleet.

    One that may not be read does not exist (Http404); one that may raises PermissionDenied.
    """
    row: Any = get_object_or_404(of(user).within("read", rows), **which)
    demand(user, scope, row.fleet)
    return row  # type: ignore[no-any-return]
