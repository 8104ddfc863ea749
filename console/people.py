"""People as administrators change them: accounts, groups, sign-in. One audit row a change.

The only writer of Django's users and groups. Rights come from groups (`routing.rights`); whoever is
superuser administers everything and is made in a shell only.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Any, Final

from axes.utils import reset as forget_failures
from django.conf import settings
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import Q, QuerySet

from routing import audit
from routing.commands import Refused
from routing.models import Fleet
from routing.rights import ROLES

GROUP_NAMES: Final = re.compile(rf"({'|'.join(ROLES)})(:[A-Za-z0-9_-]+)?")
_NAME: Final = re.compile(r"[\w.@+-]{1,150}")
_PASSWORD_BYTES: Final = 15


@dataclass(frozen=True)
class Who:
    """Who changes something about people, through which door and why."""

    actor: str
    via: str
    reason: str = ""


def listed(*, search: str = "", role: str = "", active: bool | None = None) -> QuerySet[User]:
    """People by name, with their groups; of a role: everywhere or in some fleet."""
    rows = User.objects.prefetch_related("groups").order_by("username")
    if search:
        rows = rows.filter(Q(username__icontains=search) | Q(email__icontains=search))
    if role:
        mine = Q(groups__name=role) | Q(groups__name__startswith=f"{role}:")
        rows = rows.filter(mine | Q(is_superuser=True) if role == "admin" else mine).distinct()
    return rows if active is None else rows.filter(is_active=active)


def groups_of(user: User) -> list[str]:
    """The groups that give rights, by name."""
    return sorted(g.name for g in user.groups.all() if GROUP_NAMES.fullmatch(g.name))


def create(*, name: str, email: str = "", groups: list[str], who: Who) -> tuple[User, str]:
    """A new account, and a first password that is shown this once (none where people sign in
    elsewhere only). Raises Refused."""
    if not _NAME.fullmatch(name):
        raise Refused("name", name, "may hold letters, digits and @ . + - _")
    if len(email) > 254 or (email and not re.fullmatch(r"[^@\s]+@[^@\s]+", email)):
        raise Refused("email", email, "is no address")
    password = _new_password()
    with transaction.atomic():
        wanted = [_group(group) for group in groups]
        if User.objects.filter(username__iexact=name).exists():
            raise Refused("name", name, "is taken")
        user = User.objects.create_user(name, email, password or None)
        user.groups.set(wanted)
        _record(user, "user.create", who, after={"email": email, "groups": groups_of(user)})
    return user, password


def join(user: User, group: str, *, who: Who) -> bool:
    """Put somebody into a group; False if they were in it. Raises Refused."""
    with transaction.atomic():
        wanted, before = _group(group), groups_of(_locked(user))
        if group in before:
            return False
        user.groups.add(wanted)
        _record(user, "user.groups", who, before=before, after=_read_again(user))
    return True


def leave(user: User, group: str, *, who: Who) -> bool:
    """Take somebody out of a group; False if they were not in it. Raises Refused."""
    with transaction.atomic():
        before = groups_of(_locked(user))
        if group not in before:
            return False
        user.groups.remove(Group.objects.get(name=group))
        _somebody_administers()
        _record(user, "user.groups", who, before=before, after=_read_again(user))
    return True


def put_into(user: User, groups: list[str], *, who: Who) -> bool:
    """Make these the groups of somebody, as who vouches for them says; False if they were."""
    with transaction.atomic():
        before = groups_of(_locked(user))
        wanted = sorted(set(groups))
        if wanted == before:
            return False
        others = [g for g in user.groups.all() if g.name not in before]
        user.groups.set([*others, *(_group(group) for group in wanted)])
        _record(user, "user.groups", who, before=before, after=_read_again(user))
    return True


def activate(user: User, *, is_active: bool, who: Who) -> bool:
    """Let somebody sign in, or not any more: what they have open ends too. Raises Refused."""
    with transaction.atomic():
        if _locked(user).is_active == is_active:
            return False
        user.is_active = is_active
        user.save(update_fields=["is_active"])
        if not is_active:
            if user.username == who.actor:
                raise Refused("user", user.username, "is you: somebody else has to do it")
            _somebody_administers()
        verb = "user.activate" if is_active else "user.deactivate"
        _record(
            user, verb, who, before={"is_active": not is_active}, after={"is_active": is_active}
        )
    return True


def reset_password(user: User, *, who: Who) -> str:
    """A new password that is shown this once; where they are signed in, they are no more."""
    password = _new_password()
    if not password:
        raise Refused("user", user.username, "people sign in elsewhere: there are no passwords")
    with transaction.atomic():
        user.set_password(password)
        user.save(update_fields=["password"])
        _record(user, "user.password", who)
    return password


def changed_password(user: User, *, who: Who) -> None:
    """Somebody chose a password of their own: the audit knows that, not which."""
    _record(user, "user.password", who)


def unlock(user: User, *, who: Who) -> bool:
    """Forget failed attempts to sign in as this user, from wherever; False if there were none."""
    with transaction.atomic():
        if not forget_failures(username=user.username):
            return False
        _record(user, "user.unlock", who)
    return True


def linked(user: User, subject: str, *, who: Who) -> None:
    """Somebody is another one's name at the identity provider now: the audit knows which."""
    _record(user, "user.link", who, after={"subject": subject})


def _new_password() -> str:
    return secrets.token_urlsafe(_PASSWORD_BYTES) if settings.LOCAL_PASSWORDS else ""


def _locked(user: User) -> User:
    found = User.objects.select_for_update().get(pk=user.pk)
    user.is_active = found.is_active
    return found


def _read_again(user: User) -> list[str]:
    return groups_of(User.objects.get(pk=user.pk))


def _group(name: str) -> Group:
    if not GROUP_NAMES.fullmatch(name):
        raise Refused("groups", name, f"must be {', '.join(ROLES)}, or such a one with :FLEET")
    fleet = name.partition(":")[2]
    if fleet and not Fleet.objects.filter(pk=fleet).exists():
        raise Refused("groups", name, f"there is no fleet {fleet}")
    return Group.objects.get_or_create(name=name)[0]


def _somebody_administers() -> None:
    """Raises Refused if nobody who may sign in administers the whole site any more."""
    Group.objects.select_for_update().filter(name="admin").first()
    admins = Q(is_superuser=True) | Q(groups__name="admin")
    if not User.objects.filter(admins, is_active=True).exists():
        raise Refused("user", "", "is the last who administers the whole site")


def _record(user: User, verb: str, who: Who, *, before: Any = None, after: Any = None) -> None:
    audit.record(
        actor=who.actor,
        via=who.via,
        verb=verb,
        target=user.username,
        before={"groups": before} if isinstance(before, list) else before,
        after={"groups": after} if isinstance(after, list) else after,
        reason=who.reason,
    )
