"""One message to one receiver, now: bounded, signed, to an address that was checked."""

from __future__ import annotations

import ipaddress
import smtplib
import socket
from typing import Final
from urllib.parse import urlsplit

import msgspec
from django.conf import settings
from django.core.mail import send_mail

from routing.adapters import http, places
from routing.adapters.surface import SurfaceError
from routing.alerts import messages
from routing.alerts.addresses import may_reach
from routing.alerts.messages import Told
from routing.alerts.models import Receiver

TIMEOUT_S: Final = 5.0
_MAX_ANSWER_BYTES: Final = 65_536


class NotSent(Exception):
    """Why a message did not get there, for people: never what the other end answered."""


def send(receiver: Receiver, told: Told) -> None:
    """Raises NotSent."""
    if receiver.kind == "email":
        _mail(receiver, told)
        return
    key = _key(receiver)
    raw = msgspec.json.encode(messages.body(receiver.kind, told, key=key))
    headers = {"Idempotency-Key": f"{told.key}-{told.event}-{int(told.at.timestamp())}"}
    if receiver.kind == "webhook" and key:
        headers[messages.SIGNATURE] = messages.signature(key, raw, now_s=told.at.timestamp())
    try:
        http.ask(
            "POST",
            receiver.target,
            raw=raw,
            headers=headers,
            timeout_s=TIMEOUT_S,
            max_bytes=_MAX_ANSWER_BYTES,
            may_reach=_may_reach,
        )
    except http.Status as exc:
        raise NotSent(f"answered {exc.status}") from None
    except http.HttpError as exc:
        raise NotSent(exc.message) from None


def check_host(url: str) -> None:
    """Whether its host may be sent to as it is looked up now. Raises NotSent."""
    parts = urlsplit(url)
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, ValueError) as exc:
        raise NotSent(f"its host cannot be looked up: {exc}") from None
    if not all(_may_reach(str(address[0])) for *_, address in found):
        raise NotSent(
            f"{parts.hostname} is at an address that alerts may not be sent to: set"
            " CONSOLE_ALERT_NETWORKS for one within the site"
        )


def _may_reach(address: str) -> bool:
    allowed = [ipaddress.ip_network(net) for net in settings.ENV["CONSOLE_ALERT_NETWORKS"]]
    return may_reach(address, allowed)


def _key(receiver: Receiver) -> str:
    if not receiver.secret_file:
        return ""
    try:
        shown = places.bearer(receiver.secret_file, router=receiver.name)
    except SurfaceError as exc:
        raise NotSent(str(exc)) from None
    return shown["Authorization"].removeprefix("Bearer ")


def _mail(receiver: Receiver, told: Told) -> None:
    to = [address.strip() for address in receiver.target.split(",")]
    try:
        send_mail(told.title[:200], messages.text(told), None, to)
    except (OSError, smtplib.SMTPException) as exc:
        raise NotSent(f"mail: {type(exc).__name__}") from None
