"""Who stands behind a name of the audit: nobody is the second person of what they asked for
themselves, by whatever door."""

from __future__ import annotations

import datetime

from django.contrib.auth import get_user_model
from django.db.models import Q

from routing import rights
from routing.jobs.models import Job
from telemetry.models import ApiToken

_TOKEN, _JOB = "token ", "job "
_BY_RIGHTS = ("ui", "rest")


def behind(actor: str) -> frozenset[str]:
    """The actor, and for a token whoever issued one of that name and answers for it, for a job
    whoever wrote it; in turn."""
    known: set[str] = set()
    ask = [actor]
    while ask:
        name = ask.pop()
        if name in known:
            continue
        known.add(name)
        if name.startswith(_TOKEN):
            of_that_name = ApiToken.objects.filter(name=name.removeprefix(_TOKEN))
            for token in of_that_name:
                ask += [token.created_by, token.owner] if token.owner else [token.created_by]
        elif name.startswith(_JOB):
            ask += Job.objects.filter(pk=name.removeprefix(_JOB)).values_list(
                "updated_by", flat=True
            )
    return frozenset(known)


def same(one: str, other: str) -> bool:
    """Whether one person could be both."""
    return not behind(one).isdisjoint(behind(other))


def still_may(actor: str, via: str, scope: str, fleet: str, now: datetime.datetime) -> bool:
    """Whether who asked would still be let in at that door. Jobs and the shell ask nobody."""
    if via not in _BY_RIGHTS:
        return True
    if actor.startswith(_TOKEN):
        name = actor.removeprefix(_TOKEN)
        alive = Q(expires_at=None) | Q(expires_at__gt=now)
        valid = ApiToken.objects.filter(alive, name=name, revoked_at=None)
        return any(rights.of_token(token.scopes, token.fleet).may(scope, fleet) for token in valid)
    users = get_user_model()
    found = users.objects.filter(**{users.USERNAME_FIELD: actor}).first()
    return found is not None and rights.of(found).may(scope, fleet)
