"""Receivers as people change them, one audit row a change. The one writer of Receiver."""

from __future__ import annotations

import datetime
import re
from typing import Final
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction

from routing import versioned
from routing.alerts import sending
from routing.alerts.messages import KINDS
from routing.alerts.models import AlertRule, Receiver
from routing.commands import Refused

KIND: Final = versioned.Kind(Receiver, "receiver", ("kind", "target", "secret_file"), lambda _: "")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")
_FILE = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,99})?")
_MAX_TARGET = 1000
_NEEDS_KEY = ("pagerduty",)


def put(
    *,
    name: str,
    kind: str,
    target: str,
    secret_file: str = "",
    if_version: int | None,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> Receiver:
    """Make or change one. Its address is looked up and checked now as well as at each message.

    Raises Refused, Stale.
    """
    _check(name, kind, target, secret_file)
    row, _ = versioned.put(
        KIND,
        name,
        {"kind": kind, "target": target, "secret_file": secret_file},
        if_version=if_version,
        actor=actor,
        via=via,
        reason=reason,
        now=now,
    )
    return row


def delete(*, name: str, actor: str, via: str, reason: str) -> None:
    """Forget one that no rule names. Raises Refused, Receiver.DoesNotExist."""
    with transaction.atomic():
        versioned.delete(KIND, name, actor=actor, via=via, reason=reason)
        named_by = AlertRule.objects.filter(document__receivers__contains=[name]).first()
        if named_by is not None:
            raise Refused("receiver", name, f"is named by the rule {named_by.pk}")


def _check(name: str, kind: str, target: str, secret_file: str) -> None:
    if not _NAME.fullmatch(name):
        raise Refused("name", name, "must be small letters, digits, - and _, 80 at most")
    if kind not in KINDS:
        raise Refused("kind", kind, f"must be one of {', '.join(KINDS)}")
    if len(target) > _MAX_TARGET or not target.isprintable():
        raise Refused("target", target, f"must be a line of at most {_MAX_TARGET} characters")
    if not _FILE.fullmatch(secret_file):
        raise Refused("secret_file", secret_file, "must be the name of a file, without a folder")
    if kind in _NEEDS_KEY and not secret_file:
        raise Refused("secret_file", secret_file, "must name the file with the routing key")
    if kind == "email":
        for address in target.split(","):
            try:
                validate_email(address.strip())
            except ValidationError:
                raise Refused("target", target, f"{address!r} is no e-mail address") from None
        return
    parts = urlsplit(target)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise Refused("target", target, "must be http://HOST... or https://HOST..., without a user")
    try:
        sending.check_host(target)
    except sending.NotSent as exc:
        raise Refused("target", target, str(exc)) from None
